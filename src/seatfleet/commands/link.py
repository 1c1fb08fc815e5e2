"""Keep the two halves of a seat over two hosts together (the service seatfleet-link@SEAT, as root on both hosts)."""

from __future__ import annotations

import argparse

HELP = "keep the two halves of a seat over two hosts together"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("seat", help="name of the seat")


def run(args: argparse.Namespace) -> int:
    """Serve or follow until the process is ended; 1 when it cannot."""
    from seatfleet.core.host.link import keep
    from seatfleet.core.paths import SeatPaths
    from seatfleet.core.seat.link import LinkError

    try:
        keep(SeatPaths(args.seat), lambda text: print(text, flush=True))
    except (LinkError, OSError) as error:
        print(f"seat {args.seat}: {error}")
    return 1
