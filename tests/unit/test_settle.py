"""What a rollout that was killed left behind, and who starts the seat again."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from seatfleet.commands import settle
from seatfleet.core.host import guard, machine
from seatfleet.core.host.processes import UnitState
from seatfleet.core.paths import SeatPaths
from seatfleet.core.seat import generations, stopped
from seatfleet.core.seat.rollout import RolloutError

SEAT = "flash-next"
UNIT = f"vllm-seat-{SEAT}.service"
STOPPED = UnitState(UNIT, "loaded", "inactive", "dead", "success", 0, 0, f"/system.slice/{UNIT}", True, False, (), 0)
RUNNING = UnitState(UNIT, "loaded", "active", "running", "success", 7, 0, f"/system.slice/{UNIT}", True, False, (), 0)


class Host:
    """Stands in for the machine: one unit, and a lock that must be free again when the unit is started."""

    def __init__(self, state: UnitState, starts: bool = True) -> None:
        self.calls: list[str] = []
        self._state, self._starts, self._locked = state, starts, False

    @contextlib.contextmanager
    def start_lock(self) -> Iterator[None]:
        self.calls.append("lock")
        self._locked = True
        yield
        self._locked = False

    def unit_state(self, unit: str) -> UnitState:
        assert unit == UNIT and self._locked, "a rollout may be under way"
        return self._state

    def start(self, unit: str) -> None:
        assert not self._locked, "seatctl settle would take it for a start that a rollout watches"
        self.calls.append("start")
        if not self._starts:
            raise RolloutError("it does not start")


def after_rollout(host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, killed_by_guard: bool = False) -> int:
    marker = tmp_path / "marker"
    if killed_by_guard:
        marker.touch()
    monkeypatch.setattr(guard, "marker", lambda seat: marker)
    monkeypatch.setattr(stopped, "STOPPED", str(tmp_path / "stopped"))
    monkeypatch.setattr(machine, "LocalMachine", lambda lock_timeout_s: host)
    return settle.run(argparse.Namespace(seat=SEAT, after_rollout=True))


def test_a_seat_that_was_left_stopped_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    host = Host(STOPPED)
    assert after_rollout(host, monkeypatch, tmp_path) == 0
    assert host.calls == ["lock", "start"]


@pytest.mark.parametrize(("state", "killed_by_guard"), [(RUNNING, False), (STOPPED, True)])
def test_others_are_left_alone(
    state: UnitState, killed_by_guard: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    host = Host(state)
    assert after_rollout(host, monkeypatch, tmp_path, killed_by_guard) == 0
    assert host.calls == ["lock"]


def test_a_seat_that_an_operator_stopped_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stopped, "STOPPED", str(tmp_path / "stopped"))
    stopped.write(SEAT, stopped.Mark(1.0))
    host = Host(STOPPED)
    assert after_rollout(host, monkeypatch, tmp_path) == 0
    assert host.calls == ["lock"]


def test_a_start_of_any_kind_ends_a_maintenance(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stopped, "STOPPED", str(tmp_path / "stopped"))
    monkeypatch.setattr(guard, "GUARDED", str(tmp_path / "guarded"))
    monkeypatch.setattr(machine, "_systemctl", lambda *_, **__: "")
    stopped.write(SEAT, stopped.Mark(1.0))
    machine.LocalMachine().start(UNIT)
    assert stopped.read(SEAT) is None


def test_a_start_by_hand_ends_a_maintenance(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Red without it: a later rollout that was killed left the seat stopped, and no alert said so."""
    monkeypatch.setattr(stopped, "STOPPED", str(tmp_path / "stopped"))
    monkeypatch.setattr(machine.LocalMachine, "start_under_way", lambda _: True)
    stopped.write(SEAT, stopped.Mark(1.0))
    assert settle.run(argparse.Namespace(seat=SEAT, after_rollout=False)) == 0
    assert stopped.read(SEAT) is None
    monkeypatch.setattr(stopped, "STOPPED", "/proc/version")
    assert settle.run(argparse.Namespace(seat=SEAT, after_rollout=False)) == 0, "a start is never prevented"


def test_a_full_disk_prevents_no_start(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(paths: SeatPaths) -> str | None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(machine.LocalMachine, "start_under_way", lambda _: False)
    monkeypatch.setattr(generations, "settle", full)
    assert settle.run(argparse.Namespace(seat=SEAT, after_rollout=False)) == 0
    assert "No space left on device" in capsys.readouterr().err


def test_a_start_that_fails_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert after_rollout(Host(STOPPED, starts=False), monkeypatch, tmp_path) == 1
    assert "it does not start" in capsys.readouterr().err
