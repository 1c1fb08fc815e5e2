from __future__ import annotations

import math

import pytest

from seatfleet.campaign import observe
from seatfleet.campaign.load import Request
from seatfleet.campaign.observe import Cell, Counters, cell_metrics, percentiles, pooled_acceptance, read_counters
from seatfleet.core.health.acceptance import Acceptance
from seatfleet.core.health.metrics import parse

MS = 1_000_000


def request(
    send: int, first: int, times: list[int], tokens: list[int | None], prompt: str = "p", **changes: object
) -> Request:
    """All times in milliseconds."""
    values: dict[str, object] = {
        "req_id": "r",
        "prompt_id": prompt,
        "prompt_sha256": f"sha-{prompt}",
        "cache_salt": "s",
        "streaming": True,
        "planted_delay_ns": 0,
        "t_send_ns": send * MS,
        "t_headers_ns": send * MS,
        "t_first_delta_ns": first * MS,
        "first_delta_kind": "content",
        "t_last_ns": times[-1] * MS,
        "chunks": tuple((t * MS, n, "content") for t, n in zip(times, tokens, strict=True)),
        "completion_tokens": sum(n or 1 for n in tokens),
        "finish_reason": "stop",
        "http_status": 200,
    }
    return Request(**{**values, **changes})


def cell(*requests: Request, concurrency: int = 1, counters: Counters | None = None, kind: str = "stream") -> Cell:
    return Cell(0, "k2", 0, "code", concurrency, kind, 0, requests, counters or Counters())


def test_metrics_of_one_stream_by_hand():
    """First token at 100 ms, then three chunks of 3 tokens every 60 ms: 9 tokens in 180 ms."""
    one = request(0, 100, [100, 160, 220, 280], [1, 3, 3, 3])
    found = cell_metrics(cell(one, counters=Counters(acceptance=Acceptance(3, 6, 6, (3, 3)))))
    assert found == pytest.approx(
        {
            "aggregate_output_tok_s": 10 / 0.280,
            "steady_output_tok_s": 10 / 0.280,
            "ttft_ms": 100,
            "tpot_ms": 20,
            "decode_only_tok_s": 50,
            "icl_ms": 60,
            "step_ms": 60,
        }
    )


def test_aggregate_is_wall_clock_and_not_a_sum_of_rates():
    """Two requests of 10 tokens one after the other are 20 tokens in 2 s, not 10 + 10 per second."""
    first, second = request(0, 100, [100, 1000], [1, 9]), request(1000, 1100, [1100, 2000], [1, 9])
    assert observe.aggregate_output_tok_s([first, second]) == pytest.approx(10)
    assert observe.aggregate_output_tok_s([]) is None


def test_the_steady_window_leaves_out_the_ramp_and_the_tail():
    long, short = request(0, 10, [10, 500, 1000, 2000], [1, 5, 5, 10]), request(100, 200, [200, 600, 1000], [1, 4, 4])
    assert observe.steady_output_tok_s([long, short], 2) == pytest.approx((5 + 5 + 1 + 4 + 4) / 0.9)
    assert observe.steady_output_tok_s([long], 2) is None


def test_unknown_token_counts_are_spread_evenly_and_named_so():
    one = request(0, 10, [10, 20, 30, 40], [None] * 4, completion_tokens=8)
    assert observe.tpot_ms(one) == pytest.approx(30 / 7)
    assert observe.steady_output_tok_s([one], 1) == pytest.approx(8 / 0.040)
    assert observe.tokens_per_chunk([one]) == []


def test_chunks_for_the_cross_check_leave_out_prefill_and_flush():
    assert observe.tokens_per_chunk([request(0, 10, [10, 20, 30, 40], [1, 3, 2, 1])]) == [3, 2]


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [([], None), ([(100 * MS, 5, "content")], None), ([(100 * MS, 1, "content"), (200 * MS, 4, None)], 25.0)],
)
def test_time_per_token_needs_a_second_chunk(chunks: list[tuple[int, int, str]], expected: float | None):
    one = request(0, 10, [10], [1], chunks=tuple(chunks), completion_tokens=5)
    assert observe.tpot_ms(one) == expected
    assert observe.decode_only_tok_s(one) == (1000 / expected if expected else None)


def test_the_end_to_end_harness_discards_the_first_run_of_every_prompt():
    def whole(prompt: str, send: int, end: int) -> Request:
        return request(send, send, [end], [10], prompt, streaming=False, chunks=(), completion_tokens=10)

    runs = [whole("a", 0, 5000), whole("a", 5000, 6000), whole("b", 6000, 9000), whole("b", 9000, 9500)]
    assert cell_metrics(cell(*runs, kind="end_to_end")) == pytest.approx({"end_to_end_tok_s": (10 + 20) / 2})
    assert cell_metrics(cell(runs[0], kind="end_to_end")) == {}


def test_failed_requests_are_in_no_metric():
    good, bad = request(0, 100, [100, 200], [1, 4]), request(0, 1, [1, 2], [1, 1], error="cut")
    mixed = cell(good, bad)
    assert cell_metrics(mixed) == cell_metrics(cell(good)) and len(mixed.failed) == 1


PAGE = """process_start_time_seconds {start}
vllm:request_success_total{{engine="0",finished_reason="stop"}} {ok}
vllm:request_success_total{{engine="1",finished_reason="length"}} {ok}
vllm:generation_tokens_total{{engine="0"}} {tokens}
vllm:prefix_cache_queries_total{{engine="0"}} {tokens}
vllm:prefix_cache_hits_total{{engine="0"}} 1
vllm:num_preemptions_total{{engine="0"}} 0
"""
SPEC = """vllm:spec_decode_num_drafts_total{{engine="0"}} {n}
vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {n2}
vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {n2}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="0"}} {n}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="1"}} {n}
"""


def page(start: int = 1, ok: int = 0, tokens: int = 0, n: int | None = None) -> observe.Page:
    text = PAGE.format(start=start, ok=ok, tokens=tokens)
    return parse(text + (SPEC.format(n=n, n2=2 * n) if n is not None else ""))


def test_counters_are_increments_summed_over_engines():
    found = read_counters(page(ok=3, tokens=10, n=5), page(ok=5, tokens=110, n=25))
    assert (found.successes, found.generation_tokens, found.prefix_queries, found.prefix_hits) == (4, 100, 100, 0)
    assert found.acceptance == Acceptance(20, 40, 40, (20, 20))
    assert observe.acceptance_length(found) == 3.0


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (page(ok=5), page(ok=4), "went down"),
        (page(start=1), page(start=2), "restarted"),
        (page(n=5), page(), "was on the page before"),
    ],
)
def test_a_reset_is_a_reset_and_never_zero(before: observe.Page, after: observe.Page, message: str):
    found = read_counters(before, after)
    assert message in found.reset and observe.acceptance_length(found) is None


def test_acceptance_length_without_speculation_and_without_drafts():
    assert observe.acceptance_length(read_counters(page(), page(ok=1))) == 1.0
    assert observe.acceptance_length(read_counters(page(n=5), page(ok=1, n=5))) is None


def test_acceptance_is_pooled_before_dividing():
    cells = [cell(counters=Counters(acceptance=a)) for a in (Acceptance(1, 2, 2, (1, 1)), Acceptance(9, 18, 0, (0, 0)))]
    assert pooled_acceptance([*cells, cell()]) == Acceptance(10, 20, 2, (1, 1))
    assert pooled_acceptance([cell()]) is None


def test_a_boot_is_the_median_of_its_repetitions_on_the_log_scale():
    assert observe.boot_value([1.0, math.e, 1000.0]) == pytest.approx(1.0)


@pytest.mark.parametrize(("n", "known"), [(19, []), (20, ["p50"]), (50, ["p50", "p90"]), (200, ["p50", "p90", "p99"])])
def test_percentiles_are_stated_only_with_enough_values(n: int, known: list[str]):
    found = percentiles([float(i) for i in range(1, n + 1)])
    assert [name for name, value in found.items() if value is not None] == known
    if n == 200:
        assert found == {"p50": 100.0, "p90": 180.0, "p99": 198.0}


def test_what_the_engine_resolved():
    assert observe.induced({"block_size": "16", "gpu_memory_utilization": "0.9"}) == {"block_size": "16"}
