"""Acceptance length of a drafter, from counter increments of one boot, and whether it is what the method can do.

Convention: acceptance length AL = 1 + accepted / drafts (the bonus token counts, so a drafter that is never right has
AL 1 and a perfect one k + 1); ``rate[i]`` = accepted at position i / drafts. One draft is one request in one step that
had draft tokens. Hence AL = 1 + sum(rate).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .metrics import Delta, MetricsError, Page

DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
COUNTERS = (DRAFTS, DRAFT_TOKENS, ACCEPTED, PER_POSITION)

WORKLOADS = ("count", "code", "prose", "agent")
#: Below this no drafter works: a random-init head measures 1.000 to 1.004 (lab's broken twin, vllm #37667).
BROKEN_BELOW = 1.05
#: Fewer drafts than this say nothing: the standard error of AL is about sd / sqrt(drafts).
MIN_DRAFTS = 50
#: AL and 1 + sum(rate) come from different counters; more apart than this is a summing bug (speculators #1095).
IDENTITY_TOLERANCE = 0.02
#: On text that cannot be foreseen no drafter is right every time; exactly 1.00 at each position was a corrupted CUDA
#: graph. Counting, and models made so that the head must be right, are exempt.
FLAT_RATE = 0.995
_UNPREDICTABLE = ("code", "prose")
#: Fraction of the seat's own baseline below which acceptance counts as lost, and the width that merely warns.
BASELINE_FAIL = 0.75
BASELINE_WARN = 0.90

#: Measured on healthy seats (seed documents): (method, k) -> workload -> AL.
TYPICAL: Mapping[tuple[str, int], Mapping[str, float]] = {
    ("dflash", 12): {"count": 11.0, "code": 5.4, "prose": 2.3, "agent": 8.66},
    ("dflash", 4): {"prose": 2.3},
    ("mtp", 2): {"count": 3.0, "code": 2.77, "prose": 2.24, "agent": 2.88},
}
#: Least AL of a seat without a baseline: degraded below. A mis-strided drafter KV gave 1.47 where 5.4 is healthy.
LEAST: Mapping[tuple[str, int], Mapping[str, float]] = {
    ("dflash", 12): {"count": 7.0, "code": 3.5},
    ("dflash", 4): {"count": 4.0},
    ("mtp", 2): {"count": 2.55, "code": 2.2},
}


@dataclass(frozen=True)
class Acceptance:
    """What was measured on one workload; counts are sums over engines."""

    drafts: int
    draft_tokens: int
    accepted: int
    accepted_per_position: tuple[int, ...]
    source: str = "counters"

    @property
    def k(self) -> int:
        """Number of draft positions the engine has."""
        return len(self.accepted_per_position)

    @property
    def length(self) -> float:
        """Acceptance length in tokens per step; 0 when nothing was drafted."""
        return 1 + self.accepted / self.drafts if self.drafts else 0.0

    @property
    def rates(self) -> tuple[float, ...]:
        """Per position: how often a draft was accepted up to there, 0 to 1."""
        return tuple(count / self.drafts if self.drafts else 0.0 for count in self.accepted_per_position)


def positions(page: Page) -> int:
    """Return k as the engine has it: the number of ``position`` labels; 0 when nothing speculates."""
    return len({dict(labels)["position"] for labels in page.series(PER_POSITION)})


def from_delta(increments: Delta) -> Acceptance:
    """Return the acceptance of the steps between two pages.

    Raises:
        MetricsError: position labels are not 0, 1, 2 ...
    """
    by_position = increments.by_label(PER_POSITION, "position")
    wanted = [str(position) for position in range(len(by_position))]
    if set(by_position) != set(wanted):
        raise MetricsError(
            f"{PER_POSITION}: expected positions 0 to {len(by_position) - 1}, seen {sorted(by_position)}"
        )
    return Acceptance(
        drafts=int(increments.total(DRAFTS)),
        draft_tokens=int(increments.total(DRAFT_TOKENS)),
        accepted=int(increments.total(ACCEPTED)),
        accepted_per_position=tuple(int(by_position[position]) for position in wanted),
    )


def from_stream(tokens: Sequence[int], k: int) -> Acceptance | None:
    """Return the acceptance of one's own streams, from the tokens in each piece; None when pieces were merged.

    ``tokens`` leaves out each stream's first piece (it comes from the prefill) and its last (cut by the token limit). A
    piece is one step: its tokens are the accepted drafts and the bonus token. A server that falls behind sends two
    steps as one piece, which shows as more than k + 1 tokens.
    """
    if any(count > k + 1 for count in tokens):
        return None
    accepted = tuple(sum(count >= position + 2 for count in tokens) for position in range(k))
    return Acceptance(len(tokens), k * len(tokens), sum(accepted), accepted, source="stream")


def contradictions(seen: Acceptance) -> list[str]:
    """Return why the counters cannot be true together; empty when they can."""
    found = []
    if seen.drafts == 0:
        return ["no draft was made"]
    identity = 1 + sum(seen.rates)
    if abs(seen.length - identity) > IDENTITY_TOLERANCE:
        found.append(f"AL {seen.length:.3f} from totals, {identity:.3f} from positions")
    if seen.accepted > seen.draft_tokens:
        found.append(f"{seen.accepted} tokens accepted of {seen.draft_tokens} drafted")
    if seen.draft_tokens > seen.k * seen.drafts:
        found.append(f"{seen.draft_tokens} tokens in {seen.drafts} drafts of at most {seen.k}")
    if any(later > earlier for earlier, later in zip(seen.rates, seen.rates[1:], strict=False)):
        found.append(f"a later position is accepted more often than an earlier one: {format_rates(seen)}")
    return found


@dataclass(frozen=True)
class Band:
    """What a healthy drafter measures on one workload. ``why`` names where the numbers come from."""

    broken_below: float
    least: float | None
    warn_below: float | None
    flat_is_corruption: bool
    why: str


def band(method: str, k: int, workload: str, *, declared: float | None = None, baseline: Sequence[float] = ()) -> Band:
    """Return the band of a workload.

    The order of authority: the seat's own declared minimum, its baseline (AL of earlier boots with the same release),
    the table of the method, then 0.85 (k + 1) for counting with MTP up to k = 3. Otherwise only "broken" is decided.
    """
    # A minimum this close to k + 1 declares that the model is made to be predicted: flat 1.00 is health there.
    flat = workload in _UNPREDICTABLE and (declared is None or declared < 0.95 * (k + 1))
    if declared is not None:
        return Band(min(BROKEN_BELOW, declared), declared, None, flat, "declared in the seat's probe.acceptance")
    if baseline:
        mean = sum(baseline) / len(baseline)
        why = f"baseline {mean:.2f} of {len(baseline)} boot{'s' if len(baseline) > 1 else ''} with this release"
        return Band(BROKEN_BELOW, BASELINE_FAIL * mean, BASELINE_WARN * mean, flat, why)
    least = LEAST.get((method, k), {}).get(workload)
    if least is not None:
        return Band(BROKEN_BELOW, least, None, flat, f"band of {method} k={k}")
    if method == "mtp" and k <= 3 and workload == "count":
        return Band(BROKEN_BELOW, 0.85 * (k + 1), None, flat, "0.85 (k + 1), no baseline yet")
    return Band(BROKEN_BELOW, None, None, flat, f"no band known for {method} k={k} on {workload}")


@dataclass(frozen=True)
class Verdict:
    """``status`` is ok, warn, low, broken, flat or invalid; ``message`` is for people, with likely causes."""

    status: str
    expected: str
    message: str


def judge(seen: Acceptance, expected: Band, workload: str) -> Verdict:
    """Compare what was measured with the band; the worst finding wins."""
    wanted = f"at least {expected.least or expected.broken_below:.2f} of {seen.k + 1} ({expected.why})"
    measured = f"AL {seen.length:.2f} over {seen.drafts} drafts, per position {format_rates(seen)}"
    wrong = contradictions(seen)
    if wrong:
        return Verdict("invalid", wanted, f"the counters contradict each other: {'; '.join(wrong)}")
    if seen.length < expected.broken_below:
        return Verdict("broken", wanted, f"{measured}. {likely_causes(seen)}")
    if expected.least is not None and seen.length < expected.least:
        return Verdict("low", wanted, f"{measured}. {likely_causes(seen)}")
    if expected.flat_is_corruption and seen.rates[-1] >= FLAT_RATE:
        return Verdict(
            "flat",
            f"a curve that falls below {FLAT_RATE} on {workload}",
            f"{measured}: flat 1.00 on text nobody can foresee. Likely: verification is not happening (corrupted CUDA "
            "graph, accept-all sampler). Try enforce_eager to tell them apart",
        )
    if expected.warn_below is not None and seen.length < expected.warn_below:
        return Verdict("warn", wanted, f"{measured}: more than 10 % below the seat's own {expected.why}")
    return Verdict("ok", wanted, measured)


def likely_causes(seen: Acceptance) -> str:
    """Return the usual reasons for a curve of this shape, most frequent first."""
    first = seen.rates[0]
    if first < 0.05:
        return (
            "Likely: the draft head is not loaded (its tensors, mtp.* for MTP, are missing from "
            "model.safetensors.index.json or were skipped at load), the head is quantized or excluded by the "
            "checkpoint's quantization ignore list, or the draft model belongs to another target. Look for 'skipped' "
            "or 'not initialized' in the journal of this start"
        )
    if seen.k > 1 and seen.rates[1] < 0.2 * first:
        return (
            "Likely: the first position works and the next ones do not: the drafter's KV cache is laid out wrongly "
            "(mis-strided, wrong block size), or only part of the head was loaded"
        )
    return (
        "Likely: a head that was only partly loaded, a wrong or changed chat template, a drafter trained for another "
        "revision of the target, or sampling at a high temperature"
    )


def format_rates(seen: Acceptance) -> str:
    """Return the per-position curve as text: ``1.00 0.83 0.61``."""
    return " ".join(f"{rate:.2f}" for rate in seen.rates) or "none"
