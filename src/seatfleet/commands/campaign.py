"""Measure whether a setting helps a seat: arms that differ in nothing else, boots in an order that cancels drift.

plan     check a definition; print arms, order of boots, cells, what the design can see and about how long it takes
run      measure it on this host, or go on after the last complete boot; production is restored whatever happens
status   how far a campaign is
wait     wait until so many boots are complete, or nothing measures any more
report   analyse raw data into HTML, Markdown and JSON; --verify computes all of it again
redo     measure the last boot again, with the reason kept
restore  bring the production seat back (what the unit that runs a campaign does at its end)
bench    one quick look at a running seat with the same client: no verdict

Exit codes: 0 done, 2 wrong input, 3 the report does not follow from the raw data, 4 stopped (run again to go on),
5 refused.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from seatfleet.core.problems import Problem, ProblemsError

if TYPE_CHECKING:
    from seatfleet.campaign.definition import Definition
    from seatfleet.campaign.seats import SeatControl

HELP = "measure whether a setting helps a seat, with an honest answer"

EXIT_MISMATCH = 3
EXIT_STOPPED = 4
EXIT_REFUSED = 5
_LOOK_S = 2.0
_QUIET_LOOKS = 5


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verbs below ``seatctl campaign``."""
    verbs = parser.add_subparsers(dest="campaign_verb", metavar="VERB", required=True)

    plan = verbs.add_parser("plan", help="check a definition and say what it takes")
    _definition_arguments(plan)
    plan.add_argument(
        "--local", type=Path, metavar="FILE", help="live deployment of a local seat: show each arm's changes"
    )
    plan.add_argument("--ready", type=float, default=120.0, metavar="S", help="seconds to READY (default: 120)")
    plan.add_argument("--request", type=float, default=10.0, metavar="S", help="seconds per request (default: 10)")
    plan.add_argument("--json", action="store_true", help="print as JSON")

    run_ = verbs.add_parser("run", help="measure, or go on measuring")
    _raw_arguments(run_)
    run_.add_argument("--new", action="store_true", help="with --base: begin a new campaign beside the newest one")
    _definition_arguments(run_)
    which = run_.add_mutually_exclusive_group(required=True)
    which.add_argument("--seat", help="seat of this host, run by systemd (as root)")
    which.add_argument(
        "--local", type=Path, metavar="FILE", help="YAML with executable, config and env: a local process"
    )
    run_.add_argument("--work", type=Path, metavar="DIR", help="for --local: logs and caches (default: RAW.work)")

    status = verbs.add_parser("status", help="how far a campaign is")
    _raw_arguments(status)
    status.add_argument("--name", help="with --base: name of the campaign")
    status.add_argument("--json", action="store_true", help="print as JSON")
    status.add_argument("--definition", type=Path, metavar="FILE", help="also name the fields that are not as begun")
    _newer_argument(status)

    wait = verbs.add_parser("wait", help="wait for boots")
    _raw_arguments(wait)
    wait.add_argument("--name", help="with --base: name of the campaign")
    wait.add_argument("--boots", type=int, required=True, metavar="N", help="return when so many are complete")
    _newer_argument(wait)

    report = verbs.add_parser("report", help="analyse raw data")
    report.add_argument("raw", type=Path)
    report.add_argument("--out", type=Path, metavar="DIR", help="where the report is (default: RAW/report)")
    report.add_argument("--verify", action="store_true", help="compute everything again and compare; write nothing")

    redo = verbs.add_parser("redo", help="measure the last boot again")
    redo.add_argument("raw", type=Path)
    redo.add_argument("boot", help="name of the last boot, for example 04_off_2")
    redo.add_argument("--reason", required=True, help="why; kept with the boot in aborted/")

    restore = verbs.add_parser("restore", help="bring the production seat back")
    restore.add_argument("--seat", required=True)
    restore.add_argument(
        "--shadow", action="store_true", help="the campaign ran beside production, which never stopped"
    )

    bench = verbs.add_parser("bench", help="one quick look at a running seat: no verdict")
    bench.add_argument("--base-url", required=True, metavar="URL", help="the seat on this host, http://127.0.0.1:PORT")
    bench.add_argument("--model", help="served name (default: the first one)")
    bench.add_argument("--api-key-file", type=Path, metavar="FILE", help="file with VLLM_API_KEY=...")
    bench.add_argument("--shapes", default="prose,code,count", help="texts, separated by commas (default: %(default)s)")
    bench.add_argument("--concurrency", default="1,4", help="requests at once (default: %(default)s)")
    bench.add_argument("--max-tokens", type=int, metavar="N", help="limit per answer (default: the text's own)")
    bench.add_argument(
        "--cross-check", type=Path, metavar="VLLM", help="repeat the first cell with `VLLM bench serve` and compare"
    )
    bench.add_argument("--json", action="store_true", help="print as JSON")


def _raw_arguments(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("raw", type=Path, nargs="?", help="directory of one campaign; its name is the campaign's id")
    which.add_argument("--base", type=Path, metavar="DIR", help="directory of campaigns: the newest of that name")


def _newer_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--other-than", metavar="ID", help="with --base: this one is not meant, a new one has begun")


def _definition_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--definition", type=Path, required=True, metavar="FILE", help="YAML or JSON with a mapping `campaigns`"
    )
    parser.add_argument("--name", required=True, help="name of the campaign in that mapping")


def run(args: argparse.Namespace) -> int:
    """Run one of the verbs."""
    verb = {
        "plan": _plan,
        "run": _run,
        "status": _status,
        "wait": _wait,
        "report": _report,
        "redo": _redo,
        "restore": _restore,
        "bench": _bench,
    }[args.campaign_verb]
    from seatfleet.campaign.parity import Refusal
    from seatfleet.campaign.rawdata import RawError
    from seatfleet.campaign.seats import SeatFailed
    from seatfleet.clients.vllm import SeatError
    from seatfleet.core.seat.rollout import RolloutError

    try:
        return verb(args)
    except (SeatError, RolloutError) as error:
        print(f"seatctl campaign: {error}", file=sys.stderr)
        return EXIT_STOPPED
    except Refusal as error:
        print(f"seatctl campaign: {error}", file=sys.stderr)
        return EXIT_REFUSED
    except SeatFailed as error:
        print(f"seatctl campaign: stopped: {error}. What is complete is kept; run it again to go on.", file=sys.stderr)
        return EXIT_STOPPED
    except OSError as error:
        if args.campaign_verb != "run":
            raise
        print(f"seatctl campaign: stopped: {error}. What is complete is kept; run it again to go on.", file=sys.stderr)
        return EXIT_STOPPED
    except RawError as error:
        print(f"seatctl campaign: {error}", file=sys.stderr)
        return EXIT_MISMATCH if args.campaign_verb == "report" else EXIT_REFUSED


def _read_definition(file: Path, name: str) -> tuple[Definition, Mapping[str, Any]]:
    import yaml

    from seatfleet.campaign.definition import load_definition

    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ProblemsError([Problem(str(file), "", "", "YAML with a mapping `campaigns`", str(error))]) from error
    campaigns = content.get("campaigns") if isinstance(content, dict) else None
    if not isinstance(campaigns, dict) or name not in campaigns:
        known = ", ".join(sorted(map(str, campaigns))) if isinstance(campaigns, dict) else "nothing"
        raise ProblemsError([Problem(str(file), "", f"campaigns.{name}", "a campaign of that name", f"only {known}")])
    return load_definition(campaigns[name], name=name, where=str(file)), campaigns[name]


# --- plan -------------------------------------------------------------------------------------------------------------


def _plan(args: argparse.Namespace) -> int:
    from seatfleet.campaign.plan import make_plan, plan_text
    from seatfleet.campaign.seats import LocalSeat

    definition, _ = _read_definition(args.definition, args.name)
    live = LocalSeat(args.local, args.local.parent).live() if args.local else None
    plan = make_plan(definition, live, ready_s=args.ready, request_s=args.request)
    print(json.dumps({**plan, "text": plan_text(plan).splitlines()}, indent=1) if args.json else plan_text(plan))
    return 0


# --- run --------------------------------------------------------------------------------------------------------------


def _control(args: argparse.Namespace, definition: Definition, raw: Path) -> SeatControl:
    if args.local is not None:
        from seatfleet.campaign.seats import LocalSeat

        return LocalSeat(args.local, args.work or raw.with_name(f"{raw.name}.work"))
    from seatfleet.campaign.systemd import CampaignMachine, SystemdSeat

    return SystemdSeat(args.seat, CampaignMachine(), shadow=definition.shadow is not None)


def _run(args: argparse.Namespace) -> int:
    from datetime import UTC, datetime

    from seatfleet.campaign.rawdata import RawCampaign, directory_for
    from seatfleet.campaign.runner import Interrupted, Runner

    definition, written = _read_definition(args.definition, args.name)
    if args.seat not in (None, definition.seat):
        subject = f"campaign {args.name}"
        raise ProblemsError([Problem(str(args.definition), subject, "seat", f"{args.seat}, as asked", definition.seat)])

    raw = args.raw or directory_for(args.base, args.name, datetime.now(UTC), new=args.new)
    runner = Runner(
        definition,
        written,
        _control(args, definition, raw),
        RawCampaign(raw),
        host_name=os.uname().nodename,
        say=lambda text: print(f"{time.strftime('%H:%M:%S')} {text}", flush=True),
    )

    def interrupt(number: int, frame: FrameType | None) -> None:
        runner.interrupt(signal.Signals(number).name)

    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(name, interrupt)
    try:
        runner.run()
    except Interrupted as error:
        print(f"seatctl campaign: stopped by {error}; what is complete is kept, run it again to go on", file=sys.stderr)
        return EXIT_STOPPED
    return 0


def _restore(args: argparse.Namespace) -> int:
    from seatfleet.campaign.systemd import CampaignMachine, SystemdSeat

    SystemdSeat(args.seat, CampaignMachine(), shadow=args.shadow).restore()
    print(f"seat {args.seat}: production was started; the probe says when it is READY")
    return 0


# --- looking at raw data ----------------------------------------------------------------------------------------------


def _known_raw(args: argparse.Namespace) -> Path | None:
    """Return the campaign that is asked for, None when there is none yet."""
    from seatfleet.campaign.rawdata import newest

    if args.raw is not None:
        return Path(args.raw)
    if args.name is None:
        raise ProblemsError([Problem("", "seatctl campaign", "--name", "a name beside --base", "nothing")])
    found = newest(args.base, args.name)
    return None if found is None or found.name == args.other_than else found


def _status(args: argparse.Namespace) -> int:
    from seatfleet.campaign.plan import progress, progress_text
    from seatfleet.campaign.rawdata import RawCampaign

    raw = _known_raw(args)
    found = None if raw is None else progress(RawCampaign(raw))
    if raw is not None and found is not None and args.definition is not None:
        from seatfleet.campaign.definition import changed_fields

        _, written = _read_definition(args.definition, args.name)
        found["changed"] = changed_fields(RawCampaign(raw).manifest()["definition"], json.loads(json.dumps(written)))
    if args.json:
        print(json.dumps(found, indent=1))
    else:
        print("no campaign of that name" if found is None else progress_text(found))
    return 0


def _wait(args: argparse.Namespace) -> int:
    from seatfleet.campaign.plan import progress, progress_text
    from seatfleet.campaign.rawdata import RawCampaign

    quiet = 0
    while True:
        raw = _known_raw(args)
        found = None if raw is None else progress(RawCampaign(raw))
        # between two boots, and before the first, the lock is there all the time; a few looks bridge the start
        quiet = 0 if found is not None and found["running"] else quiet + 1
        if quiet >= _QUIET_LOOKS or (found is not None and len(found["done"]) >= args.boots):
            print("no campaign of that name" if found is None else progress_text(found))
            return 0
        time.sleep(_LOOK_S)


def _report(args: argparse.Namespace) -> int:
    try:
        from seatfleet.campaign.report import Mismatch, verify, write_report
    except ModuleNotFoundError as error:
        what = "seatctl campaign report: needs scipy, statsmodels and matplotlib; install seatfleet[report] here, or"
        print(f"{what} copy the raw data to a machine that has it ({error})", file=sys.stderr)
        return 2
    from seatfleet.campaign.rawdata import RawCampaign

    raw, out = RawCampaign(args.raw), args.out or args.raw / "report"
    if args.verify:
        try:
            verify(raw, out)
        except Mismatch as error:
            print(f"seatctl campaign report: {error}", file=sys.stderr)
            return EXIT_MISMATCH
        print(f"{out}: every number follows from the raw data")
        return 0
    report = write_report(raw, out)
    print(report["answer"])
    print(f"{out / 'report.html'}")
    return 0


def _redo(args: argparse.Namespace) -> int:
    from seatfleet.campaign.rawdata import RawCampaign

    raw = RawCampaign(args.raw)
    with raw.locked():
        progress = raw.redo(args.boot, args.reason)
    slot = progress.next_slot
    print(f"next boot: {slot.directory if slot else 'none'}")
    return 0


# --- bench ------------------------------------------------------------------------------------------------------------


def _bench(args: argparse.Namespace) -> int:
    from seatfleet.campaign.bench import bench, bench_text
    from seatfleet.campaign.definition import SHAPES
    from seatfleet.core.seat.manifest import read_api_key

    shapes = args.shapes.split(",")
    problems = [
        Problem("", "seatctl campaign bench", "--shapes", "names out of " + ", ".join(SHAPES), name)
        for name in shapes
        if name not in SHAPES
    ]
    try:
        levels = [int(text) for text in args.concurrency.split(",")]
    except ValueError:
        levels = []
    if not levels or min(levels) < 1:
        problems.append(
            Problem("", "seatctl campaign bench", "--concurrency", "positive integers, 1,4", args.concurrency)
        )
    if problems:
        raise ProblemsError(problems)
    key = read_api_key(args.api_key_file) if args.api_key_file else None
    found = bench(args.base_url, args.model, key, shapes, levels, args.max_tokens, args.cross_check)
    print(json.dumps(found, indent=1) if args.json else bench_text(found))
    return 0
