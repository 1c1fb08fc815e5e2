"""Ask the installed release, before a seat stops, whether it would accept the seat's flags and environment.

The answer costs the imports of vLLM (10 to 40 s) and is kept per release and configuration: a generation is named after
a hash of both. It is asked for neither when the generation has served here already, nor on a way back.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..files import pretty_json, write_atomic
from ..paths import SERVICE_USER
from . import flag_check
from .render import CONFIG_FILE, ENVIRONMENT_FILE

ANSWERS = "/var/cache/seatfleet/flags"
# A refusal may depend on what is not in the configuration (a plugin's file, a model's config.json) and is asked for
# again after this long; within one run of a playbook it is asked for once.
REFUSAL_LIFETIME_S = 300
# On a machine that is busy; 15 to 40 s is usual.
TIMEOUT_S = 600
KEEP = 100
# A refused parser makes the release name all 70 it knows.
MAX_LENGTH = 600

Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


def refused(
    seat: str, generation: str, release: Path, files: Mapping[str, str], root: Path = Path("/"), run: Run | None = None
) -> str | None:
    """Return why the release would refuse to start with a generation's files, None when it would start."""
    script = inspect.getsource(flag_check)
    answers = root / ANSWERS.lstrip("/")
    answer = answers / f"{generation}-{hashlib.sha256(script.encode()).hexdigest()[:12]}.json"
    known, cause = _known(answer)
    if known:
        return cause
    cause = _ask(seat, release, files, script, run or _run)
    # An answer that cannot be kept, on a full disk, is one all the same.
    with contextlib.suppress(OSError):
        answers.mkdir(parents=True, exist_ok=True)
        write_atomic(answer, pretty_json({"release": release.name, "refused": cause}))
        _forget_oldest(answers)
    return cause


def command(seat: str, release: Path, folder: Path) -> list[str]:
    """Return the command: a unit that is bounded, runs as the seat does, and shares only its caches with it.

    The caches are shared so that what the release finds out about the model's class spares the real start 9 s.
    """
    properties = {
        "User": SERVICE_USER,
        "Group": SERVICE_USER,
        "CacheDirectory": f"vllm/{seat}",
        "CacheDirectoryMode": "0750",
        "EnvironmentFile": str(folder / ENVIRONMENT_FILE),
        "WorkingDirectory": str(folder),
        "ProtectSystem": "strict",
        "ProtectHome": "yes",
        "PrivateTmp": "yes",
        "NoNewPrivileges": "yes",
        "RuntimeMaxSec": str(TIMEOUT_S),
        "Nice": "5",
        "UMask": "0077",
    }
    systemd = ["systemd-run", "--quiet", "--wait", "--pipe", "--collect"]
    options = [f"--property={name}={value}" for name, value in properties.items()]
    return [*systemd, *options, f"{release}/bin/python", "-P", str(folder / "flag_check.py"), str(folder / CONFIG_FILE)]


def _known(answer: Path) -> tuple[bool, str | None]:
    """Return whether the question was answered before, and the answer."""
    try:
        age = time.time() - answer.stat().st_mtime
        cause = json.loads(answer.read_text(encoding="utf-8"))["refused"]
    except (OSError, ValueError, KeyError):
        return False, None
    return cause is None or 0 <= age < REFUSAL_LIFETIME_S, cause


def _ask(seat: str, release: Path, files: Mapping[str, str], script: str, run: Run) -> str | None:
    folder = Path(tempfile.mkdtemp(prefix="seatfleet-flags-", dir="/run" if run is _run else None))
    try:
        folder.chmod(0o755)
        for name, text in ((CONFIG_FILE, files[CONFIG_FILE]), (ENVIRONMENT_FILE, files[ENVIRONMENT_FILE])):
            (folder / name).write_text(text, encoding="utf-8")
        (folder / "flag_check.py").write_text(script, encoding="utf-8")
        done = run(command(seat, release, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return _cause(done)


def _cause(done: subprocess.CompletedProcess[str]) -> str | None:
    lines = done.stdout.splitlines()
    try:
        cause = json.loads(lines[-1])["refused"] if lines else ...
    except (ValueError, KeyError, TypeError):
        cause = ...
    if cause is ...:
        said = (done.stderr.strip() or "nothing").splitlines()[-1]
        return f"its check of flags ended with exit code {done.returncode} and said: {said}"
    return None if cause is None else str(cause)[:MAX_LENGTH]


def _run(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    # systemd ends it after TIMEOUT_S; the margin is for systemd itself.
    return subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S + 60, check=False)


def _forget_oldest(answers: Path) -> None:
    newest_first = sorted(answers.glob("*.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in newest_first[KEEP:]:
        path.unlink(missing_ok=True)
