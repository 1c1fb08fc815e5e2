"""Locks, and files that are either the old or the new version whatever happens meanwhile."""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path, waiting: str = "") -> Iterator[None]:
    """Hold an exclusive lock on ``path`` (made when missing); says ``waiting`` while somebody else has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting:
                print(waiting, file=sys.stderr)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file in one step; also one that overlayfs marks as deleted (a device node is replaced, not opened)."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
        os.fchmod(handle.fileno(), mode)
        handle.write(text)
    Path(temporary).replace(path)
