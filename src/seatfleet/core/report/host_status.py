"""All seats of this host at one moment: :mod:`.status` with what has to be asked for around it."""

from __future__ import annotations

import http.client
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..host.machine_facts import PROCESS_QUERY, foreign, parse_tenants, started_at
from ..paths import SeatPaths
from ..seat import generations
from ..seat.rollout import Machine
from .status import SeatStatus, Surroundings, read_gateway_evidence, seat_status, seats_on_disk

# A seat that takes longer for its counters is overloaded; the row then says nothing about its load.
_METRICS_TIMEOUT_S = 3
_SMI_TIMEOUT_S = 20


def host_status(
    machine: Machine,
    host: str,
    wanted: Mapping[str, Sequence[str]] | None,
    *,
    history: int = 0,
    root: Path = Path("/"),
) -> list[SeatStatus]:
    """Return one row per seat of the inventory or of the disk.

    ``wanted`` maps the inventory's seats to their aliases; None where no inventory is at hand, on the host itself: then
    nothing counts as unmanaged, and aliases are those that the last gateway proof has for the seat.
    """
    proof = read_gateway_evidence(root)
    strangers = tuple(str(tenant) for tenant in foreign(parse_tenants(_cards())))
    names = sorted({*(wanted or {}), *seats_on_disk(root)})
    rows = []
    for name in names:
        paths = SeatPaths(name, root)
        unit = machine.unit_state(paths.unit.name)
        rows.append(
            seat_status(
                machine,
                paths,
                host,
                managed=wanted is None or name in wanted,
                aliases=_aliases_of(host, name, proof) if wanted is None else wanted.get(name, ()),
                cells=proof,
                around=Surroundings(
                    now=time.time(),
                    started=started_at(unit.main_pid) if unit.running else None,
                    metrics=_metrics(paths) if unit.running else None,
                    foreign=strangers,
                    history=history,
                ),
            )
        )
    return rows


def _aliases_of(host: str, seat: str, proof: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the aliases that a completion was seen for from this seat's deployment, ``seat-HOST-SEAT-ALIAS``."""
    seen = (cell for cell in proof if str(cell.get("deployment")).startswith(f"seat-{host}-{seat}-{cell.get('alias')}"))
    return list(dict.fromkeys(str(cell["alias"]) for cell in seen))


def _metrics(paths: SeatPaths) -> str | None:
    """Return the page of counters of a seat, None when it has none to give (still loading, hung, gone)."""
    current = generations.link_target(paths.current)
    manifest = generations.read_manifest(paths, current) if current else None
    if manifest is None:
        return None
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{manifest['base_url']}/metrics", timeout=_METRICS_TIMEOUT_S) as answer:
            return str(answer.read().decode(errors="replace"))
    except (OSError, ValueError, http.client.HTTPException):
        return None


def _cards() -> str:
    """Return what nvidia-smi says about processes on the cards; empty on a host without cards."""
    try:
        done = subprocess.run(
            ["nvidia-smi", *PROCESS_QUERY], capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
