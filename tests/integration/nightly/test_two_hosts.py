"""One seat over two hosts: vLLM's own multi-node launch over gloo on the CPU build, on lab hosts.

The head is spark-1, its seat dense-lab the one of the repository with ``nodes`` added; fv-ml1 follows it and keeps its
own seat. Ordered: every test leaves the seat serving over both, the last one leaves it as the repository says.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hammer import OK, Hammer
from labrun import LAB, Lab

HEAD, FOLLOWER, SEAT = "spark-1", "fv-ml1", "dense-lab"
UNIT, LINK = f"vllm-seat-{SEAT}.service", f"seatfleet-link@{SEAT}.service"
HOME = f"/etc/vllm/seats/{SEAT}"
SEATS_FILE = "group_vars/lab_spark_1/seats.yml"
OVER_TWO = (
    SEATS_FILE,
    "    gpus: []\n",
    """    gpus: []
    nodes:
      port: 29500
      hosts:
        - {host: spark-1, address: "{{ lab_hosts['spark-1'].address }}", interface: host0}
        - {host: fv-ml1, address: "{{ lab_hosts['fv-ml1'].address }}", interface: host0}
""",
)
SMALLER = (SEATS_FILE, "kv_cache_memory: 64MiB", "kv_cache_memory: 48MiB")
# Less than one request of max_model_len needs: vLLM ends while starting.
TOO_SMALL = (SEATS_FILE, "kv_cache_memory: 64MiB", "kv_cache_memory: 1MiB")
MODEL = "/srv/models/tiny-qwen3"
PATCHED_FILE = "lib/python3.11/site-packages/vllm/entrypoints/launchers/launcher.py"


@pytest.fixture(scope="module")
def two(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The lab of a project whose dense-lab runs over two hosts; afterwards it is again that of the repository."""
    yield lab.edited(tmp_path_factory.mktemp("two") / "project", [OVER_TWO])
    lab.run("ansible-playbook", "playbooks/remove.yml", "-e", f"seat={SEAT}", "-l", HEAD)
    lab.site("-l", HEAD)


def deploy(lab: Lab, check: bool = True) -> tuple[int, str]:
    """Run site.yml for the head alone: the other host is reached from there."""
    run = lab.site("-l", HEAD, check=check)
    return run.code, run.output


def called(lab: Lab) -> str:
    """Call the seat's alias once and return the kind of what came."""
    address = json.loads((LAB / "hosts.json").read_text())["gw-1"]["address"]
    keys = lab.secrets()["litellm_keys"]
    assert isinstance(keys, dict)
    with httpx.Client(timeout=60) as client:
        try:
            return Hammer(f"http://{address}:4000", keys["infra-ops"], "gen-small").once(client, stream=False)
        except httpx.HTTPError as error:
            return type(error).__name__


def wait_until_called(lab: Lab, limit_s: float = 900) -> float:
    """Call until there is an answer; return the seconds it took."""
    begin = time.monotonic()
    while (kind := called(lab)) != OK:
        assert time.monotonic() - begin < limit_s, f"{kind}\n{journals(lab)}"
        time.sleep(3)
    # systemd counts the restarts that these tests ask for, and after four of them would give the seat up.
    lab.console(HEAD, "systemctl", "reset-failed", UNIT)
    return time.monotonic() - begin


def journals(lab: Lab) -> str:
    """Return the ends of the four journals, for a test that fails."""
    return "\n".join(
        lab.console(host, "journalctl", "--no-pager", "--lines=30", "-u", unit).output
        for host in (HEAD, FOLLOWER)
        for unit in (UNIT, LINK)
    )


def starts(lab: Lab) -> tuple[str, str]:
    """Return which start each half is in: equal unless it was restarted."""
    found = [
        lab.console(host, "systemctl", "show", UNIT, "--property=InvocationID", "--value").output.strip()
        for host in (HEAD, FOLLOWER)
    ]
    return found[0], found[1]


def running(lab: Lab) -> list[str]:
    """Return the generation that the main process of each half says it is of; empty where there is none."""
    found = []
    for host in (HEAD, FOLLOWER):
        pid = lab.console(host, "systemctl", "show", UNIT, "--property=MainPID", "--value").output.strip()
        environ = lab.console(host, "cat", f"/proc/{pid}/environ").output if pid != "0" else ""
        words = [word for word in environ.split("\0") if word.startswith("SEATFLEET_GENERATION=")]
        found.append(words[0].partition("=")[2] if words else "")
    return found


def wait_for_restart(lab: Lab, before: tuple[str, str], limit_s: float = 120) -> float:
    """Wait until both halves are in another start than before; return the seconds it took."""
    begin = time.monotonic()
    while any(now in ("", old) for now, old in zip(starts(lab), before, strict=True)):
        assert time.monotonic() - begin < limit_s, f"{before} {starts(lab)}\n{journals(lab)}"
        time.sleep(1)
    return time.monotonic() - begin


def test_a_host_that_lacks_what_its_half_needs_is_named_before_anything_restarts(two: Lab) -> None:
    two.site("-l", FOLLOWER, "--tags", "host,release,model")
    two.host(FOLLOWER, "mv", MODEL, f"{MODEL}.away")
    before = two.host(HEAD, "systemctl", "show", UNIT, "--property=MainPID", check=False).output
    try:
        code, output = deploy(two, check=False)
    finally:
        two.host(FOLLOWER, "mv", f"{MODEL}.away", MODEL)
    assert code != 0
    assert f"seat {SEAT} on {FOLLOWER}: model tiny-qwen3 is not there ({MODEL}/" in output
    assert f"site.yml -l {HEAD},{FOLLOWER}" in output
    assert two.host(HEAD, "systemctl", "show", UNIT, "--property=MainPID", check=False).output == before


def test_one_seat_two_units_one_ready(two: Lab, tmp_path: Path) -> None:
    deploy(two)
    assert called(two) == OK
    first, second = running(two)
    assert first
    assert first == second
    ready = [
        two.host(host, "test", "-e", f"{HOME}/generations/{first}/probe.json", check=False).code
        for host in (HEAD, FOLLOWER)
    ]
    assert ready == [0, 1]
    seen = two.run("ansible-playbook", "playbooks/status.yml", "-e", f"status_file={tmp_path}/status.json")
    rows = {row["host"]: row for row in json.loads((tmp_path / "status.json").read_text()) if row["seat"] == SEAT}
    assert {host: rows[host]["state"] for host in rows} == {HEAD: "READY", FOLLOWER: f"follows {HEAD}"}, seen.output
    assert [rows[host]["notes"] for host in rows] == [[], []]
    assert two.site("-l", HEAD).changed[HEAD] == 0
    assert two.site("--check", "-l", HEAD).changed[HEAD] == 0
    # nothing of it listens where others could reach it: the gateway's host is let in to the seat's port alone
    address = json.loads((LAB / "hosts.json").read_text())[HEAD]["address"]
    for port, code in ((8031, 0), (29500, 1), (29501, 1)):
        reach = f"import socket; socket.create_connection(('{address}', {port}), 5)"
        assert two.host("gw-1", "python3", "-c", f'"{reach}"', check=False).code == code, port


@pytest.mark.parametrize(
    "victim",
    [
        pytest.param((FOLLOWER, "systemctl", "kill", "--signal=SIGKILL", UNIT), id="all of the follower"),
        pytest.param((FOLLOWER, "pkill", "-KILL", "-f", "VLLM::Worker"), id="worker of the follower"),
        pytest.param((HEAD, "systemctl", "kill", "--signal=SIGKILL", UNIT), id="all of the head"),
        pytest.param((HEAD, "pkill", "-KILL", "-f", "VLLM::EngineCor"), id="engine of the head"),
    ],
)
def test_one_half_that_ends_takes_the_other_with_it_and_both_come_back(two: Lab, victim: tuple[str, ...]) -> None:
    before = starts(two)
    two.host(*victim)
    wait_for_restart(two, before)
    wait_until_called(two)
    first, second = running(two)
    assert first == second


def test_a_cable_that_is_out_ends_both_and_back_in_starts_both(two: Lab) -> None:
    before = starts(two)
    two.power("cut", FOLLOWER)
    try:
        deadline = time.monotonic() + 120
        while starts(two)[0] == before[0] or two.console(FOLLOWER, "systemctl", "is-active", UNIT).code == 0:
            assert time.monotonic() < deadline, journals(two)
            time.sleep(2)
    finally:
        two.power("heal", FOLLOWER)
    wait_for_restart(two, before)
    wait_until_called(two)


def test_a_link_that_restarts_is_no_reason_to_restart_the_seat(two: Lab) -> None:
    before = starts(two)
    for host in (HEAD, FOLLOWER):
        two.host(host, "systemctl", "restart", LINK)
    time.sleep(30)  # more than the silence after which the other half counts as gone
    assert starts(two) == before
    assert called(two) == OK


def test_a_broken_release_on_the_other_host_is_refused_before_the_stop(two: Lab, tmp_path: Path) -> None:
    before = starts(two)
    path = f"{HOME}/current/release/{PATCHED_FILE}"
    two.host(FOLLOWER, "cp", "-a", path, "/root/kept.py")
    two.host(FOLLOWER, "tee", "-a", path, stdin="# by hand\n")
    smaller = two.edited(tmp_path / "smaller", [SMALLER])
    try:
        code, output = deploy(smaller, check=False)
    finally:
        two.host(FOLLOWER, "cp", "-a", "/root/kept.py", path)
    assert code != 0
    assert f"seat {SEAT} on {FOLLOWER}: patched files of 0.32.0-" in output
    assert starts(two) == before


def test_a_change_restarts_both_and_so_does_the_way_back(two: Lab, tmp_path: Path) -> None:
    before, old = starts(two), running(two)
    smaller = two.edited(tmp_path / "smaller", [SMALLER])
    deploy(smaller)
    assert called(two) == OK
    new = running(two)
    assert new[0] == new[1] != old[0]
    assert all(now != then for now, then in zip(starts(two), before, strict=True))
    two.run("ansible-playbook", "playbooks/rollback.yml", "-e", f"seat={SEAT}", "-l", HEAD)
    assert running(two) == old
    assert called(two) == OK


def test_a_half_that_does_not_start_brings_both_back_with_its_cause(two: Lab) -> None:
    """The generation before the last one, with its configuration broken on the other host only."""
    old = running(two)
    newer = two.host(HEAD, "readlink", f"{HOME}/previous").output.strip()
    config = f"{HOME}/{newer}/vllm.yaml"
    two.host(FOLLOWER, "cp", "-a", config, "/root/kept.yaml")
    two.host(FOLLOWER, "tee", "-a", config, stdin="no-such-flag: true\n")
    try:
        run = two.run("ansible-playbook", "playbooks/rollback.yml", "-e", f"seat={SEAT}", "-l", HEAD, check=False)
    finally:
        two.host(FOLLOWER, "cp", "-a", "/root/kept.yaml", config)
    assert run.code != 0
    assert f"the half of the seat on {FOLLOWER} ended: vllm: error: unrecognized arguments" in run.output
    assert f"Generation {old[0]} is back and READY" in run.output
    assert running(two) == old
    assert called(two) == OK


def test_a_generation_that_cannot_serve_brings_both_back(two: Lab, tmp_path: Path) -> None:
    old = running(two)
    code, output = deploy(two.edited(tmp_path / "small", [TOO_SMALL]), check=False)
    assert code != 0
    assert f"Generation {old[0]} is back and READY" in output
    assert running(two) == old
    assert called(two) == OK


def test_a_host_that_boots_comes_back_into_the_seat(two: Lab) -> None:
    before = starts(two)
    two.power("reboot", FOLLOWER)
    wait_for_restart(two, before)
    wait_until_called(two)
    first, second = running(two)
    assert first == second
    deploy(two)
    assert called(two) == OK


def test_a_removed_seat_is_gone_from_both_hosts(two: Lab) -> None:
    two.run("ansible-playbook", "playbooks/remove.yml", "-e", f"seat={SEAT}", "-l", HEAD)
    for host in (HEAD, FOLLOWER):
        for path in (HOME, f"/etc/systemd/system/{UNIT}", f"/var/cache/vllm/{SEAT}"):
            assert two.host(host, "test", "-e", path, check=False).code != 0, f"{host}: {path}"
        assert two.host(host, "systemctl", "is-active", LINK, check=False).output.strip() == "inactive"
    deploy(two)
    assert called(two) == OK
