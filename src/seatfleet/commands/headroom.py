"""Measure which KV pin a seat survives at full depth, and propose one; nothing here edits an inventory.

run    boot the seat at one pin after the other, load it to full depth, ask torch's allocator; production comes back
judge  read the boots in an evidence file: which pin to boot at next, or which one to propose

Exit codes: 0 a pin is proposed, 1 nothing is safe, 2 wrong input, 3 another boot is wanted, 4 stopped by a signal or
because the seat or its allocator could not be asked.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seatfleet.campaign.seats import SeatControl

HELP = "measure which KV pin a seat survives at full depth"

EXIT_NOTHING_SAFE = 1
EXIT_ANOTHER_BOOT = 3
EXIT_STOPPED = 4


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verbs below ``seatctl headroom``."""
    verbs = parser.add_subparsers(dest="headroom_verb", metavar="VERB", required=True)

    judge = verbs.add_parser("judge", help="choose the next pin, or propose one")
    judge.add_argument("evidence", type=Path, help="JSON file with the boots so far")

    run_ = verbs.add_parser("run", help="boot, load and measure until a pin can be proposed")
    which = run_.add_mutually_exclusive_group(required=True)
    which.add_argument("--seat", help="seat of this host, run by systemd (as root); out of service meanwhile")
    which.add_argument("--local", type=Path, metavar="FILE", help="YAML with executable, config and env: a process")
    run_.add_argument("--out", type=Path, required=True, metavar="DIR", help="where evidence and samples are kept")
    run_.add_argument("--start", metavar="SIZE", help="first pin, for example 4GiB (default: the seat's own)")
    run_.add_argument("--phases", default="ramp,mixed,full", help="what to try at each pin (default: %(default)s)")
    run_.add_argument("--idle", type=float, default=10.0, metavar="S", help="rest before the load (default: 10)")
    run_.add_argument("--limit", type=float, metavar="S", help="begin no boot after this time")
    run_.add_argument("--unified", action="store_true", help="cards and host share their memory (GB10)")
    run_.add_argument(
        "--allow-host-risk", action="store_true", help="deep prompts on unified memory: hosts were reset by them"
    )
    run_.add_argument("--replay", type=Path, metavar="FILE", help="a capture instead of the card's allocator")
    run_.add_argument("--memory-replay", type=Path, metavar="FILE", help="a capture instead of the host's memory")
    run_.add_argument("--no-oracle", action="store_true", help="do not try whether the allocator's warning can fire")


def run(args: argparse.Namespace) -> int:
    """Run one of the verbs."""
    return _judge(args.evidence) if args.headroom_verb == "judge" else _run(args)


# --- judging ----------------------------------------------------------------------------------------------------------


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


def _judge(path: Path) -> int:
    import hashlib

    from seatfleet.core.health.headroom import Next, search, snippet, trials_from_json, unclean
    from seatfleet.core.problems import Problem, ProblemsError

    content = read(path)
    try:
        trials = trials_from_json([{"total": content["total"], **trial} for trial in content["trials"]])
    except (KeyError, TypeError) as error:
        raise ProblemsError([Problem(str(path), "", "trials", "fields of a trial", str(error))]) from error
    step = search(trials, content["total"], content["start"])
    judged = [{"pin": trial.pin, "unclean": unclean(trial)} for trial in trials]
    if isinstance(step, Next):
        print(json.dumps({"next_pin": step.pin, "confirms": step.confirms, "boots": judged}, indent=2))
        return EXIT_ANOTHER_BOOT
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    proposal = snippet(step, content["subject"], trials, digest) if step.pin else None
    found = {"pin": step.pin, "clean_pin": step.clean_pin, "confirmed": step.confirmed}
    print(json.dumps({**found, "boots": judged, "snippet": proposal}, indent=2))
    return 0 if step.pin else EXIT_NOTHING_SAFE


# --- measuring --------------------------------------------------------------------------------------------------------


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _control(args: argparse.Namespace) -> SeatControl:
    if args.local is not None:
        from seatfleet.campaign.seats import LocalSeat

        return LocalSeat(args.local, args.out / "work")
    from seatfleet.campaign.systemd import CampaignMachine, SystemdSeat

    return SystemdSeat(args.seat, CampaignMachine())


def _python(control: SeatControl) -> Path | None:
    """Return the interpreter that the seat runs under."""
    from seatfleet.core.seat.render import RELEASE_VARIABLE

    release = control.live().env.get(RELEASE_VARIABLE)
    return Path(release) / "bin/python" if release else None


def _run(args: argparse.Namespace) -> int:
    from seatfleet.campaign.parity import Refusal
    from seatfleet.campaign.runner import Interrupted
    from seatfleet.campaign.seats import SeatFailed
    from seatfleet.core.health.headroom import PHASES
    from seatfleet.core.problems import Problem, ProblemsError
    from seatfleet.core.units import parse_size
    from seatfleet.headroom.hunt import Hunt
    from seatfleet.headroom.prober import Plan, Prober

    phases = tuple(args.phases.split(","))
    if phases != PHASES[: len(phases)]:
        expected = "ramp, ramp,mixed or ramp,mixed,full"
        raise ProblemsError([Problem("", "seatctl headroom run", "--phases", expected, args.phases)])
    try:
        start = parse_size(args.start) if args.start else None
    except ValueError as error:
        raise ProblemsError([Problem("", "seatctl headroom run", "--start", "a size", str(error))]) from error
    plan = Plan(
        phases=phases,
        idle_s=args.idle,
        unified=args.unified,
        allow_host_risk=args.allow_host_risk,
        replay=args.replay,
        memory_replay=args.memory_replay,
    )

    def interrupt(number: int, frame: FrameType | None) -> None:
        # once: the clean-up itself must not be interrupted
        for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(name, signal.SIG_IGN)
        raise Interrupted(signal.Signals(number).name)

    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(name, interrupt)
    control = _control(args)
    try:
        hunt = Hunt(
            Prober(control, plan, args.out, say=_say),
            args.seat or "local",
            args.out,
            start=start,
            python=None if args.no_oracle or args.replay else _python(control),
            limit_s=args.limit or float("inf"),
            say=_say,
        )
        result = hunt.run()
    except (SeatFailed, Refusal) as error:
        print(f"seatctl headroom: {error}", file=sys.stderr)
        return EXIT_STOPPED
    except Interrupted as error:
        print(f"seatctl headroom: stopped by {error}; the boots so far are in {args.out}", file=sys.stderr)
        return EXIT_STOPPED
    print(result["snippet"] or "no pin was clean twice: nothing to propose")
    return 0 if result["pin"] else EXIT_NOTHING_SAFE
