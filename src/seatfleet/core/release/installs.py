"""Installing a release: offline, from wheels checked against the lock, patched, compiled, imported, marked last.

A release is built at its final path, because a virtual environment is not relocatable (its scripts name their
interpreter by absolute path), so it cannot be staged elsewhere and moved. What tells a finished one is its marker,
written last and in one rename: a directory without marker is the rest of an interrupted install, and the next run
removes and rebuilds it.
"""

from __future__ import annotations

import inspect
import os
import platform
import pwd
import shutil
import subprocess
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files import CHUNK, canonical_json, pretty_json, sha256_file, sync_directory, umask, write_atomic
from ..problems import Problem, ProblemsError
from ..units import format_gib
from . import kv_oracle, patches
from .locks import Lock, Pin
from .releases import (
    LAYOUT,
    MARKER,
    SERIES,
    UNPACKED,
    Release,
    examine,
    locked,
    remove,
    remove_rests,
    site_packages,
)

LOG = "install.log"


class InstallError(RuntimeError):
    """A step of an install failed; the message names the step, the host's log of it and what to do."""


@dataclass(frozen=True)
class Host:
    """Where and how releases are installed here.

    ``user`` runs what is imported from the release; None is the current user. ``selftest``: releases whose patches are
    about prefix hits must pass the state oracle.
    """

    root: Path
    user: str | None = None
    python: str | None = None
    selftest: bool = True


@dataclass(frozen=True)
class Outcome:
    """What :func:`ensure` found or did. ``before`` is absent, incomplete, damaged or present."""

    release: Release
    path: Path
    before: str
    changed: bool
    seconds: float = 0.0


def ensure(host: Host, release: Release, wheelhouse: Path, *, every_file: bool, repair: bool, check: bool) -> Outcome:
    """Install a release unless it is there; with ``repair`` a damaged one is built again.

    ``check`` only says what would happen. Things that an earlier task brings on a virgin host (wheelhouse, service
    user, interpreter) are then no problem when they are missing.

    Raises:
        ProblemsError: the release is damaged and may not be repaired, or the host or the wheelhouse does not fit.
        InstallError: a step failed; the release has no marker then.
    """
    path = host.root / release.id
    before, problems = examine(path, release, every_file=every_file)
    if before == "damaged" and not repair:
        raise ProblemsError(problems)
    if before == "present":
        return Outcome(release, path, before, changed=False)
    problems = list(_host_problems(host, release, virgin=check))
    if wheelhouse.is_dir():
        problems += wheelhouse_problems(wheelhouse, release)
    elif not wheelhouse.is_file() and not check:
        expected = (
            "the release's wheelhouse, a directory or a tar archive (seatctl release fetch, then mount or push it)"
        )
        problems.append(Problem(str(wheelhouse), f"release {release.name}", "", expected, "neither"))
    if problems:
        raise ProblemsError(problems)
    if check:
        return Outcome(release, path, before, changed=True)
    started = time.monotonic()
    with umask(0o022), _locked(host.root):
        # Another run may have installed it while this one waited for the lock.
        if examine(path, release, every_file=every_file)[0] != "present":
            remove_rests(host.root)
            with _wheels(wheelhouse, host.root, release.lock) as wheels:
                _install(host, release, wheels)
    return Outcome(release, path, before, changed=True, seconds=round(time.monotonic() - started, 1))


# --- before an install -----------------------------------------------------------------------------------------------


def _host_problems(host: Host, release: Release, *, virgin: bool) -> Iterator[Problem]:
    subject, target = f"release {release.name}", release.lock.target
    if platform.machine() != target.architecture:
        yield Problem("host", subject, "architecture", target.architecture, platform.machine())
    library, version = platform.libc_ver()
    parts = [int(part) for part in version.split(".")[:2]] if library == "glibc" else [0, 0]
    if parts < [2, target.glibc]:
        yield Problem("host", subject, "C library", f"glibc 2.{target.glibc} or newer", f"{library} {version}".strip())
    if virgin:
        return
    python = interpreter(host, release.lock)
    if python is None:
        expected = f"python{target.python} in PATH (package python{target.python}), or the variable with its path"
        yield Problem("host", subject, "python", expected, host.python or "none")
    if host.user is not None:
        try:
            pwd.getpwnam(host.user)
        except KeyError:
            expected = f"the service user {host.user} (role gpu_host creates it)"
            yield Problem("host", subject, "user", expected, "no such user")


def interpreter(host: Host, lock: Lock) -> str | None:
    """Return the path of the interpreter that a release is built with, None when it is not there or another version."""
    candidate = host.python or f"python{lock.target.python}"
    found = shutil.which(candidate)
    if found is None:
        return None
    script = "import sys; print('%d.%d' % sys.version_info[:2])"
    seen = subprocess.run([found, "-I", "-c", script], capture_output=True, text=True, check=False)
    return found if seen.stdout.strip() == lock.target.python else None


def wheelhouse_problems(wheelhouse: Path, release: Release) -> list[Problem]:
    """Return every wheel of the lock that is missing or has another size; contents are hashed when they are used."""
    subject = f"release {release.name}"
    problems = []
    for pin in release.lock.pins:
        file = wheelhouse / pin.file
        size = file.stat().st_size if file.is_file() else None
        if size != pin.size:
            seen = "no such file" if size is None else f"{size} bytes"
            problems.append(Problem(str(file), subject, pin.name, f"{pin.size} bytes", seen))
    return problems


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    root.mkdir(parents=True, exist_ok=True)
    with locked(root):
        yield


@contextmanager
def _wheels(wheelhouse: Path, root: Path, lock: Lock) -> Iterator[Path]:
    """Give a directory of wheels; those of an archive are unpacked beside the releases and removed again."""
    if wheelhouse.is_dir():
        yield wheelhouse
        return
    with tempfile.TemporaryDirectory(prefix=UNPACKED, dir=root) as scratch:
        # By name, not extractall: its filter argument came with Python 3.11.4, and Debian 12 has 3.11.2.
        with tarfile.open(wheelhouse) as archive:
            members = {member.name: member for member in archive if member.isfile()}
            for pin in lock.pins:
                stream = archive.extractfile(members[pin.file]) if pin.file in members else None
                if stream is not None:
                    with stream, (Path(scratch) / pin.file).open("wb") as target:
                        shutil.copyfileobj(stream, target, CHUNK)
        yield Path(scratch)


# --- an install ------------------------------------------------------------------------------------------------------


def _install(host: Host, release: Release, wheels: Path) -> None:
    path = host.root / release.id
    if problems := [*_hash_problems(wheels, release), *_space_problems(host.root, wheels, release)]:
        raise ProblemsError(problems)
    remove(path)
    python = interpreter(host, release.lock)
    if python is None:
        raise InstallError(f"release {release.name}: no python{release.lock.target.python} on this host")
    steps = _Steps(path, release.name)
    path.mkdir()
    pip = release.lock.find("pip")
    steps.run("creating the environment", [python, "-m", "venv", *(["--without-pip"] if pip else []), str(path)])
    steps.run("installing the wheels", _pip_command(path, wheels, pip, _requirements(path, release.lock)))
    site = site_packages(path, release.lock)
    if release.series:
        patches.apply(site, release.series, release.diffs)
        write_atomic(path / SERIES, pretty_json(release.series.to_mapping(documentation=False)))
    # Exit code 1 means that some file has a syntax error; wheels ship templates and code for other Pythons.
    # A read-only tree without bytecode would be compiled again at every start of every process.
    compile_all = [str(path / "bin/python"), "-m", "compileall", "-qq", "-j", "0", str(site)]
    steps.run("compiling bytecode", compile_all, allowed=(0, 1))
    if release.series:
        patches.verify(site, release.series)
    _check_imports(host, release, path, steps)
    _check_prefix_hits(host, release, path, steps)
    # The marker must not survive a power cut that the files before it do not.
    os.sync()
    write_atomic(path / MARKER, pretty_json(_marker(release, steps)))
    sync_directory(host.root)


class _Steps:
    """Runs the commands of one install and keeps their output in the release's log."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._name = name
        self.seconds: dict[str, float] = {}

    def run(
        self,
        what: str,
        command: Sequence[str],
        allowed: tuple[int, ...] = (0,),
        environment: Mapping[str, str] | None = None,
        owner: pwd.struct_passwd | None = None,
    ) -> None:
        started = time.monotonic()
        identity: dict[str, Any] = {}
        if owner is not None:
            identity = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
        result = subprocess.run(
            command,
            env={**_clean_environment(), **(environment or {})},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            **identity,
        )
        self.seconds[what] = round(time.monotonic() - started, 1)
        log = self._path / LOG
        with log.open("a", encoding="utf-8") as stream:
            shown = " ".join(command)[:2000]  # one of them is a whole program
            stream.write(f"--- {what} ({self.seconds[what]} s): {shown}\n{result.stdout}\n")
        if result.returncode not in allowed:
            tail = "\n  ".join(result.stdout.strip().splitlines()[-15:])
            raise InstallError(
                f"release {self._name}: {what} failed with exit code {result.returncode} (all output: {log}; the next "
                f"run starts over). Last lines:\n  {tail}"
            )


def _clean_environment() -> dict[str, str]:
    """Nothing of the caller's pip, Python or virtual environment may change what is installed."""
    kept = {key: value for key, value in os.environ.items() if key in {"PATH", "LANG", "LC_ALL", "TZ"}}
    return {**kept, "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "HOME": "/nonexistent"}


def _requirements(path: Path, lock: Lock) -> Path:
    requirements = path / "requirements.txt"
    requirements.write_text("".join(f"{pin}\n" for pin in lock.pins), encoding="utf-8")
    return requirements


def _pip_command(path: Path, wheels: Path, pip: Pin | None, requirements: Path) -> list[str]:
    """Return the command; the locked pip runs from inside its wheel, so that hosts need neither ensurepip nor a pip."""
    runner = [str(wheels / pip.file / "pip")] if pip else ["-m", "pip"]
    command = [str(path / "bin/python"), "-I", *runner, "install", "--no-index", f"--find-links={wheels}"]
    command += ["--require-hashes", "--no-deps", "--only-binary=:all:", "--no-compile", "--no-cache-dir"]
    return [*command, "--progress-bar=off", f"--requirement={requirements}"]


def _hash_problems(wheels: Path, release: Release) -> Iterator[Problem]:
    for pin in release.lock.pins:
        file = wheels / pin.file
        seen = sha256_file(file) if file.is_file() else "no such file"
        if seen != pin.sha256:
            yield Problem(str(file), f"release {release.name}", pin.name, f"sha256 {pin.sha256}", seen)


def _space_problems(root: Path, wheels: Path, release: Release) -> Iterator[Problem]:
    """Unpacked sizes from the wheels' own directories; bytecode is about as large as its source."""
    needed = 0
    for pin in release.lock.pins:
        with zipfile.ZipFile(wheels / pin.file) as wheel:
            needed += sum(item.file_size * (2 if item.filename.endswith(".py") else 1) for item in wheel.infolist())
    free = shutil.disk_usage(root).free
    if needed > free:
        expected = f"{format_gib(needed)} free for the installed release"
        yield Problem(str(root), f"release {release.name}", "disk", expected, format_gib(free))


_IMPORT_CHECK = """
import importlib, importlib.metadata, json, sys
wanted = json.loads(sys.argv[1])
wrong = []
for name, version in wanted["versions"].items():
    try:
        seen = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        seen = "not installed"
    if seen != version:
        wrong.append(f"{name}: expected {version}, seen {seen}")
for name in wanted["modules"]:
    importlib.import_module(name)
if wrong:
    sys.exit("\\n".join(wrong))
"""


def _check_imports(host: Host, release: Release, path: Path, steps: _Steps) -> None:
    """Import as the service user: root reads files that a service may not, and has caches that it has not."""
    wanted = {"versions": {pin.name: pin.version for pin in release.lock.pins}, "modules": list(release.imports)}
    who = f" as {host.user}" if host.user else ""
    command = [str(path / "bin/python"), "-c", _IMPORT_CHECK, canonical_json(wanted)]
    _run_as_service(host, steps, f"importing {', '.join(release.imports)}{who}", command)


def oracle_arguments(release: Release) -> list[str]:
    """Return the state oracle's arguments: methods that a release's patches about prefix hits name; else nothing."""
    patched = release.series.patches if release.series else ()
    wanted: set[str] = set()
    for patch in patched:
        if patch.required_when.get("prefix_caching"):
            methods = patch.required_when.get("method", [])
            wanted.update([methods] if isinstance(methods, str) else methods)
    return [part for method in kv_oracle.METHODS if method in wanted for part in ("--method", method)]


def _check_prefix_hits(host: Host, release: Release, path: Path, steps: _Steps) -> None:
    """Let vLLM's own scheduler and cache manager show that what a prefix hit restores is right (CPU, under 30 s)."""
    arguments = oracle_arguments(release)
    if host.selftest and arguments:
        # The module may run from a zip: the oracle, one file on its own, goes along as text.
        command = [str(path / "bin/python"), "-P", "-c", inspect.getsource(kv_oracle), *arguments]
        _run_as_service(host, steps, "checking prefix hits with the state oracle", command)


def _run_as_service(host: Host, steps: _Steps, what: str, command: Sequence[str]) -> None:
    owner = pwd.getpwnam(host.user) if host.user and os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="seatfleet-import-") as scratch:
        if owner is not None:
            os.chown(scratch, owner.pw_uid, owner.pw_gid)
        environment = {
            **dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "VLLM_CACHE_ROOT"), scratch),
            **dict.fromkeys(("HF_HUB_OFFLINE", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK"), "1"),
        }
        steps.run(what, command, environment=environment, owner=owner)


def _marker(release: Release, steps: _Steps) -> dict[str, Any]:
    return {
        "layout": LAYOUT,
        "id": release.id,
        "name": release.name,
        "distribution": release.distribution,
        "version": release.version,
        "target": str(release.lock.target),
        "lock": release.lock.digest,
        "patches": [patch.name for patch in release.series.patches] if release.series else [],
        "installed_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": steps.seconds,
    }
