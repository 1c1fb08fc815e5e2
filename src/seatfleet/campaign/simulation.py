"""Generated campaigns with a known truth, decided by the same code that decides real ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from . import stats
from .definition import Mode
from .schedule import boot_order
from .stats import Boot
from .verdicts import Question, Verdict, decide


@dataclass(frozen=True)
class Scenario:
    """A generated campaign. Standard deviations between boots, ``drift`` over the campaign and ``effect`` are on ln.

    The family is ``cells`` cells of every arm, or its first ``family`` questions.
    """

    arms: tuple[str, ...] = ("k1", "k2", "k3")
    mode: Mode = "palindrome"
    control_sd: float = 0.01
    studied_sd: float = 0.01
    drift: float = 0.0
    effect: float = 0.0
    cells: int = 2
    family: int | None = None
    margin: float = 0.03


def campaigns(scenario: Scenario, count: int, seed: int) -> Iterator[list[Question]]:
    """Yield the questions of ``count`` generated campaigns."""
    order = boot_order("off", scenario.arms, scenario.mode)
    rng = np.random.default_rng(seed)
    sd = np.array([scenario.control_sd if arm == "off" else scenario.studied_sd for arm in order])
    centre = np.array([0.0 if arm == "off" else scenario.effect for arm in order])
    centre = centre + scenario.drift * np.arange(len(order)) / (len(order) - 1)
    for _ in range(count):
        questions = []
        for cell in range(scenario.cells):
            values = rng.normal(centre, sd)
            boots = tuple(Boot(arm, float(value), arm == "off") for arm, value in zip(order, values, strict=True))
            questions += [
                Question(
                    f"{arm}-vs-off", {arm: 1.0, "off": -1.0}, "aggregate_output_tok_s", "tool", cell + 1, True, boots
                )
                for arm in scenario.arms
            ]
        yield questions[: scenario.family]


def verdict_rates(scenario: Scenario, count: int, seed: int) -> dict[Verdict, float]:
    """Return how often each verdict was given, as fractions of all questions."""
    seen: Counter[Verdict] = Counter()
    for questions in campaigns(scenario, count, seed):
        seen.update(finding.verdict for finding in decide(questions, mode=scenario.mode, margin=scenario.margin))
    total = sum(seen.values())
    return {verdict: seen[verdict] / total for verdict in Verdict}


def false_verdicts(scenario: Scenario, count: int, seed: int) -> float:
    """Return the fraction of campaigns without any effect in which at least one WIN or LOSS was called."""
    wrong = sum(
        any(
            f.verdict in (Verdict.WIN, Verdict.LOSS)
            for f in decide(questions, mode=scenario.mode, margin=scenario.margin)
        )
        for questions in campaigns(scenario, count, seed)
    )
    return wrong / count


def coverage(scenario: Scenario, count: int, seed: int) -> float:
    """Return the fraction of 95 % intervals that hold the true effect."""
    inside = total = 0
    for questions in campaigns(scenario, count, seed):
        for question in questions:
            low, high = stats.estimate(question.boots, question.weights).interval()
            inside += low <= scenario.effect <= high
            total += 1
    return inside / total


def seed_rule_rate(count: int, seed: int) -> tuple[float, float]:
    """Return how often the first design's rule fires without any effect: per cell, and per family of three arms.

    The rule: one boot per arm, and |arm - mean(off_A, off_B)| > |off_A - off_B|.
    """
    rng = np.random.default_rng(seed)
    off = rng.normal(0, 1, (count, 2))
    arms = rng.normal(0, 1, (count, 3))
    floor = np.abs(off[:, 0] - off[:, 1])
    fired = np.abs(arms - off.mean(axis=1, keepdims=True)) > floor[:, None]
    return float(fired.mean()), float(fired.any(axis=1).mean())
