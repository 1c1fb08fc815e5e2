"""Memory of the cards and of the host, 20 times a second, in a process of its own: ``python -m ... --out FILE``.

A cross-check beside the allocator's counts: what NVML, ``/proc/meminfo`` and the pressure files show, with the moment
of the least free memory. Locked in memory and never chosen by the kernel's out-of-memory killer, because the moments it
is for are the ones in which the host runs out. Sources can be replaced by a recorded capture (``--replay``); a question
that the capture does not answer is an error, never a zero.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

PERIOD_S = 0.05
MEMINFO_FIELDS = ("MemTotal", "MemAvailable", "MemFree", "Cached", "SwapFree", "SwapTotal")
_NVML = "libnvidia-ml.so.1"
_NVML_NOT_SUPPORTED = 3
_MCL_CURRENT_AND_FUTURE = 3


class Unanswered(Exception):
    """A source has no answer to this question."""


class Source(Protocol):
    """One thing that can be sampled."""

    def read(self) -> dict[str, int]:
        """Return named numbers: bytes, or microseconds of stall."""


def parse_meminfo(text: str) -> dict[str, int]:
    """Return the fields of ``/proc/meminfo`` that matter, in bytes.

    Raises:
        Unanswered: a field is missing; kernels since 3.14 have all of them.
    """
    found = {name: int(size) * 1024 for name, size in re.findall(r"(?m)^(\w+):\s+(\d+) kB$", text)}
    missing = [name for name in MEMINFO_FIELDS if name not in found]
    if missing:
        raise Unanswered(f"/proc/meminfo: no {', '.join(missing)}")
    return {name: found[name] for name in MEMINFO_FIELDS}


def parse_pressure(text: str) -> dict[str, int]:
    """Return the total stall times of ``/proc/pressure/memory`` in microseconds."""
    return {f"psi_{kind}_us": int(total) for kind, total in re.findall(r"(?m)^(some|full) .*total=(\d+)$", text)}


class Meminfo:
    """``/proc/meminfo``."""

    def __init__(self, path: Path = Path("/proc/meminfo")) -> None:
        self._path = path

    def read(self) -> dict[str, int]:
        """Return memory of the host in bytes."""
        return parse_meminfo(self._path.read_text(encoding="ascii"))


class Pressure:
    """``/proc/pressure/memory``; a kernel without it has no answer."""

    def __init__(self, path: Path = Path("/proc/pressure/memory")) -> None:
        self._path = path

    def read(self) -> dict[str, int]:
        """Return stall times in microseconds, nothing where the kernel does not measure them."""
        try:
            return parse_pressure(self._path.read_text(encoding="ascii"))
        except OSError:
            return {}


class _NvmlMemory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Nvml:
    """Memory of cards as the driver shows it; ``gpus`` are UUIDs or indices, all when empty.

    Raises:
        OSError: there is no NVIDIA driver here.
        Unanswered: the driver does not know one of the cards.
    """

    def __init__(self, gpus: Sequence[str] = ()) -> None:
        self._library = ctypes.CDLL(_NVML)
        self._call("nvmlInit_v2")
        self._handles = [self._handle(gpu) for gpu in gpus or self._all()]

    def _call(self, name: str, *arguments: object) -> None:
        code = int(getattr(self._library, name)(*arguments))
        if code == _NVML_NOT_SUPPORTED:
            raise Unanswered(f"{name}: not supported (unified memory has no figures of its own)")
        if code:
            raise Unanswered(f"{name}: NVML error {code}")

    def _all(self) -> list[str]:
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return [str(index) for index in range(count.value)]

    def _handle(self, gpu: str) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        if gpu.isdigit():
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(int(gpu)), ctypes.byref(handle))
        else:
            self._call("nvmlDeviceGetHandleByUUID", ctypes.c_char_p(gpu.encode()), ctypes.byref(handle))
        return handle

    def read(self) -> dict[str, int]:
        """Return total, used and free bytes of each card."""
        found: dict[str, int] = {}
        for number, handle in enumerate(self._handles):
            memory = _NvmlMemory()
            self._call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
            found |= {f"gpu{number}_{name}": int(getattr(memory, name)) for name in ("total", "used", "free")}
        return found


class Replay:
    """A capture: ``{"captured": date, "driver": text, "samples": [{name: number}, ...]}``; the last one stays."""

    def __init__(self, file: Path, wanted: Sequence[str] = ()) -> None:
        content = json.loads(file.read_text(encoding="utf-8"))
        if not content.get("captured") or not content.get("driver"):
            raise Unanswered(f"{file}: a capture says when and with which driver it was made")
        self._samples: list[dict[str, int]] = content["samples"]
        self._next = 0
        for name in wanted:
            if any(name not in sample for sample in self._samples):
                raise Unanswered(f"{file}: the capture has no {name}")

    def read(self) -> dict[str, int]:
        """Return the next sample."""
        sample = self._samples[min(self._next, len(self._samples) - 1)]
        self._next += 1
        return dict(sample)


def open_sources(gpus: Sequence[str], replay: Path | None) -> tuple[list[Source], list[str]]:
    """Return the sources of this host, and in words what there is none of."""
    if replay is not None:
        return [Replay(replay, MEMINFO_FIELDS)], [f"everything is a replay of {replay.name}"]
    sources: list[Source] = [Meminfo(), Pressure()]
    missing = [] if Path("/proc/pressure/memory").exists() else ["this kernel does not measure memory pressure"]
    try:
        cards = Nvml(gpus)
        cards.read()
        sources.append(cards)
    except (OSError, Unanswered) as error:
        missing.append(f"NVML: {error}")
    return sources, missing


def protect_self() -> list[str]:
    """Lock this process in memory and keep the out-of-memory killer away; return what did not work, in words."""
    problems = []
    if ctypes.CDLL(None, use_errno=True).mlockall(_MCL_CURRENT_AND_FUTURE):
        problems.append(f"not locked in memory: {os.strerror(ctypes.get_errno())}")
    try:
        Path("/proc/self/oom_score_adj").write_text("-1000", encoding="ascii")
    except OSError as error:
        problems.append(f"not protected from the out-of-memory killer: {error.strerror}")
    return problems


def sample_until(
    stopped: Callable[[], bool],
    sources: Sequence[Source],
    write: Callable[[Mapping[str, Any]], None],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Write one line per period, stamped with the monotonic clock, until told to stop."""
    while not stopped():
        line: dict[str, int] = {"t_ns": time.monotonic_ns()}
        for source in sources:
            line |= source.read()
        write(line)
        sleep(PERIOD_S)


def least(lines: Sequence[Mapping[str, Any]], begin_ns: int, end_ns: int) -> dict[str, Any]:
    """Return the worst moment of a window: least free memory by name with its time, and the stall time in it.

    The sample before the window belongs to it: what was free then was free at its beginning, and a short window may
    have no other.
    """
    begin_ns = max((line["t_ns"] for line in lines if line["t_ns"] <= begin_ns), default=begin_ns)
    inside = [line for line in lines if begin_ns <= line["t_ns"] <= end_ns]
    found: dict[str, Any] = {"samples": len(inside)}
    names = sorted({name for line in inside for name in line if name.endswith("_free") or name == "MemAvailable"})
    for name in names:
        worst = min((line for line in inside if name in line), key=lambda line: int(line[name]))
        found[name] = {"least": worst[name], "at_s": round((worst["t_ns"] - begin_ns) / 1e9, 3)}
    for name in sorted({name for line in inside for name in line if name.startswith("psi_")}):
        values = [int(line[name]) for line in inside if name in line]
        found[name] = values[-1] - values[0]
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Sample until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, one per sample")
    parser.add_argument("--gpus", default="", help="UUIDs or indices, separated by commas (default: all)")
    parser.add_argument("--replay", type=Path, help="a capture instead of this host")
    args = parser.parse_args(argv)
    stop: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        stop.append(number)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    sources, missing = open_sources([gpu for gpu in args.gpus.split(",") if gpu], args.replay)
    with args.out.open("w", encoding="utf-8", buffering=1) as out:

        def write(line: Mapping[str, Any]) -> None:
            out.write(json.dumps(line) + "\n")

        write({"t_ns": time.monotonic_ns(), "missing": missing, "unprotected": protect_self()})
        with suppress(BrokenPipeError):
            sample_until(lambda: bool(stop), sources, write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
