#!/usr/bin/env python3
"""What a run costs that changes nothing: calls per host, CPU and memory of the controller, wall time. Prints Markdown.

usage: bench/converge/measure.py lab [HOST ...]         no-op site.yml against lab hosts, and the peer's playbook
       bench/converge/measure.py simulated COUNT ...    the same plays, and the peer's, against hosts that answer like
                                                        fv-ml1 did
       bench/converge/measure.py validate COUNT ...     playbooks/validate.yml alone: the part that reads every host
       bench/converge/measure.py trivial COUNT ...      tasks that do nothing, on fifty hosts of COUNT: Ansible's part

Needs a converged lab (`. lab/env`; validate and trivial only its directory). Simulated: inventory, variables,
templates, modules being packed and results being read are real and once per host; hosts, network and ssh processes are
not there. What the controller does at the gateway for each host is left out (tag alias).
"""

from __future__ import annotations

import argparse
import base64
import collections
import itertools
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import plugins
import yaml

PROJECT = Path(__file__).resolve().parents[2]
MODEL = "fv-ml1"
PEER = "bench/converge/peer.yml"
#: What is measured, by the name in the tables: what records a host's answers, and what is run against many.
PLAYS = {"site.yml": ("playbooks/seats.yml", "bench/converge/simulated.yml"), "ordinary tasks": (PEER, PEER)}
#: What is run on a part of the hosts only: how many.
PLAYED = {"twenty trivial tasks": 50}
RECAP = re.compile(r"^(\S+)\s+: ok=(\d+)\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Cost:
    """CPU in seconds of the controller with all its processes, peak memory in MiB of the largest one."""

    wall_s: float
    cpu_s: float
    memory_mib: float
    changed: int


def play(playbook: str, *arguments: str, environment: Mapping[str, str]) -> Cost:
    """Run a playbook, which must not fail; how many tasks changed something is part of the result, and should be 0."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        command = ["ansible-playbook", playbook, *arguments]
        process = subprocess.Popen(
            command, cwd=PROJECT, env={**os.environ, **environment}, stdout=output, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - began
        output.seek(0)
        text = output.read()
    recap = RECAP.findall(text)
    if process.returncode or not recap:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}:\n{text[-6000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
    return Cost(wall, cpu, usage.ru_maxrss / 1024, sum(int(row[2]) for row in recap))


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return what the counting plugins noted."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def measure_lab(hosts: Sequence[str], scratch: Path) -> None:
    """Measure site.yml and the peer against hosts of the lab."""
    print("| play | hosts | changed | calls per host | of them modules | controller CPU s | MiB | wall s |")
    print("|---|---|---|---|---|---|---|---|")
    groups = list(dict.fromkeys((tuple(hosts[:1]), tuple(hosts))))
    for playbook, chosen in [(name, group) for name in ("site.yml", PEER) for group in groups]:
        limit = ",".join(chosen)
        # Once for the counts, with the plugins that note them, and once for the costs, with Ansible's own.
        log = scratch / "calls.jsonl"
        log.write_text("")
        environment = {"ANSIBLE_CONNECTION_PLUGINS": str(scratch), "CONVERGE_LOG": str(log)}
        play(playbook, "-l", limit, "-c", "counted", environment=environment)
        cost = play(playbook, "-l", limit, environment={})
        calls = read_log(log)
        gpu = [host for host in chosen if not host.startswith("gw")] or list(chosen)
        per = len([call for call in calls if call["what"] == "exec"]) / len(gpu)
        modules = len([call for call in calls if call["module"]]) / len(gpu)
        name = playbook if playbook != PEER else "ordinary tasks"
        costs = f"{cost.cpu_s:.1f} | {cost.memory_mib:.0f} | {cost.wall_s:.1f}"
        print(f"| {name} | {len(chosen)} | {cost.changed} | {per:.1f} | {modules:.1f} | {costs} |", flush=True)


def record(name: str, scratch: Path) -> Path:
    """Record the answers of one lab host to a run that changes nothing."""
    log = scratch / "record.jsonl"
    log.write_text("")
    environment = {"ANSIBLE_CONNECTION_PLUGINS": str(scratch), "CONVERGE_LOG": str(log), "CONVERGE_RECORD": "1"}
    arguments = ["-l", MODEL, "--skip-tags", "alias"]
    play(PLAYS[name][0], *arguments, environment={})  # the one that is recorded must change nothing
    play(PLAYS[name][0], *arguments, "-c", "counted", environment=environment)
    records = [call for call in read_log(log) if call["what"] == "exec"]
    path = scratch / f"records-{name}.json"
    path.write_text(json.dumps(records))
    shapes = collections.Counter(str(call["module"]).rpartition(".")[2] for call in records)
    size = sum(len(base64.b64decode(call["output"])) for call in records)
    print(f"{name}: recorded {len(records)} calls of {MODEL} ({size / 1024:.0f} KiB of answers):", dict(shapes))
    return path


def gateway_address() -> str:
    """Return the address of the lab's gateway; the text of the firewall that a recorded host has holds it."""
    command = ["ansible-inventory", "--host", "gw-1"]
    output = subprocess.run(command, cwd=PROJECT, check=True, capture_output=True, text=True).stdout
    return str(json.loads(output)["ansible_host"])


def fleet_hosts(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the variables of hosts that each have the seat of the lab's fv-ml1, under an alias of their own."""
    seats = yaml.safe_load((PROJECT / "group_vars/lab_fv_ml1/seats.yml").read_text())
    seat = seats["seats"]["flash-next"]
    alias = seat["aliases"]["gen-large"]
    return {
        name: {
            "fleet_hardware": dict(seats["fleet_hardware"]),
            "seats": {"flash-next": {**seat, "aliases": {f"gen-{name}": alias}}},
        }
        for name in names
    }


def fleet(count: int, path: Path) -> None:
    """Write an inventory of simulated hosts."""
    hosts = fleet_hosts([f"sim-{number:04d}" for number in range(count)])
    content = {
        "all": {
            "vars": {"ansible_connection": "replay", "ansible_user": "root"},
            "hosts": {"localhost": {}},
            "children": {"lab": {"hosts": dict.fromkeys(hosts)}, "gpu_hosts": {"hosts": hosts}},
        }
    }
    path.write_text(yaml.dump(content))


def measure_fleet(
    playbooks: Mapping[str, tuple[str, Mapping[str, str]]], counts: Sequence[int], forks: Sequence[int], scratch: Path
) -> list[dict[str, Any]]:
    """Run playbooks, each with its own environment, against fleets of simulated hosts; return what each run cost."""
    print("\n| play | hosts | forks | changed | CPU s | CPU s per host | MiB | wall s |")
    print("|---|---|---|---|---|---|---|---|")
    inventory = scratch / "inventory"
    inventory.mkdir()
    (inventory / "group_vars").symlink_to(PROJECT / "group_vars")
    variables = {
        "fleet_project_dir": str(PROJECT),
        "gateway_host_address": gateway_address(),
        "fleet_serial": 100,
        "fleet_validate_deploy": False,
        "peer_host": MODEL,
    }
    arguments = ["-e", json.dumps(variables), "-l", "gpu_hosts", "--skip-tags", "alias"]
    rows = []
    for count, fork, name in itertools.product(counts, forks, playbooks):
        playbook, environment = playbooks[name]
        fleet(count, inventory / "hosts.yml")
        state = scratch / f"state-{count}-{fork}-{name}"
        state.mkdir()
        own = {
            **environment,
            "ANSIBLE_CONNECTION_PLUGINS": str(scratch),
            "CONVERGE_STATE": str(state),
            "ANSIBLE_INVENTORY": str(inventory),
            "ANSIBLE_PIPELINING": "True",
        }
        load = os.getloadavg()[0]
        cost = play(playbook, *arguments, "--forks", str(fork), environment=own)
        rows.append({"play": name, "hosts": count, "forks": fork, "load_before": round(load, 1), **asdict(cost)})
        played = min(count, PLAYED.get(name, count))
        costs = f"{cost.cpu_s:.1f} | {cost.cpu_s / played:.3f} | {cost.memory_mib:.0f} | {cost.wall_s:.0f}"
        print(f"| {name} | {count} | {fork} | {cost.changed} | {costs} |", flush=True)
    return rows


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    lab = kinds.add_parser("lab")
    lab.add_argument("hosts", nargs="*", default=[MODEL, "spark-1", "gw-1"])
    simulated = kinds.add_parser("simulated")
    simulated.add_argument("--without-peer", action="store_true")
    for kind in (simulated, kinds.add_parser("validate"), kinds.add_parser("trivial")):
        kind.add_argument("counts", nargs="+", type=int)
        kind.add_argument("--forks", nargs="+", type=int, default=[25])
        kind.add_argument("--json", type=Path, help="append each run's numbers there, one line of JSON for each")
    return parser


def main() -> None:
    """Run one of the measurements."""
    args = build_parser().parse_args()
    if "SEATFLEET_LAB" not in os.environ:
        sys.exit("bench/converge/measure.py: no lab; run `. lab/env` first")
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        plugins.write(scratch)
        if args.kind == "lab":
            measure_lab(args.hosts, scratch)
            return
        playbooks: dict[str, tuple[str, Mapping[str, str]]] = {"validate.yml": ("playbooks/validate.yml", {})}
        if args.kind == "trivial":
            playbooks = {name: ("bench/converge/trivial.yml", {}) for name in PLAYED}
        if args.kind == "simulated":
            names = ["site.yml"] if args.without_peer else list(PLAYS)
            playbooks = {name: (PLAYS[name][1], {"CONVERGE_RECORDS": str(record(name, scratch))}) for name in names}
        rows = measure_fleet(playbooks, args.counts, args.forks, scratch)
        if args.json:
            with args.json.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
