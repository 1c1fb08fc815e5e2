"""Fixtures of the patch tests: see :mod:`patch_trees`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from patch_trees import CACHE, CHECK_TIMEOUT_S, PROJECT, SERIES, Tree, fetched, patched, published, read_lock, series_of

from seatfleet.core import patches, unified_diff
from seatfleet.core.locks import Lock


@pytest.fixture(scope="session")
def pristine() -> Callable[[str], Path]:
    """Return a function: name of a series -> folder with the Python files of its wheel."""

    def source(series: str) -> Path:
        lock = read_lock(SERIES[series])
        pin = lock.find(series.split("-")[0].replace("_", "-"))
        assert pin is not None
        wheel = fetched(Lock(lock.target, (pin,)), series) / pin.file

        def unzip(folder: Path) -> None:
            with zipfile.ZipFile(wheel) as archive:
                names = [
                    name for name in archive.namelist() if name.endswith((".py", ".json")) or ".dist-info/" in name
                ]
                archive.extractall(folder, names)

        return published(CACHE / f"sources/{series}-{pin.sha256[:12]}", unzip)

    return source


@pytest.fixture(scope="session")
def tree(pristine: Callable[[str], Path]) -> Callable[..., Tree]:
    """Return a function: series, patch names (None: the default ones) -> a patched tree in the cache.

    ``needs`` are not enforced, because some tests show what happens without them; ``extra`` is a diff of its own.
    """

    def make(series: str, names: Iterable[str] | None = None, extra: Path | None = None) -> Tree:
        source, whole = pristine(series), series_of(series)
        chosen = patches.select(whole) if names is None else whole
        wanted = [patch for patch in chosen.patches if names is None or patch.name in set(names)]
        diffs = [(PROJECT / "files/patches" / series / patch.file).read_text() for patch in wanted]
        diffs += [extra.read_text()] if extra else []
        digest = patches.sha256_of("".join(diffs).encode())[:12]
        label = "+".join(patch.name for patch in wanted) or (extra.name if extra else "pristine")

        def build(folder: Path) -> None:
            # Hard links: a patched file is replaced, never written into.
            shutil.copytree(source, folder, copy_function=os.link, dirs_exist_ok=True)
            for path, diff in ((path, diff) for text in diffs for path, diff in unified_diff.parse(text).items()):
                before = (folder / path).read_text() if (folder / path).exists() else ""
                (folder / path).unlink(missing_ok=True)
                (folder / path).write_text(patched(path, before, diff))

        return Tree(f"{series}: {label}", published(CACHE / f"trees/{source.name}-{digest}", build))

    return make


@pytest.fixture(scope="session")
def cpu_python() -> Path:
    """Return the interpreter of an environment with CPU torch and what vLLM's modules import."""
    lock = read_lock("patch_tests-cp311-x86_64")
    wheels = fetched(lock, "environment")
    base = sys.executable if sys.version_info[:2] == (3, 11) else shutil.which("python3.11")
    assert base, "Python 3.11 is needed: the CPU torch in files/locks/patch_tests.in is built for it"
    folder = CACHE / f"python-{lock.digest[:12]}"
    if not (folder / "ready").exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([base, "-m", "venv", str(folder)], check=True)
        install = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
        install += ["--no-compile", "--disable-pip-version-check", *(str(wheels / pin.file) for pin in lock.pins)]
        subprocess.run(install, check=True, env={**os.environ, "PIP_CONSTRAINT": os.devnull})
        (folder / "ready").touch()
    return folder / "bin/python"


@pytest.fixture(scope="session")
def inside(cpu_python: Path) -> Callable[..., dict[str, Any]]:
    """Return a function that runs a script in the CPU Python and returns the JSON it prints."""

    def run(script: Path, *arguments: str, **environment: str) -> dict[str, Any]:
        caches = {"PYTHONPYCACHEPREFIX": str(CACHE / "bytecode"), "TRITON_CACHE_DIR": str(CACHE / "triton")}
        result = subprocess.run(
            [str(cpu_python), "-P", str(script), *arguments],
            env={**os.environ, "VLLM_LOGGING_LEVEL": "CRITICAL", **caches, **environment},
            capture_output=True,
            text=True,
            timeout=CHECK_TIMEOUT_S,
            check=False,
        )
        assert "{" in result.stdout, f"{script.name} {arguments}: exit {result.returncode}\n{result.stderr[-3000:]}"
        return dict(json.loads(result.stdout[result.stdout.index("{") :]))

    return run
