"""Find a KV pin that survives the deepest prompt: judge a probe boot, predict its next step, choose the next pin.

``--kv-cache-memory-bytes`` switches vLLM's own memory check off, so a safe pin has to be measured: boots at different
pins, each ramped to full depth. A boot is clean when torch's allocator had to retry nothing. The pin that comes out is
the largest one that was clean in two boots, less the margin. vLLM's "to fully utilize" hint is never used: it stood
3.5 GiB above what one 155,557-token prompt survived. Pure: no I/O; sizes in bytes.

Free memory as the driver shows it (NVML) understates the slack: the allocator keeps freed blocks while there is room
and gives them back under pressure. What is *needed* is used memory less what the allocator reserved and does not use.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..files import canonical_json
from ..units import GIB, MIB, format_gib, format_size

#: Boots before the one that confirms.
MAX_BOOTS = 6
#: The search ends when the smallest unclean pin is this close to the largest clean one.
RESOLUTION = 3 * GIB // 8
#: Proposed pins are multiples of this.
QUANTUM = GIB // 4
#: Two boots of one configuration differ by less than this.
BOOT_NOISE = 128 * MIB
#: A prompt that is sized by the seat's tokenizer may be this many tokens shorter than wanted.
DEPTH_TOLERANCE = 16
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


#: What is tried at each pin, in this order: one prompt after the other up to full depth, one long prompt among short
#: ones, as many prompts of full depth at once as the pool holds.
RAMP, MIXED, FULL = "ramp", "mixed", "full"
PHASES = (RAMP, MIXED, FULL)


@dataclass(frozen=True)
class Step:
    """One load and what it took; ``retries`` and ``ooms`` are increments of the allocator's counters since the last."""

    depth: int  # tokens of the longest prompt
    used_peak: int
    reserved_peak: int
    allocated_peak: int
    retries: int = 0
    ooms: int = 0
    phase: str = RAMP
    requests: int = 1
    prefill_s: float | None = None

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
    failure: str | None = None  # why the boot ended early
    phases: tuple[str, ...] = (RAMP,)  # what was to be tried
    needles_lost: int = 0  # prompts whose code words were recalled when shorter, and not when longer

    @property
    def ramp(self) -> tuple[Step, ...]:
        """The single prompts, which predictions are made from."""
        return tuple(step for step in self.steps if step.phase == RAMP)


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


def phase_extras(trials: Iterable[Trial]) -> dict[str, int]:
    """Return by how much each phase has needed more than one prompt of full depth, at most, in the boots so far."""
    found: dict[str, int] = {}
    for trial in trials:
        ramp = trial.ramp
        for step in trial.steps:
            if step.phase != RAMP and ramp:
                found[step.phase] = max(found.get(step.phase, 0), step.needed - ramp[-1].needed)
    return found


def refuse_phase(steps: Sequence[Step], phase: str, total: int, extra: int | None = None) -> str | None:
    """Return why several prompts at once must not be tried after the ramp, None when they may be.

    What they add to one prompt cannot be predicted from single ones: ``extra`` is what they added in an earlier boot.
    In the first there must be room for as much again as the last step of the ramp added.
    """
    if not steps:
        return f"{phase}: no single prompt was tried"
    ramp = [step.needed for step in steps if step.phase == RAMP]
    growth = max(0, ramp[-1] - ramp[-2]) if len(ramp) > 1 else 0
    needed = max(max(step.needed for step in steps), ramp[-1] + (growth if extra is None else extra))
    if needed + PREDICTION_ERROR <= total:
        return None
    why = "as much again as the last step added" if extra is None else "what it added before"
    return f"{phase}: with {why} it would need {format_gib(needed)} of {format_gib(total)}"


def unclean(trial: Trial) -> str | None:
    """Return what was not clean about a boot, None when it reached full depth without a retry."""
    if trial.restarts:
        return f"the seat restarted {trial.restarts} times"
    if trial.failure:
        return trial.failure
    if trial.warnings:
        return f"the allocator warned: {trial.warnings[0]}"
    for step in trial.steps:
        if step.ooms or step.retries:
            return f"at {step.depth:,} tokens the allocator ran out {step.ooms} times and retried {step.retries} times"
    if not trial.canary_ok:
        return "the canary failed after the ramp"
    if trial.preemptions:
        return f"{trial.preemptions} requests were preempted"
    if trial.needles_lost:
        return f"the text of {trial.needles_lost} long prompts was not read: its code words were lost"
    reached = max((step.depth for step in trial.ramp), default=0)
    if reached < trial.full_depth - DEPTH_TOLERANCE:
        return f"stopped at {reached:,} of {trial.full_depth:,} tokens"
    left = [phase for phase in trial.phases if phase not in {step.phase for step in trial.steps}]
    if left:
        return f"stopped before {' and '.join(left)}"
    return None


def edge(trial: Trial) -> int | None:
    """Return the pin at which this boot's need would have filled the memory; None without two steps to go by."""
    ramp = trial.ramp
    if len(ramp) < 2:
        return None
    deepest = ramp[-1]
    full = deepest.depth >= trial.full_depth - DEPTH_TOLERANCE
    needed = deepest.needed if full else predict(ramp, trial.full_depth)
    needed = max(needed, *(step.needed for step in trial.steps))
    return trial.pin + trial.total - needed


def edge_without_return(trial: Trial) -> int:
    """Return the pin at which this boot would have filled the memory with all that the allocator had reserved."""
    return trial.pin + trial.total - max(step.used_peak for step in trial.steps)


def _hoards(trial: Trial) -> bool:
    """Tell whether a retry came with memory to spare: what the allocator had freed was no use for what it needed.

    Seen with prompts prefilled in one piece (H200, torch 2.11): 2 GiB blocks of one prompt's length do not serve a
    longer one, and a retry came with 5.8 GiB that could have been given back.
    """
    return any(step.retries and trial.total - step.needed > RESOLUTION for step in trial.steps)


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
    if any(map(_hoards, trials)):
        guesses += [edge_without_return(trial) for trial in trials if trial.pin == low]
    refused = sum(unclean(trial) is not None for trial in trials)
    middle = (low + high) // 2
    if not guesses:
        wanted = middle
    elif (guess := min(guesses) - BOOT_NOISE) >= high - RESOLUTION // 4:
        # The guess was refused already (fragments, noise): the edge is a little lower, further with each refusal. Less
        # far when the card was never full there: then the refusal was a prediction, which errs by little.
        wanted = high - RESOLUTION * 2 ** max(0, refused - 1) // (2 if _foreseen(trials, high) else 1)
    elif guess <= low + RESOLUTION // 2:
        # The edge should be right above: one resolution further shows it. When it was not there, the guess is no use.
        wanted = low + RESOLUTION if low - RESOLUTION not in {trial.pin for trial in trials} else middle
    else:
        wanted = guess
    if not low < wanted < high:
        wanted = middle
    return wanted // MIB * MIB


def _foreseen(trials: Sequence[Trial], pin: int) -> bool:
    """Tell whether a pin was given up by prediction alone."""
    there = [trial for trial in trials if trial.pin == pin]
    return bool(there) and not any(
        trial.failure or trial.warnings or trial.restarts or any(step.retries or step.ooms for step in trial.steps)
        for trial in there
    )


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
            failure=item.get("failure"),
            phases=tuple(item.get("phases", (RAMP,))),
            needles_lost=item.get("needles_lost", 0),
        )
        for item in content
    ]


#: Where the project keeps the evidence of its pins; a file is named by the beginning of its own sha256.
EVIDENCE_FOLDER = "files/headroom"

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


#: Settings that the pin is, follows from, or does not touch: evidence holds across their changes.
_NOT_MEMORY = frozenset(
    {"gpu-memory-utilization", "host", "kv-cache-memory-bytes", "port", "served-model-name", "worker-extension-cls"}
)


def settings_hash(settings: Mapping[str, Any]) -> str:
    """Return the hash of everything in vLLM's configuration that moves memory, the pin itself left out.

    ``no-x: true`` is ``x: false``, and null is absent, so a configuration file and what was read back from it agree.
    """
    moved: dict[str, Any] = {}
    for key, value in settings.items():
        if key.startswith("no-") and isinstance(value, bool):
            key, value = key.removeprefix("no-"), not value
        if value is not None and key not in _NOT_MEMORY:
            moved[key] = value
    return hashlib.sha256(canonical_json(moved).encode()).hexdigest()[:12]


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
            f"  kv_cache_memory: {format_size(found.pin)}",
            f"  max_num_batched_tokens: {subject['max_num_batched_tokens']}  # bounds the activation peak",
            "  kv_cache_why:",
            "    state: measured",
            f"    note: clean in {boots} at {format_gib(found.clean_pin)}, {depth} tokens deep",
            f"    reference: {EVIDENCE_FOLDER}/{evidence_sha256[:12]}.json",
            "",
        ]
    )
