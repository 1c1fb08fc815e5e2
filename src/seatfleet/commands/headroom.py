"""Judge the boots of a headroom probe: which pin to boot at next, or which one to propose.

Reads one JSON file, {"subject": {...}, "start": bytes, "total": bytes, "trials": [...]}, each trial with the fields of
seatfleet.core.headroom.Trial, and prints JSON. Contacts nothing and edits nothing: the proposal is a snippet for
group_vars. Exit code 0: result found, 3: another boot is wanted, 1: nothing is safe.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

HELP = "choose the next pin of a headroom probe, or propose one"

EXIT_NOTHING_SAFE = 1
EXIT_ANOTHER_BOOT = 3


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    parser.add_argument("evidence", type=Path, help="JSON file with the boots so far")


def read(path: Path) -> dict[str, Any]:
    """Return the content of an evidence file.

    Raises:
        ProblemsError: it cannot be read, or lacks a field.
    """
    from seatfleet.core.problems import Problem, ProblemsError

    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ProblemsError([Problem(str(path), "", "", "JSON evidence of a headroom probe", str(error))]) from error
    content = content if isinstance(content, dict) else {}
    fields = {"subject": dict, "start": int, "total": int, "trials": list}
    wrong = {name: kind.__name__ for name, kind in fields.items() if type(content.get(name)) is not kind}
    if wrong:
        raise ProblemsError([Problem(str(path), "", name, kind, "nothing of it") for name, kind in wrong.items()])
    return content


def run(args: argparse.Namespace) -> int:
    """Print the next pin or the proposal."""
    import hashlib

    from seatfleet.core.headroom import Next, search, snippet, trials_from_json, unclean
    from seatfleet.core.problems import Problem, ProblemsError

    content = read(args.evidence)
    try:
        trials = trials_from_json([{"total": content["total"], **trial} for trial in content["trials"]])
    except (KeyError, TypeError) as error:
        raise ProblemsError([Problem(str(args.evidence), "", "trials", "fields of a trial", str(error))]) from error
    step = search(trials, content["total"], content["start"])
    judged = [{"pin": trial.pin, "unclean": unclean(trial)} for trial in trials]
    if isinstance(step, Next):
        print(json.dumps({"next_pin": step.pin, "confirms": step.confirms, "boots": judged}, indent=2))
        return EXIT_ANOTHER_BOOT
    digest = hashlib.sha256(args.evidence.read_bytes()).hexdigest()
    proposal = snippet(step, content["subject"], trials, digest) if step.pin else None
    found = {"pin": step.pin, "clean_pin": step.clean_pin, "confirmed": step.confirmed}
    print(json.dumps({**found, "boots": judged, "snippet": proposal}, indent=2))
    return 0 if step.pin else EXIT_NOTHING_SAFE
