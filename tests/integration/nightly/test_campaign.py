"""Campaigns whose client, controller or host dies in the middle, and one with everything a campaign has, to its end.

Whatever dies: production serves again, complete boots stay as they are to the byte, the same command goes on, and
nothing of the interrupted boot is in the result. Every kill costs four to six boots of the server.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hammer import DESIGNED, OK
from labrun import Lab
from measuring import ARM, BOOT_LIMIT_S, HOST, PRODUCTION, RUN, active, answers, play, state, sums, wait_until

FIRST = "00_off_1"


@pytest.fixture(scope="module", autouse=True)
def deployed(lab: Lab) -> None:
    """The one host and the gateway, converged; costs seconds after test_chain.py."""
    lab.site("-l", f"{HOST},gw-1")


class Begun:
    """A smoke campaign whose second boot is being measured, and what its first boot is."""

    def __init__(self, lab: Lab, results: Path) -> None:
        self.lab, self.results = lab, results
        self.play = subprocess.Popen(
            play("smoke", results, "-e", "campaign_new=true"),
            cwd=lab.project,
            env=lab.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        wait_until("the second boot", lambda: active(lab, RUN) and self.done == 1 and active(lab, ARM))
        self.first = sums(lab, "smoke", FIRST)

    @property
    def done(self) -> int:
        """Complete boots."""
        return len((state(self.lab, "smoke") or {"done": ()})["done"])

    def goes_on(self) -> dict[str, Any]:
        """Give the command again, look at what came of it, and return the state and the report."""
        self.lab.run(*play("smoke", self.results), timeout_s=5 * BOOT_LIMIT_S)
        after = state(self.lab, "smoke")
        assert after["left"] == 0 and answers(self.lab) == OK
        assert not active(self.lab, RUN) and not active(self.lab, ARM)
        assert sums(self.lab, "smoke", FIRST) == self.first
        (raw,) = (path for path in self.results.iterdir() if path.is_dir())
        assert sorted(path.name for path in (raw / "boots").iterdir()) == sorted(after["done"])
        report = json.loads((raw / "report/report.json").read_text())
        assert [boot["boot"] for boot in report["boots"]] == after["done"]
        assert not any("aborted" in cell["boot"] for cell in report["cells"])
        assert self.lab.run("seatctl", "campaign", "report", str(raw), "--verify").code == 0
        return {**after, "report": report}


@pytest.fixture
def begun(lab: Lab, tmp_path: Path) -> Iterator[Begun]:
    campaign = Begun(lab, tmp_path / "results")
    yield campaign
    if campaign.play.poll() is None:
        os.killpg(campaign.play.pid, signal.SIGKILL)
        campaign.play.wait()


def test_the_client_is_killed(lab: Lab, begun: Begun) -> None:
    lab.host(HOST, "systemctl", "kill", "--kill-whom=main", "--signal=KILL", RUN)
    output, _ = begun.play.communicate(timeout=2 * BOOT_LIMIT_S)
    assert begun.play.returncode and "Run the same command again to go on" in output
    assert active(lab, PRODUCTION) and not active(lab, ARM) and answers(lab) == OK
    assert begun.done == 1
    after = begun.goes_on()
    assert after["block"] == 1 and len(after["aborted"]) == 1 and after["boots"] == 3


def test_the_controller_is_killed(lab: Lab, begun: Begun) -> None:
    os.killpg(begun.play.pid, signal.SIGKILL)
    begun.play.wait()
    assert active(lab, RUN), "the measuring died with the controller"
    wait_until("the end of the campaign", lambda: not active(lab, RUN), 3 * BOOT_LIMIT_S)
    assert state(lab, "smoke")["left"] == 0 and active(lab, PRODUCTION) and not active(lab, ARM)
    assert answers(lab) == DESIGNED, "nobody has opened the alias yet"
    after = begun.goes_on()
    assert after["block"] == 1 and after["aborted"] == [] and after["boots"] == 3


def test_the_host_restarts(lab: Lab, begun: Begun) -> None:
    lab.run("lab/lab", "reboot", HOST)
    begun.play.communicate(timeout=2 * BOOT_LIMIT_S)
    assert begun.play.returncode
    wait_until("production", lambda: active(lab, PRODUCTION))
    assert not active(lab, RUN) and not active(lab, ARM)
    assert begun.done == 1
    after = begun.goes_on()
    # the machine is another one since: an extra control boot, and the step between the blocks is no effect
    assert after["block"] == 2 and after["boots"] == 4 and len(after["aborted"]) == 1
    assert [boot["block"] for boot in after["report"]["boots"]] == [0, 1, 1, 1]


def test_mtp_on_the_hybrid_with_a_broken_head(lab: Lab, tmp_path: Path) -> None:
    """The campaign of the seeds in small: k = 1, 2, 3 and off, nine boots and more for the arm that must be voided."""
    results = tmp_path / "results"
    lab.run(*play("mtp", results, "-e", "campaign_new=true"), timeout_s=12 * BOOT_LIMIT_S)
    (raw,) = (path for path in results.iterdir() if path.is_dir())
    report = json.loads((raw / "report/report.json").read_text())
    assert list(report["void_arms"]) == ["badhead"] and "V2" in report["void_arms"]["badhead"]
    assert {check["status"] for check in report["checks"] if check["rule"] == "PC3"} == {"pass"}
    lengths = {row["arm"]: row["acceptance_length"] for row in report["acceptance"] if row["shape"] == "count"}
    assert lengths == {k: pytest.approx(al, abs=0.05) for k, al in {"k1": 2, "k2": 3, "k3": 4, "badhead": 1}.items()}
    for row in report["acceptance"]:
        # every chunk is a step: what the streams carried and what the counters say are one number
        assert row["tokens_per_chunk_mean"] == pytest.approx(row["acceptance_length"], rel=0.05)
    assert lab.run("seatctl", "campaign", "report", str(raw), "--verify").code == 0
    assert answers(lab) == OK
