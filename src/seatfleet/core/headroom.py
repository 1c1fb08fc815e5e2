"""Find a KV pin that survives the deepest prompt: judge a probe boot, predict its next step, choose the next pin.

``--kv-cache-memory-bytes`` switches vLLM's own memory check off, so a safe pin has to be measured: boots at different
pins, each ramped to full depth. A boot is clean when torch's allocator had to retry nothing. The pin that comes out is
the largest one that was clean in two boots, less the margin. vLLM's "to fully utilize" hint is never used: it stood
3.5 GiB above what one 155,557-token prompt survived. Pure: no I/O; sizes in bytes.

Free memory as the driver shows it (NVML) understates the slack: the allocator keeps freed blocks while there is room
and gives them back under pressure. What is *needed* is used memory less what the allocator reserved and does not use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .units import GIB, MIB, format_gib

#: Boots before the one that confirms.
MAX_BOOTS = 6
#: The search ends when the smallest unclean pin is this close to the largest clean one.
RESOLUTION = 3 * GIB // 8
#: Proposed pins are multiples of this.
QUANTUM = GIB // 4
#: Two boots of one configuration differ by less than this.
BOOT_NOISE = 128 * MIB
#: A prediction is trusted to this.
PREDICTION_ERROR = 64 * MIB

_WARNING = re.compile(r"OOM on device (\d+) while trying to allocate (\d+) bytes \((?:free|total: \d+, free): (\d+)")
_WARNING_BRACKETS = re.compile(r"OOM on device (\d+) .*?allocate (\d+) bytes.*?\[.*?free: (\d+)")


@dataclass(frozen=True, order=True)
class AllocatorWarning:
    """One line of torch's allocator: it wanted memory that was not free. Not fatal by itself."""

    device: int
    wanted: int
    free: int

    def __str__(self) -> str:
        """Say it in MiB."""
        return f"{self.wanted // MIB} MiB wanted, {self.free // MIB} MiB free on device {self.device}"


def allocator_warnings(lines: Iterable[str]) -> list[AllocatorWarning]:
    """Return the warnings in a journal, each once: one allocation may log three times.

    Silence proves nothing by itself: torch before 2.13 never writes the line, later versions may do so at INFO only.
    """
    found = []
    for line in lines:
        match = _WARNING.search(line) or _WARNING_BRACKETS.search(line)
        if match:
            found.append(AllocatorWarning(int(match[1]), int(match[2]), int(match[3])))
    return sorted(set(found))


@dataclass(frozen=True)
class Step:
    """One prompt of the ramp; ``retries`` and ``ooms`` are increments of the allocator's counters since the last."""

    depth: int  # tokens
    used_peak: int
    reserved_peak: int
    allocated_peak: int
    retries: int = 0
    ooms: int = 0

    @property
    def needed(self) -> int:
        """Memory that cannot be given back at the peak."""
        return self.used_peak - (self.reserved_peak - self.allocated_peak)


@dataclass(frozen=True)
class Trial:
    """One probe boot at a pin, ramped through ``steps`` towards ``full_depth`` tokens."""

    pin: int
    total: int  # memory of the card
    full_depth: int
    steps: tuple[Step, ...]
    warnings: tuple[AllocatorWarning, ...] = ()
    restarts: int = 0
    preemptions: int = 0
    canary_ok: bool = True


def predict(steps: Sequence[Step], depth: int) -> int:
    """Return the memory a step to ``depth`` will need, from the steps before it.

    The line through the last two steps, or the least-squares line when that is above it: the need may bend upwards, and
    a prediction that is too low costs a boot.
    """
    if not steps:
        raise ValueError("a prediction needs at least one step")
    last = steps[-1]
    if len(steps) == 1:
        return last.needed
    before = steps[-2]
    recent = last.needed + (last.needed - before.needed) * (depth - last.depth) / (last.depth - before.depth)
    mean_x = sum(step.depth for step in steps) / len(steps)
    mean_y = sum(step.needed for step in steps) / len(steps)
    spread = sum((step.depth - mean_x) ** 2 for step in steps)
    slope = sum((step.depth - mean_x) * (step.needed - mean_y) for step in steps) / spread
    return int(max(recent, mean_y + slope * (depth - mean_x)))


def refuse_step(steps: Sequence[Step], depth: int, total: int) -> str | None:
    """Return why the next step must not be made, None when it may be."""
    needed = predict(steps, depth)
    if needed + PREDICTION_ERROR <= total:
        return None
    return f"{depth:,} tokens are predicted to need {format_gib(needed)} of {format_gib(total)}"


def unclean(trial: Trial) -> str | None:
    """Return what was not clean about a boot, None when it reached full depth without a retry."""
    if trial.restarts:
        return f"the seat restarted {trial.restarts} times"
    if trial.warnings:
        return f"the allocator warned: {trial.warnings[0]}"
    for step in trial.steps:
        if step.ooms or step.retries:
            return f"at {step.depth:,} tokens the allocator ran out {step.ooms} times and retried {step.retries} times"
    if not trial.canary_ok:
        return "the canary failed after the ramp"
    if trial.preemptions:
        return f"{trial.preemptions} requests were preempted"
    reached = max((step.depth for step in trial.steps), default=0)
    if reached < trial.full_depth:
        return f"stopped at {reached:,} of {trial.full_depth:,} tokens"
    return None


def edge(trial: Trial) -> int | None:
    """Return the pin at which this boot's need would have filled the memory; None without two steps to go by."""
    if len(trial.steps) < 2:
        return None
    deepest = trial.steps[-1]
    needed = deepest.needed if deepest.depth >= trial.full_depth else predict(trial.steps, trial.full_depth)
    return trial.pin + trial.total - needed


@dataclass(frozen=True)
class Next:
    """Boot at this pin next; ``confirms`` when it is the second boot of the best clean one."""

    pin: int
    confirms: bool = False


@dataclass(frozen=True)
class Found:
    """The search is over.

    ``clean_pin`` is the largest that was clean, ``pin`` what to propose, 0 when nothing is safe; ``confirmed`` says
    that a second boot was clean too.
    """

    pin: int
    clean_pin: int
    boots: int
    confirmed: bool


def margin_for(total: int) -> int:
    """Return the margin kept below the largest clean pin: 1 GiB or 1 % of the memory."""
    return max(GIB, total // 100)


def pin_below(clean_pin: int, margin: int) -> int:
    """Return the pin to propose, in whole quanta."""
    return max(0, (clean_pin - margin - BOOT_NOISE) // QUANTUM * QUANTUM)


def search(trials: Sequence[Trial], total: int, start: int) -> Next | Found:
    """Return the next pin to boot at, or the result, in at most :data:`MAX_BOOTS` boots and one that confirms.

    ``start`` is the first pin: one that is surely too small is as good as any, since a boot also tells where the edge
    should be. ``total`` is the memory of the card as the driver reports it.
    """
    if not trials:
        return Next(start)
    clean = {trial.pin for trial in trials if unclean(trial) is None}
    high = min((trial.pin for trial in trials if unclean(trial) is not None), default=total)
    low = max((pin for pin in clean if pin < high), default=0)
    if len(trials) < MAX_BOOTS:
        wanted = _between(trials, low, high)
        if wanted is not None:
            return Next(wanted)
    boots, margin = len(trials), margin_for(total)
    # One boot's noise lower, or a pin right at the edge would be refused half of the time.
    confirming = low - BOOT_NOISE
    if not low:
        return Found(0, 0, boots, confirmed=False)
    if confirming in clean or boots > MAX_BOOTS:
        return Found(pin_below(low, margin), low, boots, confirmed=confirming in clean)
    return Next(confirming, confirms=True)


def _between(trials: Sequence[Trial], low: int, high: int) -> int | None:
    """Return a pin worth trying between the largest clean and the smallest unclean one, None when they are close."""
    if high - low <= RESOLUTION:
        return None
    guesses = [guess for trial in trials if (guess := edge(trial)) is not None]
    refused = sum(unclean(trial) is not None for trial in trials)
    middle = (low + high) // 2
    if not guesses:
        wanted = middle
    elif (guess := min(guesses) - BOOT_NOISE) >= high - RESOLUTION // 4:
        # The guess was refused already (fragments, noise): the edge is a little lower, further with each refusal.
        wanted = high - RESOLUTION * 2 ** max(0, refused - 1)
    elif guess <= low + RESOLUTION // 2:
        wanted = low + RESOLUTION  # the edge should be right above: one resolution further shows it
    else:
        wanted = guess
    if not low < wanted < high:
        wanted = middle
    return wanted // MIB * MIB


def trials_from_json(content: Sequence[Mapping[str, Any]]) -> list[Trial]:
    """Return trials from their stored form, the fields of :class:`Trial` with plain mappings inside."""
    return [
        Trial(
            pin=item["pin"],
            total=item["total"],
            full_depth=item["full_depth"],
            steps=tuple(Step(**step) for step in item["steps"]),
            warnings=tuple(AllocatorWarning(**warning) for warning in item.get("warnings", ())),
            restarts=item.get("restarts", 0),
            preemptions=item.get("preemptions", 0),
            canary_ok=item.get("canary_ok", True),
        )
        for item in content
    ]


#: What a measured pin belongs to; a change of any of these asks for a new probe.
SUBJECT = (
    "seat",
    "release_id",
    "argv_hash",
    "driver",
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "speculative",
    "co_tenants",
)


def stale(evidence: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Return what differs between the subject of stored evidence and the seat as it is now; empty when it holds."""
    return [
        f"{name}: probed with {evidence.get(name)!r}, now {current.get(name)!r}"
        for name in SUBJECT
        if evidence.get(name) != current.get(name)
    ]


def snippet(found: Found, subject: Mapping[str, Any], trials: Sequence[Trial], evidence_sha256: str) -> str:
    """Return the lines an operator may put into ``group_vars``; nothing here edits an inventory.

    Raises:
        ValueError: nothing was found to be safe.
    """
    if not found.pin:
        raise ValueError("no pin was clean twice: nothing to propose")
    size = f"{found.pin // GIB}GiB" if found.pin % GIB == 0 else f"{found.pin // MIB}MiB"
    boots = "two boots" if found.confirmed else "one boot"
    tested = ", ".join(
        f"{format_gib(trial.pin)}: {'clean' if unclean(trial) is None else 'unclean'}" for trial in trials
    )
    depth = max((step.depth for trial in trials for step in trial.steps), default=0)
    return "\n".join(
        [
            f"# Proposed by the headroom probe; evidence sha256:{evidence_sha256}",
            f"# Clean in {boots} at {format_gib(found.clean_pin)}, {depth:,} tokens deep. Tested: {tested}.",
            f"# Probe again when any of these changes: {', '.join(SUBJECT[1:])}.",
            f"{subject['seat']}:",
            f"  kv_cache_memory: {size}",
            f"  max_num_batched_tokens: {subject['max_num_batched_tokens']}  # bounds the activation peak",
            "",
        ]
    )
