"""The cards of a host, from ``nvidia-smi``.

Two questions instead of one: a driver that does not know one field answers none of a query (exit code 2), and an old
driver, which is what somebody may have to be told about, does not know the newer ones.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from ..units import MIB

# The order in which QUERY asks for them; parse_query() relies on it.
_FIELDS = ("uuid", "pci.bus_id", "name", "memory.total", "driver_version")
QUERY = (f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits")
_DETAIL_FIELDS = (
    "uuid",
    "compute_cap",
    "persistence_mode",
    "power.limit",
    "clocks_event_reasons.active",
    "memory.used",
)
DETAILS = (f"--query-gpu={','.join(_DETAIL_FIELDS)}", "--format=csv,noheader,nounits")
# Exit codes of an answer: 14 says that the infoROM of a card is corrupted, which is written below the answer as well.
ANSWERED = (0, 14)
# Bits of clocks_event_reasons.active (nvml.h) that say the card is slower than it was asked to be. Idle (0x1), set
# clocks (0x2) and the software power cap (0x4, seen in passing on healthy cards) are no fault.
THROTTLE = {0x08: "hardware slowdown", 0x20: "heat", 0x40: "heat (hardware)", 0x80: "power brake"}


@dataclass(frozen=True)
class Gpu:
    """One card; ``memory`` and ``used`` in bytes, ``power_limit`` in watts, None where the driver does not know.

    ``capability`` is ``12.0`` and so on; ``throttle`` are the reasons why it is slowed down now.
    """

    uuid: str
    pci: str
    name: str
    memory: int | None
    driver: str
    capability: str | None = None
    persistence: bool | None = None
    power_limit: float | None = None
    throttle: tuple[str, ...] = ()
    used: int | None = None


def read_cards(ask: Callable[[tuple[str, ...]], tuple[int, str]]) -> tuple[list[Gpu], str]:
    """Return the cards in PCI order and, when there are none, what nvidia-smi said.

    ``ask`` runs nvidia-smi with arguments and returns its exit code and everything it printed.

    Raises:
        ValueError: the output has another form; the message quotes the line.
    """
    code, output = ask(QUERY)
    if code not in ANSWERED:
        return [], " ".join(output.split()) or f"exit code {code}"
    cards = parse_query(output)
    code, output = ask(DETAILS)
    return (with_details(cards, output) if code in ANSWERED else cards), ""


def parse_query(text: str) -> list[Gpu]:
    """Return the cards in PCI order, which is the order of ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` and of indices in a seat.

    Raises:
        ValueError: the output has another form; the message quotes the line.
    """
    return sorted((_gpu(row) for row in rows(text)), key=_position)


def with_details(cards: list[Gpu], text: str) -> list[Gpu]:
    """Return the cards with what the answer to :data:`DETAILS` adds; a card that it does not name stays as it is."""
    details = {row[0]: row for row in rows(text) if len(row) == len(_DETAIL_FIELDS)}
    return [_detailed(card, details[card.uuid]) if card.uuid in details else card for card in cards]


USED = ("--query-gpu=uuid,memory.used", "--format=csv,noheader,nounits")
HOLDERS = ("--query-compute-apps=pid,gpu_uuid,used_memory", "--format=csv,noheader,nounits")


def memory_held(used: str, holders: str, cards: Collection[str], pids: Collection[int]) -> tuple[int, int] | None:
    """Return the bytes in use on cards, and those of them that given processes hold.

    ``used`` and ``holders`` are the answers to :data:`USED` and :data:`HOLDERS`. None where the driver does not know:
    unified memory.
    """
    sizes = [_mebibytes(row[1]) for row in rows(used) if row[0] in cards]
    known = [size for size in sizes if size is not None]
    if not known or len(known) != len(sizes):
        return None
    ours = [row for row in rows(holders) if len(row) == 3 and row[1] in cards and row[0] in map(str, pids)]
    return sum(known), sum(_mebibytes(row[2]) or 0 for row in ours)


def rows(text: str) -> list[list[str]]:
    """Return the cells of nvidia-smi's answer to a query, without its warnings, which come between or below them."""
    lines = (line for line in text.splitlines() if not line.lower().startswith("warning:"))
    return [[cell.strip() for cell in row] for row in csv.reader(lines, skipinitialspace=True) if row]


def _gpu(row: list[str]) -> Gpu:
    if len(row) != len(_FIELDS) or not row[0].startswith("GPU-"):
        raise ValueError(f"nvidia-smi: expected {', '.join(_FIELDS)} of a card, seen {', '.join(row)!r}")
    uuid, pci, name, memory, driver = row
    return Gpu(uuid, pci, name, _mebibytes(memory), driver)


def _detailed(card: Gpu, row: list[str]) -> Gpu:
    _, capability, persistence, power, reasons, used = row
    mask = 0 if _unknown(reasons) else int(reasons, 16)
    return replace(
        card,
        capability=None if _unknown(capability) else capability,
        persistence=None if _unknown(persistence) else persistence == "Enabled",
        power_limit=None if _unknown(power) else float(power),
        throttle=tuple(text for bit, text in THROTTLE.items() if mask & bit),
        used=_mebibytes(used),
    )


def _unknown(text: str) -> bool:
    """Say whether a cell is no value: ``[N/A]`` on unified memory, ``[Unknown Error]``, ``[GPU is lost]`` and so on."""
    return text in {"", "N/A", "Unknown Error"} or text.startswith("[")


def _mebibytes(text: str) -> int | None:
    return None if _unknown(text) else int(text) * MIB


def _position(gpu: Gpu) -> tuple[int, ...]:
    """Return domain, bus, device and function of ``00000000:C1:00.0``."""
    domain, bus, rest = gpu.pci.split(":")
    device, function = rest.split(".")
    return tuple(int(part, 16) for part in (domain, bus, device, function))
