#!/usr/bin/env python3
"""What a rollback costs beside the restart it cannot do without, on a deployed lab; prints Markdown.

usage: . lab/env && bench/rollback.py [--repeat N] [--ways WAYS]

Times, all from the start of the command to the second READY: the first completion with the seat's own key after one
that failed, seen on the host every 0.2 s.

  restart      systemctl restart of the seat's unit, what nothing can be quicker than
  edit         an older value in group_vars and site.yml --tags seat,alias
  edit all     the same and the whole site.yml
  rollback     playbooks/rollback.yml
  release      group_vars back to another release, site.yml --tags release,seat,alias; the other one has a patch less

The overhead of a way is its time less that of the restart in the same round; "before the stop" is the part in which the
old process still answers. Remote tasks are those that open a connection to the host, counted in the output of one run
with -vvv. Received is what came in at the host's network interface meanwhile, in KiB: modules with their arguments, and
requests.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

PROJECT = Path(__file__).resolve().parents[1]
SEATS_FILE = "group_vars/lab_fv_ml1/seats.yml"
HOST, SEAT, PORT = "fv-ml1", "flash-next", 8022
ATTEMPTS_S = 1800
RELEASE, OTHER_RELEASE = "0.32.0+cpu.1", "0.32.0+cpu.bench"
RECEIVED = "cat /sys/class/net/host0/statistics/rx_bytes"
# Runs on the host: prints the time of each change between "answers a completion" and "does not", to the second READY.
WATCH = f"""
import http.client, json, pathlib, time, urllib.request
key = pathlib.Path("/etc/vllm/seats/{SEAT}/api-key.env").read_text().strip().split("=", 1)[1]
body = json.dumps({{"model": "tiny-oracle", "prompt": "ready", "max_tokens": 1}}).encode()
headers = {{"Authorization": "Bearer " + key, "Content-Type": "application/json"}}
before = None
while True:
    request = urllib.request.Request("http://127.0.0.1:{PORT}/v1/completions", body, headers)
    try:
        ready = urllib.request.urlopen(request, timeout=30).status == 200
    except (OSError, http.client.HTTPException):
        ready = False
    if ready != before:
        print(time.time(), int(ready), flush=True)
        if ready and before is not None:
            break
        before = ready
    time.sleep(0.2)
"""


@dataclass
class Way:
    """One way to a second READY: its seconds per round, and how many tasks it takes on the host."""

    name: str
    seconds: list[float] = field(default_factory=list)
    before_stop: list[float] = field(default_factory=list)
    tasks: int = 0
    received: int = 0


def main() -> int:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--ways", default="edit,edit all,rollback,release", help="beside the restart, by commas")
    args = parser.parse_args()
    ways = [Way("restart"), *map(Way, args.ways.split(","))]
    with tempfile.TemporaryDirectory(prefix="seatfleet-bench-") as folder:
        smaller = copy(Path(folder) / "smaller", "kv_cache_memory: 64MiB", "kv_cache_memory: 48MiB")
        other = copy(Path(folder) / "other", f'"{RELEASE}"', f'"{OTHER_RELEASE}"')
        add_release(other)
        for _ in range(args.repeat):
            for way in ways:
                measure(way, smaller, other)
    print(table(ways))
    return 0


def measure(way: Way, smaller: Path, other: Path) -> None:
    """Bring the host to where the way begins, and take its time."""
    tags = ["--tags", "seat,alias"]
    # rollback.yml goes to and fro between two generations, where there are two.
    if way.name != "restart" and not (way.name == "rollback" and has_previous()):
        play(other if way.name == "release" else smaller, "site.yml", "--tags", "release,seat,alias")
    command = {
        "restart": [str(PROJECT / "lab/lab"), "ssh", HOST, "systemctl", "restart", f"vllm-seat-{SEAT}.service"],
        "edit": ["ansible-playbook", "site.yml", "-l", HOST, *tags, "-vvv"],
        "edit all": ["ansible-playbook", "site.yml", "-l", HOST, "-vvv"],
        "rollback": ["ansible-playbook", "playbooks/rollback.yml", "-e", f"seat={SEAT}", "-l", HOST, "-vvv"],
        "release": ["ansible-playbook", "site.yml", "-l", HOST, "--tags", "release,seat,alias", "-vvv"],
    }[way.name]
    with subprocess.Popen(
        [str(PROJECT / "lab/lab"), "ssh", HOST, "python3", "-u", "-"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as watch:  # fmt: skip
        assert watch.stdin is not None
        assert watch.stdout is not None
        watch.stdin.write(WATCH)
        watch.stdin.close()
        assert watch.stdout.readline().split()[1] == "1", "the seat does not answer before the round"
        received, begin = int(on_host(RECEIVED)), time.time()
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=ATTEMPTS_S, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
        seen = [line.split() for line in watch.stdout]
    gone, ready = (next(float(at) for at, answers in seen if answers == state) for state in "01")
    way.seconds.append(ready - begin)
    way.before_stop.append(gone - begin)
    way.tasks = remote_tasks(done.stdout)
    way.received = (int(on_host(RECEIVED)) - received) // 1024
    print(f"{way.name}: {way.seconds[-1]:.1f} s, {way.before_stop[-1]:.1f} s before the stop", file=sys.stderr)


def on_host(command: str) -> str:
    """Return what a command prints on the host."""
    argv = [str(PROJECT / "lab/lab"), "ssh", HOST, *command.split()]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def has_previous() -> bool:
    """Return whether the seat has a generation to go back to."""
    look = [str(PROJECT / "lab/lab"), "ssh", HOST, "test", "-e", f"/etc/vllm/seats/{SEAT}/previous"]
    return subprocess.run(look, check=False).returncode == 0


def remote_tasks(output: str) -> int:
    """Return how many tasks opened a connection to the host."""
    address = re.search(r"<(10\.\d+\.\d+\.\d+)>", output)
    if address is None:
        return 0
    parts = output.split("\nTASK [")[1:]
    return sum(f"<{address[1]}> SSH: EXEC" in part or f"<{address[1]}> ESTABLISH SSH" in part for part in parts)


def copy(target: Path, old: str, new: str) -> Path:
    """Return a copy of the project with one edit, as an operator would make it."""
    ignore = shutil.ignore_patterns(".git", ".venv*", ".lab*", "__pycache__", ".*_cache")
    shutil.copytree(PROJECT, target, symlinks=True, ignore=ignore)
    file = target / SEATS_FILE
    assert file.read_text().count(old) == 1, f"{SEATS_FILE}: {old}"
    file.write_text(file.read_text().replace(old, new))
    return target


def add_release(project: Path) -> None:
    """Give a copy of the project another release of the same wheels, with one patch less."""
    file = project / "group_vars/all/releases.yml"
    catalogue = yaml.safe_load(file.read_text())
    entry = catalogue["releases"][RELEASE]
    catalogue["releases"][OTHER_RELEASE] = {**entry, "patches": ["cpu-expand-any-dtype"]}
    file.write_text("---\n" + yaml.safe_dump(catalogue))


def play(project: Path, playbook: str, *arguments: str) -> None:
    """Run a playbook of a project on the host, outside of the clock."""
    done = subprocess.run(
        ["ansible-playbook", "-i", "inventory/lab", playbook, "-l", HOST, *arguments], cwd=project,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{playbook}:\n{done.stdout}{done.stderr}")


def table(ways: Sequence[Way]) -> str:
    """Return the results; the ratio is to the bare restart of the same rounds."""
    bare = statistics.median(ways[0].seconds)
    titles = ("way", "seconds (median)", "each", "overhead", "before the stop", "ratio", "remote tasks", "KiB received")
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for way in ways:
        median = statistics.median(way.seconds)
        each = ", ".join(f"{seconds:.1f}" for seconds in way.seconds)
        cells = (
            way.name, f"{median:.1f}", each, f"{median - bare:.1f}", f"{statistics.median(way.before_stop):.1f}",
            f"{median / bare:.2f}", str(way.tasks or ""), str(way.received),
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
