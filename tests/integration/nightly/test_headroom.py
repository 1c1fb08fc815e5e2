"""The headroom probe on a lab host: real boots of a real vLLM; what the allocator of a card would count is a capture.

Ordered like test_chain.py. Takes about six boots; the kill test runs with SEATFLEET_NIGHTLY set.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml
from hammer import OK
from labrun import PROJECT, Lab
from measuring import ARM, BOOT_LIMIT_S, active, wait_until
from seatlife import HOST, SEAT, UNIT, call

from seatfleet.core.units import GIB, MIB, parse_size

PLAY = ("ansible-playbook", "playbooks/headroom.yml", "-l", HOST, "-e", f"seat={SEAT}")
RUN = f"vllm-headroom-run-{SEAT}.service"
CAPTURE = PROJECT / "tests/integration/headroom_capture.json"
#: 8 GiB, less 4.5 for weights and a neighbour, less what 1,856 tokens need there.
EDGE = 8 * GIB - 4 * GIB - GIB // 2 - int(1_048_576_000 + (1_503_238_553 - 1_048_576_000) * (1856 - 1024) / 1024)
KILLS = ["client"] if os.environ.get("SEATFLEET_NIGHTLY") else []


@pytest.fixture(scope="module", autouse=True)
def deployed(lab: Lab) -> None:
    """The one host and the gateway, converged; costs seconds after test_chain.py."""
    lab.site("-l", f"{HOST},gw-1")


def options(results: Path) -> tuple[str, ...]:
    return (
        *("-e", "headroom_window=true", "-e", f"headroom_allocator_capture={CAPTURE}", "-e", "headroom_start=1GiB"),
        *("-e", f"headroom_results_dir={results}", "-e", "headroom_idle_s=1"),
    )


def test_without_a_window_nothing_is_touched(lab: Lab) -> None:
    run = lab.run(*PLAY, check=False)
    assert run.code and "headroom_window=true" in run.output
    assert run.changed[HOST] == 0 and call(lab) == OK


def test_a_pin_is_measured_and_proposed(lab: Lab, tmp_path: Path) -> None:
    seats = (lab.project / "group_vars/lab_fv_ml1/seats.yml").read_text()
    run = lab.run(*PLAY, *options(tmp_path), timeout_s=8 * BOOT_LIMIT_S)
    assert call(lab) == OK and not active(lab, ARM) and not active(lab, RUN)
    (file,) = tmp_path.glob("*.json")
    evidence = json.loads(file.read_text())
    result = json.loads(lab.host(HOST, "cat", f"/var/lib/seatfleet/evidence/{SEAT}/headroom/result.json").output)
    assert result["evidence"] == file.name and result["confirmed"]
    assert EDGE - 1.75 * GIB - 256 * MIB <= result["pin"] <= EDGE - GIB
    (snippet,) = yaml.safe_load(result["snippet"]).values()
    assert parse_size(snippet["kv_cache_memory"]) == result["pin"]
    assert "kv_cache_memory" in run.output
    assert {step["phase"] for step in evidence["trials"][0]["steps"]} == {"ramp", "mixed", "full"}
    assert evidence["subject"]["seat"] == SEAT and evidence["subject"]["speculative"] == ["mtp", 2]
    assert (lab.project / "group_vars/lab_fv_ml1/seats.yml").read_text() == seats


@pytest.mark.parametrize("victim", KILLS)
def test_production_is_back_when_the_probe_dies(lab: Lab, tmp_path: Path, victim: str) -> None:
    play = subprocess.Popen(
        [*PLAY, *options(tmp_path)],
        cwd=lab.project,
        env=lab.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_until("the first boot", lambda: active(lab, RUN) and active(lab, ARM))
    lab.host(HOST, "systemctl", "kill", "--kill-whom=main", "--signal=KILL", RUN)
    output, _ = play.communicate(timeout=BOOT_LIMIT_S)
    assert play.returncode != 0 and "gave no result" in output
    assert active(lab, UNIT) and not active(lab, ARM) and call(lab) == OK
