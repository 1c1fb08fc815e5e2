"""From raw cells to metrics, by definition (``docs/campaign.md`` has the same list for readers).

All functions are pure; times are nanoseconds of one host's monotonic clock. Two harnesses exist and their metrics have
different names, so that they can never be mixed: ``decode_only_tok_s`` excludes the first token's wait and comes from
streams; ``end_to_end_tok_s`` includes prefill and comes from answers that are not streamed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median
from typing import Any

from ..core.health import acceptance
from ..core.health.acceptance import Acceptance
from ..core.health.metrics import CounterReset, MetricsError, Page, delta
from .amortization import step_ms
from .load import Request

SUCCESS = "vllm:request_success_total"
GENERATION = "vllm:generation_tokens_total"
PREFIX_QUERIES = "vllm:prefix_cache_queries_total"
PREFIX_HITS = "vllm:prefix_cache_hits_total"
PREEMPTIONS = "vllm:num_preemptions_total"
COUNTERS = (SUCCESS, GENERATION, PREFIX_QUERIES, PREFIX_HITS, PREEMPTIONS)
#: A warm-up goes on while a pass is faster than the one before by more than this share.
WARM_UP_GAIN = 0.1
#: Labels of ``vllm:cache_config_info`` that the engine decides; they may follow from the studied keys.
RESOLVED = (
    *("block_size", "num_gpu_blocks", "kv_cache_size_tokens", "kv_cache_max_concurrency", "kv_cache_memory_bytes"),
    *("enable_prefix_caching", "mamba_cache_mode", "mamba_block_size", "cache_dtype"),
)
#: Least pooled values for which a percentile is stated.
PERCENTILES = ((50, 20), (90, 50), (99, 200))


@dataclass(frozen=True)
class Counters:
    """Increments of one cell. ``reset`` says why they cannot be trusted; then everything else is None or zero."""

    successes: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    acceptance: Acceptance | None = None
    reset: str | None = None


def read_counters(before: Page, after: Page) -> Counters:
    """Return the increments between two pages of one boot; a reset is reported, never clamped to zero."""
    speculates = acceptance.DRAFTS in before or acceptance.DRAFTS in after
    names = [name for name in COUNTERS if name in before or name in after]
    try:
        found = delta(before, after, (*names, *(acceptance.COUNTERS if speculates else ())))
    except (CounterReset, MetricsError) as error:
        return Counters(reset=str(error))

    def total(name: str) -> int:
        return round(found.total(name)) if name in names else 0

    return Counters(
        successes=total(SUCCESS),
        generation_tokens=total(GENERATION),
        prefix_queries=total(PREFIX_QUERIES),
        prefix_hits=total(PREFIX_HITS),
        preemptions=total(PREEMPTIONS),
        acceptance=acceptance.from_delta(found) if speculates else None,
    )


@dataclass(frozen=True)
class Cell:
    """One measured cell: what was asked and answered, and the counters.

    ``kind`` is stream, end_to_end, planted (a delay of known size) or beside (without it, just before and after).
    """

    slot: int
    arm: str
    rep: int
    shape: str
    concurrency: int
    kind: str
    order: int
    requests: tuple[Request, ...]
    counters: Counters

    @property
    def key(self) -> tuple[str, int]:
        """Shape and concurrency."""
        return self.shape, self.concurrency

    @cached_property
    def metrics(self) -> dict[str, float]:
        """Metrics by name; what cannot be computed is absent."""
        return cell_metrics(self)

    @property
    def failed(self) -> tuple[Request, ...]:
        """Requests without a complete answer."""
        return tuple(request for request in self.requests if not request.ok)

    @property
    def completed(self) -> tuple[Request, ...]:
        """Requests with a complete answer."""
        return tuple(request for request in self.requests if request.ok)


def still_faster(passes: Sequence[float]) -> bool:
    """Tell whether the last of these passes of a warm-up, in seconds, leaves a faster one to be expected."""
    return len(passes) < 2 or passes[-1] < passes[-2] * (1 - WARM_UP_GAIN)


# --- metrics of a cell ------------------------------------------------------------------------------------------------


def _tokens_of(chunk: tuple[int, int | None, str | None], request: Request) -> float:
    """Return the tokens of one chunk; spread evenly when the server did not say."""
    return chunk[1] if chunk[1] is not None else (request.completion_tokens or 0) / len(request.chunks)


def aggregate_output_tok_s(requests: Sequence[Request]) -> float | None:
    """Return all output tokens over the time from the first send to the last token (wall clock, never summed rates)."""
    ends = [request.t_last_ns for request in requests if request.t_last_ns is not None]
    if not ends:
        return None
    seconds = (max(ends) - min(request.t_send_ns for request in requests)) / 1e9
    return sum(request.completion_tokens or 0 for request in requests) / seconds if seconds > 0 else None


def steady_output_tok_s(requests: Sequence[Request], concurrency: int) -> float | None:
    """Return output tokens per second while at least ``concurrency`` requests were in flight (no ramp, no tail)."""
    edges = sorted(
        [(request.t_send_ns, 1) for request in requests]
        + [(request.t_last_ns, -1) for request in requests if request.t_last_ns is not None]
    )
    windows: list[tuple[int, int]] = []
    level, since = 0, 0
    for moment, change in edges:
        if level >= concurrency and moment > since:
            windows.append((since, moment))
        level, since = level + change, moment
    length = sum(end - start for start, end in windows)
    if length <= 0:
        return None
    tokens = 0.0
    for request in requests:
        for chunk in request.chunks:
            if any(start < chunk[0] <= end for start, end in windows):
                tokens += _tokens_of(chunk, request)
    return tokens / (length / 1e9) if tokens else None


def ttft_ms(request: Request) -> float | None:
    """Return the wait for the first delta of any kind: reasoning, content or a tool call; a mere role is none."""
    if request.t_first_delta_ns is None:
        return None
    return (request.t_first_delta_ns - request.t_send_ns) / 1e6


def tpot_ms(request: Request) -> float | None:
    """Return the time per output token after the first chunk."""
    if len(request.chunks) < 2 or not request.completion_tokens:
        return None
    first = request.chunks[0][1]
    rest = request.completion_tokens - (1 if first is None else first)
    return (request.chunks[-1][0] - request.chunks[0][0]) / 1e6 / rest if rest > 0 else None


def decode_only_tok_s(request: Request) -> float | None:
    """Return one stream's tokens per second, the first token's wait excluded (the seed's decode harness)."""
    time_per_token = tpot_ms(request)
    return 1000 / time_per_token if time_per_token else None


def icl_ms(request: Request) -> float | None:
    """Return the mean inter-chunk latency. With speculation a chunk is not a token, so this is no ITL."""
    if len(request.chunks) < 2:
        return None
    return (request.chunks[-1][0] - request.chunks[0][0]) / 1e6 / (len(request.chunks) - 1)


def end_to_end_tok_s(requests: Sequence[Request]) -> float | None:
    """Return the mean over prompts of completion tokens per wall second, prefill included, not streamed.

    Every prompt is sent twice in a row and the first answer is discarded, as in the seed's end-to-end harness.
    """
    rates: list[float] = []
    seen: set[str] = set()
    for request in requests:
        if request.prompt_id not in seen:
            seen.add(request.prompt_id)
        elif request.t_last_ns is not None and request.completion_tokens:
            rates.append(request.completion_tokens / ((request.t_last_ns - request.t_send_ns) / 1e9))
    return fmean(rates) if rates else None


def tokens_per_chunk(requests: Iterable[Request]) -> list[int]:
    """Return tokens per chunk without each stream's first (prefill) and last (cut by a limit); empty if not told."""
    return [tokens for request in requests for _, tokens, _ in request.chunks[1:-1] if tokens]


def _median(requests: Sequence[Request], metric: Callable[[Request], float | None]) -> float | None:
    values = [value for request in requests if (value := metric(request)) is not None]
    return median(values) if values else None


def cell_metrics(cell: Cell) -> dict[str, float]:
    """Return the metrics of a cell; what cannot be computed is absent."""
    done = cell.completed
    if cell.kind == "end_to_end":
        found = {"end_to_end_tok_s": end_to_end_tok_s(done)}
    else:
        found = {
            "aggregate_output_tok_s": aggregate_output_tok_s(done),
            "steady_output_tok_s": steady_output_tok_s(done, cell.concurrency),
            "ttft_ms": _median(done, ttft_ms),
            "tpot_ms": _median(done, tpot_ms),
            "decode_only_tok_s": _median(done, decode_only_tok_s),
            "icl_ms": _median(done, icl_ms),
        }
        rate, length = found["decode_only_tok_s"], acceptance_length(cell.counters)
        if rate and length:
            found["step_ms"] = step_ms(length, rate)
    return {name: value for name, value in found.items() if value is not None and value > 0}


def acceptance_length(counters: Counters) -> float | None:
    """Return the acceptance length, 1 for a seat that does not speculate, None when it made no draft or was reset."""
    if counters.reset:
        return None
    if counters.acceptance is None:
        return 1.0
    return counters.acceptance.length or None


def pooled_acceptance(cells: Iterable[Cell]) -> Acceptance | None:
    """Return the acceptance over several cells, summed before dividing; None without speculation."""
    found = [cell.counters.acceptance for cell in cells if cell.counters.acceptance is not None]
    if not found:
        return None
    width = max(one.k for one in found)
    per_position = tuple(sum(one.accepted_per_position[i] for one in found if i < one.k) for i in range(width))
    return Acceptance(
        drafts=sum(one.drafts for one in found),
        draft_tokens=sum(one.draft_tokens for one in found),
        accepted=sum(one.accepted for one in found),
        accepted_per_position=per_position,
    )


# --- from repetitions to one value per boot ---------------------------------------------------------------------------


def boot_value(reps: Sequence[float]) -> float:
    """Return a boot's value of one cell on the log scale: the median of its repetitions."""
    return math.log(median(reps))


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    """Return p50, p90 and p99; None where there are too few values for it to mean anything."""
    ordered = sorted(values)
    found: dict[str, float | None] = {}
    for percent, least in PERCENTILES:
        rank = max(0, math.ceil(percent / 100 * len(ordered)) - 1)
        found[f"p{percent}"] = ordered[rank] if len(ordered) >= least else None
    return found


def prompt_hashes(cells: Iterable[Cell]) -> Mapping[tuple[str, int, str], tuple[str, ...]]:
    """Return, per cell and kind, the hashes of its prompts: the same in every boot, or the boots are not comparable."""
    return {(*cell.key, cell.kind): tuple(sorted(request.prompt_sha256 for request in cell.requests)) for cell in cells}


def induced(labels: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the engine resolved for itself, from the labels of ``vllm:cache_config_info``, without the noise."""
    return {name: labels[name] for name in RESOLVED if name in labels}
