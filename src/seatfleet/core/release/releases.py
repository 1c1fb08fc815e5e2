"""Releases: what one is made of, how it is told from its remains, and which may go.

A release is one virtual environment per version, lock and patch selection at ``/opt/vllm/releases/<version>-<hash12>``,
never changed once its marker ``release.json`` is written. :mod:`seatfleet.core.release.installs` builds them.
"""

from __future__ import annotations

import base64
import csv
import fcntl
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..files import canonical_json, sha256_file
from ..problems import Problem, ProblemsError
from . import patches
from .locks import Lock, parse_lock
from .patches import PatchError, Series

# Part of every release id: raise it when an install of the same inputs would come out different.
LAYOUT = 1
MARKER = "release.json"
SERIES = "series.json"
# How directories begin that an install unpacks wheels into, and that a removal empties; a killed run leaves them.
UNPACKED = ".wheels-"
_REMOVING = ".removing-"
# The last one imports what `vllm serve` does; `vllm` alone is lazy and would not miss a forgotten dependency.
DEFAULT_IMPORTS = ("torch", "vllm", "vllm.entrypoints.cli.serve")
_ID = re.compile(r"[A-Za-z0-9.+!]+-[0-9a-f]{12}")


@dataclass(frozen=True)
class Release:
    """What one release is made of. ``name`` is the catalogue's and does not enter the id; ``series`` is selected."""

    name: str
    distribution: str
    version: str
    lock: Lock
    series: Series | None = None
    diffs: Mapping[str, str] = field(default_factory=dict)
    imports: tuple[str, ...] = DEFAULT_IMPORTS

    @property
    def id(self) -> str:
        """``<version>-<hash12>`` over everything that decides the installed files, known before anything is there."""
        content = {
            "layout": LAYOUT,
            "distribution": self.distribution,
            "version": self.version,
            "lock": self.lock.digest,
            "series": self.series.digest() if self.series else None,
        }
        return f"{self.version}-{hashlib.sha256(canonical_json(content).encode()).hexdigest()[:12]}"


def load_release(mapping: Mapping[str, Any]) -> Release:
    """Return the release of plain data, as :func:`read_release` made it on the controller.

    Raises:
        ProblemsError: its lock or series is malformed, or it has another id than the one it was given.
    """
    subject = f"release {mapping['name']}"
    series = mapping.get("series")
    release = Release(
        name=mapping["name"],
        distribution=mapping["distribution"],
        version=mapping["version"],
        lock=parse_lock(mapping["lock"], mapping.get("lock_name") or f"lock of {subject}"),
        series=patches.load_series(series, f"series of {subject}") if series else None,
        diffs=mapping.get("diffs") or {},
        imports=tuple(mapping.get("imports") or DEFAULT_IMPORTS),
    )
    if mapping.get("id") not in (None, release.id):
        raise ProblemsError([Problem("", subject, "id", f"{mapping['id']} as the controller computed it", release.id)])
    return release


def read_release(
    project: Path, name: str, entry: Mapping[str, Any], architecture: str, parse_yaml: Callable[[str], Any]
) -> dict[str, Any]:
    """Read what a catalogue entry names (lock, series, diffs) and return the plain data of :func:`load_release`.

    Runs on the controller; ``parse_yaml`` is passed in because this package is standard library only.

    Raises:
        ProblemsError: no lock for the architecture, files missing or malformed, a selection that does not fit.
    """
    subject = f"release {name}"
    locks = entry["locks"]
    if architecture not in locks:
        expected = f"a lock for {architecture} (seatctl release lock writes one)"
        raise ProblemsError([Problem("releases", subject, "locks", expected, ", ".join(sorted(locks)) or "none")])
    text = _read(project, locks[architecture], subject, "locks")
    lock = parse_lock(text, locks[architecture])
    problems = [
        Problem(locks[architecture], subject, what, f"{wanted} as in the catalogue", seen)
        for what, wanted, seen in (
            ("architecture", architecture, lock.target.architecture),
            ("python", entry["python"], lock.target.python),
            ("version", entry["version"], _locked_version(lock, entry["distribution"])),
        )
        if wanted != seen
    ]
    if problems:
        raise ProblemsError(problems)
    data: dict[str, Any] = {
        "name": name,
        "distribution": entry["distribution"],
        "version": entry["version"],
        "lock": text,
        "lock_name": Path(locks[architecture]).stem,
        "imports": list(entry.get("imports") or DEFAULT_IMPORTS),
        "series": None,
        "diffs": {},
    }
    if entry.get("series"):
        folder = f"files/patches/{entry['series']}"
        where = f"{folder}/series.yml"
        series = patches.load_series(parse_yaml(_read(project, where, subject, "series")), where)
        selected = patches.select(series, entry.get("patches"))
        if selected.patches:
            data["series"] = selected.to_mapping()
            data["diffs"] = patches.load_diffs(project / folder, selected)
    data["id"] = load_release(data).id
    return data


def _read(project: Path, path: str, subject: str, what: str) -> str:
    try:
        return (project / path).read_text(encoding="utf-8")
    except OSError as error:
        raise ProblemsError([Problem(path, subject, what, "a readable file", str(error.strerror))]) from error


def _locked_version(lock: Lock, distribution: str) -> str:
    pin = lock.find(distribution.lower().replace("_", "-"))
    return pin.version if pin else f"no {distribution}"


def examine(path: Path, release: Release, *, every_file: bool) -> tuple[str, list[Problem]]:
    """Return absent, incomplete, damaged or present, and what is damaged.

    Marker, interpreter and patched files always (milliseconds); with ``every_file`` the sha256 of every installed file
    as its wheel recorded it, which reads all of them.
    """
    if not path.is_dir():
        return "absent", []
    if not (path / MARKER).is_file():
        return "incomplete", []
    subject = f"release {release.name}"
    problems = []
    marker = _read_json(path / MARKER)
    if marker.get("id") != release.id:
        problems.append(Problem(str(path / MARKER), subject, "id", release.id, str(marker.get("id"))))
    if not (path / "bin/python").exists():
        python = str((path / "bin/python").readlink()) if (path / "bin/python").is_symlink() else "nothing"
        problems.append(Problem(str(path / "bin/python"), subject, "", "a link to an interpreter", python))
    if release.series:
        try:
            # By what decides the files: a better sentence in series.yml is no reason to install again.
            same = (
                patches.load_series(_read_json(path / SERIES), str(path / SERIES)).digest() == release.series.digest()
            )
        except PatchError:
            same = False
        if not same:
            problems.append(
                Problem(str(path / SERIES), subject, "", "the series the release was built with", "another")
            )
        try:
            patches.verify(site_packages(path, release.lock), release.series)
        except PatchError as error:
            problems.extend(error.problems)
    if every_file:
        problems.extend(_record_problems(site_packages(path, release.lock), subject))
    return ("damaged" if problems else "present"), problems


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def site_packages(path: Path, lock: Lock) -> Path:
    """Return where the distributions of a release are."""
    return path / f"lib/python{lock.target.python}/site-packages"


def _record_problems(site: Path, subject: str) -> Iterator[Problem]:
    for record in sorted(site.glob("*.dist-info/RECORD")):
        for row in csv.reader(record.read_text(encoding="utf-8").splitlines()):
            name, value = row[0], row[1]
            kind, _, encoded = value.partition("=")
            if kind != "sha256" or name.endswith(".pyc"):
                continue  # some wheels ship bytecode, which the install replaces
            expected = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).hex()
            file = site / name
            seen = sha256_file(file) if file.is_file() else "no such file"
            if seen != expected:
                yield Problem(str(file), subject, "", f"sha256 {expected} as {record.parent.name} recorded it", seen)


# --- what is there ---------------------------------------------------------------------------------------------------


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """One install or prune at a time per host; a second one waits."""
    with (root / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def remove(path: Path) -> None:
    """Remove a release in a way that an interruption never leaves one that looks whole."""
    if not path.exists():
        return
    rest = path.with_name(f"{_REMOVING}{path.name}")
    shutil.rmtree(rest, ignore_errors=True)
    path.rename(rest)
    shutil.rmtree(rest)


def remove_rests(root: Path) -> None:
    """Remove what killed runs left: gigabytes that nothing names. Whoever calls holds the lock of the root."""
    for path in root.iterdir():
        if path.name.startswith((UNPACKED, _REMOVING)):
            shutil.rmtree(path)


def set_link(link: Path, path: Path) -> bool:
    """Point a symbolic link at a release, in one rename; return whether it pointed elsewhere."""
    if link.is_symlink() and link.readlink() == path:
        return False
    temporary = link.with_name(f".{link.name}.new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(path)
    temporary.replace(link)
    return True


def references(root: Path, links: Iterable[Path], proc: Path = Path("/proc")) -> set[str]:
    """Return the ids of releases in use: named by one of ``links``, or by the command line of a running process."""
    used = {target.name for link in links if (target := link.resolve()).parent == root.resolve()}
    prefix = f"{root}/".encode()
    for command in proc.glob("[0-9]*/cmdline"):
        try:
            arguments = command.read_bytes().split(b"\0")
        except OSError:
            continue  # the process ended meanwhile
        for argument in arguments:
            for rest in argument.split(prefix)[1:]:
                used.add(rest.split(b"/")[0].decode(errors="replace"))
    return used


def superfluous(root: Path, keep: int, wanted: Iterable[str], used: Iterable[str]) -> list[Path]:
    """Return what may be removed: releases that are neither wanted, nor used, nor the ``keep`` newest others.

    What is used counts among the others: a process that still ran from the one before must not make room for an older
    one, which the next run would then find too many.
    """
    others = [path for path in root.iterdir() if _ID.fullmatch(path.name) and path.name not in set(wanted)]
    finished = [path for path in others if (path / MARKER).is_file()]
    finished.sort(key=lambda path: (path / MARKER).stat().st_mtime, reverse=True)
    kept = {*finished[:keep], *(path for path in others if path.name in set(used))}
    return sorted(path for path in others if path not in kept)
