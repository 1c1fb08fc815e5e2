"""The cards of a host, from ``nvidia-smi``."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass

from .units import MIB

# The order in which QUERY asks for them; parse_query() relies on it.
_FIELDS = ("uuid", "pci.bus_id", "name", "memory.total", "driver_version")
QUERY = (f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits")
# Unified memory: GB10 has no memory of its own to report.
_UNKNOWN = ("[N/A]", "[Not Supported]", "")


@dataclass(frozen=True)
class Gpu:
    """One card; ``memory`` in bytes, None where the driver does not know (unified memory)."""

    uuid: str
    pci: str
    name: str
    memory: int | None
    driver: str


def parse_query(text: str) -> list[Gpu]:
    """Return the cards in PCI order, which is the order of ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` and of indices in a seat.

    Raises:
        ValueError: the output has another form; the message quotes the line.
    """
    return sorted((_gpu(row) for row in csv.reader(io.StringIO(text), skipinitialspace=True) if row), key=_position)


def _gpu(row: list[str]) -> Gpu:
    if len(row) != len(_FIELDS) or not row[0].startswith("GPU-"):
        raise ValueError(f"nvidia-smi: expected {', '.join(_FIELDS)} of a card, seen {', '.join(row)!r}")
    uuid, pci, name, memory, driver = (cell.strip() for cell in row)
    return Gpu(uuid, pci, name, None if memory in _UNKNOWN else int(memory) * MIB, driver)


def _position(gpu: Gpu) -> tuple[int, ...]:
    """Return domain, bus, device and function of ``00000000:C1:00.0``."""
    domain, bus, rest = gpu.pci.split(":")
    device, function = rest.split(".")
    return tuple(int(part, 16) for part in (domain, bus, device, function))
