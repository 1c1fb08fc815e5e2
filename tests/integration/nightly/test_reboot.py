"""A host that goes down: after a clean reboot the seat serves again, in the middle of a rollout the proven one does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hammer import OK
from labrun import Lab
from seatlife import HOST, SEAT, SMALLER, UNIT, call, link, wait_for

READY_S = 600
PROBED = f"/opt/vllm/toolbox/bin/seatctl probe --manifest /etc/vllm/seats/{SEAT}/current/manifest.json --level ready"


@pytest.fixture(scope="module", autouse=True)
def deployed(lab: Lab) -> None:
    """The one host converged; the gateway is there since test_chain.py."""
    lab.site("-l", HOST)


def test_a_rebooted_host_serves_without_anybody(lab: Lab) -> None:
    before = link(lab)
    lab.power("reboot", HOST)
    wait_for(lab, "READY", *PROBED.split(), limit_s=READY_S)
    assert link(lab) == before
    assert call(lab) == OK
    assert lab.site("--check", "-l", HOST).changed == {HOST: 0}


def test_a_power_cut_in_the_middle_of_a_rollout_brings_up_the_proven_generation(lab: Lab, tmp_path: Path) -> None:
    before = link(lab)
    edited = lab.edited(tmp_path / "edited", [SMALLER])
    play = subprocess.Popen(
        ["ansible-playbook", "site.yml", "-l", HOST], cwd=edited.project, env=edited.environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        generations = f"/etc/vllm/seats/{SEAT}/generations"
        wait_for(
            lab, "the switch", "sh", "-c", f"test $(readlink -f {generations}/../current) != {generations}/{before}"
        )
        wait_for(lab, "the start", "systemctl", "is-active", UNIT)
        lab.power("kill", HOST)
        assert play.wait(600) != 0
    finally:
        play.kill()
    lab.power("up", HOST)
    wait_for(lab, "READY", *PROBED.split(), limit_s=READY_S)
    assert link(lab) == before
    assert link(lab, "previous") != before
    # the run that was cut off is the next one's: it closes nothing twice and converges
    edited.site("-l", HOST)
    assert link(lab) != before
    assert call(lab) == OK
    lab.site("-l", HOST)
    assert link(lab) == before
    assert call(lab) == OK
