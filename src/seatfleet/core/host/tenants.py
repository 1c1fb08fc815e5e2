"""Who holds memory on a card: processes as ``nvidia-smi`` lists them, named by the unit that they belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ..units import MIB, format_gib
from .gpus import rows
from .sockets import PROC, cgroup_of

# The order in which APPS_QUERY asks for them.
_FIELDS = ("gpu_uuid", "pid", "used_gpu_memory")
APPS_QUERY = (f"--query-compute-apps={','.join(_FIELDS)}", "--format=csv,noheader,nounits")


@dataclass(frozen=True)
class Tenant:
    """One process on a card; ``memory`` in bytes, None where the driver does not say (unified memory, containers)."""

    gpu: str
    pid: int
    memory: int | None
    name: str

    def __str__(self) -> str:
        """Describe it for a message."""
        size = format_gib(self.memory) if self.memory is not None else "memory of unknown size"
        return f"{self.name} (process {self.pid}) holds {size}"


def process_name(pid: int, proc: Path = PROC) -> str:
    """Return the unit of a process, or the name of its command where it has none."""
    cgroup = Path(cgroup_of(pid, proc))
    unit = next((part for part in reversed(cgroup.parts) if part.endswith((".service", ".scope"))), None)
    if unit is not None:
        return unit
    try:
        return (proc / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "a process of another namespace"


def parse_apps(text: str, name: Callable[[int], str] = process_name) -> list[Tenant]:
    """Return the processes in nvidia-smi's answer to :data:`APPS_QUERY`.

    Raises:
        ValueError: the output has another form; the message quotes the line.
    """
    found = []
    for row in rows(text):
        if len(row) != len(_FIELDS) or not row[1].isdigit():
            raise ValueError(f"nvidia-smi: expected {', '.join(_FIELDS)} of a process, seen {', '.join(row)!r}")
        gpu, pid, memory = row
        found.append(Tenant(gpu, int(pid), int(memory) * MIB if memory.isdigit() else None, name(int(pid))))
    return found


def names(tenants: Iterable[Tenant]) -> list[str]:
    """Return the tenants' names, each once, in order: what evidence about a shared card belongs to."""
    return sorted({tenant.name for tenant in tenants})
