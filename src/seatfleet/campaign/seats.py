"""How a campaign starts and stops one configuration of a seat: as a local process, or as a unit of a seat host."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import yaml

from ..clients.probe import Host, SystemHost
from ..clients.systemd import UnitState
from ..core.host.sockets import cgroup_of
from ..core.problems import Problem, ProblemsError
from ..core.seat.flow_yaml import dump_mapping
from ..core.seat.manifest import Manifest, Speculation
from .parity import ArmConfig, Deployment, changed_env, digest

STOP_LIMIT_S = 60.0
#: Root of one arm's compile caches, by variable: vLLM's cache does not know the number of draft tokens, and a shared
#: one hands one arm the kernels of another.
CACHE_FOLDERS = {
    "VLLM_CACHE_ROOT": "vllm",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
}


class SeatFailed(Exception):
    """A configuration could not be started, died, or could not be stopped."""


class SeatControl(Protocol):
    """Everything a campaign does to a seat."""

    gpus: Sequence[str]
    api_key: str | None

    def live(self) -> Deployment:
        """Read the live deployment from the machine."""

    def clear(self) -> None:
        """Stop what an in-place campaign takes the place of, and wait until nothing is left of it."""

    def start(self, config: ArmConfig, cache: str) -> None:
        """Start one arm with its own cache root; ``cache`` names it."""

    def cache_root(self, cache: str) -> str:
        """Return the directory that ``cache`` names."""

    def manifest(self, config: ArmConfig) -> Manifest:
        """Return what the probe should find."""

    def host(self) -> Host:
        """Return the machine as the probe sees it, for the arm that runs."""

    def log(self) -> list[str]:
        """Return what this start of the seat has logged so far."""

    def stop(self) -> None:
        """Stop the arm and wait until nothing is left of it; no error when nothing runs."""

    def restore(self) -> None:
        """Bring production back, whatever state the campaign left."""

    def discard(self, campaign: str) -> None:
        """Remove what this finished campaign needs no more; another one of the seat may still go on."""


def engine_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as vLLM's config file wants them: it drops ``x: false`` without a word, so ``no-x: true``."""
    return {f"no-{key}" if value is False else key: value is False or value for key, value in settings.items()}


def arm_manifest(
    config: ArmConfig, *, seat: str, host: str, unit: str | None, release: str, key_file: Path | None, timeout_s: int
) -> Manifest:
    """Return the manifest of an arm that the probe reads READY and canary from."""
    settings = config.settings
    names = tuple(settings.get("served-model-name") or [settings["model"]])
    speculative = settings.get("speculative-config")
    port = int(settings.get("port", 8000))
    return Manifest(
        seat=seat,
        host=host,
        unit=unit,
        base_url=f"http://127.0.0.1:{port}",
        port=port,
        api_key_file=key_file,
        model_id=names[0],
        served_names=names,
        max_model_len=int(settings.get("max-model-len", 0)),
        release_id=release,
        generation=config.argv_hash[:12],
        kv_cache_memory_bytes=None,
        max_num_seqs=settings.get("max-num-seqs"),
        prefix_caching=settings.get("enable-prefix-caching", True),
        speculative=_speculation(speculative),
        declared={},
        ready_timeout_s=timeout_s,
        acceptance=None,
        canary="auto",
        model_path=Path(settings["model"]),
        drafter_path=Path(speculative["model"]) if speculative and "model" in speculative else None,
    )


def _speculation(value: Mapping[str, Any] | None) -> Speculation | None:
    return Speculation(value["method"], int(value["num_speculative_tokens"])) if value else None


# --- a process of this user -------------------------------------------------------------------------------------------


class LocalHost(SystemHost):
    """A local process in the words the probe asks about a unit."""

    def __init__(self, process: subprocess.Popen[bytes], started_s: float, log_file: Path) -> None:
        super().__init__("the local server")
        self._process, self._started_s, self._log_file = process, started_s, log_file

    def unit(self) -> UnitState:
        """Return the process as if it were a unit."""
        code = self._process.poll()
        return UnitState(
            load="loaded",
            active="active" if code is None else "failed",
            sub="running" if code is None else "dead",
            result="success" if code in (None, 0) else "exit-code",
            main_pid=self._process.pid,
            restarts=0,
            invocation=f"local-{self._process.pid}",
            cgroup=cgroup_of(os.getpid()),
            exit_status=code or 0,
            started_s=self._started_s,
        )

    def journal(self, state: UnitState, pattern: str | None = None) -> list[str]:
        """Return the log of this start, optionally only lines matching a pattern."""
        lines = read_lines(self._log_file)
        return [line for line in lines if pattern is None or re.search(pattern, line)]


def read_lines(path: Path) -> list[str]:
    """Return the lines of a log; none when it is not there yet."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


@dataclass
class LocalSeat:
    """A seat run as a process of this user: for a trial without systemd, and for tests.

    ``file`` is YAML: ``executable`` (a list), ``config`` (the settings), ``env``, and if wanted ``identity``, ``seat``.
    """

    file: Path
    work: Path
    gpus: Sequence[str] = ()
    api_key: str | None = None
    ready_timeout_s: int = 600
    _process: subprocess.Popen[bytes] | None = None
    _started_s: float = 0.0
    _starts: int = 0
    _content: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            content = yaml.safe_load(self.file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ProblemsError([Problem(str(self.file), "", "", "YAML of a local seat", str(error))]) from error
        wanted = ("executable", "config")
        if not isinstance(content, dict) or not all(name in content for name in wanted):
            raise ProblemsError([Problem(str(self.file), "", "", f"a mapping with {' and '.join(wanted)}", "another")])
        self._content = content

    def live(self) -> Deployment:
        """Read the file; its model's files are part of the identity."""
        config = dict(self._content["config"])
        text = self.file.read_bytes()
        return Deployment(
            argv=(),
            config=config,
            env={str(k): str(v) for k, v in (self._content.get("env") or {}).items()},
            source=f"{self.file.name} sha256:{hashlib.sha256(text).hexdigest()}",
            identity={**(self._content.get("identity") or {}), "model_files": model_digest(Path(config["model"]))},
        )

    def cache_root(self, cache: str) -> str:
        """Return the directory that ``cache`` names."""
        return str(self.work.resolve() / "caches" / cache)

    def start(self, config: ArmConfig, cache: str) -> None:
        """Write the arm's config file and start the executable."""
        if self._process is not None:
            raise SeatFailed("an arm is still running")
        self.work.mkdir(parents=True, exist_ok=True)
        config_file = self.work / f"{config.arm}.yaml"
        config_file.write_text(dump_mapping(engine_config(config.settings)), encoding="utf-8")
        roots = {name: f"{self.cache_root(cache)}/{folder}" for name, folder in CACHE_FOLDERS.items()}
        given = {str(name): str(value) for name, value in (self._content.get("env") or {}).items()}
        environment = {**changed_env(config, {**os.environ, **given}), **roots}
        self._starts += 1
        with self._log_file.open("wb") as log:
            self._started_s = time.monotonic()
            self._process = subprocess.Popen(
                [*self._content["executable"], "--config", str(config_file)],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def _log_file(self) -> Path:
        return self.work / f"start-{self._starts:02d}.log"

    def manifest(self, config: ArmConfig) -> Manifest:
        """Return what the probe should find."""
        return arm_manifest(
            config,
            seat=str(self._content.get("seat", "local")),
            host="localhost",
            unit="the local server",
            release=digest(self._content.get("identity") or {})[:12],
            key_file=None,
            timeout_s=self.ready_timeout_s,
        )

    def host(self) -> Host:
        """Return the process as the probe sees it."""
        if self._process is None:
            raise SeatFailed("no arm is running")
        return LocalHost(self._process, self._started_s, self._log_file)

    def log(self) -> list[str]:
        """Return what this start has logged."""
        return read_lines(self._log_file)

    def stop(self) -> None:
        """End the process and everything it started."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_LIMIT_S)
        # vLLM's engine processes share its session; they must be gone before the next arm takes the memory
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def clear(self) -> None:
        """Do nothing: a local seat has no production."""

    def restore(self) -> None:
        """Stop what runs: a local seat has no production."""
        self.stop()

    def discard(self, campaign: str) -> None:
        """Remove the compile caches."""
        shutil.rmtree(self.cache_root(campaign), ignore_errors=True)


def model_digest(path: Path) -> str:
    """Return a hash of a model: of its manifest where one came with it, else of names, sizes and small files."""
    manifest = path / "manifest.json"
    if manifest.is_file():
        return hashlib.sha256(manifest.read_bytes()).hexdigest()
    parts = []
    for file in sorted(f for f in path.rglob("*") if f.is_file()):
        size = file.stat().st_size
        content = hashlib.sha256(file.read_bytes()).hexdigest() if size < (1 << 24) else ""
        parts.append([file.relative_to(path).as_posix(), size, content])
    return digest(parts)
