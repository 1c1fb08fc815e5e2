"""Arms as units of a seat host: the production unit with another configuration, never at the same time on its GPUs.

An arm lives in ``/var/lib/seatfleet/campaigns/<seat>/arms/<arm>`` with the layout of a generation; its unit is the
production unit's text with the path of the generation replaced, in ``/run``, so that a reboot forgets it and starts the
enabled production unit. Everything listens on loopback: no gateway and no neighbour can reach a seat under measurement.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import yaml

from ..clients.probe import Host, SystemHost
from ..clients.systemd import read_journal, read_unit
from ..core.host.machine import LocalMachine
from ..core.host.processes import SeatState, UnitState
from ..core.paths import CACHE, SEATS, SeatPaths, campaign_unit, unit_name
from ..core.seat.flow_yaml import dump_mapping
from ..core.seat.generations import EVIDENCE_FILE
from ..core.seat.manifest import Manifest, read_api_key
from ..core.seat.render import GENERATION_VARIABLE, RELEASE_VARIABLE, render_environment
from ..core.seat.rollout import RolloutError
from .parity import ArmConfig, Deployment, Refusal, changed_env
from .seats import CACHE_FOLDERS, STOP_LIMIT_S, SeatFailed, arm_manifest, engine_config, model_digest

CAMPAIGNS = "/var/lib/seatfleet/campaigns"
CACHE_NAME = "vllm-campaign"
_LOG_LINES = 200_000
_COMMAND_LIMIT_S = 120
DRAIN_POLL_S = 1.0
_CACHE_VARIABLES = {**CACHE_FOLDERS, "XDG_CACHE_HOME": "xdg"}


class Machine(Protocol):
    """What is needed of :class:`seatfleet.core.host.machine.LocalMachine`."""

    def unit_state(self, unit: str) -> UnitState:
        """Ask systemd about a unit."""

    def seat_state(self, unit: UnitState, port: int) -> SeatState:
        """Look at the unit's processes and at the port."""

    def start(self, unit: str) -> None:
        """Start a unit."""

    def stop(self, unit: str, timeout_s: float) -> None:
        """Stop a unit and wait."""

    def kill(self, unit: str) -> None:
        """Send SIGKILL to everything in the unit."""

    def reload(self, unit: str) -> None:
        """Make systemd read its unit files again and forget earlier failed starts of a unit."""

    def running_requests(self, base_url: str) -> int | None:
        """Return how many requests a seat works on, None when it does not say."""


class CampaignMachine(LocalMachine):
    """The machine that this process runs on."""

    def reload(self, unit: str) -> None:
        """Make systemd read its unit files again and forget earlier failed starts of a unit.

        Forgetting also resets the start limit, which 13 quick boots would reach.
        """
        subprocess.run(["systemctl", "daemon-reload"], check=True, timeout=_COMMAND_LIMIT_S)
        # says "not loaded" of a unit that never ran
        subprocess.run(["systemctl", "reset-failed", unit], check=False, capture_output=True, timeout=_COMMAND_LIMIT_S)


def arm_unit(production: str, seat: str, home: Path, *, exclusive: bool) -> str:
    """Return the unit of an arm, from the text of the production unit.

    The same user, limits and hardening; another configuration directory and cache; no restart after a crash (a crash is
    a result) and no start at boot. ``exclusive`` makes systemd refuse to run both at once.

    Raises:
        SeatFailed: the text is not a seat's unit as this version writes it.
    """
    replacements = {
        f"{SEATS}/{seat}/current": f"{home}/live",
        f"CacheDirectory=vllm/{seat}": f"CacheDirectory={CACHE_NAME}/{seat}",
        f"WorkingDirectory={CACHE}/{seat}": f"WorkingDirectory={_cache_home(seat)}",
        "Restart=always": "Restart=no",
    }
    text = production.partition("[Install]")[0]
    for old, new in replacements.items():
        if old not in text:
            raise SeatFailed(f"the unit of seat {seat} has no {old!r}: deploy the seat with this version first")
        text = text.replace(old, new)
    text = re.sub(r"(?m)^Description=(.*)$", r"Description=campaign arm of \1", text, count=1)
    # production's stand-in for callers would take the port of an arm that crashed, and settling would change
    # production's generation while it is down
    text = re.sub(r"(?m)^(OnFailure=.*|ExecStartPre=\+?\S+/seatctl settle .*)\n", "", text)
    if exclusive:
        text = text.replace("[Unit]\n", f"[Unit]\nConflicts={unit_name(seat)}\n", 1)
    return text.rstrip() + "\n"


def _cache_home(seat: str) -> str:
    return f"/var/cache/{CACHE_NAME}/{seat}"


def arm_environment(production: Mapping[str, str], config: ArmConfig, seat: str, cache: str) -> dict[str, str]:
    """Return the environment of an arm: production's, the arm's changes, cache roots of its own."""
    home = _cache_home(seat)
    moved = {name: value.replace(f"{CACHE}/{seat}", home) for name, value in production.items()}
    environment = changed_env(config, moved)
    roots = {name: f"{home}/{cache}/{folder}" for name, folder in _CACHE_VARIABLES.items() if name in environment}
    return {**environment, **roots, GENERATION_VARIABLE: config.argv_hash[:12]}


@dataclass
class SystemdSeat:
    """A seat of this host; needs root. ``root`` is ``/`` except in tests."""

    seat: str
    machine: Machine
    shadow: bool = False
    root: Path = Path("/")
    gpus: Sequence[str] = ()
    api_key: str | None = field(default=None, repr=False)
    _port: int = 0
    _live: Deployment | None = None

    @property
    def paths(self) -> SeatPaths:
        """Files of the production seat."""
        return SeatPaths(self.seat, self.root)

    @property
    def home(self) -> Path:
        """Where the arms are."""
        return self.root / CAMPAIGNS.lstrip("/") / self.seat

    @property
    def unit_file(self) -> Path:
        """The arm's unit, gone after a reboot."""
        return self.root / "run/systemd/system" / campaign_unit(self.seat)

    def _manifest(self) -> dict[str, Any]:
        path = self.paths.current / "manifest.json"
        try:
            return dict(yaml.safe_load(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise Refusal("R8 retyped", f"{path}: {error.strerror}; deploy seat {self.seat} first") from error

    def live(self) -> Deployment:
        """Read the current generation, and make sure that what runs is what is on disk."""
        if self._live is None:
            self._live = self._read_live()
        return self._live

    def _read_live(self) -> Deployment:
        manifest = self._manifest()
        self._refuse_another_process(manifest)
        if not (self.paths.current / EVIDENCE_FILE).is_file():
            reason = f"generation {manifest['generation']} of seat {self.seat} was never proven; deploy the seat first"
            raise Refusal("R18 unproven", reason)
        text = (self.paths.current / "vllm.yaml").read_bytes()
        environment = dict(manifest["environment"])
        self.api_key = read_api_key(self.paths.api_key)  # arms answer to the seat's own key
        visible = environment.get("CUDA_VISIBLE_DEVICES", "")
        self.gpus = tuple(part for part in visible.split(",") if part)
        return Deployment(
            argv=tuple(manifest["argv"][2:]),
            config={**yaml.safe_load(text), "host": "127.0.0.1"},
            env=environment,
            source=f"generation {manifest['generation']}, vllm.yaml sha256:{hashlib.sha256(text).hexdigest()}",
            identity={
                "release": manifest["release_id"],
                "release_files": _digest(self.root / manifest["release_path"].lstrip("/") / "release.json"),
                "model": manifest["model_id"],
                "model_revision": manifest["model_revision"],
                "model_files": _model(self.root, manifest["model_path"]),
                "drafter_files": _model(self.root, manifest.get("drafter_path")),
            },
        )

    def _refuse_another_process(self, manifest: Mapping[str, Any]) -> None:
        state = self.machine.seat_state(self.machine.unit_state(unit_name(self.seat)), int(manifest["port"]))
        seen = state.process.environ.get(GENERATION_VARIABLE) if state.process else None
        if state.process is not None and seen != manifest["generation"]:
            raise Refusal(
                "R8 retyped",
                f"seat {self.seat} runs generation {seen}, its current one is {manifest['generation']}: deploy it",
            )

    def cache_root(self, cache: str) -> str:
        """Return the directory that ``cache`` names."""
        return f"{_cache_home(self.seat)}/{cache}"

    def clear(self) -> None:
        """Let production end what it works on, stop it, and wait until nothing is left; a shadow seat leaves it alone.

        Nobody should be calling any more: the playbook has closed the aliases.
        """
        if not self.shadow:
            self.live()  # refuses a process of another generation while there is one to look at
            manifest = self._manifest()
            self._drain(str(manifest["base_url"]), float(manifest["probe"].get("drain_timeout_s", 0)))
            self._stop(unit_name(self.seat), int(manifest["port"]), float(manifest["probe"]["stop_timeout_s"]))

    def _drain(self, base_url: str, limit_s: float) -> None:
        deadline, idle = time.monotonic() + limit_s, 0
        # nothing twice in a row: a request may be on its way from the gateway
        while (running := self.machine.running_requests(base_url)) is not None:
            idle = 0 if running else idle + 1
            if idle == 2 or time.monotonic() >= deadline:
                return
            time.sleep(DRAIN_POLL_S)

    def start(self, config: ArmConfig, cache: str) -> None:
        """Write the arm's generation and unit, and start it."""
        manifest = self._manifest()
        self._port = int(config.settings["port"])
        directory = self.home / "arms" / config.arm
        directory.mkdir(parents=True, exist_ok=True)
        environment = arm_environment(manifest["environment"], config, self.seat, cache)
        (directory / "vllm.yaml").write_text(dump_mapping(engine_config(config.settings)), encoding="utf-8")
        (directory / "seat.env").write_text(render_environment(environment), encoding="utf-8")
        _link(directory / "release", Path(environment[RELEASE_VARIABLE]))
        _link(self.home / "live", Path("arms") / config.arm)
        production = self.paths.unit.read_text(encoding="utf-8")
        self.unit_file.parent.mkdir(parents=True, exist_ok=True)
        home = Path("/") / self.home.relative_to(self.root)
        self.unit_file.write_text(arm_unit(production, self.seat, home, exclusive=not self.shadow), encoding="utf-8")
        try:
            self.machine.reload(campaign_unit(self.seat))
            self.machine.start(campaign_unit(self.seat))
        except RolloutError as error:
            raise SeatFailed(str(error)) from error

    def manifest(self, config: ArmConfig) -> Manifest:
        """Return what the probe should find."""
        production = self._manifest()
        return arm_manifest(
            config,
            seat=self.seat,
            host=str(production["host"]),
            unit=campaign_unit(self.seat),
            release=str(production["release_id"]),
            key_file=self.paths.api_key,
            timeout_s=int(production["probe"]["ready_timeout_s"]),
        )

    def host(self) -> Host:
        """Return the machine as the probe sees it."""
        return SystemHost(campaign_unit(self.seat))

    def log(self) -> list[str]:
        """Return the journal of this start."""
        unit = campaign_unit(self.seat)
        return read_journal(read_unit(unit), unit, lines=_LOG_LINES)

    def stop(self) -> None:
        """Stop the arm and wait until its processes are gone and its port is free."""
        self._stop(campaign_unit(self.seat), self._port, STOP_LIMIT_S)

    def _stop(self, unit: str, port: int, timeout_s: float) -> None:
        self.machine.stop(unit, timeout_s)
        deadline = time.monotonic() + timeout_s
        while (state := self.machine.seat_state(self.machine.unit_state(unit), port)).pids:
            if time.monotonic() >= deadline:
                raise SeatFailed(f"{unit} was stopped, but processes {state.pids} are left")
            self.machine.kill(unit)
            time.sleep(0.5)
        if port and state.listeners:
            raise SeatFailed(f"port {port} is still held by {state.listeners[0]}")

    def restore(self) -> None:
        """Remove the campaign's unit and start production, unless it never stopped.

        That production answers again is for the probe to prove: a load may take longer than this process has.
        """
        with suppress(SeatFailed):
            self.stop()
        self.unit_file.unlink(missing_ok=True)
        self._reload(campaign_unit(self.seat))
        if not self.shadow:
            self._reload(unit_name(self.seat))
            self.machine.start(unit_name(self.seat))

    def _reload(self, unit: str) -> None:
        # a manager that is slow to read its files again must not keep production down
        with suppress(subprocess.SubprocessError):
            self.machine.reload(unit)

    def discard(self, campaign: str) -> None:
        """Remove the arms and this campaign's compile caches; until the last boot they are needed to go on."""
        (self.home / "live").unlink(missing_ok=True)
        shutil.rmtree(self.home / "arms", ignore_errors=True)
        shutil.rmtree(self.root / self.cache_root(campaign).lstrip("/"), ignore_errors=True)


def _link(link: Path, target: Path) -> None:
    """Point a link at a target in one step."""
    temporary = link.with_name(f".{link.name}.new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)


def _digest(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _model(root: Path, path: str | None) -> str | None:
    return None if path is None else model_digest(root / path.lstrip("/"))
