"""Watching the fleet, on lab hosts: timers, what a host exports, the table, the page, and why a seat failed."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from hammer import DESIGNED, OK
from labrun import CACHE, Lab
from seatlife import HOST, UNIT, call, client_of

from seatfleet.core.health.metrics import parse

SEATCTL = "/opt/vllm/toolbox/bin/seatctl"


def test_timers_are_there_and_a_second_run_changes_nothing(lab: Lab) -> None:
    lab.site("-l", "fv-ml1,spark-1")
    lab.run("ansible-playbook", "playbooks/observability.yml")
    again = lab.run("ansible-playbook", "playbooks/observability.yml")
    assert set(again.changed.values()) == {0}
    timers = lab.host("fv-ml1", "systemctl", "list-timers", "--no-pager", "seatfleet-*").output
    assert "seatfleet-state.timer" in timers
    assert "seatfleet-probe@flash-next.timer" in timers


def test_a_host_says_what_its_seats_are(lab: Lab) -> None:
    lab.host("fv-ml1", "systemctl", "start", "seatfleet-state.service")
    text = lab.host("fv-ml1", "cat", "/var/lib/seatfleet/metrics/state.prom").output
    page = parse(text)
    seat = {"host": "fv-ml1", "seat": "flash-next"}
    assert page.total("seatfleet_seat_running", **seat) == 1
    assert page.total("seatfleet_seat_proven", **seat) == 1
    assert page.total("seatfleet_seat_drifted", **seat) == 0
    assert page.total("seatfleet_seat_acceptance_minimum", **seat) == 2.95
    proofs = page.series("seatfleet_alias_proof_ok")
    assert len(proofs) == 3
    assert set(proofs.values()) == {1.0}
    checked = subprocess.run(
        [str(CACHE / "tools/promtool"), "check", "metrics"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_unit_that_somebody_edited_shows_as_drift(lab: Lab) -> None:
    unit = "/etc/systemd/system/vllm-seat-flash-next.service"
    text = lab.host("fv-ml1", "cat", unit).output
    lab.host("fv-ml1", "tee", unit, stdin=f"{text}# by hand\n")
    try:
        exported = parse(lab.host("fv-ml1", SEATCTL, "export", "--host", "fv-ml1").output)
        assert exported.total("seatfleet_seat_drifted", seat="flash-next") >= 1
    finally:
        lab.host("fv-ml1", "tee", unit, stdin=text)
        lab.host("fv-ml1", "systemctl", "daemon-reload")


def test_the_state_of_the_fleet_as_table_json_and_page(lab: Lab, tmp_path: Path) -> None:
    file, html = tmp_path / "fleet.json", tmp_path / "fleet.html"
    arguments = ("-e", f"status_file={file}", "-e", f"status_page={html}")
    lab.run("ansible-playbook", "playbooks/status.yml", *arguments)
    rows = {row["seat"]: row for row in json.loads(file.read_text())}
    assert rows.keys() == {"flash-next", "dense-lab"}
    seat = rows["flash-next"]
    assert (seat["state"], seat["drifted"], seat["foreign"]) == ("READY", [], [])
    assert seat["kv_use"] is not None
    assert seat["started"] is not None
    assert seat["history"][0]["verdict"] == "READY"
    assert html.read_text().count("<section>") == 2
    shown = lab.run("seatctl", "status", str(file)).output
    assert "gen-large" in shown
    if kept := os.environ.get("SEATFLEET_STATUS_FILE"):
        Path(kept).write_text(file.read_text())


def test_why_names_a_start_that_failed(lab: Lab) -> None:
    """A unit of its own with a journal of its own: no seat is harmed for it."""
    cause = "ValueError: No available memory for the cache blocks."
    script = f"[Unit]\n[Service]\nType=exec\nExecStart=/bin/sh -c 'echo \"{cause}\" >&2; exit 1'\n"
    unit = "/etc/systemd/system/vllm-seat-broken.service"
    lab.host("fv-ml1", "tee", unit, stdin=script)
    try:
        lab.host("fv-ml1", "systemctl", "daemon-reload")
        lab.host("fv-ml1", "systemctl", "start", "vllm-seat-broken", check=False)
        lab.host("fv-ml1", "journalctl", "--sync")
        shown = lab.host("fv-ml1", SEATCTL, "why", "broken").output
    finally:
        lab.host("fv-ml1", "rm", unit)
        lab.host("fv-ml1", "systemctl", "daemon-reload")
        lab.host("fv-ml1", "systemctl", "reset-failed", "vllm-seat-broken", check=False)
    assert f"first cause: {cause}" in shown
    assert "status=1/FAILURE" in shown
    assert "no advice beyond it is on record" in shown or "known failure" in shown


def test_a_seat_out_for_maintenance_is_closed_and_comes_back(lab: Lab, tmp_path: Path) -> None:
    stop = ("ansible-playbook", "playbooks/stop.yml", "-l", HOST, "-e", "seat=flash-next")
    with client_of(lab) as during:
        checked = lab.run(*stop, "--check")
        assert "would stop: flash-next;" in " ".join(checked.output.split())
        assert lab.host(HOST, "systemctl", "is-active", UNIT).output.strip() == "active"
        stopped = lab.run(*stop)
        assert "stopped: flash-next;" in " ".join(stopped.output.split())
        assert lab.host(HOST, "systemctl", "is-active", UNIT, check=False).output.strip() == "inactive"
        assert lab.host(HOST, "systemctl", "is-enabled", UNIT).output.strip() == "enabled"
        assert call(lab) == DESIGNED
        lab.run("ansible-playbook", "playbooks/status.yml", "-l", HOST, "-e", f"status_file={tmp_path / 'fleet.json'}")
        (row,) = [row for row in json.loads((tmp_path / "fleet.json").read_text()) if row["seat"] == "flash-next"]
        assert (row["state"], row["closed"], row["proven"]) == ("stopped", ["gen-large"], {"gen-large": []})
        exported = parse(lab.host(HOST, SEATCTL, "export", "--host", HOST).output)
        assert exported.total("seatfleet_seat_stopped", seat="flash-next") == 1
        assert lab.run(*stop).changed == {HOST: 0}
        lab.site("-l", HOST, "--tags", "seat,alias")
    assert during.accidents == {}
    assert during.seen[DESIGNED] > 0
    assert call(lab) == OK


def test_a_seat_that_only_loads_is_waited_for(lab: Lab) -> None:
    """Somebody restarted it: its aliases, which lead to it all the time, can be proven only when it answers."""
    lab.host(HOST, "systemctl", "restart", UNIT)
    assert lab.site("-l", HOST, "--tags", "seat,alias").changed == {HOST: 0}
    assert call(lab) == OK
