"""From a campaign's raw directory to everything its report says. Reads files, writes nothing.

:func:`analyse` returns plain JSON types; the same raw data gives the same result, which is what ``--verify`` relies on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from . import stats, tables
from .controls import Status, not_met
from .definition import Definition
from .global_controls import global_checks
from .measured import Measured, load, questions
from .rawdata import RawCampaign
from .verdicts import LOWER_IS_BETTER, NOT_ALONE, Finding, Verdict, decide, invisible, percent

SCHEMA = "seatfleet.campaign-report/1"


def analyse(raw: RawCampaign) -> dict[str, Any]:
    """Return the whole analysis of a campaign as plain JSON types."""
    measured = load(raw)
    definition = measured.definition
    checks = global_checks(measured)
    failed = [not_met(c.rule, c.title, c.detail) for c in checks if c.status is Status.FAIL]
    findings = decide(
        questions(measured), mode=definition.mode, margin=definition.margin, no_verdict="; ".join(failed) or None
    )
    return {
        "schema": SCHEMA,
        "campaign": _campaign(measured),
        "answer": answer(definition, findings, failed),
        "no_verdict": failed,
        "findings": [_finding(finding) for finding in findings],
        "cells": tables.cell_table(measured),
        "acceptance": tables.acceptance_table(measured),
        "steps": tables.step_table(measured),
        "latency": tables.latency_table(measured),
        "components": tables.component_table(measured),
        "amortization": tables.dense_levers(measured),
        "sentences": tables.sentences(definition),
        "checks": [asdict(check) for check in (*checks, *measured.voids.checks)],
        "void_arms": dict(measured.voids.arms),
        "void_boots": dict(measured.voids.boots),
        "arms": tables.arm_table(measured),
        "kv": tables.kv_table(measured),
        "boots": tables.boot_table(measured),
        "tool_calls": tables.tool_calls(measured),
        "provenance": next(iter(measured.infos.values()))["provenance"] if measured.infos else {},
    }


def _campaign(measured: Measured) -> dict[str, Any]:
    manifest, definition = measured.manifest, measured.definition
    control = sum(boot.arm.id == definition.control for boot in measured.valid)
    studied = [a for a in definition.studied_arms if a not in definition.positive_controls]
    least = min((sum(b.arm.id == a for b in measured.valid) for a in studied), default=0)
    power = stats.design_power(control, least, len(studied)) if control and least and control + least > 2 else None
    return {
        "id": manifest["campaign_id"],
        "name": definition.name,
        "seat": definition.seat,
        "host": manifest["host"],
        "question": definition.question,
        "created_utc": manifest["created_utc"],
        "mode": definition.mode,
        "order": [boot.arm.id for boot in measured.boots],
        "studied_keys": list(definition.studied_keys),
        "control": definition.control,
        "margin": definition.margin,
        "primary": asdict(definition.primary),
        "reps": definition.reps,
        "sampling": dict(definition.sampling),
        "compile_cache": definition.compile_cache,
        "placement": "shadow" if definition.shadow else "in place",
        "overrides": manifest.get("overrides", {}),
        "shapes": manifest.get("shapes", {}),
        "gaps": manifest.get("gaps", []),
        "redone": manifest.get("redone", []),
        "aborted": manifest.get("aborted", []),
        "synthetic": definition.synthetic,
        "design": asdict(power) if power else None,
        "smallest_permutation_p": stats.smallest_permutation_p(control, least) if control and least else None,
        "client_sha256": manifest["client"]["sha256"],
        "source": manifest["source"],
    }


def answer(definition: Definition, findings: Sequence[Finding], failed: Sequence[str]) -> str:
    """Return the answer in one sentence, for somebody who reads nothing else."""
    if failed:
        return f"No verdict: {failed[0]}."
    by_contrast: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.question.primary:
            by_contrast.setdefault(finding.question.contrast, []).append(finding)
    parts = [
        f"{contrast.replace('-vs-', ' against ')}: {', '.join(_phrase(f) for f in found)}"
        for contrast, found in by_contrast.items()
    ]
    lead = "A screen decides nothing. " if definition.mode == "screen" else ""
    return lead + ("; ".join(parts) if parts else "Nothing was compared") + "."


def _phrase(finding: Finding) -> str:
    place = f"at {finding.question.shape} c={finding.question.concurrency}"
    if finding.verdict is Verdict.VOID:
        return f"void {place} ({finding.reason.partition(':')[2].strip().partition(':')[0] or finding.reason})"
    effect = "" if finding.effect is None else percent(finding.effect)
    floor = "" if finding.floor is None else invisible(finding.floor)
    if finding.verdict is Verdict.CANNOT_RESOLVE and finding.reason.startswith(NOT_ALONE):
        return f"not resolved {place} ({effect}, {NOT_ALONE})"
    return {
        Verdict.WIN: f"better {place} ({effect})",
        Verdict.LOSS: f"worse {place} ({effect})",
        Verdict.EQUIVALENT: f"no difference that matters {place} ({effect})",
        Verdict.SCREEN_CANDIDATE: f"worth a second look {place} ({effect}, {floor})",
    }.get(finding.verdict, f"not resolved {place} ({floor})")


def _finding(finding: Finding) -> dict[str, Any]:
    question = finding.question
    return {
        "contrast": question.contrast,
        "weights": dict(question.weights),
        "metric": question.metric,
        "lower_is_better": question.metric in LOWER_IS_BETTER,
        "shape": question.shape,
        "concurrency": question.concurrency,
        "family": "primary" if question.primary else "exploratory",
        "verdict": finding.verdict.value,
        "reason": finding.reason,
        "effect": finding.effect,
        "interval_95": _pair(finding.interval),
        "interval_adjusted": _pair(finding.interval_adjusted),
        "interval_90": _pair(finding.interval_90),
        "p": finding.p,
        "p_adjusted": finding.p_adjusted if question.primary else None,
        "floor": finding.floor,
        "mde80": finding.mde80,
        "df": finding.df,
        "boots": dict(finding.boots),
        "notes": list(question.notes),
    }


def _pair(pair: tuple[float, float] | None) -> list[float] | None:
    return None if pair is None else list(pair)
