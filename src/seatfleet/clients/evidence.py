"""Evidence of probes on the host: one JSON file per run, written atomically, the newest of each level kept."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from ..core import files

KEPT = 200


def write_atomic(path: Path, text: str) -> None:
    """Write a file, and its directory where there is none: see :func:`seatfleet.core.files.write_atomic`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomic(path, text)


def write_if_possible(path: Path, text: str) -> None:
    """Write a file like :func:`write_atomic`, or say on standard error why not.

    For what a probe keeps for the next one: a disk that is full says nothing about the seat, and must not end it.
    """
    try:
        write_atomic(path, text)
    except OSError as error:
        print(f"seatctl probe: {path.name} was not kept: {error}", file=sys.stderr)


def keep(directory: Path, result: Mapping[str, object]) -> Path:
    """Store a report as ``<time>-<level>.json``, drop the oldest of its level beyond :data:`KEPT`, and return the file.

    Of its level: the timed probes of one night would push out every acceptance that was ever measured.
    """
    stamp = str(result["started_utc"]).replace(":", "").replace("-", "")
    path = directory / f"{stamp}-{result['level']}.json"
    write_atomic(path, json.dumps(result, indent=2) + "\n")
    for old in sorted(directory.glob(f"[0-9]*T[0-9]*Z-{result['level']}.json"))[:-KEPT]:
        old.unlink(missing_ok=True)
    return path
