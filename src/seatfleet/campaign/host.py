"""What a campaign asks of the machine: facts that must not move, and whether it has calmed down between two boots."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..core.host import meminfo
from .telemetry import number

MIB = 1 << 20
GIB = 1 << 30
#: Leftovers of a stopped engine: GPU memory, and host memory on unified machines.
GPU_MEMORY_SLACK_MIB = 64.0
HOST_MEMORY_SLACK_MIB = 1024.0
TEMPERATURE_SLACK_C = 5.0
#: A machine that has not calmed down after this long will not; the boot says so.
CALM_LIMIT_S = 900.0
_POLL_S = 2.0
_FACTS = (
    *("uuid", "name", "driver_version", "vbios_version", "memory.total", "power.limit", "clocks.max.sm"),
    *("persistence_mode", "mig.mode.current", "pcie.link.gen.max", "pcie.link.width.max"),
)


def _smi(query: Sequence[str], gpus: Sequence[str]) -> list[dict[str, str]]:
    """Ask nvidia-smi; an empty list on a host without it."""
    if shutil.which("nvidia-smi") is None:
        return []
    select = ["-i", ",".join(gpus)] if gpus else []
    argv = ["nvidia-smi", *select, f"--query-gpu={','.join(query)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True)
    return [dict(zip(query, (f.strip() for f in line.split(",")), strict=True)) for line in done.stdout.splitlines()]


def _first_match(path: Path, pattern: str) -> str | None:
    try:
        match = re.search(pattern, path.read_text(encoding="utf-8"), re.M)
    except OSError:
        return None
    return match[1].strip() if match else None


def facts(gpus: Sequence[str] = ()) -> dict[str, Any]:
    """Return what must be the same in every boot of a campaign (rule GC4): cards, driver, kernel, processor, memory."""
    governor = _first_match(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"), r"(.*)")
    return {
        "gpus": _smi(_FACTS, gpus),
        "kernel": platform.release(),
        "cpu": _first_match(Path("/proc/cpuinfo"), r"^model name\s*:\s*(.*)$") or platform.machine(),
        "cores": os.cpu_count(),
        "governor": governor,
        # whole GiB: the same machine has some KiB more or less after every start
        "memory_gib": round(meminfo.fields(meminfo.PATH.read_text(encoding="ascii"))["MemTotal"] / GIB),
    }


def host_boot_id() -> str:
    """Return what identifies this start of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()


def load_average() -> float:
    """Return the one minute load average: other work on the host explains a noisy boot."""
    return os.getloadavg()[0]


@dataclass(frozen=True)
class Calm:
    """The machine at rest. None where it cannot be told."""

    gpu_used_mib: float | None
    gpu_temp_c: float | None
    host_available_mib: float | None

    def excess(self, rest: Calm) -> list[str]:
        """Return in what way this moment is not yet as calm as ``rest``."""
        found = []
        if self.gpu_used_mib is not None and rest.gpu_used_mib is not None:
            extra = self.gpu_used_mib - rest.gpu_used_mib
            if extra > GPU_MEMORY_SLACK_MIB:
                found.append(f"{extra:.0f} MiB of GPU memory are still in use")
        elif self.host_available_mib is not None and rest.host_available_mib is not None:
            gone = rest.host_available_mib - self.host_available_mib
            if gone > HOST_MEMORY_SLACK_MIB:
                found.append(f"{gone:.0f} MiB of host memory are still in use")
        if self.gpu_temp_c is not None and rest.gpu_temp_c is not None:
            warmer = self.gpu_temp_c - rest.gpu_temp_c
            if warmer > TEMPERATURE_SLACK_C:
                found.append(f"the GPU is {warmer:.0f} C warmer")
        return found


def look(gpus: Sequence[str] = ()) -> Calm:
    """Measure the machine now. Cards without own memory figures (GB10) are judged by host memory."""
    rows = _smi(("memory.used", "temperature.gpu"), gpus)
    used = [value for row in rows if (value := number(row["memory.used"])) is not None]
    heat = [value for row in rows if (value := number(row["temperature.gpu"])) is not None]
    available = meminfo.fields(meminfo.PATH.read_text(encoding="ascii")).get("MemAvailable")
    return Calm(
        gpu_used_mib=sum(used) if used else None,
        gpu_temp_c=max(heat, default=None),
        host_available_mib=available / MIB if available else None,
    )


def free_gpu_mib(gpus: Sequence[str] = ()) -> float | None:
    """Return the least free memory over the cards, None where they do not report it."""
    free = [value for row in _smi(("memory.free",), gpus) if (value := number(row["memory.free"])) is not None]
    return min(free, default=None)


def gpu_processes(gpus: Sequence[str]) -> list[str]:
    """Return ``pid name`` of everything that computes on these cards."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["--query-compute-apps=pid,process_name", "--format=csv,noheader"]
    argv = ["nvidia-smi", "-i", ",".join(gpus), *query]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True)
    return [" ".join(line.split(", ")) for line in done.stdout.splitlines() if line.strip()]


def calm_down(
    rest: Calm,
    idle_s: float,
    gpus: Sequence[str] = (),
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    measure: Callable[[Sequence[str]], Calm] = look,
) -> Mapping[str, Any]:
    """Wait at least ``idle_s`` and until the machine is as calm as at the start; after 15 minutes go on and say so."""
    began = clock()
    sleep(idle_s)
    while True:
        now = measure(gpus)
        excess = now.excess(rest)
        if not excess or clock() - began >= idle_s + CALM_LIMIT_S:
            return {"waited_s": round(clock() - began, 1), "not_calm": excess, **asdict(now)}
        sleep(_POLL_S)
