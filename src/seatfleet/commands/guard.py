"""Guard the memory of a host whose cards and processor share it.

run     watch, and kill a seat at the floor (what the service seatfleet-memory-guard runs; as root)
status  which seats were killed, and why
clear   forget that a seat was killed, so that it may be started again

Exit codes: 0 done, 1 a seat is marked (status), 2 wrong input.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..core.host import meminfo

HELP = "guard the memory of a host with unified memory"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verbs below ``seatctl guard``."""
    verbs = parser.add_subparsers(dest="guard_verb", metavar="VERB", required=True)
    run_ = verbs.add_parser("run", help="watch, and kill a seat at the floor")
    run_.add_argument("--config", type=Path, required=True, metavar="FILE", help="JSON with floor and seats")
    run_.add_argument("--meminfo", type=Path, default=meminfo.PATH, metavar="FILE", help="replayed memory")
    verbs.add_parser("status", help="which seats were killed")
    clear = verbs.add_parser("clear", help="forget that a seat was killed")
    clear.add_argument("seat")


def run(args: argparse.Namespace) -> int:
    """Run one of the verbs."""
    from seatfleet.core.host import guard
    from seatfleet.core.paths import GUARDED
    from seatfleet.core.problems import Problem, ProblemsError

    if args.guard_verb == "run":
        try:
            config = guard.load_config(args.config)
        except (OSError, ValueError) as error:
            raise ProblemsError([Problem(str(args.config), "", "", "floor and seats", str(error))]) from error
        guard.watch(config, guard.Host(args.meminfo), args.config)
        return 0
    if args.guard_verb == "clear":
        guard.marker(args.seat).unlink(missing_ok=True)
        print(f"seat {args.seat} may be started again: run site.yml")
        return 0
    marks = sorted(Path(GUARDED).glob("*.json"))
    for path in marks:
        mark = guard.read_marker(path.stem) or {}
        print(f"{path.stem}: killed at {mark.get('at', '?')}: {mark.get('why', '?')}")
    return 1 if marks else 0
