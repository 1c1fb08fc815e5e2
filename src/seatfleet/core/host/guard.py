"""Memory guard for hosts whose cards and processor share their memory: kill a seat before the host freezes.

On such a host (GB10) a control group does not see CUDA memory, so neither ``MemoryMax`` nor the kernel's killer acts in
time, and SIGTERM was seen to hang past 120 s with work in flight. The guard reads ``MemAvailable`` ten times a second,
and at the floor sends SIGKILL to the whole control group of a seat, through the kernel and not through a daemon. The
seat is then marked: stopped, not started at boot, not started by a rollout of the same generation, its port answered by
the 503 stub.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files import write_atomic
from ..paths import GUARDED, SeatPaths, campaign_unit, stub_unit, unit_name
from ..seat import stopped
from ..seat.generations import link_target, read_manifest
from ..units import format_gib, parse_size
from . import meminfo

PERIOD_S = 0.1
#: In a row below the floor before a seat is killed: a single one may be a moment of page cache being written.
SAMPLES = 2
#: After a kill, before the next seat is: what a process held comes back within this.
GRACE_S = 3.0
#: Stalled for 150 ms of a second: every task that could run waited for memory.
PRESSURE = "full 150000 1000000"
#: Pressure alone kills nobody; below this many times the floor it does.
PRESSURE_FLOORS = 2
_COMMAND_LIMIT_S = 30
#: The unit's WatchdogSec is ten times this.
_BEAT_S = 1.0
_PRIORITY = 50
_MCL_CURRENT_AND_FUTURE = 3


@dataclass(frozen=True)
class Guarded:
    """A seat that the guard may kill: its name, and the port that the stub takes over."""

    name: str
    port: int


@dataclass(frozen=True)
class Config:
    """What the guard is told. Seats in the order in which they are given up."""

    floor: int
    seats: tuple[Guarded, ...]


def load_config(path: Path) -> Config:
    """Read ``{"floor": "4GiB", "seats": [{"name", "port"}, ...]}``.

    Raises:
        ValueError: another form; OSError: no such file.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    try:
        seats = tuple(Guarded(str(one["name"]), int(one["port"])) for one in content["seats"])
        return Config(parse_size(content["floor"]), seats)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: expected floor and seats with name and port ({error!r})") from error


@dataclass
class Judge:
    """Decides from one sample after the other whether a seat has to go."""

    floor: int
    below: int = 0

    def why(self, free: int, pressed: bool) -> str | None:
        """Return why a seat has to be killed now, None when it has not."""
        self.below = self.below + 1 if free < self.floor else 0
        if self.below >= SAMPLES:
            return f"{format_gib(free)} of memory were available, the floor is {format_gib(self.floor)}"
        if pressed and free < PRESSURE_FLOORS * self.floor:
            return f"every task waited for memory, with {format_gib(free)} available"
        return None


def marker(seat: str, root: Path = Path("/")) -> Path:
    """Return the file that marks a seat as killed by the guard."""
    return root / GUARDED.lstrip("/") / f"{seat}.json"


def read_marker(seat: str, root: Path = Path("/")) -> dict[str, Any] | None:
    """Return what the guard wrote about a seat, None for one that it did not kill."""
    try:
        content = json.loads(marker(seat, root).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return {"why": f"its mark cannot be read: {error}"}
    return content if isinstance(content, dict) else {"why": "its mark is no mapping"}


def obstacle(manifest: Mapping[str, Any], root: Path = Path("/")) -> str | None:
    """Return why a generation must not be started: the guard killed this very one; None when it may be."""
    mark = read_marker(str(manifest["seat"]), root)
    if mark is None or mark.get("generation") not in (manifest["generation"], None):
        return None
    return (
        f"the memory guard killed this generation at {mark.get('at', '?')}: {mark.get('why', '?')}. Give the seat less "
        f"memory (docs/memory.md), or start it all the same after: seatctl guard clear {manifest['seat']}"
    )


class Host:
    """What the guard does to the machine; needs root. ``source`` is another file in tests and in the lab."""

    def __init__(self, source: Path = meminfo.PATH, root: Path = Path("/")) -> None:
        self.root, self.replayed = root, source != meminfo.PATH
        self._meminfo = source
        self._pressure = self._open_pressure()

    def _open_pressure(self) -> int | None:
        """Register the trigger; None where the kernel has none, or where the memory is not this kernel's."""
        if self.replayed:
            return None
        try:
            handle = os.open("/proc/pressure/memory", os.O_RDWR | os.O_NONBLOCK)
            os.write(handle, PRESSURE.encode() + b"\0")
        except OSError:
            return None
        return handle

    @property
    def pressure_is_watched(self) -> bool:
        """Tell whether the kernel reports stalls."""
        return self._pressure is not None

    def free(self) -> int:
        """Return the memory available now."""
        return meminfo.available(self._meminfo)

    def wait(self) -> bool:
        """Wait one period; True as soon as the kernel reports a stall."""
        if self._pressure is None:
            time.sleep(PERIOD_S)
            return False
        poll = select.poll()
        poll.register(self._pressure, select.POLLPRI)
        return bool(poll.poll(PERIOD_S * 1000))

    def running(self, unit: str) -> bool:
        """Tell whether anything is in a unit's control group."""
        try:
            return bool((self._cgroup(unit) / "cgroup.procs").read_text().strip())
        except OSError:
            return False

    def kill(self, unit: str) -> None:
        """SIGKILL to everything in a unit's control group at once, as the kernel does it."""
        try:
            (self._cgroup(unit) / "cgroup.kill").write_text("1")
        except OSError:  # kernels before 5.14
            self._systemctl("kill", "--signal=SIGKILL", unit)

    def _cgroup(self, unit: str) -> Path:
        """Return a unit's control group; ``unified`` is where it is beside the older hierarchies."""
        places = [self.root / "sys/fs/cgroup" / tree / "system.slice" / unit for tree in ("", "unified")]
        return next((place for place in places if place.is_dir()), places[0])

    def put_away(self, seat: Guarded, mark: Mapping[str, Any]) -> OSError | None:
        """Mark a killed seat, keep systemd from starting it again, and let the stub answer on its port.

        Return why it cannot be marked, on a full disk: that is no reason to have it started into the same memory.
        """
        path, paths = marker(seat.name, self.root), SeatPaths(seat.name, self.root)
        generation = link_target(paths.current)
        # Not the declared port, which a change that was taken back leaves as it is: the alias leads to this one.
        port = ((read_manifest(paths, generation) if generation else None) or {}).get("port", seat.port)
        failure = None
        try:
            # It was started by hand since.
            stopped.clear(seat.name, self.root)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, json.dumps({**mark, "seat": seat.name, "generation": generation}, indent=1) + "\n")
        except OSError as error:
            failure = error
        # A stop also takes back the restart that systemd has planned.
        self._systemctl("stop", unit_name(seat.name))
        self._systemctl("disable", "--quiet", unit_name(seat.name))
        self._systemctl("start", "--no-block", stub_unit(port))
        return failure

    @staticmethod
    def _systemctl(*arguments: str) -> None:
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run(["systemctl", *arguments], timeout=_COMMAND_LIMIT_S, check=False)


@dataclass
class Guard:
    """The loop. ``file`` is looked at again: who wrote it may have been killed before the restart."""

    config: Config
    host: Host
    say: Callable[[str], None] = print
    clock: Callable[[], float] = time.monotonic
    file: Path | None = None
    _helpless: bool = False
    _stamp: int | None = None

    def run(self, rounds: int | None = None) -> None:
        """Watch for ever, or for so many samples."""
        judge, quiet_until, beat = Judge(self.config.floor), 0.0, 0.0
        while rounds is None or rounds > 0:
            if self.clock() >= beat:
                notify("WATCHDOG=1")
                beat = self.clock() + _BEAT_S
                self._read_again()
                judge.floor = self.config.floor
            pressed = self.host.wait()
            free = self.host.free()
            why = judge.why(free, pressed)
            if why is not None and self.clock() >= quiet_until:
                self._give_up_one(why, free)
                quiet_until = self.clock() + GRACE_S
            rounds = None if rounds is None else rounds - 1

    def _read_again(self) -> None:
        """Take over a file that was written since; one that is none is said once, and changes nothing."""
        with suppress(FileNotFoundError):
            if self.file is None or (stamp := self.file.stat().st_mtime_ns) == self._stamp:
                return
            self._stamp = stamp
            try:
                self.config = load_config(self.file)
            except ValueError as error:
                self.say(f"warning: goes on as before: {error}")

    def _give_up_one(self, why: str, free: int) -> None:
        # What measures goes before what serves; it brings the seat back by itself.
        for seat in self.config.seats:
            if self.host.running(campaign_unit(seat.name)):
                self.host.kill(campaign_unit(seat.name))
                self.say(f"killed what is measured of seat {seat.name}: {why}")
                return
        victim = next((seat for seat in self.config.seats if self.host.running(unit_name(seat.name))), None)
        if victim is None:
            if not self._helpless:
                self.say(f"{why}, and no seat of {[seat.name for seat in self.config.seats]} runs: not a seat's memory")
            self._helpless = True
            return
        self._helpless = False
        began = self.clock()
        self.host.kill(unit_name(victim.name))
        took_ms = round(1000 * (self.clock() - began), 1)
        self.say(f"killed seat {victim.name}: {why}")
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        mark = {"at": at, "why": why, "available": free, "floor": self.config.floor, "killed_in_ms": took_ms}
        if failure := self.host.put_away(victim, mark):
            self.say(f"seat {victim.name} cannot be marked, so that a rollout would start it again: {failure}")


def protect() -> list[str]:
    """Keep this process in memory and first in line for a processor; return what did not work, in words.

    Here and not in the unit: a guard that systemd cannot start with these (a container, a kernel that schedules groups
    in real time) is worse than one without.
    """
    found = []
    if ctypes.CDLL(None, use_errno=True).mlockall(_MCL_CURRENT_AND_FUTURE):
        found.append(f"not locked in memory: {os.strerror(ctypes.get_errno())}")
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_PRIORITY))
    except OSError as error:
        found.append(f"not scheduled in real time: {error.strerror}")
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, -20)
    return found


def notify(text: str) -> None:
    """Tell systemd, where it asked to be told."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.sendto(text.encode(), address.replace("@", "\0", 1) if address.startswith("@") else address)


def neighbours(root: Path = Path("/")) -> list[str]:
    """Return what else on this host acts on memory, in words: it may kill first, or make the floor unreachable."""
    found = []
    swaps = (root / "proc/swaps").read_text(encoding="utf-8").splitlines()[1:]
    if swaps:
        found.append(
            f"swap is on ({swaps[0].split()[0]}): a seat is paged out, and stalls, before the floor is reached"
        )
    for path in (root / "proc").glob("[0-9]*/comm"):
        with suppress(OSError):
            name = path.read_text(encoding="utf-8", errors="replace").strip()
            if name in ("earlyoom", "systemd-oomd", "nohang"):
                found.append(f"{name} runs: it judges by other figures; see docs/memory.md")
    return sorted(set(found))


def watch(config: Config, host: Host, file: Path) -> None:
    """Say what is watched and with what protection, then watch."""
    problems = protect()
    where = "a replay" if host.replayed else "MemAvailable"
    names = ", ".join(seat.name for seat in config.seats) or "no seat"
    print(f"guarding {names}: {where} every {PERIOD_S * 1000:.0f} ms, floor {format_gib(config.floor)}")
    if not host.pressure_is_watched:
        print("memory pressure is not watched: this kernel does not report it")
    for text in (*problems, *neighbours()):
        print(f"warning: {text}")
    sys.stdout.flush()
    host.free()  # a source that cannot be read is a failed start, not a guard that sees nothing
    notify("READY=1")
    Guard(config, host, say=lambda text: print(text, flush=True), file=file).run()
