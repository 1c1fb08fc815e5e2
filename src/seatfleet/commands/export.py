"""Write the state of this host's seats as Prometheus text, for node_exporter's textfile collector.

Runs on a GPU host as root, from a timer (role observability). It asks systemd, /proc and the evidence, reads one page
of counters per seat, and sends nothing to a model.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..core.report.exporter import Drafter
from ..core.report.status import SeatStatus
from ..core.units import parse_size

HELP = "on a host: write the state of its seats as Prometheus text"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--host", required=True, help="name of this host in the inventory")
    parser.add_argument("--textfile", type=Path, metavar="FILE", help="write there (default: standard output)")
    parser.add_argument(
        "--memory-floor", type=parse_size, metavar="SIZE", default="2GiB", help="available memory below this is danger"
    )


def run(args: argparse.Namespace) -> int:
    """Collect and write; always 0 when it could."""
    import time

    from ..clients.evidence import write_atomic
    from ..core.host import meminfo
    from ..core.host.machine import LocalMachine
    from ..core.report.exporter import prometheus_text, samples
    from ..core.report.host_status import host_status
    from ..core.report.status import gateway_evidence

    statuses = host_status(LocalMachine(), args.host, None)
    proof, proven_at = gateway_evidence()
    text = prometheus_text(
        samples(
            args.host,
            statuses,
            _drafters(statuses),
            now=time.time(),
            memory=(meminfo.available(), args.memory_floor),
            proof=proof,
            proven_at=proven_at,
        )
    )
    if args.textfile:
        write_atomic(args.textfile, text)
    else:
        print(text, end="")
    return 0


def _drafters(statuses: Sequence[SeatStatus]) -> dict[str, Drafter]:
    """Return how each seat speculates, from the manifest of its current generation; others are left out."""
    from ..core.paths import SeatPaths
    from ..core.seat.generations import link_target, read_manifest

    found = {}
    for status in statuses:
        paths = SeatPaths(status.seat)
        current = link_target(paths.current)
        manifest = read_manifest(paths, current) if current else None
        if manifest and manifest.get("speculative"):
            speculative, declared = manifest["speculative"], manifest["probe"].get("acceptance") or {}
            found[status.seat] = Drafter(speculative["method"], speculative["k"], declared)
    return found
