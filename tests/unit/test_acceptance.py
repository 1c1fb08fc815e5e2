"""Acceptance length: arithmetic, contradictions, bands and the causes named."""

from __future__ import annotations

import pytest

from seatfleet.core.health.acceptance import (
    ACCEPTED,
    Acceptance,
    band,
    contradictions,
    from_delta,
    judge,
    likely_causes,
)
from seatfleet.core.health.metrics import MetricsError, delta, parse


def seen(rates: list[float], drafts: int = 1000) -> Acceptance:
    counts = tuple(round(rate * drafts) for rate in rates)
    return Acceptance(drafts, drafts * len(rates), sum(counts), counts)


def page(drafts: int, tokens: int, accepted: list[list[int]]) -> str:
    """One page; ``accepted`` has one list of positions per engine, drafts and tokens are per engine."""
    lines = ["process_start_time_seconds 1"]
    for engine, positions in enumerate(accepted):
        tag = f'engine="{engine}"'
        lines += [
            f"vllm:spec_decode_num_drafts_total{{{tag}}} {drafts}",
            f"vllm:spec_decode_num_draft_tokens_total{{{tag}}} {tokens}",
            f"vllm:spec_decode_num_accepted_tokens_total{{{tag}}} {sum(positions)}",
        ]
        name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        lines += [f'{name}{{{tag},position="{i}"}} {count}' for i, count in enumerate(positions)]
    return "\n".join(lines)


def measured(before: str, after: str) -> Acceptance:
    from seatfleet.core.health.acceptance import COUNTERS

    return from_delta(delta(parse(before), parse(after), COUNTERS))


def test_one_engine() -> None:
    found = measured(page(100, 200, [[90, 80]]), page(150, 300, [[130, 100]]))
    assert (found.drafts, found.accepted, found.k) == (50, 60, 2)
    assert found.length == pytest.approx(2.2)
    assert found.rates == pytest.approx((0.8, 0.4))
    assert contradictions(found) == []


def test_engines_are_summed_before_dividing() -> None:
    zero = page(0, 0, [[0, 0], [0, 0]])
    found = measured(zero, page(100, 200, [[100, 100], [50, 0]]))
    assert found.drafts == 200
    assert found.length == pytest.approx(1 + 250 / 200)
    assert found.rates == pytest.approx((0.75, 0.5))


def test_twelve_positions_are_in_numeric_order() -> None:
    falling = [1000 - 80 * position for position in range(12)]
    found = measured(page(0, 0, [[0] * 12]), page(1000, 12000, [falling]))
    assert found.accepted_per_position == tuple(falling)


def test_missing_position_is_refused() -> None:
    text = page(10, 20, [[5, 3]]).replace('position="1"', 'position="2"')
    with pytest.raises(MetricsError, match="expected positions 0 to 1"):
        measured(text, text)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Acceptance(100, 200, 180, (90, 60)), "AL 2.800 from totals, 2.500 from positions"),
        (Acceptance(100, 150, 160, (90, 70)), "160 tokens accepted of 150 drafted"),
        (Acceptance(100, 250, 150, (90, 60)), "250 tokens in 100 drafts of at most 2"),
        (Acceptance(100, 200, 150, (60, 90)), "a later position is accepted more often"),
        (Acceptance(0, 0, 0, (0, 0)), "no draft was made"),
    ],
)
def test_contradictions(wrong: Acceptance, message: str) -> None:
    assert message in "; ".join(contradictions(wrong))
    assert judge(wrong, band("mtp", 2, "count"), "count").status == "invalid"


def test_identity_tolerates_rounding() -> None:
    assert contradictions(Acceptance(100, 200, 151, (90, 60))) == []


@pytest.mark.parametrize(
    ("method", "k", "workload", "rates", "status"),
    [
        # healthy values of the two seeds
        ("mtp", 2, "count", [1.0, 1.0], "ok"),
        ("mtp", 2, "code", [0.93, 0.84], "ok"),
        ("mtp", 2, "prose", [0.75, 0.49], "ok"),
        ("dflash", 12, "count", [0.98, 0.97, 0.95, 0.94, 0.92, 0.9, 0.88, 0.85, 0.8, 0.7, 0.6, 0.51], "ok"),
        ("dflash", 12, "code", [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.2, 0.1, 0.1, 0.05, 0.03, 0.02], "ok"),
        # head not loaded
        ("mtp", 2, "count", [0.0, 0.0], "broken"),
        ("mtp", 2, "prose", [0.004, 0.0], "broken"),
        # half broken: "> 0" lets these pass
        ("dflash", 12, "code", [0.4, 0.05, 0.02] + [0.0] * 9, "low"),  # the seed's mis-strided KV, 1.47
        ("mtp", 2, "count", [0.4, 0.06], "low"),  # 1.46, half-loaded head of sglang 35797
        ("mtp", 1, "count", [0.5], "low"),
        ("mtp", 3, "count", [1.0, 1.0, 1.0], "ok"),
        # flat 1.00 where nothing can be foreseen
        ("mtp", 2, "prose", [1.0, 1.0], "flat"),
        ("mtp", 2, "code", [1.0, 0.999], "flat"),
        ("dflash", 4, "prose", [1.0] * 4, "flat"),
        # nothing known: only broken is decided
        ("ngram", 3, "prose", [0.2, 0.1, 0.05], "ok"),
        ("ngram", 3, "prose", [0.02, 0.0, 0.0], "broken"),
    ],
)
def test_bands(method: str, k: int, workload: str, rates: list[float], status: str) -> None:
    assert judge(seen(rates), band(method, k, workload), workload).status == status


def test_a_declared_minimum_wins_and_an_oracle_may_be_flat() -> None:
    oracle = band("mtp", 2, "prose", declared=2.95)
    assert judge(seen([1.0, 1.0]), oracle, "prose").status == "ok"
    assert judge(seen([1.0, 0.9]), oracle, "prose").status == "low"
    lenient = band("mtp", 2, "prose", declared=1.5)
    assert judge(seen([1.0, 1.0]), lenient, "prose").status == "flat"


def test_a_seat_baseline_wins_over_the_table_of_the_method() -> None:
    own = band("mtp", 2, "code", baseline=[2.0, 2.1, 1.9])
    assert own.least == pytest.approx(1.5)
    assert judge(seen([0.6, 0.4]), own, "code").status == "ok"
    assert judge(seen([0.5, 0.2]), own, "code").status == "warn"
    assert judge(seen([0.3, 0.1]), own, "code").status == "low"
    assert "baseline 2.00 of 3 boots" in own.why


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ([0.0, 0.0], "missing from model.safetensors.index.json"),
        ([0.4, 0.05], "KV cache is laid out wrongly"),
        ([0.4, 0.3], "chat template"),
    ],
)
def test_messages_name_the_cause(rates: list[float], words: str) -> None:
    assert words in likely_causes(seen(rates))
    assert words in judge(seen(rates), band("mtp", 2, "count"), "count").message


def test_nothing_accepted_is_not_a_missing_counter() -> None:
    zero = page(0, 0, [[0, 0]])
    found = measured(zero, page(100, 200, [[0, 0]]))
    assert found.length == 1.0
    assert ACCEPTED.endswith("_total")
