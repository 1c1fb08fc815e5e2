"""What the GPUs did during a boot: clocks, temperature, power, throttling, PCIe traffic. Sampled by nvidia-smi itself.

A host without nvidia-smi has no telemetry; the controls then say "not checked", never "passed".
"""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

COLUMNS = (
    *("t_mono_ns", "gpu", "mem_used_mib", "sm_mhz", "mem_mhz", "temp_c", "mem_temp_c", "power_w", "util_pct"),
    *("throttle_mask", "pcie_rx_mb_s", "pcie_tx_mb_s"),
)
_QUERY = (
    *("index", "memory.used", "clocks.sm", "clocks.mem", "temperature.gpu", "temperature.memory", "power.draw"),
    *("utilization.gpu", "clocks_throttle_reasons.active"),
)
PERIOD_MS = 500
#: HW slowdown, SW thermal, HW thermal, HW power brake (``nvmlClocksThrottleReason*``); power caps are not thermal.
THERMAL = 0x08 | 0x20 | 0x40 | 0x80
#: A clock read while the card idles says nothing about the cell.
BUSY_PCT = 10.0


@dataclass(frozen=True)
class Summary:
    """One boot's telemetry over all its GPUs; None where the card does not report it (GB10 has no memory figures).

    ``throttled`` and ``sm_mhz`` are those of the slowest card: all others wait for it in every step.
    """

    samples: int
    throttled: float | None
    sm_mhz: float | None
    temp_c_max: float | None
    power_w_mean: float | None
    mem_used_mib_max: float | None
    pcie_rx_mb_s_mean: float | None
    pcie_tx_mb_s_mean: float | None


def number(text: str) -> float | None:
    """Return nvidia-smi's number, None for ``[N/A]`` and ``[Not Supported]``."""
    try:
        return float(text)
    except ValueError:
        return None


def parse_query_line(line: str) -> list[str] | None:
    """Return the columns behind the time stamp for one line of ``--query-gpu``; None for anything else."""
    fields = [part.strip() for part in line.split(",")]
    if len(fields) != len(_QUERY) or number(fields[0]) is None:
        return None
    mask = fields[-1]
    values = [text if number(text) is not None else "" for text in fields[:-1]]
    return [*values, mask if mask.startswith("0x") else ""]


def parse_dmon_line(line: str) -> tuple[str, str, str] | None:
    """Return (gpu, rx, tx) in MB/s for one line of ``nvidia-smi dmon -s t``; None for headings."""
    fields = line.split()
    if len(fields) != 3 or line.lstrip().startswith("#"):
        return None
    rx, tx = ("" if number(text) is None else text for text in fields[1:])
    return fields[0], rx, tx


@dataclass
class Sampler:
    """Runs nvidia-smi beside a boot. ``rows`` has the columns of ``telemetry.csv``."""

    gpus: Sequence[str] = ()
    rows: list[list[str]] = field(default_factory=list)
    _pcie: dict[str, tuple[str, str]] = field(default_factory=dict)
    _processes: list[subprocess.Popen[str]] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)

    @property
    def available(self) -> bool:
        """Tell whether this host has nvidia-smi."""
        return shutil.which("nvidia-smi") is not None

    def start(self) -> None:
        """Begin to sample; nothing happens on a host without nvidia-smi."""
        if not self.available:
            return
        select = ["-i", ",".join(self.gpus)] if self.gpus else []
        query = [f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits", "-lms", str(PERIOD_MS)]
        self._follow(["nvidia-smi", *select, *query], self._query_line)
        self._follow(["nvidia-smi", "dmon", *select, "-s", "t", "-d", "1"], self._dmon_line)

    def _follow(self, argv: list[str], take: Callable[[str], None]) -> None:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        thread = threading.Thread(target=self._read, args=(process, take), daemon=True)
        self._processes.append(process)
        self._threads.append(thread)
        thread.start()

    @staticmethod
    def _read(process: subprocess.Popen[str], take: Callable[[str], None]) -> None:
        for line in process.stdout or ():
            take(line)

    def _query_line(self, line: str) -> None:
        values = parse_query_line(line)
        if values is not None:
            self.rows.append([str(time.monotonic_ns()), *values, *self._pcie.get(values[0], ("", ""))])

    def _dmon_line(self, line: str) -> None:
        found = parse_dmon_line(line)
        if found is not None:
            self._pcie[found[0]] = (found[1], found[2])

    def stop(self) -> str:
        """Stop sampling and return ``telemetry.csv``."""
        for process in self._processes:
            process.terminate()
        for process, thread in zip(self._processes, self._threads, strict=True):
            process.wait(timeout=10)
            thread.join(timeout=10)
        self._processes, self._threads = [], []
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(self.rows)
        return text.getvalue()


def summarize(text: str) -> Summary | None:
    """Return the summary of ``telemetry.csv``; None when there is no sample."""
    rows = list(csv.DictReader(io.StringIO(text)))
    if not rows:
        return None
    cards = [[row for row in rows if row["gpu"] == gpu] for gpu in dict.fromkeys(row["gpu"] for row in rows)]
    shares = []
    for card in cards:
        masks = [int(row["throttle_mask"], 16) for row in card if row["throttle_mask"]]
        if masks:
            shares.append(sum(bool(mask & THERMAL) for mask in masks) / len(masks))

    working = [[row for row in card if (number(row["util_pct"]) or 0.0) >= BUSY_PCT] for card in cards]

    def values(name: str, source: Sequence[dict[str, str]] = rows) -> list[float]:
        return [value for row in source if (value := number(row[name])) is not None]

    def mean(name: str) -> float | None:
        found = values(name)
        return fmean(found) if found else None

    clocks = [median(found) for card in (working if any(working) else cards) if (found := values("sm_mhz", card))]
    return Summary(
        samples=len(rows),
        throttled=max(shares, default=None),
        sm_mhz=min(clocks, default=None),
        temp_c_max=max(values("temp_c"), default=None),
        power_w_mean=mean("power_w"),
        mem_used_mib_max=max(values("mem_used_mib"), default=None),
        pcie_rx_mb_s_mean=mean("pcie_rx_mb_s"),
        pcie_tx_mb_s_mean=mean("pcie_tx_mb_s"),
    )
