"""Acceptance length per workload: from the seat's counters while nobody else uses it, else from the own streams."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier

from ...core.health import acceptance as core
from ...core.health.metrics import CounterReset, Page, delta
from ...core.health.probe_report import EXIT_ACCEPT_BROKEN, EXIT_ACCEPT_LOW, EXIT_BUSY, EXIT_COUNTERS, EXIT_READY, Check
from ...core.seat.manifest import Speculation
from ..vllm import Completion
from .evidence import Baselines
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
#: A seat is left alone above this share of its request slots, or of its KV cache.
_BUSY_SLOTS = 0.5
_BUSY_KV = 0.8
#: Requests sent at one moment, and the share of the single stream's AL that they must reach.
_TOGETHER = 4
_TOGETHER_LEAST = 0.85
#: With a temperature a drafter is right less often; what is broken is nowhere near half of it (9 % and 0 % were seen).
_SAMPLED_LEAST = 0.5
_EXITS = {
    "broken": EXIT_ACCEPT_BROKEN,
    "flat": EXIT_ACCEPT_BROKEN,
    "low": EXIT_ACCEPT_LOW,
    "invalid": EXIT_COUNTERS,
}


@dataclass(frozen=True)
class Measured:
    """What one workload gave."""

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
    require_light_load(session)
    baselines = Baselines.of(session)
    alone: dict[str, float] = {}
    for workload in session.manifest.acceptance or DEFAULT_WORKLOADS:
        declared = (session.manifest.acceptance or {}).get(workload)
        band = core.band(
            speculative.method, speculative.k, workload, declared=declared, baseline=baselines.lengths(workload)
        )
        measured = _measure(session, workload, speculative)
        verdict = core.judge(measured.acceptance, band, workload)
        if verdict.status == "low":
            session.report.warnings.append(f"acceptance.{workload}: measured twice, first {verdict.message}")
            measured = _measure(session, workload, speculative)
            verdict = core.judge(measured.acceptance, band, workload)
        _report(session, workload, measured, verdict)
        if verdict.status == "ok":
            baselines.add(workload, measured.acceptance.length)
            alone.setdefault(workload, measured.acceptance.length)
    baselines.save()
    for workload, length in list(alone.items())[:1]:
        _check_together(session, workload, length)


def require_light_load(session: Session) -> None:
    """Wait for a quiet seat; go on under light load too, stop as BUSY when there is more.

    Under light load the counters are not used: they are global, so anybody else's tokens would count as the probe's.
    """
    deadline = session.clock() + session.options.quiet_s
    while True:
        page = session.client.metrics()
        running, waiting = load(page)
        if running == 0 and waiting == 0:
            return
        if session.clock() >= deadline:
            break
        session.sleep(min(1.0, session.options.poll_s))
    usage = max(page.series(_KV_USAGE).values(), default=0.0)
    slots = session.manifest.max_num_seqs
    light = slots is not None and running < _BUSY_SLOTS * slots
    if waiting == 0 and light and usage < _BUSY_KV:
        return
    why = f"{running:.0f} running and {waiting:.0f} waiting requests, KV cache {usage:.0%} used: try again later"
    session.check(Check("quiet", "busy", "0 requests", running + waiting, "requests", why, EXIT_BUSY))
    raise Stop(why)


def _measure(session: Session, workload: str, speculative: Speculation) -> Measured:
    """Measure one workload; a restart in between is measured again once, a second one is raised."""
    try:
        return _measure_once(session, workload, speculative)
    except CounterReset as error:
        session.report.warnings.append(f"acceptance.{workload}: measured again after a reset: {error}")
        return _measure_once(session, workload, speculative)


def _measure_once(session: Session, workload: str, speculative: Speculation) -> Measured:
    typical: Mapping[str, float] = core.TYPICAL.get((speculative.method, speculative.k), {})
    wanted = math.ceil(_DRAFTS_WANTED * typical.get(workload, speculative.k + 1.0))
    budget = min(_MAX_TOKENS, max(_MIN_TOKENS, wanted))
    before = session.client.metrics()
    answers: list[Completion] = []
    spent = 0
    while spent < budget and len(answers) < _MAX_REQUESTS:
        messages = user(prompt(workload, len(answers)))
        used, limit = session.client.tokenize(session.manifest.model_id, messages)
        room = (limit or session.manifest.max_model_len) - used - 1
        answers.append(session.client.stream(session.body(messages, min(budget - spent, room))))
        spent += answers[-1].completion_tokens
    after = settled(session, before, len(answers))
    increments = delta(before, after, (*core.COUNTERS, SUCCESS))
    pieces = [tokens for answer in answers for tokens in _steps(answer)]
    length = sum(pieces) / len(pieces) if pieces else None
    running, waiting = load(before)
    if running or waiting or int(increments.total(SUCCESS)) != len(answers):
        own = core.from_stream(pieces, speculative.k) if pieces else None
        if own is None:
            why = (
                "others use the seat, and its streams do not show single steps: no way to tell the probe's tokens apart"
            )
            session.check(Check(f"acceptance.{workload}", "busy", None, None, None, why, EXIT_BUSY))
            raise Stop(why)
        return Measured(own, length, len(answers), spent)
    return Measured(core.from_delta(increments), length, len(answers), spent)


def _check_together(session: Session, workload: str, alone: float) -> None:
    """Send several requests at the same moment: some corruption needs two prefills in one step (vllm #55375).

    Once greedy, and once as callers do (the sampling of the seat's alias): a CUDA graph that corrupts verification was
    seen only with a temperature.
    """
    _together(session, f"{workload}.together", workload, {}, _TOGETHER_LEAST, alone)
    if session.manifest.sampling:
        _together(session, f"{workload}.sampled", workload, session.manifest.sampling, _SAMPLED_LEAST, alone)
    else:
        session.not_checked(f"acceptance.{workload}.sampled", "no alias of the seat says how callers sample")


def _together(
    session: Session, name: str, workload: str, sampling: Mapping[str, float], share: float, alone: float
) -> None:
    count = min(_TOGETHER, session.manifest.max_num_seqs or _TOGETHER)
    before = session.client.metrics()
    if count < 2 or any(load(before)):
        session.not_checked(f"acceptance.{name}", "it takes a quiet seat and two requests at once")
        return
    barrier = Barrier(count)

    def send(number: int) -> Completion:
        body = session.body(user(prompt(workload, _MAX_REQUESTS + number)), _MIN_TOKENS, **sampling)
        barrier.wait(timeout=session.client.limits.get)
        return session.client.stream(body)

    with ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(send, range(count)))
    increments = delta(before, settled(session, before, count), (*core.COUNTERS, SUCCESS))
    if int(increments.total(SUCCESS)) != count:
        session.not_checked(f"acceptance.{name}", "others used the seat meanwhile")
        return
    seen = core.from_delta(increments)
    band = core.Band(core.BROKEN_BELOW, share * alone, None, False, f"{share} of {alone:.2f}, greedy and one at a time")
    tokens = sum(answer.completion_tokens for answer in answers)
    verdict = core.judge(seen, band, workload)
    _report(session, name, Measured(seen, None, count, tokens), verdict)


def settled(session: Session, before: Page, requests: int) -> Page:
    """Return a page that has counted the probe's own requests: the server books them just after its answer."""
    deadline = session.clock() + session.options.settle_s
    wanted = before.total_or(SUCCESS, 0.0) + requests
    while True:
        page = session.client.metrics()
        if page.total_or(SUCCESS, 0.0) >= wanted or session.clock() >= deadline:
            return page
        session.sleep(0.05)


def _steps(answer: Completion) -> Sequence[int]:
    """Return the tokens of each piece of a stream but the first (the prefill's) and the last (cut by the limit)."""
    return [chunk.tokens for chunk in answer.chunks[1:-1] if chunk.tokens]


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
