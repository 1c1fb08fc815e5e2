"""What the kernel and the driver say about this host, read from ``/proc`` and from ``nvidia-smi``'s output."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..paths import UNIT_PREFIX
from ..units import MIB
from .sockets import PROC, cgroup_of

# The order in which PROCESS_QUERY asks; parse_tenants() relies on it.
PROCESS_QUERY = ("--query-compute-apps=gpu_uuid,pid,process_name,used_memory", "--format=csv,noheader,nounits")
_COLUMNS = 4


@dataclass(frozen=True)
class Tenant:
    """A process that uses a card. ``memory`` in bytes, None where the driver does not know (unified memory)."""

    gpu: str
    pid: int
    command: str
    memory: int | None
    cgroup: str

    @property
    def seat(self) -> str | None:
        """The seat whose unit it belongs to, None for a foreign process."""
        for part in self.cgroup.split("/"):
            if part.startswith(UNIT_PREFIX) and part.endswith(".service"):
                return part[len(UNIT_PREFIX) : -len(".service")]
        return None

    def __str__(self) -> str:
        """How the status shows it; arguments are left out, they may hold secrets."""
        size = "" if self.memory is None else f", {self.memory // MIB:,} MiB"
        return f"{Path(self.command).name} (process {self.pid}{size}) on {self.gpu}"


def parse_tenants(text: str, proc: Path = PROC) -> list[Tenant]:
    """Return the processes in the output of ``nvidia-smi`` with :data:`PROCESS_QUERY`; other lines are left out."""
    return [
        _tenant(row, proc)
        for row in csv.reader(io.StringIO(text), skipinitialspace=True)
        if len(row) == _COLUMNS and row[1].strip().isdigit()
    ]


def foreign(tenants: Sequence[Tenant]) -> list[Tenant]:
    """Return those that belong to no seat."""
    return [tenant for tenant in tenants if tenant.seat is None]


def started_at(pid: int, proc: Path = PROC) -> float | None:
    """Return when a process started, in seconds since the epoch; None when it has ended."""
    try:
        # The name may hold spaces and parentheses; the fields after its last one are numbers. starttime is field 22.
        ticks = int((proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[19])
        boot = next(line for line in (proc / "stat").read_text().splitlines() if line.startswith("btime "))
    except (OSError, StopIteration):
        return None
    return int(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")


def _tenant(row: Sequence[str], proc: Path) -> Tenant:
    gpu, pid, command, used = (cell.strip() for cell in row)
    return Tenant(gpu, int(pid), command, int(used) * MIB if used.isdigit() else None, cgroup_of(int(pid), proc))
