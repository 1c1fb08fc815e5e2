"""A host that goes down: after a clean reboot the seat serves again, in the middle of a rollout the proven one does."""

from __future__ import annotations

from pathlib import Path

import pytest
from hammer import OK
from labrun import Lab
from seatlife import HOST, SEAT, SMALLER, call, client_of, deploying, link, wait_for, wait_for_the_new_process

READY_S = 600
PROBED = f"/opt/vllm/toolbox/bin/seatctl probe --manifest /etc/vllm/seats/{SEAT}/current/manifest.json --level ready"


@pytest.fixture(scope="module", autouse=True)
def deployed(lab: Lab) -> None:
    """The one host converged; the gateway is there since test_chain.py."""
    lab.site("-l", HOST)


def test_a_rebooted_host_serves_without_anybody(lab: Lab) -> None:
    before = link(lab)
    with client_of(lab) as during:
        lab.power("reboot", HOST)
        wait_for(lab, "READY", *PROBED.split(), limit_s=READY_S)
    # Nobody has closed the alias, and callers see it; but each of them is answered.
    assert during.others_than(OK, "429", "500", "503") == {}
    assert link(lab) == before
    assert call(lab) == OK
    assert lab.site("--check", "-l", HOST).changed == {HOST: 0}


def test_a_power_cut_in_the_middle_of_a_rollout_brings_up_the_proven_generation(lab: Lab, tmp_path: Path) -> None:
    before = link(lab)
    edited = lab.edited(tmp_path / "edited", [SMALLER])
    with deploying(edited) as play:
        wait_for_the_new_process(lab, before)
        lab.power("kill", HOST)
        play.communicate(timeout=600)
        assert play.returncode != 0
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
