"""The module seat_probe, run by Ansible itself with a scripted seatctl, and the table filter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
GOOD = {"seat": "good", "host": "h", "verdict": "READY", "exit": 0, "cause": None, "warnings": [], "acceptance": {}}
BAD = {**GOOD, "seat": "bad", "verdict": "CANARY", "exit": 9, "cause": "canary.copy: wrong"}
BUSY = {**GOOD, "seat": "busy", "verdict": "BUSY", "exit": 4, "cause": "quiet: 3 running"}
SCRIPT = f"""#!/bin/sh
echo "$@" >> "$(dirname "$0")/calls"
case "$3" in
  */good/*) echo '{json.dumps(GOOD)}' ;;
  */bad/*) echo '{json.dumps(BAD)}'; exit 9 ;;
  */busy/*) echo '{json.dumps(BUSY)}'; exit 4 ;;
  *) echo 'seatctl: 1 problem, no manifest' >&2; exit 2 ;;
esac
"""


@pytest.fixture
def seatctl(tmp_path: Path) -> Path:
    path = tmp_path / "seatctl"
    path.write_text(SCRIPT)
    path.chmod(0o755)
    return path


def run(seatctl: Path, *options: str, **arguments: Any) -> dict[str, Any]:
    """Run the module as an ad-hoc task and return its result."""
    return ansible(seatctl.parent, "seatfleet.fleet.seat_probe", {"seatctl": str(seatctl), **arguments}, *options)


def ansible(scratch: Path, module: str, arguments: dict[str, Any], *options: str) -> dict[str, Any]:
    argv = [str(Path(sys.executable).parent / "ansible"), "localhost", "-i", "localhost,", "-c", "local"]
    argv += ["-m", module, "-a", json.dumps(arguments), *options]
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
        "ANSIBLE_LOCAL_TEMP": str(scratch / "local"),
        "ANSIBLE_REMOTE_TEMP": str(scratch / "remote"),
        "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
    }
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert "=> {" in done.stdout, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout[done.stdout.index("=> {") + 3 :])
    return result


def test_every_seat_is_reported_and_a_bad_one_does_not_hide_the_others(seatctl: Path) -> None:
    result = run(seatctl, seats=["good", "bad", "busy", "gone"], level="acceptance", ready_timeout=0)
    assert result["changed"] is False
    assert [one["exit"] for one in result["results"]] == [0, 9, 4, 2]
    assert result["causes"] == [
        "bad: CANARY: canary.copy: wrong",
        "gone: USAGE: seatctl: seatctl: 1 problem, no manifest",
    ]
    assert "bad" in result["table"]
    calls = (seatctl.parent / "calls").read_text().splitlines()
    assert calls[0] == (
        "probe --manifest /etc/vllm/seats/good/current/manifest.json --evidence /var/lib/seatfleet/evidence/good "
        "--level acceptance --quiet-timeout 30 --json --ready-timeout 0"
    )


def test_it_can_fail_by_itself(seatctl: Path) -> None:
    result = run(seatctl, seats=["good", "bad"], fail_on_verdict=True)
    assert result["msg"] == "bad: CANARY: canary.copy: wrong"
    assert len(result["results"]) == 2


def test_check_mode_sends_nothing(seatctl: Path) -> None:
    result = run(seatctl, "--check", seats=["good", "bad"])
    assert [one["verdict"] for one in result["results"]] == ["WOULD PROBE", "WOULD PROBE"]
    assert not (seatctl.parent / "calls").exists()


def test_a_host_without_the_toolbox(tmp_path: Path) -> None:
    result = run(tmp_path / "none", seats=["good"])
    assert "The toolbox comes with the first seat" in result["msg"]


@pytest.mark.parametrize(("reports", "words"), [([GOOD, BAD], "CANARY: canary.copy: wrong"), ("READY", "needs a list")])
def test_the_table_filter(tmp_path: Path, reports: object, words: str) -> None:
    message = "{{ '" + json.dumps(reports) + "' | from_json | seatfleet.fleet.probe_table }}"
    assert words in ansible(tmp_path, "ansible.builtin.debug", {"msg": message})["msg"]
