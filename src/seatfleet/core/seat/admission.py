"""Is there room for a seat? Asked while its old process serves, with what that one will give back counted in.

vLLM refuses to start unless ``free >= utilization * total`` on its card, also when a pin makes it ignore the
utilization afterwards. That very sum is done here before anything is stopped, with the holders of the rest named. On
unified memory free means ``MemAvailable``: the driver's own figure leaves out page cache, which a start takes back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..host import meminfo
from ..host.gpus import rows
from ..host.sockets import PROC
from ..host.tenants import Tenant, process_name
from ..units import GIB, MIB, format_gib

CARDS_QUERY = ("--query-gpu=index,uuid,memory.total,memory.free", "--format=csv,noheader,nounits")
#: Two readings of a card differ by this, and a start by what the driver rounds.
TOLERANCE = 256 * MIB
#: Holders of host memory that are worth naming.
LARGE = GIB


@dataclass(frozen=True)
class Card:
    """One card now; ``total`` and ``free`` in bytes, None on unified memory."""

    index: str
    uuid: str
    total: int | None
    free: int | None


def parse_cards(text: str) -> list[Card]:
    """Return the cards in nvidia-smi's answer to :data:`CARDS_QUERY`.

    Raises:
        ValueError: the output has another form.
    """
    found = []
    for row in rows(text):
        if len(row) != 4 or not row[1].startswith("GPU-"):
            raise ValueError(f"nvidia-smi: expected index, UUID, total and free memory of a card, seen {row!r}")
        sizes = [int(cell) * MIB if cell.isdigit() else None for cell in row[2:]]
        found.append(Card(row[0], row[1], *sizes))
    return found


def shortages(
    manifest: Mapping[str, Any],
    serving: Mapping[str, Any] | None,
    cards: Sequence[Card],
    tenants: Sequence[Tenant],
    pids: Collection[int],
    memory: str,
    large: Callable[[], Sequence[str]] = tuple,
) -> list[str]:
    """Return why a generation would not find its memory, in words; empty when it would, or when nobody can tell.

    ``serving`` is the manifest of what runs, ``pids`` its processes; ``large`` names big processes of the host.
    """
    share = (manifest.get("declared") or {}).get("gpu-memory-utilization")
    if not isinstance(share, int | float):
        return []
    wanted = str((manifest.get("environment") or {}).get("CUDA_VISIBLE_DEVICES", "")).split(",")
    found = []
    for card in cards:
        if card.uuid not in wanted and card.index not in wanted:
            continue
        here = [tenant for tenant in tenants if tenant.gpu == card.uuid]
        own = [tenant for tenant in here if tenant.pid in pids]
        others = [tenant for tenant in here if tenant.pid not in pids]
        if card.total is None or card.free is None:
            found += _on_host(float(share), serving, own, others, memory, large)
        elif not pids or (own and all(tenant.memory is not None for tenant in own)):
            # With processes that the driver does not list (a container) nobody knows what they give back.
            back = sum(tenant.memory or 0 for tenant in own)
            needed = int(float(share) * card.total)
            if card.free + back + TOLERANCE < needed:
                found.append(_sentence(f"card {card.uuid}", needed, card.free, back, list(map(str, _by_size(others)))))
    return found


def _on_host(
    share: float,
    serving: Mapping[str, Any] | None,
    own: Sequence[Tenant],
    others: Sequence[Tenant],
    memory: str,
    large: Callable[[], Sequence[str]],
) -> list[str]:
    size = meminfo.field(memory, "MemTotal")
    free, needed = meminfo.field(memory, "MemAvailable"), int(share * size)
    if own and all(tenant.memory is not None for tenant in own):
        back = sum(tenant.memory or 0 for tenant in own)
    elif serving is not None:
        # The driver does not say: what it was started with.
        back = int(float((serving.get("declared") or {}).get("gpu-memory-utilization") or 0) * size)
    else:
        back = 0
    if free + back + TOLERANCE >= needed:
        return []
    return [_sentence("this host", needed, free, back, [*map(str, _by_size(others)), *large()])]


def _by_size(tenants: Sequence[Tenant]) -> list[Tenant]:
    return sorted(tenants, key=lambda tenant: -(tenant.memory or 0))


def _sentence(where: str, needed: int, free: int, back: int, holders: Sequence[str]) -> str:
    given = f" and the seat's own process gives back {format_gib(back)}" if back else ""
    named = f": {'; '.join(holders)}" if holders else "; nobody is listed as holding the rest"
    return (
        f"{where} has {format_gib(free)} free{given}, the seat wants {format_gib(needed)}{named}. Stop what holds it, "
        "or give the seat less (kv_cache_memory)"
    )


def large_processes(pids: Collection[int], proc: Path = PROC) -> list[str]:
    """Return the processes of the host with more than 1 GiB resident, largest first, at most three."""
    found = []
    for process in proc.iterdir():
        if not process.name.isdigit() or int(process.name) in pids:
            continue
        try:
            resident = int((process / "statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError, ValueError):  # gone meanwhile
            continue
        if resident >= LARGE:
            found.append((resident, int(process.name)))
    return [
        f"{process_name(pid, proc)} (process {pid}) has {format_gib(size)} resident"
        for size, pid in sorted(found, reverse=True)[:3]
    ]
