"""The host as a rollout sees it: systemd, ``/proc``, the journal and the probe in the host's toolbox."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import pwd
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from ..files import is_locked
from ..health.probe_report import EXIT_BUSY, EXIT_READY
from ..paths import CACHE, EVIDENCE, SEATS, SERVICE_USER, TOOLBOX, UNIT_PREFIX, WATCH_PREFIX, SeatPaths
from ..seat import admission, flags, link, stopped
from ..seat.render import Generation
from ..seat.rollout import ProbeResult, RolloutError
from ..units import MIB
from . import gpus, guard, meminfo, tenants
from .processes import PROPERTIES, SeatState, UnitState, parse_show, read_seat

START_LOCK = Path("/run/lock/seatfleet-start.lock")
# systemctl itself answers at once; a start of Type=exec takes as long as ExecStartPre.
_COMMAND_TIMEOUT_S = 120
_METRICS_TIMEOUT_S = 5
# What a start, its caches, its probe and its links are written to. A full one is found while the old process serves:
# what is left after the stop would be a seat that cannot be started, or one that nobody can say was proven.
WRITTEN = (SEATS, EVIDENCE, CACHE)
ROOM = 64 * MIB
# A first error is at the beginning; a crash loop can write for half an hour.
_JOURNAL_BYTES = 4 << 20


class LocalMachine:
    """The machine this process runs on; needs root."""

    def __init__(self, lock: Path = START_LOCK, lock_timeout_s: float = 3600) -> None:
        self._lock = lock
        self._lock_timeout_s = lock_timeout_s

    def unit_state(self, unit: str) -> UnitState:
        """Ask systemd about a unit."""
        return parse_show(_systemctl("show", "--no-pager", f"--property={','.join(PROPERTIES)}", unit))

    def seat_state(self, unit: UnitState, port: int) -> SeatState:
        """Look at the unit's processes and at the port."""
        return read_seat(unit, port)

    def running_requests(self, base_url: str) -> int | None:
        """Return how many requests a seat works on or has waiting; None when it does not say.

        One that is too busy to answer in time counts as one request.
        """
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"{base_url}/metrics", timeout=_METRICS_TIMEOUT_S) as answer:
                return count_requests(answer.read().decode())
        except TimeoutError:
            return 1
        except (OSError, ValueError, http.client.HTTPException) as error:
            return 1 if isinstance(getattr(error, "reason", None), TimeoutError) else None

    def stop(self, unit: str, timeout_s: float) -> None:
        """Stop a unit and wait; no error when the time is over or there is no such unit."""
        with suppress(RolloutError):
            _systemctl("stop", unit, timeout_s=timeout_s)

    def kill(self, unit: str) -> None:
        """Send SIGKILL to everything in the unit's control group."""
        with suppress(RolloutError):
            _systemctl("kill", "--signal=SIGKILL", unit)

    def start(self, unit: str) -> None:
        """Start a unit; RolloutError when its command could not be executed.

        Whoever starts a seat that the memory guard killed has changed it, or has asked for it; and one that an
        operator stopped is out of service no more.
        """
        seat = unit.removeprefix(UNIT_PREFIX).removesuffix(".service")
        guard.marker(seat).unlink(missing_ok=True)
        stopped.clear(seat)
        _systemctl("start", unit, timeout_s=_COMMAND_TIMEOUT_S * 5)

    def install(self, unit: str) -> None:
        """Make systemd read its unit files again and start the unit at boot; forget earlier failed starts."""
        _systemctl("daemon-reload")
        _systemctl("enable", "--quiet", unit)
        with suppress(RolloutError):  # it says "not loaded" of a unit that never ran
            _systemctl("reset-failed", unit)

    def watch(self, seat: str) -> None:
        """Have the seat started again in case this process dies between its stop and its start.

        A unit of systemd's, which outlives the connection that this process was started over. One that is still there
        does the same; and without any (no toolbox, no room) a rollout is what it was.
        """
        command = ["systemd-run", "--quiet", "--collect", f"--unit={WATCH_PREFIX}{seat}.service"]
        command += [f"{TOOLBOX}/bin/seatctl", "settle", seat, "--after-rollout"]
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(command, capture_output=True, timeout=_COMMAND_TIMEOUT_S, check=False)

    def disable(self, unit: str) -> None:
        """Do not start the unit at boot."""
        _systemctl("disable", "--quiet", unit)

    def forget(self, unit: str) -> None:
        """Forget a unit whose files were removed, its failed state included; no error when there is no such unit."""
        _systemctl("daemon-reload")
        with suppress(RolloutError):
            _systemctl("reset-failed", unit)

    def journal(self, unit: str, since: float) -> Iterator[str]:
        """Yield the unit's messages since a time, oldest first, at most 4 MiB of them."""
        command = ["journalctl", "--no-pager", "--output=cat", f"--unit={unit}", f"--since=@{since:.6f}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            text = process.stdout.read(_JOURNAL_BYTES)
            process.terminate()
        yield from text.decode(errors="replace").splitlines()

    @contextmanager
    def probe(self, manifest: Path) -> Iterator[ToolboxProbe]:
        """Start the probe of a generation; at the end of the context it is ended.

        Its output goes to files, which, unlike a pipe, cannot be full; in memory, because a disk can.
        """
        seat = manifest.parents[2].name
        command = [f"{TOOLBOX}/bin/seatctl", "probe", "--manifest", str(manifest), "--level", "acceptance", "--json"]
        command += ["--evidence", f"{EVIDENCE}/{seat}"]
        with _in_memory("output") as output, _in_memory("errors") as errors:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, start_new_session=True
            )
            try:
                yield ToolboxProbe(process, output, errors)
            finally:
                process.kill()
                process.wait()

    def missing(self, manifest: Mapping[str, Any]) -> list[str]:
        """Return what a start would need and the host does not have, in words."""
        found = [marked] if (marked := guard.obstacle(manifest)) else []
        release = Path(manifest["release_path"])
        if not (release / "release.json").is_file():
            found.append(f"release {manifest['release_id']} is not installed ({release}/release.json is missing)")
        for what in ("model", "drafter"):
            path = manifest.get(f"{what}_path")
            if path is not None and not Path(path).is_dir():
                found.append(f"{what} {manifest[f'{what}_id']} is not there ({path})")
        if not Path(TOOLBOX, "bin/seatctl").exists():
            found.append(f"the toolbox is not installed ({TOOLBOX})")
        elif not found:
            found += _patch_problems(release)
        found += _link_problems(manifest)
        try:
            pwd.getpwnam(SERVICE_USER)
        except KeyError:
            found.append(f"there is no user {SERVICE_USER}")
        return found + full_disks(WRITTEN)

    def gpu_memory(self, cards: Collection[str], pids: Collection[int]) -> tuple[int, int] | None:
        """Return the bytes in use on cards and those that processes hold of them; None where nobody knows."""
        if not cards:
            return None
        answers = [_nvidia_smi(*query) for query in (gpus.USED, gpus.HOLDERS)]
        return None if None in answers else gpus.memory_held(str(answers[0]), str(answers[1]), cards, pids)

    def short_of_memory(
        self, manifest: Mapping[str, Any], serving: Mapping[str, Any] | None, pids: Collection[int]
    ) -> list[str]:
        """Return why a generation would not find its memory once ``serving`` has given back its own, in words."""
        cards = _nvidia_smi(*admission.CARDS_QUERY) if manifest.get("gpus") else None
        if cards is None:
            return []
        apps = _nvidia_smi(*tenants.APPS_QUERY) or ""
        return admission.shortages(
            manifest,
            serving if pids else None,
            admission.parse_cards(cards),
            tenants.parse_apps(apps),
            pids,
            meminfo.PATH.read_text(encoding="ascii"),
            lambda: admission.large_processes(pids),
        )

    def available_memory(self) -> int | None:
        """Return the host's MemAvailable in bytes; None where nobody knows."""
        try:
            return meminfo.available()
        except (OSError, ValueError):
            return None

    def refused_flags(self, generation: Generation) -> str | None:
        """Return why the installed release would not start with a generation's flags; None when it would."""
        return flags.refused(generation.seat, generation.name, Path(generation.release_path), generation.files)

    @contextmanager
    def start_lock(self) -> Iterator[None]:
        """Hold the host's start lock, waiting for another start to end."""
        self._lock.parent.mkdir(parents=True, exist_ok=True)
        with self._lock.open("w") as handle:
            self._acquire(handle)
            yield

    def start_under_way(self) -> bool:
        """Return whether somebody holds the start lock."""
        return is_locked(self._lock)

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def monotonic(self) -> float:
        """Return a clock that only goes forward, in seconds."""
        return time.monotonic()

    def _acquire(self, handle: IO[str]) -> None:
        deadline = time.monotonic() + self._lock_timeout_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    message = f"another start on this host has held {self._lock} for {self._lock_timeout_s:.0f} s"
                    raise RolloutError(message) from None
                time.sleep(1)
            else:
                return


class ToolboxProbe:
    """``seatctl probe`` in a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes], output: IO[bytes], errors: IO[bytes]) -> None:
        self._process = process
        self._output = output
        self._errors = errors

    def poll(self) -> ProbeResult | None:
        """Return the result, None while it runs."""
        if self._process.poll() is None:
            return None
        output, errors = _content(self._output), _content(self._errors).strip()
        try:
            evidence = json.loads(output)
        except ValueError:
            evidence = {}
        evidence = evidence if isinstance(evidence, dict) else {}
        code = self._process.returncode
        message = str(evidence.get("cause") or "") or errors
        return ProbeResult(code == EXIT_READY and bool(evidence), evidence, message, busy=code == EXIT_BUSY)


def full_disks(paths: Sequence[str], room: int = ROOM) -> list[str]:
    """Return in words which of the directories are on a disk with less than ``room`` bytes free, each disk once."""
    found: dict[int, str] = {}
    for path in filter(Path.is_dir, map(Path, paths)):
        free = shutil.disk_usage(path).free
        if free < room:
            what = f"the disk of {path} has {free >> 20} MiB free, {room >> 20} are wanted"
            found.setdefault(path.stat().st_dev, what)
    return list(found.values())


def count_requests(metrics: str) -> int | None:
    """Return running and waiting requests from vLLM's metrics, over all its engines; None without these metrics."""
    values = [
        float(line.rpartition(" ")[2])
        for line in metrics.splitlines()
        if line.startswith(("vllm:num_requests_running{", "vllm:num_requests_waiting{"))
    ]
    return int(sum(values)) if values else None


def read_linked(paths: SeatPaths) -> dict[str, Any] | None:
    """Return what the link of a seat over two hosts last wrote down, None when it never ran since the boot."""
    try:
        content = json.loads(paths.linked.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _link_problems(manifest: Mapping[str, Any]) -> list[str]:
    """Return why the other host of a seat over two could not join its head, as the link between them last heard."""
    hosts = link.config_of(manifest)
    if hosts is None or hosts.own != hosts.head:
        return []
    heard = read_linked(SeatPaths(manifest["seat"]))
    return link.obstacles(heard, manifest["generation"], hosts.follower[0], time.monotonic())


def _patch_problems(release: Path) -> list[str]:
    """Return what the unit would refuse to start with; found before the stop, while the old process still serves."""
    command = [f"{TOOLBOX}/bin/seatctl", "patch", "verify", str(release)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=False)
    if done.returncode == 0:
        return []
    return [f"patched files of {release.name}: {done.stderr.strip() or done.stdout.strip()}"]


def _nvidia_smi(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments], capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode in gpus.ANSWERED else None


def _in_memory(name: str) -> IO[bytes]:
    return os.fdopen(os.memfd_create(name), "w+b")


def _content(handle: IO[bytes]) -> str:
    handle.seek(0)
    return handle.read().decode(errors="replace")


def _systemctl(*arguments: str, timeout_s: float = _COMMAND_TIMEOUT_S) -> str:
    command = ["systemctl", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise RolloutError(f"{' '.join(command)} did not end within {timeout_s:.0f} s") from None
    if done.returncode != 0:
        raise RolloutError(f"{' '.join(command)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout
