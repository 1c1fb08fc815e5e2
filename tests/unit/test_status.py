"""Rows of the status table, the page made of them, and what a host exports."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fake_machine import FakeMachine
from probe_stub import RUNNING as PROCESS
from seat_examples import CPU, RELEASE, TINY, seat

from seatfleet.cli import main
from seatfleet.clients.probe import SystemHost
from seatfleet.core.health.metrics import parse
from seatfleet.core.host.machine_facts import Tenant, foreign, parse_tenants, started_at
from seatfleet.core.host.sockets import Owner
from seatfleet.core.paths import SeatPaths
from seatfleet.core.report.exporter import prometheus_text, samples
from seatfleet.core.report.status import SeatStatus, Surroundings, read_history, seat_status, table
from seatfleet.core.report.status_page import page
from seatfleet.core.seat import stopped
from seatfleet.core.seat.removal import stop
from seatfleet.core.seat.render import render
from seatfleet.core.seat.rollout import roll_out
from seatfleet.core.seat.staging import stage_host

SEAT = "lab-oracle"
KEYS = {SEAT: "sk-seat-1"}
NOW = Surroundings(now=1_796_000_000.0)
PAGE = (Path(__file__).parent / "data/metrics-0.32.0-full.prom").read_text()


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    fake = FakeMachine(SeatPaths(SEAT, tmp_path))
    wanted = render(seat(SEAT), RELEASE, TINY, CPU)
    stage_host([wanted], KEYS, check=False, root=tmp_path)
    roll_out(fake, [wanted], KEYS, tmp_path)
    return fake


def look(machine: FakeMachine, around: Surroundings = NOW) -> SeatStatus:
    return seat_status(machine, machine.paths, "fv-ml1", managed=True, aliases=["gen-large"], cells=[], around=around)


def notes(machine: FakeMachine) -> tuple[str, ...]:
    return look(machine).notes


def test_a_seat_that_serves_has_no_notes(machine: FakeMachine) -> None:
    assert notes(machine) == ()


def test_a_seat_that_was_given_up_says_what_answers_for_it(machine: FakeMachine) -> None:
    machine.process, machine.sub, machine.result = None, "failed", "start-limit-hit"
    machine.strangers = [Owner(7, "seatctl", "/system.slice/x.slice/seatfleet-stub@8022.service")]
    status = look(machine)
    assert status.notes == (
        "systemd gave it up; its port answers 503 with Retry-After: "
        "seatctl why lab-oracle on the host says why, then run site.yml",
    )
    assert not status.running
    assert "failed (start-limit-hit, status 1)" in table([status.as_dict()])


def test_a_seat_out_for_maintenance_is_no_broken_one(machine: FakeMachine) -> None:
    cells = [{"alias": "gen-large", "key": "infra-ops", "ok": True, "expected": "allow"}]
    look_at = {"managed": True, "aliases": ["gen-large", "gen-open"], "cells": cells, "around": NOW}

    def seen() -> tuple[SeatStatus, str, str]:
        status = seat_status(machine, machine.paths, "fv-ml1", **look_at)
        rows = [json.loads(json.dumps(status.as_dict()))]
        return status, table(rows), page(rows)

    stop(machine, machine.paths, check=False, closed=["gen-large"])
    status, text, html = seen()
    assert (status.state, status.proven, status.closed) == (
        "stopped",
        {"gen-large": [], "gen-open": []},
        ("gen-large",),
    )
    assert status.stopped is not None
    (note,) = status.notes
    assert note.startswith("stopped on purpose at 20")
    assert "inactive" not in text + html
    assert re.search(r"  stopped .*  closed none$", text.splitlines()[1])
    assert '<td class="warn">stopped</td>' in html
    assert "0 of 1 seats READY, 1 stopped on purpose" in html
    assert 'class="bad"' not in html
    assert "closed none" in html
    page_of_host = prometheus_text(samples("h", [status], {}, now=0, memory=(1, 1), proof={}, proven_at=None))
    assert 'seatfleet_seat_stopped{host="h",seat="lab-oracle"} 1' in page_of_host
    # Started by hand, and it failed: now it is broken, whatever mark is left.
    machine.sub, machine.result = "failed", "exit-code"
    status, text, html = seen()
    assert (status.stopped, status.closed) == (None, ())
    assert "failed (exit-code, status 1)" in text
    assert 'class="bad"' in html
    machine.sub, machine.result = "dead", "success"
    stopped.clear(SEAT, machine.paths.root)
    assert seen()[0].state == "inactive", "without a mark nobody knows that it was on purpose"


@pytest.mark.parametrize(("active", "code"), [("inactive", 4), ("failed", 3), (None, 3)])
def test_the_timed_probe_of_a_stopped_seat_says_nothing(
    active: str | None, code: int, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither an exit code for an alert, nor a failure in the history; one that was started by hand is probed."""
    unit = dataclasses.replace(PROCESS, active=active, sub="dead", main_pid=0) if active else None
    monkeypatch.setattr(stopped, "STOPPED", str(tmp_path / "stopped"))
    monkeypatch.setattr(SystemHost, "unit", lambda _: unit)
    file, evidence, written = tmp_path / "manifest.json", tmp_path / "evidence", tmp_path / "seat.prom"
    manifest = json.loads((machine.paths.current / "manifest.json").read_text())
    file.write_text(json.dumps({**manifest, "api_key_file": None, "port": 9, "base_url": "http://127.0.0.1:9"}))
    written.write_text("old")
    command = ["probe", "--manifest", str(file), "--ready-timeout", "0", "--evidence", str(evidence)]
    stopped.write(SEAT, stopped.Mark(1.0))
    assert main([*command, "--prometheus", str(written)]) == code
    assert written.exists() is (code == 3)
    assert evidence.exists() is (code == 3)
    assert main(command) == 3, "who asks by hand gets an answer"


def test_somebody_else_on_the_port_is_named_as_such(machine: FakeMachine) -> None:
    machine.strangers = [Owner(7, "python3", "/user.slice")]
    assert notes(machine) == ("process 7 listens on the seat's port and is not the seat",)


def test_a_unit_file_that_was_edited_is_drift(machine: FakeMachine) -> None:
    machine.paths.unit.write_text(machine.paths.unit.read_text() + "# by hand\n")
    assert len(look(machine).drifted) == 1
    assert "is not the unit of generation" in look(machine).drifted[0]


def test_load_age_and_baseline_come_from_the_page_the_process_and_the_evidence(machine: FakeMachine) -> None:
    kept = machine.paths.root / "var/lib/seatfleet/evidence" / SEAT
    kept.mkdir(parents=True)
    (kept / "baseline.json").write_text(json.dumps({"subject": {}, "workloads": {"count": {"a": 3.0, "b": 2.8}}}))
    (kept / "headroom").mkdir()
    (kept / "headroom/result.json").write_text("{}")
    os.utime(kept / "headroom/result.json", (1_790_000_000, 1_790_000_000))
    around = Surroundings(now=1_796_000_000.0, started=1_796_000_000.0 - 7200 - 28.5, metrics=PAGE)
    status = look(machine, around)
    assert (status.requests, status.waiting) == (0, 0)
    assert status.kv_use == 0.0
    assert status.baseline == {"count": pytest.approx(2.9)}
    text = table([status.as_dict()])
    assert "2 h 0 min" in text
    assert "2026-09-21" in text


@pytest.mark.parametrize("metrics", ["garbage {", "vllm:num_requests_running 1"])
def test_a_page_that_says_nothing_is_no_load(machine: FakeMachine, metrics: str) -> None:
    status = look(machine, Surroundings(now=0.0, metrics=metrics))
    assert (status.kv_use, status.requests) == (None, None)


def test_foreign_processes_are_named_once_per_host(machine: FakeMachine) -> None:
    row = look(machine, Surroundings(now=0.0, foreign=("python3 (process 9) on GPU-1",))).as_dict()
    assert table([row, {**row, "seat": "other"}]).count("no seat, but uses a card") == 1


def test_tenants_are_told_apart_by_their_control_group(tmp_path: Path) -> None:
    for pid, group in ((10, "/system.slice/vllm-seat-flash-next.service"), (11, "/user.slice/session-1.scope")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(f"0::{group}\n")
    text = "GPU-1, 10, /opt/vllm/bin/python, 90000\nGPU-1, 11, /usr/bin/python3, [N/A]\nno running processes found\n"
    found = parse_tenants(text, tmp_path)
    assert [tenant.seat for tenant in found] == ["flash-next", None]
    assert foreign(found) == [Tenant("GPU-1", 11, "/usr/bin/python3", None, "/user.slice/session-1.scope")]
    assert str(found[0]) == "python (process 10, 90,000 MiB) on GPU-1"


def test_what_the_kernel_says_of_this_very_process() -> None:
    started = started_at(os.getpid())
    assert started is not None
    assert started_at(2**30) is None
    written = float(subprocess.run(["date", "+%s"], capture_output=True, check=True).stdout)
    assert 0 <= written - started < 3600


def probe_report(at: str, verdict: str = "READY", level: str = "identity") -> dict[str, object]:
    return {
        "verdict": verdict, "level": level, "started_utc": at, "duration_s": 1.5,
        "cause": None if verdict == "READY" else "canary: <b>4</b>",
        "ready_s": None, "acceptance": {"count": {"al": 3.0}} if level == "acceptance" else {},
    }  # fmt: skip


def keep_history(machine: FakeMachine) -> None:
    kept = machine.paths.root / "var/lib/seatfleet/evidence" / SEAT
    kept.mkdir(parents=True)
    for minute, (verdict, level) in enumerate(
        [("READY", "acceptance"), ("READY", "identity"), ("CANARY", "identity"), ("BUSY", "identity")]
    ):
        report = probe_report(f"2026-11-29T20:{minute:02d}:00Z", verdict, level)
        (kept / f"20261129T20{minute:02d}00Z-{level}.json").write_text(json.dumps(report))
    (kept / "20261129T203000Z-identity.json").write_text("half a fi")


def test_history_is_the_latest_probes_and_leaves_out_what_cannot_be_read(machine: FakeMachine) -> None:
    keep_history(machine)
    kept = machine.paths.root / "var/lib/seatfleet/evidence" / SEAT
    assert [probe["verdict"] for probe in read_history(kept, 3)] == ["CANARY", "BUSY"]
    assert list(read_history(kept, 0)) == []


class Checker(HTMLParser):
    """Notes elements that are not closed in order, and anything that would be loaded from elsewhere."""

    VOID = frozenset({"meta", "rect", "line", "circle", "polyline"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.wrong += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "srcset")]
        self.wrong += [tag] if tag in ("script", "link", "iframe") else []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID and (not self.open or self.open.pop() != tag):
            self.wrong.append(f"/{tag}")


def test_the_page_is_whole_and_loads_nothing(machine: FakeMachine) -> None:
    keep_history(machine)
    status = look(machine, Surroundings(now=1_796_000_000.0, history=200, foreign=("<python3>",)))
    html = page([status.as_dict()])
    checker = Checker()
    checker.feed(html)
    assert checker.wrong == []
    assert checker.open == []
    assert "canary: &lt;b&gt;4&lt;/b&gt;" in html
    assert "&lt;python3&gt;" in html
    assert html.count("<figure>") == 3
    assert html.count('var(--bad)"') == 1, "one failed probe"


def test_a_page_of_no_seats_and_of_a_seat_without_probes(machine: FakeMachine) -> None:
    assert "0 of 0 seats READY" in page([])
    assert "No probes are on record" in page([look(machine).as_dict()])


def test_a_state_file_becomes_table_json_and_page(
    machine: FakeMachine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, drift, html = tmp_path / "status.json", tmp_path / "drift.json", tmp_path / "page.html"
    file.write_text(json.dumps([look(machine).as_dict()]))
    entries = [
        ("release", "0.32.0-0123456789ab"),
        ("alias", "gen-large"),
        ("alias", "of-another-seat"),
        ("seat", "other"),
    ]
    drift.write_text(
        json.dumps([{"host": "fv-ml1", "part": part, "what": what, "differs": "x"} for part, what in entries])
    )
    assert main(["status", str(file), "--drift", str(drift)]) == 0
    shown = capsys.readouterr().out
    assert "drift: alias gen-large: x" in shown
    assert "of-another-seat" not in shown
    assert re.search(r"\s2\s+\d{4}-\d\d-\d\d", shown), "two differences in the column DRIFT"
    assert main(["status", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["seat"] == SEAT
    assert main(["status", str(file), "--html", str(html)]) == 0
    assert html.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("content", ["{", "{}", "[1]", '[{"host": "a"}]'])
def test_another_file_is_refused_with_one_message(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "status.json"
    file.write_text(content)
    assert main(["status", str(file)]) == 2
    assert "expected JSON written by playbooks/status.yml" in capsys.readouterr().err


def test_what_a_host_exports_of_a_seat(machine: FakeMachine) -> None:
    machine.restarts, machine.drop_ins = 2, ()
    status = look(machine, Surroundings(now=1e9, started=1e9 - 100))
    found = samples("fv-ml1", [status], {}, now=1e9, memory=(4, 2), proof={}, proven_at=None)
    exported = parse(prometheus_text(found))
    assert exported.total("seatfleet_seat_running", seat=SEAT) == 1
    assert exported.total("seatfleet_seat_proven", seat=SEAT) == 1
    assert exported.total("seatfleet_seat_restarts_total", seat=SEAT) == 2
    assert exported.total("seatfleet_seat_started_timestamp_seconds") == 1e9 - 100
    assert exported.total("seatfleet_seat_ready_timeout_seconds") == 600
    assert exported.infos("seatfleet_seat_info")[0]["release"] == "0.32.0-0123456789ab"
    assert "seatfleet_seat_acceptance_minimum" not in exported
