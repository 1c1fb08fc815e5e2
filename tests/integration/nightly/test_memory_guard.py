"""The memory guard on a lab host, with replayed memory: a real seat is killed and stays down until asked for."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import httpx
import pytest
from labrun import LAB, Lab
from seatlife import HOST

SEAT, PORT = "flash-next", 8022
UNIT = f"vllm-seat-{SEAT}.service"
MEMINFO = "/run/seatfleet-meminfo"
GUARD = "seatfleet-memory-guard.service"


def remember(lab: Lab, available_gib: float) -> None:
    """Make the host have that much memory, in one step as the kernel does."""
    text = f"MemTotal: {122 << 20} kB\nMemAvailable: {int(available_gib * (1 << 20))} kB\n"
    lab.host(HOST, f"cat > {MEMINFO}.new && mv {MEMINFO}.new {MEMINFO}", stdin=text)


def show(lab: Lab, *properties: str) -> list[str]:
    wanted = [f"--property={name}" for name in properties]
    return lab.host(HOST, "systemctl", "show", "--value", *wanted, UNIT).output.split()


@pytest.fixture(scope="module", autouse=True)
def guarded(lab: Lab) -> Iterator[None]:
    lab.site("-l", f"{HOST},gw-1")
    remember(lab, 60)
    replay = ("-e", f"memory_guard_meminfo={MEMINFO}", "-e", "memory_guard_swap=allow")
    lab.run("ansible-playbook", "playbooks/memory_guard.yml", "-l", HOST, *replay)
    again = lab.run("ansible-playbook", "playbooks/memory_guard.yml", "-l", HOST, *replay)
    assert again.changed == {HOST: 0}
    yield
    lab.host(HOST, "systemctl", "disable", "--now", GUARD)
    lab.host(HOST, "rm", "-rf", f"/etc/systemd/system/{GUARD}", "/etc/seatfleet", MEMINFO)
    lab.host(HOST, "systemctl", "daemon-reload")


def test_the_guard_is_protected(lab: Lab) -> None:
    pid = lab.host(HOST, "systemctl", "show", "--value", "--property=MainPID", GUARD).output.strip()
    status = lab.host(HOST, "cat", f"/proc/{pid}/status").output
    locked = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmLck"))
    said = lab.host(HOST, "journalctl", "--no-pager", "--output=cat", f"--unit={GUARD}").output
    # Lab hosts are containers, which may not lock memory: then the guard must say so.
    assert locked > 5_000 or "warning: not locked in memory" in said
    assert lab.host(HOST, "/opt/vllm/toolbox/bin/seatctl", "guard", "status").output == ""


def test_at_the_floor_the_seat_is_killed_at_once_and_stays_down(lab: Lab) -> None:
    assert show(lab, "ActiveState") == ["active"]
    began = time.monotonic()
    remember(lab, 3)
    while show(lab, "ActiveState") == ["active"]:
        assert time.monotonic() - began < 30
        time.sleep(0.2)
    mark = json.loads(lab.host(HOST, "cat", f"/var/lib/seatfleet/guarded/{SEAT}.json").output)
    assert mark["available"] == 3 << 30
    assert "3.00 GiB of memory were available, the floor is 4.00 GiB" in mark["why"]
    remember(lab, 60)
    time.sleep(15)  # longer than RestartSec
    state, enabled = show(lab, "ActiveState", "UnitFileState")
    assert (state in ("inactive", "failed"), enabled) == (True, "disabled")


def test_callers_get_503_and_status_says_why(lab: Lab) -> None:
    address = json.loads((LAB / "hosts.json").read_text())["gw-1"]["address"]
    keys = lab.secrets()["litellm_keys"]
    assert isinstance(keys, dict)
    body = {"model": "gen-large", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    headers = {"Authorization": f"Bearer {keys['all-agents']}"}
    answer = httpx.post(f"http://{address}:4000/v1/chat/completions", json=body, headers=headers, timeout=60)
    assert answer.status_code == 503
    seen = lab.run("ansible-playbook", "playbooks/status.yml", "-l", HOST).output
    assert "the memory guard killed it at" in seen


def test_the_same_generation_is_refused_until_it_is_cleared(lab: Lab) -> None:
    refused = lab.site("-l", HOST, check=False)
    assert refused.failed == {HOST}
    assert "the memory guard killed this generation" in " ".join(refused.output.split())
    lab.host(HOST, "/opt/vllm/toolbox/bin/seatctl", "guard", "clear", SEAT)
    lab.site("-l", f"{HOST},gw-1")
    assert show(lab, "ActiveState", "UnitFileState") == ["active", "enabled"]
