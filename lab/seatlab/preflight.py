"""What the machine must have before a host can boot; each lack is one line that names the remedy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

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


def check() -> None:
    """Raise ``LabError`` for the first thing that is missing: root, a package, usable cgroups."""
    if os.geteuid() != 0:
        raise LabError("lab hosts need root (namespaces, mounts, a bridge): run as root")
    if packages := missing_packages():
        raise LabError(f"missing: apt-get install --no-install-recommends {' '.join(packages)}")
    cgroups.current()
