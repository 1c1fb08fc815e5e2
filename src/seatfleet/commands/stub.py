"""Answer for a seat that is away: 503 with Retry-After to everything, until stopped.

Two uses, one systemd template (seatfleet-stub@PORT): a port of its own that an alias leads to while its seat restarts,
and the seat's own port once systemd has given the seat up.
"""

from __future__ import annotations

import argparse

HELP = "answer 503 with Retry-After on a port, for a seat that is away"
# A client of the openai package honours up to 60 s; starts take minutes, so several calls see this.
RETRY_AFTER_S = 15


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--port", type=int, required=True, help="TCP port, on all addresses")
    parser.add_argument(
        "--retry-after", type=int, default=RETRY_AFTER_S, help="seconds that callers are told to wait (%(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Serve until the process is ended."""
    from seatfleet.core.problems import Problem, ProblemsError
    from seatfleet.core.seat.stub import SeatStub

    if not 0 <= args.port < 1 << 16:
        raise ProblemsError([Problem("--port", "", "", "a TCP port", str(args.port))])
    with SeatStub(args.port, args.retry_after) as server:
        server.serve_forever()
    return 0
