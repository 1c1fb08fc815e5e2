"""One run of the probe: the levels in order, each including the ones before it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from ...core.health.metrics import CounterReset, MetricsError
from ...core.health.probe_report import EXIT_BUSY, EXIT_COUNTERS, EXIT_NOT_READY, LEVELS, Check, Report
from ...core.seat.manifest import Manifest
from ..vllm import SeatClient, SeatError
from .acceptance import check_acceptance
from .canary import check_canary, check_canary_deep
from .evidence import HOURLY_TOKENS, Budget
from .identity import check_identity
from .passive import check_passive
from .prefix import check_lengths, check_prefix, check_tool_call
from .ready import wait_ready
from .session import Host, Options, Session, Stop

Step = Callable[[Session], None]
#: Levels that cost callers something.
HEAVY = frozenset({"acceptance", "prefix"})

#: What each level adds to the one before; ``passive`` stands alone, since ``ready`` proves more than it does.
STEPS: dict[str, tuple[Step, ...]] = {
    "passive": (check_passive,),
    "ready": (wait_ready,),
    "identity": (check_identity, check_canary),
    "acceptance": (check_acceptance, check_canary_deep),
    "prefix": (check_prefix, check_tool_call, check_lengths),
}


def _within_budget(session: Session, budget: Budget | None) -> Budget:
    """Return the seat's budget; stop as BUSY when it is spent."""
    if budget is not None:
        return budget
    found = Budget.of(session)
    if found.spent >= HOURLY_TOKENS:
        why = f"heavy probes of this start have cost {found.spent:,} tokens within the hour, {HOURLY_TOKENS:,} may be"
        session.check(Check("budget", "busy", f"< {HOURLY_TOKENS}", found.spent, "tokens", why, EXIT_BUSY))
        raise Stop(why)
    return found


def probe(manifest: Manifest, client: SeatClient, host: Host, options: Options, level: str) -> Report:
    """Probe one seat up to a level and return what was found; failures are in the report, not raised.

    Raises:
        OSError, subprocess.SubprocessError: the machine itself could not be asked (no systemctl).
    """
    report = Report(
        manifest.seat,
        manifest.host,
        level,
        datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        manifest.release_id,
        manifest.generation,
    )
    session = Session(manifest, client, host, options, report)
    began = session.clock()
    budget: Budget | None = None
    try:
        for name in LEVELS[LEVELS.index(level) and 1 : LEVELS.index(level) + 1]:
            if name in HEAVY:
                budget = _within_budget(session, budget)
            for step in STEPS[name]:
                step(session)
    except Stop:
        pass
    except CounterReset as error:
        session.check(Check("counters", "fail", "one boot", None, None, f"RESET: {error}", EXIT_COUNTERS))
    except MetricsError as error:
        session.check(Check("counters", "fail", None, None, None, str(error), EXIT_COUNTERS))
    except SeatError as error:
        session.check(
            Check("connection", "fail", None, None, None, f"{error}. {session.first_error()}", EXIT_NOT_READY)
        )
    if budget is not None:
        budget.add(client.spent)
    report.duration_s = session.clock() - began
    return report
