"""Void rules V1 to V17: what disqualifies a boot or an arm, as a table of pure functions.

A void arm measured something else than it claims (a broken head, wrong answers); a void boot had an accident (foreign
traffic, an error, a hot card). ``NOT_CHECKED`` is never a pass: the report lists it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from statistics import fmean, median

from ..core.health import acceptance as core
from . import stats
from .definition import Arm, Definition
from .observe import Cell, pooled_acceptance, still_faster, tokens_per_chunk
from .stats import Boot, NotEstimable
from .telemetry import Summary
from .verdicts import percent

#: Prompts are isolated by a salt, so hits come from elsewhere: a leak, or a second client.
PREFIX_HITS_ALLOWED = 0.005
FOREIGN_TOKENS_ALLOWED = 0.01
THROTTLE_ALLOWED = 0.05
CLOCK_ALLOWED = 0.02
#: Acceptance as the streams show it against the counters.
CHUNKS_ALLOWED = 0.05
_OUT_OF_MEMORY = re.compile(
    r"OOM on device \d+ while trying to allocate|torch\.OutOfMemoryError|CUDA out of memory|"
    r"CUBLAS_STATUS_ALLOC_FAILED|NV_ERR_NO_MEMORY|EngineDeadError"
)
#: Workload of the acceptance bands for a shape.
WORKLOAD = {"prose": "prose", "code": "code", "count": "count", "tool": "agent"}


class Status(StrEnum):
    """Outcome of one control."""

    PASS = "pass"
    FLAG = "flag"
    VOID = "void"
    FAIL = "fail"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True)
class Check:
    """One control applied to one subject: a boot's directory, an arm, or the campaign."""

    rule: str
    title: str
    subject: str
    status: Status
    detail: str


@dataclass(frozen=True)
class BootView:
    """One boot as the controls see it. ``log`` are the server's lines after READY; canaries are problems found."""

    name: str
    slot: int
    arm: Arm
    control: bool
    cells: tuple[Cell, ...]
    block: int = 0
    log: tuple[str, ...] | None = None
    canary: tuple[str, ...] | None = None
    telemetry: Summary | None = None
    cache_root: str = ""
    warm_up_s: tuple[float, ...] = ()

    @property
    def measured(self) -> tuple[Cell, ...]:
        """Cells without the planted ones, which are slow on purpose."""
        return tuple(cell for cell in self.cells if cell.kind != "planted")

    def of_shape(self, shape: str) -> tuple[Cell, ...]:
        """Measured cells of one shape."""
        return tuple(cell for cell in self.measured if cell.shape == shape)


@dataclass(frozen=True)
class Context:
    """What a rule may need beside the boot."""

    definition: Definition
    off_sm_mhz: float | None = None
    off_tokens_per_chunk: float = 1.0


def not_met(rule: str, title: str, detail: str) -> str:
    """Say that a control failed. Titles say what should be: "V1 drafts were made" alone would read as the reason."""
    return f"{rule} not met, {title}: {detail}"


Outcome = tuple[Status, str]
OK: Outcome = (Status.PASS, "")


@dataclass(frozen=True)
class Rule:
    """A void rule. ``scope`` is what it disqualifies: ``arm`` or ``boot``."""

    id: str
    title: str
    scope: str
    check: Callable[[BootView, Context], Outcome]


# --- rules on one boot ------------------------------------------------------------------------------------------------


def drafts_were_made(boot: BootView, context: Context) -> Outcome:
    """V1: a speculative arm without drafts measured no speculation."""
    if not boot.arm.draft_tokens:
        return OK
    found = pooled_acceptance(boot.measured)
    if found is None:
        return (
            Status.VOID,
            f"{boot.arm.method} k={boot.arm.draft_tokens} is configured, but the seat has no draft counters",
        )
    return OK if found.drafts else (Status.VOID, "the seat made no draft at all")


def _band_findings(boot: BootView, context: Context, shapes: Iterable[str]) -> list[tuple[str, core.Verdict]]:
    found = []
    for shape in shapes:
        seen = pooled_acceptance(boot.of_shape(shape))
        if seen is None or not seen.drafts:
            continue
        declared = context.definition.bands.get(boot.arm.id, {}).get(shape)
        workload = WORKLOAD.get(shape, shape)
        band = core.band(boot.arm.method or "", boot.arm.draft_tokens, workload, declared=declared)
        found.append((shape, core.judge(seen, band, workload)))
    return found


def _accepted(boot: BootView, context: Context, shapes: Sequence[str]) -> Outcome:
    if not boot.arm.draft_tokens:
        return OK
    findings = _band_findings(boot, context, shapes)
    if not findings:
        return Status.NOT_CHECKED, f"no drafts on {', '.join(shapes) or 'such a shape'}"
    bad = [f"{verdict.message} (expected {verdict.expected})" for _, verdict in findings if verdict.status in _BROKEN]
    warned = [verdict.message for _, verdict in findings if verdict.status == "warn"]
    return (Status.VOID, "; ".join(bad)) if bad else (Status.FLAG, "; ".join(warned)) if warned else OK


_BROKEN = ("broken", "low", "flat")


def counting_is_accepted(boot: BootView, context: Context) -> Outcome:
    """V2: counting is nearly always predictable; an acceptance below its band there is a broken head."""
    if not any(use.name == "count" for use in context.definition.shapes):
        return (Status.NOT_CHECKED, "the campaign does not count") if boot.arm.draft_tokens else OK
    return _accepted(boot, context, ["count"])


def texts_are_accepted(boot: BootView, context: Context) -> Outcome:
    """V3: acceptance of every other shape against its band ("more than 0" let a mis-strided KV pass with 1.47)."""
    return _accepted(boot, context, [use.name for use in context.definition.shapes if use.name != "count"])


def counters_belong_to_one_boot(boot: BootView, context: Context) -> Outcome:
    """V4: a reset, a decrease or a vanished series inside a cell."""
    resets = [f"{_name(cell)}: {cell.counters.reset}" for cell in boot.measured if cell.counters.reset]
    return (Status.VOID, "; ".join(resets)) if resets else OK


def nobody_else_was_served(boot: BootView, context: Context) -> Outcome:
    """V5: the server ended other requests, or made other tokens, than this client asked for."""
    found = []
    for cell in boot.measured:
        if cell.counters.reset or cell.failed:
            continue
        own = len(cell.requests)
        if cell.counters.successes != own:
            found.append(f"{_name(cell)}: {cell.counters.successes} requests ended, {own} were ours")
        tokens = sum(request.completion_tokens or 0 for request in cell.requests)
        if abs(cell.counters.generation_tokens - tokens) > FOREIGN_TOKENS_ALLOWED * tokens:
            found.append(f"{_name(cell)}: {cell.counters.generation_tokens} tokens were made, {tokens} were ours")
    return (Status.VOID, "; ".join(found)) if found else OK


def counters_agree(boot: BootView, context: Context) -> Outcome:
    """V6: totals and positions contradict each other, or more was accepted than can be."""
    found = pooled_acceptance(boot.measured)
    if found is None or not found.drafts:
        return OK
    wrong = core.contradictions(found)
    if found.k != boot.arm.draft_tokens:
        wrong.append(f"{boot.arm.draft_tokens} positions are configured, the counters have {found.k}")
    return (Status.VOID, "; ".join(wrong)) if wrong else OK


def answers_are_sane(boot: BootView, context: Context) -> Outcome:
    """V7: the canary before or after the cells."""
    if boot.canary is None:
        return Status.NOT_CHECKED, "no canary was run"
    return (Status.VOID, "; ".join(boot.canary)) if boot.canary else OK


def every_request_succeeded(boot: BootView, context: Context) -> Outcome:
    """V8: an error, another status than 200, or an end without a reason."""
    bad = [(cell, request) for cell in boot.measured for request in cell.failed]
    if not bad:
        return OK
    cell, request = bad[0]
    why = request.error or f"HTTP {request.http_status}, finish reason {request.finish_reason!r}"
    return Status.VOID, f"{len(bad)} requests failed, the first in {_name(cell)}: {why}"


def nothing_came_from_the_prefix_cache(boot: BootView, context: Context) -> Outcome:
    """V9: prefix hits in spite of a salt per request."""
    if not any(cell.counters.prefix_queries for cell in boot.measured):
        return Status.NOT_CHECKED, "the seat counts no look-ups in a prefix cache"
    found = [
        f"{_name(cell)}: {cell.counters.prefix_hits} of {cell.counters.prefix_queries} prompt tokens were cached"
        for cell in boot.measured
        if cell.counters.prefix_hits > PREFIX_HITS_ALLOWED * cell.counters.prefix_queries
    ]
    return (Status.VOID, "; ".join(found)) if found else OK


def the_card_ran_as_usual(boot: BootView, context: Context) -> Outcome:
    """V10: thermal throttling, a power brake, or clocks unlike those of the control boots."""
    seen = boot.telemetry
    if seen is None:
        return Status.NOT_CHECKED, "no GPU telemetry on this host"
    if seen.throttled is None and (seen.sm_mhz is None or context.off_sm_mhz is None):
        return Status.NOT_CHECKED, "the card tells neither clocks nor throttling"
    found = []
    if seen.throttled is not None and seen.throttled > THROTTLE_ALLOWED:
        found.append(f"throttled in {seen.throttled:.0%} of {seen.samples} samples")
    if seen.sm_mhz and context.off_sm_mhz and abs(seen.sm_mhz / context.off_sm_mhz - 1) > CLOCK_ALLOWED:
        found.append(f"median SM clock {seen.sm_mhz:.0f} MHz, {context.off_sm_mhz:.0f} MHz in the control boots")
    return (Status.VOID, "; ".join(found)) if found else OK


def memory_held(boot: BootView, context: Context) -> Outcome:
    """V12: the allocator or the engine failed after READY. Silence proves little where torch logs nothing."""
    if boot.log is None:
        return Status.NOT_CHECKED, "the server's log was not kept"
    lines = [line for line in boot.log if _OUT_OF_MEMORY.search(line)]
    return (Status.VOID, f"{len(lines)} lines, the first: {lines[0][:200]}") if lines else OK


def the_control_does_not_speculate(boot: BootView, context: Context) -> Outcome:
    """V14: draft counters above zero in an arm that is configured without speculation."""
    if boot.arm.draft_tokens:
        return OK
    found = pooled_acceptance(boot.measured)
    return (Status.VOID, f"{found.drafts} drafts were made") if found is not None and found.drafts else OK


def the_server_was_warm(boot: BootView, context: Context) -> Outcome:
    """V17: a server that still gets faster shows it as noise inside the boot; a flag, since the order is random."""
    if not boot.warm_up_s:
        return Status.NOT_CHECKED, "the passes of the warm-up were not written down"
    if not still_faster(boot.warm_up_s):
        return OK
    return Status.FLAG, f"still getting faster after {len(boot.warm_up_s)} passes, in s: {list(boot.warm_up_s)}"


def streams_agree_with_counters(boot: BootView, context: Context) -> Outcome:
    """V15: at concurrency 1 a chunk is a step, so tokens per chunk must be the acceptance length.

    A server whose steps are shorter than its way to the socket, or on a busy machine, sends two as one chunk. More than
    k + 1 tokens prove it, and count as the least number of steps they can be. For fewer the control tells, because
    without drafts a step is one token: when it merges, too many tokens are only flagged. Too few are never excused.
    """
    cells = _single_streams(boot)
    seen = pooled_acceptance(cells)
    if seen is None or not seen.drafts:
        return OK
    tokens = tokens_per_chunk(request for cell in cells for request in cell.completed)
    if not tokens:
        return Status.NOT_CHECKED, "the server does not say which tokens are in a chunk"
    length = sum(tokens) / sum(math.ceil(count / (boot.arm.draft_tokens + 1)) for count in tokens)
    if abs(length / seen.length - 1) <= CHUNKS_ALLOWED:
        return OK
    detail = f"{length:.2f} tokens per step as streamed, acceptance length {seen.length:.2f} by the counters"
    if length > seen.length and context.off_tokens_per_chunk > 1 + CHUNKS_ALLOWED:
        merged = f"the server merges steps, {context.off_tokens_per_chunk:.2f} tokens per chunk in the control"
        return Status.FLAG, f"{detail}; {merged}"
    return Status.VOID, detail


def _single_streams(boot: BootView) -> list[Cell]:
    return [cell for cell in boot.measured if cell.concurrency == 1 and cell.kind == "stream"]


def _name(cell: Cell) -> str:
    return f"{cell.shape} c={cell.concurrency} rep {cell.rep}"


#: The rules that know a broken drafter.
ACCEPTANCE_RULES = ("V1", "V2", "V3")

BOOT_RULES: tuple[Rule, ...] = (
    Rule("V1", "drafts were made", "arm", drafts_were_made),
    Rule("V2", "counting is accepted as it should be", "arm", counting_is_accepted),
    Rule("V3", "texts are accepted as they should be", "arm", texts_are_accepted),
    Rule("V4", "counters belong to one boot", "boot", counters_belong_to_one_boot),
    Rule("V5", "nobody else was served", "boot", nobody_else_was_served),
    Rule("V6", "counters agree with each other", "arm", counters_agree),
    Rule("V7", "answers are sane before and after", "arm", answers_are_sane),
    Rule("V8", "every request succeeded", "boot", every_request_succeeded),
    Rule("V9", "nothing came from the prefix cache", "boot", nothing_came_from_the_prefix_cache),
    Rule("V10", "clocks and temperature as usual", "boot", the_card_ran_as_usual),
    Rule("V12", "no allocation failed after READY", "boot", memory_held),
    Rule("V14", "arms without speculation made no drafts", "arm", the_control_does_not_speculate),
    Rule("V15", "streams and counters agree", "arm", streams_agree_with_counters),
    Rule("V17", "the server was warm", "boot", the_server_was_warm),
)


# --- rules that need all boots ----------------------------------------------------------------------------------------


def preemptions(boots: Sequence[BootView]) -> list[Check]:
    """V11: preemptions are flagged; the only arm that preempts ran out of KV memory where others did not: void."""
    counts: dict[str, int] = {}
    for boot in boots:
        total = sum(cell.counters.preemptions for cell in boot.measured)
        counts[boot.arm.id] = counts.get(boot.arm.id, 0) + total
    preempting = [arm for arm, count in counts.items() if count]
    checks = []
    for arm, count in counts.items():
        if not count:
            status, detail = Status.PASS, ""
        elif len(preempting) == 1 and len(counts) > 1:
            status, detail = Status.VOID, f"{count} preemptions, none in any other arm"
        else:
            status, detail = (
                Status.FLAG,
                f"{count} preemptions (also in {', '.join(a for a in preempting if a != arm)})",
            )
        checks.append(Check("V11", "no arm alone runs out of KV memory", arm, status, detail))
    return checks


def throughput_rises(boots: Sequence[BootView], max_num_seqs: int | None, *, screen: bool = False) -> list[Check]:
    """V13: a batching server must get faster with concurrency; a client that cannot see that is blind.

    Per arm and shape, the rise from one level to the next (paired inside boots) must exceed its own floor. In a screen
    that floor rests on one degree of freedom and says nothing, so there a rise above zero is enough.
    """
    title = "throughput rises with concurrency"
    levels: dict[str, set[int]] = {}  # of each shape: it may have its own
    for cell in (cell for boot in boots for cell in boot.measured):
        levels.setdefault(cell.shape, set()).add(cell.concurrency)
    limits = {boot.arm.id: boot.arm.values.get("max-num-seqs", max_num_seqs) or math.inf for boot in boots}
    problems: dict[str, list[str]] = {}
    for shape in sorted(levels):
        for low, high in pairwise(sorted(levels[shape])):
            rises = [
                Boot(boot.arm.id, rise, boot.control)
                for boot in boots
                if high <= limits[boot.arm.id] and (rise := _rise(boot, shape, low, high)) is not None
            ]
            for arm in {rise.arm for rise in rises}:
                try:
                    found = stats.estimate(rises, {arm: 1.0})
                except NotEstimable:
                    continue
                problems.setdefault(arm, [])
                if found.difference <= (0.0 if screen else found.floor):
                    gain = math.expm1(found.difference)
                    problems[arm].append(
                        f"{shape}: {gain:+.1%} from c={low} to c={high}, floor {percent(math.expm1(found.floor))}"
                    )
    return [
        Check("V13", title, arm, Status.VOID if problems[arm] else Status.PASS, "; ".join(problems[arm]))
        if arm in problems
        else Check("V13", title, arm, Status.NOT_CHECKED, "no two levels of concurrency that this arm serves at once")
        for arm in limits
    ]


def _rise(boot: BootView, shape: str, low: int, high: int) -> float | None:
    values = []
    for level in (low, high):
        found = [
            rate
            for cell in boot.of_shape(shape)
            if cell.kind == "stream"
            and cell.concurrency == level
            and (rate := cell.metrics.get("aggregate_output_tok_s"))
        ]
        if not found:
            return None
        values.append(median(found))
    return math.log(values[1] / values[0])


def own_compile_cache(boots: Sequence[BootView]) -> list[Check]:
    """V16: vLLM's compile cache does not know the number of draft tokens; arms that share one share kernels."""
    users: dict[str, set[str]] = {}
    for boot in boots:
        users.setdefault(boot.cache_root, set()).add(boot.arm.id)
    checks = []
    for arm in dict.fromkeys(boot.arm.id for boot in boots):
        shared = sorted({other for arms in users.values() if arm in arms for other in arms} - {arm})
        detail = f"shared with {', '.join(shared)}" if shared else ""
        checks.append(Check("V16", "compile caches of its own", arm, Status.VOID if shared else Status.PASS, detail))
    return checks


@dataclass(frozen=True)
class Voids:
    """What the rules disqualified: reasons by boot directory and by arm, and every check made."""

    boots: Mapping[str, str]
    arms: Mapping[str, str]
    checks: tuple[Check, ...]

    def valid(self, boots: Iterable[BootView]) -> list[BootView]:
        """Return the boots that count."""
        return [boot for boot in boots if boot.name not in self.boots and boot.arm.id not in self.arms]


def apply_rules(boots: Sequence[BootView], definition: Definition, max_num_seqs: int | None) -> Voids:
    """Apply every rule to every boot and arm."""
    clocks = [boot.telemetry.sm_mhz for boot in boots if boot.control and boot.telemetry and boot.telemetry.sm_mhz]
    plain = tokens_per_chunk(
        request
        for boot in boots
        if not boot.arm.draft_tokens
        for cell in _single_streams(boot)
        for request in cell.completed
    )
    context = Context(definition, median(clocks) if clocks else None, fmean(plain) if plain else 1.0)
    checks: list[Check] = []
    void_boots: dict[str, list[str]] = {}
    void_arms: dict[str, list[str]] = {}
    for boot in boots:
        for rule in BOOT_RULES:
            status, detail = rule.check(boot, context)
            checks.append(Check(rule.id, rule.title, boot.name, status, detail))
            if status is Status.VOID and rule.scope == "boot":
                void_boots.setdefault(boot.name, []).append(not_met(rule.id, rule.title, detail))
            elif status is Status.VOID:
                text = not_met(rule.id, rule.title, f"{detail} (boot {boot.name})")
                void_arms.setdefault(boot.arm.id, []).append(text)
    usable = [boot for boot in boots if boot.name not in void_boots]
    rises = throughput_rises(usable, max_num_seqs, screen=definition.mode == "screen")
    for check in (*preemptions(usable), *rises, *own_compile_cache(boots)):
        checks.append(check)
        if check.status is Status.VOID:
            void_arms.setdefault(check.subject, []).append(not_met(check.rule, check.title, check.detail))
    return Voids(
        {name: "; ".join(reasons) for name, reasons in void_boots.items()},
        {name: "; ".join(reasons) for name, reasons in void_arms.items()},
        tuple(checks),
    )
