"""The rules that decide, on generated campaigns: what they get wrong, how often, and what they can find.

Sizes are chosen for seconds, bounds for a false alarm of the test below 1 in 10,000; ``bench/campaign_statistics.py``
runs the same simulation with 20 times as many campaigns.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from seatfleet.campaign.schedule import boot_order
from seatfleet.campaign.simulation import Scenario, campaigns, coverage, false_verdicts, seed_rule_rate, verdict_rates
from seatfleet.campaign.verdicts import Verdict

CAMPAIGNS = 600


def at_most(rate: float, n: int) -> float:
    """Upper bound of a rate that a true rate of ``rate`` exceeds once in 10,000."""
    return rate + 3.72 * math.sqrt(rate * (1 - rate) / n)


@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(),
        Scenario(control_sd=0.03),
        Scenario(studied_sd=0.03),
        Scenario(drift=0.05),
        Scenario(mode="confirm"),
        Scenario(arms=("k1",), studied_sd=0.03),
    ],
    ids=["equal noise", "noisy control", "noisy arms", "drifting machine", "confirm", "one noisy arm"],
)
def test_on_pure_noise_a_family_has_a_false_verdict_in_at_most_5_percent(scenario: Scenario):
    assert false_verdicts(scenario, CAMPAIGNS, seed=1) <= at_most(0.05, CAMPAIGNS)


def test_the_rule_of_the_seed_fires_on_noise_in_45_percent_of_cells():
    exact = 1 - 2 / math.pi * math.atan(math.sqrt(2) / math.sqrt(1.5))
    cells, families = seed_rule_rate(20_000, seed=2)
    assert exact == pytest.approx(0.454, abs=0.001)
    assert cells == pytest.approx(exact, abs=0.015)
    assert families == pytest.approx(0.68, abs=0.02)


@pytest.mark.parametrize(("control_sd", "studied_sd"), [(0.01, 0.01), (0.03, 0.01), (0.01, 0.03)])
def test_intervals_cover_the_truth_also_with_unequal_noise(control_sd: float, studied_sd: float):
    scenario = Scenario(control_sd=control_sd, studied_sd=studied_sd, effect=0.05)
    covered = coverage(scenario, CAMPAIGNS, seed=3)
    slack = 3.72 * math.sqrt(0.95 * 0.05 / (3 * CAMPAIGNS))
    assert 0.92 - slack <= covered <= 0.97 + slack


def test_an_effect_as_large_as_the_floor_is_found_about_half_the_time_and_mde_about_80_percent():
    """One comparison, no family: the columns floor and MDE80 of the power table, 9 boots of 1 % noise."""
    rates = {
        effect: verdict_rates(Scenario(effect=effect, cells=1, family=1), CAMPAIGNS, seed=4)[Verdict.WIN]
        for effect in (0.0, 0.0235, 0.032, 0.08)
    }
    # below the pooled figures of the table: Welch's test pays for not trusting equal noise
    assert rates[0.0] <= at_most(0.05, CAMPAIGNS)
    assert 0.30 <= rates[0.0235] <= 0.55
    assert 0.55 <= rates[0.032] <= 0.82
    assert rates[0.08] >= 0.95


def test_equivalence_is_rarely_claimed_of_an_effect_as_large_as_the_margin():
    rates = verdict_rates(
        Scenario(effect=math.log1p(0.03), control_sd=0.004, studied_sd=0.004, cells=1, family=1), CAMPAIGNS, seed=5
    )
    assert rates[Verdict.EQUIVALENT] <= at_most(0.05, CAMPAIGNS)
    quiet = verdict_rates(Scenario(control_sd=0.004, studied_sd=0.004, cells=1, family=1), CAMPAIGNS, seed=6)
    assert quiet[Verdict.EQUIVALENT] >= 0.9


def test_a_screen_emits_no_verdict_whatever_the_data():
    rates = verdict_rates(Scenario(mode="screen", effect=0.5), 100, seed=7)
    assert (
        rates[Verdict.SCREEN_CANDIDATE] + rates[Verdict.CANNOT_RESOLVE] == 1 and rates[Verdict.SCREEN_CANDIDATE] > 0.5
    )


def test_generated_campaigns_have_the_order_and_the_drift_they_should():
    scenario = Scenario(control_sd=0.0, studied_sd=0.0, drift=0.08)
    found = next(iter(campaigns(scenario, 1, seed=0)))[0]
    assert [boot.arm for boot in found.boots] == list(boot_order("off", scenario.arms, "palindrome"))
    assert [boot.value for boot in found.boots] == pytest.approx([0.01 * i for i in range(9)])


def test_random_numbers_depend_on_the_seed_only():
    one, same, other = (
        [b.value for q in next(iter(campaigns(Scenario(), 1, seed=s))) for b in q.boots] for s in (1, 1, 2)
    )
    assert one == same != other and np.std(one) > 0
