"""Generation directories of a seat on its host: written whole or not at all, switched by links, pruned with care.

``home/generations/<name>/`` holds the rendered files, a link ``release`` and, once the probes have passed,
``probe.json``: a generation with that file is *good*. ``home/current`` and ``home/previous`` are relative links.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files import pretty_json, sync_directory, write_atomic
from ..paths import SeatPaths
from .render import CONFIG_FILE, MANIFEST_FILE

EVIDENCE_FILE = "probe.json"
# The evidence of a generation whose probe passed and whose alias then did not work: good it is not.
REJECTED_FILE = "rejected.json"
PIN_FILE = "pinned"
RELEASE_LINK = "release"
# Files that may change within one generation: names of aliases and what the probe expects (see :mod:`.render`).
REFRESHABLE = frozenset({CONFIG_FILE, MANIFEST_FILE})
_STAGING = ".staging-"


class GenerationError(Exception):
    """A generation directory is not what its name says; the message says what to do."""


@dataclass(frozen=True)
class StagePlan:
    """What staging one generation would do: file name to (text before or None, text after)."""

    create: bool
    files: Mapping[str, tuple[str | None, str]]

    @property
    def changed(self) -> bool:
        """Whether anything on disk differs from what is wanted."""
        return bool(self.files)


def plan_stage(paths: SeatPaths, name: str, files: Mapping[str, str]) -> StagePlan:
    """Compare one generation on disk with its rendered files, changing nothing."""
    directory = paths.generation(name)
    create = not directory.is_dir()
    before = {file: _read(directory / file) for file in files}
    return StagePlan(create, {file: (before[file], text) for file, text in files.items() if before[file] != text})


def stage(paths: SeatPaths, name: str, files: Mapping[str, str], release_path: str) -> StagePlan:
    """Write one generation. What runs is not touched: only ``current`` decides that, and it stays.

    A new directory is filled under another name and renamed; in an existing one only the refreshable files may differ.

    Raises:
        GenerationError: an existing generation holds something else in a file that its name is a hash of.
    """
    plan = plan_stage(paths, name, files)
    directory = paths.generation(name)
    if plan.create:
        _create(paths, name, files, release_path)
        return plan
    tampered = sorted(set(plan.files) - REFRESHABLE)
    if tampered:
        raise GenerationError(
            f"{directory}: expected the files that the name {name} is a hash of, seen another {', '.join(tampered)}. "
            f"Somebody edited a generation: remove {directory} when the seat does not run it, and run again"
        )
    for file, (_, text) in plan.files.items():
        write_atomic(directory / file, text)
    return plan


def _create(paths: SeatPaths, name: str, files: Mapping[str, str], release_path: str) -> None:
    paths.generations.mkdir(parents=True, exist_ok=True)
    for left_over in paths.generations.glob(f"{_STAGING}*"):
        shutil.rmtree(left_over)
    staging = paths.generations / f"{_STAGING}{name}"
    staging.mkdir(mode=0o755)
    for file, text in files.items():
        write_atomic(staging / file, text)
    (staging / RELEASE_LINK).symlink_to(release_path)
    sync_directory(staging)
    staging.rename(paths.generation(name))
    sync_directory(paths.generations)


def link_target(link: Path) -> str | None:
    """Return the generation a link names, None where there is no link."""
    return link.readlink().name if link.is_symlink() else None


def point(link: Path, name: str | None) -> None:
    """Make ``current`` or ``previous`` name a generation in one step, or none.

    A link that is right already is not written again: the way back has to work on a full disk.
    """
    if name == link_target(link):
        return
    if name is None:
        link.unlink(missing_ok=True)
        return
    temporary = link.with_name(f".{link.name}.new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(Path("generations") / name)
    temporary.replace(link)
    sync_directory(link.parent)


def switch(paths: SeatPaths, name: str) -> None:
    """Make a generation current. The one before becomes ``previous`` if it is good, else ``previous`` stays.

    Unless that would be the current one itself, when a failed rollout goes back: then it is what was proven before it.
    """
    before = link_target(paths.current)
    if before is not None and before != name and is_good(paths, before):
        point(paths.previous, before)
    point(paths.current, name)
    if link_target(paths.previous) == name:
        point(paths.previous, last_good(paths, name))


def is_good(paths: SeatPaths, name: str) -> bool:
    """Return whether the probes of a generation have passed on this host."""
    return (paths.generation(name) / EVIDENCE_FILE).is_file()


def mark_good(paths: SeatPaths, name: str, evidence: Mapping[str, Any]) -> None:
    """Keep the evidence of the probes, which makes the generation good."""
    write_atomic(paths.generation(name) / EVIDENCE_FILE, pretty_json(evidence))


def reject(paths: SeatPaths, name: str) -> None:
    """Take a generation's evidence out of the way, so that nothing goes back to it; its probe may pass again."""
    evidence = paths.generation(name) / EVIDENCE_FILE
    if evidence.is_file():
        evidence.replace(evidence.with_name(REJECTED_FILE))
        sync_directory(evidence.parent)
    if link_target(paths.previous) == name:
        serving = link_target(paths.current)
        point(paths.previous, last_good(paths, serving) if serving else None)


def settle(paths: SeatPaths) -> str | None:
    """Make the last good generation current again when the current one was never proven, and return its name.

    For a start that no rollout watches: after a power cut in the middle of one, or after its controller died.
    """
    current, previous = link_target(paths.current), link_target(paths.previous)
    if current is None or previous is None or is_good(paths, current) or not is_good(paths, previous):
        return None
    point(paths.current, previous)
    point(paths.previous, last_good(paths, previous))
    return previous


def last_good(paths: SeatPaths, serving: str) -> str | None:
    """Return the generation that was proven last, other than the one that serves: the next way back."""
    proven = [path for path in paths.generations.glob(f"*/{EVIDENCE_FILE}") if path.parent.name != serving]
    return max(proven, key=lambda path: (path.stat().st_mtime_ns, path.parent.name)).parent.name if proven else None


def read_evidence(paths: SeatPaths, name: str) -> dict[str, Any]:
    """Return what :func:`mark_good` kept, empty for a generation that is not good."""
    return _read_json(paths.generation(name) / EVIDENCE_FILE) or {}


def read_manifest(paths: SeatPaths, name: str) -> dict[str, Any] | None:
    """Return the manifest of a generation, None where it is missing or no JSON mapping."""
    return _read_json(paths.generation(name) / MANIFEST_FILE)


def read_unit(paths: SeatPaths, name: str) -> str | None:
    """Return the text of the unit that belongs to a generation."""
    return _read(paths.generation(name) / paths.unit.name)


def write_unit(paths: SeatPaths, text: str, drop_ins: Iterable[str]) -> None:
    """Make systemd's file of the seat this text, and nothing beside it: drop-ins of the seat's own go."""
    for drop_in in drop_ins:
        (paths.root / drop_in.lstrip("/")).unlink(missing_ok=True)
    if _read(paths.unit) != text:
        write_atomic(paths.unit, text)


def prunable(paths: SeatPaths, keep: int, protect: Collection[str] = ()) -> list[str]:
    """Return the generations that may go: all but the ``keep`` newest, and never current, previous, pinned, protected.

    A generation is pinned by a file ``pinned`` in its directory.
    """
    if not paths.generations.is_dir():
        return []
    held = {link_target(paths.current), link_target(paths.previous), *protect}
    directories = [entry for entry in paths.generations.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    newest_first = sorted(directories, key=lambda entry: (entry.stat().st_mtime_ns, entry.name), reverse=True)
    return [entry.name for entry in newest_first[keep:] if entry.name not in held and not (entry / PIN_FILE).exists()]


def prune(paths: SeatPaths, names: Iterable[str]) -> None:
    """Remove generations; each vanishes under its name at once, so that nobody finds half of one."""
    for name in names:
        doomed = paths.generations / f"{_STAGING}removed-{name}"
        paths.generation(name).rename(doomed)
        shutil.rmtree(doomed)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
