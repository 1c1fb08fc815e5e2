from __future__ import annotations

import re
from pathlib import Path

import pytest

from seatfleet.clients import wheels
from seatfleet.clients.wheelhouse import load_recipes
from seatfleet.core.files import sha256_file
from seatfleet.core.problems import ProblemsError
from seatfleet.core.release.locks import Lock, Pin, Target, format_lock, parse_lock

LOCKS = Path(__file__).resolve().parents[2] / "files/locks"
RECIPES = load_recipes(LOCKS / "locks.yml")
SHA = "ab" * 32
TARGET = Target(11, "x86_64", 36)
PIN = Pin("torch", "2.13.0+cpu", SHA, "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", 12, "local")
OTHER = Pin("a-b", "1", "cd" * 32, "a_b-1-py3-none-any.whl", 3, "index")


def test_a_lock_is_read_back_as_it_was_written() -> None:
    lock = Lock(TARGET, (OTHER, PIN))
    text = format_lock(lock, ["made by a test"])
    assert text.startswith("# made by a test\n# target: cp311 x86_64 manylinux_2_36\na-b==1 --hash=sha256:cd")
    assert parse_lock(text, "a lock") == lock
    assert lock.size == 15


def test_digest_ignores_comments_and_order_but_not_pins_or_target() -> None:
    digest = Lock(TARGET, (OTHER, PIN)).digest
    assert parse_lock(format_lock(Lock(TARGET, (PIN, OTHER)), ["another header"]), "x").digest == digest
    assert Lock(TARGET, (PIN,)).digest != digest
    assert Lock(Target(12, "x86_64", 36), (OTHER, PIN)).digest != digest


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{OTHER}\n", "target: expected one line"),
        ("# target: cp311 x86_64 manylinux_2_36\n", "expected at least one pin, seen none"),
        ("# target: cp311 sparc manylinux_2_36\n" + str(OTHER), "expected x86_64 or aarch64, seen 'sparc'"),
        (f"# target: {TARGET}\n{OTHER}\n{OTHER}\n", "file:3: a-b: expected one pin per distribution"),
        (f"# target: {TARGET}\na==1 --hash=sha256:{SHA}\n", "file:2: expected NAME==VERSION"),
        (f"# target: {TARGET}\n{str(OTHER).replace('index', 'elsewhere')}\n", "file:2: expected NAME==VERSION"),
        (f"# target: {TARGET}\na>=1\nb\n", "2 problems"),
    ],
)
def test_a_malformed_lock_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(ProblemsError, match=re.escape(said)):
        parse_lock(text, "file")


def test_platform_tags_are_the_ladder_pip_needs() -> None:
    tags = Target(12, "x86_64", 18).platforms
    assert tags[:3] == ("manylinux_2_18_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
    assert tags[-3:] == ("manylinux_2_5_x86_64", "manylinux1_x86_64", "linux_x86_64")
    assert Target(12, "aarch64", 17).platforms == ("manylinux_2_17_aarch64", "manylinux2014_aarch64", "linux_aarch64")


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_committed_lock_fits_its_recipe(name: str) -> None:
    recipe = RECIPES[name]
    text = (LOCKS / f"{name}.txt").read_text()
    lock = parse_lock(text, name)
    assert lock.target == recipe.target
    assert name.endswith(f"-cp3{lock.target.minor}-{lock.target.architecture}")
    assert f"as of {recipe.as_of}" in text
    assert {pin.name for pin in lock.pins if pin.origin == "local"} == set(recipe.local)
    if name.startswith(("vllm", "toolbox")):
        assert lock.find("pip"), "the module vllm_release installs with the locked pip"
    # Registry hosts differ between sites; a lock names files and hashes only.
    assert "://" not in text


def test_every_lock_has_a_recipe() -> None:
    assert {path.stem for path in LOCKS.glob("*.txt")} == set(RECIPES)


def test_locked_shims_are_what_this_machine_builds(tmp_path: Path) -> None:
    for name, recipe in RECIPES.items():
        lock = parse_lock((LOCKS / f"{name}.txt").read_text(), name)
        built = {pin.name: pin for pin in lock.pins if pin.origin == "built"}
        assert set(built) == {shim.name for shim in recipe.shims}
        for shim in recipe.shims:
            wheel = wheels.build_shim(tmp_path, shim.name, shim.version, shim.requires)
            assert (wheel.name, wheel.stat().st_size) == (built[shim.name].file, built[shim.name].size)
            assert sha256_file(wheel) == built[shim.name].sha256


def test_malformed_recipes_are_all_reported(tmp_path: Path) -> None:
    path = tmp_path / "locks.yml"
    path.write_text(
        "good:\n  requirements: a.in\n  target: {python: '3.11', architecture: x86_64, glibc: 36}\n  as_of: 'x'\n"
        "unknown:\n  requirments: a.in\n"
        "incomplete:\n  requirements: a.in\n"
    )
    with pytest.raises(ProblemsError) as caught:
        load_recipes(path)
    assert "lock unknown: expected as_of dependencies" in str(caught.value)
    assert "seen requirments" in str(caught.value)
    assert "lock incomplete: expected a complete recipe, seen KeyError('target')" in str(caught.value)
