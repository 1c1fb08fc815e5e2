"""What every part of a probe shares: the seat, the connection, the host, and the report being written."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ...core.health.metrics import Page, boot_identity
from ...core.health.probe_report import Check, Report
from ...core.host.sockets import Owner, listeners
from ...core.report.journal import first_cause
from ...core.seat.manifest import Manifest
from ..systemd import UnitState, read_journal, read_unit
from ..vllm import SeatClient


class Host(Protocol):
    """What the probe asks of the machine the seat runs on."""

    def unit(self) -> UnitState | None:
        """Return the state of the seat's unit, None when the seat is not run by systemd."""

    def listeners(self, port: int) -> list[Owner]:
        """Return the processes that listen on a port."""

    def journal(self, state: UnitState, pattern: str | None = None) -> list[str]:
        """Return what this start of the unit logged, optionally only lines matching a pattern."""

    def has_gpu(self) -> bool:
        """Tell whether the machine has NVIDIA GPUs; vLLM's CPU build has other defaults."""

    def has_compiler(self) -> bool:
        """Tell whether the machine has a C++ compiler, which a CPU engine needs for log probabilities."""


@dataclass(frozen=True)
class SystemHost:
    """The machine the probe runs on; needs root to look into other users' processes."""

    unit_name: str | None

    def unit(self) -> UnitState | None:
        """Return the state of the seat's unit, None when the seat is not run by systemd."""
        return read_unit(self.unit_name) if self.unit_name else None

    def listeners(self, port: int) -> list[Owner]:
        """Return the processes that listen on a port."""
        return listeners(port)

    def journal(self, state: UnitState, pattern: str | None = None) -> list[str]:
        """Return what this start of the unit logged, optionally only lines matching a pattern."""
        return read_journal(state, self.unit_name or "", pattern=pattern)

    def has_gpu(self) -> bool:
        """Tell whether the machine has NVIDIA GPUs."""
        return Path("/dev/nvidiactl").exists()

    def has_compiler(self) -> bool:
        """Tell whether the machine has a C++ compiler."""
        return shutil.which("g++") is not None


@dataclass(frozen=True)
class Options:
    """How patient a probe is; seconds. ``evidence`` is where goldens and baselines of the seat are kept."""

    ready_timeout_s: float
    poll_s: float = 2.0
    quiet_s: float = 30.0
    settle_s: float = 5.0
    evidence: Path | None = None


class Stop(Exception):
    """The check that just failed makes the following ones pointless."""


@dataclass
class Session:
    """One run of the probe against one seat."""

    manifest: Manifest
    client: SeatClient
    host: Host
    options: Options
    report: Report
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    salt: Callable[[], str] = field(default=lambda: uuid.uuid4().hex)

    def check(self, check: Check) -> None:
        """Add a check to the report."""
        self.report.checks.append(check)
        if check.status == "warn":
            self.report.warnings.append(f"{check.id}: {check.evidence or check.observed}")

    def ok(self, name: str, expected: object, observed: object, *, unit: str | None = None, evidence: str = "") -> None:
        """Add a check that passed."""
        self.check(Check(name, "ok", expected, observed, unit, evidence or None))

    def stop(self, name: str, code: int, evidence: str, *, expected: object = None, observed: object = None) -> Stop:
        """Add a failed check and return the exception to raise."""
        self.check(Check(name, "fail", expected, observed, None, evidence, code))
        return Stop(evidence)

    def not_checked(self, name: str, why: str) -> None:
        """Add a check that could not be made; it is never counted as passed."""
        self.check(Check(name, "not_checked", None, None, None, why))

    def leads(self) -> dict[str, Any]:
        """Return what asks for each token's lead over the runner-up, nothing where asking would kill the engine.

        The first request for log probabilities compiles a kernel. On the CPU build that takes g++, and without it the
        engine dies (0.32.0: ``InvalidCxxCompiler``); GPU hosts have the compiler that Triton needs at every start.
        """
        return {"logprobs": True, "top_logprobs": 2} if self.host.has_gpu() or self.host.has_compiler() else {}

    def body(self, messages: Sequence[Mapping[str, Any]], max_tokens: int, **more: object) -> dict[str, Any]:
        """Return a greedy chat request that no earlier request can have warmed up."""
        return {
            "model": self.manifest.model_id,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "temperature": 0,
            "cache_salt": self.salt(),
            "return_token_ids": True,
            **more,
        }

    def boot(self, page: Page | None = None) -> str:
        """Return what identifies this start of the seat: systemd's invocation and the server's own start time."""
        state = self.host.unit()
        parts = [state.invocation[:12] if state else "", (boot_identity(page) or "") if page else ""]
        return "/".join(part for part in parts if part)

    def first_error(self, state: UnitState | None = None) -> str:
        """Return the first cause in the journal of a start of the unit (this one if not given), as a sentence."""
        state = state or self.host.unit()
        line = first_cause(self.host.journal(state)) if state else None
        advice = f"journalctl -u {self.manifest.unit}" if self.manifest.unit else "the server's log"
        return f"First error: {line} (all of it: {advice})" if line else f"See {advice}"


def user(text: str) -> list[dict[str, str]]:
    """Return a chat of one user message."""
    return [{"role": "user", "content": text}]
