"""Before a seat starts by itself: go back to the last generation that was proven.

The unit of a seat runs this as root before each start. While a rollout is under way (somebody holds the host's start
lock) nothing happens: then the unproven generation is the one to be tried. Otherwise a generation without evidence is
what a power cut or a dead controller left in the middle of a rollout, and the good one before it serves instead. In any
case the seat is not out of service any more: the mark of playbooks/stop.yml is removed.

With ``--after-rollout`` it waits until no rollout is under way, and starts the seat if one has left it stopped: each
rollout has systemd run it, in case the rollout is killed between stop and start. The alias stays closed: no host can
open one.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress

HELP = "before an unattended start: go back to the last proven generation"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("seat", help="name of the seat")
    parser.add_argument(
        "--after-rollout",
        action="store_true",
        help="wait for the end of a rollout, start the seat if it was left stopped",
    )


def run(args: argparse.Namespace) -> int:
    """Settle the seat; always 0 without ``--after-rollout``, so that a start is never prevented."""
    return _start_what_was_left(args.seat) if args.after_rollout else _settle(args.seat)


def _settle(seat: str) -> int:
    from seatfleet.core.host.machine import LocalMachine
    from seatfleet.core.paths import SeatPaths
    from seatfleet.core.seat import stopped
    from seatfleet.core.seat.generations import link_target, settle

    with suppress(OSError):
        stopped.clear(seat)
    paths = SeatPaths(seat)
    if LocalMachine().start_under_way():
        return 0
    unproven = link_target(paths.current)
    try:
        good = settle(paths)
    except OSError as error:  # a full disk: what is current starts
        print(f"seatctl settle: {unproven} was never proven, and could not be left: {error}", file=sys.stderr)
        return 0
    if good:
        print(f"generation {unproven} was never proven and no rollout is under way: starting {good}")
    return 0


def _start_what_was_left(seat: str) -> int:
    from seatfleet.core.host import guard
    from seatfleet.core.host.machine import LocalMachine
    from seatfleet.core.paths import SeatPaths
    from seatfleet.core.seat import stopped
    from seatfleet.core.seat.rollout import RolloutError

    machine, unit = LocalMachine(lock_timeout_s=float("inf")), SeatPaths(seat).unit.name
    with machine.start_lock():
        on_purpose = guard.marker(seat).exists() or stopped.marker(seat).exists()
        left_stopped = machine.unit_state(unit).left_stopped and not on_purpose
    # Only now: a start under the lock would be one that a rollout watches, and nothing would be settled.
    if left_stopped:
        print(f"a rollout ended and left {unit} stopped: starting it")
        try:
            machine.start(unit)
        except RolloutError as error:
            print(f"seatctl settle: {error}", file=sys.stderr)
            return 1
    return 0
