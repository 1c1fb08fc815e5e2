from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from seatfleet.clients import wheelhouse, wheels
from seatfleet.clients.project import cache_root, project_root, wheel_directories
from seatfleet.clients.wheelhouse import Shim, WheelhouseError
from seatfleet.core.files import sha256_file
from seatfleet.core.problems import ProblemsError
from seatfleet.core.release.locks import Lock, Pin, Target, format_lock

TARGET = Target(11, "x86_64", 36)
SHIM = Shim("vllm", "1.0+cpu", "other==1.0")

# Stands in for `pip download`: copies from the index, records its call, and dies when told to.
FAKE_PIP = """
import json, os, pathlib, shutil, sys
index, calls = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
options = dict(part[2:].split("=", 1) for part in sys.argv[4:] if "=" in part)
lines = pathlib.Path(options["requirement"]).read_text().splitlines()
with calls.open("a") as stream:
    call = {"arguments": sys.argv[3:], "files": [line.split()[3] for line in lines],
            "constraint": os.environ.get("PIP_CONSTRAINT")}
    stream.write(json.dumps(call) + "\\n")
for line in lines:
    name = line.split()[3]
    print(f"Downloading {name} (1 kB)")
    if not (index / name).exists():
        sys.exit(f"ERROR: no matching distribution for {name}")
    shutil.copy(index / name, options["dest"])
"""


class World:
    """An index, a directory of local wheels, a lock over both and a shim, and pip replaced by the program above."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.index, self.local, self.root = path / "index", path / "local", path / "root"
        self.calls_file = path / "calls"
        for directory in (self.index, self.local, self.root):
            directory.mkdir()
        program = path / "pip.py"
        program.write_text(FAKE_PIP)
        pip = [sys.executable, str(program), str(self.index), str(self.calls_file)]
        monkeypatch.setattr(wheelhouse, "_pip", lambda: pip)
        pins = [
            wheelhouse.pin_of(
                wheels.build_wheel(self.index, f"pkg-{n}", "1.0", {f"pkg_{n}.py": b"#" * 10**n}, ""), "index"
            )
            for n in range(5)
        ]
        pins.append(wheelhouse.pin_of(wheels.build_wheel(self.local, "torch", "2.0+cpu", {"t.py": b""}, ""), "local"))
        pins.append(wheelhouse.pin_of(wheels.build_shim(path, SHIM.name, SHIM.version, SHIM.requires), "built"))
        self.lock = Lock(TARGET, tuple(pins))
        self.said: list[str] = []

    def fetch(self, lock: Lock | None = None) -> Path:
        lock = lock or self.lock
        return wheelhouse.fetch(
            lock, format_lock(lock), "name", self.root, [self.local], [SHIM], lambda line: self.said.append(line)
        )

    def calls(self) -> list[dict[str, object]]:
        return (
            [json.loads(line) for line in self.calls_file.read_text().splitlines()] if self.calls_file.exists() else []
        )


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_a_wheelhouse_holds_exactly_the_locked_files(world: World) -> None:
    final = world.fetch()
    assert {path.name: sha256_file(path) for path in final.glob("*.whl")} == {
        pin.file: pin.sha256 for pin in world.lock.pins
    }
    assert (final / "requirements.txt").read_text() == format_lock(world.lock)
    assert (final / "SHA256SUMS").read_text() == world.lock.sums
    assert {path.name for path in world.root.iterdir()} == {"name"}
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in final.iterdir())


def test_pip_is_asked_for_the_hosts_python_without_the_users_constraints(world: World) -> None:
    world.fetch()
    (call,) = world.calls()
    arguments = call["arguments"]
    assert isinstance(arguments, list)
    assert {"--python-version=3.11", "--platform=manylinux_2_36_x86_64", "--platform=manylinux2014_x86_64"} < set(
        arguments
    )
    assert {"--require-hashes", "--no-deps", "--only-binary=:all:"} < set(arguments)
    assert call["constraint"] == os.devnull


def test_a_second_fetch_does_nothing(world: World) -> None:
    world.fetch()
    world.fetch()
    assert len(world.calls()) == 1
    assert world.said[-1].startswith("name: 7 wheels are in ")


def test_a_failed_fetch_is_resumed_with_what_is_missing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheelhouse, "BATCH_FILES", 2)
    hidden = world.index / "pkg_4-1.0-py3-none-any.whl"
    hidden.rename(world.root.parent / "hidden.whl")
    with pytest.raises(WheelhouseError, match=r"run again to resume.*\n.*\n.*no matching distribution for pkg_4"):
        world.fetch()
    assert not (world.root / "name").exists()
    (world.root.parent / "hidden.whl").rename(hidden)
    before = len(world.calls())
    world.fetch()
    assert [call["files"] for call in world.calls()[before:]] == [[hidden.name]]


def test_a_damaged_leftover_is_fetched_again(world: World) -> None:
    final = world.fetch()
    final.rename(world.root / ".name.partial")
    victim = world.root / ".name.partial/pkg_3-1.0-py3-none-any.whl"
    flip(victim)
    final = world.fetch()
    assert sha256_file(final / victim.name) == next(pin.sha256 for pin in world.lock.pins if pin.file == victim.name)
    assert world.calls()[-1]["files"] == [victim.name]


def test_one_flipped_byte_is_refused_with_both_hashes(world: World) -> None:
    victim = world.index / "pkg_2-1.0-py3-none-any.whl"
    good = sha256_file(victim)
    flip(victim)
    with pytest.raises(WheelhouseError) as caught:
        world.fetch()
    assert f"{victim.name}: expected sha256 {good}, seen {sha256_file(victim)}; removed" in str(caught.value)
    assert not (world.root / "name").exists()


def test_an_incomplete_published_wheelhouse_is_completed(world: World) -> None:
    final = world.fetch()
    (final / "pkg_1-1.0-py3-none-any.whl").unlink()
    world.fetch()
    assert world.calls()[-1]["files"] == ["pkg_1-1.0-py3-none-any.whl"]


def test_a_new_lock_takes_over_what_is_the_same(world: World) -> None:
    world.fetch()
    extra = wheelhouse.pin_of(wheels.build_wheel(world.index, "new", "1", {"new.py": b""}, ""), "index")
    changed = Lock(TARGET, (*(pin for pin in world.lock.pins if pin.name != "pkg-4"), extra))
    final = world.fetch(changed)
    assert world.calls()[-1]["files"] == [extra.file]
    assert {path.name for path in final.glob("*.whl")} == {pin.file for pin in changed.pins}


def test_two_wheelhouses_of_one_lock_are_equal(world: World, tmp_path: Path) -> None:
    first = world.fetch()
    first.rename(tmp_path / "first")
    second = world.fetch()
    names = sorted(path.name for path in (tmp_path / "first").iterdir())
    assert names == sorted(path.name for path in second.iterdir())
    assert all((tmp_path / "first" / name).read_bytes() == (second / name).read_bytes() for name in names)
    assert wheelhouse.write_archive(second).read_bytes() == wheelhouse.write_archive(tmp_path / "first").read_bytes()


@pytest.mark.parametrize("content", [None, b"another wheel of the same name"])
def test_a_missing_local_wheel_is_named_before_anything_starts(world: World, content: bytes | None) -> None:
    (wheel,) = world.local.iterdir()
    sha = sha256_file(wheel)
    wheel.unlink()
    if content:
        wheel.write_bytes(content)
    with pytest.raises(ProblemsError) as caught:
        world.fetch()
    message = str(caught.value)
    assert f"{wheel.name} with sha256 {sha} in a directory named by SEATFLEET_WHEELS" in message
    assert (f"another content in {wheel}" if content else f"nothing in {world.local}") in message
    assert world.calls() == []
    assert list(world.root.iterdir()) == []


def test_check_names_every_obstacle_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheelhouse, "_pip", lambda: None)
    usage = shutil.disk_usage(world.root)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1))
    problems = wheelhouse.check(world.lock, "name", world.root / "not/there", [])
    assert [problem.field for problem in problems] == ["torch", "pip", "disk"]
    assert "neither SEATFLEET_WHEELS nor PIP_FIND_LINKS is set" in problems[0].seen


def test_real_pip_downloads_by_hash_in_spite_of_a_constraints_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, out = tmp_path / "index", tmp_path / "out"
    index.mkdir()
    out.mkdir()
    pin = wheelhouse.pin_of(wheels.build_wheel(index, "some-thing", "1.0", {"x.py": b""}, ""), "index")
    constraints, config = tmp_path / "constraints.txt", tmp_path / "pip.conf"
    constraints.write_text("torch<=2.14.1\n")
    config.write_text(f"[global]\nconstraint = {constraints}\nno-index = true\nfind-links = {index}\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    wheelhouse._download([pin], TARGET, out, lambda line: None)
    assert wheelhouse.is_pin(out / pin.file, pin)
    wrong = Pin(pin.name, pin.version, "0" * 64, pin.file, pin.size, "index")
    (out / pin.file).unlink()
    with pytest.raises(WheelhouseError, match=r"Expected sha256 0000[\s\S]*Got"):
        wheelhouse._download([wrong], TARGET, out, lambda line: None)


def test_large_wheels_travel_alone() -> None:
    sizes = [150_000_000, 100_000_000, *range(1, 20)]
    pins = [Pin(f"p{n}", "1", "0" * 64, f"p{n}.whl", size, "index") for n, size in enumerate(sizes)]
    assert [[pin.size for pin in batch] for batch in wheelhouse.batches(pins)] == [
        list(range(1, 17)),
        [17, 18, 19, 100_000_000],
        [150_000_000],
    ]


def test_the_toolbox_has_the_projects_own_wheel(world: World) -> None:
    project = project_root(Path(__file__).parent)
    fetched = world.fetch()
    toolbox = wheelhouse.build_toolbox(project, world.lock, fetched, world.root / "toolbox", world.said.append)
    assert toolbox.name == "cp311-x86_64"
    assert (toolbox / "seatfleet-0.1.0-py3-none-any.whl").is_file()
    assert "\nseatfleet==0.1.0 --hash=sha256:" in (toolbox / "requirements.txt").read_text()
    stamp = toolbox.stat().st_mtime_ns
    wheelhouse.build_toolbox(project, world.lock, fetched, world.root / "toolbox", world.said.append)
    assert toolbox.stat().st_mtime_ns == stamp


@pytest.mark.parametrize(
    ("wheel", "chosen"),
    [
        (["a-1-py3-none-any.whl", "a-1-cp311-cp311-manylinux_2_28_x86_64.whl"], 1),
        (["a-1-cp311-cp311-manylinux_2_39_x86_64.whl", "a-1-cp38-abi3-manylinux2014_x86_64.whl"], 1),
        (["a-1-cp38-abi3-manylinux_2_28_x86_64.whl", "a-1-2-cp38-abi3-manylinux_2_28_x86_64.whl"], 1),
        (["a-1-cp311-cp311-manylinux_2_17_x86_64.whl", "a-1-cp311-cp311-manylinux_2_28_x86_64.whl"], 1),
        (["a-1-cp312-cp312-manylinux_2_17_x86_64.whl", "a-1-py2.py3-none-any.whl"], 1),
    ],
)
def test_the_best_wheel_for_the_target_is_locked(wheel: list[str], chosen: int) -> None:
    recipe = wheelhouse.Recipe("r", "r.in", TARGET, "now")
    for order in (wheel, wheel[::-1]):
        listing = [{"url": f"https://x/{file}", "size": 1, "hashes": {"sha256": "0" * 64}} for file in order]
        pin = wheelhouse._choose({"name": "a", "version": "1", "wheels": listing}, recipe)
        assert pin.file == wheel[chosen]


def test_a_distribution_without_a_wheel_for_the_target_is_refused() -> None:
    recipe = wheelhouse.Recipe("r", "r.in", TARGET, "now")
    listing = [{"url": "https://x/a-1-cp312-cp312-win_amd64.whl", "size": 1, "hashes": {"sha256": "0" * 64}}]
    with pytest.raises(WheelhouseError, match="lock r: a 1 has no wheel for cp311 x86_64"):
        wheelhouse._choose({"name": "a", "version": "1", "wheels": listing}, recipe)


def test_a_distribution_from_an_unexpected_place_is_refused(tmp_path: Path) -> None:
    recipe = wheelhouse.Recipe("r", "r.in", TARGET, "now")
    file = tmp_path / "a-1-py3-none-any.whl"
    file.write_bytes(b"")
    listing = [{"url": f"file://{file}", "hashes": {"sha256": "0" * 64}}]
    with pytest.raises(WheelhouseError, match="a comes from a local directory; expected the opposite"):
        wheelhouse._choose({"name": "a", "version": "1", "wheels": listing}, recipe)


def test_places_come_from_the_environment(tmp_path: Path) -> None:
    assert cache_root({"SEATFLEET_CACHE": "/a"}) == Path("/a")
    assert cache_root({"XDG_CACHE_HOME": "/b"}) == Path("/b/seatfleet")
    assert wheel_directories({"SEATFLEET_WHEELS": "/a:/b", "PIP_FIND_LINKS": "/c"}) == (Path("/a"), Path("/b"))
    assert wheel_directories({"PIP_FIND_LINKS": "file:///c https://x/y /d"}) == (Path("/c"), Path("/d"))
    assert wheel_directories({}) == ()
    with pytest.raises(ProblemsError, match="a directory inside a checkout"):
        project_root(tmp_path)


def flip(path: Path) -> None:
    """Change one byte and keep the size."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
