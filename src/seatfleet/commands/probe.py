"""Probe a running seat on this host: READY, identity, acceptance, warm prefix.

Exit codes: 0 READY, 1 internal, 2 usage, 3 not ready, 4 busy, 5 identity, 6 counters, 7 acceptance broken,
8 acceptance low, 9 canary, 10 tool call, 11 prefix. The worst finding decides; docs/probe.md has the JSON form.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from seatfleet.core.health.probe_report import EXIT_BUSY, EXIT_INTERNAL, LEVELS

if TYPE_CHECKING:
    from seatfleet.clients.systemd import UnitState

HELP = "prove that a running seat works and is the one that was declared"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    parser.add_argument("--manifest", type=Path, required=True, help="manifest.json of the seat's current generation")
    parser.add_argument("--level", choices=LEVELS, default="identity", help="how far to go; each includes the former")
    parser.add_argument("--json", action="store_true", help="print the report as JSON instead of a table")
    parser.add_argument("--evidence", type=Path, metavar="DIR", help="keep the report, goldens and baselines there")
    parser.add_argument(
        "--prometheus",
        type=Path,
        metavar="FILE",
        help="write the result as Prometheus text there; a seat that is stopped on purpose has none, and is not probed",
    )
    parser.add_argument(
        "--ready-timeout", type=float, metavar="S", help="seconds to wait for READY, 0 to try once (default: manifest)"
    )
    parser.add_argument(
        "--token-timeout", type=float, metavar="S", default=60.0, help="seconds to wait for one token (default: 60)"
    )
    parser.add_argument(
        "--quiet-timeout",
        type=float,
        metavar="S",
        default=30.0,
        help="seconds to wait for other requests (default: 30)",
    )


def run(args: argparse.Namespace) -> int:
    """Probe the seat, print and keep the report; the exit code is the report's."""
    import json

    from seatfleet.clients.evidence import keep, write_atomic
    from seatfleet.clients.probe import Options, SystemHost, probe
    from seatfleet.clients.vllm import Limits, SeatClient
    from seatfleet.core.health.probe_report import prometheus_text, table
    from seatfleet.core.seat.manifest import load_manifest, read_api_key

    manifest = load_manifest(args.manifest)
    # The timed probe: what it says of a seat out for maintenance would be an alarm, and a failure in the history.
    if args.prometheus and _stopped_on_purpose(manifest.seat, SystemHost(manifest.unit).unit()):
        print(f"seat {manifest.seat} is stopped on purpose: nothing is probed")
        args.prometheus.unlink(missing_ok=True)
        return EXIT_BUSY
    key = read_api_key(manifest.api_key_file) if manifest.api_key_file else None
    options = Options(
        ready_timeout_s=manifest.ready_timeout_s if args.ready_timeout is None else args.ready_timeout,
        quiet_s=args.quiet_timeout,
        evidence=args.evidence,
    )
    limits = Limits(token=args.token_timeout, request=max(120.0, 2 * args.token_timeout))
    try:
        with SeatClient(manifest.base_url, key, limits) as client:
            report = probe(manifest, client, SystemHost(manifest.unit), options, args.level)
    except Exception as error:
        # The exit code is an interface: an unforeseen error must not look like "usage" or "not ready".
        print(f"seatctl probe: internal error: {type(error).__name__}: {error}", file=sys.stderr)
        return EXIT_INTERNAL
    result = report.as_json()
    print(json.dumps(result, indent=2) if args.json else table([result]))
    try:
        if args.evidence:
            keep(args.evidence, result)
        if args.prometheus:
            write_atomic(args.prometheus, prometheus_text(result, time.time()))
    except OSError as error:
        # A full disk says nothing about the seat.
        print(f"seatctl probe: the report was not kept: {error}", file=sys.stderr)
    return report.exit


def _stopped_on_purpose(seat: str, unit: UnitState | None) -> bool:
    """Return whether an operator took the seat out of service, and nobody has started it since."""
    from seatfleet.core.seat import stopped

    return unit is not None and stopped.out_of_service(seat, unit.active) is not None
