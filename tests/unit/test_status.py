"""A row of the status table for a seat that systemd gave up."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_machine import FakeMachine
from seat_examples import CPU, RELEASE, TINY, seat

from seatfleet.core.paths import SeatPaths
from seatfleet.core.render import render
from seatfleet.core.rollout import roll_out
from seatfleet.core.sockets import Owner
from seatfleet.core.staging import stage_host
from seatfleet.core.status import seat_status, table

SEAT = "lab-oracle"
KEYS = {SEAT: "sk-seat-1"}


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    fake = FakeMachine(SeatPaths(SEAT, tmp_path))
    wanted = render(seat(SEAT), RELEASE, TINY, CPU)
    stage_host([wanted], KEYS, check=False, root=tmp_path)
    roll_out(fake, [wanted], KEYS, tmp_path)
    return fake


def notes(machine: FakeMachine) -> tuple[str, ...]:
    return seat_status(machine, machine.paths, "fv-ml1", managed=True, aliases=["gen-large"], cells=[]).notes


def test_a_seat_that_serves_has_no_notes(machine: FakeMachine) -> None:
    assert notes(machine) == ()


def test_a_seat_that_was_given_up_says_what_answers_for_it(machine: FakeMachine) -> None:
    machine.process, machine.sub, machine.result = None, "failed", "start-limit-hit"
    machine.strangers = [Owner(7, "seatctl", "/system.slice/x.slice/seatfleet-stub@8022.service")]
    status = seat_status(machine, machine.paths, "fv-ml1", managed=True, aliases=["gen-large"], cells=[])
    assert status.notes == (
        "systemd gave it up; its port answers 503 with Retry-After: see its journal, then run site.yml",
    )
    assert "failed (start-limit-hit, status 1)" in table([status.as_dict()])


def test_somebody_else_on_the_port_is_named_as_such(machine: FakeMachine) -> None:
    machine.strangers = [Owner(7, "python3", "/user.slice")]
    assert notes(machine) == ("process 7 listens on the seat's port and is not the seat",)
