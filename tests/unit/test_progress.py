"""Long steps say that they are still running, on standard error, and short ones say nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PLAY = """
- hosts: a, b, c, d
  gather_facts: false
  connection: local
  tasks:
    - name: Wait for something
      ansible.builtin.command: sleep 3
      when: inventory_hostname != 'd'
    - name: Fail
      ansible.builtin.command: "false"
    - name: Never
      ansible.builtin.debug:
"""


def run(directory: Path, interval: str) -> subprocess.CompletedProcess[str]:
    play = directory / "play.yml"
    play.write_text(PLAY)
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"),
        "SEATFLEET_PROGRESS_S": interval,
        "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.minimal",
    }
    command = ["ansible-playbook", "-i", "a,b,c,d,", str(play)]
    return subprocess.run(command, env=environment, cwd=directory, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("interval", "said"), [("0.5", True), ("600", False), ("0", False)])
def test_a_task_that_takes_longer_is_named(tmp_path: Path, interval: str, said: bool) -> None:
    done = run(tmp_path, interval)
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("... ")]
    named = {
        host for line in lines if "s: Wait for something, on " in line for host in line.split(", on ")[1].split(", ")
    }
    assert named == ({"a", "b", "c"} if said else set()), done.stderr
    assert "..." not in done.stdout
    # What ended is not named any more, whatever its end was.
    assert not any("Never" in line for line in lines)


@pytest.mark.parametrize("options", [[], ["--check"]])
def test_check_mode_does_not_say_that_a_seat_is_drained(options: list[str]) -> None:
    script = """
import sys
from ansible import context
from ansible.cli.playbook import PlaybookCLI
cli = PlaybookCLI(["ansible-playbook", *sys.argv[1:], "x.yml"])
cli.parse()
from ansible.playbook.task import Task
from ansible.plugins.loader import callback_loader, init_plugin_loader
init_plugin_loader()
line = sys.modules[type(callback_loader.get("seatfleet.fleet.progress")).__module__]._line
print(line(Task.load({"seatfleet.fleet.seat_rollout": {}}), 31.0, ["a"]))
print(line(Task.load({"seatfleet.fleet.seat_rollout": {}, "check_mode": True}), 31.0, ["a"]))
"""
    environment = {**os.environ, "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg")}
    done = subprocess.run(
        [sys.executable, "-c", script, *options],
        env=environment,
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    )
    run_line, check_line = done.stdout.splitlines()
    assert ("a seat is drained" in run_line) is not bool(options)
    assert "nothing is touched" in check_line


def test_the_project_enables_it() -> None:
    assert "callbacks_enabled = seatfleet.fleet.progress" in (PROJECT / "ansible.cfg").read_text()
