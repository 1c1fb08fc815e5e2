"""What is left of a seat after its removal: its evidence, and what others use."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_machine import FakeMachine
from seat_examples import CPU, RELEASE, TINY, seat
from test_alias_plays import PLAYS, rendered, trusted

from seatfleet.core.paths import SeatPaths, measuring_units
from seatfleet.core.seat import stopped
from seatfleet.core.seat.removal import Stop, remove, stop
from seatfleet.core.seat.render import render
from seatfleet.core.seat.rollout import RolloutError, roll_out
from seatfleet.core.seat.staging import stage_host

SEAT, OTHER = "lab-oracle", "lab-dense"
KEYS = {SEAT: "sk-seat-1", OTHER: "sk-seat-2"}
WANTED = render(seat(SEAT), RELEASE, TINY, CPU)


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    for directory in ("etc/systemd/system", f"var/cache/vllm/{SEAT}/x", f"var/lib/seatfleet/evidence/{SEAT}"):
        (tmp_path / directory).mkdir(parents=True)
    for path in (RELEASE.path, TINY.path):
        (tmp_path / path.lstrip("/")).mkdir(parents=True)
    fake = FakeMachine(SeatPaths(SEAT, tmp_path))
    stage_host([WANTED], KEYS, check=False, root=tmp_path)
    roll_out(fake, [WANTED], KEYS, tmp_path)
    fake.calls.clear()
    return fake


def run(machine: FakeMachine, *, weights: bool = False, releases: bool = False, check: bool = False):
    return remove(machine, machine.paths, weights=weights, releases=releases, check=check)


def left(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if "systemd" not in path.parts}


def test_a_seat_goes_and_its_evidence_stays(machine: FakeMachine) -> None:
    root = machine.paths.root
    foreseen = run(machine, check=True)
    assert machine.process is not None
    machine.requests = [1, 0, 0]
    done = run(machine)
    assert (done.failure, done.drained_s, done.aborted, machine.process) == (None, 2.0, 0, None)
    assert done.removed == foreseen.removed
    assert not (
        machine.paths.home.exists() or machine.paths.unit.exists() or (root / f"var/cache/vllm/{SEAT}").exists()
    )
    assert {f"var/lib/seatfleet/evidence/{SEAT}", RELEASE.path[1:], TINY.path[1:]} <= left(root)
    assert run(machine).removed == ()


def test_weights_and_releases_only_when_asked_for_and_unused(machine: FakeMachine) -> None:
    root = machine.paths.root
    other = dataclasses.replace(WANTED, seat=OTHER)
    stage_host([other], KEYS, check=False, root=root)
    shared = run(machine, weights=True, releases=True, check=True)
    assert shared.kept == (RELEASE.path, TINY.path)
    (SeatPaths(OTHER, root).generation(other.name) / "manifest.json").unlink()
    assert run(machine, weights=True, releases=True).kept == ()
    assert not {RELEASE.path[1:], TINY.path[1:]} & left(root)


def test_a_seat_that_does_not_stop_is_left_whole(machine: FakeMachine) -> None:
    machine.immortal = True
    before = left(machine.paths.root)
    done = run(machine)
    assert done.failure is not None
    assert done.failure.startswith("nothing was removed: the seat does not stop")
    assert (done.removed, left(machine.paths.root)) == ((), before)


def test_the_rest_of_a_removal_that_was_killed_goes_too(machine: FakeMachine) -> None:
    machine.paths.unit.unlink()
    machine.process = None
    for path in machine.paths.generations.iterdir():
        (path / "manifest.json").unlink()
    assert run(machine).failure is None
    assert not machine.paths.home.exists()


def test_a_stopped_seat_is_whole_and_starts_at_boot(machine: FakeMachine) -> None:
    before = left(machine.paths.root)
    assert stop(machine, machine.paths, check=True) == Stop(SEAT, ran=True)
    assert machine.process is not None
    machine.requests = [1, 0, 0]
    assert stop(machine, machine.paths, check=False) == Stop(SEAT, ran=True, drained_s=2.0, aborted=0)
    added = {"run", "run/seatfleet-stopped", f"run/seatfleet-stopped/{SEAT}.json"}
    assert (machine.process, machine.enabled, left(machine.paths.root) - before) == (None, True, added)
    machine.calls.clear()
    assert stop(machine, machine.paths, check=False) == Stop(SEAT)
    assert machine.calls == []
    (outcome,) = roll_out(machine, [WANTED], KEYS, machine.paths.root)
    assert (outcome.failure, machine.process is not None) == (None, True)


@pytest.mark.parametrize("check", [False, True])
def test_a_seat_that_is_measured_is_left_to_its_campaign(machine: FakeMachine, check: bool) -> None:
    """It would read that nothing ran, and get a mark; then the campaign ends and starts the seat."""
    machine.measured = True
    before = list(machine.calls)
    done = stop(machine, machine.paths, check=check)
    assert str(done.failure).startswith("vllm-campaign-run-") and "measures it and starts it again" in str(done.failure)
    assert machine.calls == before and stopped.read(machine.paths.seat, machine.paths.root) is None


def test_the_units_that_measure_are_named_as_their_roles_name_them() -> None:
    roles = Path(__file__).resolve().parents[2] / "roles"
    texts = [(roles / name / "vars/main.yml").read_text() for name in ("campaign", "headroom")]
    written = [f'"{unit}"' for unit in measuring_units("@")]
    assert written[0].replace("@", "{{ campaign_seat }}") in texts[0]
    assert written[1].replace("@", "{{ headroom_seat }}") in texts[1]


def test_a_stop_that_does_not_work_says_so(machine: FakeMachine) -> None:
    machine.immortal = True
    failure = stop(machine, machine.paths, check=False).failure
    assert failure is not None
    assert failure.startswith("it was not stopped: the seat does not stop")
    assert stopped.read(SEAT, machine.paths.root) is None


def test_a_second_stop_does_not_forget_when_the_first_was(machine: FakeMachine) -> None:
    root = machine.paths.root
    stop(machine, machine.paths, check=True)
    assert stopped.read(SEAT, root) is None
    stop(machine, machine.paths, check=False, closed=["gen-large"])
    stopped.write(SEAT, stopped.Mark(7.0), root)
    stop(machine, machine.paths, check=False, closed=["gen-large"])
    assert stopped.read(SEAT, root) == stopped.Mark(7.0, ("gen-large",))
    # Started again in a way that removed no mark, and stopped again: another maintenance.
    machine.sub = "running"
    stop(machine, machine.paths, check=False)
    assert (stopped.read(SEAT, root) or stopped.Mark(0)).at > 1e9
    remove(machine, machine.paths, weights=False, releases=False, check=False)
    assert stopped.read(SEAT, root) is None


@contextlib.contextmanager
def somebody_starts(machine: FakeMachine, sub: str) -> Iterator[None]:
    """Hold the lock after a rollout that has started the seat, which removes its mark."""
    stopped.clear(SEAT, machine.paths.root)
    machine.sub, machine.locked = sub, True
    yield
    machine.locked = False


@pytest.mark.parametrize("before", ["running", "dead"])
def test_a_rollout_that_ends_first_does_not_take_the_mark_along(
    before: str, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red when it is written, or the seat looked at, before the lock: the seat was started again, or served on."""
    machine.sub = before
    monkeypatch.setattr(machine, "start_lock", lambda: somebody_starts(machine, "running"))
    done = stop(machine, machine.paths, check=False)
    assert (done.ran, done.failure, machine.process) == (True, None, None)
    assert stopped.read(SEAT, machine.paths.root) is not None


def test_a_restart_of_systemds_under_the_stop_does_not_take_the_mark_along(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    down = machine.stop

    def restarted(unit: str, timeout_s: float) -> None:
        stopped.clear(SEAT, machine.paths.root)
        down(unit, timeout_s)

    monkeypatch.setattr(machine, "stop", restarted)
    assert stop(machine, machine.paths, check=False).failure is None
    assert stopped.read(SEAT, machine.paths.root) is not None


def test_a_seat_that_is_out_stays_so_when_a_second_stop_does_not_get_the_lock(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop(machine, machine.paths, check=False)

    def locked() -> None:
        raise RolloutError("another start on this host")

    monkeypatch.setattr(machine, "start_lock", locked)
    assert stop(machine, machine.paths, check=False).failure == "it was not stopped: another start on this host"
    assert stopped.read(SEAT, machine.paths.root) is not None


def test_a_full_disk_keeps_no_seat_from_being_stopped(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    file = machine.paths.root / "var/lib/seatfleet/evidence/gateway.json"
    file.write_text(json.dumps({"cells": [{"alias": "gen-large"}]}))
    write = stopped.write_atomic

    def full(path: Path, *arguments: object) -> None:
        if path == file:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, *arguments)

    monkeypatch.setattr(stopped, "write_atomic", full)
    assert stop(machine, machine.paths, check=False, closed=["gen-large"]).failure is None
    assert machine.process is None
    monkeypatch.setattr(stopped, "write", lambda *_: full(file))
    failure = stop(machine, machine.paths, check=False).failure
    assert failure == "it was not stopped: [Errno 28] No space left on device"


def test_a_seat_that_had_failed_is_stopped_on_purpose_from_then_on(machine: FakeMachine) -> None:
    machine.process, machine.sub, machine.result = None, "failed", "timeout"
    assert stop(machine, machine.paths, check=False) == Stop(SEAT)
    assert stopped.read(SEAT, machine.paths.root) is not None
    assert machine.unit_state(machine.paths.unit.name).active == "inactive"


def test_proofs_of_closed_aliases_are_dropped_and_the_time_of_the_proof_is_kept(machine: FakeMachine) -> None:
    file = machine.paths.root / "var/lib/seatfleet/evidence/gateway.json"
    stop(machine, machine.paths, check=False, closed=["gen-large"])  # without any proof
    cells = [{"alias": alias, "key": "infra-ops", "ok": True} for alias in ("gen-large", "gen-small")]
    file.write_text(json.dumps({"format": 1, "cells": cells}))
    os.utime(file, (1_790_000_000, 1_790_000_000))
    stop(machine, machine.paths, check=False, closed=["gen-large"])
    assert json.loads(file.read_text()) == {"format": 1, "cells": cells[1:]}
    assert file.stat().st_mtime == 1_790_000_000
    file.write_text("half a fi")
    stop(machine, machine.paths, check=False, closed=["gen-large"])
    assert file.read_text() == "half a fi"


@pytest.mark.parametrize(
    ("found", "halves"),
    [
        ({"pair": None, "alone": None}, {"pair": "b"}),  # a run that ended between the two hosts
        ({"pair": "c", "alone": None}, {"pair": "c"}),  # declared anew since
        ({"pair": "b", "alone": "d"}, {"pair": "b", "alone": "d"}),  # no longer declared over two
    ],
)
def test_the_other_half_goes_also_after_a_run_that_ended_before_it(
    found: dict[str, str | None], halves: dict[str, str]
) -> None:
    (play,) = PLAYS["remove"]
    (task,) = (task for task in play["tasks"] if "halves" in task["name"])
    nodes = {"hosts": [{"host": "a"}, {"host": "b"}]}
    variables = trusted({**play["vars"], **task["vars"]}) | {
        "seats": {"pair": {"nodes": nodes, "state": "absent"}, "alone": {"state": "absent"}, "kept": {"nodes": nodes}},
        "fleet_seats_absent": ["pair", "alone"],
        "__remove_done": {"seats": [{"seat": seat, "follower": host} for seat, host in found.items()]},
    }
    items = rendered(task["loop"], variables)
    shown = [
        tuple(
            rendered(text, {"item": item})
            for text in (*task["seatfleet.fleet.seat_remove"]["seats"], task["delegate_to"])
        )
        for item in items
    ]
    assert dict(shown) == halves
