#!/usr/bin/env python3
"""CPU seconds of one timed probe, start of Python included; prints JSON, and exits 1 above the budget.

usage: bench/probe_cost.py [--runs N]
The seat is a stub in this process, whose own work is not counted: what is measured is `seatctl probe`, as the timer of
playbooks/observability.yml runs it, by the kernel's accounting of finished children.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

PROJECT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT / "tests/unit")]

from probe_stub import KEY, StubSeat, clever  # noqa: E402

BUDGET_S = 0.5
INTERVAL_S = 60
#: Hosts have no rich: httpx imports it where it is, for a command line that nobody uses here (0.1 s).
AS_IN_THE_TOOLBOX = "import sys; sys.modules['rich'] = None; from seatfleet.cli import main; sys.exit(main())"
LEVELS = ("passive", "ready", "identity")


def manifest(stub: StubSeat, folder: Path) -> Path:
    """Write the manifest and key of the stub."""
    content = json.loads((PROJECT / "tests/unit/data/generations/lab-oracle/manifest.json").read_text())
    key = folder / "api-key.env"
    key.write_text(f"VLLM_API_KEY={KEY}\n")
    address = f"http://127.0.0.1:{stub.port}"
    own = {"unit": None, "base_url": address, "port": stub.port, "api_key_file": str(key)}
    names = {"model_id": "tiny", "served_names": ["tiny"], "model_path": None, "release_id": "0.32.0-000000000000"}
    file = folder / "manifest.json"
    file.write_text(json.dumps({**content, **own, **names, "declared": {}}))
    return file


def cpu_s(command: list[str], environment: dict[str, str]) -> tuple[float, float, int]:
    """Return user and system time, wall time and exit code of a command."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return spent, time.monotonic() - began, done.returncode


def measure(level: str, runs: int, file: Path, folder: Path) -> dict[str, Any]:
    """Probe that often; the first run, which writes byte code, is left out."""
    command = [sys.executable, "-c", AS_IN_THE_TOOLBOX, "probe", "--manifest", str(file), "--level", level]
    command += [
        "--evidence",
        str(folder / "evidence"),
        "--prometheus",
        str(folder / "seat.prom"),
        "--ready-timeout",
        "5",
    ]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "src")}
    found = [cpu_s(command, environment) for _ in range(runs + 1)][1:]
    return {
        "runs": runs,
        "exit_codes": sorted({code for _, _, code in found}),
        "cpu_s_median": round(median(spent for spent, _, _ in found), 3),
        "cpu_s_max": round(max(spent for spent, _, _ in found), 3),
        "wall_s_median": round(median(wall for _, wall, _ in found), 3),
    }


def main() -> int:
    """Measure every level that a timer may have."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    args = parser.parse_args()
    stub = StubSeat()
    stub.answer = clever
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = manifest(stub, folder)
        levels = {level: measure(level, args.runs, file, folder) for level in LEVELS}
    stub.close()
    worst = max(one["cpu_s_median"] for one in levels.values())
    report = {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load_average_1min": round(os.getloadavg()[0], 1),
        "budget_cpu_s": BUDGET_S,
        "levels": levels,
        "timer_share_of_a_core": round(levels["identity"]["cpu_s_median"] / INTERVAL_S, 4),
    }
    print(json.dumps(report, indent=1))
    return 0 if worst <= BUDGET_S else 1


if __name__ == "__main__":
    sys.exit(main())
