"""The smallest campaign, as an operator runs it: window, three boots, production and its alias back, verified report.

Takes four minutes on a machine that does nothing else. Longer campaigns and what dies in their middle: nightly/.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hammer import DESIGNED, OK
from labrun import Lab
from measuring import ARM, BOOT_LIMIT_S, RUN, active, play
from seatlife import HOST, SEAT, call, client_of


@pytest.fixture(scope="module", autouse=True)
def deployed(lab: Lab) -> None:
    """The one host and the gateway, converged; costs seconds after test_chain.py."""
    lab.site("-l", f"{HOST},gw-1")


def test_without_a_window_it_only_plans(lab: Lab) -> None:
    plan = ["ansible-playbook", "playbooks/campaign.yml", "-l", HOST, "-e", f"seat={SEAT}", "-e", "campaign=smoke"]
    run = lab.run(*plan, check=False)
    assert run.code and "off k2 off" in run.output and "campaign_window=true" in run.output
    assert run.changed[HOST] == 0 and call(lab) == OK


def test_a_campaign_from_window_to_verified_report(lab: Lab, tmp_path: Path) -> None:
    results = tmp_path / "results"
    with client_of(lab) as during:
        run = lab.run(*play("smoke", results), timeout_s=4 * BOOT_LIMIT_S)
    assert during.accidents == {} and during.seen[DESIGNED] > 0
    assert call(lab) == OK and not active(lab, ARM) and not active(lab, RUN)
    assert "A screen decides nothing" in run.output

    (raw,) = (path for path in results.iterdir() if path.is_dir())
    report = json.loads((raw / "report/report.json").read_text())
    (row,) = report["acceptance"]
    assert row["arm"] == "k2" and row["acceptance_length"] == pytest.approx(3.0, abs=0.05) and row["drafts"] > 0
    assert report["void_arms"] == {} and report["void_boots"] == {}
    assert {arm["arm"]: arm["lost"] > 0 for arm in report["kv"]} == {"off": False, "k2": True}

    verify = ("seatctl", "campaign", "report", str(raw), "--verify")
    assert lab.run(*verify).code == 0
    cell = next(raw.glob("boots/01_k2_1/cells/*.json"))
    content = cell.read_bytes()
    cell.write_bytes(content.replace(b"1", b"2", 1))
    spoiled = lab.run(*verify, check=False)
    assert spoiled.code == 3 and cell.name in spoiled.output
    cell.write_bytes(content)

    secrets = lab.secrets()["litellm_keys"]
    assert isinstance(secrets, dict)
    for path in raw.rglob("*.json"):
        assert not any(str(secret).encode() in path.read_bytes() for secret in secrets.values()), path


def test_a_quick_look_has_numbers_and_no_verdict(lab: Lab) -> None:
    options = {"seat": SEAT, "bench_shapes": "count", "bench_concurrency": "1", "bench_max_tokens": "16"}
    extra = [part for name, value in options.items() for part in ("-e", f"{name}={value}")]
    run = lab.run("ansible-playbook", "playbooks/bench.yml", "-l", HOST, *extra)
    assert "no floor, no verdict" in run.output and run.changed[HOST] == 0
    assert "3.00" in run.output  # the oracle's acceptance length with two drafts
