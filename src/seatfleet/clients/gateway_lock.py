"""One writer of key lists per gateway on this controller."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WAIT_LIMIT_S = 180.0
_PAUSE_S = 0.2


class LockTimeoutError(RuntimeError):
    """Another run kept the lock too long."""


def lock_directory() -> Path:
    """Return the directory of lock files: of this user only, in the runtime directory where there is one."""
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or "-")
    # It goes with the user's last session, and the variable stays (tmux, cron, su).
    base = runtime if runtime.is_absolute() and runtime.is_dir() else Path(tempfile.gettempdir())
    directory = base / f"seatfleet-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    if directory.lstat().st_uid != os.getuid() or directory.is_symlink():
        raise LockTimeoutError(f"{directory} belongs to somebody else; remove it, or set XDG_RUNTIME_DIR")
    return directory


@contextmanager
def gateway_lock(url: str, directory: Path | None = None, wait_s: float = WAIT_LIMIT_S) -> Iterator[None]:
    """Hold the lock of one gateway; the kernel releases it with the process, so a killed run leaves none behind.

    Raises:
        LockTimeoutError: not free within ``wait_s``.
    """
    name = hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:16]
    path = (directory or lock_directory()) / f"gateway-{name}.lock"
    with path.open("a+") as file:
        end = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise LockTimeoutError(
                        f"another run has been editing the gateway for {wait_s:.0f} s (lock {path}); wait for it"
                    ) from None
                time.sleep(_PAUSE_S)
        yield
