"""Control groups of lab hosts: one directory per host in every hierarchy, made, filled, emptied and removed here.

A host's systemd needs a group of its own to manage. Where the machine has version 1 hierarchies (alone or beside the
unified one: "hybrid"), nspawn gives a host with a user namespace the part below the group it was started in, writable;
so it is started in a group of its own in each hierarchy. With version 2 alone the same directory exists once, and the
controllers have to be passed down to it, which the kernel allows only through groups that hold no process themselves.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from .errors import LabError

ROOT = Path("/sys/fs/cgroup")
PREFIX = "seatfleet-"
# Where the supervisor of a host waits, on a machine whose systemd gave it a scope with cgroup version 2.
SUPERVISOR_LEAF = f"{PREFIX}supervisor"
EMPTY_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Hierarchy:
    """One mounted cgroup hierarchy, and the caller's own group in it."""

    version: int
    controllers: tuple[str, ...]
    mount: Path
    own: PurePosixPath

    @property
    def names_processes(self) -> bool:
        """Whether systemd keeps track of processes here: only one hierarchy of a machine is that."""
        return self.version == 2 or "name=systemd" in self.controllers

    @property
    def own_path(self) -> Path:
        """Directory of the caller's own group."""
        return self.mount / str(self.own).lstrip("/")


def parse(self_cgroup: str, mountinfo: str) -> list[Hierarchy]:
    """Return the mounted hierarchies from /proc/self/cgroup and /proc/self/mountinfo, the one that names first.

    An own group outside of what is mounted (a container without its own cgroup namespace) counts as the mount's root.
    """
    mounts: dict[str, tuple[Path, PurePosixPath]] = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        root, mount = left.split()[3:5]
        for name in {"cgroup2": [""], "cgroup": options.split(",")}.get(kind, []):
            mounts.setdefault(name, (Path(mount), PurePosixPath(root)))
    found = []
    for line in self_cgroup.splitlines():
        _, names, group = line.split(":", 2)
        controllers = tuple(filter(None, names.split(",")))
        mounted = mounts.get(names.split(",")[0])
        if mounted is None:
            continue
        mount_point, root_of_mount = mounted
        own = PurePosixPath(group)
        below = own.relative_to(root_of_mount) if own.is_relative_to(root_of_mount) else PurePosixPath()
        found.append(Hierarchy(1 if names else 2, controllers, mount_point, "/" / below))
    # A hybrid machine has two that name processes; systemd's own version 1 hierarchy is the one it trusts.
    return sorted(found, key=lambda h: (not h.names_processes, "name=systemd" not in h.controllers))


def current() -> list[Hierarchy]:
    """Return this machine's hierarchies; ``LabError`` when a lab host cannot live in them."""
    found = parse(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
    check(found, lambda mount: bool(os.statvfs(mount).f_flag & os.ST_RDONLY))
    return found


def check(hierarchies: Sequence[Hierarchy], read_only: Callable[[Path], bool]) -> None:
    """Raise ``LabError`` unless there is a hierarchy for processes and all can be written to."""
    if not any(hierarchy.names_processes for hierarchy in hierarchies):
        raise LabError(f"no cgroup hierarchy for processes (cgroup2 or name=systemd) is mounted below {ROOT}")
    for hierarchy in hierarchies:
        if read_only(hierarchy.mount):
            raise LabError(f"{hierarchy.mount} is read-only: lab hosts need a machine with writable cgroups")


def directories(hierarchies: Iterable[Hierarchy], lab: str, machine: str) -> list[Path]:
    """Return a host's directory in each hierarchy: below the caller's own group, so its limits hold for the host."""
    return [hierarchy.own_path / lab / machine for hierarchy in hierarchies]


def create(hierarchies: Sequence[Hierarchy], lab: str, machine: str) -> list[Path]:
    """Make a host's directories, ready to be entered; safe while another host's removal takes the parent away."""
    made = directories(hierarchies, lab, machine)
    for hierarchy, directory in zip(hierarchies, made, strict=True):
        for attempt in range(5):
            try:
                directory.mkdir(parents=True, exist_ok=True)
                break
            except FileNotFoundError:
                if attempt == 4:
                    raise
        if all(h.version == 2 for h in hierarchies):  # beside version 1 the controllers are there, not here
            _pass_down(hierarchy.own_path, directory.parent)
        elif "cpuset" in hierarchy.controllers:
            _copy_cpuset(hierarchy.own_path, (directory.parent, directory))
    return made


def _pass_down(own: Path, parent: Path) -> None:
    """Enable for the hosts what the caller's group has (version 2).

    A group below the root that holds processes cannot pass anything down. The supervisor is alone in the scope that
    systemd gave it, so it steps aside into a leaf. Where others share the group (a container without systemd), hosts
    boot all the same, but limits of their units (MemoryMax=, CPUQuota=) then do nothing.
    """
    own_is_root = not (own / "cgroup.type").exists()
    if not own_is_root and (own / "cgroup.procs").read_text().split() == [str(os.getpid())]:
        leaf = own / SUPERVISOR_LEAF
        leaf.mkdir(exist_ok=True)
        (leaf / "cgroup.procs").write_text("0")
    for group in (own, parent):
        for controller in (group / "cgroup.controllers").read_text().split():
            try:
                (group / "cgroup.subtree_control").write_text(f"+{controller}")
            except OSError as refused:
                print(
                    f"lab: {group}: no {controller} limits in this host: {refused.strerror}",
                    flush=True,
                )


def _copy_cpuset(own: Path, groups: Iterable[Path]) -> None:
    """Give new cpuset groups (version 1) CPUs and memory nodes; without them nothing can enter."""
    for group in groups:
        for name in ("cpuset.cpus", "cpuset.mems"):
            (group / name).write_text((own / name).read_text())
        (group / "cgroup.clone_children").write_text("1")


def enter(groups: Iterable[Path]) -> None:
    """Move the calling process; between fork and exec of nspawn."""
    for group in groups:
        (group / "cgroup.procs").write_text("0")


def processes(group: Path) -> list[int]:
    """Return the ids of all processes in a group and below it; a group that is gone has none."""
    found: list[int] = []
    for directory, _, _ in os.walk(group):
        try:
            found += map(int, (Path(directory) / "cgroup.procs").read_text().split())
        except (FileNotFoundError, OSError):  # removed meanwhile: ENOENT on open, ENODEV on read
            continue
    return found


def kill(group: Path) -> None:
    """Kill every process in a group and below it, and wait until none is left; ``LabError`` after 10 s."""
    deadline = time.monotonic() + EMPTY_TIMEOUT_S
    while left := processes(group):
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            raise LabError(f"processes {left} in {group} do not die: look at their state in /proc/PID/stack")
        time.sleep(0.02)


def remove(groups: Iterable[Path]) -> None:
    """Remove empty groups with all below them, then the lab's own directory when no other host is in it."""
    for group in groups:
        deadline = time.monotonic() + EMPTY_TIMEOUT_S
        while group.exists():
            # topdown=False: a group can only go after those inside it.
            for directory, _, _ in os.walk(group, topdown=False):
                try:
                    Path(directory).rmdir()
                except OSError as busy:  # the kernel lets go of a dead process a moment after it is gone from the list
                    if time.monotonic() > deadline:
                        raise LabError(f"cgroup {directory} cannot be removed: {busy.strerror}") from busy
            time.sleep(0.01)
        try:
            group.parent.rmdir()
        except OSError:
            continue  # another host of this lab, or already gone


def leftovers(lab: str) -> list[Path]:
    """Return the directories of a lab's hosts anywhere below /sys/fs/cgroup, those that name processes first."""
    found: list[Path] = []
    for hierarchy in current():
        for directory, names, _ in os.walk(hierarchy.mount):
            if lab in names:
                found += [entry for entry in (Path(directory) / lab).iterdir() if entry.is_dir()]
            names[:] = [name for name in names if not name.startswith(PREFIX)]
    return found
