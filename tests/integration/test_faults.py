"""Four cells of the fault table, one per fault, asserted; tests/integration/faults.py runs and writes all of it."""

from __future__ import annotations

import faults
import pytest
from labrun import Lab
from seatlife import HOST


def test_the_page_says_what_was_seen() -> None:
    assert faults.PAGE.read_text() == faults.page(faults.load(faults.RESULTS))


@pytest.mark.parametrize("cell", faults.QUICK)
def test_the_next_run_converges(lab: Lab, cell: str) -> None:
    outcome = faults.run_cell(lab, *cell.split(":"))
    assert outcome.converged, outcome
    assert outcome.acceptable, outcome


def test_the_fleet_is_as_the_repository_says_again(lab: Lab) -> None:
    lab.site("-l", HOST)
    assert lab.site("--check", "-l", HOST).changed == {HOST: 0}
