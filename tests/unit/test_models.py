from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seatfleet.commands import model as command
from seatfleet.core.model import models
from seatfleet.core.model.models import Manifest
from seatfleet.core.problems import ProblemsError

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def fill(directory: Path, salt: str = "") -> Path:
    (directory / "sub").mkdir(parents=True)
    (directory / "config.json").write_text(f'{{"salt": "{salt}"}}')
    (directory / "sub/notes.txt").write_text("x")
    for number, shard in enumerate(SHARDS):
        (directory / shard).write_bytes(bytes([number]) * 3_000_000)
        (directory / shard).chmod(0o600)  # as safetensors writes it
    return directory


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return fill(tmp_path / "source")


@pytest.fixture
def manifest(source: Path) -> Manifest:
    return models.measure(source, "tiny")


Ensure = Callable[..., models.Outcome]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "srv"


@pytest.fixture
def ensure(root: Path, manifest: Manifest, source: Path) -> Ensure:
    def call(
        place: Path = source,
        what: Manifest = manifest,
        *,
        hashes: bool = False,
        repair: bool = False,
        check: bool = False,
    ) -> models.Outcome:
        return models.ensure(root, what, place, hashes=hashes, repair=repair, check=check)

    return call


def flip(path: Path) -> None:
    """Change one byte and keep the size."""
    with path.open("r+b") as stream:
        stream.seek(path.stat().st_size // 2)
        byte = stream.read(1)
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte[0] ^ 1]))


def test_a_model_is_published_readable_and_not_again(ensure: Ensure, root: Path, manifest: Manifest) -> None:
    outcome = ensure()
    assert (outcome.path, outcome.before, outcome.changed) == (root / "tiny" / manifest.revision[:12], "absent", True)
    for path in outcome.path.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644), path
    assert models.load_manifest(json.loads((outcome.path / "manifest.json").read_text()), "x") == manifest
    assert ensure(hashes=True).changed is False
    assert sorted(path.name for path in (root / "tiny").iterdir()) == [manifest.revision[:12]]


def test_modes_do_not_depend_on_the_callers_umask(ensure: Ensure) -> None:
    old = os.umask(0o077)
    try:
        outcome = ensure()
    finally:
        os.umask(old)
    assert {path.stat().st_mode & 0o777 for path in outcome.path.rglob("*") if path.is_file()} == {0o644}
    assert outcome.path.stat().st_mode & 0o777 == 0o755


def test_check_mode_writes_nothing(ensure: Ensure, root: Path, tmp_path: Path) -> None:
    assert ensure(check=True).changed
    assert ensure(tmp_path / "not there yet", check=True).changed
    assert not root.exists()


def test_a_corrupted_byte_of_the_right_size_is_refused(
    ensure: Ensure, root: Path, source: Path, manifest: Manifest
) -> None:
    flip(source / SHARDS[1])
    with pytest.raises(ProblemsError) as caught:
        ensure()
    seen = models.sha256_file(source / SHARDS[1])
    assert f"{source}: model tiny: {SHARDS[1]}: expected sha256 {manifest.files[SHARDS[1]].sha256}, seen {seen}" in str(
        caught.value
    )
    assert not (root / manifest.directory).exists()


@pytest.mark.parametrize("check", [True, False])
def test_missing_and_short_files_are_all_named_before_a_byte_is_copied(
    ensure: Ensure, root: Path, source: Path, check: bool
) -> None:
    (source / SHARDS[0]).unlink()
    os.truncate(source / SHARDS[1], 17)
    with pytest.raises(ProblemsError) as caught:
        ensure(check=check)
    assert f"{SHARDS[0]}: expected 3000000 bytes, seen no such file" in str(caught.value)
    assert f"{SHARDS[1]}: expected 3000000 bytes, seen 17 bytes" in str(caught.value)
    assert not root.exists()


def test_a_missing_source_is_named(ensure: Ensure, tmp_path: Path) -> None:
    with pytest.raises(ProblemsError, match="nowhere: model source: expected a directory or a tar archive"):
        ensure(tmp_path / "nowhere")


def test_an_older_revision_is_not_touched(ensure: Ensure, tmp_path: Path) -> None:
    old = ensure()
    stamp = {path: path.stat().st_mtime_ns for path in old.path.rglob("*")}
    newer = fill(tmp_path / "newer", salt="2")
    flip(newer / SHARDS[0])
    measured = models.measure(newer, "tiny")
    flip(newer / SHARDS[0])
    with pytest.raises(ProblemsError):
        ensure(newer, measured)
    flip(newer / SHARDS[0])
    assert ensure(newer, measured).changed
    assert {path: path.stat().st_mtime_ns for path in old.path.rglob("*")} == stamp


def test_a_killed_copy_is_resumed(
    ensure: Ensure, root: Path, manifest: Manifest, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "slow"
    shutil.copytree(source, slow)
    (slow / SHARDS[1]).unlink()
    os.mkfifo(slow / SHARDS[1])  # the copy hangs here, with the files before it staged
    script = (
        "import json, sys; from pathlib import Path; sys.path[:0] = [sys.argv[1]]\n"
        "from seatfleet.core.model import models\n"
        "models.DirectorySource.size = lambda self, path: manifest.files[path].size\n"
        "manifest = models.load_manifest(json.loads(sys.argv[2]), 'x')\n"
        "models.ensure(Path(sys.argv[3]), manifest, Path(sys.argv[4]), hashes=False, repair=False, check=False)\n"
    )
    src = str(Path(__file__).resolve().parents[2] / "src")
    listing = json.dumps(manifest.to_mapping())
    with subprocess.Popen([sys.executable, "-c", script, src, listing, str(root), str(slow)]) as process:
        first = root / "tiny" / f".staging-{manifest.revision[:12]}" / SHARDS[0]
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (first.exists() and first.stat().st_size == 3_000_000):
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert first.stat().st_size == 3_000_000
    assert not (root / manifest.directory).exists()
    copied: list[str] = []
    real = models._copy
    monkeypatch.setattr(models, "_copy", lambda *args: copied.append(args[1]) or real(*args))
    assert ensure(hashes=True).changed
    assert copied == [SHARDS[1], "sub/notes.txt"]
    assert ensure(hashes=True).changed is False


def test_a_damaged_leftover_of_a_killed_copy_is_not_trusted(ensure: Ensure, root: Path, manifest: Manifest) -> None:
    outcome = ensure()
    staging = outcome.path.with_name(f".staging-{outcome.path.name}")
    outcome.path.rename(staging)
    flip(staging / SHARDS[0])
    (staging / "stray").touch()
    (staging / "link").symlink_to("/etc/passwd")
    ensure()
    assert models.examine(root, manifest, hashes=True) == []
    assert not (outcome.path / "stray").exists()
    assert not os.path.lexists(outcome.path / "link")


@pytest.mark.parametrize(
    ("damage", "said", "needs_hashes"),
    [
        (lambda path: (path / SHARDS[0]).unlink(), "seen no such file", False),
        (lambda path: os.truncate(path / "config.json", 0), "config.json: expected 12 bytes, seen 0 bytes", False),
        (lambda path: (path / "manifest.json").write_text("{}"), "expected the manifest of this revision", False),
        (lambda path: (path / "manifest.json").unlink(), "expected the manifest of this revision", False),
        (lambda path: flip(path / SHARDS[1]), f"{SHARDS[1]}: expected sha256", True),
    ],
)
def test_damage_is_found_refused_and_repaired(
    ensure: Ensure, damage: Callable[[Path], Any], said: str, needs_hashes: bool
) -> None:
    path = ensure().path
    damage(path)
    if needs_hashes:
        assert not ensure().changed
    for check in (True, False):
        with pytest.raises(ProblemsError, match=said):
            ensure(hashes=needs_hashes, check=check)
    repaired = ensure(hashes=needs_hashes, repair=True)
    assert (repaired.before, repaired.changed) == ("damaged", True)
    assert not ensure(hashes=True).changed
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_disk_that_is_too_small_is_named_with_both_sizes(
    ensure: Ensure, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(models.shutil, "disk_usage", lambda path: usage._replace(free=models.RESERVE + 6_000_000))
    with pytest.raises(ProblemsError, match=r"disk: expected 1\.01 GiB free .*, seen 1\.01 GiB"):
        ensure()
    assert list(root.rglob("*.safetensors")) == []


def test_half_a_file_of_a_killed_copy_takes_no_room_twice(
    ensure: Ensure, root: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a copy that was killed near its end is refused for ever by a disk that it fits on."""
    staging = models._staging(root, manifest)
    staging.mkdir(parents=True)
    (staging / SHARDS[0]).write_bytes(bytes(2_900_000))
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(models.shutil, "disk_usage", lambda path: usage._replace(free=models.RESERVE + 3_200_000))
    assert ensure().changed
    assert ensure(hashes=True).before == "present"


def test_an_archive_serves_as_source(ensure: Ensure, source: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "tiny.tar", "w") as archive:
        archive.add(source, ".")
        archive.add(source / "config.json", "../outside")
    path = ensure(tmp_path / "tiny.tar").path
    assert not ensure(hashes=True).changed
    assert not (path.parent / "outside").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": 2}, "format: expected 1, seen 2"),
        ({"name": "../x"}, "name: expected a plain name"),
        ({"revision": "main"}, "revision: expected 40 hex digits, seen 'main'"),
        ({"files": {}}, "files: expected a mapping"),
        ({"files": {"../x": {"sha256": "ab" * 32, "size": 1}}}, "expected a relative path inside the model"),
        ({"files": {"/x": {"sha256": "ab" * 32, "size": 1}}}, "expected a relative path inside the model"),
        ({"files": {"a//b": {"sha256": "ab" * 32, "size": 1}}}, "expected a relative path inside the model"),
        ({"files": {"manifest.json": {"sha256": "ab" * 32, "size": 1}}}, "expected a relative path inside the model"),
        ({"files": {"x": {"sha256": "ab", "size": 1}}}, "files.x.sha256: expected 64 hex digits"),
        ({"files": {"x": {"sha256": "ab" * 32, "size": "1"}}}, "files.x.size: expected bytes, seen '1'"),
    ],
)
def test_a_malformed_manifest_is_refused(manifest: Manifest, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ProblemsError) as caught:
        models.load_manifest({**manifest.to_mapping(), **changes}, "m.json")
    assert f"m.json: model manifest: {said}" in str(caught.value) or said in str(caught.value)


def test_seatctl_writes_and_checks_manifests(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import argparse

    parser = argparse.ArgumentParser()
    command.configure(parser)
    listing = str(tmp_path / "tiny.json")
    revision = "0123456789abcdef" * 2 + "01234567"
    arguments = ["manifest", str(source), "--name", "tiny", "--revision", revision, "--output", listing]
    assert command.run(parser.parse_args(arguments)) == 0
    assert command.run(parser.parse_args(["verify", str(source), "--manifest", listing])) == 0
    assert "tiny: 4 files, 6000013 bytes" in capsys.readouterr().out
    flip(source / SHARDS[0])
    with pytest.raises(ProblemsError, match=SHARDS[0]):
        command.run(parser.parse_args(["verify", str(source), "--manifest", listing]))
