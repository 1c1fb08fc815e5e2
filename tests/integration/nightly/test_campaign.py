"""A campaign on a lab host, as an operator runs it; production and its alias are back whatever dies in the middle.

Ordered like test_chain.py. The kill tests take a quarter of an hour; they run with SEATFLEET_NIGHTLY set.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from hammer import DESIGNED, OK, Hammer
from labrun import LAB, Lab

HOST, SEAT, ALIAS = "fv-ml1", "flash-next", "gen-large"
PLAY = ("ansible-playbook", "playbooks/campaign.yml", "-l", HOST, "-e", f"seat={SEAT}")
RUN = f"vllm-campaign-run-{SEAT}.service"
ARM = f"vllm-campaign-{SEAT}.service"
BASE = f"/var/lib/seatfleet/campaigns/{SEAT}/raw"
BOOT_LIMIT_S = 1500
KILLS = ["client", "reboot"] if os.environ.get("SEATFLEET_NIGHTLY") else []


@pytest.fixture(scope="module", autouse=True)
def deployed(lab: Lab) -> None:
    """The one host and the gateway, converged; costs seconds after test_chain.py."""
    lab.site("-l", f"{HOST},gw-1")


@pytest.fixture
def hammer(lab: Lab) -> Callable[[], Hammer]:
    address = json.loads((LAB / "hosts.json").read_text())["gw-1"]["address"]
    keys = lab.secrets()["litellm_keys"]
    assert isinstance(keys, dict)
    return lambda: Hammer(f"http://{address}:4000", keys["all-agents"], ALIAS)


def answers(hammer: Hammer) -> str:
    with httpx.Client(timeout=60) as client:
        return hammer.once(client, stream=False)


def active(lab: Lab, unit: str) -> bool:
    return lab.host(HOST, "systemctl", "is-active", unit, check=False).output.strip() == "active"


def state(lab: Lab) -> dict[str, object]:
    command = f"/opt/vllm/toolbox/bin/seatctl campaign status --base {BASE} --name smoke --json"
    found: dict[str, object] = json.loads(lab.host(HOST, *command.split()).output)
    return found


def wait_until(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + BOOT_LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {BOOT_LIMIT_S} s"
        time.sleep(3)


def test_without_a_window_it_only_plans(lab: Lab, hammer: Callable[[], Hammer]) -> None:
    run = lab.run(*PLAY, "-e", "campaign=smoke", check=False)
    assert run.code and "off k2 off" in run.output and "campaign_window=true" in run.output
    assert run.changed[HOST] == 0 and answers(hammer()) == OK


def test_a_campaign_from_window_to_verified_report(lab: Lab, tmp_path: Path, hammer: Callable[[], Hammer]) -> None:
    results = tmp_path / "results"
    options = ("-e", "campaign=smoke", "-e", "campaign_window=true", "-e", f"campaign_results_dir={results}")
    with hammer() as during:
        run = lab.run(*PLAY, *options, timeout_s=4 * BOOT_LIMIT_S)
    assert during.accidents == {} and during.seen[DESIGNED] > 0
    assert answers(hammer()) == OK and not active(lab, ARM) and not active(lab, RUN)
    assert "A screen decides nothing" in run.output
    (raw,) = (path for path in results.iterdir() if path.is_dir())
    report = json.loads((raw / "report/report.json").read_text())
    (row,) = report["acceptance"]
    assert row["arm"] == "k2" and row["acceptance_length"] == pytest.approx(3.0, abs=0.05)
    assert report["void_arms"] == {} and report["void_boots"] == {}
    assert lab.run("seatctl", "campaign", "report", str(raw), "--verify").code == 0
    secrets = [str(value) for value in lab.secrets()["litellm_keys"].values()]
    assert not any(secret.encode() in path.read_bytes() for path in raw.rglob("*.json") for secret in secrets)

    again = lab.run(*PLAY, *options)
    assert "Close the aliases" not in again.output and answers(hammer()) == OK


@pytest.mark.parametrize("victim", KILLS)
def test_production_is_back_and_the_campaign_goes_on(
    lab: Lab, tmp_path: Path, hammer: Callable[[], Hammer], victim: str
) -> None:
    options = [
        "-e",
        "campaign=smoke",
        "-e",
        "campaign_window=true",
        "-e",
        f"campaign_results_dir={tmp_path / 'results'}",
    ]
    play = subprocess.Popen(
        [*PLAY, *options, "-e", "campaign_new=true"],
        cwd=lab.project,
        env=lab.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_until("the second boot", lambda: active(lab, RUN) and len(state(lab)["done"]) == 1 and active(lab, ARM))
    first = lab.host(HOST, "sh", "-c", f"sha256sum {BASE}/*-smoke/boots/00_off_1/*.json | sort | tail -1").output
    if victim == "client":
        lab.host(HOST, "systemctl", "kill", "--kill-whom=main", "--signal=KILL", RUN)
    else:
        play.kill()
        lab.run("lab/lab", "reboot", HOST)
    output, _ = play.communicate(timeout=BOOT_LIMIT_S)
    assert play.returncode != 0, output
    wait_until("production", lambda: active(lab, f"vllm-seat-{SEAT}.service") and not active(lab, ARM))
    if victim == "client":
        assert "Run the same command again to go on" in output and answers(hammer()) == OK
    else:
        lab.run(*PLAY, "-e", "campaign=smoke", "--check")
    assert len(state(lab)["done"]) == 1

    lab.run(*PLAY, *options, timeout_s=4 * BOOT_LIMIT_S)
    after = state(lab)
    assert after["left"] == 0 and len(after["aborted"]) >= 1 and answers(hammer()) == OK
    assert after["block"] == (1 if victim == "client" else 2)
    assert (
        lab.host(HOST, "sh", "-c", f"sha256sum {BASE}/*-smoke/boots/00_off_1/*.json | sort | tail -1").output == first
    )
