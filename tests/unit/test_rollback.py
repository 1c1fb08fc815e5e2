"""Back to the previous generation, and what group_vars has to say for it to stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_machine import FakeMachine
from seat_examples import CPU, RELEASE, TINY, seat

from seatfleet.core.paths import SeatPaths
from seatfleet.core.seat import generations
from seatfleet.core.seat.generations import GenerationError
from seatfleet.core.seat.render import Generation, ModelRef, ReleaseRef, render
from seatfleet.core.seat.rollback import field_lines, load, target
from seatfleet.core.seat.rollout import foresee, roll_out
from seatfleet.core.seat.staging import stage_host

SEAT = "lab-oracle"
KEYS = {SEAT: "sk-seat-1"}


def generation(release: ReleaseRef = RELEASE, model: ModelRef = TINY, **changes: object) -> Generation:
    return render(seat(SEAT, **changes), release, model, CPU)


OLD, NEW = generation(), generation(kv_cache_memory="128MiB")


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    fake = FakeMachine(SeatPaths(SEAT, tmp_path))
    for wanted in (OLD, NEW):
        stage_host([wanted], KEYS, check=False, root=tmp_path)
        roll_out(fake, [wanted], KEYS, tmp_path)
    return fake


def test_back_and_what_must_follow(machine: FakeMachine) -> None:
    goal = target(machine.paths)
    assert goal.generation == OLD
    assert (goal.api_key, goal.lines) == ("sk-seat-1", ("kv_cache_memory: 64MiB  # instead of 128MiB",))
    (outcome,) = roll_out(machine, [goal.generation], {SEAT: goal.api_key}, machine.paths.root)
    assert (outcome.failure, outcome.generation) == (None, OLD.name)
    # until group_vars follows, a check run says that it would go forward again
    (foreseen,) = foresee(machine, [NEW], KEYS, machine.paths.root)
    assert (foreseen.action, foreseen.reasons) == ("restart", ("kv-cache-memory-bytes: 67108864 -> 134217728",))
    assert target(machine.paths).generation == NEW


def test_a_rollback_takes_the_api_key_that_the_aliases_get(machine: FakeMachine) -> None:
    """The secret was changed and the rollout refused: with the key on the host no alias could be opened."""
    goal = target(machine.paths)
    stage_host([NEW], {SEAT: "sk-seat-2"}, check=False, root=machine.paths.root)
    (outcome,) = roll_out(machine, [goal.generation], {SEAT: "sk-seat-2"}, machine.paths.root)
    assert (outcome.failure, outcome.generation) == (None, OLD.name)
    assert machine.process is not None and machine.process.environ["VLLM_API_KEY"] == "sk-seat-2"
    assert target(machine.paths).api_key == "sk-seat-2"
    machine.paths.api_key.unlink()
    with pytest.raises(GenerationError, match=r"no API key .*: run site.yml"):
        target(machine.paths)


def test_a_generation_by_name(machine: FakeMachine) -> None:
    assert target(machine.paths, NEW.name).lines == ()
    with pytest.raises(GenerationError, match=rf"expected a good generation \(.*{OLD.name}.*\), seen 000000000000"):
        target(machine.paths, "000000000000")


def test_without_a_good_generation_nothing_is_chosen(machine: FakeMachine) -> None:
    (machine.paths.generation(OLD.name) / generations.EVIDENCE_FILE).unlink()
    with pytest.raises(GenerationError, match=f"expected a good generation .*, seen {OLD.name}"):
        target(machine.paths)
    machine.paths.previous.unlink()
    with pytest.raises(GenerationError, match="no previous good generation"):
        target(machine.paths)


def test_an_incomplete_generation_is_refused(machine: FakeMachine) -> None:
    (machine.paths.generation(OLD.name) / "seat.env").unlink()
    with pytest.raises(GenerationError, match="is not complete"):
        load(machine.paths, OLD.name)


def without(**changes: object) -> dict[str, Any]:
    return dict(generation(**changes).manifest)


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ({}, {}, []),
        ({"max_model_len": 1024}, {}, ["max_model_len: 2048  # instead of 1024"]),
        ({"port": 8033}, {}, ["port: 8022  # instead of 8033"]),
        ({"prefix_caching": True}, {"prefix_caching": False}, ["prefix_caching: false  # instead of true"]),
        (
            {"speculative": {"method": "mtp", "num_speculative_tokens": 1}},
            {"speculative": {"method": "mtp", "num_speculative_tokens": 2}},
            [
                'speculative: {"method": "mtp", "num_speculative_tokens": 2}'
                '  # instead of {"method": "mtp", "num_speculative_tokens": 1}'
            ],
        ),
        ({"env": {"A": "1"}}, {"env": {"A": "2"}}, ["env.A: 2  # instead of 1"]),
        ({"env": {"A": "1"}}, {"env": {}}, ["env.A: null  # instead of 1"]),
        ({"engine": {"seed": 1}}, {"engine": {"seed": 2}}, ["engine.seed: 2  # instead of 1"]),
        ({"enforce_eager": False}, {"enforce_eager": True}, ["enforce_eager: true  # instead of false"]),
        ({"tool_call_parser": "hermes"}, {}, ["tool_call_parser: null  # instead of hermes"]),
        (
            {"probe": {"ready_timeout_s": 60}},
            {"probe": {"ready_timeout_s": 600}},
            ["probe.ready_timeout_s: the value that gives VLLM_ENGINE_READY_TIMEOUT_S 600"],
        ),
    ],
)
def test_lines(before: dict[str, Any], after: dict[str, Any], lines: list[str]) -> None:
    assert list(field_lines(without(**before), without(**after))) == lines


def test_what_a_catalogue_says_is_named_there() -> None:
    other = ReleaseRef(RELEASE.name, "0.32.0-ffffffffffff", "/opt/vllm/releases/0.32.0-ffffffffffff")
    (line,) = field_lines(generation(release=other).manifest, OLD.manifest)
    assert line.startswith(f"releases entry {RELEASE.name}: what it was when it gave {RELEASE.id}")
    model = ModelRef(TINY.name, "f" * 40, TINY.path)
    assert list(field_lines(generation(model=model).manifest, OLD.manifest)) == [
        f"models entry {TINY.name}: revision: {TINY.revision}  # instead of {'f' * 40}"
    ]
    newer = ReleaseRef("0.33.0", "0.33.0-0123456789ab", "/opt/vllm/releases/0.33.0-0123456789ab")
    assert list(field_lines(generation(release=newer).manifest, OLD.manifest)) == [
        f'release: "{RELEASE.name}"  # instead of "0.33.0"'
    ]


def test_a_rejected_generation_is_no_way_back(machine: FakeMachine) -> None:
    """Its probe passed and its alias did not work: neither a rollback nor a reboot may lead to it again."""
    goal = target(machine.paths, OLD.name)
    roll_out(machine, [goal.generation], KEYS, machine.paths.root)
    generations.reject(machine.paths, NEW.name)
    assert not generations.is_good(machine.paths, NEW.name)
    assert generations.link_target(machine.paths.previous) is None
    assert generations.settle(machine.paths) is None
    (foreseen,) = foresee(machine, [NEW], KEYS, machine.paths.root)
    assert foreseen.action == "restart"
    # what kept its alias from working may be gone: it is judged anew
    (again,) = roll_out(machine, [NEW], KEYS, machine.paths.root)
    assert (again.failure, again.way_back) == (None, OLD.name)
    assert generations.is_good(machine.paths, NEW.name)
