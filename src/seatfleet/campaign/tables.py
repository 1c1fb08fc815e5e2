"""The tables of a report, as plain JSON types."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from statistics import fmean, median
from typing import Any

from . import amortization, observe, parity, stats
from .definition import Definition
from .measured import CellKey, Measured, boots_of, cells_of, repetitions
from .observe import pooled_acceptance
from .stats import Components, NotEstimable

Row = dict[str, Any]


def cell_table(measured: Measured) -> list[Row]:
    """One row per boot, cell and kind: the median of each metric over the repetitions."""
    rows: list[Row] = []
    for boot in measured.boots:
        for kind, key in dict.fromkeys((cell.kind, cell.key) for cell in boot.cells):
            reps = [cell.metrics for cell in boot.cells if cell.kind == kind and cell.key == key]
            names = dict.fromkeys(name for rep in reps for name in rep)
            rows.append(
                {
                    "boot": boot.name,
                    "arm": boot.arm.id,
                    "kind": kind,
                    "shape": key[0],
                    "concurrency": key[1],
                    "reps": len(reps),
                    "metrics": {name: median(rep[name] for rep in reps if name in rep) for name in names},
                }
            )
    return sorted(rows, key=lambda row: (row["boot"], row["kind"], row["shape"], row["concurrency"]))


def acceptance_table(measured: Measured) -> list[Row]:
    """One row per speculative arm and shape: acceptance length, per position, and tokens per chunk beside it."""
    if measured.definition.synthetic:
        return []
    rows: list[Row] = []
    for arm in measured.definition.arms:
        for use in measured.definition.shapes:
            found = pooled_acceptance(c for c in cells_of(measured, arm.id) if c.shape == use.name)
            if not arm.draft_tokens or found is None or not found.drafts:
                continue
            chunks = observe.tokens_per_chunk(
                r for c in cells_of(measured, arm.id) if c.shape == use.name and c.concurrency == 1 for r in c.completed
            )
            rates = list(found.rates)
            rows.append(
                {
                    "arm": arm.id,
                    "shape": use.name,
                    "k": arm.draft_tokens,
                    "acceptance_length": found.length,
                    "rates": rates,
                    "conditional": [
                        rate / before if before else 0.0 for before, rate in zip([1.0, *rates], rates, strict=False)
                    ],
                    "drafts": found.drafts,
                    "tokens_per_chunk": {str(n): chunks.count(n) for n in sorted(set(chunks))},
                    "tokens_per_chunk_mean": fmean(chunks) if chunks else None,
                }
            )
    return rows


def _geometric(values: Iterable[float]) -> float | None:
    logs = [math.log(value) for value in values]
    return math.exp(fmean(logs)) if logs else None


def _arm_value(measured: Measured, arm: str, key: CellKey, metric: str) -> float | None:
    return _geometric(
        median(reps)
        for boot in measured.boots
        if boot.arm.id == arm and boot.name not in measured.voids.boots and (reps := repetitions(boot, key, metric))
    )


def step_table(measured: Measured) -> list[Row]:
    """Step time, acceptance and break-even per arm and cell: why an arm wins or loses."""
    if measured.definition.synthetic:
        return []
    rows: list[Row] = []
    for key in measured.cell_keys():
        off = _arm_value(measured, measured.definition.control, key, "step_ms")
        for arm in measured.definition.arms:
            step = _arm_value(measured, arm.id, key, "step_ms")
            found = pooled_acceptance(cells_of(measured, arm.id, key))
            if step is None:
                continue
            rows.append(
                {
                    "arm": arm.id,
                    "shape": key[0],
                    "concurrency": key[1],
                    "step_ms": step,
                    "acceptance_length": found.length if found is not None and found.drafts else 1.0,
                    "break_even": amortization.break_even(step, off) if off else None,
                    "void": arm.id in measured.voids.arms,
                }
            )
    return rows


def latency_table(measured: Measured) -> list[Row]:
    """One row per arm and cell: percentiles of first-token wait and time per token, where there are enough."""
    rows: list[Row] = []
    for key in measured.cell_keys():
        for arm in measured.definition.arms:
            done = [request for cell in cells_of(measured, arm.id, key) for request in cell.completed]
            waits = [value for request in done if (value := observe.ttft_ms(request)) is not None]
            per_token = [value for request in done if (value := observe.tpot_ms(request)) is not None]
            rows.append(
                {
                    "arm": arm.id,
                    "shape": key[0],
                    "concurrency": key[1],
                    "n": len(waits),
                    "ttft_ms": observe.percentiles(waits),
                    "tpot_ms": observe.percentiles(per_token),
                    "ttft_points": thinned(waits),
                    "tpot_points": thinned(per_token),
                }
            )
    return rows


def thinned(values: list[float], points: int = 60) -> list[float]:
    """Return the values in rising order, at most so many of them, evenly spread with both ends: for drawing."""
    ordered = sorted(values)
    if len(ordered) <= points:
        return ordered
    return [ordered[round(i * (len(ordered) - 1) / (points - 1))] for i in range(points)]


def component_table(measured: Measured) -> list[Row]:
    """Where the noise of the primary metric is: between repetitions or between boots."""
    rows: list[Row] = []
    metric = measured.definition.primary.metric
    for key in measured.cell_keys():
        values: dict[str, list[list[float]]] = {}
        for boot in measured.valid:
            reps = repetitions(boot, key, metric)
            if reps:
                values.setdefault(boot.arm.id, []).append([math.log(rep) for rep in reps])
        found = stats.variance_components(values) if values else None
        if found is not None:
            rows.append(
                {
                    "shape": key[0],
                    "concurrency": key[1],
                    "repetition_sd": math.sqrt(found.repetition),
                    "boot_sd": math.sqrt(found.boot),
                    "advice": found.advice,
                    "repetitions": _best_repetitions(measured, found),
                }
            )
    return rows


def _best_repetitions(measured: Measured, found: Components) -> int | None:
    costs = [info["cost"] for info in measured.infos.values() if info["cost"]["rep_s"] > 0]
    if not costs:
        return None
    return stats.repetitions(found, fmean(c["rep_s"] for c in costs), fmean(c["boot_s"] for c in costs))


def dense_levers(measured: Measured) -> list[Row]:
    """One row per shape: what a dense lever gave under speculation, beside what two formulas predict."""
    arms = measured.definition.amortization
    if arms is None:
        return []
    void = [name for name in asdict(arms).values() if name in measured.voids.arms]
    if void:
        return [{"shape": use.name, "refused": f"void: {', '.join(void)}"} for use in measured.definition.shapes]
    rows: list[Row] = []
    for use in measured.definition.shapes:
        key = (use.name, 1)
        rates = {name: _arm_value(measured, arm, key, "decode_only_tok_s") for name, arm in asdict(arms).items()}
        found = pooled_acceptance(cells_of(measured, arms.spec, key))
        if found is None or not found.drafts or not all(rates.values()):
            continue
        try:
            boots = boots_of(measured, key, "decode_only_tok_s")
            low, high = stats.estimate(boots, {arms.spec_lever: 1.0, arms.spec: -1.0}).interval()
            result = amortization.amortization(
                off_tok_s=rates["off"] or 0.0,
                off_lever_tok_s=rates["off_lever"] or 0.0,
                spec_tok_s=rates["spec"] or 0.0,
                spec_lever_tok_s=rates["spec_lever"] or 0.0,
                acceptance_length=found.length,
                measured_interval=(math.expm1(low), math.expm1(high)),
            )
        except (NotEstimable, ValueError) as error:
            rows.append({"shape": use.name, "refused": str(error)})
        else:
            rows.append({"shape": use.name, **asdict(result), "interval_95": [math.expm1(low), math.expm1(high)]})
    return rows


def sentences(definition: Definition) -> list[str]:
    """Sentences on what verification multiplies on this model."""
    facts = definition.model_facts
    synthetic = (
        "Acceptance is fabricated in this campaign (synthetic): its speeds are what a drafter with such an acceptance "
        "would give, and nothing in it says anything about a drafter, or about speed with real acceptance."
    )
    found = [synthetic] if definition.synthetic else []
    if facts is None:
        return found
    return found + [
        amortization.amplification_sentence(facts.experts, facts.active_experts, k, facts.host_table)
        for k in sorted({arm.draft_tokens for arm in definition.arms if arm.draft_tokens})
    ]


def arm_table(measured: Measured) -> list[Row]:
    """One row per arm: what differs by intent, and what the engine made of it."""
    resolved: dict[str, Mapping[str, Any]] = {}
    for info in measured.infos.values():
        resolved.setdefault(info["arm"], info["resolved"])
    control = measured.definition.control
    induced = parity.induced_differences(resolved, control) if control in resolved else {}
    rows: list[Row] = []
    for arm in measured.definition.arms:
        first = next((info for info in measured.infos.values() if info["arm"] == arm.id), None)
        rows.append(
            {
                "id": arm.id,
                "values": {key: value for key, value in arm.values.items() if key in measured.definition.studied_keys},
                "argv_hash": first["argv_hash"] if first else None,
                "base_hash": first["base_hash"] if first else None,
                "changes": first["changes"] if first else {},
                "resolved": dict(resolved.get(arm.id, {})),
                "induced": {name: list(pair) for name, pair in induced.get(arm.id, {}).items()},
                "positive_control": arm.id in measured.definition.positive_controls,
                "void": measured.voids.arms.get(arm.id),
            }
        )
    return rows


def kv_table(measured: Measured) -> list[Row]:
    """One row per arm that says it: KV tokens, and how many its drafter costs beside the control's."""
    tokens: dict[str, int] = {}
    for info in measured.infos.values():
        size = str(info["resolved"].get("kv_cache_size_tokens"))
        if size.isdigit():
            tokens.setdefault(info["arm"], int(size))
    off = tokens.get(measured.definition.control)
    return [
        {
            "arm": arm.id,
            "k": arm.draft_tokens,
            "tokens": tokens[arm.id],
            "lost": None if off is None else off - tokens[arm.id],
            "lost_share": None if not off else 1 - tokens[arm.id] / off,
        }
        for arm in measured.definition.arms
        if arm.id in tokens
    ]


def boot_table(measured: Measured) -> list[Row]:
    """One row per boot: when, how long to READY, why void, telemetry."""
    return [
        {
            "boot": boot.name,
            "arm": boot.arm.id,
            "block": boot.block,
            "started_utc": measured.infos[boot.name]["started_utc"],
            "ready_s": measured.infos[boot.name]["ready_s"],
            "void": measured.voids.boots.get(boot.name) or measured.voids.arms.get(boot.arm.id),
            "telemetry": asdict(boot.telemetry) if boot.telemetry else None,
        }
        for boot in measured.boots
    ]


def tool_calls(measured: Measured) -> list[Row]:
    """How often tool calls fitted what was offered: speculation has corrupted them (vllm #41967, #35800)."""
    rows: list[Row] = []
    for arm in measured.definition.arms:
        calls = [r.tool_call_ok for c in cells_of(measured, arm.id) for r in c.completed if r.tool_call_ok is not None]
        if calls:
            rows.append({"arm": arm.id, "n": len(calls), "ok": sum(calls) / len(calls)})
    return rows
