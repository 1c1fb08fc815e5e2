"""What a patch series means for another release: which patches apply, which are not needed, which need porting."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from . import unified_diff
from .patches import FileChange, Patch, Reader, Series, sha256_of
from .unified_diff import FileDiff, Hunk

_TextReader = Callable[[str], "str | None"]
Verdict = Literal["applies", "moved", "superseded", "contained", "port"]


@dataclass(frozen=True)
class Finding:
    """One patch against one tree.

    ``applies``: as it is; ``moved``: with other line numbers; ``superseded``: the series says this release fixes it;
    ``contained``: its result is in the tree already; ``port``: by hand, ``detail`` says where it fails.
    ``texts`` holds the patched files for ``applies`` and ``moved``.
    """

    patch: Patch
    verdict: Verdict
    detail: str
    texts: Mapping[str, str]


def survey(series: Series, diffs: Mapping[str, str], read: Reader, version: str) -> list[Finding]:
    """Return one finding per patch of ``series``, each tried on top of those before it that apply.

    ``read`` gives the files of the other tree, ``version`` is its version.
    """
    tree: dict[str, str] = {}
    findings = []
    for patch in series.patches:
        finding = _try(patch, unified_diff.parse(diffs[patch.name]), _overlay(tree, read), version)
        tree |= finding.texts
        findings.append(finding)
    return findings


def ported(series: Series, findings: list[Finding], read: Reader, version: str) -> tuple[Series, dict[str, str]]:
    """Return a series for ``version`` with fresh diffs and hashes, from the findings that apply or moved."""
    tree: dict[str, str] = {}
    patches, diffs = [], {}
    for finding in findings:
        if finding.verdict not in {"applies", "moved"}:
            continue
        before = {path: _overlay(tree, read)(path) for path in finding.texts}
        diff = unified_diff.render_all({path: (before[path], text) for path, text in finding.texts.items()})
        files = {
            path: FileChange(
                None if (old := before[path]) is None else sha256_of(old.encode()), sha256_of(new.encode())
            )
            for path, new in finding.texts.items()
        }
        left_out = {f.patch.name for f in findings if f.verdict in {"superseded", "contained"}}
        needs = tuple(need for need in finding.patch.needs if need not in left_out)
        diffs[finding.patch.name] = diff
        patches.append(replace(finding.patch, sha256=sha256_of(diff.encode()), files=files, needs=needs))
        tree |= finding.texts
    return Series(series.distribution, version, tuple(patches)), diffs


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers in front of a version, for ordering: ``0.28.0+local`` gives ``(0, 28, 0)``."""
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[+a-zA-Z]", version)[0]))


def at_least(version: str, wanted: str) -> bool:
    """Return whether ``version`` is ``wanted`` or later."""
    return numbers(version) >= numbers(wanted)


def _overlay(tree: Mapping[str, str], read: Reader) -> _TextReader:
    def text(path: str) -> str | None:
        if path in tree:
            return tree[path]
        raw = read(path)
        return None if raw is None else raw.decode()

    return text


def _try(patch: Patch, diff: Mapping[str, FileDiff], read: _TextReader, version: str) -> Finding:
    if patch.superseded_by is not None and at_least(version, patch.superseded_by):
        return Finding(patch, "superseded", f"fixed since {patch.superseded_by}", {})
    texts: dict[str, str] = {}
    offsets: set[int] = set()
    for path, part in diff.items():
        text = read(path)
        if (text is None) is not part.creates:
            return Finding(patch, "port", f"{path}: {'no such file' if text is None else 'exists already'}", {})
        places = [unified_diff.locate(text or "", hunk) for hunk in part.hunks]
        if None in places:
            undone = [unified_diff.locate(text or "", hunk.reversed()) for hunk in part.hunks]
            if None not in undone:
                return Finding(patch, "contained", f"{path} has this change", {})
            failing = part.hunks[places.index(None)]
            return Finding(patch, "port", f"{path}: hunk at line {failing.old_start} does not match", {})
        moved = [_shifted(hunk, place) for hunk, place in zip(part.hunks, places, strict=True) if place is not None]
        offsets |= {place for place in places if place is not None}
        texts[path] = unified_diff.apply(path, text or "", moved)
    if offsets == {0}:
        return Finding(patch, "applies", "", texts)
    return Finding(patch, "moved", f"by {min(offsets)} to {max(offsets)} lines", texts)


def _shifted(hunk: Hunk, lines: int) -> Hunk:
    return replace(hunk, old_start=hunk.old_start + lines)
