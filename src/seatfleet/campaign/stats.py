"""The statistics of a campaign. Unit: one boot. Scale: natural logarithm of the metric, so that effects are ratios.

One linear model (arm means, plus a term per block after a pause) with a variance of its own for the control boots and
one for all other boots: speculative arms are noisier at low concurrency (vllm #53436: CV 9.85 % at c=1, 0.39 % at c=8).
Without blocks this *is* Welch's test with Satterthwaite's degrees of freedom, rounded down: unrounded, the family error
reached 8.4 % with one noisy arm in simulation; rounded down it stays below 5 % (``bench/campaign_statistics.py``).

Never a bootstrap for decisions: its 95 % interval covers 55 to 83 % with this many boots.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

Vector = NDArray[np.float64]

CONFIDENCE = 0.95
EQUIVALENCE_CONFIDENCE = 0.90  # two one-sided tests at 5 %
POWER = 0.80


class NotEstimable(ValueError):
    """The boots at hand cannot answer: an arm or every source of variance is missing."""


@lru_cache(maxsize=4096)
def _student(df: int, probability: float) -> float:
    return float(stdtrit(df, probability))


@dataclass(frozen=True)
class Boot:
    """One boot's value in one cell: ``value`` is ln(metric), ``control`` chooses the group of its variance."""

    arm: str
    value: float
    control: bool
    block: int = 0


@dataclass(frozen=True)
class Estimate:
    """A contrast on the log scale. ``borrowed`` is true when an arm has no spread of its own (one boot per arm)."""

    difference: float
    se: float
    df: int
    borrowed: bool

    def quantile(self, confidence: float) -> float:
        """Return Student's two-sided quantile."""
        return _student(self.df, 0.5 + confidence / 2)

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Return the confidence interval."""
        half = self.quantile(confidence) * self.se
        return self.difference - half, self.difference + half

    @property
    def floor(self) -> float:
        """The smallest effect that these boots can tell from none."""
        return self.quantile(CONFIDENCE) * self.se

    @property
    def mde80(self) -> float:
        """The effect that would be found in 80 % of such campaigns."""
        return (self.quantile(CONFIDENCE) + _student(self.df, POWER)) * self.se

    @property
    def p(self) -> float:
        """Two-sided p-value against no effect."""
        if self.se == 0:
            return 0.0 if abs(self.difference) > 1e-12 else 1.0
        return float(2 * stdtr(self.df, -abs(self.difference) / self.se))


@dataclass(frozen=True)
class _Design:
    """What does not depend on the measured values: one design serves every cell of a campaign."""

    arms: tuple[str, ...]
    x: Vector
    pinv: Vector
    residual: Vector
    leverage: Vector


@lru_cache(maxsize=512)
def _design(arms_of_boots: tuple[str, ...], blocks: tuple[int, ...]) -> _Design:
    arms = tuple(sorted(set(arms_of_boots)))
    levels = sorted(set(blocks))[1:]
    columns = [[float(arm == name) for arm in arms_of_boots] for name in arms]
    columns += [[float(block == level) for block in blocks] for level in levels]
    x = np.array(columns, dtype=np.float64).T
    pinv: Vector = np.asarray(np.linalg.pinv(x), dtype=np.float64)
    hat = x @ pinv
    return _Design(arms, x, pinv, np.eye(len(blocks)) - hat, np.asarray(np.diag(hat), dtype=np.float64))


@dataclass(frozen=True)
class _Contrast:
    """How a contrast weighs the boots. ``groups`` pools boots of one variance: (members, sum of squares, freedom)."""

    influence: Vector
    residual: Vector
    groups: tuple[tuple[Vector, float, float], ...]
    borrowed: bool


@lru_cache(maxsize=4096)
def _contrast(
    arms_of_boots: tuple[str, ...],
    blocks: tuple[int, ...],
    control: tuple[bool, ...],
    weights: tuple[tuple[str, float], ...],
) -> _Contrast:
    design = _design(arms_of_boots, blocks)
    missing = sorted(arm for arm, weight in weights if weight and arm not in design.arms)
    if missing:
        raise NotEstimable(f"no boot of {', '.join(missing)}")
    by_arm = dict(weights)
    wanted = np.array([by_arm.get(arm, 0.0) for arm in design.arms] + [0.0] * (design.x.shape[1] - len(design.arms)))
    influence = wanted @ design.pinv
    if float(np.abs(influence @ design.x - wanted).max()) > 1e-9:
        raise NotEstimable("an arm was measured on one side of a pause only; it cannot be told from the pause")
    members = np.array(control, dtype=np.float64)
    groups = []
    for group in (members, 1 - members):
        weight = float((group * influence**2).sum())
        if weight > 1e-12:
            groups.append((group, weight, float((group * (1 - design.leverage)).sum())))
    borrowed = any(freedom <= 1e-9 for _, _, freedom in groups)
    if borrowed:  # a group without repetition has no variance of its own
        everybody = np.ones(len(blocks))
        groups = [(everybody, float((influence**2).sum()), float((1 - design.leverage).sum()))]
        if groups[0][2] <= 1e-9:
            raise NotEstimable("no arm was booted twice, so nothing is known about the noise between boots")
    return _Contrast(influence, design.residual, tuple(groups), borrowed)


def _squares(residual: Vector, values: Vector) -> Vector:
    """Return squared residuals, rounding errors taken as none: equal boots must not look like a tiny spread."""
    squares = np.asarray((residual @ values) ** 2, dtype=np.float64)
    return np.where(squares > (1e-12 * max(1.0, float(np.abs(values).max()))) ** 2, squares, 0.0)


def estimate(boots: Sequence[Boot], weights: Mapping[str, float]) -> Estimate:
    """Return the contrast of arm means with these weights.

    Raises:
        NotEstimable: an arm has no boot, blocks and arms cannot be told apart, or nothing was repeated.
    """
    contrast = _contrast(
        tuple(boot.arm for boot in boots),
        tuple(boot.block for boot in boots),
        tuple(boot.control for boot in boots),
        tuple(sorted(weights.items())),
    )
    values = np.array([boot.value for boot in boots])
    squares = _squares(contrast.residual, values)
    parts = [(float((group * squares).sum()) / freedom * weight, freedom) for group, weight, freedom in contrast.groups]
    total = sum(part for part, _ in parts)
    difference = float(contrast.influence @ values)
    if total <= 0:
        return Estimate(difference, 0.0, max(1, int(sum(freedom for _, freedom in parts))), contrast.borrowed)
    df = total**2 / sum(part**2 / freedom for part, freedom in parts)
    return Estimate(difference, math.sqrt(total), max(1, math.floor(df + 1e-9)), contrast.borrowed)


@dataclass(frozen=True)
class Equivalence:
    """Two one-sided tests against a margin; ``inside`` means both reject at 5 %."""

    low: float
    high: float
    inside: bool


def equivalence(found: Estimate, margin: float) -> Equivalence:
    """Tell whether the effect is smaller than ``margin`` (0.03 for 3 %) in both directions."""
    low, high = found.interval(EQUIVALENCE_CONFIDENCE)
    bound = math.log1p(margin)
    return Equivalence(low, high, -bound < low and high < bound)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values, in the order given.

    The same numbers as ``statsmodels.stats.multitest.multipletests`` (a test compares them), which collects garbage in
    every call: 170 ms each in the simulations.
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def holm_confidences(p_values: Sequence[float]) -> list[float]:
    """Return, per test, the confidence level at which Holm's step-down compares it."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    levels = [0.0] * len(p_values)
    for rank, index in enumerate(order):
        levels[index] = 1 - (1 - CONFIDENCE) / (len(p_values) - rank)
    return levels


@dataclass(frozen=True)
class Components:
    """Variance between repetitions inside a boot, and between boots (log scale); ``reps`` per boot."""

    repetition: float
    boot: float
    reps: float

    @property
    def advice(self) -> str:
        """Say where more effort would help."""
        if self.repetition / self.reps > 2 * self.boot:
            return "more repetitions per boot"
        return "more boots"


def variance_components(values: Mapping[str, Sequence[Sequence[float]]]) -> Components | None:
    """Return the components of arm -> boots -> repetitions (ln metric); None when nothing was repeated."""
    within = between = 0.0
    within_df = between_df = 0
    counts: list[int] = []
    for boots in values.values():
        means = [sum(reps) / len(reps) for reps in boots]
        grand = sum(means) / len(means)
        for reps, mean in zip(boots, means, strict=True):
            within += sum((value - mean) ** 2 for value in reps)
            between += len(reps) * (mean - grand) ** 2
            within_df += len(reps) - 1
            counts.append(len(reps))
        between_df += len(boots) - 1
    if not within_df or not between_df:
        return None
    mean_reps = sum(counts) / len(counts)
    ms_within, ms_between = within / within_df, between / between_df
    return Components(ms_within, max(0.0, (ms_between - ms_within) / mean_reps), mean_reps)


def repetitions(components: Components, seconds_per_rep: float, seconds_per_boot: float) -> int:
    """Return the repetitions per boot that give the narrowest interval for the time spent.

    "Rigorous Benchmarking in Reasonable Time" (2013): sqrt(cost ratio times variance ratio), rounded up.
    """
    if components.boot <= 0:
        return math.ceil(max(components.reps, 10))
    ratio = seconds_per_boot / seconds_per_rep * components.repetition / components.boot
    return max(1, math.ceil(math.sqrt(ratio)))


@dataclass(frozen=True)
class DesignPower:
    """What a design can resolve, in units of the standard deviation between boots (equal in all arms)."""

    boots: int
    df: int
    floor: float
    mde80: float


def design_power(control_boots: int, arm_boots: int, arms: int) -> DesignPower:
    """Return floor and MDE80 of a design before anything is measured (pooled t, the table of ``docs/campaign.md``)."""
    df = control_boots - 1 + arms * (arm_boots - 1)
    factor = math.sqrt(1 / control_boots + 1 / arm_boots)
    t, t80 = _student(df, 0.975), _student(df, POWER)
    return DesignPower(control_boots + arms * arm_boots, df, t * factor, (t + t80) * factor)


def smallest_permutation_p(control_boots: int, arm_boots: int) -> float:
    """Return the least two-sided p that permuting boots can reach: 0.2 for 3 against 2, so it decides nothing here."""
    return min(1.0, 2 / math.comb(control_boots + arm_boots, arm_boots))


# --- controls on the boots themselves ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Distance:
    """How far a control boot is from the other control boots (log scale), and the p-value of that."""

    difference: float
    p: float


def outlying_boots(boots: Sequence[Boot]) -> list[Distance]:
    """Return, per control boot, how unlike the others it is (externally studentised, one pooled variance).

    Against the control boots alone this could never fire: with three of them the internally studentised distance is at
    most 1.41, whatever happened.
    """
    from statsmodels.regression.linear_model import OLS
    from statsmodels.stats.outliers_influence import OLSInfluence

    counts = Counter(boot.arm for boot in boots)
    repeated = [boot for boot in boots if counts[boot.arm] > 1]  # a single boot has nothing to be compared with
    if not any(boot.control for boot in repeated):
        raise NotEstimable("no control arm was booted twice")
    design = _design(tuple(boot.arm for boot in repeated), tuple(boot.block for boot in repeated))
    freedom = round(float(design.residual.trace()))
    if freedom < 2:
        raise NotEstimable("too few repeated boots to call one of them unlike the others")
    values = np.array([boot.value for boot in repeated])
    residuals = design.residual @ values
    # a residual is measured from a mean that contains the boot itself
    differences = residuals / np.maximum(1 - design.leverage, 1e-12)
    if _squares(design.residual, values).any():
        studentised = OLSInfluence(OLS(values, design.x).fit()).resid_studentized_external
    else:
        studentised = np.zeros(len(repeated))
    found = {
        id(boot): Distance(float(difference), float(2 * stdtr(freedom - 1, -abs(t))))
        for difference, t, boot in zip(differences, studentised, repeated, strict=True)
    }
    return [found.get(id(boot), Distance(0.0, 1.0)) for boot in boots if boot.control]


@dataclass(frozen=True)
class Drift:
    """Linear drift over the whole campaign (log scale), its p-value, and the floor of a contrast once it is removed."""

    total: float
    p: float
    floor: float


def drift(boots: Sequence[Boot], positions: Sequence[float], control_boots: int, arm_boots: int) -> Drift:
    """Fit arm means, a step per block, and one slope over the position of a boot.

    All boots carry the slope: from the control boots alone the drift would also widen the floor that it is held
    against, so that even a drift of 8 standard deviations passed in simulation. A step between two blocks is no drift:
    the comparisons leave it out, too.
    """
    from statsmodels.regression.linear_model import OLS

    design = _design(tuple(boot.arm for boot in boots), tuple(boot.block for boot in boots))
    place = np.array(positions, dtype=np.float64)
    place = place - place.mean()
    df = round(float(design.residual.trace())) - 1
    if df < 1 or float(np.abs(design.residual @ place).max()) < 1e-9:
        raise NotEstimable("too few repeated boots to see a drift")
    fit = OLS(np.array([boot.value for boot in boots]), np.column_stack([design.x, place])).fit()
    span = float(np.ptp(place))
    slope, se = float(fit.params[-1]), float(fit.bse[-1])
    p = float(2 * stdtr(df, -abs(slope) / se)) if se > 0 else float(abs(slope) < 1e-12)
    noise = math.sqrt(max(0.0, float(fit.mse_resid)))
    return Drift(slope * span, p, _student(df, 0.975) * noise * math.sqrt(1 / control_boots + 1 / arm_boots))
