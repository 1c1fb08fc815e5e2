"""The model store: weights on a host exactly as a committed manifest lists them, published in one rename.

``/srv/models/<name>/<revision12>/`` holds the files and ``manifest.json``. Files are copied to a staging directory
beside it, hashed on the way, and nothing is published until every one is what the manifest says; an older revision,
or the same one already there, is not touched. A killed copy is resumed: staged files are hashed again, not trusted.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol

from ..files import CHUNK, canonical_json, is_locked, pretty_json, sha256_file, sync_directory, umask, write_atomic
from ..problems import Problem, ProblemsError
from ..units import format_gib

FORMAT = 1
MANIFEST = "manifest.json"
# Room that must be left when all files are there: a full /srv stops every seat that writes beside its model.
RESERVE = 1 << 30
_SHA256 = re.compile(r"[0-9a-f]{64}")
_REVISION = re.compile(r"[0-9a-f]{40}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# What an interrupted copy, replacement or removal leaves, here and in clients.model_fetch.
_REST = re.compile(
    r"\.(?:(?:staging|replaced|removing)-(?P<revision>[0-9a-f]{12})|(?P<received>[0-9a-f]{12})\.(?:partial|replaced))"
)


@dataclass(frozen=True)
class File:
    """What one file must be."""

    sha256: str
    size: int


@dataclass(frozen=True)
class Manifest:
    """One revision of one model: ``revision`` is the hub's commit, or :func:`content_revision` for one made here."""

    name: str
    revision: str
    files: Mapping[str, File]

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files.values())

    @property
    def directory(self) -> str:
        """Path below the store's root: ``<name>/<first 12 digits of the revision>``."""
        return f"{self.name}/{self.revision[:12]}"

    def to_mapping(self) -> dict[str, Any]:
        """Return plain data that :func:`load_manifest` reads back."""
        files = {path: {"sha256": file.sha256, "size": file.size} for path, file in self.files.items()}
        return {"format": FORMAT, "name": self.name, "revision": self.revision, "files": files}


def load_manifest(mapping: Mapping[str, Any], where: str) -> Manifest:
    """Return the checked manifest of ``mapping``; ``where`` names it in messages.

    Raises:
        ProblemsError: every problem found.
    """
    problems: list[Problem] = []

    def bad(field: str, expected: str, seen: object) -> None:
        problems.append(Problem(where, "model manifest", field, expected, repr(seen)))

    if mapping.get("format") != FORMAT:
        bad("format", str(FORMAT), mapping.get("format"))
    for field, form, text in (("name", _NAME, "a plain name"), ("revision", _REVISION, "40 hex digits")):
        if not form.fullmatch(str(mapping.get(field))):
            bad(field, text, mapping.get(field))
    files = mapping.get("files")
    if not isinstance(files, Mapping) or not files:
        bad("files", "a mapping of the model's files", files)
        files = {}
    for path, file in files.items():
        if not is_safe_path(path) or path == MANIFEST:
            bad(f"files.{path}", f"a relative path inside the model, not {MANIFEST}", path)
        if not isinstance(file, Mapping) or not _SHA256.fullmatch(str(file.get("sha256"))):
            bad(f"files.{path}.sha256", "64 hex digits", file)
        elif not isinstance(file.get("size"), int) or file["size"] < 0:
            bad(f"files.{path}.size", "bytes", file.get("size"))
    if problems:
        raise ProblemsError(problems)
    return Manifest(
        mapping["name"],
        mapping["revision"],
        {path: File(file["sha256"], file["size"]) for path, file in sorted(files.items())},
    )


def is_safe_path(path: object) -> bool:
    """Say whether a path of a manifest or an archive stays inside the directory it is relative to."""
    if not isinstance(path, str) or not path or "\\" in path or "\0" in path:
        return False
    parts = path.split("/")
    return not PurePosixPath(path).is_absolute() and not any(part in {"", ".", ".."} for part in parts)


def measure(directory: Path, name: str, revision: str | None = None) -> Manifest:
    """Return the manifest of the files in ``directory``; without ``revision`` it follows from the content."""
    files = {
        path.relative_to(directory).as_posix(): File(sha256_file(path), path.stat().st_size)
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }
    return Manifest(name, revision or content_revision(files), files)


def content_revision(files: Mapping[str, File]) -> str:
    """Return 40 hex digits that name exactly these files, for a model that comes from no hub."""
    content = {path: [file.sha256, file.size] for path, file in files.items()}
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()[:40]


class Source(Protocol):
    """Where files come from."""

    def size(self, path: str) -> int | None:
        """Return the bytes of a file, None when it is not there."""

    def open(self, path: str) -> IO[bytes]:
        """Open a file that is there."""

    def __str__(self) -> str: ...


@dataclass(frozen=True)
class DirectorySource:
    """A directory: a mirror on the host, or one that the controller filled."""

    root: Path

    def size(self, path: str) -> int | None:
        """Return the bytes of a file, None when it is not there."""
        file = self.root / path
        return file.stat().st_size if file.is_file() else None

    def open(self, path: str) -> IO[bytes]:
        """Open a file that is there."""
        return (self.root / path).open("rb")

    def __str__(self) -> str:
        return str(self.root)


class ArchiveSource:
    """A tar archive whose members are the manifest's paths."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tar = tarfile.open(path)  # noqa: SIM115 - closed with the source, members are read one by one
        self._members = {member.name.removeprefix("./"): member for member in self._tar if member.isfile()}

    def size(self, path: str) -> int | None:
        """Return the bytes of a file, None when it is not there."""
        member = self._members.get(path)
        return member.size if member else None

    def open(self, path: str) -> IO[bytes]:
        """Open a file that is there."""
        stream = self._tar.extractfile(self._members[path])
        if stream is None:
            raise FileNotFoundError(f"{path} in {self._path}")
        return stream

    def __str__(self) -> str:
        return str(self._path)


def open_source(path: Path) -> Source:
    """Return the source at ``path``: a directory or a tar archive.

    Raises:
        ProblemsError: there is neither.
    """
    if path.is_dir():
        return DirectorySource(path)
    if path.is_file() and tarfile.is_tarfile(path):
        return ArchiveSource(path)
    expected = "a directory or a tar archive with the model's files (a mounted mirror, or pushed by the controller)"
    raise ProblemsError([Problem(str(path), "model source", "", expected, "neither")])


def examine(root: Path, manifest: Manifest, *, hashes: bool) -> list[Problem] | None:
    """Compare the published model with its manifest: None when it is not there, else what is wrong with it.

    Sizes always (milliseconds), sha256 of every file with ``hashes``.
    """
    directory = root / manifest.directory
    if not directory.is_dir():
        return None
    problems = compare(directory, manifest, hashes=hashes)
    listing = directory / MANIFEST
    seen = listing.read_text(encoding="utf-8") if listing.is_file() else "no such file"
    if seen != pretty_json(manifest.to_mapping()):
        expected = "the manifest of this revision"
        problems.append(Problem(str(listing), f"model {manifest.name}", "", expected, _first_line(seen)))
    return problems


def compare(directory: Path, manifest: Manifest, *, hashes: bool) -> list[Problem]:
    """Return what is wrong with the files in a directory: missing, another size, with ``hashes`` another content."""
    return [
        problem
        for path, file in manifest.files.items()
        for problem in _file_problems(directory / path, path, file, f"model {manifest.name}", hashes)
    ]


def _file_problems(target: Path, path: str, file: File, subject: str, hashes: bool) -> Iterator[Problem]:
    if not target.is_file():
        yield Problem(str(target), subject, path, f"{file.size} bytes", "no such file")
    elif (size := target.stat().st_size) != file.size:
        yield Problem(str(target), subject, path, f"{file.size} bytes", f"{size} bytes")
    elif hashes and (seen := sha256_file(target)) != file.sha256:
        yield Problem(str(target), subject, path, f"sha256 {file.sha256}", seen)


def _first_line(text: str) -> str:
    try:
        seen = json.loads(text)
        return f"revision {seen['revision']} of {seen['name']}, or other files"
    except (ValueError, KeyError, TypeError):
        return text.splitlines()[0][:80] if text else "an empty file"


def source_problems(source: Source, manifest: Manifest) -> list[Problem]:
    """Return every file that the source lacks or has with another size; nothing is read."""
    subject = f"model {manifest.name}"
    problems = []
    for path, file in manifest.files.items():
        size = source.size(path)
        if size != file.size:
            seen = "no such file" if size is None else f"{size} bytes"
            problems.append(Problem(str(source), subject, path, f"{file.size} bytes", seen))
    return problems


def space_problems(root: Path, manifest: Manifest, free: int) -> list[Problem]:
    """Return a problem when what is not yet staged and :data:`RESERVE` do not fit into ``free`` bytes.

    A file that a killed copy left half is written over in place: only its rest takes room.
    """
    staging = _staging(root, manifest)
    missing = sum(max(0, file.size - _size(staging / path)) for path, file in manifest.files.items())
    if missing + RESERVE <= free:
        return []
    expected = (
        f"{format_gib(missing + RESERVE)} free ({format_gib(missing)} to copy, {format_gib(RESERVE)} to keep free)"
    )
    return [Problem(str(root), f"model {manifest.name}", "disk", expected, format_gib(free))]


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


@dataclass(frozen=True)
class Outcome:
    """What :func:`ensure` found or did: ``before`` is absent, present or damaged."""

    path: Path
    before: str
    changed: bool


def ensure(root: Path, manifest: Manifest, source: Path, *, hashes: bool, repair: bool, check: bool) -> Outcome:
    """Publish one revision unless it is there; with ``repair`` a damaged one is replaced as a whole.

    ``check`` only says what would happen. A source that is not there yet is then no problem: on a virgin host an
    earlier task brings it.

    Raises:
        ProblemsError: the published model is damaged and may not be repaired, the source lacks files or has other
            contents, or the disk is too small. Nothing was published then.
    """
    path = root / manifest.directory
    found = examine(root, manifest, hashes=hashes)
    before = "absent" if found is None else "damaged" if found else "present"
    if found and not repair:
        raise ProblemsError(found)
    if before == "present":
        return Outcome(path, before, changed=False)
    if check and not source.exists():
        return Outcome(path, before, changed=True)
    files = open_source(source)
    if problems := source_problems(files, manifest):
        raise ProblemsError(problems)
    if not check:
        _publish(root, manifest, files)
    return Outcome(path, before, changed=True)


def referenced(seats: Path) -> set[str]:
    """Return the paths of models that any generation of any seat below ``seats`` names, drafters included."""
    found = set()
    for file in seats.glob("*/generations/*/manifest.json"):
        try:
            manifest = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # half a generation: the seat cannot go back to it either
        found |= {str(manifest[key]) for key in ("model_path", "drafter_path") if manifest.get(key)}
    return found


def superfluous(root: Path, wanted: Iterable[Manifest], used: Iterable[str]) -> list[Path]:
    """Return published revisions that are neither wanted nor named by a generation, and what killed runs left behind.

    What was copied of a revision that is still to come is none of it: the next run goes on there.
    """
    coming = list(wanted)
    kept = {*map(Path, used), *(root / manifest.directory for manifest in coming)}
    published = {file.parent for file in root.glob(f"*/*/{MANIFEST}") if not file.parent.name.startswith(".")}
    rests = [
        path
        for path in root.glob("*/.*")
        if path.is_dir()
        and (rest := _REST.fullmatch(path.name))
        and not _resumed(path.with_name(rest["revision"] or rest["received"]), kept - published)
    ]
    return sorted([*(published - kept), *rests])


def _resumed(path: Path, coming: Collection[Path]) -> bool:
    """Say whether somebody goes on with the rest of a revision: a later run, or one that is under way now."""
    # The lock is held while `seatctl model receive` brings it from another host.
    return path in coming or is_locked(path.with_name(f".{path.name}.lock"))


def remove(path: Path) -> None:
    """Remove a published revision in a way that an interruption never leaves one that looks whole; or a rest."""
    rest = path if path.name.startswith(".") else path.with_name(f".removing-{path.name}")
    if rest != path:
        shutil.rmtree(rest, ignore_errors=True)
        path.rename(rest)
    shutil.rmtree(rest)


def _publish(root: Path, manifest: Manifest, source: Source) -> None:
    with umask(0o022), _locked(root):
        if problems := space_problems(root, manifest, shutil.disk_usage(root).free):
            raise ProblemsError(problems)
        staging = _staging(root, manifest)
        staging.mkdir(parents=True, exist_ok=True)
        _remove_strays(staging, manifest)
        problems = [
            problem
            for path, file in manifest.files.items()
            for problem in _stage(source, path, file, staging, manifest)
        ]
        if problems:
            raise ProblemsError(problems)
        write_atomic(staging / MANIFEST, pretty_json(manifest.to_mapping()))
        _swap(staging, root / manifest.directory)


def _stage(source: Source, path: str, file: File, staging: Path, manifest: Manifest) -> Iterator[Problem]:
    """Bring one file into the staging directory; a wrong one is removed again and reported."""
    target = staging / path
    if target.is_file() and target.stat().st_size == file.size and sha256_file(target) == file.sha256:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    seen = _copy(source, path, target)
    if seen != file.sha256:
        target.unlink()
        yield Problem(str(source), f"model {manifest.name}", path, f"sha256 {file.sha256}", seen)


def _copy(source: Source, path: str, target: Path) -> str:
    """Copy one file, 0644 whatever the source's mode, and return the sha256 of what was written."""
    digest = hashlib.sha256()
    with source.open(path) as reader, target.open("wb") as writer:
        while chunk := reader.read(CHUNK):
            digest.update(chunk)
            writer.write(chunk)
        writer.flush()
        os.fsync(writer.fileno())
        # On GB10 GPU memory is host memory: a page cache full of weights is memory that a seat does not get.
        os.posix_fadvise(writer.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    target.chmod(0o644)
    return digest.hexdigest()


def _remove_strays(staging: Path, manifest: Manifest) -> None:
    for path in sorted(staging.rglob("*"), reverse=True):
        if path.is_symlink() or (path.is_file() and path.relative_to(staging).as_posix() not in manifest.files):
            path.unlink()


def _swap(staging: Path, target: Path) -> None:
    """Publish; a process that still maps files of a replaced directory keeps them until it closes them."""
    old = target.with_name(f".replaced-{target.name}")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    staging.rename(target)
    sync_directory(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def _staging(root: Path, manifest: Manifest) -> Path:
    target = root / manifest.directory
    return target.with_name(f".staging-{target.name}")


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """One publisher at a time per store; a second one waits."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
