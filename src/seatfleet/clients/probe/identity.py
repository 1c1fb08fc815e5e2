"""Identity: the running engine has the names, context, KV memory, speculation and flags that the manifest declares."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...core.health import acceptance
from ...core.health.declared import compare, parse_non_default_args
from ...core.health.metrics import Page
from ...core.health.probe_report import EXIT_IDENTITY, Check
from ...core.model.modelconfig import UnknownModelError, parse_config
from ...core.model.planner import Engine, Layout, PlanError, layout_of, parse_version, plan
from ..vllm import SeatError
from .session import Session, user

CACHE_CONFIG = "vllm:cache_config_info"
# 0.23: "GPU KV cache size: 332,721 tokens"; 0.28 and later put the concurrency on the same line.
_KV_LINE = re.compile(r"KV cache size: ([\d,]+) tokens")
_JOURNAL_PATTERN = "KV cache size:|non-default args:"
_RELEASE = re.compile(r"(\d+\.\d+\.\d+\S*?)(?:\+\S+)?-[0-9a-f]{12}")


def check_identity(session: Session) -> None:
    """Add one check per declared property; all are made, whatever the first ones say."""
    _names_and_context(session)
    _version(session)
    page = session.client.metrics()
    session.report.boot_id = session.boot(page)
    state = session.host.unit()
    lines = session.host.journal(state, _JOURNAL_PATTERN) if state else []
    _kv_cache(session, page, lines)
    _speculation(session, page)
    _declared(session, page, lines)


def _compare(
    session: Session, name: str, expected: object, observed: object, *, unit: str | None = None, evidence: str
) -> None:
    status = "ok" if expected == observed else "fail"
    session.check(Check(name, status, expected, observed, unit, None if status == "ok" else evidence, EXIT_IDENTITY))


def _names_and_context(session: Session) -> None:
    manifest = session.manifest
    cards = session.client.models()
    # LoRA adapters are listed too; they have a parent and are not declared as names.
    names = sorted(card.id for card in cards)
    _compare(
        session,
        "served_names",
        sorted(manifest.served_names),
        names,
        evidence=f"expected the served names {sorted(manifest.served_names)}, the server has {names}",
    )
    lengths = {card.id: card.max_model_len for card in cards}
    seen = lengths.get(manifest.model_id)
    _compare(
        session,
        "max_model_len",
        manifest.max_model_len,
        seen,
        unit="tokens",
        evidence=f"declared {manifest.max_model_len}, /v1/models says {seen}: requests are cut off elsewhere",
    )
    try:
        _, limit = session.client.tokenize(manifest.model_id, user("context length?"))
    except SeatError as error:
        session.not_checked("max_model_len_tokenize", str(error))
        return
    _compare(
        session,
        "max_model_len_tokenize",
        manifest.max_model_len,
        limit,
        unit="tokens",
        evidence=f"declared {manifest.max_model_len}, /tokenize says {limit}",
    )


def _version(session: Session) -> None:
    seen = session.client.version()
    session.report.vllm_version = seen
    match = _RELEASE.fullmatch(session.manifest.release_id)
    if match is None:
        session.not_checked("version", f"release id {session.manifest.release_id!r} starts with no version")
        return
    _compare(
        session,
        "version",
        match[1],
        seen.split("+")[0],
        evidence=f"release {session.manifest.release_id}, but the server is vLLM {seen}: an older process still runs",
    )


def kv_cache_tokens(page: Page, lines: Sequence[str]) -> tuple[int | None, str]:
    """Return the size of the KV cache in tokens and where it was read; one engine's, they are alike."""
    for labels in page.infos(CACHE_CONFIG):
        text = labels.get("kv_cache_size_tokens", "None")  # a label from 0.28 on
        if text.isdigit():
            return int(text), CACHE_CONFIG
    for line in reversed(lines):
        match = _KV_LINE.search(line)
        if match:
            return int(match[1].replace(",", "")), "journal"
    return None, ""


def _kv_cache(session: Session, page: Page, lines: Sequence[str]) -> None:
    tokens, source = kv_cache_tokens(page, lines)
    session.report.kv_cache_tokens = tokens
    if tokens is None:
        session.not_checked("kv_cache_tokens", "neither vllm:cache_config_info nor the journal of this start has it")
        return
    _planned(session, tokens)
    needed = session.manifest.max_model_len
    session.check(
        Check(
            "kv_cache_tokens",
            "ok" if tokens >= needed else "fail",
            f">= {needed}",
            tokens,
            "tokens",
            f"from {source}; {tokens / needed:.2f} requests of full context",
            EXIT_IDENTITY,
        )
    )


def planned_layout(session: Session) -> Layout:
    """Return how the planner lays out the KV cache of this seat.

    Raises:
        UnknownModelError, PlanError, OSError, ValueError: it cannot, with the reason.
    """
    manifest = session.manifest
    if manifest.model_path is None:
        raise UnknownModelError("the manifest has no model path")
    declared = {flag.lstrip("-").replace("_", "-"): value for flag, value in manifest.declared.items()}
    engine = Engine(
        version=parse_version(session.report.vllm_version or "") or (),
        max_num_batched_tokens=declared.get("max-num-batched-tokens") or 8192,
        block_size=declared.get("block-size"),
        prefix_caching=manifest.prefix_caching,
        speculative_tokens=manifest.speculative.k if manifest.speculative else 0,
        method=manifest.speculative.method if manifest.speculative else None,
        tensor_parallel=declared.get("tensor-parallel-size") or 1,
        kv_cache_dtype=declared.get("kv-cache-dtype") or "auto",
        state_dtype=declared.get("mamba-ssm-cache-dtype") or "auto",
        cpu=not session.host.has_gpu(),
        pads_pages=True,  # the engine is running, so its pages were made equal
    )
    model = parse_config(_config(manifest.model_path))
    drafter = parse_config(_config(manifest.drafter_path)) if manifest.drafter_path else None
    return layout_of(model, engine, drafter)


def _planned(session: Session, tokens: int) -> None:
    """Compare the planner's number with the engine's; a difference is a warning, the engine is right."""
    manifest = session.manifest
    if manifest.kv_cache_memory_bytes is None:
        session.not_checked("planned_kv_tokens", "the manifest has no pinned KV memory")
        return
    try:
        found = plan(planned_layout(session), manifest.kv_cache_memory_bytes, manifest.max_model_len)
    except (UnknownModelError, PlanError, OSError, ValueError) as error:
        session.not_checked("planned_kv_tokens", f"not planned: {error}")
        return
    status = "ok" if found.tokens == tokens else "warn"
    why = f"the planner expects {found.tokens:,} ({found.confidence}), the engine has {tokens:,}"
    session.check(Check("planned_kv_tokens", status, found.tokens, tokens, "tokens", why))


def _config(directory: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return content


def _speculation(session: Session, page: Page) -> None:
    declared = session.manifest.speculative
    wanted, seen = (declared.k if declared else 0), acceptance.positions(page)
    present = acceptance.DRAFTS in page
    if present != (declared is not None):
        why = (
            f"the seat declares {declared.method} with k={declared.k}, but the engine has no speculative counters: it "
            "runs without speculation"
            if declared
            else "the seat declares no speculation, but the engine has its counters: it drafts all the same"
        )
        session.check(Check("speculation", "fail", wanted, seen, "positions", why, EXIT_IDENTITY))
        return
    _compare(
        session,
        "speculation",
        wanted,
        seen,
        unit="positions",
        evidence=f"declared k={wanted}, the engine drafts {seen} positions",
    )


def _declared(session: Session, page: Page, lines: Sequence[str]) -> None:
    """Compare every declared flag with the engine's own word."""
    labels = next(iter(page.infos(CACHE_CONFIG)), {})
    arguments = parse_non_default_args(lines)
    found = compare(session.manifest.declared, labels, arguments)
    for one in found:
        if one.status in ("fail", "warn"):
            why = f"{one.flag}: declared {one.declared!r}, the engine has {one.seen!r} ({one.source})"
            session.check(Check(f"declared.{one.flag}", one.status, one.declared, one.seen, None, why, EXIT_IDENTITY))
    unknown = [one.flag for one in found if one.status == "not_checked"]
    agreed = sum(one.status == "ok" for one in found)
    evidence = (
        f"reported by the engine nowhere (its default, or not kept in the journal): {', '.join(unknown)}"
        if unknown
        else ""
    )
    session.ok("declared", len(found), agreed, unit="flags", evidence=evidence)
