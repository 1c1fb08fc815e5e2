"""Before a seat starts by itself: go back to the last generation that was proven.

The unit of a seat runs this as root before each start. While a rollout is under way (somebody holds the host's start
lock) nothing happens: then the unproven generation is the one to be tried. Otherwise a generation without evidence is
what a power cut or a dead controller left in the middle of a rollout, and the good one before it serves instead.
"""

from __future__ import annotations

import argparse

HELP = "before an unattended start: go back to the last proven generation"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("seat", help="name of the seat")


def run(args: argparse.Namespace) -> int:
    """Settle the seat; always 0, so that a start is never prevented."""
    from seatfleet.core.host.machine import LocalMachine
    from seatfleet.core.paths import SeatPaths
    from seatfleet.core.seat.generations import link_target, settle

    paths = SeatPaths(args.seat)
    if LocalMachine().start_under_way():
        return 0
    unproven = link_target(paths.current)
    if good := settle(paths):
        print(f"generation {unproven} was never proven and no rollout is under way: starting {good}")
    return 0
