"""A campaign whose client, host and controller die in the middle, and one with everything a campaign has, to its end.

Whatever dies: production serves again, complete boots stay as they are to the byte, the same command goes on, and
nothing of an interrupted boot is in the result. About nine and twenty boots of the server.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hammer import DESIGNED, OK
from labrun import Lab
from measuring import ARM, BOOT_LIMIT_S, RUN, active, play, state, sums, wait_until
from seatlife import HOST, UNIT, call, client_of, process


@pytest.fixture(scope="module", autouse=True)
def deployed(lab: Lab) -> None:
    """The one host and the gateway, converged; costs seconds after test_chain.py."""
    lab.site("-l", f"{HOST},gw-1")


@pytest.fixture
def commands(lab: Lab, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Give the command of the smoke campaign in the background; what is left of it ends with the test."""
    given: list[subprocess.Popen[str]] = []

    def give(*options: str) -> subprocess.Popen[str]:
        given.append(
            subprocess.Popen(
                play("smoke", tmp_path / "results", *options),
                cwd=lab.project,
                env=lab.environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        )
        return given[-1]

    yield give
    for command in given:
        if command.poll() is None:
            os.killpg(command.pid, signal.SIGKILL)
            command.communicate()


def measuring(lab: Lab, boot: str, aborted: int) -> Callable[[], bool]:
    """Return whether this boot is being measured now, after so many aborted ones."""

    def look() -> bool:
        found = state(lab, "smoke") if active(lab, RUN) and active(lab, ARM) else None
        return found is not None and found["next"] == boot and len(found["aborted"]) == aborted

    return look


def test_client_host_and_controller_die(
    lab: Lab, tmp_path: Path, commands: Callable[..., subprocess.Popen[str]]
) -> None:
    command = commands("-e", "campaign_new=true")
    wait_until("the second boot", measuring(lab, "01_k2_1", 0), command=command)
    first = sums(lab, "smoke", "00_off_1")

    lab.host(HOST, "systemctl", "kill", "--kill-whom=main", "--signal=KILL", RUN)
    output, _ = command.communicate(timeout=2 * BOOT_LIMIT_S)
    assert command.returncode and "Run the same command again to go on" in output, output
    assert active(lab, UNIT) and not active(lab, ARM) and call(lab) == OK
    assert state(lab, "smoke")["done"] == ["00_off_1"]

    command = commands()
    wait_until("the second boot again", measuring(lab, "01_k2_1", 1), command=command)
    lab.run("lab/lab", "reboot", HOST)
    output, _ = command.communicate(timeout=2 * BOOT_LIMIT_S)
    assert command.returncode, output
    wait_until("production", lambda: active(lab, UNIT))
    assert not active(lab, RUN) and not active(lab, ARM)
    assert state(lab, "smoke")["done"] == ["00_off_1"] and sums(lab, "smoke", "00_off_1") == first

    # another start of the machine: a control boot more, and a block of its own
    command = commands()
    wait_until("the arm after the extra control boot", measuring(lab, "02_k2_1", 2), command=command)
    os.killpg(command.pid, signal.SIGKILL)
    command.communicate()
    assert active(lab, RUN), "the measuring died with the controller"
    wait_until("the end of the campaign", lambda: not active(lab, RUN), 3 * BOOT_LIMIT_S)
    found = state(lab, "smoke")
    assert found["left"] == 0 and found["block"] == 2 and len(found["aborted"]) == 2
    assert found["done"] == ["00_off_1", "01_off_2", "02_k2_1", "03_off_3"]
    assert active(lab, UNIT) and not active(lab, ARM)
    assert call(lab) == DESIGNED, "who died could not have opened the alias"

    lab.run(*play("smoke", tmp_path / "results"), timeout_s=BOOT_LIMIT_S)
    assert call(lab) == OK and state(lab, "smoke") == found
    assert sums(lab, "smoke", "00_off_1") == first
    (raw,) = (path for path in (tmp_path / "results").iterdir() if path.is_dir())
    report = json.loads((raw / "report/report.json").read_text())
    assert [(boot["boot"], boot["block"]) for boot in report["boots"]] == [
        (boot, 0 if boot == "00_off_1" else 1) for boot in found["done"]
    ]
    assert {cell["boot"] for cell in report["cells"]} == set(found["done"])
    assert lab.run("seatctl", "campaign", "report", str(raw), "--verify").code == 0


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
    # what the streams carried and what the counters say are one number
    streams = {
        check["status"] for check in report["checks"] if check["rule"] == "V15" and "bad" not in check["subject"]
    }
    assert streams <= {"pass", "flag"}
    assert lab.run("seatctl", "campaign", "report", str(raw), "--verify").code == 0
    assert call(lab) == OK


def test_a_shadow_leaves_production_alone(lab: Lab, tmp_path: Path) -> None:
    """No window is asked for, no caller is sent away, and the process of production is the same afterwards."""
    before, results = process(lab), tmp_path / "results"
    with client_of(lab) as during:
        run = lab.run(*play("shadow", results, "-e", "campaign_window=false"), timeout_s=4 * BOOT_LIMIT_S)
    assert during.accidents == {} and set(during.seen) == {OK}
    assert "A screen decides nothing" in run.output
    assert process(lab) == before and not active(lab, ARM) and not active(lab, RUN)
    (raw,) = (path for path in results.iterdir() if path.is_dir())
    boot = json.loads((raw / "boots/01_k2_1/boot.json").read_text())
    assert (boot["settings"]["port"], boot["env"]["CUDA_VISIBLE_DEVICES"]) == (8122, "1")
    assert lab.run("seatctl", "campaign", "report", str(raw), "--verify").code == 0
