"""Who listens on a port, asked of the kernel: ``/proc/net/tcp``, the processes' open files, and their cgroups.

An answer on the right port proves nothing by itself: a server left over from before, or somebody else's, answers
``/health`` just as well while the new process dies of "address already in use". Needs root to see other users' files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_LISTEN = "0A"  # TCP_LISTEN, include/net/tcp_states.h


@dataclass(frozen=True)
class Owner:
    """A process that holds the listening socket."""

    pid: int
    command: str
    cgroup: str

    def __str__(self) -> str:
        """Describe the process for a message; its arguments are left out, they may hold secrets."""
        return f"process {self.pid} ({self.command}) in {self.cgroup}"


def listening_inodes(port: int, proc: Path = PROC) -> set[str]:
    """Return the socket inodes that listen on a TCP port, on any address, IPv4 or IPv6."""
    found = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / table).read_text().splitlines()[1:]
        except FileNotFoundError:  # IPv6 switched off
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found


def _open_files(process: Path) -> Iterator[str]:
    try:
        entries = list((process / "fd").iterdir())
    except OSError:  # gone meanwhile, or not ours to see
        return
    for entry in entries:
        with contextlib.suppress(OSError):  # closed between listing and reading
            yield str(entry.readlink())


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def cgroup_of(pid: int, proc: Path = PROC) -> str:
    """Return the cgroup path of a process in the unified hierarchy, ``""`` when it is gone."""
    for line in _read(proc / str(pid) / "cgroup").splitlines():
        if line.startswith("0::"):
            return line[3:]
    return ""


def listeners(port: int, proc: Path = PROC) -> list[Owner]:
    """Return every process that holds a socket listening on the port; a fork shares it with its parent."""
    return list(_owners(listening_inodes(port, proc), proc))


def _owners(inodes: Iterable[str], proc: Path) -> Iterator[Owner]:
    links = {f"socket:[{inode}]" for inode in inodes}
    if not links:
        return
    for process in sorted((entry for entry in proc.iterdir() if entry.name.isdigit()), key=lambda one: int(one.name)):
        if any(link in links for link in _open_files(process)):
            pid = int(process.name)
            yield Owner(pid, _read(process / "comm").strip() or "?", cgroup_of(pid, proc))


def in_cgroup(owner: Owner, cgroup: str) -> bool:
    """Tell whether a process belongs to a unit's cgroup or one below it."""
    return bool(cgroup) and (owner.cgroup == cgroup or owner.cgroup.startswith(cgroup.rstrip("/") + "/"))
