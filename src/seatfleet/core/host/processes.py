"""What really runs: the unit as systemd sees it, its process from ``/proc``, and who listens on the seat's port."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .sockets import PROC, Owner, cgroup_of, listeners

# The properties that `systemctl show` is asked for; parse_show() needs all of them.
PROPERTIES = (
    "Id",
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "MainPID",
    "NRestarts",
    "ControlGroup",
    "UnitFileState",
    "NeedDaemonReload",
    "DropInPaths",
    "ExecMainStatus",
)


@dataclass(frozen=True)
class UnitState:
    """A unit as ``systemctl show`` describes it.

    ``control_group`` is never empty: systemd says nothing of a dead unit's, where left-over processes would be.
    """

    name: str
    load: str
    active: str
    sub: str
    result: str
    main_pid: int
    restarts: int
    control_group: str
    enabled: bool
    needs_reload: bool
    drop_ins: tuple[str, ...]
    exit_status: int

    @property
    def installed(self) -> bool:
        """Whether systemd has a unit file for it."""
        return self.load == "loaded"

    @property
    def running(self) -> bool:
        """Whether the main process is there and is not on its way out."""
        return self.active == "active" and self.sub == "running" and self.main_pid > 0

    @property
    def left_stopped(self) -> bool:
        """Whether it shall run, and was stopped and not started again; one that failed to start is not.

        ``timeout`` is how systemd calls a stop that ended in SIGKILL.
        """
        stopped = self.active in {"inactive", "deactivating"} or (self.active, self.result) == ("failed", "timeout")
        return self.enabled and stopped

    def ended(self, restarts: int = 0) -> bool:
        """Whether the process ended since the unit had been restarted that often; 0 is since the last start by hand.

        Dead, failed, waiting for a restart, or restarted once more.
        """
        return self.active in {"failed", "inactive"} or self.sub.startswith("auto-restart") or self.restarts > restarts

    def __str__(self) -> str:
        """How messages show it: ``failed (exit-code, status 1, 3 restarts)``."""
        if not self.installed:
            return "not installed"
        details = [self.sub] if self.sub not in {self.active, "dead"} else []
        if self.result != "success":
            details += [self.result, f"status {self.exit_status}"]
        if self.restarts:
            details.append(f"{self.restarts} restart{'s' if self.restarts != 1 else ''}")
        return f"{self.active} ({', '.join(details)})" if details else self.active


@dataclass(frozen=True)
class Process:
    """A running process. ``environ`` holds secrets and stays out of every message."""

    pid: int
    argv: tuple[str, ...]
    environ: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True)
class SeatState:
    """All that is known about a seat on its host at one moment."""

    unit: UnitState
    process: Process | None
    pids: tuple[int, ...]
    listeners: tuple[Owner, ...]

    @property
    def strangers(self) -> tuple[Owner, ...]:
        """Who listens on the seat's port and is no part of the seat."""
        return tuple(owner for owner in self.listeners if owner.pid not in self.pids)


def parse_show(text: str) -> UnitState:
    """Read the output of ``systemctl show --property=...`` with :data:`PROPERTIES`.

    Raises:
        KeyError: systemd left a property out.
    """
    properties = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    name = properties["Id"]
    return UnitState(
        name=name,
        load=properties["LoadState"],
        active=properties["ActiveState"],
        sub=properties["SubState"],
        result=properties.get("Result", "success"),
        main_pid=int(properties.get("MainPID") or 0),
        restarts=int(properties.get("NRestarts") or 0),
        control_group=properties["ControlGroup"] or f"/system.slice/{name}",
        enabled=properties["UnitFileState"] == "enabled",
        needs_reload=properties["NeedDaemonReload"] == "yes",
        # Those of all services, which a distribution may have, are none of ours.
        drop_ins=tuple(path for path in properties["DropInPaths"].split() if Path(path).parent.name == f"{name}.d"),
        exit_status=int(properties.get("ExecMainStatus") or 0),
    )


def read_seat(unit: UnitState, port: int, proc: Path = PROC) -> SeatState:
    """Add to a unit's state what ``/proc`` knows about its processes and about the port."""
    pids = cgroup_pids(unit.control_group, proc)
    process = read_process(unit.main_pid, proc) if unit.main_pid else None
    return SeatState(unit, process, pids, tuple(listeners(port, proc)))


def read_process(pid: int, proc: Path = PROC) -> Process | None:
    """Return one process, None when it has ended meanwhile."""
    try:
        argv = _words(proc / str(pid) / "cmdline")
        environ = _words(proc / str(pid) / "environ")
    except OSError:
        return None
    return Process(pid, argv, dict(word.split("=", 1) for word in environ if "=" in word))


def cgroup_pids(control_group: str, proc: Path = PROC) -> tuple[int, ...]:
    """Return the processes in a control group and below it."""
    pids = sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdigit())
    groups = ((pid, cgroup_of(pid, proc)) for pid in pids)
    return tuple(pid for pid, group in groups if group == control_group or group.startswith(f"{control_group}/"))


def _words(path: Path) -> tuple[str, ...]:
    return tuple(path.read_bytes().decode(errors="replace").rstrip("\0").split("\0"))
