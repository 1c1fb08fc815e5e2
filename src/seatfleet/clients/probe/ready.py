"""READY: a token, generated for the right key and model id, by a process of the seat's own unit.

``/health`` is not asked: it answers 200 on a hung engine, on somebody else's server on the port, and before an engine
that dies at its first request.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from ...core.health.metrics import MetricsError, Page
from ...core.health.probe_report import EXIT_BUSY, EXIT_IDENTITY, EXIT_NOT_READY, Check
from ...core.host.sockets import in_cgroup
from ..systemd import UnitState
from ..vllm import TRANSIENT, Completion, Kind, SeatError
from .session import Session, Stop, user

FINISH_REASONS = frozenset({"stop", "length", "tool_calls"})
_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
#: What moves with every engine step; the first is absent in some builds.
_PROGRESS = ("vllm:iteration_tokens_total_count", "vllm:generation_tokens_total", "vllm:prompt_tokens_total")
#: A hang is no token and no progress for this many times the wait for one token: the first request of a start may have
#: to wait for kernels being built.
_STALL_FACTOR = 2
_CRASH_GRACE_S = 5.0


@dataclass
class Wait:
    """State of the wait for READY."""

    began: float
    first: UnitState | None
    waited: bool = False
    last: SeatError | None = None
    stalled_since: float | None = None
    progressed: bool = False


def wait_ready(session: Session) -> None:
    """Wait until the seat is READY; raise :class:`Stop` as soon as it cannot become so, or at the limit."""
    wait = Wait(session.clock(), session.host.unit())
    pause = min(1.0, session.options.poll_s)
    while True:
        _require_unit(session, wait)
        if _attempt(session, wait):
            return
        if session.clock() - wait.began + pause > session.options.ready_timeout_s:
            raise _timed_out(session, wait)
        wait.waited = True
        session.sleep(pause)
        pause = min(session.options.poll_s, pause * 1.5)


def _require_unit(session: Session, wait: Wait) -> None:
    """Fail fast when the unit is gone, ended, or was started anew."""
    state, first, name = session.host.unit(), wait.first, session.manifest.unit
    if state is None or first is None:
        return
    if state.load != "loaded":
        raise session.stop("unit", EXIT_NOT_READY, f"there is no unit {name} ({state.load}): deploy the seat first")
    if not state.running:
        raise session.stop("unit", EXIT_NOT_READY, f"{name} is {state}. {session.first_error()}")
    if first.running and (state.invocation != first.invocation or state.restarts > first.restarts):
        # The reason is in the journal of the start that ended, not of the one that runs now.
        why = f"{name} ended and was started again while it was waited for. {session.first_error(first)}"
        raise session.stop("unit", EXIT_NOT_READY, why)


def _attempt(session: Session, wait: Wait) -> bool:
    """Try once; True when READY, False when it is worth trying again."""
    began = session.clock()
    before = None
    try:
        if not require_owner(session, wait.first is not None):
            return False
        require_model(session)
        before = engine_progress(session)
        completion = session.client.stream(session.body(user("Count from 1 to 9, separated by commas."), 8))
    except SeatError as error:
        wait.last = error
        if error.kind is Kind.TIMEOUT:
            _require_progress(session, wait, began, before)
            return False
        if error.kind in TRANSIENT:
            return False
        if error.kind in (Kind.CUT, Kind.SERVER_ERROR):
            _require_survivor(session, wait, error)
        raise refused(session, error) from error
    _accept(session, wait, completion)
    return True


def require_owner(session: Session, has_unit: bool) -> bool:
    """Check that the port is held by the unit's own processes and nobody else; False when nobody listens yet."""
    port = session.manifest.port
    owners = session.host.listeners(port) if has_unit else []
    if not has_unit:
        session.not_checked("socket_owner", "the manifest names no unit")
        return True
    state = session.host.unit()
    if not owners or state is None:
        return False
    strangers = [owner for owner in owners if not in_cgroup(owner, state.cgroup)]
    if strangers:
        raise session.stop(
            "socket_owner",
            EXIT_NOT_READY,
            f"port {port} is held by {strangers[0]}, not by {session.manifest.unit}: stop that process, or give the "
            "seat another port",
            expected=state.cgroup,
            observed=str(strangers[0]),
        )
    session.report.checks = [check for check in session.report.checks if check.id != "socket_owner"]
    session.ok("socket_owner", state.cgroup, str(owners[0]))
    return True


def require_model(session: Session) -> None:
    """Check that the server has the seat's model id; somebody else's vLLM has another."""
    ids = [card.id for card in session.client.models()]
    if session.manifest.model_id not in ids:
        raise session.stop(
            "model_id",
            EXIT_IDENTITY,
            f"the server on port {session.manifest.port} serves {ids}, not {session.manifest.model_id!r}: the running "
            "process has another configuration than the manifest",
            expected=session.manifest.model_id,
            observed=ids,
        )


def engine_progress(session: Session) -> tuple[float, ...] | None:
    """Return counters that move with each engine step, None when the page cannot be had."""
    try:
        page = session.client.metrics()
        return tuple(page.total_or(name, 0.0) for name in _PROGRESS)
    except (SeatError, MetricsError):
        return None


def _require_progress(session: Session, wait: Wait, began: float, before: tuple[float, ...] | None) -> None:
    """Tell a busy seat from a hung one after a timeout: busy is not dead, and dead is known by the counters."""
    after = engine_progress(session)
    if before is not None and after is not None and after != before:
        wait.stalled_since, wait.progressed = None, True
        return
    if wait.stalled_since is None:
        wait.stalled_since = began
    stalled = session.clock() - wait.stalled_since
    if stalled >= _STALL_FACTOR * session.client.limits.token:
        metrics = "does not answer either" if after is None else "answers, but its counters stand still"
        raise session.stop(
            "generation",
            EXIT_NOT_READY,
            f"no token and no progress for {stalled:.0f} s: the engine hangs (/metrics {metrics}). Restart "
            f"{session.manifest.unit or 'the server'}. {session.first_error()}",
        )


def _require_survivor(session: Session, wait: Wait, error: SeatError) -> None:
    """Raise with the journal's reason when the first request killed the engine."""
    if wait.first is None:
        return
    deadline = session.clock() + _CRASH_GRACE_S
    while session.clock() < deadline:
        state = session.host.unit()
        if state is None or not state.running or state.invocation != wait.first.invocation:
            cause = session.first_error(wait.first)
            killed = f"the first request killed {session.manifest.unit} ({error}). {cause}"
            raise session.stop("generation", EXIT_NOT_READY, killed)
        session.sleep(0.5)


def refused(session: Session, error: SeatError) -> Stop:
    """Turn an answer that waiting cannot change into a failed check."""
    key = session.manifest.api_key_file
    if error.kind is Kind.UNAUTHORIZED:
        why = f"the seat does not accept the key in {key}: rotated without a restart, or another server. {error}"
        return session.stop("auth", EXIT_NOT_READY, why)
    if error.kind is Kind.FORBIDDEN:
        why = f"the key in {key} may not do this; a seat has no such rule: is a proxy on this port? {error}"
        return session.stop("auth", EXIT_NOT_READY, why)
    if error.kind is Kind.NOT_FOUND:
        return session.stop("model_id", EXIT_IDENTITY, f"{error}", expected=session.manifest.model_id)
    if error.kind in (Kind.NOT_JSON, Kind.MALFORMED):
        return session.stop("generation", EXIT_NOT_READY, f"this is not vLLM's API, or it is broken: {error}")
    return session.stop("generation", EXIT_NOT_READY, f"{error}. {session.first_error()}")


def _accept(session: Session, wait: Wait, completion: Completion) -> None:
    """Check the generated answer itself and write down that the seat is READY."""
    manifest = session.manifest
    if completion.model != manifest.model_id:
        raise session.stop(
            "generation", EXIT_IDENTITY, f"the answer says it is from {completion.model!r}", expected=manifest.model_id
        )
    if completion.completion_tokens < 1 or completion.finish_reason not in FINISH_REASONS:
        raise session.stop(
            "generation",
            EXIT_NOT_READY,
            f"{completion.completion_tokens} tokens, finish reason {completion.finish_reason!r}",
            expected="at least one token",
        )
    state = session.host.unit()
    if wait.waited:
        # Same clock as systemd's monotonic time stamps.
        started = state.started_s if state and state.started_s else None
        session.report.ready_s = time.monotonic() - started if started else session.clock() - wait.began
    if state is not None and state.restarts:
        session.report.warnings.append(f"unit: {state.restarts} automatic restarts since it was last started by hand")
    session.ok(
        "generation",
        "at least one token",
        completion.completion_tokens,
        unit="tokens",
        evidence=f"first token after {completion.ttft_s or 0:.3f} s",
    )
    session.report.ttft_s.setdefault("first", round(completion.ttft_s or 0.0, 4))


def _timed_out(session: Session, wait: Wait) -> Stop:
    """Return the failed check for a wait that reached its limit."""
    limit = session.options.ready_timeout_s
    error = wait.last
    busy = error is not None and (error.kind is Kind.TOO_MANY or (error.kind is Kind.TIMEOUT and wait.progressed))
    if busy:
        why = f"the seat works but gave the probe no answer within {limit:.0f} s ({error}): too much load"
        session.check(Check("generation", "busy", None, None, None, why, EXIT_BUSY))
        return Stop(why)
    last = str(error) if error else f"nobody listens on port {session.manifest.port}"
    return session.stop(
        "generation", EXIT_NOT_READY, f"not READY within {limit:.0f} s; last seen: {last}. {session.first_error()}"
    )


def load(page: Page) -> tuple[float, float]:
    """Return the requests running and waiting, over all engines."""
    return page.total_or(_RUNNING, 0.0), page.total_or(_WAITING, 0.0)
