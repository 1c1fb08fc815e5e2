"""What a probe found: checks, one verdict, one exit code, as JSON, as text and as Prometheus text.

The JSON form and the exit codes are an interface (``docs/probe.md``): fields are only ever added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..tables import aligned

SCHEMA = "seatfleet.probe/1"

LEVELS = ("passive", "ready", "identity", "acceptance", "prefix")

EXIT_READY = 0
EXIT_INTERNAL = 1
EXIT_USAGE = 2
EXIT_NOT_READY = 3
EXIT_BUSY = 4
EXIT_IDENTITY = 5
EXIT_COUNTERS = 6
EXIT_ACCEPT_BROKEN = 7
EXIT_ACCEPT_LOW = 8
EXIT_CANARY = 9
EXIT_TOOLCALL = 10
EXIT_PREFIX = 11

VERDICTS: Mapping[int, str] = {
    EXIT_READY: "READY",
    EXIT_INTERNAL: "INTERNAL",
    EXIT_USAGE: "USAGE",
    EXIT_NOT_READY: "NOT_READY",
    EXIT_BUSY: "BUSY",
    EXIT_IDENTITY: "IDENTITY",
    EXIT_COUNTERS: "COUNTERS",
    EXIT_ACCEPT_BROKEN: "ACCEPT_BROKEN",
    EXIT_ACCEPT_LOW: "ACCEPT_LOW",
    EXIT_CANARY: "CANARY",
    EXIT_TOOLCALL: "TOOLCALL",
    EXIT_PREFIX: "PREFIX",
}
# Worst first: no answer, somebody else's answer, wrong answers, then what only costs speed; busy decides nothing.
_SEVERITY = (
    EXIT_INTERNAL,
    EXIT_USAGE,
    EXIT_NOT_READY,
    EXIT_IDENTITY,
    EXIT_CANARY,
    EXIT_ACCEPT_BROKEN,
    EXIT_COUNTERS,
    EXIT_TOOLCALL,
    EXIT_PREFIX,
    EXIT_ACCEPT_LOW,
    EXIT_BUSY,
)


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. ``exit`` is the code it causes when its status is ``fail`` or ``busy``."""

    id: str
    status: str
    expected: object = None
    observed: object = None
    unit: str | None = None
    evidence: str | None = None
    exit: int = EXIT_READY

    def as_json(self) -> dict[str, object]:
        """Return the check in its published form."""
        return {
            "id": self.id,
            "status": self.status,
            "expected": self.expected,
            "observed": self.observed,
            "unit": self.unit,
            "evidence": self.evidence,
        }


@dataclass
class Report:
    """Everything one run of the probe found about one seat."""

    seat: str
    host: str
    level: str
    started_utc: str
    release_id: str
    generation: str
    duration_s: float = 0.0
    ready_s: float | None = None
    boot_id: str | None = None
    vllm_version: str | None = None
    kv_cache_tokens: int | None = None
    checks: list[Check] = field(default_factory=list)
    acceptance: dict[str, dict[str, Any]] = field(default_factory=dict)
    ttft_s: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def exit(self) -> int:
        """The code of the worst finding; a failed check without a code is an internal error."""
        codes = {check.exit or EXIT_INTERNAL for check in self.checks if check.status in ("fail", "busy")}
        return next((code for code in _SEVERITY if code in codes), EXIT_READY)

    @property
    def cause(self) -> str | None:
        """The evidence of the finding that decided the exit code, None when all is well."""
        code = self.exit
        for check in self.checks:
            if check.status in ("fail", "busy") and (check.exit or EXIT_INTERNAL) == code:
                detail = check.evidence or f"expected {check.expected}, seen {check.observed}"
                return f"{check.id}: {detail}"
        return None

    def as_json(self) -> dict[str, object]:
        """Return the published form, fields always in this order."""
        return {
            "schema": SCHEMA,
            "seat": self.seat,
            "host": self.host,
            "level": self.level,
            "verdict": VERDICTS[self.exit],
            "exit": self.exit,
            "cause": self.cause,
            "started_utc": self.started_utc,
            "duration_s": round(self.duration_s, 3),
            "ready_s": None if self.ready_s is None else round(self.ready_s, 3),
            "boot_id": self.boot_id,
            "vllm_version": self.vllm_version,
            "release_id": self.release_id,
            "generation": self.generation,
            "kv_cache_tokens": self.kv_cache_tokens,
            "checks": [check.as_json() for check in self.checks],
            "acceptance": self.acceptance,
            "ttft_s": self.ttft_s,
            "warnings": self.warnings,
        }


_COLUMNS = ("host", "seat", "release", "verdict", "READY s", "KV tokens", "AL", "warnings")


def _row(result: Mapping[str, Any]) -> tuple[str, ...]:
    lengths = " ".join(f"{name}={values['al']:.2f}" for name, values in (result.get("acceptance") or {}).items())
    ready, tokens = result.get("ready_s"), result.get("kv_cache_tokens")
    return (
        str(result.get("host") or ""),
        str(result.get("seat") or ""),
        str(result.get("release_id") or ""),
        str(result.get("verdict") or ""),
        "-" if ready is None else f"{ready:.1f}",
        "-" if tokens is None else f"{tokens:,}",
        lengths or "-",
        str(len(result.get("warnings") or [])),
    )


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return one line per seat under a heading, then each cause and warning in full.

    ``results`` are reports in JSON form, from any number of hosts.
    """
    if not results:
        return "no seats here, nothing was probed"
    lines = list(aligned([_COLUMNS, *(_row(result) for result in results)]))
    for result in results:
        seat = f"{result.get('host')}/{result.get('seat')}"
        if result.get("cause"):
            lines.append(f"{seat}: {result.get('verdict')}: {result['cause']}")
        lines += [f"{seat}: warning: {text}" for text in result.get("warnings") or []]
    return "\n".join(lines)


def _escape(text: object) -> str:
    return str(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def prometheus_text(result: Mapping[str, Any], now: float) -> str:
    """Return a report as Prometheus text for node_exporter's textfile collector. ``now`` is seconds since the epoch."""
    seat = f'host="{_escape(result["host"])}",seat="{_escape(result["seat"])}"'
    metrics: list[tuple[str, str, list[tuple[str, object]]]] = [
        ("seatfleet_probe_exit_code", "Exit code of the last probe; 0 is READY, 4 is BUSY.", [("", result["exit"])]),
        ("seatfleet_probe_timestamp_seconds", "When the last probe ended.", [("", f"{now:.3f}")]),
        ("seatfleet_probe_duration_seconds", "How long the last probe took.", [("", result["duration_s"])]),
        (
            "seatfleet_probe_info",
            "What was probed.",
            [
                (
                    f',level="{_escape(result["level"])}",verdict="{_escape(result["verdict"])}"'
                    f',release="{_escape(result["release_id"])}",generation="{_escape(result["generation"])}"',
                    1,
                )
            ],
        ),
        (
            "seatfleet_probe_check",
            "1 for the status a check has.",
            [(f',check="{_escape(one["id"])}",status="{_escape(one["status"])}"', 1) for one in result["checks"]],
        ),
        (
            "seatfleet_probe_acceptance_length",
            "Tokens per step, 1 to k + 1.",
            [(f',workload="{_escape(name)}"', values["al"]) for name, values in result["acceptance"].items()],
        ),
    ]
    lines = []
    for name, text, samples in metrics:
        if samples:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
            lines += [f"{name}{{{seat}{labels}}} {value}" for labels, value in samples]
    return "\n".join(lines) + "\n"
