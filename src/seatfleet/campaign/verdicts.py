"""From boots to verdicts: what may be said about one contrast in one cell, and what may not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from . import stats
from .definition import Mode
from .stats import Boot, Estimate, NotEstimable

ALPHA = 0.05
#: An effect or floor this high is written as such: its digits mean nothing.
TENFOLD = 10.0
#: Up to here a floor is about the same in both directions; far above, a loss of its size is a larger step than a gain.
SYMMETRIC = 0.1
NOT_ALONE = "beyond its floor, but not certain among all comparisons of the declared family"
#: Metrics of which less is better; of all others more is.
LOWER_IS_BETTER = frozenset({"ttft_ms", "tpot_ms", "icl_ms", "step_ms"})


class Verdict(StrEnum):
    """What a campaign says about one contrast in one cell. CANNOT_RESOLVE is never "no effect"."""

    WIN = "WIN"
    LOSS = "LOSS"
    EQUIVALENT = "EQUIVALENT"
    CANNOT_RESOLVE = "CANNOT_RESOLVE"
    SCREEN_CANDIDATE = "SCREEN_CANDIDATE"
    VOID = "VOID"
    NO_VERDICT = "NO_VERDICT"


@dataclass(frozen=True)
class Question:
    """One contrast of one metric in one cell. ``void`` says why it must not be answered."""

    contrast: str
    weights: Mapping[str, float]
    metric: str
    shape: str
    concurrency: int
    primary: bool
    boots: tuple[Boot, ...]
    void: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def arms(self) -> tuple[str, ...]:
        """Arms with a weight."""
        return tuple(arm for arm, weight in self.weights.items() if weight)


@dataclass(frozen=True)
class Finding:
    """The answer. Effects are relative (0.05 is +5 %); intervals are two-sided.

    ``interval_adjusted`` is the interval at the level at which Holm's procedure compares this question in its family.
    """

    question: Question
    verdict: Verdict
    reason: str
    effect: float | None = None
    interval: tuple[float, float] | None = None
    interval_adjusted: tuple[float, float] | None = None
    interval_90: tuple[float, float] | None = None
    p: float | None = None
    p_adjusted: float | None = None
    floor: float | None = None
    mde80: float | None = None
    df: int | None = None
    boots: Mapping[str, int] = field(default_factory=dict)


def relative(difference: float) -> float:
    """Turn a difference of logarithms into a relative effect."""
    return math.expm1(difference)


def percent(value: float) -> str:
    """Return a relative effect as a signed percentage."""
    return f"{value:+.1%}" if value <= TENFOLD else "over +1,000%"


def downwards(floor: float) -> float:
    """Return the loss that is as large a step as this gain: half as fast is the inverse of twice as fast."""
    return 1 / (1 + floor) - 1


def printed(verdict: str, family: str) -> str:
    """Return a verdict as a reader sees it: nothing corrects an exploratory one for its many neighbours."""
    decided = verdict in (Verdict.WIN, Verdict.LOSS, Verdict.EQUIVALENT) and family == "exploratory"
    return f"{verdict} (uncorrected)" if decided else verdict


def invisible(floor: float) -> str:
    """Say which effects these boots cannot tell from none; ``floor`` is relative."""
    if floor <= SYMMETRIC:
        return f"effects below {floor:.1%} are invisible"
    return f"effects between {percent(downwards(floor))} and {percent(floor)} are invisible"


def decide(
    questions: Sequence[Question], *, mode: Mode, margin: float, no_verdict: str | None = None
) -> tuple[Finding, ...]:
    """Answer all questions. Holm's correction runs over the primary ones that can be answered.

    ``no_verdict`` is the failed global control, if any: estimates are still shown, verdicts are not.
    """
    estimates: list[Estimate | str] = [_try(question, mode) for question in questions]
    family = [
        i for i, (q, e) in enumerate(zip(questions, estimates, strict=True)) if q.primary and isinstance(e, Estimate)
    ]
    p_values = [found.p for i in family if isinstance(found := estimates[i], Estimate)]
    adjusted = dict(zip(family, zip(stats.holm(p_values), stats.holm_confidences(p_values), strict=True), strict=True))
    findings = []
    for i, (question, found) in enumerate(zip(questions, estimates, strict=True)):
        if isinstance(found, str):
            verdict = Verdict.NO_VERDICT if no_verdict else Verdict.VOID
            reason = no_verdict or found
            findings.append(Finding(question, verdict, reason, boots=_counts(question)))
        else:
            p_adjusted, confidence = adjusted.get(i, (found.p, stats.CONFIDENCE))
            findings.append(_finding(question, found, p_adjusted, confidence, mode, margin, no_verdict))
    return tuple(findings)


def _try(question: Question, mode: Mode) -> Estimate | str:
    if question.void:
        return question.void
    counts = _counts(question)
    needed = 1 if mode == "screen" else 2
    few = [
        f"{arm} has {counts.get(arm, 0)} valid of at least {needed}"
        for arm in question.arms
        if counts.get(arm, 0) < needed
    ]
    if few:
        return f"too few boots: {', '.join(few)}"
    try:
        return stats.estimate(question.boots, question.weights)
    except NotEstimable as error:
        return str(error)


def _counts(question: Question) -> dict[str, int]:
    counts: dict[str, int] = {}
    for boot in question.boots:
        counts[boot.arm] = counts.get(boot.arm, 0) + 1
    return {arm: counts.get(arm, 0) for arm in question.arms}


def _finding(
    question: Question,
    found: Estimate,
    p_adjusted: float,
    confidence: float,
    mode: Mode,
    margin: float,
    no_verdict: str | None,
) -> Finding:
    equivalence = stats.equivalence(found, margin)
    verdict, reason = (
        (Verdict.NO_VERDICT, no_verdict) if no_verdict else _verdict(question, found, p_adjusted, mode, margin)
    )
    return Finding(
        question=question,
        verdict=verdict,
        reason=reason,
        effect=relative(found.difference),
        interval=_relative_pair(found.interval()),
        interval_adjusted=_relative_pair(found.interval(confidence)),
        interval_90=_relative_pair((equivalence.low, equivalence.high)),
        p=found.p,
        p_adjusted=p_adjusted,
        floor=relative(found.floor),
        mde80=relative(found.mde80),
        df=found.df,
        boots=_counts(question),
    )


def _relative_pair(pair: tuple[float, float]) -> tuple[float, float]:
    return relative(pair[0]), relative(pair[1])


def _verdict(question: Question, found: Estimate, p_adjusted: float, mode: Mode, margin: float) -> tuple[Verdict, str]:
    beyond = abs(found.difference) > found.floor
    floor = invisible(relative(found.floor))
    if mode == "screen":
        # one boot per arm: the spread of an arm is borrowed from the control, so nothing is decided
        if beyond:
            return Verdict.SCREEN_CANDIDATE, f"beyond the floor of this screen ({floor}); boot it again to decide"
        return Verdict.CANNOT_RESOLVE, floor
    if beyond and p_adjusted <= ALPHA:
        better = (found.difference < 0) == (question.metric in LOWER_IS_BETTER)
        small = " (smaller than the declared margin)" if abs(relative(found.difference)) < margin else ""
        return (Verdict.WIN if better else Verdict.LOSS), f"adjusted p {p_adjusted:.3g}, {floor}{small}"
    if stats.equivalence(found, margin).inside:
        return Verdict.EQUIVALENT, f"the 90 % interval lies within the margin of {margin:.1%}"
    if beyond:
        return Verdict.CANNOT_RESOLVE, f"{NOT_ALONE} (adjusted p {p_adjusted:.2g}), {floor}"
    return Verdict.CANNOT_RESOLVE, floor
