"""Warm prefix, tool call and prompt lengths: what only shows with prompts longer than a greeting.

Hits decide, the ratio of first-token times informs. A warm answer must be the cold one: a hit that restores less state
than it claims gives fluent wrong text with status 200.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.health import acceptance as core
from ...core.health.metrics import Delta, MetricsError, Page, delta
from ...core.health.probe_report import EXIT_CANARY, EXIT_PREFIX, EXIT_TOOLCALL, Check
from ...core.model.modelconfig import UnknownModelError
from ...core.model.planner import PlanError
from ...headroom.prompts import sized
from ..vllm import Completion, Kind, SeatError
from .acceptance import require_light_load, settled
from .canary import NO_THINKING, compare_tokens
from .identity import CACHE_CONFIG, planned_layout
from .session import Session, user

_QUERIES = "vllm:prefix_cache_queries_total"
_HITS = "vllm:prefix_cache_hits_total"
_DOCUMENT_TOKENS = 4096
#: Hybrid models keep states at sparse points: an aligned build without its patches hits nothing below 10,000 tokens.
_HYBRID_TOKENS = 12_000
_ANSWER_TOKENS = 96
_LADDER = (16, 100, 2_000, 16_000)
_NEEDLE_TOKENS = 2_000
#: The last step of the ladder, where the context is longer than 16,000. Deeper is the headroom probe's, off the air.
_DEEP_TOKENS = 65_536
#: Room for the chat template around a document.
_TEMPLATE_TOKENS = 64
#: Methods whose drafter makes vLLM give up the last matching block of a hit.
_DROPS_A_BLOCK = frozenset({"mtp", "eagle", "eagle3", "dflash", "deepseek_mtp"})
_AL_WARN, _AL_FAIL = 0.95, 0.75
_AL_DRAFTS = 20


@dataclass(frozen=True)
class Turn:
    """One request of the prefix check and what the counters did meanwhile."""

    answer: Completion
    increments: Delta
    acceptance: core.Acceptance | None


def check_prefix(session: Session) -> None:
    """Send one document twice under one salt: the second time it must be a hit, and the answer the same."""
    require_light_load(session)
    page = session.client.metrics()
    block = _block_tokens(page)
    hybrid = page.infos(CACHE_CONFIG)[0].get("mamba_cache_mode", "none") != "none" if CACHE_CONFIG in page else False
    if not session.manifest.prefix_caching:
        _expect_no_hits(session)
        return
    planned = _planned_block(session)
    block = max(block, planned or 0)
    least = _DOCUMENT_TOKENS if planned is not None or not hybrid else _HYBRID_TOKENS
    # Two blocks and a little: one may be given up for a drafter, and the last token is always computed.
    wanted = max(least, 2 * block + _TEMPLATE_TOKENS)
    messages, tokens = _document(session, wanted)
    if tokens <= block:
        session.not_checked("prefix", f"a block has {block} tokens, the context leaves room for {tokens}")
        return
    salt = session.salt()
    cold, warm = (_turn(session, messages, salt) for _ in range(2))
    _hits(session, tokens, block, hybrid, cold, warm)
    _same_answer(session, messages, cold, warm)
    _same_acceptance(session, cold, warm)
    first, second = cold.answer.ttft_s or 0.0, warm.answer.ttft_s or 0.0
    session.report.ttft_s.update(
        cold=round(first, 4), warm=round(second, 4), ratio=round(first / second, 2) if second else 0.0
    )


def _planned_block(session: Session) -> int | None:
    """Return the tokens between two places at which every kind of layer can be taken up again, as the planner has it.

    The engine reports one kind's block. On a hybrid model with a drafter of another page size the kinds differ (2,240
    and 4,480), and a hit ends where all of them end. None for a model that is not planned.
    """
    try:
        layout = planned_layout(session)
    except (UnknownModelError, PlanError, OSError, ValueError) as error:
        session.not_checked("prefix.planned", f"not planned: {error}")
        return None
    block = math.lcm(*(group.block_tokens for group in layout.groups))
    session.ok("prefix.planned", block, block, unit="tokens", evidence=f"of all kinds of layers ({layout.confidence})")
    return block


def _block_tokens(page: Page) -> int:
    """Return the tokens per block that prefix hits come in."""
    for labels in page.infos(CACHE_CONFIG):
        for name in ("effective_attention_block_size", "block_size"):
            if labels.get(name, "").isdigit():
                return int(labels[name])
    raise MetricsError(f"{CACHE_CONFIG} has no block size")


_SUBJECTS = (
    "The night watch",
    "A surveyor",
    "The older clerk",
    "Nobody in the village",
    "The second mate",
    "Her cousin",
)
_VERBS = ("counted", "sold", "remembered", "painted", "misplaced", "described", "repaired", "carried home")
_THINGS = (
    "lanterns",
    "ledgers",
    "oars",
    "copper kettles",
    "maps",
    "bells",
    "apple trees",
    "letters",
    "doors",
    "clocks",
)


def _sentences(count: int) -> str:
    """Return numbered sentences in an order nobody can have cached."""
    order = random.sample(range(10_000, 100_000), count)
    return " ".join(
        f"{random.choice(_SUBJECTS)} {random.choice(_VERBS)} {number} {random.choice(_THINGS)}." for number in order
    )


def _document(session: Session, wanted: int) -> tuple[list[dict[str, str]], int]:
    """Return a chat of ``wanted`` prompt tokens or a little more, less when the context is short, and their count."""
    limit = session.manifest.max_model_len - _ANSWER_TOKENS - _TEMPLATE_TOKENS
    target = min(wanted, limit)
    sample = user(_sentences(20))
    per_sentence, _ = session.client.tokenize(session.manifest.model_id, sample)
    count = max(1, int(target / (per_sentence / 20)))
    grow = wanted < limit
    while True:
        messages = user(f"{_sentences(count)} Summarize this in three sentences.")
        tokens, _ = session.client.tokenize(session.manifest.model_id, messages)
        if tokens > limit and count > 1:
            count, grow = max(1, int(count * 0.9)), False
        elif tokens < target and grow:  # the sample's share of the chat template makes a sentence look longer
            count = math.ceil(count * target / tokens * 1.02)
        else:
            return messages, tokens


def _turn(session: Session, messages: list[dict[str, str]], salt: str) -> Turn:
    speculative = session.manifest.speculative is not None
    names = (_QUERIES, _HITS, *(core.COUNTERS if speculative else ()))
    before = session.client.metrics()
    body = session.body(messages, _ANSWER_TOKENS, cache_salt=salt, **session.leads())
    answer = session.client.stream(body)
    increments = delta(before, settled(session, before, 1), names)
    return Turn(answer, increments, core.from_delta(increments) if speculative else None)


def _expect_no_hits(session: Session) -> None:
    """Check that a seat with prefix caching off never hits: else the flag was dropped on the way to the engine."""
    messages, _ = _document(session, _DOCUMENT_TOKENS // 4)
    salt = session.salt()
    turns = [_turn(session, messages, salt) for _ in range(2)]
    hits = int(turns[1].increments.total(_HITS))
    why = f"{hits} tokens were hits, but the seat has prefix_caching: false" if hits else None
    session.check(Check("prefix.off", "fail" if hits else "ok", 0, hits, "tokens", why, EXIT_PREFIX))


def expected_hits(tokens: int, block: int, method: str | None) -> int:
    """Return the tokens of a repeated prompt that must be hits: whole blocks, never the last token.

    One block less with a drafter that looks at the last hidden state: vLLM drops that block to compute it again.
    """
    blocks = (tokens - 1) // block
    return max(0, blocks - (1 if method in _DROPS_A_BLOCK else 0)) * block


def _hits(session: Session, tokens: int, block: int, hybrid: bool, cold: Turn, warm: Turn) -> None:
    foreign = int(warm.increments.total(_QUERIES)) != warm.answer.prompt_tokens
    hits = int(warm.increments.total(_HITS))
    if foreign:
        session.not_checked("prefix.hits", "others used the seat meanwhile: the counters are not the probe's alone")
        return
    speculative = session.manifest.speculative
    method = speculative.method if speculative else None
    # Where a hybrid model keeps its states depends on the build: there only "some" is asked for.
    expected = block if hybrid else expected_hits(tokens, block, method)
    status = "ok" if hits >= expected else "fail"
    hint = (
        "Likely on a hybrid model: the release lacks the patches that align states with blocks"
        if hybrid
        else "Likely: prefix caching is off in the engine, or a drafter makes it give up every block"
    )
    why = f"{hits} of {tokens} prompt tokens were hits the second time, blocks of {block}"
    if status == "fail":
        why = f"{why}. {hint}"
    session.check(Check("prefix.hits", status, f">= {expected}", hits, "tokens", why, EXIT_PREFIX))
    stale = int(cold.increments.total(_HITS))
    if stale:
        why = f"{stale} tokens were hits the first time: the cache salt does not separate requests"
        session.check(Check("prefix.cold", "warn", 0, stale, "tokens", why))


def _difference(cold: Turn, warm: Turn) -> int | None:
    """Return where the warm answer contradicts the cold one; without measured leads every token counts."""
    tokens = cold.answer.token_ids
    leads = [lead for _, lead in cold.answer.logprobs] or [math.inf] * len(tokens)
    return compare_tokens(tokens, leads, warm.answer.token_ids)


def _same_answer(session: Session, messages: list[dict[str, str]], cold: Turn, warm: Turn) -> None:
    """Compare the warm answer with the cold one; a difference is proven with a second pair before it counts."""
    different = _difference(cold, warm)
    if different is not None:
        salt = session.salt()
        cold, warm = (_turn(session, messages, salt) for _ in range(2))
        different = _difference(cold, warm)
        if different is None:
            session.report.warnings.append("prefix.answer: cold and warm differed once, and not again")
    if different is None:
        session.ok("prefix.answer", "the cold answer", "the same where a token had a clear lead")
        return
    why = (
        f"the warm answer differs from the cold one at token {different}, twice: the cache restores another state than "
        f"the prompt's. Cold: {cold.answer.text[:80]!r}, warm: {warm.answer.text[:80]!r}. Switch prefix_caching off"
    )
    session.check(Check("prefix.answer", "fail", "the cold answer", "another", None, why, EXIT_PREFIX))


def _same_acceptance(session: Session, cold: Turn, warm: Turn) -> None:
    """Compare the drafter's work on a warm and a cold prompt: its own cache may be the one that is wrong."""
    one, two = cold.acceptance, warm.acceptance
    if one is None or two is None:
        return
    if min(one.drafts, two.drafts) < _AL_DRAFTS:
        session.not_checked("prefix.acceptance", f"fewer than {_AL_DRAFTS} drafts: the answers ended early")
        return
    ratio = two.length / one.length
    status = "ok" if ratio >= _AL_WARN else "warn" if ratio >= _AL_FAIL else "fail"
    why = f"AL {two.length:.2f} on the warm prompt, {one.length:.2f} on the cold one"
    session.check(Check("prefix.acceptance", status, f">= {_AL_WARN} x cold", round(ratio, 3), None, why, EXIT_PREFIX))


_WEATHER_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def check_tool_call(session: Session) -> None:
    """Ask for a tool call, streamed and whole; with speculation several times, where corruption was seen."""
    if not any("tool-call-parser" in flag or "tool_call_parser" in flag for flag in session.manifest.declared):
        session.not_checked("tool_call", "the seat declares no tool-call-parser")
        return
    repeats = 5 if session.manifest.speculative else 1
    for number in range(repeats):
        for streamed in (True, False):
            body = session.body(
                user("Call the tool get_weather for Paris."), 128, tools=[_WEATHER_TOOL], tool_choice="auto"
            )
            try:
                answer = session.client.stream(body) if streamed else session.client.chat(body)
            except SeatError as error:
                if error.kind is not Kind.BAD_REQUEST:
                    raise
                wrong: str | None = str(error)
            else:
                wrong = tool_call_fault(answer)
            if wrong:
                how = "streamed" if streamed else "whole"
                why = f"attempt {number + 1}, {how}: {wrong}. Check tool-call-parser and the chat template"
                session.check(Check("tool_call", "fail", "get_weather(city)", None, None, why, EXIT_TOOLCALL))
                return
    session.ok("tool_call", 2 * repeats, 2 * repeats, unit="calls")


def tool_call_fault(answer: Completion) -> str | None:
    """Return what is wrong with the tool call of an answer, None when nothing is."""
    if not answer.tool_calls:
        return f"no tool call, but text {answer.text[:80]!r}"
    name, arguments = answer.tool_calls[0]
    if name != "get_weather":
        return f"a call of {name!r}"
    try:
        parsed = json.loads(arguments)
    except ValueError:
        return f"arguments are not JSON: {arguments[:80]!r}"
    city = parsed.get("city") if isinstance(parsed, dict) else None
    if not isinstance(city, str) or not city.strip():
        return f"arguments without a city: {arguments[:80]!r}"
    return None


def _greeting(session: Session) -> tuple[list[dict[str, str]], int]:
    messages = user("Hello.")
    tokens, _ = session.client.tokenize(session.manifest.model_id, messages)
    return messages, tokens


def check_lengths(session: Session) -> None:
    """Generate after prompts of rising length: kernels that fail above 64 or 2,000 tokens pass every short probe.

    From 2,000 tokens on the text holds code words. A model that repeats them there has to do so at every greater
    length: wrong text only at depth, with status 200, was seen on these cards (vllm #54739).
    """
    limit = session.manifest.max_model_len - _ANSWER_TOKENS - _TEMPLATE_TOKENS
    deep = min(limit, _DEEP_TOKENS)
    done: list[int] = []
    recalled: list[tuple[int, int]] = []
    for wanted in (*(length for length in _LADDER if length <= limit), *((deep,) if deep > _LADDER[-1] else ())):
        tokens, found = _one_length(session, wanted)
        if found is not None:
            recalled.append((tokens, found))
        if tokens < 0:
            return
        done.append(tokens)
    session.ok("prompt_lengths", "an answer at each", done, unit="tokens")
    _code_words(session, recalled)


def _one_length(session: Session, wanted: int) -> tuple[int, int | None]:
    """Ask with a prompt of that length; return its tokens (-1: miscounted) and how many code words were repeated."""
    needles = None
    if wanted < _NEEDLE_TOKENS:
        messages, tokens = _document(session, wanted) if wanted > _TEMPLATE_TOKENS else _greeting(session)
    else:
        model = session.manifest.model_id
        needles = sized(wanted, lambda chat: session.client.tokenize(model, chat)[0])
        messages, tokens = [dict(message) for message in needles.messages], needles.tokens
    answer = session.client.stream(session.body(messages, 8 if needles is None else _ANSWER_TOKENS, **NO_THINKING))
    if answer.prompt_tokens != tokens:
        why = f"/tokenize counts {tokens} prompt tokens, the answer says {answer.prompt_tokens}"
        session.check(Check("prompt_lengths", "fail", tokens, answer.prompt_tokens, "tokens", why, EXIT_CANARY))
        return -1, None
    return tokens, None if needles is None else needles.recalled(f"{answer.reasoning}\n{answer.text}")


def _code_words(session: Session, recalled: Sequence[tuple[int, int]]) -> None:
    """Hold a model that repeats the code words of a shorter prompt to those of the longer ones."""
    if len(recalled) < 2 or recalled[0][1] < 3:
        session.not_checked("code_words", "the model repeats none at a small length, or no longer prompt fits")
        return
    lost = [f"{found} of 3 at {tokens:,} tokens" for tokens, found in recalled if found < 3]
    why = f"all three code words were repeated at {recalled[0][0]:,} tokens, but {', '.join(lost)}" if lost else None
    seen = [found for _, found in recalled]
    session.check(Check("code_words", "fail" if lost else "ok", 3, seen, "of 3", why, EXIT_CANARY))
