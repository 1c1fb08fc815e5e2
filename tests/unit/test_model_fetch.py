"""Weights over HTTP from a real server with ranges: resumed, refused, and the old model untouched."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from seatfleet.cli import main
from seatfleet.clients import model_fetch
from seatfleet.clients.hub import Hub, HubError
from seatfleet.clients.model_fetch import FetchError, Origin, Place
from seatfleet.clients.model_server import ModelServer
from seatfleet.core.model import models
from seatfleet.core.model.models import Manifest
from seatfleet.core.model.tensors import Need
from seatfleet.core.problems import ProblemsError

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
REVISION = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "Qwen/Tiny"


def shard(path: Path, names: list[str], size: int, fill: int) -> None:
    """Write a safetensors file with equal BF16 matrices."""
    header = {
        name: {"dtype": "BF16", "shape": [size // 2, 1], "data_offsets": [number * size, (number + 1) * size]}
        for number, name in enumerate(names)
    }
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes([fill]) * size * len(names))


def checkpoint(directory: Path, fill: int = 1) -> Path:
    directory.mkdir(parents=True)
    names = ["model.layers.0.mlp.weight", "lm_head.weight"], ["mtp.fc.weight", "mtp.norm.weight"]
    for file, tensors in zip(SHARDS, names, strict=True):
        shard(directory / file, tensors, 1_000_000, fill)
    index = {name: file for file, tensors in zip(SHARDS, names, strict=True) for name in tensors}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (directory / "config.json").write_text("{}")
    return directory


@dataclass
class Faults:
    """What a hub does wrong; ``sent`` are the ranges it was asked for."""

    break_at: list[int] = field(default_factory=list)  # bytes after which an answer breaks off, one per answer
    no_ranges: bool = False
    commit: str | None = None
    fail: list[int] = field(default_factory=list)  # HTTP codes to answer with, one per request
    sent: list[tuple[str, str]] = field(default_factory=list)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return checkpoint(tmp_path / "source")


@pytest.fixture
def manifest(source: Path) -> Manifest:
    return models.measure(source, "tiny", REVISION)


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def server(source: Path, manifest: Manifest, faults: Faults) -> Iterator[ModelServer]:
    """The server of this project, told to misbehave."""
    running = ModelServer(("127.0.0.1", 0), source, REPOSITORY, manifest)
    handler: Any = running.RequestHandlerClass

    class Faulty(handler):  # type: ignore[misc]
        def do_GET(self) -> None:
            faults.sent.append((self.path.rsplit("/", 1)[-1], self.headers.get("Range", "")))
            if faults.fail:
                self.send_response(faults.fail.pop(0))
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if faults.no_ranges and "Range" in self.headers:
                del self.headers["Range"]
            super().do_GET()

        def send_header(self, name: str, value: str) -> None:
            super().send_header(name, faults.commit if name == "X-Repo-Commit" and faults.commit else value)

        def _send_bytes(self, stream: Any, begin: int, end: int) -> None:
            if faults.break_at and end - begin > 100_000:
                super()._send_bytes(stream, begin, begin + faults.break_at.pop(0))
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            super()._send_bytes(stream, begin, end)

        def finish(self) -> None:
            with contextlib.suppress(OSError, ValueError):
                super().finish()

        def handle(self) -> None:
            with contextlib.suppress(OSError, ValueError):
                BaseHTTPRequestHandler.handle(self)

    running.RequestHandlerClass = Faulty
    thread = threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


Fetch = Callable[..., Path]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "mirror/models/tiny")


@pytest.fixture
def fetch(server: ModelServer, manifest: Manifest, place: Place) -> Iterator[Fetch]:
    with Hub(server.url, environment={}) as hub:

        def call(
            what: Manifest = manifest, *directories: Path, hubless: bool = False, needs: tuple[Need, ...] = ()
        ) -> Path:
            origin = Origin(REPOSITORY, None if hubless else hub, directories, pause_s=0.001)
            return model_fetch.fetch(what, place, origin, needs, lambda line: None)

        yield call


def same(one: Path, other: Path) -> bool:
    files = sorted(path.name for path in one.iterdir())
    return files == sorted(path.name for path in other.iterdir()) and all(
        (one / name).read_bytes() == (other / name).read_bytes() for name in files
    )


def test_a_model_arrives_readable_and_is_not_asked_for_again(fetch: Fetch, source: Path, faults: Faults) -> None:
    where = fetch()
    assert same(where, source)
    assert {path.stat().st_mode & 0o777 for path in where.iterdir()} == {0o644}
    asked = len(faults.sent)
    fetch()
    assert len(faults.sent) == asked


def test_a_broken_connection_is_resumed_at_its_byte(fetch: Fetch, source: Path, faults: Faults) -> None:
    faults.break_at = [300_000, 500_000]
    assert same(fetch(), source)
    ranges = [given for name, given in faults.sent if name == SHARDS[1]]
    assert len(ranges) == 3
    assert ranges[0] == ""
    assert all(given.startswith("bytes=") and given != "bytes=0-" for given in ranges[1:])


def test_a_hub_without_ranges_is_read_from_the_beginning(fetch: Fetch, source: Path, faults: Faults) -> None:
    faults.break_at, faults.no_ranges = [300_000], True
    assert same(fetch(), source)


def test_an_overloaded_hub_is_asked_again(fetch: Fetch, source: Path, faults: Faults) -> None:
    faults.fail = [503, 429, 500]
    assert same(fetch(), source)


def test_a_hub_that_never_sends_anything_is_given_up(fetch: Fetch, place: Place, faults: Faults) -> None:
    faults.fail = [503] * 50
    with pytest.raises(FetchError, match=r"tiny: .*HTTP 503, 5 tries in a row; run again to resume"):
        fetch()
    assert not place.directory.exists()


def flip(path: Path) -> None:
    """Change one byte and keep the size."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.fixture
def published(place: Place, tmp_path: Path) -> Path:
    """An older revision that is there and serves."""
    old = checkpoint(tmp_path / "old", fill=7)
    shutil.copytree(old, place.directory)
    return old


def test_one_corrupted_byte_of_the_right_size(fetch: Fetch, source: Path, place: Place, published: Path) -> None:
    flip(source / SHARDS[1])
    with pytest.raises(
        ProblemsError, match=rf"{SHARDS[1]}: expected \d+ bytes, sha256 [0-9a-f]+, seen \d+ bytes, sha256"
    ):
        fetch()
    assert same(place.directory, published), "the old model was touched"
    assert not (place.staging / SHARDS[1]).exists()
    assert not list(place.staging.glob("*.part"))
    flip(source / SHARDS[1])
    assert same(fetch(), source)


def test_a_missing_shard(fetch: Fetch, source: Path, place: Place, published: Path, faults: Faults) -> None:
    (source / SHARDS[0]).rename(source / "away")
    with pytest.raises(FetchError, match=rf"{SHARDS[0]}: no such file \(404\)"):
        fetch()
    assert same(place.directory, published)
    (source / "away").rename(source / SHARDS[0])
    faults.sent.clear()
    assert same(fetch(), source)
    assert [name for name, _ in faults.sent if name == SHARDS[1]] in ([], [SHARDS[1]])


def test_a_wrong_revision(fetch: Fetch, manifest: Manifest, place: Place, published: Path, faults: Faults) -> None:
    other = Manifest(manifest.name, "f" * 40, manifest.files)
    with pytest.raises(FetchError, match=r"expected revision f{40}, seen 0123456789abcdef|no such revision \(404\)"):
        fetch(other)
    faults.commit = "e" * 40
    with pytest.raises(FetchError, match=rf"expected revision {REVISION}, seen e{{40}}"):
        fetch()
    assert same(place.directory, published)


def test_a_full_disk(
    fetch: Fetch, place: Place, published: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(place.directory.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1 << 20))
    with pytest.raises(
        ProblemsError, match=r"disk: expected 1\.00 GiB free \(0\.00 GiB to get, 1\.00 GiB to keep free\)"
    ):
        fetch()
    assert faults.sent == [], "asked the hub before looking at the disk"
    assert same(place.directory, published)


CHILD = """
import sys, pathlib, json
from seatfleet.clients import model_fetch
from seatfleet.clients.hub import Hub
from seatfleet.core.model.models import load_manifest
url, manifest, target = sys.argv[1:]
loaded = load_manifest(json.loads(pathlib.Path(manifest).read_text()), "m")
origin = model_fetch.Origin("Qwen/Tiny", Hub(url, environment={}))
model_fetch.fetch(loaded, model_fetch.Place(pathlib.Path(target)), origin, (), print)
"""


def test_a_killed_download_is_resumed(
    fetch: Fetch, server: ModelServer, source: Path, manifest: Manifest, place: Place, published: Path, faults: Faults,
    tmp_path: Path,
) -> None:  # fmt: skip
    (tmp_path / "m.json").write_text(json.dumps(manifest.to_mapping()))
    # The first answer stops in the middle, the next ones at once; the process is killed while it tries again.
    faults.break_at = [700_000] + [0] * 50
    command = [sys.executable, "-c", CHILD, server.url, str(tmp_path / "m.json"), str(place.directory)]
    environment = {**os.environ, "PYTHONPATH": str(Path(model_fetch.__file__).parents[2])}
    child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    part = place.staging / f"{SHARDS[1]}.part"
    limit = time.monotonic() + 60
    while not (part.exists() and part.stat().st_size >= 700_000) and time.monotonic() < limit:
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    left = part.stat().st_size
    assert left >= 700_000
    assert same(place.directory, published), "the old model was touched"

    faults.break_at = []
    faults.sent.clear()
    assert same(fetch(), source)
    assert (SHARDS[1], f"bytes={left}-") in faults.sent, "the part was downloaded again"


def test_a_damaged_part_is_not_published(fetch: Fetch, source: Path, place: Place) -> None:
    place.staging.mkdir(parents=True)
    (place.staging / f"{SHARDS[0]}.part").write_bytes(b"\0" * 1000)
    with pytest.raises(ProblemsError, match=SHARDS[0]):
        fetch()
    assert not place.directory.exists()
    assert same(fetch(), source)


def test_a_file_longer_than_listed_does_not_fill_the_disk(fetch: Fetch, source: Path, place: Place) -> None:
    with (source / SHARDS[0]).open("ab") as stream:
        stream.write(b"x" * 5_000_000)
    with pytest.raises(ProblemsError, match=SHARDS[0]):
        fetch()
    assert not place.directory.exists()


def test_a_directory_stands_in_for_a_hub_that_is_unreachable(
    manifest: Manifest, place: Place, source: Path, tmp_path: Path
) -> None:
    with Hub("http://127.0.0.1:9", environment={}) as hub:
        origin = Origin(REPOSITORY, hub, [source], pause_s=0.001)
        assert same(model_fetch.fetch(manifest, place, origin, (), lambda line: None), source)
        (source / SHARDS[1]).unlink()
        other = Place(tmp_path / "elsewhere/tiny")
        with pytest.raises(FetchError, match=r"http://127\.0\.0\.1:9: .*5 tries in a row"):
            model_fetch.fetch(manifest, other, origin, (), lambda line: None)
        assert not other.directory.exists()


def test_a_directory_with_other_content_is_not_trusted(
    fetch: Fetch, source: Path, manifest: Manifest, tmp_path: Path
) -> None:
    mirror = shutil.copytree(source, tmp_path / "copy")
    flip(mirror / SHARDS[0])
    with pytest.raises(ProblemsError, match=rf"{SHARDS[0]}: expected .*, seen sha256 [0-9a-f]+ in {mirror}"):
        fetch(manifest, mirror, hubless=True)
    assert same(fetch(manifest, mirror), source), "the hub has the right one"


def test_a_new_revision_takes_over_what_is_the_same(
    fetch: Fetch, source: Path, place: Place, faults: Faults, manifest: Manifest
) -> None:
    shutil.copytree(source, place.directory)
    (place.directory / SHARDS[0]).unlink()
    assert same(fetch(), source)
    assert [name for name, _ in faults.sent] == [SHARDS[0]]


def test_what_the_published_revision_has_in_common_needs_no_room(
    fetch: Fetch, source: Path, place: Place, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch()
    (source / "config.json").write_text('{"newer": true}')
    newer = models.measure(source, "tiny", REVISION)
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(model_fetch.shutil, "disk_usage", lambda path: usage._replace(free=models.RESERVE + 1000))
    assert same(fetch(newer), source)
    # Shards of the same size with other content are no common ones.
    (source / SHARDS[0]).write_bytes(bytes((source / SHARDS[0]).stat().st_size))
    with pytest.raises(ProblemsError, match="disk: expected"):
        fetch(models.measure(source, "tiny", REVISION))


def test_another_host_is_reached_past_the_proxy(
    source: Path, tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    test_from_host_to_host(source, tmp_path, manifest)


def test_a_disk_that_fills_up_meanwhile_is_said_in_a_sentence(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device", "/srv/models/x")

    monkeypatch.setattr(model_fetch, "fetch", full)
    listing = tmp_path / "manifest.json"
    listing.write_text(json.dumps(manifest.to_mapping()))
    assert main(["model", "receive", "--manifest", str(listing), "--hub", "http://x", "--root", str(tmp_path)]) == 1
    assert "No space left on device: '/srv/models/x'; run again to resume" in capsys.readouterr().err


def test_needed_tensors_are_looked_for_before_anything_is_published(
    fetch: Fetch, source: Path, place: Place, published: Path
) -> None:
    with pytest.raises(ProblemsError, match=r"mtp\.\*: expected 31 tensors, seen 2"):
        fetch(needs=(Need("mtp.", 31),))
    assert same(place.directory, published)
    assert same(fetch(needs=(Need("mtp.", 2, ("BF16",)),)), source)


def test_a_revision_is_pinned_from_the_hubs_listing(server: ModelServer, manifest: Manifest) -> None:
    with Hub(server.url, environment={}) as hub:
        found = model_fetch.pin("tiny", REPOSITORY, REVISION, hub, ["*.json"], lambda line: None)
        assert found.files == {path: file for path, file in manifest.files.items() if path in SHARDS}
        with pytest.raises(HubError, match=r"Qwen/None at 0123\w+: nothing there \(404\)"):
            model_fetch.pin("tiny", "Qwen/None", REVISION, hub, [], lambda line: None)


def test_from_host_to_host(source: Path, tmp_path: Path, manifest: Manifest) -> None:
    """What playbooks/copy-model.yml runs: serve on one host, receive on the other."""
    store = tmp_path / "a" / manifest.directory
    shutil.copytree(source, store)
    (store / "manifest.json").write_text(json.dumps(manifest.to_mapping()))
    (store / "secret.txt").write_text("not listed")
    running = ModelServer(("127.0.0.1", 0), store, "local/tiny", manifest)
    thread = threading.Thread(target=running.serve_until_idle, args=(3.0,))
    thread.start()
    listing = tmp_path / "manifest.json"
    listing.write_text(json.dumps(manifest.to_mapping()))
    arguments = ["model", "receive", "--manifest", str(listing), "--hub", running.url, "--root", str(tmp_path / "b")]
    assert main(arguments) == 0
    arrived = tmp_path / "b" / manifest.directory
    assert models.examine(tmp_path / "b", manifest, hashes=True) == []
    assert not (arrived / "secret.txt").exists()
    thread.join(60)
    assert not thread.is_alive(), "the server did not end by itself"
    assert main(arguments) == 0, "already there: nothing is asked"


def project(tmp_path: Path, manifest: Manifest, **entry: Any) -> Path:
    root = tmp_path / "project"
    for folder in ("files/locks", "files/models", "group_vars/all"):
        (root / folder).mkdir(parents=True)
    written = {
        "repository": REPOSITORY,
        "revision": REVISION,
        "manifest": "files/models/tiny.json",
        "mirror": "models/tiny",
        "facts": {"mtp_layers": 1},
        **entry,
    }
    (root / "group_vars/all/models.yml").write_text(json.dumps({"models": {"tiny": written}}))
    return root


def test_the_command(
    server: ModelServer, manifest: Manifest, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("SEATFLEET_CACHE", str(tmp_path / "cache"))
    root = project(tmp_path, manifest)
    given = ["--project", str(root), "--hub", server.url]
    assert main(["model", "fetch", "tiny", *given]) == 2
    assert "seatctl model pin NAME writes it" in capsys.readouterr().err
    assert main(["model", "pin", "tiny", *given]) == 0
    assert json.loads((root / "files/models/tiny.json").read_text())["revision"] == REVISION
    assert main(["model", "fetch", "tiny", *given]) == 0
    assert same(tmp_path / "cache/mirror/models/tiny", source)
    assert "verified" in capsys.readouterr().out
    assert main(["model", "tensors", str(source), "--name", "tiny", "--project", str(root)]) == 0
    assert "4 tensors, mtp.*: 2" in capsys.readouterr().out
    assert main(["model", "fetch", "tiny", "--project", str(root), "--hub", "http://127.0.0.1:9"]) == 0, "it is there"


def test_a_placeholder_is_no_revision(manifest: Manifest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = project(tmp_path, manifest, revision="<fill in: 40-hex commit>")
    assert main(["model", "fetch", "tiny", "--project", str(root)]) == 2
    assert "model tiny: revision: expected a value, seen <fill in" in capsys.readouterr().err
    assert main(["model", "pin", "huge", "--project", str(root)]) == 2
    assert "model huge: expected one of tiny, seen no such model" in capsys.readouterr().err
