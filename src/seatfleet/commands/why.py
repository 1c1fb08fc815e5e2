"""Say why a seat failed the last time: the first cause of its last failed start and of its last failed probe.

Runs on the seat's host as root (journal, evidence). What the kernel wrote at the end of that start belongs to it: its
OOM killer, a crash, an Xid of NVIDIA's driver. Changes nothing and asks the seat nothing. A failure that is known is
named, with what to do about it; docs/known-failures.md has all of them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ..core.problems import Problem, ProblemsError
from ..core.report.kernel import FIELDS, Line, window
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
    parser.add_argument(
        "--kernel", type=Path, metavar="FILE", help="with --journal: `journalctl -k -o json`, from there"
    )


def run(args: argparse.Namespace) -> int:
    """Print what is found; 0 also when something failed, 2 when there is no such seat."""
    from ..core.host.guard import read_marker
    from ..core.host.machine import LocalMachine
    from ..core.paths import EVIDENCE, unit_name
    from ..core.report.status import read_history, seats_on_disk
    from ..core.report.why import Start, failed_probe, failed_start, guarded, kernel_lines, last_ready, starts, text
    from ..core.seat import stopped

    unit = unit_name(args.seat)
    if args.journal is None and args.seat not in (known := seats_on_disk()):
        expected = f"a seat of this host ({', '.join(known) or 'it has none'})"
        raise ProblemsError([Problem("", "", "", expected, args.seat)])
    lines = args.journal.read_text(errors="replace").splitlines() if args.journal else _journal(unit)
    seen = None if args.journal else LocalMachine().unit_state(unit)
    state = f"{unit} is {seen}" if seen else "from a file"
    if seen and stopped.out_of_service(args.seat, seen.active):
        state += ", stopped on purpose (playbooks/stop.yml)"
    history = list(read_history(Path(EVIDENCE) / args.seat, 1000))
    ready = last_ready(history)
    mark = None if args.journal else read_marker(args.seat)

    def kernel(start: Start) -> list[Line]:
        if args.journal is None:
            asked = _kernel_journal(*window(start.began, start.last))
            return kernel_lines(asked, start, unit, _cards(args.seat) if asked else None)
        return kernel_lines(args.kernel.read_text(errors="replace").splitlines() if args.kernel else (), start, unit)

    looked = (failed_start(starts(lines), explain, kernel), failed_probe(history, explain), guarded(mark, explain))
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

    return _read(JOURNAL_FIELDS, f"--unit={unit}")


def _kernel_journal(since: float, until: float) -> list[str]:
    # Not --dmesg, which is about this boot only: the seat may have ended with the one before.
    return _read(FIELDS, "_TRANSPORT=kernel", f"--since=@{since:.6f}", f"--until=@{until:.6f}")


def _cards(seat: str) -> frozenset[str] | None:
    """Return where the cards are that generations of the seat have; None where nobody knows of each of them."""
    from ..core.host import gpus
    from ..core.paths import SeatPaths
    from ..core.seat.generations import read_manifest

    paths = SeatPaths(seat)
    manifests = [read_manifest(paths, path.parent.name) or {} for path in paths.generations.glob("*/manifest.json")]
    visible = {one.get("environment", {}).get("CUDA_VISIBLE_DEVICES", "") for one in manifests}
    wanted = {card for cards in visible for card in cards.split(",")}
    try:
        done = subprocess.run(
            ["nvidia-smi", *gpus.QUERY], capture_output=True, text=True, timeout=_JOURNAL_TIMEOUT_S, check=False
        )
        places = {card.uuid: card.pci for card in gpus.parse_query(done.stdout)}
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return frozenset(places[card] for card in wanted) if wanted and wanted <= places.keys() else None


def _read(fields: str, *what: str) -> list[str]:
    # --all: what is longer than 4,096 bytes would come as null, and a refused parser or a dumped configuration is.
    command = [
        "journalctl",
        "--no-pager",
        "--all",
        "--output=json",
        f"--output-fields={fields}",
        f"--lines={JOURNAL_LINES}",
    ]
    done = subprocess.run([*command, *what], capture_output=True, timeout=_JOURNAL_TIMEOUT_S, check=False)
    return done.stdout.decode(errors="replace").splitlines()
