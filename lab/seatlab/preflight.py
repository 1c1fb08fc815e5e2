"""What the machine must have before a host can boot; each lack is one line that names the remedy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from . import cgroups
from .errors import LabError

PACKAGES = {
    "systemd-nspawn": "systemd-container",
    "ip": "iproute2",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "mount": "mount",
    "unshare": "util-linux",
    "nsenter": "util-linux",
}


def missing_packages(which: Callable[[str], str | None] = shutil.which) -> list[str]:
    """Return the Debian packages whose commands are not there."""
    return sorted({package for command, package in PACKAGES.items() if which(command) is None})


# systemd, journald, logind and udev of a host take 6 or 7, all counted on root out here. A host that gets none ends
# while it boots and says nothing.
INOTIFY_PER_HOST = 10


def short_of_inotify(proc: Path = Path("/proc")) -> str | None:
    """Return why another host would not boot for lack of inotify instances; None when there are enough."""
    setting = proc / "sys/fs/inotify/max_user_instances"
    if not setting.exists():
        return None
    limit = int(setting.read_text())
    used = sum(_inotify_instances(fds) for fds in proc.glob("[0-9]*/fd"))
    if limit - used >= INOTIFY_PER_HOST:
        return None
    return (
        f"{used} of {limit} inotify instances are in use and a host takes up to {INOTIFY_PER_HOST}: "
        "stop other labs, or sysctl -w fs.inotify.max_user_instances=1024"
    )


def _inotify_instances(fds: Path) -> int:
    """Count those of one process, none for one that ends meanwhile."""
    try:
        return sum(str(link.readlink()) == "anon_inode:inotify" for link in fds.iterdir())
    except OSError:
        return 0


def check() -> None:
    """Raise ``LabError`` for the first thing that is missing: root, a package, usable cgroups."""
    if os.geteuid() != 0:
        raise LabError("lab hosts need root (namespaces, mounts, a bridge): run as root")
    if packages := missing_packages():
        raise LabError(f"missing: apt-get install --no-install-recommends {' '.join(packages)}")
    cgroups.current()
