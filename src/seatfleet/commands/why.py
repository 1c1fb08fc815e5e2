"""Say why a seat failed the last time: the first cause of its last failed start and of its last failed probe.

Runs on the seat's host as root (journal, evidence); changes nothing and asks the seat nothing. A failure that is known
is named, with what to do about it; docs/known-failures.md has all of them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ..core.problems import Problem, ProblemsError
from ..core.report.why import Known

HELP = "on a host: the first cause of a seat's last failure, and what is known of it"
# About a dozen starts of vLLM; a crash loop writes that within half an hour.
JOURNAL_LINES = 20_000
_JOURNAL_TIMEOUT_S = 60


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("seat", help="name of the seat")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parser.add_argument("--journal", type=Path, metavar="FILE", help="read `journalctl -o json` from there instead")


def run(args: argparse.Namespace) -> int:
    """Print what is found; 0 also when something failed, 2 when there is no such seat."""
    from ..core.host.guard import read_marker
    from ..core.host.machine import LocalMachine
    from ..core.paths import EVIDENCE, unit_name
    from ..core.report.status import read_history, seats_on_disk
    from ..core.report.why import failed_probe, failed_start, guarded, last_ready, starts, text

    unit = unit_name(args.seat)
    if args.journal is None and args.seat not in (known := seats_on_disk()):
        expected = f"a seat of this host ({', '.join(known) or 'it has none'})"
        raise ProblemsError([Problem("", "", "", expected, args.seat)])
    lines = args.journal.read_text().splitlines() if args.journal else _journal(unit)
    state = "from a file" if args.journal else f"{unit} is {LocalMachine().unit_state(unit)}"
    history = list(read_history(Path(EVIDENCE) / args.seat, 1000))
    ready = last_ready(history)
    mark = None if args.journal else read_marker(args.seat)
    looked = (failed_start(starts(lines), explain), failed_probe(history, explain), guarded(mark, explain))
    failures = [found for found in looked if found]
    if args.json:
        shown = {
            "seat": args.seat,
            "state": state,
            "failures": [one.as_dict() for one in failures],
            "last_ready": ready,
        }
        print(json.dumps(shown, indent=2))
    else:
        print(text(args.seat, state, failures, ready))
    return 0


def explain(lines: Sequence[str]) -> list[Known]:
    """Return the known failures that some lines look like, in the order of the lines."""
    from ..core.report import known_failures

    return [
        Known(failure.id, failure.symptom, failure.explain or failure.prevent, failure.sources)
        for failure, _ in known_failures.explain(lines)
    ]


def _journal(unit: str) -> list[str]:
    from ..core.report.why import JOURNAL_FIELDS

    command = ["journalctl", "--no-pager", "--output=json", f"--output-fields={JOURNAL_FIELDS}", f"--unit={unit}"]
    command.append(f"--lines={JOURNAL_LINES}")
    done = subprocess.run(command, capture_output=True, timeout=_JOURNAL_TIMEOUT_S, check=False)
    return done.stdout.decode(errors="replace").splitlines()
