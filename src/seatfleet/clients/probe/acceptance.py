"""Acceptance length per workload, measured with the seat's own counters while nobody else uses it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...core import acceptance as core
from ...core.metrics import CounterReset, Page, delta
from ...core.probe_report import (
    EXIT_ACCEPT_BROKEN,
    EXIT_ACCEPT_LOW,
    EXIT_BUSY,
    EXIT_COUNTERS,
    EXIT_READY,
    Check,
)
from ..vllm import Completion
from .ready import load
from .session import Session, Stop, user
from .workloads import prompt

SUCCESS = "vllm:request_success_total"
_KV_USAGE = "vllm:kv_cache_usage_perc"
#: Workloads of a seat that declares no minima.
DEFAULT_WORKLOADS = ("count", "code", "prose")
#: The standard error of AL is about its spread divided by sqrt(drafts).
_DRAFTS_WANTED = 100
#: Bounds of one workload on a live seat.
_MAX_REQUESTS = 12
_MAX_TOKENS = 2000
_MIN_TOKENS = 200
_EXITS = {
    "broken": EXIT_ACCEPT_BROKEN,
    "flat": EXIT_ACCEPT_BROKEN,
    "low": EXIT_ACCEPT_LOW,
    "invalid": EXIT_COUNTERS,
}


@dataclass(frozen=True)
class Measured:
    """What one workload gave: from the counters, and from the tokens in each piece of the streams."""

    acceptance: core.Acceptance
    stream_length: float | None
    requests: int
    tokens: int


def check_acceptance(session: Session) -> None:
    """Measure each workload and compare it with its band; a low value is measured twice, both are reported."""
    speculative = session.manifest.speculative
    if speculative is None:
        session.not_checked("acceptance", "the seat does not speculate")
        return
    require_quiet(session)
    for workload in session.manifest.acceptance or DEFAULT_WORKLOADS:
        declared = (session.manifest.acceptance or {}).get(workload)
        band = core.band(speculative.method, speculative.k, workload, declared=declared)
        measured = _measure(session, workload, speculative.k)
        verdict = core.judge(measured.acceptance, band, workload)
        if verdict.status == "low":
            session.report.warnings.append(f"acceptance.{workload}: measured twice, first {verdict.message}")
            measured = _measure(session, workload, speculative.k)
            verdict = core.judge(measured.acceptance, band, workload)
        _report(session, workload, measured, verdict)


def require_quiet(session: Session) -> None:
    """Wait a little for other requests to end; stop as BUSY when they do not.

    Counters are global, so anybody else's tokens would be counted as the probe's.
    """
    deadline = session.clock() + session.options.quiet_s
    while True:
        page = session.client.metrics()
        running, waiting = load(page)
        if running == 0 and waiting == 0:
            return
        if session.clock() >= deadline:
            why = (
                f"{running:.0f} running and {waiting:.0f} waiting requests, KV cache {_usage(page):.0%} used: try "
                "again when it is quiet"
            )
            session.check(Check("quiet", "busy", "0 requests", running + waiting, "requests", why, EXIT_BUSY))
            raise Stop(why)
        session.sleep(min(1.0, session.options.poll_s))


def _usage(page: Page) -> float:
    return max(page.series(_KV_USAGE).values(), default=0.0)


def _measure(session: Session, workload: str, k: int) -> Measured:
    """Measure one workload; a restart in between is measured again once, a second one is raised."""
    try:
        return _measure_once(session, workload, k)
    except CounterReset as error:
        session.report.warnings.append(f"acceptance.{workload}: measured again after a reset: {error}")
        return _measure_once(session, workload, k)


def _measure_once(session: Session, workload: str, k: int) -> Measured:
    typical = core.TYPICAL.get((session.manifest.speculative.method, k), {}) if session.manifest.speculative else {}
    budget = min(_MAX_TOKENS, max(_MIN_TOKENS, math.ceil(_DRAFTS_WANTED * typical.get(workload, k + 1.0))))
    before = session.client.metrics()
    answers: list[Completion] = []
    spent = 0
    while spent < budget and len(answers) < _MAX_REQUESTS:
        messages = user(prompt(workload, len(answers)))
        used, limit = session.client.tokenize(session.manifest.model_id, messages)
        room = (limit or session.manifest.max_model_len) - used - 1
        answers.append(session.client.stream(session.body(messages, min(budget - spent, room))))
        spent += answers[-1].completion_tokens
    after = _settled(session, before, len(answers))
    increments = delta(before, after, (*core.COUNTERS, SUCCESS))
    own, seen = len(answers), int(increments.total(SUCCESS))
    if seen != own:
        why = (
            f"{seen} requests ended while the probe made {own}: somebody else uses the seat, its counters prove nothing"
        )
        session.check(Check(f"acceptance.{workload}", "busy", own, seen, "requests", why, EXIT_BUSY))
        raise Stop(why)
    return Measured(core.from_delta(increments), stream_length(answers), own, spent)


def _settled(session: Session, before: Page, requests: int) -> Page:
    """Return a page that has counted the probe's own requests: the server books them just after its answer."""
    deadline = session.clock() + session.options.settle_s
    wanted = before.total_or(SUCCESS, 0.0) + requests
    while True:
        page = session.client.metrics()
        if page.total_or(SUCCESS, 0.0) >= wanted or session.clock() >= deadline:
            return page
        session.sleep(0.1)


def stream_length(answers: Sequence[Completion]) -> float | None:
    """Return the mean tokens per piece of a stream, which is AL as the client sees it; None when not told.

    The first piece comes from the prefill and the last is cut by the token limit: both are left out. A busy server
    merges pieces, so this is evidence beside the counters, not instead of them.
    """
    counts = [chunk.tokens for answer in answers for chunk in answer.chunks[1:-1] if chunk.tokens]
    return sum(counts) / len(counts) if counts else None


def _report(session: Session, workload: str, measured: Measured, verdict: core.Verdict) -> None:
    seen = measured.acceptance
    status, code = verdict.status, _EXITS.get(verdict.status, EXIT_READY)
    evidence = verdict.message
    if status == "ok" and seen.drafts < core.MIN_DRAFTS:
        status, evidence = "warn", f"{verdict.message}: fewer than {core.MIN_DRAFTS} drafts say little"
    session.report.acceptance[workload] = {
        "al": round(seen.length, 4),
        "per_pos": [round(rate, 4) for rate in seen.rates],
        "drafts": seen.drafts,
        "draft_tokens": seen.draft_tokens,
        "accepted": seen.accepted,
        "source": seen.source,
        "al_stream": None if measured.stream_length is None else round(measured.stream_length, 4),
        "requests": measured.requests,
        "tokens": measured.tokens,
        "status": verdict.status,
    }
    session.check(
        Check(
            f"acceptance.{workload}",
            "fail" if code else status,
            verdict.expected,
            round(seen.length, 4),
            "tokens/step",
            evidence,
            code,
        )
    )
