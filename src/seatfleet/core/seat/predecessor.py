"""A service that this project did not start, whose port a seat takes over: kept, and the seat's way back."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from ..files import pretty_json, write_atomic
from ..host.machine import LocalMachine
from ..host.sockets import Owner, listeners
from ..paths import SeatPaths
from .decision import Wanted
from .render import Generation
from .rollout import Rollout, RolloutError

RECORDS = "/var/lib/seatfleet/adopted"
_COME_BACK_S = 3600
_POLL_S = 1.0


@dataclass(frozen=True)
class OldUnit:
    """A systemd service whose port a seat takes over. ``back_s`` bounds how long it may take to come back."""

    name: str
    port: int
    machine: LocalMachine = field(repr=False)
    stop_s: float = 300
    back_s: float = _COME_BACK_S

    def owns(self, owner: Owner) -> bool:
        """Return whether a process is one of its."""
        return Path(owner.cgroup).name == self.name or f"/{self.name}/" in owner.cgroup

    def stop(self) -> None:
        """Stop it and do not start it at boot."""
        self.machine.disable(self.name)
        self.machine.stop(self.name, self.stop_s)
        if any(map(self.owns, listeners(self.port))):
            self.machine.kill(self.name)

    def come_back(self) -> float:
        """Start it, also at boot, and wait until it answers; return the seconds that took.

        Raises:
            RolloutError: it does not come up.
        """
        self.machine.install(self.name)
        self.machine.start(self.name)
        return _wait(self.machine, self.port, self.back_s, self.name)


@dataclass(frozen=True)
class OldCompose:
    """A compose service whose port a seat takes over; its container and volumes stay."""

    file: str
    name: str
    port: int
    machine: LocalMachine = field(repr=False)
    back_s: float = _COME_BACK_S

    def owns(self, owner: Owner) -> bool:
        """Return whether a process publishes ports for containers."""
        return owner.command == "docker-proxy"

    def stop(self) -> None:
        """Stop it; ``restart: always`` would start it with the daemon, so that is taken from the container."""
        for container in self._compose("ps", "--all", "--quiet", self.name).split():
            _command("docker", "update", "--restart=no", container)
        self._compose("stop", self.name)

    def come_back(self) -> float:
        """Create it as its file says, its restart policy included, and wait until it answers."""
        self._compose("up", "--detach", "--force-recreate", self.name)
        return _wait(self.machine, self.port, self.back_s, self.name)

    def _compose(self, *arguments: str) -> str:
        return _command("docker", "compose", "--file", self.file, *arguments)


def compose_config(file: str) -> str:
    """Return a compose file as docker reads it, with its variables filled in, as JSON."""
    return _command("docker", "compose", "--file", file, "config", "--format", "json")


def remember(seat: str, old: OldUnit | OldCompose, root: Path = Path("/")) -> None:
    """Write down what a seat took over, before anything stops."""
    path = root / RECORDS.lstrip("/") / f"{seat}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    file = old.file if isinstance(old, OldCompose) else None
    write_atomic(path, pretty_json({"service": old.name, "port": old.port, "compose_file": file}))


def remembered(seat: str, machine: LocalMachine, root: Path = Path("/")) -> OldUnit | OldCompose:
    """Return what a seat took over.

    Raises:
        RolloutError: it took over nothing.
    """
    try:
        record = json.loads((root / RECORDS.lstrip("/") / f"{seat}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RolloutError(f"seat {seat} took over no other service: {error}") from error
    return old_service(machine, record["service"], record["port"], record["compose_file"])


def old_service(machine: LocalMachine, name: str, port: int, compose_file: str | None) -> OldUnit | OldCompose:
    """Return the handle of an old service."""
    return OldCompose(compose_file, name, port, machine) if compose_file else OldUnit(name, port, machine)


def give_back(machine: LocalMachine, generation: Generation, old: OldUnit | OldCompose) -> float:
    """Drain and stop the seat, and bring back what it took over; return the seconds that took.

    Raises:
        RolloutError: the seat does not stop, or the old service does not come up.
    """
    unit_text = generation.files[str(generation.manifest["unit"])]
    wanted = Wanted(generation.name, generation.manifest, unit_text)
    machine.disable(wanted.unit)
    with machine.start_lock():
        Rollout(machine, SeatPaths(generation.seat), wanted).take_down()
    return old.come_back()


def _wait(machine: LocalMachine, port: int, limit_s: float, name: str) -> float:
    begin = machine.monotonic()
    while not _answers(port):
        waited = machine.monotonic() - begin
        if waited > limit_s:
            raise RolloutError(f"{name} does not answer on port {port} within {limit_s:.0f} s")
        machine.sleep(_POLL_S)
    return machine.monotonic() - begin


def _answers(port: int) -> bool:
    """Return whether a server lists its models, or says that it wants a key for that."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}/v1/models", timeout=10) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        return error.code in {401, 403}
    except OSError:
        return False


def _command(*argv: str) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RolloutError(f"{' '.join(argv)}: {error}") from error
    if done.returncode:
        raise RolloutError(f"{' '.join(argv)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout
