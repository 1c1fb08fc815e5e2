"""Weights from a hub or a directory to a directory, exactly as a manifest lists them, resumed and published at once.

Files arrive in a staging directory beside the target and are hashed there; nothing is published until every one is what
the manifest says and holds the tensors that are needed. What was there before is not touched until then.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

from ..core.files import CHUNK, pretty_json, sha256_file, sync_directory, umask, write_atomic
from ..core.model import tensors
from ..core.model.models import MANIFEST, RESERVE, File, Manifest, compare, load_manifest
from ..core.problems import Problem, ProblemsError
from ..core.units import format_gib
from .hub import Hub, HubError

Report = Callable[[str], None]

# Tries in a row that bring nothing; a connection that brought something is not counted.
TRIES = 5
_FIRST_PAUSE_S = 1.0
_REPORT_S = 5.0


class FetchError(RuntimeError):
    """A download did not come to its end; the next run resumes it."""


@dataclass(frozen=True)
class Place:
    """Where a model is published. ``listed``: with its manifest beside the files, as in a host's store."""

    directory: Path
    listed: bool = False

    @property
    def staging(self) -> Path:
        """Where files wait until all are there."""
        return self.directory.with_name(f".{self.directory.name}.partial")


@dataclass(frozen=True)
class Origin:
    """Where files come from: directories first, then a hub."""

    repository: str
    hub: Hub | None = None
    directories: Sequence[Path] = ()
    pause_s: float = _FIRST_PAUSE_S

    def __str__(self) -> str:
        places = [*map(str, self.directories), *([self.hub.url] if self.hub else [])]
        return ", ".join(places) or "nowhere"


def fetch(manifest: Manifest, place: Place, origin: Origin, needs: Sequence[tensors.Need], report: Report) -> Path:
    """Bring a model to its place; nothing is done when it is there.

    Raises:
        ProblemsError: too little room, files that are nowhere or not the listed ones, tensors that are missing.
        FetchError: the hub broke off or cannot be reached; run again to resume.
    """
    if is_complete(place, manifest):
        report(f"{manifest.name}: {len(manifest.files)} files are in {place.directory}")
        return place.directory
    place.directory.parent.mkdir(parents=True, exist_ok=True)
    with umask(0o022), _locked(place):
        if is_complete(place, manifest):
            return place.directory
        place.staging.mkdir(exist_ok=True)
        _remove_strays(place.staging, manifest)
        if problems := room_problems(place, manifest, shutil.disk_usage(place.staging).free):
            raise ProblemsError(problems)
        _Collector(manifest, place, origin, report).collect()
        checkpoint, problems = tensors.read_checkpoint(place.staging)
        if problems := [*problems, *tensors.check(checkpoint, needs, str(place.staging))]:
            raise ProblemsError(problems)
        _publish(place, manifest)
    report(f"{manifest.name}: {len(manifest.files)} files, {format_gib(manifest.size)}, verified, in {place.directory}")
    return place.directory


def is_complete(place: Place, manifest: Manifest) -> bool:
    """Say whether exactly this revision is published, by its list and the sizes of its files."""
    listing = place.directory / MANIFEST if place.listed else _listing(place)
    if not listing.is_file() or listing.read_text(encoding="utf-8") != pretty_json(manifest.to_mapping()):
        return False
    return not compare(place.directory, manifest, hashes=False)


def _listing(place: Place) -> Path:
    """Return the list of a directory that hosts copy from: beside it, because every file in it would be copied."""
    return place.directory.with_name(f".{place.directory.name}.json")


def room_problems(place: Place, manifest: Manifest, free: int) -> list[Problem]:
    """Return a problem when what is not staged yet and :data:`RESERVE` do not fit into ``free`` bytes.

    What the published revision has in common, by its list, is linked and takes none.
    """
    here = _listed(place)
    missing = sum(
        max(0, file.size - _staged(place, path)) for path, file in manifest.files.items() if here.get(path) != file
    )
    if missing + RESERVE <= free:
        return []
    expected = (
        f"{format_gib(missing + RESERVE)} free ({format_gib(missing)} to get, {format_gib(RESERVE)} to keep free)"
    )
    return [Problem(str(place.directory.parent), f"model {manifest.name}", "disk", expected, format_gib(free))]


def _listed(place: Place) -> Mapping[str, File]:
    """Return the files of what is published, as its list has them."""
    listing = place.directory / MANIFEST if place.listed else _listing(place)
    try:
        return load_manifest(json.loads(listing.read_text(encoding="utf-8")), str(listing)).files
    except (OSError, ValueError, ProblemsError):
        return {}


def _staged(place: Place, path: str) -> int:
    for name in (path, f"{path}.part"):
        if (place.staging / name).is_file():
            return (place.staging / name).stat().st_size
    return 0


def _expected(file: File) -> str:
    return f"{file.size} bytes, sha256 {file.sha256}"


class _Collector:
    """Brings the files of one model into the staging directory of its place."""

    def __init__(self, manifest: Manifest, place: Place, origin: Origin, report: Report) -> None:
        self._manifest, self._place, self._origin = manifest, place, origin
        self._progress = _Progress(manifest, report)

    def collect(self) -> None:
        """Bring all of them, small files first: what is refused is refused before the first gigabyte."""
        problems = []
        for path, file in sorted(self._manifest.files.items(), key=lambda item: item[1].size):
            target = self._place.staging / path
            if target.is_file() and target.stat().st_size == file.size and sha256_file(target) == file.sha256:
                self._progress.step(path, file.size, received=False)
                continue
            target.unlink(missing_ok=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            seen = self._find(path, file, target)
            if seen is not None and self._origin.hub is not None:
                seen = self._download(self._origin.hub, path, file, target)
            if seen is not None:
                subject = f"model {self._manifest.name}"
                problems.append(Problem(str(self._origin), subject, path, _expected(file), seen))
        if problems:
            raise ProblemsError(problems)

    def _find(self, path: str, file: File, target: Path) -> str | None:
        """Take a file from a directory; return what was seen instead when none has it."""
        # What this place has of another revision is linked: revisions share most of their files.
        if _is(self._place.directory / path, file):
            target.hardlink_to(self._place.directory / path)
            self._progress.step(path, file.size, received=False)
            return None
        seen = "no such file"
        for directory in self._origin.directories:
            source = directory / path
            if not source.is_file():
                continue
            if (size := source.stat().st_size) != file.size:
                seen = f"{size} bytes in {directory}"
            elif (found := self._copy(source, target, path)) == file.sha256:
                return None
            else:
                seen = f"sha256 {found} in {directory}"
                target.unlink()
        return seen

    def _copy(self, source: Path, target: Path, path: str) -> str:
        digest = hashlib.sha256()
        with source.open("rb") as reader, target.open("wb") as writer:
            while chunk := reader.read(CHUNK):
                digest.update(chunk)
                writer.write(chunk)
                self._progress.step(path, len(chunk))
            _settle(writer.fileno())
        target.chmod(0o644)
        return digest.hexdigest()

    def _download(self, hub: Hub, path: str, file: File, target: Path) -> str | None:
        """Download one file, going on where an earlier try or run ended; return what was seen instead of it."""
        part = target.with_name(f"{target.name}.part")
        if part.is_file() and part.stat().st_size > file.size:
            part.unlink()
        fruitless = 0
        while (size := _size(part)) < file.size:
            try:
                self._receive(hub, path, file, part, size)
                trouble = f"the connection ended at byte {_size(part)}"
            except HubError as error:
                if not error.again:
                    raise FetchError(f"model {self._manifest.name}: {error}") from error
                trouble = str(error)
            fruitless = 0 if _size(part) > size else fruitless + 1
            if fruitless >= TRIES:
                message = f"model {self._manifest.name}: {path}: {trouble}, {TRIES} tries in a row; run again to resume"
                raise FetchError(message)
            if _size(part) < file.size:
                time.sleep(self._origin.pause_s * 2**fruitless)
        # Read again as a whole: what was resumed was written by another process, perhaps before a power cut.
        part.touch()
        found, size = sha256_file(part), _size(part)
        if (found, size) != (file.sha256, file.size):
            part.unlink()
            return f"{size} bytes, sha256 {found}"
        part.chmod(0o644)
        part.replace(target)
        return None

    def _receive(self, hub: Hub, path: str, file: File, part: Path, size: int) -> None:
        """Write what one answer brings, from byte ``size`` on, or from the beginning when the hub knows no ranges."""
        with hub.stream(self._origin.repository, self._manifest.revision, path, size) as (begin, chunks):
            if begin != size:
                self._progress.step(path, -size, received=False)
            with part.open("r+b" if begin else "wb") as writer:
                writer.seek(begin)
                # More than was listed is not the file, and must not fill the disk.
                room = file.size + 1 - begin
                for chunk in chunks:
                    writer.write(chunk[:room])
                    self._progress.step(path, min(len(chunk), room))
                    room -= len(chunk)
                    if room <= 0:
                        break
                writer.flush()
                _settle(writer.fileno())


def _is(path: Path, file: File) -> bool:
    return path.is_file() and path.stat().st_size == file.size and sha256_file(path) == file.sha256


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _settle(handle: int) -> None:
    os.fsync(handle)
    # On GB10 GPU memory is host memory: a page cache full of weights is memory that a seat does not get.
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)


class _Progress:
    """Says every few seconds how far all files together are."""

    def __init__(self, manifest: Manifest, report: Report) -> None:
        self._manifest, self._report = manifest, report
        self._done = 0
        self._started = self._said = time.monotonic()
        self._received = 0

    def step(self, path: str, size: int, *, received: bool = True) -> None:
        """Count bytes; those that were here already say nothing about the speed."""
        self._done += size
        self._received += size if received else 0
        self._say(path)

    def _say(self, path: str) -> None:
        now = time.monotonic()
        if now - self._said < _REPORT_S:
            return
        self._said = now
        rate = self._received / max(now - self._started, 0.001)
        left = (self._manifest.size - self._done) / rate if rate > 0 else 0
        total = format_gib(self._manifest.size)
        self._report(f"  {format_gib(self._done)} of {total}, {rate / 1e6:.0f} MB/s, {left:.0f} s to go: {path}")


def _remove_strays(staging: Path, manifest: Manifest) -> None:
    """Remove what an earlier run with another revision left; equal files of it are kept and checked by their hash."""
    wanted = {name for path in manifest.files for name in (path, f"{path}.part")}
    for path in sorted(staging.rglob("*"), reverse=True):
        if path.is_symlink() or (path.is_file() and path.relative_to(staging).as_posix() not in wanted):
            path.unlink()


def _publish(place: Place, manifest: Manifest) -> None:
    if place.listed:
        write_atomic(place.staging / MANIFEST, pretty_json(manifest.to_mapping()))
    old = place.directory.with_name(f".{place.directory.name}.replaced")
    shutil.rmtree(old, ignore_errors=True)
    if place.directory.exists():
        place.directory.rename(old)
    place.staging.rename(place.directory)
    if not place.listed:
        write_atomic(_listing(place), pretty_json(manifest.to_mapping()))
    sync_directory(place.directory.parent)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _locked(place: Place) -> Iterator[None]:
    """One fetch of a model at a time; a second one waits and then finds it there."""
    with place.directory.with_name(f".{place.directory.name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def pin(name: str, repository: str, revision: str, hub: Hub, exclude: Sequence[str], report: Report) -> Manifest:
    """Return the manifest of a revision as the hub lists it; small files, whose hash it does not tell, are downloaded.

    Raises:
        HubError: no such repository or revision, no access, or no hub.
    """
    files: dict[str, File] = {}
    for listed in hub.files(repository, revision):
        if any(fnmatch(listed.path, pattern) for pattern in exclude):
            continue
        sha256 = listed.sha256
        if sha256 is None:
            digest = hashlib.sha256()
            with hub.stream(repository, revision, listed.path, 0) as (_, chunks):
                for chunk in chunks:
                    digest.update(chunk)
            sha256 = digest.hexdigest()
        files[listed.path] = File(sha256, listed.size)
        report(f"  {listed.path}: {listed.size} bytes, sha256 {sha256[:12]}...")
    return Manifest(name, revision, dict(sorted(files.items())))


def catalogue_entry(project: Path, name: str) -> Mapping[str, Any]:
    """Return a model of the catalogue as it is written.

    Raises:
        ProblemsError: there is none, or it still has a placeholder where the repository or the revision belongs.
    """
    path = "group_vars/all/models.yml"
    models = yaml.safe_load((project / path).read_text(encoding="utf-8"))["models"]
    if name not in models:
        raise ProblemsError(
            [Problem(path, f"model {name}", "", f"one of {', '.join(sorted(models))}", "no such model")]
        )
    entry: Mapping[str, Any] = models[name]
    problems = [
        Problem(path, f"model {name}", field, "a value", str(entry.get(field)))
        for field in ("repository", "revision")
        if not entry.get(field) or str(entry[field]).startswith("<")
    ]
    if problems:
        raise ProblemsError(problems)
    return entry
