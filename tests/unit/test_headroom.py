"""The headroom search over memory models whose edge is known, and the seeds' own two boots."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from seatfleet.cli import main
from seatfleet.core.health.headroom import (
    BOOT_NOISE,
    FULL,
    MAX_BOOTS,
    MIXED,
    PHASES,
    AllocatorWarning,
    Found,
    Next,
    Step,
    Trial,
    allocator_warnings,
    edge,
    margin_for,
    phase_extras,
    pin_below,
    predict,
    refuse_phase,
    refuse_step,
    search,
    snippet,
    stale,
    trials_from_json,
    unclean,
)
from seatfleet.core.units import GIB, MIB

EVIDENCE = Path(__file__).resolve().parents[2] / "docs/evidence"
RAMP_FRACTIONS = (0.25, 0.5, 0.75, 0.9, 1.0)


@dataclass
class Card:
    """A made-up card and seat: what a boot at a pin needs, with allocator slack, fragments and noise."""

    total: int
    base: int
    slope: float  # bytes per token
    bend: float  # share of the slope that grows with depth
    cached: int  # what the allocator keeps when there is room
    fragments: int  # of that, what it cannot use: it would have to give it back first, which is a retry
    depth: int
    batch: int  # what several prompts at once need beyond one of full depth
    rng: random.Random

    @property
    def edge(self) -> int:
        """The largest pin without a retry, without boot noise."""
        return self.total - self._need(1.0) - self.batch - self.fragments

    def _need(self, fraction: float) -> int:
        tokens = fraction * self.depth
        return int(self.base + self.slope * tokens * (1 + self.bend * fraction))

    def boot(self, pin: int, extras: Mapping[str, int] | None = None) -> tuple[Trial, bool]:
        """Return the trial, and whether a step filled the card; ``extras`` is what boots before showed."""
        noise = self.rng.randint(-BOOT_NOISE // 2, BOOT_NOISE // 2)
        steps: list[Step] = []
        crossed = False
        for fraction in RAMP_FRACTIONS:
            tokens = int(fraction * self.depth)
            if steps and refuse_step(steps, tokens, self.total):
                break
            need = pin + self._need(fraction) + noise
            kept = max(0, min(max(self.cached, self.fragments), self.total - need))
            retry = need + self.fragments > self.total
            crossed |= retry
            used = min(self.total, need + kept)
            steps.append(Step(tokens, used, pin + kept, pin + kept - (used - need), retries=int(retry)))
            if retry:
                break
        for phase in (MIXED, FULL):
            reached = len(steps) >= len(RAMP_FRACTIONS) and not crossed
            if not reached or refuse_phase(steps, phase, self.total, (extras or {}).get(phase)):
                break
            need = pin + self._need(1.0) + self.batch + noise
            retry = need + self.fragments > self.total
            crossed |= retry
            kept = max(0, min(max(self.cached, self.fragments), self.total - need))
            used = min(self.total, need + kept)
            steps.append(
                Step(self.depth, used, pin + kept, pin + kept - (used - need), retries=int(retry), phase=phase)
            )
        return Trial(pin, self.total, self.depth, tuple(steps), phases=PHASES), crossed


def cards(count: int) -> list[Card]:
    rng = random.Random(20261129)
    made = []
    while len(made) < count:
        total = rng.choice((24, 48, 96, 97_887 / 1024, 122, 192))
        card = Card(
            total=int(total * GIB),
            base=int(rng.uniform(0.2, 0.85) * total * GIB),
            slope=rng.uniform(0, 3 * GIB) / 131_072,
            bend=rng.choice((0.0, 0.0, 0.05, 0.2)),
            cached=rng.randint(0, 3 * GIB),
            fragments=rng.choice((rng.randint(0, 256 * MIB), rng.randint(0, 8 * GIB))),
            depth=rng.choice((32_000, 131_000, 262_000)),
            batch=rng.choice((0, rng.randint(0, 512 * MIB))),
            rng=rng,
        )
        if card.edge > margin_for(card.total) + 3 * GIB:
            made.append(card)
    return made


def find(card: Card) -> tuple[Found, list[Trial], int]:
    start = max(2 * GIB, card.edge // 3)
    trials: list[Trial] = []
    crossed = 0
    while True:
        step = search(trials, card.total, start)
        if isinstance(step, Found):
            return step, trials, crossed
        trial, over = card.boot(step.pin, phase_extras(trials))
        trials.append(trial)
        crossed += over


def test_random_memory_models_with_a_known_edge() -> None:
    made = cards(1500)
    near = 0
    for card in made:
        found, trials, _ = find(card)
        best = card.edge - margin_for(card.total)
        assert found.pin <= best, (card, found)
        assert len(trials) <= MAX_BOOTS + 1, (card, [trial.pin / GIB for trial in trials])
        near += best - found.pin <= 0.75 * GIB
    assert near >= 0.98 * len(made), near


def test_a_blind_pin_crosses_where_the_search_does_not_end_up() -> None:
    """The control of the test above: its cards do have an edge that a guess falls over."""
    for card in cards(20):
        trial, crossed = card.boot(card.edge + GIB)
        assert crossed or unclean(trial) is not None
        assert unclean(card.boot(card.edge - GIB)[0]) is None


# -- the seeds' two boots: 97,887 MiB, 155,557 tokens

TOTAL = 97_887 * MIB
WARNING_LINE = "OOM on device 0 while trying to allocate 488636416 bytes (free: 422117376)"


def seed_boot(pin_gib: int, used_mib: int, lines: list[str]) -> Trial:
    used = used_mib * MIB
    step = Step(155_557, used, pin_gib * GIB, pin_gib * GIB)
    return Trial(pin_gib * GIB, TOTAL, 155_557, (step,), tuple(allocator_warnings(lines)))


REFUSED = seed_boot(16, 97_074, [WARNING_LINE] * 3)
ACCEPTED = seed_boot(14, 97_887 - 2_085, [])


def test_the_seeds_boots() -> None:
    assert unclean(REFUSED) == "the allocator warned: 466 MiB wanted, 402 MiB free on device 0"
    assert unclean(ACCEPTED) is None
    assert search([REFUSED, ACCEPTED], TOTAL, 16 * GIB) == Next(15 * GIB)


def test_the_seeds_pins_from_their_high_water() -> None:
    """97,887 less 81,466 MiB of everything else: 15 GiB with 1 GiB kept, the seed's 14 GiB with its 2,085 MiB."""
    clean_pin = (97_887 - 81_466) * MIB
    assert (clean_pin - GIB) // (GIB // 4) * (GIB // 4) == 15 * GIB
    assert clean_pin - 2_085 * MIB == 14 * GIB
    assert pin_below(clean_pin, GIB) <= 15 * GIB


def test_the_boots_of_a_real_card_whose_allocator_hoards() -> None:
    """H200, vLLM 0.23.0: a retry with 1.1 GiB to spare at 15.46 GiB; 8.63 was clean and 8.88 was not."""
    kept = json.loads((EVIDENCE / "headroom-gpu-2026-11-30/1a030f4d0107.json").read_text())
    trials = {round(trial.pin / GIB, 2): trial for trial in trials_from_json(kept["trials"])}
    total, start = kept["total"], 7 * GIB
    assert search([trials[7.0]], total, start).pin == trials[15.46].pin
    assert search([trials[7.0], trials[15.46]], total, start).pin == trials[8.63].pin
    bracket = [trials[7.0], trials[15.46], trials[8.88], trials[8.63]]
    assert search(bracket, total, start) == Next(trials[8.5].pin, confirms=True)
    assert search([*bracket, trials[8.5]], total, start) == Found(7 * GIB, trials[8.63].pin, 5, confirmed=True)


def test_a_neighbour_that_died() -> None:
    line = "[W1 CUDACachingAllocator.cpp:1] OOM on device 0 while trying to allocate 1116691497 bytes [free: 629145600]"
    (warning,) = allocator_warnings([line])
    assert str(warning) == "1064 MiB wanted, 600 MiB free on device 0"
    trial = Trial(10 * GIB, TOTAL, 1000, (Step(1000, 0, 0, 0),), (warning,), restarts=1)
    assert unclean(trial) == "the seat restarted 1 times"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (WARNING_LINE, [AllocatorWarning(0, 488636416, 422117376)]),
        ("OOM on device 2 while trying to allocate 10 bytes (total: 100, free: 5)", [AllocatorWarning(2, 10, 5)]),
        ("INFO all well, no OOM", []),
    ],
)
def test_warnings(line: str, found: list[AllocatorWarning]) -> None:
    assert allocator_warnings([line, line]) == found


# -- the parts


def at(depth: int, needed: int, **more: int) -> Step:
    return Step(depth, needed + 500, 800, 300, **more)


def test_what_is_needed_leaves_out_what_the_allocator_can_give_back() -> None:
    assert at(1, 1000).needed == 1000


def test_prediction() -> None:
    line = [at(100, 1000), at(200, 1100), at(300, 1200)]
    assert predict(line, 400) == 1300
    bent = [at(100, 1000), at(200, 1100), at(300, 1400)]
    assert predict(bent, 400) == 1700
    flattening = [at(100, 1000), at(200, 1300), at(300, 1310)]
    assert predict(flattening, 400) > 1320  # the careful one of two lines
    assert predict([at(100, 1000)], 400) == 1000
    with pytest.raises(ValueError, match="at least one step"):
        predict([], 400)


def test_the_next_step_is_refused_before_it_is_made() -> None:
    steps = [at(100, 10 * GIB), at(200, 12 * GIB)]
    assert refuse_step(steps, 300, 15 * GIB) is None
    assert "300 tokens are predicted to need 14.00 GiB of 14.00 GiB" in str(refuse_step(steps, 300, 14 * GIB))


@pytest.mark.parametrize(
    ("trial", "words"),
    [
        (Trial(1, 9, 100, (at(100, 5),)), None),
        (Trial(1, 9, 200, (at(100, 5),)), "stopped at 100 of 200"),
        (Trial(1, 9, 100, (at(100, 5, retries=1),)), "retried 1 times"),
        (Trial(1, 9, 100, (at(100, 5, ooms=1),)), "ran out 1 times"),
        (Trial(1, 9, 100, (at(100, 5),), restarts=2), "restarted 2 times"),
        (Trial(1, 9, 100, (at(100, 5),), preemptions=3), "3 requests were preempted"),
        (Trial(1, 9, 100, (at(100, 5),), canary_ok=False), "canary"),
    ],
)
def test_what_is_not_clean(trial: Trial, words: str | None) -> None:
    found = unclean(trial)
    assert (found is None) if words is None else (words in str(found))


def test_the_edge_a_boot_points_to() -> None:
    trial = Trial(4 * GIB, 20 * GIB, 200, (at(100, 10 * GIB), at(200, 12 * GIB)))
    assert edge(trial) == 12 * GIB
    stopped = Trial(4 * GIB, 20 * GIB, 300, trial.steps)
    assert edge(stopped) == 10 * GIB
    assert edge(Trial(4 * GIB, 20 * GIB, 200, trial.steps[:1])) is None


def test_a_pin_that_is_not_clean_a_second_time_is_given_up() -> None:
    def boot(pin: int, clean: bool) -> Trial:
        return Trial(pin, 20 * GIB, 100, (at(50, 5), at(100, 5, retries=0 if clean else 1)))

    trials = [boot(8 * GIB, True), boot(8 * GIB + 300 * MIB, False)]
    confirming = search(trials, 20 * GIB, GIB)
    assert confirming == Next(8 * GIB - BOOT_NOISE, confirms=True)
    again = search([*trials, boot(8 * GIB - BOOT_NOISE, False)], 20 * GIB, GIB)
    assert isinstance(again, Next)
    assert again.pin < 8 * GIB - BOOT_NOISE
    assert search([*trials, boot(8 * GIB - BOOT_NOISE, True)], 20 * GIB, GIB) == Found(
        int(6.75 * GIB), 8 * GIB, 3, confirmed=True
    )


def test_nothing_safe() -> None:
    never = [Trial(pin * GIB, 20 * GIB, 100, (at(100, 5, ooms=1),)) for pin in range(MAX_BOOTS)]
    assert search(never, 20 * GIB, GIB) == Found(0, 0, MAX_BOOTS, confirmed=False)
    with pytest.raises(ValueError, match="nothing to propose"):
        snippet(Found(0, 0, 6, confirmed=False), {"seat": "s"}, never, "0")


SUBJECT = {
    "seat": "flash-next",
    "release_id": "0.33.0-0123456789ab",
    "argv_hash": "a",
    "driver": "580.95",
    "max_model_len": 262_144,
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 16,
    "speculative": None,
    "co_tenants": [],
}


def test_evidence_belongs_to_what_was_probed() -> None:
    assert stale(SUBJECT, SUBJECT) == []
    changed = {**SUBJECT, "driver": "581.00", "speculative": ["mtp", 2]}
    assert stale(SUBJECT, changed) == [
        "driver: probed with '580.95', now '581.00'",
        "speculative: probed with None, now ['mtp', 2]",
    ]


def test_the_snippet_is_yaml_an_operator_can_paste() -> None:
    import yaml

    from seatfleet.core.units import parse_size

    text = snippet(Found(14 * GIB + 256 * MIB, 15 * GIB, 7, confirmed=True), SUBJECT, [ACCEPTED, REFUSED], "ab" * 32)
    content = yaml.safe_load(text)["flash-next"]
    assert parse_size(content["kv_cache_memory"]) == 14 * GIB + 256 * MIB
    assert content["max_num_batched_tokens"] == 8192
    assert "14.00 GiB: clean, 16.00 GiB: unclean" in text


def test_trials_are_read_back() -> None:
    assert trials_from_json([asdict(REFUSED)]) == [REFUSED]


def test_the_command_asks_for_boots_until_it_can_propose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card = cards(1)[0]
    evidence = tmp_path / "evidence.json"
    content: dict[str, Any] = {"subject": SUBJECT, "start": card.edge // 2, "total": card.total, "trials": []}
    codes = []
    while not codes or codes[-1] == 3:
        evidence.write_text(json.dumps(content))
        codes.append(main(["headroom", "judge", str(evidence)]))
        answer = json.loads(capsys.readouterr().out)
        if codes[-1] == 3:
            content["trials"].append(asdict(card.boot(answer["next_pin"])[0]))
    assert codes[-1] == 0
    assert answer["pin"] <= card.edge - margin_for(card.total)
    assert "kv_cache_memory" in answer["snippet"]


@pytest.mark.parametrize("content", ["{", "[]", '{"subject": {}}', '{"subject":{},"start":1,"total":2,"trials":[{}]}'])
def test_evidence_that_is_none(tmp_path: Path, content: str) -> None:
    evidence = tmp_path / "evidence.json"
    evidence.write_text(content)
    assert main(["headroom", "judge", str(evidence)]) == 2
