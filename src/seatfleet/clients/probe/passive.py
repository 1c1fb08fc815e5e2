"""L0: what can be seen without generating anything. Cheap enough for every minute, and it finds a hung busy engine."""

from __future__ import annotations

from ...core.health.probe_report import EXIT_NOT_READY
from ..vllm import SeatError
from .ready import engine_progress, load, refused, require_model, require_owner
from .session import Session

#: A working engine moves a counter with every step; the longest legal step is a full prefill chunk.
_PROGRESS_LIMIT_S = 20.0


def check_passive(session: Session) -> None:
    """Check unit, socket, model id, and that the engine moves while it has requests."""
    state, name = session.host.unit(), session.manifest.unit
    if state is not None:
        if not state.running:
            raise session.stop("unit", EXIT_NOT_READY, f"{name} is {state}. {session.first_error()}")
        session.ok("unit", "running", str(state))
    try:
        if not require_owner(session, state is not None):
            raise session.stop("socket_owner", EXIT_NOT_READY, f"nobody listens on port {session.manifest.port}")
        session.client.health()
        require_model(session)
        session.report.vllm_version = session.client.version()
        page = session.client.metrics()
    except SeatError as error:
        raise refused(session, error) from error
    session.report.boot_id = session.boot(page)
    running, waiting = load(page)
    if running == 0:
        session.ok("progress", "nothing to do", running + waiting, unit="requests")
        return
    before, deadline = engine_progress(session), session.clock() + _PROGRESS_LIMIT_S
    while session.clock() < deadline:
        session.sleep(1.0)
        if engine_progress(session) != before:
            session.ok("progress", "moving counters", running, unit="requests")
            return
    raise session.stop(
        "progress",
        EXIT_NOT_READY,
        f"{running:.0f} requests are running and no counter moved for {_PROGRESS_LIMIT_S:.0f} s: the engine hangs. "
        f"Restart {name or 'the server'}",
    )
