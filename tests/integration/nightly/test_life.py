"""A seat's life after its first deployment: upgrade under load, rollback, drift, crash loop, removal.

Ordered like test_chain.py: every test leaves the seat serving what the repository says.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hammer import DESIGNED, OK
from labrun import Lab
from seatlife import (
    HOST,
    PATCHED_FILE,
    PORT,
    SEAT,
    SMALLER,
    UNIT,
    call,
    client_of,
    drift,
    link,
    process,
)


@pytest.fixture(scope="module", autouse=True)
def deployed(lab: Lab) -> None:
    """The one host converged; the gateway is there since test_chain.py."""
    lab.site("-l", HOST)


def test_an_upgrade_under_load_and_the_way_back(lab: Lab, tmp_path: Path) -> None:
    before, edited = link(lab), lab.edited(tmp_path / "edited", [SMALLER])
    with client_of(lab) as during:
        edited.site("-l", HOST)
    assert during.accidents == {}
    assert during.seen[OK] > 0
    assert during.seen[DESIGNED] > 0
    assert link(lab) != before
    assert drift(edited, tmp_path) == []

    with client_of(lab) as during:
        run = edited.run("ansible-playbook", "playbooks/rollback.yml", "-e", f"seat={SEAT}", "-l", HOST)
    assert during.accidents == {}
    assert "kv_cache_memory: 64MiB  # instead of 48MiB" in run.output
    assert link(lab) == before
    assert call(lab) == OK
    (row,) = drift(edited, tmp_path)
    assert row["what"] == SEAT
    assert row["differs"].startswith("would restart: kv-cache-memory-bytes:")
    # with the line that was printed nothing is left to do
    assert drift(lab, tmp_path) == []


def test_a_unit_changed_by_hand_is_seen_and_repaired_without_a_restart(lab: Lab, tmp_path: Path) -> None:
    before = process(lab)
    lab.host(HOST, "sed", "-i", "s/^RestartSec=.*/RestartSec=1/", f"/etc/systemd/system/{UNIT}")
    assert [(row["what"], row["differs"]) for row in drift(lab, tmp_path)] == [(SEAT, f"unit file {UNIT}")]
    lab.site("-l", HOST)
    assert drift(lab, tmp_path) == []
    assert process(lab) == before


def test_a_seat_that_gives_up_answers_503_with_retry_after(lab: Lab, tmp_path: Path) -> None:
    """A patched file that somebody reverted keeps the seat from starting: the quickest crash loop there is."""
    lab.host(HOST, "cp", "-a", PATCHED_FILE, "/root/kept.py")
    lab.host(HOST, "tee", "-a", PATCHED_FILE, stdin="# by hand\n")
    try:
        lab.host(HOST, "systemctl", "kill", "--signal=SIGKILL", UNIT)
        deadline = time.monotonic() + 180
        stub = f"seatfleet-stub@{PORT}.service"
        while lab.host(HOST, "systemctl", "is-active", stub, check=False).output.strip() != "active":
            assert time.monotonic() < deadline, lab.host(HOST, "systemctl", "status", UNIT, check=False).output
            time.sleep(2)
        assert "seat_draining" in lab.host(HOST, "curl", "-s", f"http://127.0.0.1:{PORT}/v1/models").output
        with client_of(lab) as callers:
            time.sleep(60)
        assert callers.others_than(DESIGNED) == {}
        found = drift(lab, tmp_path)
        assert {row["part"] for row in found} == {"release", "seat"}
        status = lab.run("ansible-playbook", "playbooks/status.yml", "-l", HOST).output
        assert "systemd gave it up; its port answers 503 with Retry-After" in status
    finally:
        lab.host(HOST, "cp", "-a", "/root/kept.py", PATCHED_FILE)
    lab.site("-l", HOST)
    assert call(lab) == OK
    assert drift(lab, tmp_path) == []


def test_a_removed_seat_is_gone_and_comes_back_from_the_repository(lab: Lab, tmp_path: Path) -> None:
    with client_of(lab) as during:
        lab.run("ansible-playbook", "playbooks/remove.yml", "-e", f"seat={SEAT}", "-l", HOST)
    assert during.others_than(OK, "400", "403") == {}
    assert call(lab).startswith(("400", "403"))
    for path in (f"/etc/vllm/seats/{SEAT}", f"/etc/systemd/system/{UNIT}", f"/var/cache/vllm/{SEAT}"):
        assert lab.host(HOST, "test", "-e", path, check=False).code != 0, path
    assert lab.host(HOST, "ls", "/opt/vllm/releases", "/srv/models/tiny-oracle").output
    assert {row["part"] for row in drift(lab, tmp_path)} == {"seat", "alias", "key"}
    lab.site("-l", HOST)
    assert call(lab) == OK
    assert drift(lab, tmp_path) == []
