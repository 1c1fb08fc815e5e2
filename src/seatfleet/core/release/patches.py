"""Patch series: apply, verify and revert unified diffs on an installed distribution, by sha256.

A file is pristine (apply), patched (fine) or anything else (refuse). Every result is computed, hashed and written to a
staging folder first and then moved into place, so no file is ever half written; a kill between two moves leaves files
that are each pristine or patched, which :func:`verify` refuses and the next :func:`apply` completes. Files are
replaced, never written in place, because installers hard-link them from a cache that other environments share.
"""

from __future__ import annotations

import base64
import csv
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from ..problems import Problem, ProblemsError
from . import unified_diff

FORMAT = 1
STAGING = ".seatfleet-staging"
State = Literal["pristine", "patched", "unknown"]
#: Reads one file of a tree (an installation, a wheel) by its path inside it; None when it is not there.
Reader = Callable[[str], bytes | None]

_SHA256 = re.compile(r"[0-9a-f]{64}")
_ABSENT = "no such file"


class PatchError(ProblemsError):
    """A series, a diff or an installation is not what it should be; each problem names the file and the hashes."""


@dataclass(frozen=True)
class FileChange:
    """sha256 of one file before and after one patch; ``before`` is None when the patch creates the file."""

    before: str | None
    after: str


@dataclass(frozen=True)
class Patch:
    """One diff of a series, with what it needs and why it exists. Texts are for people, not parsed."""

    name: str
    file: str
    sha256: str
    files: Mapping[str, FileChange]
    why: str
    upstream: str
    seats: str
    tested: str
    needs: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    superseded_by: str | None = None
    default: bool = True
    required_when: Mapping[str, Any] = field(default_factory=dict)
    changes: str = ""
    red_without: str = ""


@dataclass(frozen=True)
class Series:
    """Patches for exactly one version of one distribution, in the order in which they are applied."""

    distribution: str
    version: str
    patches: tuple[Patch, ...]

    @property
    def label(self) -> str:
        """``vllm-0.23.0``, for messages."""
        return f"{self.distribution}-{self.version}"

    def chains(self) -> dict[str, list[tuple[Patch, FileChange]]]:
        """Return, per file, the patches that touch it in series order."""
        chains: dict[str, list[tuple[Patch, FileChange]]] = {}
        for patch in self.patches:
            for path, change in patch.files.items():
                chains.setdefault(path, []).append((patch, change))
        return chains

    def to_mapping(self, *, documentation: bool = True) -> dict[str, Any]:
        """Return plain data that :func:`load_series` reads back.

        Without ``documentation`` it has only the fields of the first format, for ``series.json`` on a host: a toolbox
        that is older than the release (a project that was rolled back) must be able to verify it.
        """
        entries = [_patch_to_mapping(patch) for patch in self.patches]
        for entry in entries if not documentation else ():
            for name in _DOCUMENTATION:
                del entry[name]
        return {"format": FORMAT, "distribution": self.distribution, "version": self.version, "patches": entries}

    def digest(self) -> str:
        """Return a sha256 over what decides the patched files: the base version and each diff with its hashes."""
        content = [
            [self.distribution, self.version],
            *(
                [p.name, p.sha256, {path: [c.before, c.after] for path, c in sorted(p.files.items())}]
                for p in self.patches
            ),
        ]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class FileState:
    """What one target file is now. ``seen`` is its sha256, None when the file does not exist."""

    path: str
    state: State
    seen: str | None
    pristine: str | None
    patched: str


# --- reading a series ------------------------------------------------------------------------------------------------


def load_series(mapping: Mapping[str, Any], where: str = "series.yml") -> Series:
    """Return the checked series of ``mapping`` (parsed ``series.yml`` or ``series.json``); ``where`` names it.

    Raises:
        PatchError: every problem found, at once.
    """
    problems: list[Problem] = []

    def bad(subject: str, name: str, expected: str, seen: object) -> None:
        problems.append(Problem(where, subject, name, expected, repr(seen)))

    known = {"format", "distribution", "version", "patches"}
    for key in sorted(set(mapping) - known):
        bad("series", key, f"one of {', '.join(sorted(known))}", key)
    if mapping.get("format") != FORMAT:
        bad("series", "format", str(FORMAT), mapping.get("format"))
    for key in ("distribution", "version"):
        if not isinstance(mapping.get(key), str) or not mapping.get(key):
            bad("series", key, "a non-empty text (quote versions)", mapping.get(key))
    entries = mapping.get("patches")
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        bad("series", "patches", "a list (an empty one is allowed)", entries)
        entries = []
    for number, entry in enumerate(entries, start=1):
        _check_entry(entry, number, bad)
    if problems:
        raise PatchError(problems)
    series = Series(mapping["distribution"], mapping["version"], tuple(_patch_from_mapping(entry) for entry in entries))
    problems = [*_reference_problems(series, where), *_chain_problems(series, where)]
    if problems:
        raise PatchError(problems)
    return series


def load_diffs(folder: Path, series: Series) -> dict[str, str]:
    """Return the text of each patch's file in ``folder``, by patch name. Contents are checked when they are used.

    Raises:
        PatchError: a file is missing or not UTF-8.
    """
    diffs: dict[str, str] = {}
    problems: list[Problem] = []
    for patch in series.patches:
        path = folder / patch.file
        try:
            diffs[patch.name] = path.read_bytes().decode()
        except (OSError, UnicodeDecodeError) as error:
            problems.append(Problem(str(path), f"patch {patch.name}", "file", "a readable UTF-8 diff", str(error)))
    if problems:
        raise PatchError(problems)
    return diffs


def select(series: Series, names: Iterable[str] | None = None) -> Series:
    """Return the series with only the named patches (None: those marked ``default``), in series order.

    Raises:
        PatchError: an unknown name, a patch whose ``needs`` are left out, two that conflict, or a choice whose hashes
            do not connect (a patch left out that a later one was measured on top of).
    """
    by_name = {patch.name: patch for patch in series.patches}
    wanted = {patch.name for patch in series.patches if patch.default} if names is None else set(names)
    problems = [
        Problem(series.label, f"patch {name}", "name", f"one of {', '.join(by_name) or 'none'}", name)
        for name in sorted(wanted - set(by_name))
    ]
    chosen = Series(series.distribution, series.version, tuple(p for p in series.patches if p.name in wanted))
    selected = ", ".join(patch.name for patch in chosen.patches)
    for patch in chosen.patches:
        subject = f"patch {patch.name}"
        for need in patch.needs:
            if need not in wanted:
                problems.append(Problem(series.label, subject, "needs", f"{need} selected too", selected))
        for other in patch.conflicts:
            if other in wanted:
                problems.append(Problem(series.label, subject, "conflicts", f"{other} not selected", selected))
    problems = problems or _chain_problems(chosen, series.label)
    if problems:
        raise PatchError(problems)
    return chosen


def required(series: Series, traits: Mapping[str, Any]) -> list[Patch]:
    """Return the patches a seat with these traits cannot do without, in series order.

    ``traits`` are plain facts of a seat (``hybrid``, ``method``, ``prefix_caching``, ``architecture`` ...); a patch is
    required when every item of its ``required_when`` is equal to, or a list that holds, the seat's value.
    """
    return [
        patch
        for patch in series.patches
        if patch.required_when and all(_matches(traits.get(k), v) for k, v in patch.required_when.items())
    ]


def missing_for(series: Series, names: Iterable[str], traits: Mapping[str, Any]) -> list[Patch]:
    """Return what :func:`required` names and ``names`` (the patches a release carries) lacks."""
    carried = set(names)
    return [patch for patch in required(series, traits) if patch.name not in carried]


# --- an installation -------------------------------------------------------------------------------------------------


def status(site: Path, series: Series) -> list[FileState]:
    """Return the state of every file of the (selected) series under ``site``, the site-packages folder."""
    return [_file_state(site, path, chain) for path, chain in sorted(series.chains().items())]


def apply(site: Path, series: Series, diffs: Mapping[str, str], *, check: bool = False) -> bool:
    """Bring every file of the (selected) series to its patched state; return whether anything was not there yet.

    ``RECORD`` of the distribution follows, its first form is kept as ``RECORD.orig``. With ``check`` everything is
    computed and compared, nothing is written.

    Raises:
        PatchError: another version is installed, a diff was changed, a file is neither pristine nor patched.
    """
    return _converge(site, series, diffs, to="patched", check=check)


def revert(site: Path, series: Series, diffs: Mapping[str, str], *, check: bool = False) -> bool:
    """Bring every file of the (selected) series back to its pristine state; the exact reverse of :func:`apply`.

    Raises:
        PatchError: as :func:`apply`.
    """
    return _converge(site, series, diffs, to="pristine", check=check)


def verify(site: Path, series: Series) -> None:
    """Return when every file of the (selected) series is patched and ``RECORD`` says so.

    Raises:
        PatchError: naming every file that is not, with the expected and the seen hash. A pristine file means that an
            installer put it back or that an apply was interrupted.
    """
    record = _Record.of(site, series)
    problems = []
    for file in status(site, series):
        seen = file.seen or _ABSENT
        if file.state == "unknown":
            problems.append(_unknown_file(site, series, file, record))
        elif file.state == "pristine":
            hint = "pristine again: a package installer restored it, or an apply was interrupted"
            problems.append(_file_problem(site, file.path, f"patched sha256 {file.patched}", f"{seen} ({hint})"))
        elif record.sha256(file.path) != file.patched:
            expected = f"sha256 {file.patched} in RECORD"
            problems.append(_file_problem(site, file.path, expected, record.sha256(file.path) or "no entry"))
    if problems:
        raise PatchError(problems)


# --- how ------------------------------------------------------------------------------------------------------------


def _converge(site: Path, series: Series, diffs: Mapping[str, str], to: State, check: bool) -> bool:
    parsed = _parse_diffs(series, diffs)
    with _locked(site, series):
        record = _Record.of(site, series)
        states = status(site, series)
        unknown = [_unknown_file(site, series, file, record) for file in states if file.state == "unknown"]
        if unknown:
            raise PatchError(unknown)
        results = {
            file.path: _result(site, file.path, series.chains()[file.path], parsed, to)
            for file in states
            if file.state != to
        }
        wanted = {file.path: file.patched if to == "patched" else file.pristine for file in states}
        new_record = record.with_hashes(site, wanted, results)
        keep_original = to == "patched" and all(record.sha256(file.path) == file.pristine for file in states)
        changed = bool(results) or new_record != record.data or (to == "pristine" and record.original.exists())
        if changed and not check:
            _install(site, results, record, new_record, keep_original)
            if to == "pristine":
                record.original.unlink(missing_ok=True)
    return changed


def _parse_diffs(series: Series, diffs: Mapping[str, str]) -> dict[str, dict[str, unified_diff.FileDiff]]:
    parsed: dict[str, dict[str, unified_diff.FileDiff]] = {}
    problems: list[Problem] = []
    for patch in series.patches:
        subject = f"patch {patch.name}"
        text = diffs.get(patch.name)
        if text is None:
            problems.append(Problem(series.label, subject, patch.file, "the diff's text", "nothing"))
            continue
        seen = sha256_of(text.encode())
        if seen != patch.sha256:
            problems.append(Problem(patch.file, subject, "sha256", f"{patch.sha256} (the diff as recorded)", seen))
            continue
        try:
            parsed[patch.name] = unified_diff.parse(text)
        except unified_diff.DiffError as error:
            problems.append(Problem(patch.file, subject, "diff", "a unified diff", str(error)))
            continue
        if set(parsed[patch.name]) != set(patch.files):
            expected, found = (", ".join(sorted(paths)) for paths in (patch.files, parsed[patch.name]))
            problems.append(Problem(patch.file, subject, "files", expected, found))
    if problems:
        raise PatchError(problems)
    return parsed


def _result(
    site: Path,
    path: str,
    chain: Sequence[tuple[Patch, FileChange]],
    parsed: Mapping[str, Mapping[str, unified_diff.FileDiff]],
    to: State,
) -> bytes | None:
    """Return the file's content after (or before) all its patches, checked by hash at every step; None: no file."""
    raw = _read(site, path)
    forward = to == "patched"
    for patch, change in chain if forward else reversed(chain):
        diff = parsed[patch.name][path]
        goal = change.after if forward else change.before
        if goal is None:
            return None
        hunks = diff.hunks if forward else [hunk.reversed() for hunk in diff.hunks]
        try:
            raw = unified_diff.apply(path, (raw or b"").decode(), hunks).encode()
        except (unified_diff.DiffError, UnicodeDecodeError) as error:
            raise PatchError([_file_problem(site, path, f"patch {patch.name} to match", str(error))]) from error
        if sha256_of(raw) != goal:
            expected = f"sha256 {goal} with patch {patch.name} {'applied' if forward else 'reverted'}"
            raise PatchError([_file_problem(site, path, expected, sha256_of(raw))])
    return raw


def _install(
    site: Path, results: Mapping[str, bytes | None], record: _Record, new_record: bytes, keep_original: bool
) -> None:
    """Stage every new content beside the tree, then move. RECORD comes last, so it never claims what is not there."""
    staging = site / STAGING
    shutil.rmtree(staging, ignore_errors=True)  # left over from a kill
    staging.mkdir()
    moves: list[tuple[Path, Path]] = []

    def stage(data: bytes, target: Path, like: Path) -> None:
        staged = staging / str(len(moves))
        with staged.open("wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        shutil.copymode(like, staged)
        owner = like.stat()
        if os.geteuid() == 0:
            os.chown(staged, owner.st_uid, owner.st_gid)
        moves.append((staged, target))

    if keep_original:
        stage(record.data, record.original, record.path)
    for path, data in results.items():
        target = site / path
        if data is not None:
            stage(data, target, target if target.exists() else record.path)
    stage(new_record, record.path, record.path)

    for staged, target in moves[:-1]:
        staged.replace(target)
        _forget_bytecode(target)
    for path, data in results.items():
        if data is None:
            (site / path).unlink()
            _forget_bytecode(site / path)
    staged_record, record_path = moves[-1]
    staged_record.replace(record_path)
    for folder in {target.parent for _, target in moves}:
        _sync_folder(folder)
    shutil.rmtree(staging)


def _forget_bytecode(source: Path) -> None:
    """Remove the module's .pyc: it is matched by size and whole-second mtime, which a quick revert can reproduce."""
    for compiled in source.parent.glob(f"__pycache__/{source.stem}.*.pyc"):
        compiled.unlink()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _locked(site: Path, series: Series) -> Iterator[None]:
    """Hold an exclusive lock on the distribution's folder; a second tool waits instead of interleaving its moves."""
    handle = os.open(_Record.of(site, series).path.parent, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@dataclass(frozen=True)
class _Record:
    """``RECORD`` of the installed distribution, edited line by line so that untouched lines keep their bytes."""

    path: Path
    data: bytes

    @property
    def original(self) -> Path:
        return self.path.with_name("RECORD.orig")

    @classmethod
    def of(cls, site: Path, series: Series) -> _Record:
        path = site / f"{series.distribution}-{series.version}.dist-info" / "RECORD"
        try:
            return cls(path, path.read_bytes())
        except OSError as error:
            installed = sorted(p.name for p in site.glob(f"{series.distribution}-*.dist-info"))
            seen = f"{', '.join(installed)} in {site}" if installed else f"no {series.distribution} in {site}"
            raise PatchError([Problem(str(path), series.label, "RECORD", f"{series.label} installed", seen)]) from error

    def entries(self) -> dict[str, str]:
        return record_hashes(self.data)

    def sha256(self, path: str) -> str | None:
        return self.entries().get(path)

    def with_hashes(self, site: Path, wanted: Mapping[str, str | None], results: Mapping[str, bytes | None]) -> bytes:
        """Return RECORD with the hash and size of each wanted file; None drops the line, a new file is appended."""
        entries = self.entries()
        lines = self.data.decode().splitlines(keepends=True)
        kept = []
        for line in lines:
            path = next(csv.reader([line]))[0] if line.strip() else ""
            if path not in wanted or entries[path] == wanted[path]:
                kept.append(line)
            elif wanted[path] is not None:
                kept.append(self._line(site, path, results))
        new = [path for path, sha in wanted.items() if sha is not None and path not in entries]
        return "".join([*kept, *(self._line(site, path, results) for path in sorted(new))]).encode()

    @staticmethod
    def _line(site: Path, path: str, results: Mapping[str, bytes | None]) -> str:
        data = results.get(path)
        content = (site / path).read_bytes() if data is None else data
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        return f"{path},sha256={digest},{len(content)}\n"


def _record_hash_to_hex(value: str) -> str:
    kind, _, digest = value.partition("=")
    if kind != "sha256":
        return ""
    return base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4)).hex()


def _file_state(site: Path, path: str, chain: Sequence[tuple[Patch, FileChange]]) -> FileState:
    raw = _read(site, path)
    seen = None if raw is None else sha256_of(raw)
    pristine, patched = chain[0][1].before, chain[-1][1].after
    state: State = "patched" if seen == patched else "pristine" if seen == pristine else "unknown"
    return FileState(path, state, seen, pristine, patched)


def _read(site: Path, path: str) -> bytes | None:
    target = site / path
    if target.is_symlink() or site.resolve() not in target.resolve().parents:
        raise PatchError([_file_problem(site, path, "a regular file inside the installation", "a link")])
    try:
        return target.read_bytes()
    except FileNotFoundError:
        return None


def _unknown_file(site: Path, series: Series, file: FileState, record: _Record) -> Problem:
    pristine = f"sha256 {file.pristine} (pristine)" if file.pristine else f"{_ABSENT} (pristine)"
    expected = f"{pristine} or {file.patched} (patched)"
    partial = next((p.name for p, c in series.chains()[file.path] if file.seen in {c.before, c.after}), None)
    recorded = record.sha256(file.path)
    if partial:
        reason = f"the state with only a part of this selection, up to {partial}: revert that selection first"
    elif file.seen is not None and recorded == file.seen:
        reason = f"as this installation's RECORD has it: another build of {series.label}, the series is not for it"
    else:
        reason = "changed by hand or by another tool: install the release again"
    return _file_problem(site, file.path, expected, f"{file.seen or _ABSENT} ({reason})")


def _file_problem(site: Path, path: str, expected: str, seen: str) -> Problem:
    return Problem(str(site / path), "patched file", "", expected, seen)


def record_hashes(data: bytes) -> dict[str, str]:
    """Return ``{path: sha256 as hex, or an empty text}`` of a ``RECORD`` file."""
    return {row[0]: _record_hash_to_hex(row[1]) for row in csv.reader(data.decode().splitlines()) if len(row) == 3}


def sha256_of(data: bytes) -> str:
    """Return the sha256 of ``data`` as 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


# --- checks of a series ----------------------------------------------------------------------------------------------

_TEXT_FIELDS = ("name", "file", "sha256", "why", "upstream", "seats", "tested")
_DOCUMENTATION = ("changes", "red_without")
_OPTIONAL_FIELDS = ("needs", "conflicts", "superseded_by", "default", "required_when", *_DOCUMENTATION)


def _check_entry(entry: object, number: int, bad: Callable[[str, str, str, object], None]) -> None:
    if not isinstance(entry, Mapping):
        bad(f"patch number {number}", "", "a mapping", entry)
        return
    subject = f"patch {entry.get('name', f'number {number}')}"
    known = {*_TEXT_FIELDS, *_OPTIONAL_FIELDS, "files"}
    for key in sorted(set(entry) - known):
        bad(subject, str(key), f"one of {', '.join(sorted(known))}", key)
    for key in _TEXT_FIELDS:
        if not isinstance(entry.get(key), str) or not entry[key].strip():
            bad(subject, key, "a non-empty text", entry.get(key))
    if isinstance(entry.get("file"), str) and "/" in entry["file"]:
        bad(subject, "file", "a file name beside series.yml", entry["file"])
    if not _SHA256.fullmatch(str(entry.get("sha256"))):
        bad(subject, "sha256", "64 hex digits", entry.get("sha256"))
    for key in ("needs", "conflicts"):
        value = entry.get(key, [])
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            bad(subject, key, "a list of patch names", value)
    for key in _DOCUMENTATION:
        if not isinstance(entry.get(key, ""), str):
            bad(subject, key, "a text", entry[key])
    if not isinstance(entry.get("default", True), bool):
        bad(subject, "default", "true or false", entry["default"])
    if not isinstance(entry.get("superseded_by"), str | None):
        bad(subject, "superseded_by", "a quoted version or null", entry["superseded_by"])
    if not isinstance(entry.get("required_when", {}), Mapping):
        bad(subject, "required_when", "a mapping of seat traits", entry["required_when"])
    files = entry.get("files")
    if not isinstance(files, Mapping) or not files:
        bad(subject, "files", "a mapping of the files touched", files)
        return
    for path, change in files.items():
        _check_change(subject, path, change, bad)


def _check_change(subject: str, path: object, change: object, bad: Callable[[str, str, str, object], None]) -> None:
    place = f"files.{path}"
    if not isinstance(path, str) or not unified_diff.is_safe_path(path):
        bad(subject, place, "a relative path inside site-packages", path)
    if not isinstance(change, Mapping) or set(change) != {"before", "after"}:
        bad(subject, place, "exactly the keys before and after", change)
        return
    if change["before"] is not None and not _SHA256.fullmatch(str(change["before"])):
        bad(subject, f"{place}.before", "64 hex digits, or null for a new file", change["before"])
    if not _SHA256.fullmatch(str(change["after"])):
        bad(subject, f"{place}.after", "64 hex digits", change["after"])


def _reference_problems(series: Series, where: str) -> list[Problem]:
    problems = []
    earlier: set[str] = set()
    names = {patch.name for patch in series.patches}
    for patch in series.patches:
        subject = f"patch {patch.name}"
        if patch.name in earlier:
            problems.append(Problem(where, subject, "name", "a name used once", patch.name))
        for need in patch.needs:
            if need not in earlier:
                problems.append(Problem(where, subject, "needs", "names of earlier patches", need))
        for other in patch.conflicts:
            if other not in names - {patch.name}:
                problems.append(Problem(where, subject, "conflicts", "names of other patches", other))
        earlier.add(patch.name)
    return problems


def _chain_problems(series: Series, where: str) -> list[Problem]:
    """Return where a patch does not start from what the patches before it leave behind (conflicting ones aside)."""
    problems = []
    for path, chain in series.chains().items():
        for (earlier, left), (later, found) in pairwise(chain):
            if later.name in earlier.conflicts or earlier.name in later.conflicts or left.after == found.before:
                continue
            expected = f"sha256 {left.after}, what patch {earlier.name} leaves"
            problems.append(Problem(where, f"patch {later.name}", f"files.{path}.before", expected, str(found.before)))
    return problems


def _patch_from_mapping(entry: Mapping[str, Any]) -> Patch:
    return Patch(
        **{key: entry[key] for key in _TEXT_FIELDS},
        files={path: FileChange(change["before"], change["after"]) for path, change in entry["files"].items()},
        needs=tuple(entry.get("needs", ())),
        conflicts=tuple(entry.get("conflicts", ())),
        superseded_by=entry.get("superseded_by"),
        default=entry.get("default", True),
        required_when=dict(entry.get("required_when", {})),
        changes=entry.get("changes", ""),
        red_without=entry.get("red_without", ""),
    )


def _patch_to_mapping(patch: Patch) -> dict[str, Any]:
    return {
        **{key: getattr(patch, key) for key in _TEXT_FIELDS},
        "files": {path: {"before": change.before, "after": change.after} for path, change in patch.files.items()},
        "needs": list(patch.needs),
        "conflicts": list(patch.conflicts),
        "superseded_by": patch.superseded_by,
        "default": patch.default,
        "required_when": dict(patch.required_when),
        "changes": patch.changes,
        "red_without": patch.red_without,
    }


def _matches(seen: object, wanted: object) -> bool:
    return seen in wanted if isinstance(wanted, list) else seen == wanted
