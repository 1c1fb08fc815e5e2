"""Golden figures of the seed documents."""

from __future__ import annotations

import pytest

from seatfleet.campaign.amortization import amortization, amplification_sentence, break_even, experts_read, step_ms
from seatfleet.core.health.acceptance import Acceptance, contradictions


@pytest.mark.parametrize(
    ("lever", "spec_lever", "interval", "naive", "mechanistic", "measured", "label"),
    [
        (36.0, 59.0, (0.08, 0.12), 0.043, 0.069, 0.099, "under"),
        (30.4, 57.0, (0.05, 0.08), 0.012, 0.022, 0.061, "under"),
        (36.0, 57.4, (0.05, 0.09), 0.043, 0.069, 0.069, "consistent"),
        (36.0, 54.0, (-0.01, 0.02), 0.043, 0.069, 0.006, "over"),
    ],
)
def test_amortization_of_a_dense_lever(
    lever: float,
    spec_lever: float,
    interval: tuple[float, float],
    naive: float,
    mechanistic: float,
    measured: float,
    label: str,
):
    found = amortization(
        off_tok_s=28.2,
        off_lever_tok_s=lever,
        spec_tok_s=53.7,
        spec_lever_tok_s=spec_lever,
        acceptance_length=6.4,
        measured_interval=interval,
    )
    assert found.naive == pytest.approx(naive, abs=5e-4)
    assert found.mechanistic == pytest.approx(mechanistic, abs=5e-4)
    assert found.measured == pytest.approx(measured, abs=5e-4)
    assert found.label == label


def test_the_rule_of_thumb_is_the_identity_when_speculation_gives_no_speed_up():
    found = amortization(
        off_tok_s=30,
        off_lever_tok_s=30.03,
        spec_tok_s=30,
        spec_lever_tok_s=30.005,
        acceptance_length=6,
        measured_interval=(0, 1),
    )
    assert found.naive == pytest.approx(found.mechanistic, rel=2e-3)


def test_a_saving_longer_than_the_step_is_refused():
    with pytest.raises(ValueError, match="cannot come out of a step"):
        amortization(
            off_tok_s=10,
            off_lever_tok_s=20,
            spec_tok_s=100,
            spec_lever_tok_s=110,
            acceptance_length=1,
            measured_interval=(0, 1),
        )


@pytest.mark.parametrize(
    ("al", "tok_s", "expected"),
    [(1, 28.2, 35.5), (2.24, 33.7, 66.5), (2.77, 40.5, 68.4), (3.0, 43.7, 68.6), (2.88, 39.9, 72.2), (8.66, 81, 107)],
)
def test_step_times_of_the_seed(al: float, tok_s: float, expected: float):
    assert step_ms(al, tok_s) == pytest.approx(expected, abs=0.15)
    assert break_even(step_ms(al, tok_s), step_ms(1, 28.2)) == pytest.approx(expected / 35.46, abs=0.01)


def test_acceptance_length_counts_the_bonus_token():
    """The seed's "240 accepted / 36 drafts" is 7.67 tokens per step, not 6.67."""
    assert Acceptance(36, 36 * 12, 240, (36,) * 12).length == pytest.approx(7.67, abs=0.005)


@pytest.mark.parametrize(("k", "cap"), [(1, 2.0), (2, 3.0), (3, 4.0)])
def test_mtp_cannot_exceed_its_cap(k: int, cap: float):
    full = Acceptance(100, 100 * k, 100 * k, (100,) * k)
    assert full.length == cap and contradictions(full) == []
    assert contradictions(Acceptance(100, 100 * k, 100 * k + 1, (100,) * k))


def test_expert_reads_grow_with_the_positions_verified():
    assert experts_read(512, 10, 1) == pytest.approx(10)
    assert experts_read(512, 10, 4) == pytest.approx(38.8, abs=0.1)
    assert experts_read(4, 4, 9) == 4
    text = amplification_sentence(512, 10, 3, True)
    assert "3.9 times the expert weights" in text and "4 times the rows fetched over PCIe" in text
    assert "PCIe" not in amplification_sentence(512, 10, 1, False)
