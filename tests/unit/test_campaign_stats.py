from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats
from statsmodels.stats.multitest import multipletests

from seatfleet.campaign import stats
from seatfleet.campaign.stats import Boot, Estimate, NotEstimable, design_power, estimate
from seatfleet.campaign.verdicts import NOT_ALONE, Question, Verdict, decide, invisible, relative

RNG = np.random.default_rng(7)


def boots(**values: list[float]) -> list[Boot]:
    return [Boot(arm, value, arm == "off") for arm, numbers in values.items() for value in numbers]


K1 = {"k1": 1.0, "off": -1.0}


@pytest.mark.parametrize(("off", "arm"), [(3, 2), (4, 3), (5, 9)])
def test_two_arms_are_welchs_test(off: int, arm: int):
    a, b = RNG.normal(0, 1, off), RNG.normal(1, 3, arm)
    found = estimate(boots(off=list(a), k1=list(b)), K1)
    reference = scipy_stats.ttest_ind(b, a, equal_var=False)
    assert found.difference == pytest.approx(b.mean() - a.mean())
    assert found.difference / found.se == pytest.approx(reference.statistic)
    assert found.df == math.floor(reference.df)  # rounded down: see the module's docstring


def test_the_variance_of_the_studied_arms_is_pooled_over_them():
    data = {"off": [0.0, 1.0, 2.0], "k1": [3.0, 5.0], "k2": [10.0, 14.0]}
    found = estimate(boots(**data), K1)
    off, pooled = 1.0, (2.0 + 8.0) / 2
    assert found.se**2 == pytest.approx(off / 3 + pooled / 2)
    df = (off / 3 + pooled / 2) ** 2 / ((off / 3) ** 2 / 2 + (pooled / 2) ** 2 / 2)
    assert found.df == math.floor(df) and not found.borrowed


def test_an_interaction_uses_all_four_arms():
    data = {"off": [1.0, 1.2, 0.9], "k1": [2.0, 2.1], "off-res": [1.5, 1.4], "k1-res": [3.5, 3.7]}
    found = estimate(boots(**data), {"k1-res": 1, "off-res": -1, "k1": -1, "off": 1})
    means = {arm: sum(v) / len(v) for arm, v in data.items()}
    assert found.difference == pytest.approx(means["k1-res"] - means["off-res"] - means["k1"] + means["off"])


def test_a_step_between_two_blocks_is_taken_out():
    order = ["off", "k1", "k1", "off", "off", "k1", "k1", "off"]
    noise = RNG.normal(0, 0.01, len(order))
    clean = [
        Boot(arm, float(n) + (0.1 if arm == "k1" else 0), arm == "off") for arm, n in zip(order, noise, strict=True)
    ]
    jumped = [Boot(b.arm, b.value + (5.0 if i >= 4 else 0), b.control, int(i >= 4)) for i, b in enumerate(clean)]
    assert estimate(jumped, K1).difference == pytest.approx(estimate(clean, K1).difference, abs=1e-9)
    assert estimate(jumped, K1).se < 0.02
    ignored = [Boot(b.arm, b.value, b.control) for b in jumped]
    assert estimate(ignored, K1).se > 1


def test_an_arm_measured_on_one_side_of_a_pause_only_is_not_estimable():
    split = [Boot("off", 0.0, True, 0), Boot("off", 0.1, True, 0), Boot("k1", 1.0, False, 1), Boot("k1", 1.1, False, 1)]
    with pytest.raises(NotEstimable, match="one side of a pause"):
        estimate(split, K1)


@pytest.mark.parametrize(
    ("data", "message"),
    [({"off": [1.0, 2.0]}, "no boot of k1"), ({"off": [1.0], "k1": [2.0]}, "noise between boots")],
)
def test_what_cannot_be_estimated_says_why(data: dict[str, list[float]], message: str):
    with pytest.raises(NotEstimable, match=message):
        estimate(boots(**data), K1)


def test_boots_without_any_noise_give_a_certain_answer_and_no_division_by_zero():
    same = estimate(boots(off=[1.0] * 3, k1=[1.0] * 2), K1)
    other = estimate(boots(off=[1.0] * 3, k1=[2.0] * 2), K1)
    assert (same.se, same.p, other.p) == (0, 1, 0)


def test_the_screen_has_the_floor_of_one_degree_of_freedom():
    """One boot per arm, two of the control: 11.0 times |off_A - off_B|, not one time as in the seed."""
    found = estimate(boots(off=[0.0, 0.01], k1=[0.05], k2=[0.0], k3=[0.0]), K1)
    assert found.borrowed and found.df == 1
    assert found.floor / 0.01 == pytest.approx(11.0, abs=0.01)


@pytest.mark.parametrize(
    ("off", "arm", "boots_", "df", "floor", "mde"),
    [
        (2, 1, 5, 1, 15.6, 17.3),
        (3, 1, 6, 2, 4.97, 6.2),
        (2, 2, 8, 4, 2.78, 3.7),
        (3, 2, 9, 5, 2.35, 3.2),
        (3, 3, 12, 8, 1.88, 2.6),
        (4, 3, 13, 9, 1.73, 2.4),
    ],
)
def test_power_table(off: int, arm: int, boots_: int, df: int, floor: float, mde: float):
    power = design_power(off, arm, 3)
    assert (power.boots, power.df) == (boots_, df)
    assert power.floor == pytest.approx(floor, rel=0.005) and power.mde80 == pytest.approx(mde, abs=0.06)


def test_permutation_cannot_decide_with_so_few_boots():
    assert stats.smallest_permutation_p(3, 2) == 0.2


def test_holm_and_the_confidence_it_compares_at():
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert stats.holm([]) == []
    for size in range(1, 9):
        p_values = [float(p) for p in RNG.uniform(0, 0.3, size)]
        assert stats.holm(p_values) == pytest.approx(list(multipletests(p_values, method="holm")[1]))
    assert stats.holm_confidences([0.01, 0.04, 0.03]) == pytest.approx([1 - 0.05 / 3, 0.95, 0.975])


def test_variance_components_find_where_the_noise_is():
    def simulate(boot_sd: float, rep_sd: float) -> stats.Components:
        rng = np.random.default_rng(1)
        data = {
            arm: [[float(rng.normal(shift, rep_sd)) for _ in range(4)] for shift in rng.normal(0, boot_sd, 30)]
            for arm in ("off", "k1")
        }
        found = stats.variance_components(data)
        assert found is not None
        return found

    noisy_boots, noisy_reps = simulate(0.05, 0.01), simulate(0.001, 0.05)
    assert noisy_boots.boot == pytest.approx(0.05**2, rel=0.5) and noisy_boots.repetition == pytest.approx(
        0.01**2, rel=0.3
    )
    assert noisy_boots.advice == "more boots" and noisy_reps.advice == "more repetitions per boot"
    assert stats.repetitions(noisy_boots, 60, 600) == 1 < stats.repetitions(noisy_reps, 60, 600)
    assert stats.variance_components({"off": [[1.0], [2.0]]}) is None


def test_a_control_boot_unlike_the_others_is_found_and_a_quiet_campaign_is_left_alone():
    def adjusted(off: list[float]) -> list[float]:
        found = stats.outlying_boots(boots(off=off, k1=[0.1, 0.11], k2=[0.2, 0.19], k3=[0.3, 0.31]))
        return stats.holm([distance.p for distance in found])

    assert min(adjusted([0.0, 0.01, -0.01])) > 0.05
    assert min(adjusted([0.3, 0.01, -0.01])) == adjusted([0.3, 0.01, -0.01])[0] < 0.001
    odd = stats.outlying_boots(boots(off=[0.3, 0.0, 0.02], k1=[0.1, 0.11]))
    assert odd[0].difference == pytest.approx(0.3 - 0.01)
    assert [d.p for d in stats.outlying_boots(boots(off=[1.0] * 3, k1=[2.0] * 2))] == [1.0] * 3
    assert len(stats.outlying_boots(boots(off=[1.0, 1.1, 1.2], k1=[2.0]))) == 3
    with pytest.raises(NotEstimable):
        stats.outlying_boots(boots(off=[1.0, 1.1], k1=[2.0]))


@pytest.mark.parametrize(("drift", "seen"), [(0.0, False), (0.08, True), (-0.08, True)])
def test_a_drift_over_the_campaign_is_seen(drift: float, seen: bool):
    order = ["off", "k1", "k2", "k3", "off", "k3", "k2", "k1", "off"]
    rng = np.random.default_rng(3)
    data = [Boot(a, float(rng.normal(0, 0.01)) + drift * i / 8, a == "off") for i, a in enumerate(order)]
    found = stats.drift(data, list(range(9)), 3, 2)
    assert (found.p < 0.025 and abs(found.total) > found.floor) is seen
    assert found.total == pytest.approx(drift, abs=0.03)
    with pytest.raises(NotEstimable):
        stats.drift(data[:4], [0, 1, 2, 3], 3, 2)


def test_a_step_between_two_blocks_is_no_drift():
    """The comparisons take it out; counted as a drift it took every verdict after a pause or a reboot."""
    order = ["off", "k1", "k2", "k3", "off", "off", "k3", "k2", "k1", "off"]
    rng = np.random.default_rng(5)
    noise = [float(rng.normal(0, 0.003)) for _ in order]

    def measured(step: float, slope: float) -> stats.Drift:
        data = [
            Boot(arm, noise[i] + step * (i >= 5) + slope * i / 9, arm == "off", int(i >= 5))
            for i, arm in enumerate(order)
        ]
        return stats.drift(data, list(range(10)), 4, 2)

    pure = measured(0.06, 0.0)
    assert pure.total == pytest.approx(measured(0.0, 0.0).total, abs=1e-9) and abs(pure.total) < 0.02
    assert pure.p == pytest.approx(measured(0.0, 0.0).p)
    assert measured(0.06, 0.10).p < 0.025 and measured(0.06, 0.10).total == pytest.approx(0.10, abs=0.03)
    one_each = [Boot("off", 1.0, True, 0), Boot("off", 1.1, True, 1), Boot("off", 1.2, True, 2)]
    with pytest.raises(NotEstimable):
        stats.drift(one_each, [0, 1, 2], 3, 1)


# --- verdicts ---------------------------------------------------------------------------------------------------------


def question(arm: list[float], off: list[float] | None = None, **changes: object) -> Question:
    values: dict[str, object] = {
        "contrast": "k1-vs-off",
        "weights": K1,
        "metric": "aggregate_output_tok_s",
        "shape": "tool",
        "concurrency": 1,
        "primary": True,
        "boots": tuple(boots(off=off or [0.0, 0.01, -0.01], k1=arm)),
    }
    return Question(**{**values, **changes})


@pytest.mark.parametrize(
    ("arm", "changes", "verdict"),
    [
        ([0.20, 0.21], {}, Verdict.WIN),
        ([-0.20, -0.21], {}, Verdict.LOSS),
        ([0.20, 0.21], {"metric": "ttft_ms"}, Verdict.LOSS),
        ([-0.20, -0.21], {"metric": "tpot_ms"}, Verdict.WIN),
        ([0.020, 0.030], {}, Verdict.CANNOT_RESOLVE),
        ([0.001, -0.001], {"off": [0.0, 0.001, -0.001]}, Verdict.EQUIVALENT),
        ([0.20], {}, Verdict.VOID),
        ([0.20, 0.21], {"void": "V1 no drafts"}, Verdict.VOID),
    ],
)
def test_verdicts(arm: list[float], changes: dict[str, object], verdict: Verdict):
    (finding,) = decide([question(arm, **changes)], mode="palindrome", margin=0.03)
    assert finding.verdict is verdict
    if changes.get("void"):
        assert finding.reason == "V1 no drafts" and finding.effect is None
    elif len(arm) == 1:
        assert "k1 has 1 valid of at least 2" in finding.reason


def test_a_small_certain_win_says_that_it_is_small():
    (finding,) = decide([question([0.020, 0.0201], [0.0, 0.0001, -0.0001])], mode="palindrome", margin=0.03)
    assert finding.verdict is Verdict.WIN and "smaller than the declared margin" in finding.reason


def test_the_screen_never_decides():
    far, near = question([5.0]), question([0.02])
    found = decide([far, near], mode="screen", margin=0.03)
    assert [f.verdict for f in found] == [Verdict.SCREEN_CANDIDATE, Verdict.CANNOT_RESOLVE]
    assert "boot it again" in found[0].reason


def test_a_failed_global_control_takes_every_verdict_but_leaves_the_estimates():
    found = decide(
        [question([0.2, 0.21]), question([0.2], void="V1")], mode="palindrome", margin=0.03, no_verdict="GC2 drift"
    )
    assert {f.verdict for f in found} == {Verdict.NO_VERDICT} and {f.reason for f in found} == {"GC2 drift"}
    assert found[0].effect == pytest.approx(relative(0.205), abs=1e-6) and found[1].effect is None


def test_holm_runs_over_the_declared_family_and_nothing_else():
    marginal = [0.045, 0.047]
    one = decide([question(marginal)], mode="palindrome", margin=0.03)[0]
    family = decide(
        [question(marginal), *[question([0.0, 0.001], concurrency=c) for c in (2, 3, 4)]],
        mode="palindrome",
        margin=0.03,
    )
    exploratory = [question([0.0, 0.001], concurrency=c, primary=False) for c in (2, 3, 4)]
    beside = decide([question(marginal), *exploratory], mode="palindrome", margin=0.03)[0]
    assert one.verdict is Verdict.WIN is beside.verdict
    # the reader sees an effect above its floor: the reason must not be the floor
    assert abs(family[0].effect) > family[0].floor and NOT_ALONE in family[0].reason
    assert NOT_ALONE not in family[1].reason
    assert family[0].verdict is Verdict.CANNOT_RESOLVE and family[0].p_adjusted == pytest.approx(4 * one.p)


def test_an_interval_at_holms_level_agrees_with_the_verdict():
    questions = [question([0.06 + d, 0.061 + d], concurrency=i + 1) for i, d in enumerate((0, 0.05, 0.2))]
    for finding in decide(questions, mode="palindrome", margin=0.03):
        low, high = finding.interval_adjusted
        assert (finding.verdict is Verdict.WIN) == (low > 0)
        assert low <= finding.interval[0] <= finding.effect <= finding.interval[1] <= high


@pytest.mark.parametrize(
    ("floor", "words"),
    [
        (0.024, "effects below 2.4% are invisible"),
        (1.316, "effects between -56.8% and +131.6% are invisible"),
        (762590443867103428.0, "effects between -100.0% and over +1,000% are invisible"),
    ],
)
def test_a_large_floor_has_two_ends(floor: float, words: str):
    """-60 % is beyond a floor of +131.6 %: the inverse of 2.316 is 0.43."""
    assert invisible(floor) == words


def test_estimates_know_their_power():
    found = Estimate(0.0, 1.0, 5, False)
    assert found.floor == pytest.approx(2.571, abs=1e-3) and found.mde80 == pytest.approx(3.490, abs=1e-3)
