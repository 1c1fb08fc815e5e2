"""Unified diffs, applied exactly: no fuzz, no offset, no ``patch`` binary.

``patch -F0`` still moves a hunk to wherever its context happens to match. A series names the sha256 of every file it
starts from, so a hunk that is not at its stated line is an error here; only :func:`locate` looks elsewhere, for the
survey of a new release.
"""

from __future__ import annotations

import difflib
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_HEADER = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_DEV_NULL = "/dev/null"


class DiffError(ValueError):
    """A diff that cannot be read, or a hunk that does not match; the message names the file and the line."""


@dataclass(frozen=True)
class Hunk:
    """One hunk. Starts are 1-based as in the header; lines keep their line end."""

    old_start: int
    old: tuple[str, ...]
    new_start: int
    new: tuple[str, ...]

    def reversed(self) -> Hunk:
        """Return the hunk that undoes this one."""
        return Hunk(self.new_start, self.new, self.old_start, self.old)

    @property
    def index(self) -> int:
        """0-based place of the hunk's first old line. An empty side is numbered by the line before it."""
        return self.old_start - 1 if self.old else self.old_start


@dataclass(frozen=True)
class FileDiff:
    """All hunks for one file; ``creates`` when the old side is ``/dev/null``."""

    path: str
    hunks: tuple[Hunk, ...]
    creates: bool = False


def parse(text: str) -> dict[str, FileDiff]:
    """Return the file diffs of ``text`` by path; prose before a ``---`` header is ignored.

    Raises:
        DiffError: a malformed hunk, a deleted, renamed or repeated file, a path that leaves the tree, no file at all.
    """
    lines = split_lines(text)
    found: dict[str, FileDiff] = {}
    at = 0
    while at < len(lines):
        starts_file = lines[at].startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ ")
        if not starts_file:
            if lines[at].startswith("@@ "):
                raise DiffError(f"line {at + 1}: a hunk outside a file")
            at += 1
            continue
        old_path, new_path = _header_path(lines[at], at), _header_path(lines[at + 1], at + 1)
        hunks, at = _parse_hunks(lines, at + 2)
        diff = _file_diff(old_path, new_path, hunks)
        if diff.path in found:
            raise DiffError(f"{diff.path}: named twice in one diff")
        found[diff.path] = diff
    if not found:
        raise DiffError("no file in this diff (expected lines starting with '--- a/' and '+++ b/')")
    return found


def apply(path: str, text: str, hunks: Sequence[Hunk]) -> str:
    """Return ``text`` with every hunk applied at exactly its stated line.

    Raises:
        DiffError: a hunk's old lines are not there.
    """
    lines = split_lines(text)
    done: list[str] = []
    taken = 0
    for number, hunk in enumerate(hunks, start=1):
        end = hunk.index + len(hunk.old)
        if hunk.index < taken or tuple(lines[hunk.index : end]) != hunk.old:
            raise DiffError(f"{path}: hunk {number} of {len(hunks)} does not match at line {hunk.old_start}")
        done += [*lines[taken : hunk.index], *hunk.new]
        taken = end
    return "".join([*done, *lines[taken:]])


def locate(text: str, hunk: Hunk) -> int | None:
    """Return the offset in lines, nearest to the stated place, where the hunk's old lines are found; None: nowhere."""
    lines = tuple(split_lines(text))
    size = len(hunk.old)
    places = (start - hunk.index for start in range(len(lines) - size + 1) if lines[start : start + size] == hunk.old)
    return min(places, key=abs, default=None)


def render(path: str, before: str | None, after: str) -> str:
    """Return the unified diff from ``before`` (None: the file is new) to ``after``, with three lines of context."""
    old_name = _DEV_NULL if before is None else f"a/{path}"
    pieces = difflib.unified_diff(split_lines(before or ""), split_lines(after), old_name, f"b/{path}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in pieces)


def render_all(trees: Mapping[str, tuple[str | None, str]]) -> str:
    """Return one diff for several files, ``{path: (before, after)}``, sorted by path."""
    return "".join(render(path, *trees[path]) for path in sorted(trees))


def split_lines(text: str) -> list[str]:
    """Return the lines of ``text`` with their ends. Unlike ``str.splitlines``, a form feed does not end a line."""
    return list(io.StringIO(text, newline="\n"))


def is_safe_path(path: str) -> bool:
    """Return whether ``path`` is relative and stays inside the tree it is joined to."""
    parts = path.split("/")
    return bool(path) and not path.startswith("/") and "\\" not in path and not {"", ".", ".."} & set(parts)


def _header_path(line: str, at: int) -> str:
    name = line[4:].rstrip("\r\n").split("\t")[0].strip()
    if name == _DEV_NULL:
        return name
    prefix, _, path = name.partition("/")
    if prefix not in {"a", "b"} or not is_safe_path(path):
        raise DiffError(f"line {at + 1}: expected a path a/... or b/... inside the tree, seen {name!r}")
    return path


def _file_diff(old_path: str, new_path: str, hunks: list[Hunk]) -> FileDiff:
    if not hunks:
        raise DiffError(f"{new_path}: no hunks")
    if new_path == _DEV_NULL:
        raise DiffError(f"{old_path}: a patch must not delete files")
    creates = old_path == _DEV_NULL
    if creates and (len(hunks) > 1 or hunks[0].old):
        raise DiffError(f"{new_path}: a new file has exactly one hunk and no old lines")
    if not creates and old_path != new_path:
        raise DiffError(f"{old_path}: a patch must not rename files (new name {new_path})")
    return FileDiff(new_path, tuple(hunks), creates)


def _parse_hunks(lines: Sequence[str], at: int) -> tuple[list[Hunk], int]:
    hunks: list[Hunk] = []
    shift = 0
    while at < len(lines) and (match := _HEADER.match(lines[at])):
        old_start, new_start = int(match[1]), int(match[3])
        old_count, new_count = (1 if count is None else int(count) for count in (match[2], match[4]))
        old, new, at = _parse_body(lines, at + 1, old_count, new_count)
        hunk = Hunk(old_start, tuple(old), new_start, tuple(new))
        if hunk.reversed().index != hunk.index + shift:
            raise DiffError(f"line {at}: hunk header -{old_start} +{new_start} does not add up")
        shift += len(new) - len(old)
        hunks.append(hunk)
    return hunks, at


def _parse_body(lines: Sequence[str], at: int, old_count: int, new_count: int) -> tuple[list[str], list[str], int]:
    old: list[str] = []
    new: list[str] = []
    last: Iterable[list[str]] = ()
    while at < len(lines):
        mark, body = lines[at][:1], lines[at][1:]
        if mark == "\\":  # "\ No newline at end of file" belongs to the line before it
            for side in last:
                side[-1] = side[-1].rstrip("\n")
        elif len(old) == old_count and len(new) == new_count:
            break
        elif mark in {" ", "-", "+"}:
            last = [side for side, marks in ((old, " -"), (new, " +")) if mark in marks]
            for side in last:
                side.append(body)
        else:
            raise DiffError(f"line {at + 1}: expected ' ', '-' or '+', seen {lines[at][:20]!r}")
        at += 1
    if len(old) != old_count or len(new) != new_count:
        raise DiffError(
            f"line {at}: the hunk header says {old_count} old and {new_count} new lines, seen {len(old)} and {len(new)}"
        )
    return old, new, at
