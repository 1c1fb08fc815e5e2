"""A host for rollouts: one seat's unit, process and port, which behave as each generation is told to.

Anything a rollout must not do raises; what it does is written down in ``calls``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from seatfleet.core.host.processes import Process, SeatState, UnitState
from seatfleet.core.host.sockets import Owner
from seatfleet.core.paths import SeatPaths, measuring_units
from seatfleet.core.seat import generations
from seatfleet.core.seat.render import Generation
from seatfleet.core.seat.rollout import ProbeResult, RolloutError

# How a generation behaves: serves, does not start at all, ends while loading, is judged bad, cannot be judged, or
# never answers; or ends under the probe and is started again, by systemd or by hand.
SERVES, NO_EXEC, DIES, BAD, BUSY, SILENT = "serves", "no-exec", "dies", "bad", "busy", "silent"
CRASHES, TAKEN = "crashes", "taken"


@dataclass
class FakeMachine:
    paths: SeatPaths
    behaviour: dict[str, str] = field(default_factory=dict)
    process: Process | None = None
    sub: str = "dead"
    result: str = "success"
    restarts: int = 0
    enabled: bool = False
    needs_reload: bool = False
    drop_ins: tuple[str, ...] = ()
    stubborn: bool = False  # does not end on SIGTERM
    immortal: bool = False  # does not end on SIGKILL either
    loads: bool = False  # has not opened its port; a probe that has passed found it open
    measured: bool = False  # by a campaign
    strangers: list[Owner] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)
    shortage: list[str] = field(default_factory=list)
    refusal: str | None = None  # of the release, for any flags
    # In use on the seat's cards, and held by it: what each look sees, the last for ever.
    memory: list[tuple[int, int]] = field(default_factory=list)
    # MemAvailable at each look, the last for ever; empty: nobody knows.
    available: list[int] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)  # whose flags were
    calls: list[str] = field(default_factory=list)
    watched: list[tuple[str, int]] = field(default_factory=list)  # seat, and how many calls came before
    clock: float = 0.0
    locked: bool = False
    # What the seat says on each look at its running requests, the last for ever; empty: it says nothing.
    requests: list[int] = field(default_factory=list)
    on_probe: list[str] = field(default_factory=list)
    looks: int = 0  # how often a probe under way has nothing to say yet
    looked: int = 0

    def unit_state(self, unit: str) -> UnitState:
        if unit in measuring_units(self.paths.seat):
            active, sub = ("active", "running") if self.measured else ("inactive", "dead")
            return UnitState(
                unit, "not-found", active, sub, "success", 0, 0, f"/system.slice/{unit}", False, False, (), 0
            )
        assert unit == self.paths.unit.name
        active = {"running": "active", "failed": "failed", "auto-restart": "activating"}.get(self.sub, "inactive")
        return UnitState(
            name=unit,
            load="loaded" if self.paths.unit.exists() else "not-found",
            active=active,
            sub=self.sub,
            result=self.result,
            main_pid=self.process.pid if self.process else 0,
            restarts=self.restarts,
            control_group=f"/system.slice/{unit}",
            enabled=self.enabled,
            needs_reload=self.needs_reload,
            drop_ins=tuple(path for path in self.drop_ins if (self.paths.root / path.lstrip("/")).exists()),
            exit_status=0 if self.result == "success" else 1,
        )

    def seat_state(self, unit: UnitState, port: int) -> SeatState:
        pids = (self.process.pid,) if self.process else ()
        ours = [] if self.loads else [Owner(pid, "vllm", unit.control_group) for pid in pids]
        return SeatState(unit, self.process, pids, (*ours, *self.strangers))

    def running_requests(self, base_url: str) -> int | None:
        if base_url != "http://127.0.0.1:8022":  # of a seat whose manifests are gone
            assert base_url == "http://127.0.0.1:9"
            return None
        if not self.requests or self.process is None:
            return None
        return self.requests.pop(0) if len(self.requests) > 1 else self.requests[0]

    def stop(self, unit: str, timeout_s: float) -> None:
        if unit != self.paths.unit.name:
            assert unit.startswith(("seatfleet-stub@", "seatfleet-probe@"))
            self.strangers = [owner for owner in self.strangers if not owner.cgroup.endswith(unit)]
            return
        self._note("stop")
        assert timeout_s > 0
        self.sub = "dead"
        if not (self.stubborn or self.immortal):
            self.process = None

    def kill(self, unit: str) -> None:
        self._note("kill")
        if not self.immortal:
            self.process = None

    def install(self, unit: str) -> None:
        self._note("install")
        assert self.paths.unit.is_file()
        self.enabled, self.needs_reload, self.restarts = True, False, 0

    def watch(self, seat: str) -> None:
        assert self.locked, "a watch that finds no lock ends at once"
        self.watched.append((seat, len(self.calls)))

    def disable(self, unit: str) -> None:
        self._note("disable")
        self.enabled = False

    def forget(self, unit: str) -> None:
        self.sub = "dead"

    def start(self, unit: str) -> None:
        name = self.current
        self._note(f"start {name}")
        assert self.process is None, "the old process is still there"
        assert self.paths.unit.read_text() == generations.read_unit(self.paths, name)
        if self._behaviour(name) == NO_EXEC:
            self.sub, self.result = "auto-restart", "exit-code"
            raise RolloutError(f"systemctl start {unit}: failed")
        manifest = generations.read_manifest(self.paths, name)
        assert manifest is not None
        self.process = make_process(manifest, api_key=self._api_key())
        self.sub, self.result = "running", "success"

    def journal(self, unit: str, since: float) -> list[str]:
        kind = self._behaviour(self.current)
        return ["ValueError: out of memory", "RuntimeError: Engine core initialization failed."] if kind == DIES else []

    @contextlib.contextmanager
    def probe(self, manifest: Path) -> Iterator[FakeMachine]:
        self.on_probe, self.looked = [manifest.parent.name], 0
        self._note(f"probe {manifest.parent.name}")
        yield self
        self.on_probe = []

    def poll(self) -> ProbeResult | None:
        name = self.on_probe[0]
        kind = self._behaviour(name)
        if kind == DIES:
            self.process, self.sub, self.result = None, "auto-restart", "exit-code"
            return None
        if kind in {CRASHES, TAKEN} and self.looked == 0:
            assert self.process is not None
            self.process = replace(self.process, pid=self.process.pid + 1)
            self.restarts = self.restarts + 1 if kind == CRASHES else 0
        self.looked += 1
        if kind == SILENT or self.looked <= self.looks:
            return None
        if kind == BAD:
            return ProbeResult(False, {"verdict": "ACCEPT_BROKEN"}, "acceptance: expected 3.0, seen 1.0")
        if kind == BUSY:
            return ProbeResult(False, {"verdict": "BUSY"}, "acceptance: 3 requests of others", busy=True)
        self.loads = False
        return ProbeResult(True, {"ready_s": 28.5, "generation": name})

    def missing(self, manifest: Mapping[str, Any]) -> list[str]:
        return self.lacking

    def short_of_memory(
        self, manifest: Mapping[str, Any], serving: Mapping[str, Any] | None, pids: Collection[int]
    ) -> list[str]:
        return self.shortage

    def gpu_memory(self, cards: Collection[str], pids: Collection[int]) -> tuple[int, int] | None:
        if not cards or not self.memory:
            return None
        return self.memory.pop(0) if len(self.memory) > 1 else self.memory[0]

    def available_memory(self) -> int | None:
        return self.available.pop(0) if len(self.available) > 1 else self.available[0] if self.available else None

    def refused_flags(self, generation: Generation) -> str | None:
        self.asked.append(generation.name)
        return self.refusal

    @contextlib.contextmanager
    def start_lock(self) -> Iterator[None]:
        assert not self.locked
        self.locked = True
        yield
        self.locked = False

    def sleep(self, seconds: float) -> None:
        self.clock += seconds

    def monotonic(self) -> float:
        return self.clock

    @property
    def current(self) -> str:
        name = generations.link_target(self.paths.current)
        assert name is not None
        return name

    def _behaviour(self, name: str) -> str:
        return self.behaviour.get(name, SERVES)

    def _note(self, call: str) -> None:
        if call.split()[0] in {"stop", "kill", "start", "disable"}:
            assert self.locked, f"{call} without the host's start lock"
        self.calls.append(call)

    def _api_key(self) -> str:
        return self.paths.api_key.read_text().strip().split("=", 1)[1]


def make_process(manifest: Mapping[str, Any], api_key: str, pid: int = 211) -> Process:
    """Return the process that systemd would start for a generation."""
    argv = (f"{manifest['release_path']}/bin/python3", *manifest["argv"])
    return Process(pid, argv, {**manifest["environment"], "VLLM_API_KEY": api_key, "LANG": "C.UTF-8"})
