"""One path for deploy, upgrade, rollback and repair of a seat on its host, with automatic return.

The order is that of ``docs``' life of a seat: decide from what runs, check everything that can be checked while the
old process serves, stop, switch, start, READY and probe, mark good. Whatever fails after the stop brings the last good
generation back and is still a failure. All I/O beyond the seat's own files goes through a :class:`Machine`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from ..files import umask
from ..host.processes import SeatState, UnitState
from ..host.sockets import Owner
from ..paths import SeatPaths, link_unit, stub_unit
from ..report.journal import first_cause
from ..units import MIB, format_gib
from . import api_key, generations
from .decision import Action, Decision, OnDisk, Wanted, decide, digest
from .link import ENDED as LINK_ENDED
from .render import GENERATION_VARIABLE, MANIFEST_FILE, Generation

# Between two looks at a starting seat; the probe has its own clock.
POLL_S = 1.0
# Manifests of older generations do not say how long running requests may take.
DRAIN_TIMEOUT_S = 300
# What READY, identity, canary and acceptance may take beyond the seat's own ready_timeout_s.
PROBE_MARGIN_S = 600
# systemd sends SIGKILL at TimeoutStopSec; the kernel may need a moment to take back what a GPU process holds.
KILL_MARGIN_S = 30
# A driver gives memory back after the process is gone; minutes after it were reported.
GPU_LIMIT_S = 300
# A table pinned in host memory was given back about 30 s after SIGTERM.
TABLE_LIMIT_S = 120
# What neighbours may come to hold meanwhile.
GPU_TOLERANCE = 512 * MIB
KEEP_GENERATIONS = 5


class RolloutError(Exception):
    """A step failed; the message is the cause in words an operator can act on."""


class Undecided(RolloutError):
    """A serving seat could not be judged, because others used it meanwhile: no reason to take it away."""


class MemoryHeldError(RolloutError):
    """The seat is gone and its GPU memory is not: what served may still come up again."""


@dataclass(frozen=True)
class ProbeResult:
    """How a probe ended: ``evidence`` is its JSON output, ``message`` its cause or what it said on standard error.

    ``busy`` is set when other requests kept it from measuring: that says nothing against the seat.
    """

    passed: bool
    evidence: Mapping[str, Any]
    message: str = ""
    busy: bool = False


class ProbeRun(Protocol):
    """A probe under way."""

    def poll(self) -> ProbeResult | None:
        """Return the result, None while it runs."""


class Machine(Protocol):
    """What a rollout needs from the host; tests use one that refuses every call it does not expect."""

    def unit_state(self, unit: str) -> UnitState:
        """Ask systemd about a unit."""

    def seat_state(self, unit: UnitState, port: int) -> SeatState:
        """Look at the unit's processes and at the port."""

    def running_requests(self, base_url: str) -> int | None:
        """Return how many requests a seat works on or has waiting; None when it does not say."""

    def stop(self, unit: str, timeout_s: float) -> None:
        """Stop a unit and wait; no error when the time is over."""

    def kill(self, unit: str) -> None:
        """Send SIGKILL to everything in the unit's control group."""

    def start(self, unit: str) -> None:
        """Start a unit; RolloutError when its command could not be executed."""

    def install(self, unit: str) -> None:
        """Make systemd read its unit files again and start the unit at boot; forget earlier failed starts."""

    def watch(self, seat: str) -> None:
        """Have the seat started again should this process die before it has done so itself; no error when it cannot."""

    def disable(self, unit: str) -> None:
        """Do not start the unit at boot."""

    def forget(self, unit: str) -> None:
        """Forget a unit whose files were removed, its failed state included; no error when there is no such unit."""

    def journal(self, unit: str, since: float) -> Iterable[str]:
        """Return the unit's messages since a time (seconds since the epoch)."""

    def probe(self, manifest: Path) -> AbstractContextManager[ProbeRun]:
        """Start the probe of a generation; at the end of the context it is ended."""

    def missing(self, manifest: Mapping[str, Any]) -> list[str]:
        """Return what a start would need and the host does not have, in words."""

    def gpu_memory(self, cards: Collection[str], pids: Collection[int]) -> tuple[int, int] | None:
        """Return the bytes in use on cards and those that processes hold of them; None where nobody knows."""

    def short_of_memory(
        self, manifest: Mapping[str, Any], serving: Mapping[str, Any] | None, pids: Collection[int]
    ) -> list[str]:
        """Return why a generation would not find its memory once ``serving`` has given back its own, in words."""

    def available_memory(self) -> int | None:
        """Return the host's MemAvailable in bytes; None where nobody knows."""

    def refused_flags(self, generation: Generation) -> str | None:
        """Return why the installed release would not start with a generation's flags; None when it would."""

    def start_lock(self) -> AbstractContextManager[None]:
        """One start at a time per host: parallel starts measure each other's memory."""

    def sleep(self, seconds: float) -> None:
        """Wait."""

    def monotonic(self) -> float:
        """Return a clock that only goes forward, in seconds."""


class Predecessor(Protocol):
    """A service that this project did not start and whose port a seat takes over; it is the way back."""

    name: str

    def owns(self, owner: Owner) -> bool:
        """Return whether a process is one of its."""

    def stop(self) -> None:
        """Stop it and do not start it at boot; no error when it is stopped already."""

    def come_back(self) -> float:
        """Start it, also at boot, and wait until it answers; return the seconds that took.

        Raises:
            RolloutError: it does not come up.
        """


@dataclass(frozen=True)
class Outcome:
    """What happened to one seat. ``generation`` is what its process runs afterwards, None when nothing runs.

    ``drained_s`` is how long running requests were waited for, ``aborted`` how many were cut off all the same.
    ``way_back`` is the good generation that the wanted one took over from, for a caller that finds it wanting later.
    ``again`` says that the wanted one had been proven before, by an earlier run.
    """

    seat: str
    action: Action
    reasons: tuple[str, ...]
    wanted: str
    generation: str | None
    changed: bool
    repairs: tuple[str, ...] = ()
    ready_s: float | None = None
    expected_s: float | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    pruned: tuple[str, ...] = ()
    drained_s: float | None = None
    aborted: int = 0
    failure: str | None = None
    returned_to: str | None = None
    way_back: str | None = None
    again: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return it as a module's result."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()} | {
            "action": str(self.action),
            "evidence": dict(self.evidence),
        }


@dataclass(frozen=True)
class Rollout:
    """The rollout of one seat to one generation.

    ``key`` is the API key that its process shall have; the one on disk stays until the old process is gone.
    """

    machine: Machine
    paths: SeatPaths
    wanted: Wanted
    rendered: Generation | None = None  # None: only to be taken down
    predecessor: Predecessor | None = None
    keep: int = KEEP_GENERATIONS
    key: str | None = field(default=None, repr=False)  # None: whichever the host has

    def decide(self) -> Decision:
        """Say what the seat needs, changing nothing; also for a host where nothing is there yet."""
        return decide(self.wanted, self._state(), self._on_disk())

    def foresee(self, staged: bool = False) -> Outcome:
        """Say what :meth:`run` would do, how long the last starts took, and why it would refuse to touch anything.

        Without ``staged``, what a generation lacks that is not there yet counts as still to come.
        """
        decision = self.decide()
        if not decision.restarts:
            return self._outcome(decision, changed=decision.changes)
        obstacles = self._obstacles(virgin=self._unstaged() and not staged)
        failure = _untouched(obstacles) if obstacles else None
        return self._outcome(decision, changed=True, expected_s=self._expected_s(), failure=failure)

    def run(self) -> Outcome:
        """Bring the seat to the wanted generation, or back to where it was; never raises for a seat that fails."""
        decision = self.decide()
        try:
            return self._carry_out(decision)
        except OSError as error:
            # A full disk, most of all, where nothing had to be brought back: what runs goes on.
            failure = f"{error}. Run again when that is put right"
            return self._outcome(decision, changed=decision.changes, failure=failure)

    def _carry_out(self, decision: Decision) -> Outcome:
        if not decision.restarts:
            return self._settle(decision)
        obstacles = self._obstacles(virgin=False)
        if obstacles:
            return self._outcome(decision, changed=False, failure=_untouched(obstacles))
        with self.machine.start_lock():
            return self._replace(decision)

    def take_down(self) -> tuple[float, int]:
        """Drain and stop the seat for good; return the seconds waited and the requests that were cut off.

        The caller holds the start lock.

        Raises:
            RolloutError: it does not stop.
        """
        drained = self._drain()
        self._stop()
        return drained

    def _settle(self, decision: Decision) -> Outcome:
        """Repair files and links beside a process that is as wanted, and probe it when nobody has yet."""
        if decision.repairs:
            self._renew_key()
            self._install(self.wanted.generation)
        if decision.action is Action.NOTHING:
            failure = self._wait_while_it_loads()
            return self._outcome(decision, changed=decision.changes, pruned=self._prune(), failure=failure)
        way_back = self._way_back((None, generations.link_target(self.paths.previous)))
        try:
            # Looked at after the repairs, which make systemd forget how often it has restarted the unit.
            ready_s, evidence = self._prove(
                self.wanted.generation, time.time(), self.machine.unit_state(self.wanted.unit)
            )
        except Undecided as error:
            return self._outcome(decision, changed=bool(decision.repairs), failure=str(error))
        except RolloutError as error:
            with self.machine.start_lock():
                return self._give_back(decision, str(error), (None, generations.link_target(self.paths.previous)))
        return self._good(decision, ready_s, evidence, way_back)

    def _wait_while_it_loads(self) -> str | None:
        """Wait for a proven generation that somebody else started, as a boot does; return why it does not come up.

        Its port opens when it is loaded, and no alias can be opened or proven before.
        """
        state = self._state()
        if any(owner.pid in state.pids for owner in state.listeners):
            return None
        try:
            self._prove(self.wanted.generation, time.time(), state.unit)
        except Undecided:
            return None
        except RolloutError as error:
            return str(error)
        return None

    def _replace(self, decision: Decision) -> Outcome:
        before = self._links()
        self.machine.watch(self.paths.seat)
        drained_s, aborted = self._drain()
        outcome = self._exchange(decision, before)
        return replace(outcome, drained_s=drained_s, aborted=aborted)

    def _exchange(self, decision: Decision, before: tuple[str | None, str | None]) -> Outcome:
        # A generation that ran well before is only started again: whatever is wrong now, an older one is no cure.
        again = before[0] == self.wanted.generation and self._is_good(self.wanted.generation)
        way_back = None if again else self._way_back(before)
        try:
            self._stop()
        except MemoryHeldError as error:
            return self._give_back(decision, str(error), before)
        except RolloutError as error:
            # The old links still stand, and so does whatever would not stop.
            return self._outcome(decision, changed=True, failure=str(error))
        try:
            self._renew_key()
            ready_s, evidence = self._start(self.wanted.generation)
        except Undecided as error:
            return self._outcome(decision, changed=True, failure=str(error))
        # OSError: the disk is full where the links or the unit have to be written. What was there needs no writing.
        except (RolloutError, OSError) as error:
            return self._give_back(decision, str(error), before)
        return self._good(decision, ready_s, evidence, way_back)

    def _drain(self) -> tuple[float, int]:
        """Wait until the seat works on nothing; return how long that took, and how many requests are cut off.

        Nothing twice in a row: a request may be on its way from the gateway, whose alias is closed by now.
        """
        limit = float(self.wanted.manifest["probe"].get("drain_timeout_s", DRAIN_TIMEOUT_S))
        current = generations.link_target(self.paths.current)
        serving = generations.read_manifest(self.paths, current) if current else None
        base_url = str((serving or self.wanted.manifest)["base_url"])
        begin, idle = self.machine.monotonic(), 0
        while (running := self.machine.running_requests(base_url)) is not None:
            idle = 0 if running else idle + 1
            waited = self.machine.monotonic() - begin
            if idle == 2 or waited >= limit:
                return waited, running
            self.machine.sleep(POLL_S)
        return self.machine.monotonic() - begin, 0

    def _good(self, decision: Decision, ready_s: float, evidence: Mapping[str, Any], way_back: str | None) -> Outcome:
        again = self._is_good(self.wanted.generation)
        try:
            generations.mark_good(self.paths, self.wanted.generation, evidence)
        except OSError as error:
            # No reason to take away what serves; the next run proves it once more, without a restart.
            failure = f"generation {self.wanted.generation} serves and was proven, but cannot be marked so: {error}"
            return self._outcome(decision, changed=True, ready_s=ready_s, evidence=evidence, failure=failure)
        pruned = self._prune()
        return self._outcome(
            decision, changed=True, ready_s=ready_s, evidence=evidence, pruned=pruned, way_back=way_back, again=again
        )

    def _links(self) -> tuple[str | None, str | None]:
        return generations.link_target(self.paths.current), generations.link_target(self.paths.previous)

    def _way_back(self, before: tuple[str | None, str | None]) -> str | None:
        """Return the good generation of ``before`` (current, previous) that a failure would lead back to."""
        return next((name for name in before if name and name != self.wanted.generation and self._is_good(name)), None)

    def _give_back(self, decision: Decision, cause: str, before: tuple[str | None, str | None]) -> Outcome:
        """Bring the last good generation back after a failure."""
        target = self._way_back(before)
        try:
            self._stop()
            if target is None:
                self.machine.disable(self.wanted.unit)
                if self.predecessor is not None:
                    back_s = self.predecessor.come_back()
                    failure = f"{cause}. {self.predecessor.name} is back and answers after {back_s:.1f} s"
                    return self._outcome(decision, changed=True, failure=failure)
                failure = f"{cause}. There is no earlier good generation: the seat is stopped and stays so"
                return self._outcome(decision, changed=True, failure=failure)
            # Also what comes back has the new key: the aliases are opened with it, in this run or in the next one. A
            # disk that is full keeps the old one, and the seat serves until then.
            with suppress(OSError):
                self._renew_key()
            ready_s = self._start_or_serve(target)
        except (RolloutError, OSError) as error:
            what = self.predecessor.name if target is None and self.predecessor else f"Generation {target or '-'}"
            failure = f"{cause}. {what} did not come back either: {error}"
            return self._outcome(decision, changed=True, failure=failure)
        # What served before an interrupted rollout may be both; `previous` has to be another way back, or none.
        previous = before[1] if before[1] != target else generations.last_good(self.paths, target)
        generations.point(self.paths.previous, previous)
        failure = f"{cause}. Generation {target} is back and READY after {ready_s:.1f} s"
        return self._outcome(decision, changed=True, ready_s=ready_s, failure=failure, returned_to=target)

    def _renew_key(self) -> None:
        """Replace the key that the unit starts with, where no process with the old one is left."""
        if self.key is not None:
            api_key.write(self.paths, self.key)

    def _start_or_serve(self, name: str) -> float:
        begin = self.machine.monotonic()
        try:
            return self._start(name)[0]
        except Undecided:
            return self.machine.monotonic() - begin

    def _is_good(self, name: str) -> bool:
        return generations.is_good(self.paths, name)

    def _stop(self) -> None:
        """Stop the seat and prove it: nothing in its control group, nobody on its port, its GPU memory given back.

        The stub does not count: it starts when systemd gives the seat up, also during a stop that ends in SIGKILL.
        """
        limit = float(self.wanted.manifest["probe"]["stop_timeout_s"]) + KILL_MARGIN_S
        cards = self._cards()
        state = self._state()
        memory = self.machine.gpu_memory(cards, state.pids)
        pinned, available = self._pinned() if state.pids else 0, self.machine.available_memory()
        if self.predecessor is not None:
            self.predecessor.stop()
        self.machine.stop(self.wanted.unit, limit)
        if self._state().pids:
            self.machine.kill(self.wanted.unit)
        deadline = self.machine.monotonic() + KILL_MARGIN_S
        while (state := self._state()).pids or self._holders(state.listeners) or self._predecessor_listens(state):
            if self.machine.monotonic() >= deadline:
                raise RolloutError(_still_there(state, self.wanted.port))
            self.machine.sleep(POLL_S / 4)
        self.machine.stop(stub_unit(self.wanted.port), KILL_MARGIN_S)
        if memory is not None and memory[1]:
            self._wait_for_memory(cards, memory[0] - memory[1] + GPU_TOLERANCE)
        if pinned and available is not None:
            self._wait_for_table(available + pinned - GPU_TOLERANCE)

    def _pinned(self) -> int:
        """Return the bytes of host memory that the serving generation pins: an n-gram table, beside the card."""
        return int((self._serving() or {}).get("host_memory") or 0)

    def _wait_for_table(self, wanted: int) -> None:
        """Wait until the host has that much memory available again, for a while: a start that lacks it says so itself.

        Less may come back than was declared (the seat may not have loaded its table), so this is no reason to fail.
        """
        deadline = self.machine.monotonic() + TABLE_LIMIT_S
        while (available := self.machine.available_memory()) is not None and available < wanted:
            if self.machine.monotonic() >= deadline:
                return
            self.machine.sleep(POLL_S)

    def _serving(self) -> dict[str, Any] | None:
        current = generations.link_target(self.paths.current)
        return generations.read_manifest(self.paths, current) if current else None

    def _cards(self) -> list[str]:
        """Return the UUIDs of the cards that the seat has, as its serving generation says."""
        manifest = self._serving() or self.wanted.manifest
        visible = str(manifest.get("environment", {}).get("CUDA_VISIBLE_DEVICES", ""))
        return [card for card in visible.split(",") if card.startswith("GPU-")]

    def _wait_for_memory(self, cards: Sequence[str], bound: int) -> None:
        """Wait until no more is in use on the cards than others held beside the seat.

        Raises:
            MemoryHeldError: it does not come back; a start would be refused, or would measure too little.
        """
        deadline = self.machine.monotonic() + GPU_LIMIT_S
        while (memory := self.machine.gpu_memory(cards, ())) is not None and memory[0] > bound:
            if self.machine.monotonic() >= deadline:
                raise MemoryHeldError(
                    f"the seat is gone, and {format_gib(memory[0])} are still in use on {', '.join(cards)}, where"
                    f" others held {format_gib(bound - GPU_TOLERANCE)}: nvidia-smi names who holds it"
                )
            self.machine.sleep(POLL_S)

    def _start(self, name: str) -> tuple[float, Mapping[str, Any]]:
        self._install(name)
        since = time.time()
        try:
            self.machine.start(self.wanted.unit)
        except RolloutError as error:
            raise RolloutError(self._cause(since) or str(error)) from error
        return self._prove(name, since)

    def _install(self, name: str) -> None:
        generations.switch(self.paths, name)
        text = generations.read_unit(self.paths, name)
        if text is None:
            raise RolloutError(f"{self.paths.generation(name)} has no unit file: somebody removed it")
        generations.write_unit(self.paths, text, self.machine.unit_state(self.wanted.unit).drop_ins)
        self.machine.install(self.wanted.unit)

    def _prove(self, name: str, since: float, before: UnitState | None = None) -> tuple[float, Mapping[str, Any]]:
        """Probe a generation, and notice when the process ends instead of waiting for the probe's own limit.

        ``before`` is the unit of a seat that was not started for this: what systemd had restarted it for by then says
        nothing about what serves now. Any restart of a seat that was just started is an end.
        """
        manifest = generations.read_manifest(self.paths, name) or self.wanted.manifest
        begin = self.machine.monotonic()
        limit = float(manifest["probe"]["ready_timeout_s"]) + PROBE_MARGIN_S
        with self.machine.probe(self.paths.generation(name) / MANIFEST_FILE) as run:
            while (result := run.poll()) is None:
                unit = self.machine.unit_state(self.wanted.unit)
                if unit.ended(before.restarts if before else 0):
                    raise RolloutError(self._cause(since) or f"the process ended: the unit is {unit}")
                # Without a restart of systemd's it was one by hand, which says nothing against the seat. Not while the
                # unit goes down: systemd counts its restart only when that is over.
                if before and before.running and unit.running and unit.main_pid != before.main_pid:
                    raise Undecided("somebody restarted the seat while it was proven. It was left so; run again")
                if self.machine.monotonic() - begin > limit:
                    raise RolloutError(self._cause(since) or f"the probe did not end within {limit:.0f} s")
                self.machine.sleep(POLL_S)
        if result.busy:
            raise Undecided(f"{result.message}. The seat serves and was left so; run again when it has less to do")
        if not result.passed:
            raise RolloutError(result.message or self._cause(since) or "the probe failed without saying why")
        ready_s = result.evidence.get("ready_s")
        elapsed = self.machine.monotonic() - begin
        return float(ready_s) if isinstance(ready_s, (int, float)) else elapsed, result.evidence

    def _cause(self, since: float) -> str | None:
        return self._end_by_link(since) or first_cause(self.machine.journal(self.wanted.unit, since))

    def _end_by_link(self, since: float) -> str | None:
        """Return why the link of a seat over two hosts ended it: what the seat itself says then only follows."""
        if not self.wanted.manifest.get("nodes"):
            return None
        lines = self.machine.journal(link_unit(self.paths.seat), since)
        return next((line.removeprefix(LINK_ENDED) for line in lines if line.startswith(LINK_ENDED)), None)

    def _unstaged(self) -> bool:
        return generations.plan_stage(self.paths, self.wanted.generation, {}).create

    def _obstacles(self, virgin: bool) -> list[str]:
        """Return why a start would fail, as far as that can be known while the old process still serves.

        ``virgin`` is for a check run: what earlier tasks would bring is then no obstacle.
        """
        found = []
        if self._unstaged() and not virgin:
            found.append(f"{self.paths.generation(self.wanted.generation)} is not staged: run seat_stage first")
        missing = self.machine.missing(self.wanted.manifest)
        found += [] if virgin else missing
        for owner in self._holders(self._state().strangers):
            found.append(f"port {self.wanted.port} is held by {owner}: stop it or give the seat another port")
        if not virgin and self.predecessor is None:
            found += self.machine.short_of_memory(self.wanted.manifest, self._serving(), self._state().pids)
        if not missing and not found and self.rendered is not None and not self._is_good(self.wanted.generation):
            refused = self.machine.refused_flags(self.rendered)
            found += [f"release {self.wanted.manifest['release_id']} refuses these flags: {refused}"] if refused else []
        return found

    def _holders(self, owners: Iterable[Owner]) -> list[Owner]:
        """Leave out the stub that answers on the seat's port since systemd gave the seat up, and a predecessor."""
        stub = stub_unit(self.wanted.port)
        old = self.predecessor
        return [owner for owner in owners if Path(owner.cgroup).name != stub and not (old and old.owns(owner))]

    def _predecessor_listens(self, state: SeatState) -> bool:
        return self.predecessor is not None and any(map(self.predecessor.owns, state.listeners))

    def _state(self) -> SeatState:
        return self.machine.seat_state(self.machine.unit_state(self.wanted.unit), self.wanted.port)

    def _on_disk(self) -> OnDisk:
        process = self._state().process
        running = process.environ.get(GENERATION_VARIABLE) if process else None
        key = api_key.read(self.paths)
        return OnDisk(
            current=generations.link_target(self.paths.current),
            good=generations.is_good(self.paths, self.wanted.generation),
            unit_text=_read(self.paths.unit),
            running_manifest=generations.read_manifest(self.paths, running) if running else None,
            api_key_digest=None if key is None else digest(key),
        )

    def _expected_s(self) -> float | None:
        """Return how long the wanted generation, or else the current one, took to be READY the last time."""
        for name in (self.wanted.generation, generations.link_target(self.paths.current)):
            ready_s = generations.read_evidence(self.paths, name).get("ready_s") if name else None
            if isinstance(ready_s, (int, float)):
                return float(ready_s)
        return None

    def _prune(self) -> tuple[str, ...]:
        doomed = generations.prunable(self.paths, self.keep, {self.wanted.generation})
        generations.prune(self.paths, doomed)
        return tuple(doomed)

    def _outcome(self, decision: Decision, *, changed: bool, **more: Any) -> Outcome:  # noqa: ANN401
        process = self._state().process
        return Outcome(
            seat=self.paths.seat,
            action=decision.action,
            reasons=decision.reasons,
            repairs=decision.repairs,
            wanted=self.wanted.generation,
            generation=process.environ.get(GENERATION_VARIABLE) if process else None,
            changed=changed,
            **more,
        )


def roll_out(
    machine: Machine,
    rendered: Sequence[Generation],
    api_keys: Mapping[str, str],
    root: Path = Path("/"),
    predecessor: Predecessor | None = None,
) -> list[Outcome]:
    """Roll out the seats of a host one after the other; after the first failure the others are left as they are.

    What can be known before the first seat stops is asked of all of them first: then none is touched.
    """
    outcomes: list[Outcome] = []
    with umask(0o022):
        seats = [_rollout(machine, generation, api_keys, root, predecessor) for generation in rendered]
        foreseen = [seat.foresee(staged=True) for seat in seats] if len(seats) > 1 else []
        if any(outcome.failure for outcome in foreseen):
            return [replace(outcome, changed=False) for outcome in foreseen if outcome.failure]
        for seat in seats:
            outcomes.append(seat.run())
            if outcomes[-1].failure:
                break
    return outcomes


def foresee(
    machine: Machine,
    rendered: Sequence[Generation],
    api_keys: Mapping[str, str],
    root: Path = Path("/"),
    predecessor: Predecessor | None = None,
) -> list[Outcome]:
    """Return what :func:`roll_out` would do, changing nothing; also on a host where nothing is installed yet."""
    return [_rollout(machine, generation, api_keys, root, predecessor).foresee() for generation in rendered]


def summary_line(outcome: Outcome) -> str:
    """Return one line for people: what happens to the seat, why, and how long callers will notice."""
    what = {Action.NOTHING: "no restart", Action.VERIFY: "no restart, probe only"}.get(outcome.action, outcome.action)
    why = "; ".join((*outcome.reasons, *outcome.repairs))
    duration = f", about {outcome.expected_s:.0f} s" if outcome.expected_s else ""
    refused = f"; {outcome.failure}" if outcome.failure else ""
    return f"seat {outcome.seat}: {what}{duration}: {why}{refused}"


def report_line(outcome: Outcome) -> str:
    """Return one line for people: what was done to the seat, why, and what serves now."""
    done = {
        Action.NOTHING: "no restart",
        Action.VERIFY: "no restart, proven",
        Action.START: "started",
        Action.RESTART: "restarted",
    }[outcome.action]
    what = ": ".join(part for part in (done, "; ".join((*outcome.reasons, *outcome.repairs))) if part)
    before = ", which served before" if outcome.again else ""
    ready = f". READY after {outcome.ready_s or 0:.0f} s with generation {outcome.generation}{before}"
    cut = f". Requests that were cut off: {outcome.aborted}"
    return f"seat {outcome.seat}: {what}" + ready * (outcome.ready_s is not None) + cut * bool(outcome.aborted)


def _rollout(
    machine: Machine,
    generation: Generation,
    api_keys: Mapping[str, str],
    root: Path,
    predecessor: Predecessor | None,
) -> Rollout:
    """Return the rollout of one rendered generation."""
    unit_text = generation.files[str(generation.manifest["unit"])]
    key = api_keys[generation.seat]
    wanted = Wanted(generation.name, generation.manifest, unit_text, digest(key))
    return Rollout(machine, SeatPaths(generation.seat, root), wanted, generation, predecessor, key=key)


def _untouched(obstacles: Sequence[str]) -> str:
    return "nothing was touched: " + "; ".join(obstacles)


def _still_there(state: SeatState, port: int) -> str:
    parts = []
    if state.pids:
        parts.append(f"processes {', '.join(map(str, state.pids))} of the seat do not end, SIGKILL included")
    if state.listeners:
        parts.append(f"port {port} is still held by {', '.join(map(str, state.listeners))}")
    return "the seat does not stop: " + "; ".join(parts)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
