"""That an operator took a seat out of service: a mark on its host, so that nobody takes it for a broken one.

In ``/run``: a host that boots starts its seats by itself. Every start removes the mark, also one by hand
(``seatctl settle`` in the unit): a mark that stayed would hide the next time that the seat is away.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ..files import write_atomic
from ..paths import EVIDENCE

GATEWAY_EVIDENCE = "gateway.json"
STOPPED = "/run/seatfleet-stopped"


@dataclass(frozen=True)
class Mark:
    """When a seat was stopped (seconds since the epoch), and which of its aliases were closed before."""

    at: float
    closed: tuple[str, ...] = ()


def marker(seat: str, root: Path = Path("/")) -> Path:
    """Return the file that marks a seat as stopped by an operator."""
    return root / STOPPED.lstrip("/") / f"{seat}.json"


def read(seat: str, root: Path = Path("/")) -> Mark | None:
    """Return the mark of a seat, None when it has none."""
    try:
        content = json.loads(marker(seat, root).read_text(encoding="utf-8"))
        return Mark(float(content["at"]), tuple(map(str, content["closed"])))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def out_of_service(seat: str, active: str, root: Path = Path("/")) -> Mark | None:
    """Return the mark of a seat whose unit is still in the state that an operator left it in, ``inactive``.

    A mark says nothing of a seat that runs, or whose start has failed since.
    """
    return read(seat, root) if active == "inactive" else None


def write(seat: str, mark: Mark, root: Path = Path("/")) -> None:
    """Mark a seat."""
    path = marker(seat, root)
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    write_atomic(path, json.dumps(asdict(mark)) + "\n")


def clear(seat: str, root: Path = Path("/")) -> None:
    """Remove the mark of a seat that is started, or gone."""
    marker(seat, root).unlink(missing_ok=True)


def drop_proofs(aliases: Collection[str], root: Path = Path("/")) -> None:
    """Remove closed aliases from the evidence of the last gateway proof: what it saw is not so any more.

    The file keeps its time, which is that of the proof. A full disk is no reason not to stop a seat.
    """
    path = root / EVIDENCE.lstrip("/") / GATEWAY_EVIDENCE
    with suppress(OSError, ValueError, KeyError, TypeError):  # no proof, or none that anybody could read
        content, stat = json.loads(path.read_text(encoding="utf-8")), path.stat()
        left = [cell for cell in content["cells"] if cell["alias"] not in aliases]
        if len(left) < len(content["cells"]):
            text = json.dumps({**content, "cells": left}, indent=4, sort_keys=True) + "\n"
            write_atomic(path, text, stat.st_mode & 0o777)
            os.utime(path, (stat.st_atime, stat.st_mtime))
