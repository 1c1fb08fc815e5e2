"""The state of a host's seats as Prometheus text, for what vLLM's own ``/metrics`` cannot say.

That a seat is down, loops, runs another generation than the one on disk, or has an alias that a key cannot call, is
nothing its own server could report. ``files/observability`` has the alerts and the dashboard over both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..health.acceptance import band
from .status import SeatStatus

# name, type, help; the order of the page. The alerts, the dashboard and docs/observability.md use these names.
METRICS: tuple[tuple[str, str, str], ...] = (
    ("seatfleet_export_timestamp_seconds", "gauge", "When this page was written."),
    ("seatfleet_host_memory_available_bytes", "gauge", "Memory that can be had without swapping."),
    ("seatfleet_host_memory_floor_bytes", "gauge", "Below this the host is in danger."),
    ("seatfleet_seat_info", "gauge", "What is installed; always 1."),
    ("seatfleet_seat_running", "gauge", "1 while systemd has a main process for the seat."),
    ("seatfleet_seat_stopped", "gauge", "1 while an operator has taken the seat out of service."),
    ("seatfleet_seat_proven", "gauge", "1 when the probes of the running generation have passed on this host."),
    ("seatfleet_seat_started_timestamp_seconds", "gauge", "When the seat's process started."),
    ("seatfleet_seat_ready_timeout_seconds", "gauge", "How long a start may take until READY, as declared."),
    ("seatfleet_seat_restarts_total", "counter", "Restarts by systemd since the last start by hand."),
    ("seatfleet_seat_drifted", "gauge", "Differences between the process and what the host has on disk."),
    ("seatfleet_seat_acceptance_minimum", "gauge", "Least acceptance length of a healthy drafter on any workload."),
    ("seatfleet_seat_acceptance_baseline", "gauge", "Acceptance length of the first healthy boots of this release."),
    ("seatfleet_gpu_foreign_processes", "gauge", "Processes on the host's cards that belong to no seat."),
    ("seatfleet_alias_proof_ok", "gauge", "1 when the last proof of key and alias came out as expected."),
    ("seatfleet_alias_proof_timestamp_seconds", "gauge", "When keys and aliases were proven last."),
)

Sample = tuple[str, Mapping[str, object], float]


@dataclass(frozen=True)
class Drafter:
    """How a seat speculates, and the minima it declares per workload; what the least healthy AL follows from."""

    method: str
    k: int
    declared: Mapping[str, float]


def samples(
    host: str,
    statuses: Sequence[SeatStatus],
    drafters: Mapping[str, Drafter],
    *,
    now: float,
    memory: tuple[int, int],
    proof: Mapping[str, Any],
    proven_at: float | None,
) -> list[Sample]:
    """Return every sample of a host. ``memory`` is available and floor in bytes, ``proof`` the gateway's evidence."""
    own = {"host": host}
    found: list[Sample] = [
        ("seatfleet_export_timestamp_seconds", own, now),
        ("seatfleet_host_memory_available_bytes", own, memory[0]),
        ("seatfleet_host_memory_floor_bytes", own, memory[1]),
        ("seatfleet_gpu_foreign_processes", own, len(statuses[0].foreign) if statuses else 0),
    ]
    for status in statuses:
        found += _seat(status, {**own, "seat": status.seat}, drafters.get(status.seat))
    for cell in proof.get("cells") or ():
        labels = {**own, "alias": cell["alias"], "key": cell["key"], "expected": cell["expected"]}
        found.append(("seatfleet_alias_proof_ok", labels, int(bool(cell["ok"]))))
    if proven_at is not None:
        found.append(("seatfleet_alias_proof_timestamp_seconds", own, proven_at))
    return found


def _seat(status: SeatStatus, labels: Mapping[str, object], drafter: Drafter | None) -> Iterable[Sample]:
    info = {**labels, "release": status.release or "", "generation": status.generation or ""}
    yield "seatfleet_seat_info", info, 1
    yield "seatfleet_seat_running", labels, int(status.running)
    yield "seatfleet_seat_stopped", labels, int(status.stopped is not None)
    yield "seatfleet_seat_proven", labels, int(status.good)
    yield "seatfleet_seat_restarts_total", labels, status.restarts
    yield "seatfleet_seat_drifted", labels, len(status.drifted)
    if status.started is not None:
        yield "seatfleet_seat_started_timestamp_seconds", labels, status.started
    if status.ready_timeout_s is not None:
        yield "seatfleet_seat_ready_timeout_seconds", labels, status.ready_timeout_s
    for workload, length in status.baseline.items():
        yield "seatfleet_seat_acceptance_baseline", {**labels, "workload": workload}, round(length, 4)
    if drafter:
        yield "seatfleet_seat_acceptance_minimum", labels, round(least_acceptance(drafter, status.baseline), 4)


def least_acceptance(drafter: Drafter, baseline: Mapping[str, float]) -> float:
    """Return the least AL that is healthy on any workload: live traffic is a mix that nobody knows.

    By the bands of the probe, over the workloads that are declared or have a baseline; without any, what is broken.
    """
    bands = [
        band(
            drafter.method,
            drafter.k,
            workload,
            declared=drafter.declared.get(workload),
            baseline=[baseline[workload]] if workload in baseline else (),
        )
        for workload in sorted({*drafter.declared, *baseline} or {"prose"})
    ]
    return min(one.least if one.least is not None else one.broken_below for one in bands)


def prometheus_text(found: Sequence[Sample]) -> str:
    """Return samples as Prometheus text, in the order of :data:`METRICS`."""
    lines = []
    for name, kind, text in METRICS:
        own = [f"{name}{_labels(labels)} {value!r}" for one, labels, value in found if one == name]
        if own:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *own]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, object]) -> str:
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"


def _escape(value: object) -> str:
    return str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
