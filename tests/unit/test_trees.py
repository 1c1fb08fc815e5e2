"""Trees: the locked bytes or nothing, made once, complete or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatfleet.clients import trees, wheelhouse, wheels
from seatfleet.core.release.locks import Lock, Target

NAME = "vllm-1.0-cp311-x86_64"
FILES = {"vllm/a.py": b"a = 1\n", "vllm/b.json": b"{}", "vllm/_C.so": b"\x7fELF"}


@pytest.fixture
def lock(tmp_path: Path) -> Lock:
    """A wheelhouse in the cache that has vllm and another wheel."""
    directory = tmp_path / "mirror/wheelhouses" / NAME
    directory.mkdir(parents=True)
    built = (wheels.build_wheel(directory, "vllm", "1.0", FILES, ""), wheels.build_wheel(directory, "x", "1", {}, ""))
    return Lock(Target(11, "x86_64", 36), tuple(wheelhouse.pin_of(path, "index") for path in built))


def test_python_files_of_vllm_only_and_made_once(tmp_path: Path, lock: Lock) -> None:
    tree = trees.build(lock, NAME, tmp_path, lambda line: None)
    assert {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()} == {
        "tree.json", "vllm/a.py", "vllm/b.json",
        *(f"vllm-1.0.dist-info/{name}" for name in ("METADATA", "RECORD", "WHEEL")),
    }  # fmt: skip
    made = tree.stat()
    trees.build(lock, NAME, tmp_path, lambda line: None)
    assert (tree.stat().st_ino, tree.stat().st_mtime_ns) == (made.st_ino, made.st_mtime_ns)


def test_another_lock_makes_it_again(tmp_path: Path, lock: Lock) -> None:
    tree = trees.build(lock, NAME, tmp_path, lambda line: None)
    directory = tmp_path / "mirror/wheelhouses" / NAME
    newer = wheelhouse.pin_of(wheels.build_wheel(directory, "vllm", "1.1", {"vllm/c.py": b""}, ""), "index")
    changed = Lock(lock.target, (newer,))
    assert not trees.is_current(tree, changed)
    trees.build(changed, NAME, tmp_path, lambda line: None)
    assert [path.name for path in (tree / "vllm").iterdir()] == ["c.py"]


def test_a_wheel_with_other_bytes_is_fetched_by_hash_instead(
    tmp_path: Path, lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "mirror/wheelhouses" / NAME
    wheels.build_wheel(directory, "vllm", "1.0", {"vllm/a.py": b"a = 2\n"}, "")
    asked: list[str] = []

    def refuse(part: Lock, *arguments: object) -> Path:
        asked.extend(pin.sha256 for pin in part.pins)
        raise wheelhouse.WheelhouseError("no network here")

    monkeypatch.setattr(wheelhouse, "fetch", refuse)
    with pytest.raises(wheelhouse.WheelhouseError):
        trees.build(lock, NAME, tmp_path, lambda line: None)
    assert asked == [pin.sha256 for pin in lock.pins if pin.name == "vllm"]
    assert not trees.location(tmp_path, NAME).exists()


def test_a_killed_run_leaves_no_tree_and_the_next_completes(
    tmp_path: Path, lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(wheel: Path, folder: Path) -> None:
        (folder / "half.py").write_text("")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(trees, "_unpack", killed)
        with pytest.raises(KeyboardInterrupt):
            trees.build(lock, NAME, tmp_path, lambda line: None)
    assert not trees.location(tmp_path, NAME).exists()
    tree = trees.build(lock, NAME, tmp_path, lambda line: None)
    assert not (tree / "half.py").exists()
