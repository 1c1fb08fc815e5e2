"""Locks and wheelhouses: which files a release is made of, and a directory that holds exactly those.

A wheelhouse is built for the *hosts'* Python and architecture, whatever runs here, published in one rename and
verified against its lock: ``wheels``, ``requirements.txt`` (the lock) and ``SHA256SUMS``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from ..core.files import sha256_file
from ..core.problems import Problem, ProblemsError
from ..core.release.locks import Lock, Origin, Pin, Target, format_lock
from ..core.units import format_gib
from . import wheels

Report = Callable[[str], None]

# Finished files of a batch survive an interruption, those of the running one do not: small enough to lose little,
# large enough that pip's start-up (about a second) does not dominate 150 distributions.
BATCH_FILES = 16
BATCH_BYTES = 200 * 10**6
_RECIPE_KEYS = {"requirements", "dependencies", "target", "as_of", "local", "shims"}


@dataclass(frozen=True)
class Shim:
    """A metadata-only wheel: the distribution ``name`` at ``version``, standing for ``requires``."""

    name: str
    version: str
    requires: str


@dataclass(frozen=True)
class Recipe:
    """How a lock is made. ``requirements`` is a file beside the recipes; ``as_of`` an RFC 3339 time."""

    name: str
    requirements: str
    target: Target
    as_of: str
    dependencies: bool = True
    local: tuple[str, ...] = ()
    shims: tuple[Shim, ...] = ()


class WheelhouseError(RuntimeError):
    """A tool failed or a file is not the one the lock names; the message says what to do."""


def load_recipes(path: Path) -> dict[str, Recipe]:
    """Read ``files/locks/locks.yml``.

    Raises:
        ProblemsError: everything in it that is not of the form of :class:`Recipe`.
    """
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    problems: list[Problem] = []
    recipes: dict[str, Recipe] = {}
    for name, entry in document.items():
        unknown = sorted(set(entry) - _RECIPE_KEYS)
        if unknown:
            problems.append(Problem(path.name, f"lock {name}", "", " ".join(sorted(_RECIPE_KEYS)), " ".join(unknown)))
            continue
        try:
            recipes[name] = _recipe(name, entry)
        except (KeyError, TypeError, ValueError) as error:
            problems.append(Problem(path.name, f"lock {name}", "", "a complete recipe", f"{error!r}"))
    if problems:
        raise ProblemsError(problems)
    return recipes


def _recipe(name: str, entry: Mapping[str, Any]) -> Recipe:
    target = entry["target"]
    return Recipe(
        name=name,
        requirements=entry["requirements"],
        target=Target(int(str(target["python"]).removeprefix("3.")), target["architecture"], int(target["glibc"])),
        as_of=entry["as_of"],
        dependencies=entry.get("dependencies", True),
        local=tuple(entry.get("local", ())),
        shims=tuple(Shim(shim, **fields) for shim, fields in entry.get("shims", {}).items()),
    )


def compile_lock(recipe: Recipe, directory: Path, wheel_dirs: Sequence[Path]) -> str:
    """Resolve a recipe as of its date and return the text of the lock; ``directory`` holds the requirements file.

    Raises:
        WheelhouseError: uv failed, or a distribution has no wheel for the target.
    """
    command = compile_command(recipe)
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "pylock.toml"
        links = [f"--find-links={path}" for path in wheel_dirs] if recipe.local else []
        # Without this uv tries to download a Python of the target's version only to name it in a warning.
        environment = {**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
        arguments = [_uv(), *command[1:], *links, f"--output-file={output}", "--quiet"]
        _run(arguments, directory, environment, f"resolving {recipe.name}")
        document = tomllib.loads(output.read_text(encoding="utf-8"))
        pins = [_choose(package, recipe) for package in document["packages"]]
        pins.extend(_shim_pin(shim, Path(scratch)) for shim in recipe.shims)
    lock = Lock(recipe.target, tuple(pins))
    header = [
        f"{Path(recipe.requirements).stem} as of {recipe.as_of}; written by: seatctl release lock {recipe.name}",
        f"resolved by: {' '.join(command)}{' --find-links $SEATFLEET_WHEELS' if recipe.local else ''}",
        "then one wheel per distribution, the best for the target. Fields: requirement, hash, file, bytes, origin.",
    ]
    return format_lock(lock, header)


def compile_command(recipe: Recipe) -> list[str]:
    """Return the resolver's command, without paths of this machine."""
    target = recipe.target
    command = ["uv", "pip", "compile", recipe.requirements, "--format", "pylock.toml", "--only-binary", ":all:"]
    command += ["--python-version", target.python]
    command += ["--python-platform", f"{target.architecture}-manylinux_2_{target.glibc}"]
    command += ["--exclude-newer", recipe.as_of]
    return command if recipe.dependencies else [*command, "--no-deps"]


def _choose(package: Mapping[str, Any], recipe: Recipe) -> Pin:
    from packaging.tags import Tag, compatible_tags, cpython_tags
    from packaging.utils import parse_wheel_filename

    name, version = package["name"], package["version"]
    python = (3, recipe.target.minor)
    platforms = list(recipe.target.platforms)
    ranks: dict[Tag, int] = {}
    for tag in (*cpython_tags(python, platforms=platforms), *compatible_tags(python, platforms=platforms)):
        ranks.setdefault(tag, len(ranks))
    candidates = []
    for wheel in package.get("wheels", ()):
        file = wheel["url"].rsplit("/", 1)[1].replace("%2B", "+")
        _, _, build, tags = parse_wheel_filename(file)
        if usable := [ranks[tag] for tag in tags if tag in ranks]:
            # The same tags: the higher build number wins (vllm 0.23.0 was uploaded again as build 2), none is lowest.
            candidates.append((-min(usable), build, file, wheel))
    if not candidates:
        raise WheelhouseError(f"lock {recipe.name}: {name} {version} has no wheel for {recipe.target}")
    _, _, file, wheel = max(candidates, key=lambda item: item[:3])
    is_local = wheel["url"].startswith("file:")
    if is_local != (name in recipe.local):
        raise WheelhouseError(
            f"lock {recipe.name}: {name} comes from {'a local directory' if is_local else 'the index'}; expected the "
            f"opposite. The recipe's `local` names what is on no index, SEATFLEET_WHEELS where it lies"
        )
    size = Path(wheel["url"].removeprefix("file://").replace("%2B", "+")).stat().st_size if is_local else wheel["size"]
    return Pin(name, version, wheel["hashes"]["sha256"], file, size, "local" if is_local else "index")


def _shim_pin(shim: Shim, scratch: Path) -> Pin:
    return pin_of(wheels.build_shim(scratch, shim.name, shim.version, shim.requires), "built")


def pin_of(path: Path, origin: Origin) -> Pin:
    """Return the pin of a wheel that lies here."""
    name, version = path.name.split("-")[:2]
    return Pin(name.lower().replace("_", "-"), version, sha256_file(path), path.name, path.stat().st_size, origin)


def check(lock: Lock, name: str, root: Path, wheel_dirs: Sequence[Path]) -> list[Problem]:
    """Return what would make :func:`fetch` fail, before anything starts: local wheels, pip, room on the disk."""
    problems = [
        _local_problem(pin, name, wheel_dirs)
        for pin in lock.pins
        if pin.origin == "local" and _find_local(pin, wheel_dirs) is None
    ]
    if any(pin.origin == "index" for pin in lock.pins) and _pip() is None:
        seen = f"none in {sys.executable}, no python3 with pip in PATH"
        problems.append(Problem("", f"lock {name}", "pip", "pip to download with (python3 -m ensurepip)", seen))
    parent = next(path for path in (root, *root.parents) if path.exists())
    free = shutil.disk_usage(parent).free
    if free < lock.size:
        problems.append(Problem(str(root), f"lock {name}", "disk", f"{format_gib(lock.size)} free", format_gib(free)))
    return problems


def _local_problem(pin: Pin, name: str, wheel_dirs: Sequence[Path]) -> Problem:
    searched = ", ".join(map(str, wheel_dirs)) or "no directory (neither SEATFLEET_WHEELS nor PIP_FIND_LINKS is set)"
    others = [str(path / pin.file) for path in wheel_dirs if (path / pin.file).is_file()]
    seen = f"another content in {', '.join(others)}" if others else f"nothing in {searched}"
    return Problem(
        f"files/locks/{name}.txt",
        f"lock {name}",
        pin.name,
        f"{pin.file} with sha256 {pin.sha256} in a directory named by SEATFLEET_WHEELS (it is on no package index "
        f"under this version; put the file there and set the variable)",
        seen,
    )


def _find_local(pin: Pin, wheel_dirs: Sequence[Path]) -> Path | None:
    return next((path / pin.file for path in wheel_dirs if is_pin(path / pin.file, pin)), None)


def is_pin(path: Path, pin: Pin) -> bool:
    """Say whether a file is the one a pin names, by size and sha256."""
    return path.is_file() and path.stat().st_size == pin.size and sha256_file(path) == pin.sha256


def is_complete(directory: Path, lock: Lock) -> bool:
    """Say whether a wheelhouse is published for exactly this lock, by its list of sums and the files' sizes."""
    sums = directory / "SHA256SUMS"
    if not sums.is_file() or sums.read_text(encoding="utf-8") != lock.sums:
        return False
    files = {path.name: path.stat().st_size for path in directory.glob("*.whl")}
    return all(files.get(pin.file) == pin.size for pin in lock.pins)


def fetch(
    lock: Lock, text: str, name: str, root: Path, wheel_dirs: Sequence[Path], shims: Iterable[Shim], report: Report
) -> Path:
    """Build the wheelhouse ``root/name`` of a lock and return its path; nothing is done when it is there.

    A killed run is resumed: finished files stay in ``root/.name.partial`` and are taken after a check of their hash.

    Raises:
        ProblemsError: from :func:`check`, before anything starts.
        WheelhouseError: a download failed, or a file is not the one the lock names.
    """
    final = root / name
    if is_complete(final, lock):
        report(f"{name}: {len(lock.pins)} wheels are in {final}")
        return final
    if problems := check(lock, name, root, wheel_dirs):
        raise ProblemsError(problems)
    staging = root / f".{name}.partial"
    staging.mkdir(parents=True, exist_ok=True)
    missing = [pin for pin in lock.pins if not _reuse(pin, staging, final)]
    report(f"{name}: {len(lock.pins) - len(missing)} of {len(lock.pins)} wheels are here, {_megabytes(missing)} to get")
    for pin in missing:
        if pin.origin == "local" and (source := _find_local(pin, wheel_dirs)):
            shutil.copyfile(source, staging / pin.file)
    for shim in shims:
        wheels.build_shim(staging, shim.name, shim.version, shim.requires)
    remaining = {pin.name: pin for pin in missing if pin.origin == "index"}
    for batch in batches(remaining.values()):
        _download(batch, lock.target, staging, report)
        for pin in batch:
            del remaining[pin.name]
        done = len(lock.pins) - len(remaining)
        report(f"{name}: {done} of {len(lock.pins)} wheels, {_megabytes(remaining.values())} to go")
    _verify(lock, missing, staging, name)
    _publish(lock, text, staging, final)
    report(f"{name}: {len(lock.pins)} wheels, {lock.size / 1e6:.0f} MB, verified, in {final}")
    return final


def _reuse(pin: Pin, staging: Path, published: Path) -> bool:
    """Keep a finished file of an earlier run, or link one that an older wheelhouse has in common."""
    here, there = staging / pin.file, published / pin.file
    if is_pin(here, pin):
        return True
    here.unlink(missing_ok=True)
    if not is_pin(there, pin):
        return False
    here.hardlink_to(there)
    return True


def batches(pins: Iterable[Pin]) -> Iterator[list[Pin]]:
    """Cut the downloads, smallest first, so that a large wheel travels alone."""
    batch: list[Pin] = []
    for pin in sorted(pins, key=lambda pin: pin.size):
        if batch and (len(batch) == BATCH_FILES or sum(item.size for item in batch) + pin.size > BATCH_BYTES):
            yield batch
            batch = []
        batch.append(pin)
    if batch:
        yield batch


def _download(pins: Sequence[Pin], target: Target, directory: Path, report: Report) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        requirements = Path(scratch) / "requirements.txt"
        requirements.write_text("".join(f"{pin}\n" for pin in pins), encoding="utf-8")
        _pip_download(requirements, target, directory, report)


def _pip_download(requirements: Path, target: Target, directory: Path, report: Report) -> None:
    pip = _pip()
    if pip is None:
        raise WheelhouseError("no pip to download with; python3 -m ensurepip brings one")
    command = [*pip, "download", "--require-hashes", "--no-deps", "--only-binary=:all:", "--progress-bar=off"]
    command += ["--implementation=cp", f"--python-version={target.python}"]
    command += [f"--platform={platform}" for platform in target.platforms]
    command += [f"--dest={directory}", f"--requirement={requirements}"]
    # A constraints file in pip's own configuration (torch<=2.14.1, say) is refused together with --require-hashes;
    # the rest of that configuration (index, certificate, proxy) is wanted.
    environment = {**os.environ, "PIP_CONSTRAINT": os.devnull}
    tail: deque[str] = deque(maxlen=20)
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout or ():
            tail.append(line.rstrip())
            if line.lstrip().startswith("Downloading "):
                report(f"  {line.strip().removeprefix('Downloading ').rsplit('/', 1)[-1]}")
    if process.returncode != 0:
        last = "\n  ".join(tail)
        raise WheelhouseError(f"pip download failed; run again to resume. Its last lines:\n  {last}")


def download_one(requirement: str, directory: Path) -> Path:
    """Download the wheel of one requirement for CPython 3.12 on x86_64, without what it needs, and return its path.

    Raises:
        WheelhouseError: pip failed, or there is no pip.
    """
    pip = _pip()
    if pip is None:
        raise WheelhouseError("no pip to download with; python3 -m ensurepip brings one")
    target = Target(12, "x86_64", 35)
    command = [*pip, "download", "--no-deps", "--only-binary=:all:", "--progress-bar=off", "--quiet"]
    command += ["--implementation=cp", f"--python-version={target.python}"]
    command += [f"--platform={platform}" for platform in target.platforms]
    environment = {**os.environ, "PIP_CONSTRAINT": os.devnull}
    done = subprocess.run(
        [*command, f"--dest={directory}", requirement], env=environment, capture_output=True, text=True, check=False
    )
    wheels_found = list(directory.glob("*.whl"))
    if done.returncode != 0 or len(wheels_found) != 1:
        raise WheelhouseError(f"pip download {requirement} failed:\n  {done.stderr.strip()[-600:]}")
    return wheels_found[0]


def _verify(lock: Lock, fresh: Sequence[Pin], staging: Path, name: str) -> None:
    wrong = []
    for pin in fresh:
        path = staging / pin.file
        if not path.is_file():
            wrong.append(f"{pin.file}: expected sha256 {pin.sha256}, seen no such file")
        elif not is_pin(path, pin):
            wrong.append(f"{pin.file}: expected sha256 {pin.sha256}, seen {sha256_file(path)}; removed")
            path.unlink()
    if wrong:
        listing = "\n  ".join(wrong)
        raise WheelhouseError(f"lock {name}: wheels that are not the locked ones, nothing published:\n  {listing}")
    known = {pin.file for pin in lock.pins}
    for path in staging.iterdir():
        if path.name not in known:
            path.unlink()


def _publish(lock: Lock, text: str, staging: Path, final: Path) -> None:
    for path in staging.iterdir():
        path.chmod(0o644)
    (staging / "requirements.txt").write_text(text, encoding="utf-8")
    (staging / "SHA256SUMS").write_text(lock.sums, encoding="utf-8")
    old = final.with_name(f".{final.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        final.rename(old)
    staging.rename(final)
    shutil.rmtree(old, ignore_errors=True)


def build_toolbox(project: Path, lock: Lock, wheelhouse: Path, root: Path, report: Report) -> Path:
    """Build ``root/<tag>``: a toolbox wheelhouse plus this project's own wheel; return its path.

    ``wheelhouse`` is the fetched one of ``lock``. The own wheel changes with every edit of the sources, so it cannot be
    in a committed lock; the lock published here has it.
    """
    name = f"cp3{lock.target.minor}-{lock.target.architecture}"
    final, staging = root / name, root / f".{name}.partial"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    own = pin_of(wheels.build_project(project, staging), "built")
    complete = Lock(lock.target, (*lock.pins, own))
    if is_complete(final, complete):
        shutil.rmtree(staging)
        report(f"toolbox {name}: {own.file} is unchanged in {final}")
        return final
    for pin in lock.pins:
        _reuse(pin, staging, wheelhouse)
    _publish(complete, format_lock(complete), staging, final)
    report(f"toolbox {name}: {own.file} and {len(lock.pins)} dependencies in {final}")
    return final


def write_archive(directory: Path) -> Path:
    """Write ``<directory>.tar`` with the files of a wheelhouse, for hosts without a mirror; return its path."""
    target = directory.with_name(f"{directory.name}.tar")
    newest = (directory / "SHA256SUMS").stat().st_mtime
    if target.is_file() and target.stat().st_mtime > newest:
        return target
    temporary = target.with_name(f".{target.name}.partial")
    with tarfile.open(temporary, "w") as archive:
        for path in sorted(directory.iterdir()):
            archive.add(path, path.name, filter=_anonymous)
    temporary.replace(target)
    return target


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Take off what differs between machines: the archive of one lock is the same wherever it is made."""
    member.mtime = member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _pip() -> list[str] | None:
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    python = shutil.which("python3")
    if python and subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0:
        return [python, "-m", "pip"]
    return None


def _uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.is_file() else shutil.which("uv")
    if found is None:
        raise WheelhouseError("uv is not installed; it is in the project's dev dependencies")
    return found


def _run(command: Sequence[str], directory: Path, environment: Mapping[str, str], what: str) -> None:
    result = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise WheelhouseError(f"{what} failed with exit code {result.returncode}:\n{result.stderr.strip()}")


def _megabytes(pins: Iterable[Pin]) -> str:
    return f"{sum(pin.size for pin in pins) / 1e6:.0f} MB"
