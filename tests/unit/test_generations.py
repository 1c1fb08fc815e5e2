"""Generation directories on a real file system."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from seatfleet.core.paths import SeatPaths
from seatfleet.core.seat import generations
from seatfleet.core.seat.generations import GenerationError

FILES = {"vllm.yaml": "port: 1\n", "seat.env": "A=1\n", "manifest.json": "{}\n", "vllm-seat-a.service": "[Unit]\n"}
RELEASE = "/opt/vllm/releases/0.32.0-x"


@pytest.fixture
def paths(tmp_path: Path) -> SeatPaths:
    return SeatPaths("a", tmp_path)


def stage(paths: SeatPaths, name: str, **changes: str) -> generations.StagePlan:
    return generations.stage(paths, name, FILES | changes, RELEASE)


def test_stage_writes_once(paths: SeatPaths) -> None:
    plan = stage(paths, "1111")
    directory = paths.generation("1111")
    assert (plan.create, plan.changed) == (True, True)
    assert {path.name for path in directory.iterdir()} == {*FILES, "release"}
    assert all((directory / name).read_text() == text for name, text in FILES.items())
    assert str((directory / "release").readlink()) == RELEASE
    assert not paths.current.exists()
    again = stage(paths, "1111")
    assert (again.create, again.changed) == (False, False)


def test_plan_writes_nothing(paths: SeatPaths, tmp_path: Path) -> None:
    plan = generations.plan_stage(paths, "1111", FILES)
    assert plan.create
    assert dict(plan.files) == {name: (None, text) for name, text in FILES.items()}
    assert list(tmp_path.iterdir()) == []


def test_names_of_aliases_and_expectations_are_refreshed_in_place(paths: SeatPaths) -> None:
    stage(paths, "1111")
    generations.mark_good(paths, "1111", {"ready_s": 1.0})
    plan = stage(paths, "1111", **{"vllm.yaml": "port: 1\nserved: 2\n", "manifest.json": '{"a": 1}\n'})
    assert (plan.create, set(plan.files)) == (False, {"vllm.yaml", "manifest.json"})
    assert (paths.generation("1111") / "vllm.yaml").read_text() == "port: 1\nserved: 2\n"
    assert generations.is_good(paths, "1111")


def test_an_edited_generation_is_refused(paths: SeatPaths) -> None:
    stage(paths, "1111")
    (paths.generation("1111") / "seat.env").write_text("A=2\n")
    with pytest.raises(GenerationError, match=r"generations/1111: expected .* seen another seat\.env.*remove"):
        stage(paths, "1111")


def test_a_killed_stage_leaves_no_generation(paths: SeatPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(generations, "write_atomic", full)
        with pytest.raises(OSError, match="No space"):
            stage(paths, "1111")
    assert not paths.generation("1111").exists()
    assert generations.prunable(paths, keep=0) == []
    stage(paths, "1111")
    assert [path.name for path in paths.generations.iterdir()] == ["1111"]


@pytest.mark.parametrize(
    ("good", "previous"),
    [
        (("1111",), "1111"),
        # a generation that never served well is nothing to go back to
        ((), None),
    ],
)
def test_switch(paths: SeatPaths, good: tuple[str, ...], previous: str | None) -> None:
    for name in ("1111", "2222"):
        stage(paths, name)
    generations.switch(paths, "1111")
    for name in good:
        generations.mark_good(paths, name, {})
    generations.switch(paths, "2222")
    generations.switch(paths, "2222")
    assert generations.link_target(paths.current) == "2222"
    assert generations.link_target(paths.previous) == previous
    # relative, so that a copy of the directory is complete
    assert str(paths.current.readlink()) == "generations/2222"
    assert (paths.current / "vllm.yaml").read_text() == FILES["vllm.yaml"]


def test_point_at_nothing(paths: SeatPaths) -> None:
    stage(paths, "1111")
    generations.point(paths.previous, "1111")
    generations.point(paths.previous, None)
    generations.point(paths.previous, None)
    assert generations.link_target(paths.previous) is None


@pytest.mark.parametrize(
    ("current", "previous", "good", "serves"),
    [
        # the power went in the middle of a rollout
        ("2222", "1111", ("1111",), "1111"),
        ("2222", "1111", ("1111", "2222"), "2222"),
        # nothing was ever proven: better tried than down
        ("2222", "1111", (), "2222"),
        ("2222", None, (), "2222"),
        (None, "1111", ("1111",), None),
    ],
)
def test_settle(
    paths: SeatPaths, current: str | None, previous: str | None, good: tuple[str, ...], serves: str | None
) -> None:
    for name in ("1111", "2222"):
        stage(paths, name)
    for name in good:
        generations.mark_good(paths, name, {})
    generations.point(paths.current, current)
    generations.point(paths.previous, previous)
    assert generations.settle(paths) == (serves if serves != current else None)
    assert generations.link_target(paths.current) == serves
    if serves != current:
        assert generations.link_target(paths.previous) is None, "the way back is where it is already"


def test_settling_keeps_the_next_way_back(paths: SeatPaths) -> None:
    for seconds, name in enumerate(("1111", "2222", "3333")):
        stage(paths, name)
        generations.mark_good(paths, name, {})
        os.utime(paths.generation(name) / generations.EVIDENCE_FILE, (seconds, seconds))
    stage(paths, "4444")
    generations.point(paths.previous, "3333")
    generations.point(paths.current, "4444")
    assert generations.settle(paths) == "3333"
    assert generations.link_target(paths.previous) == "2222"


def age(paths: SeatPaths, *names: str) -> None:
    for seconds, name in enumerate(names):
        os.utime(paths.generation(name), (seconds, seconds))


@pytest.mark.parametrize(
    ("arrange", "keep", "doomed"),
    [
        (lambda _: None, 2, ["3333", "2222", "1111"]),
        (lambda _: None, 9, []),
        (lambda paths: generations.point(paths.current, "1111"), 2, ["3333", "2222"]),
        (lambda paths: generations.point(paths.previous, "2222"), 2, ["3333", "1111"]),
        (lambda paths: (paths.generation("1111") / "pinned").touch(), 2, ["3333", "2222"]),
        (lambda paths: (paths.generations / ".staging-6666").mkdir(), 2, ["3333", "2222", "1111"]),
    ],
)
def test_prune(paths: SeatPaths, arrange: Callable[[SeatPaths], object], keep: int, doomed: list[str]) -> None:
    names = ("1111", "2222", "3333", "4444", "5555")
    for name in names:
        stage(paths, name)
    arrange(paths)
    age(paths, *names)
    assert generations.prunable(paths, keep) == doomed
    assert generations.prunable(paths, keep, protect={"3333"}) == [name for name in doomed if name != "3333"]
    generations.prune(paths, doomed)
    assert {path.name for path in paths.generations.iterdir() if path.name in names} == set(names) - set(doomed)


def test_nothing_to_prune_on_a_new_host(paths: SeatPaths) -> None:
    assert generations.prunable(paths, 1) == []


@pytest.mark.parametrize("text", ["", "[1]", "{"])
def test_unreadable_evidence_and_manifests(paths: SeatPaths, text: str) -> None:
    stage(paths, "1111", **{"manifest.json": text})
    assert generations.read_manifest(paths, "1111") is None
    assert generations.read_manifest(paths, "none") is None
    assert generations.read_evidence(paths, "1111") == {}


def test_evidence_is_kept(paths: SeatPaths) -> None:
    stage(paths, "1111")
    generations.mark_good(paths, "1111", {"ready_s": 28.5})
    assert json.loads((paths.generation("1111") / "probe.json").read_text()) == {"ready_s": 28.5}
    assert generations.read_evidence(paths, "1111") == {"ready_s": 28.5}
