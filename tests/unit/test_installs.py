"""Installs of small wheels with the interpreter that runs the tests.

Most take a stand-in for pip, an installer of twenty lines in a wheel of that name: pip itself needs seconds to install
itself. Two take the real one, from the wheel that Python bundles.
"""

from __future__ import annotations

import ensurepip
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from small_release import PATCHED, PRISTINE, SERIES, TARGET, add_tiny_pip, fill, release_of

from seatfleet.clients.wheelhouse import write_archive
from seatfleet.core.problems import ProblemsError
from seatfleet.core.release import installs, patches, releases
from seatfleet.core.release.installs import Host, InstallError
from seatfleet.core.release.locks import Pin, Target
from seatfleet.core.release.releases import Release


@pytest.fixture(scope="module")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = fill(tmp_path_factory.mktemp("wheelhouse"))
    return add_tiny_pip(directory)


@pytest.fixture
def real_pip_wheelhouse(tmp_path: Path) -> Path:
    directory = tmp_path / "real-pip"
    directory.mkdir()
    # A distribution's Python may not bundle pip; the release then takes the one of its ensurepip.
    for pip in (Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"):
        shutil.copy(pip, directory)
    return fill(directory)


@pytest.fixture
def release(wheelhouse: Path) -> Release:
    return release_of(wheelhouse)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "releases", python=sys.executable)


Ensure = Callable[..., installs.Outcome]


@pytest.fixture
def ensure(host: Host, release: Release, wheelhouse: Path) -> Ensure:
    def call(
        source: Path = wheelhouse,
        what: Release = release,
        *,
        every_file: bool = False,
        repair: bool = False,
        check: bool = False,
    ) -> installs.Outcome:
        return installs.ensure(host, what, source, every_file=every_file, repair=repair, check=check)

    return call


def state(outcome: installs.Outcome) -> str:
    return releases.examine(outcome.path, outcome.release, every_file=True)[0]


def test_an_install_is_patched_compiled_marked_and_not_repeated(
    ensure: Ensure, real_pip_wheelhouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_TARGET", "/nonexistent")
    monkeypatch.setenv("PIP_CONSTRAINT", "/nonexistent/constraints.txt")
    monkeypatch.setenv("PYTHONHOME", "/nonexistent")
    release = release_of(real_pip_wheelhouse)
    outcome = ensure(real_pip_wheelhouse, release)
    assert (outcome.before, outcome.changed) == ("absent", True)
    site = releases.site_packages(outcome.path, outcome.release.lock)
    assert (site / "engine/core.py").read_text() == PATCHED
    assert list(site.glob("engine/__pycache__/core.*.pyc"))
    assert (outcome.path / "bin/engine").is_file()
    assert outcome.path.name == outcome.release.id
    assert state(outcome) == "present"
    patches.verify(site, SERIES)
    stamp = (outcome.path / releases.MARKER).stat().st_mtime_ns
    monkeypatch.setattr(subprocess, "Popen", lambda *argv, **_: pytest.fail(f"{argv} was run again"))
    again = ensure(real_pip_wheelhouse, release)
    assert (again.before, again.changed) == ("present", False)
    assert (outcome.path / releases.MARKER).stat().st_mtime_ns == stamp


def test_check_mode_says_so_and_writes_nothing(ensure: Ensure, host: Host, tmp_path: Path) -> None:
    assert ensure(check=True).changed
    assert ensure(tmp_path / "not there yet", check=True).changed
    assert not host.root.exists()


def test_an_import_that_fails_leaves_no_marker_and_the_next_run_starts_over(ensure: Ensure, release: Release) -> None:
    broken = replace(release, imports=("engine.broken",))
    with pytest.raises(InstallError) as caught:
        ensure(what=broken)
    assert "importing engine.broken failed with exit code 1" in str(caught.value)
    assert "RuntimeError: no such device" in str(caught.value)
    outcome = ensure()
    assert outcome.before == "incomplete"
    assert state(outcome) == "present"


def test_a_killed_install_never_looks_finished(ensure: Ensure, release: Release, host: Host, wheelhouse: Path) -> None:
    script = (
        "import sys; from pathlib import Path; sys.path[:0] = sys.argv[1:3]\n"
        "from small_release import release_of; from seatfleet.core.release import installs\n"
        "house, root = map(Path, sys.argv[3:5])\n"
        "host, release = installs.Host(root, python=sys.executable), release_of(house, ('engine.hang',))\n"
        "installs.ensure(host, release, house, every_file=False, repair=False, check=False)\n"
    )
    here = Path(__file__).resolve().parent
    scratch = host.root.parent / "tmp"
    scratch.mkdir()
    command = [sys.executable, "-c", script, str(here), str(here.parents[1] / "src"), str(wheelhouse), str(host.root)]
    with subprocess.Popen(command, start_new_session=True, env={**os.environ, "TMPDIR": str(scratch)}) as process:
        deadline = time.monotonic() + 60
        while not (scratch / "hanging").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert (scratch / "hanging").exists(), "the install did not come to the import"
        os.killpg(process.pid, signal.SIGKILL)
    path = host.root / release.id
    assert (path / "bin/python").exists()
    assert releases.examine(path, release, every_file=False) == ("incomplete", [])
    outcome = ensure()
    assert outcome.before == "incomplete"
    assert state(outcome) == "present"


def test_one_flipped_byte_in_a_wheel_is_refused(
    ensure: Ensure, release: Release, host: Host, wheelhouse: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(wheelhouse, copy)
    victim = copy / "engine-1.0-py3-none-any.whl"
    data = bytearray(victim.read_bytes())
    data[100] ^= 1
    victim.write_bytes(data)
    with pytest.raises(ProblemsError) as caught:
        ensure(copy)
    pin = release.lock.find("engine")
    assert isinstance(pin, Pin)
    assert f"{victim}: release r: engine: expected sha256 {pin.sha256}, seen " in str(caught.value)
    assert not (host.root / release.id).exists()


def test_a_missing_wheel_is_named_in_check_mode_too(ensure: Ensure, wheelhouse: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(wheelhouse, copy)
    (copy / "shim-1.0+cpu-py3-none-any.whl").unlink()
    for check in (True, False):
        with pytest.raises(
            ProblemsError, match=r"shim-1\.0\+cpu-py3-none-any\.whl: release r: shim: .*seen no such file"
        ):
            ensure(copy, check=check)


def test_a_changed_patched_file_is_found_refused_and_repaired(ensure: Ensure, host: Host, release: Release) -> None:
    outcome = ensure()
    victim = releases.site_packages(outcome.path, release.lock) / "engine/core.py"
    victim.write_text(PRISTINE)  # what a reinstall of the distribution does
    with pytest.raises(ProblemsError, match=r"core\.py: .*pristine again"):
        ensure()
    with pytest.raises(ProblemsError):
        ensure(check=True)
    assert victim.read_text() == PRISTINE
    repaired = ensure(repair=True)
    assert (repaired.before, repaired.changed, state(repaired)) == ("damaged", True, "present")


def test_a_changed_unpatched_file_is_found_when_every_file_is_compared(ensure: Ensure, release: Release) -> None:
    outcome = ensure()
    victim = releases.site_packages(outcome.path, release.lock) / "engine/other.py"
    victim.write_text("other = 2\n")
    assert not ensure().changed
    with pytest.raises(ProblemsError, match=r"other\.py: release r: expected sha256 .* as engine-1\.0\.dist-info"):
        ensure(every_file=True)
    assert ensure(every_file=True, repair=True).changed
    assert not ensure(every_file=True).changed


def test_a_better_sentence_in_the_series_is_no_damage_but_other_hashes_are(ensure: Ensure, release: Release) -> None:
    assert release.series is not None
    (patch,) = release.series.patches
    outcome = ensure()
    reworded = replace(release, series=replace(release.series, patches=(replace(patch, tested="on a card, too"),)))
    assert reworded.id == release.id
    assert not ensure(what=reworded).changed
    carried = outcome.path / releases.SERIES
    carried.write_text(carried.read_text().replace(patch.sha256, "0" * 64))
    with pytest.raises(ProblemsError, match=r"series\.json: release r: expected the series the release was built with"):
        ensure()
    assert ensure(repair=True).before == "damaged"


def test_a_removed_interpreter_is_damage(ensure: Ensure) -> None:
    outcome = ensure()
    (outcome.path / "bin/python").unlink()
    (outcome.path / "bin/python").symlink_to("/usr/bin/python3.0")
    with pytest.raises(ProblemsError, match=r"bin/python: release r: expected a link to an interpreter, seen /usr/bin"):
        ensure()


def test_an_archive_serves_as_wheelhouse(ensure: Ensure, wheelhouse: Path, tmp_path: Path, host: Host) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(wheelhouse, copy)
    (copy / "SHA256SUMS").touch()
    outcome = ensure(write_archive(copy))
    assert state(outcome) == "present"
    assert {path.name for path in host.root.iterdir()} == {".lock", outcome.release.id}


@pytest.mark.parametrize(
    ("target", "field"),
    [
        (replace(TARGET, architecture="aarch64" if platform.machine() == "x86_64" else "x86_64"), "architecture"),
        (replace(TARGET, glibc=99), "C library"),
        (replace(TARGET, minor=99), "python"),
    ],
)
def test_a_host_that_does_not_fit_is_refused_before_anything_is_written(
    target: Target, field: str, host: Host, release: Release, wheelhouse: Path
) -> None:
    unfit = replace(release, lock=replace(release.lock, target=target))
    with pytest.raises(ProblemsError) as caught:
        installs.ensure(host, unfit, wheelhouse, every_file=False, repair=False, check=False)
    assert [problem.field for problem in caught.value.problems] == [field]
    assert not host.root.exists()


def test_a_missing_service_user_is_named(host: Host, release: Release, wheelhouse: Path) -> None:
    with pytest.raises(ProblemsError, match="user: expected the service user no-such-user"):
        installs.ensure(
            replace(host, user="no-such-user"), release, wheelhouse, every_file=False, repair=False, check=False
        )


def test_a_full_disk_is_named_with_both_sizes(ensure: Ensure, monkeypatch: pytest.MonkeyPatch, host: Host) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(installs.shutil, "disk_usage", lambda path: usage._replace(free=1))
    with pytest.raises(
        ProblemsError, match=r"disk: expected 0\.\d\d GiB free for the installed release, seen 0\.00 GiB"
    ):
        ensure()
    assert [path.name for path in host.root.iterdir()] == [".lock"]


def test_a_run_that_waited_for_another_takes_its_result(ensure: Ensure, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = ensure()
    stamp = (outcome.path / releases.MARKER).stat().st_mtime_ns
    answers = [("absent", [])]  # when it asks first, the other one is not done
    real = installs.examine
    monkeypatch.setattr(installs, "examine", lambda *given, **more: answers.pop() if answers else real(*given, **more))
    assert ensure().before == "absent"
    assert (outcome.path / releases.MARKER).stat().st_mtime_ns == stamp


def about_prefix_hits(release: Release, *methods: str) -> Release:
    """Return the release with its patch said to be about prefix hits."""
    assert release.series is not None
    (patch,) = release.series.patches
    marked = replace(patch, required_when={"hybrid": True, "method": list(methods), "prefix_caching": True})
    return replace(release, series=replace(release.series, patches=(marked,)))


ORACLE = "import pathlib, sys; print('oracle', sys.argv[1:]); sys.exit(pathlib.Path({!r}).exists())"


def test_patches_about_prefix_hits_prove_themselves_before_the_marker(
    ensure: Ensure, release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    red = tmp_path / "red"
    monkeypatch.setattr(installs.inspect, "getsource", lambda module: ORACLE.format(str(red)))
    hits = about_prefix_hits(release, "dflash", "mtp", "eagle")
    red.touch()
    with pytest.raises(InstallError) as caught:
        ensure(what=hits)
    assert "state oracle failed with exit code 1" in str(caught.value)
    assert "oracle ['--method', 'dflash', '--method', 'mtp']" in str(caught.value)
    red.unlink()
    outcome = ensure(what=hits)
    assert outcome.before == "incomplete"
    assert state(outcome) == "present"


def test_the_oracle_can_be_left_out_and_is_not_run_for_other_patches(
    ensure: Ensure, host: Host, release: Release, wheelhouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installs.inspect, "getsource", lambda module: "import sys; sys.exit(1)")
    assert state(ensure()) == "present"
    hits = about_prefix_hits(replace(release, name="hits", imports=("engine.other",)), "dflash")
    calm = replace(host, root=host.root.parent / "calm", selftest=False)
    outcome = installs.ensure(calm, hits, wheelhouse, every_file=False, repair=False, check=False)
    assert state(outcome) == "present"


def test_the_oracle_travels_inside_a_zip(tmp_path: Path) -> None:
    """As Ansible ships modules: no file of the package exists on the host."""
    archive = tmp_path / "module.zip"
    source = Path(installs.__file__).parents[3]
    with zipfile.ZipFile(archive, "w") as target:
        for path in (source / "seatfleet").rglob("*.py"):
            target.write(path, path.relative_to(source))
    script = (
        f"import sys; sys.path.insert(0, {str(archive)!r})\n"
        "from seatfleet.core.release import installs, kv_oracle\n"
        "assert '.zip' in kv_oracle.__file__, kv_oracle.__file__\n"
        "print(installs.inspect.getsource(kv_oracle))\n"
    )
    text = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True).stdout
    run = subprocess.run([sys.executable, "-I", "-c", text], capture_output=True, text=True, check=False)
    assert run.returncode == 2, run.stderr
    assert "cannot import vLLM here" in run.stdout


def test_what_killed_runs_left_goes_with_the_next_install(ensure: Ensure, host: Host) -> None:
    rests = [host.root / name for name in (".wheels-abc123", ".removing-0.9-aaaaaaaaaaaa")]
    for path in rests:
        path.mkdir(parents=True)
        (path / "torch.whl").write_bytes(b"x")
    path = ensure().path
    assert sorted(host.root.iterdir()) == sorted([host.root / ".lock", path])
