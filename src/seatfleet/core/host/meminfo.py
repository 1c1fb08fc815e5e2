"""``/proc/meminfo``, in bytes: the one reader for whoever asks how much memory the host has."""

from __future__ import annotations

import re
from pathlib import Path

PATH = Path("/proc/meminfo")


def fields(text: str) -> dict[str, int]:
    """Return every field that is a size."""
    return {name: int(size) * 1024 for name, size in re.findall(r"(?m)^(\w+):\s+(\d+) kB$", text)}


def field(text: str, name: str) -> int:
    """Return one field.

    Raises:
        ValueError: there is no such line; kernels since 3.14 have ``MemAvailable``.
    """
    match = re.search(rf"(?m)^{name}:\s+(\d+) kB$", text)
    if match is None:
        raise ValueError(f"/proc/meminfo: expected {name}, seen none")
    return int(match[1]) * 1024


def available(path: Path = PATH) -> int:
    """Return what can be had now without swapping; ``ValueError`` like :func:`field`."""
    return field(path.read_text(encoding="ascii"), "MemAvailable")
