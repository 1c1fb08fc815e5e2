"""The gateway and the deployed fleet: aliases of running seats, a gateway that is down or slow, a limit to one host.

After the chain: the fleet serves.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from labrun import LAB, Lab

HOST, SEAT, ALIAS = "fv-ml1", "flash-next", "gen-large"
SEATS_FILE = "group_vars/lab_fv_ml1/seats.yml"
NARROWER = (SEATS_FILE, "keys: [infra-ops, all-agents]", "keys: [infra-ops]")
SECOND = (
    SEATS_FILE,
    "    probe:\n",
    "      gen-second:\n        keys: [all-agents]\n        sampling: {temperature: 0.5}\n    probe:\n",
)
# Aliases, keys and proofs of one host; what the roles before them do has nothing to do with the gateway.
ALIASES = ("playbooks/seats.yml", "--tags", "alias", "-l", HOST)


@pytest.fixture(autouse=True)
def leaves_the_aliases_as_they_were(request: pytest.FixtureRequest, lab: Lab) -> Iterator[None]:
    """Whatever a test did, afterwards check mode sees nothing to do."""
    yield
    if request.node.rep_call.passed:
        assert play(lab, "--check") == {HOST: 0}


def play(lab: Lab, *options: str) -> dict[str, int]:
    """Run the play for the aliases of one host; return what changed."""
    return dict(lab.run("ansible-playbook", *ALIASES, *options).changed)


def process(lab: Lab) -> str:
    """Return what changes when the seat is restarted."""
    unit = f"vllm-seat-{SEAT}.service"
    return lab.host(HOST, "systemctl", "show", unit, "--property=ActiveState,InvocationID,MainPID").output


def url() -> str:
    """Return the address of the lab's gateway."""
    return f"http://{json.loads((LAB / 'hosts.json').read_text())['gw-1']['address']}:4000"


def call(lab: Lab, key: str, alias: str = ALIAS) -> int:
    """Call an alias with one of the lab's keys; return the status."""
    keys = lab.secrets()["litellm_keys"]
    assert isinstance(keys, dict)
    body = {"model": alias, "max_tokens": 1, "messages": [{"role": "user", "content": "ready"}]}
    headers = {"Authorization": f"Bearer {keys[key]}"}
    return httpx.post(f"{url()}/v1/chat/completions", json=body, headers=headers, timeout=60).status_code


def deployments(lab: Lab) -> dict[str, dict[str, object]]:
    """Return every deployment of the gateway by its id."""
    headers = {"Authorization": f"Bearer {lab.secrets()['litellm_master_key']}"}
    data = httpx.get(f"{url()}/model/info", headers=headers, timeout=60).json()["data"]
    return {entry["model_info"]["id"]: entry for entry in data}


@contextmanager
def down(lab: Lab) -> Iterator[None]:
    """No gateway at all."""
    lab.host("gw-1", "systemctl", "stop", "litellm")
    try:
        yield
    finally:
        # Waits until it is ready.
        lab.host("gw-1", "systemctl", "start", "litellm")
        lab.run("ansible-playbook", "playbooks/gateway.yml", "-l", "gw-1")


@contextmanager
def silent(lab: Lab) -> Iterator[None]:
    """A gateway that takes connections and does not answer."""
    lab.host("gw-1", "systemctl", "kill", "--signal=SIGSTOP", "litellm")
    try:
        yield
    finally:
        lab.host("gw-1", "systemctl", "kill", "--signal=SIGCONT", "litellm")


@pytest.mark.parametrize(("trouble", "words"), [(down, "is not reachable"), (silent, "gave no answer")])
def test_a_gateway_in_trouble_leaves_a_list_and_the_next_run_makes_it_good(
    lab: Lab, tmp_path: Path, trouble: object, words: str
) -> None:
    edited, before = lab.edited(tmp_path / "edited", [NARROWER, SECOND]), process(lab)
    with trouble(lab):  # type: ignore[operator]
        run = edited.run("ansible-playbook", *ALIASES, check=False)
        assert run.failed == {HOST}, run.output
        told = " ".join(run.output.replace("\\n", " ").split())
        assert words in told
        assert f"alias {ALIAS} of seat {SEAT}, for keys infra-ops" in told
        assert f"alias gen-second of seat {SEAT}, for keys all-agents" in told
        assert f"The seats of {HOST} keep running" in told
        assert process(lab) == before
    assert play(edited)[HOST] > 0
    assert (call(lab, "infra-ops"), call(lab, "all-agents"), call(lab, "all-agents", "gen-second")) == (200, 403, 200)
    assert process(lab) == before
    assert play(lab)[HOST] > 0
    assert (call(lab, "all-agents"), call(lab, "all-agents", "gen-second")) == (200, 403)
    assert process(lab) == before


def test_check_mode_foresees_and_does_nothing_and_a_limit_holds(lab: Lab, tmp_path: Path) -> None:
    edited, before, live = lab.edited(tmp_path / "edited", [SECOND]), process(lab), deployments(lab)
    foreseen = edited.run("ansible-playbook", *ALIASES, "--check", "--diff")
    assert foreseen.changed[HOST] > 0
    assert deployments(lab) == live
    done = edited.run("ansible-playbook", *ALIASES, "--diff")
    assert done.changed == foreseen.changed
    # No restart for a new alias, and the run says what that costs.
    told = " ".join(done.output.split())
    assert f"alias gen-second: seat {SEAT} does not answer to this name before its next start" in told
    assert process(lab) == before
    now = deployments(lab)
    assert set(now) - set(live) == {f"seat-{HOST}-{SEAT}-gen-second"}
    assert {name: now[name] for name in live} == live
    assert call(lab, "all-agents", "gen-second") == 200
    assert call(lab, "infra-ops", "gen-second") == 403
    assert play(edited) == {HOST: 0}
    assert play(lab)[HOST] > 0
    assert deployments(lab) == live
