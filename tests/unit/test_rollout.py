"""Rollouts of one seat on a scripted host: what is done in which order, what is left, and what comes back."""

from __future__ import annotations

import dataclasses
import errno
from pathlib import Path
from typing import Any

import pytest
from fake_machine import BAD, BUSY, CRASHES, DIES, NO_EXEC, SILENT, TAKEN, FakeMachine, make_process
from seat_examples import CPU, RELEASE, RTX, TINY, seat

from seatfleet.core.host.processes import Process
from seatfleet.core.host.sockets import Owner
from seatfleet.core.paths import SeatPaths
from seatfleet.core.seat import api_key, generations
from seatfleet.core.seat.decision import Action
from seatfleet.core.seat.render import Generation, render
from seatfleet.core.seat.rollout import Outcome, foresee, report_line, roll_out, summary_line
from seatfleet.core.seat.staging import stage_host, unmanaged
from seatfleet.core.units import GIB

SEAT = "lab-oracle"
KEYS = {SEAT: "sk-seat-1"}


def generation(**changes: object) -> Generation:
    return render(seat(SEAT, **changes), RELEASE, TINY, CPU)


OLD = generation()
NEW = generation(kv_cache_memory="128MiB")
THIRD = generation(kv_cache_memory="256MiB")
FOURTH = generation(kv_cache_memory="512MiB")


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    return FakeMachine(SeatPaths(SEAT, tmp_path))


def deploy(machine: FakeMachine, wanted: Generation, keys: dict[str, str] = KEYS) -> Outcome:
    """Stage and roll out, as the role does, and return what happened; earlier calls are forgotten."""
    machine.calls.clear()
    stage_host([wanted], keys, check=False, root=machine.paths.root)
    (outcome,) = roll_out(machine, [wanted], keys, machine.paths.root)
    assert not machine.locked
    return outcome


def links(machine: FakeMachine) -> tuple[str | None, str | None]:
    return generations.link_target(machine.paths.current), generations.link_target(machine.paths.previous)


def test_first_start(machine: FakeMachine) -> None:
    outcome = deploy(machine, OLD)
    assert (outcome.action, outcome.changed, outcome.failure) == (Action.START, True, None)
    assert outcome.reasons == ("the unit is not installed",)
    assert (outcome.generation, outcome.ready_s) == (OLD.name, 28.5)
    assert machine.calls == ["stop", "install", f"start {OLD.name}", f"probe {OLD.name}"]
    assert links(machine) == (OLD.name, None)
    assert generations.is_good(machine.paths, OLD.name)
    assert machine.enabled


def test_second_run_does_nothing(machine: FakeMachine) -> None:
    deploy(machine, OLD)
    outcome = deploy(machine, OLD)
    assert (outcome.action, outcome.changed, machine.calls) == (Action.NOTHING, False, [])
    assert outcome.generation == OLD.name


def test_a_seat_that_only_loads_is_waited_for(machine: FakeMachine) -> None:
    """After a boot of its host, say: no alias of it can be opened or proven before. Nothing of it changes."""
    deploy(machine, OLD)
    machine.loads, machine.looks = True, 3
    outcome = deploy(machine, OLD)
    assert (outcome.action, outcome.changed, outcome.failure) == (Action.NOTHING, False, None)
    assert (machine.calls, machine.loads) == ([f"probe {OLD.name}"], False)


@pytest.mark.parametrize(
    ("behaviour", "failure"),
    [(BUSY, None), (TAKEN, None), (BAD, "acceptance: expected 3.0, seen 1.0"), (DIES, "ValueError: out of memory")],
)
def test_a_seat_that_does_not_come_up_by_itself_is_told_and_left(
    machine: FakeMachine, behaviour: str, failure: str | None
) -> None:
    """It was proven before, so no older generation is the cure; the next run finds it dead and starts it."""
    deploy(machine, OLD)
    machine.behaviour[OLD.name], machine.loads, machine.looks = behaviour, True, 3
    outcome = deploy(machine, OLD)
    assert (outcome.action, outcome.failure, outcome.generation is None) == (
        Action.NOTHING,
        failure,
        behaviour == DIES,
    )
    assert machine.calls == [f"probe {OLD.name}"] and generations.is_good(machine.paths, OLD.name)


def test_change_and_back(machine: FakeMachine) -> None:
    deploy(machine, OLD)
    outcome = deploy(machine, NEW)
    assert outcome.action is Action.RESTART
    assert outcome.reasons == ("kv-cache-memory-bytes: 67108864 -> 134217728",)
    assert machine.calls == ["stop", "install", f"start {NEW.name}", f"probe {NEW.name}"]
    assert links(machine) == (NEW.name, OLD.name)
    assert outcome.way_back == OLD.name
    back = deploy(machine, OLD)
    assert (back.action, back.generation, back.failure) == (Action.RESTART, OLD.name, None)
    assert links(machine) == (OLD.name, NEW.name)
    # only started again: should its alias fail now, an older generation is no cure
    again = deploy(machine, OLD, {SEAT: "sk-seat-2"})
    assert (again.action, again.failure, again.way_back) == (Action.RESTART, None, None)


@pytest.mark.parametrize(
    ("behaviour", "cause"),
    [
        (NO_EXEC, "systemctl start vllm-seat-lab-oracle.service: failed"),
        (DIES, "ValueError: out of memory"),
        (BAD, "acceptance: expected 3.0, seen 1.0"),
        (SILENT, "the probe did not end within 1200 s"),
    ],
)
def test_a_bad_generation_gives_the_old_one_back(machine: FakeMachine, behaviour: str, cause: str) -> None:
    deploy(machine, THIRD)
    deploy(machine, OLD)
    machine.behaviour[NEW.name] = behaviour
    outcome = deploy(machine, NEW)
    assert outcome.failure is not None
    assert outcome.failure.startswith(f"{cause}. Generation {OLD.name} is back and READY after")
    assert (outcome.returned_to, outcome.generation, outcome.changed) == (OLD.name, OLD.name, True)
    # a process that ends is noticed at once, and not when the probe's own time is over
    assert machine.clock < 10 or behaviour == SILENT
    # the rollback target of before is still there
    assert links(machine) == (OLD.name, THIRD.name)
    assert machine.calls[-4:] == ["stop", "install", f"start {OLD.name}", f"probe {OLD.name}"]
    assert not generations.is_good(machine.paths, NEW.name)
    assert machine.enabled


@pytest.mark.parametrize("behaviour", [NO_EXEC, DIES, BAD])
def test_a_first_start_that_fails_is_stopped(machine: FakeMachine, behaviour: str) -> None:
    machine.behaviour[OLD.name] = behaviour
    outcome = deploy(machine, OLD)
    assert outcome.failure is not None
    assert "no earlier good generation: the seat is stopped" in outcome.failure
    assert (outcome.generation, machine.process, machine.enabled) == (None, None, False)
    machine.behaviour.clear()
    assert deploy(machine, OLD).failure is None


def test_when_neither_comes_up_both_causes_are_told(machine: FakeMachine) -> None:
    deploy(machine, OLD)
    machine.behaviour = {NEW.name: BAD, OLD.name: DIES}
    outcome = deploy(machine, NEW)
    assert outcome.failure == (
        f"acceptance: expected 3.0, seen 1.0. Generation {OLD.name} did not come back either: ValueError: out of memory"
    )
    assert (outcome.returned_to, outcome.generation) == (None, None)
    # not (OLD, OLD): the one that serves is no way back
    assert links(machine) == (OLD.name, None)


def test_a_busy_seat_is_left_serving_and_proven_later(machine: FakeMachine) -> None:
    deploy(machine, OLD)
    machine.behaviour[NEW.name] = BUSY
    outcome = deploy(machine, NEW)
    assert outcome.failure is not None
    assert "serves and was left so" in outcome.failure
    assert outcome.generation == NEW.name
    again = deploy(machine, NEW)
    assert (again.action, again.changed, machine.calls) == (Action.VERIFY, False, [f"probe {NEW.name}"])
    machine.behaviour.clear()
    proven = deploy(machine, NEW)
    assert (proven.action, proven.failure, proven.changed) == (Action.VERIFY, None, True)
    assert generations.is_good(machine.paths, NEW.name)


def crashed_later(machine: FakeMachine) -> None:
    """Have the first deployment left unproven, and systemd start the seat again after a crash since."""
    machine.behaviour[OLD.name] = BUSY
    assert "was left so" in str(deploy(machine, OLD).failure)
    assert machine.process is not None
    machine.process, machine.restarts = dataclasses.replace(machine.process, pid=212), 1
    machine.behaviour.clear()
    machine.looks = 3


def test_a_crash_of_before_says_nothing_against_a_seat_that_serves_and_is_proven_later(machine: FakeMachine) -> None:
    """Red when any restart counts: the seat, which serves, was stopped and disabled at the first look at its unit."""
    crashed_later(machine)
    outcome = deploy(machine, OLD)
    assert (outcome.action, outcome.failure, machine.calls) == (Action.VERIFY, None, [f"probe {OLD.name}"])
    assert (outcome.generation, machine.enabled) == (OLD.name, True)
    assert generations.is_good(machine.paths, OLD.name)


@pytest.mark.parametrize(
    ("behaviour", "cause", "serves"),
    [
        (CRASHES, "the process ended: the unit is active (running, 2 restarts). There is no earlier good", False),
        (DIES, "ValueError: out of memory. There is no earlier good", False),
        (TAKEN, "somebody restarted the seat while it was proven. It was left so; run again", True),
    ],
)
def test_a_crash_during_a_late_proof_is_an_end_and_a_restart_by_hand_is_none(
    machine: FakeMachine, behaviour: str, cause: str, serves: bool
) -> None:
    crashed_later(machine)
    machine.behaviour[OLD.name] = behaviour
    outcome = deploy(machine, OLD)
    assert str(outcome.failure).startswith(cause)
    assert (machine.process is not None, machine.enabled) == (serves, serves)


def test_a_restart_during_the_load_ends_a_rollout(machine: FakeMachine) -> None:
    """Also of a seat that systemd had restarted before the rollout stopped it."""
    deploy(machine, OLD)
    machine.looks, machine.restarts = 3, 5
    machine.behaviour[NEW.name] = CRASHES
    outcome = deploy(machine, NEW)
    assert str(outcome.failure).startswith("the process ended: the unit is active (running, 1 restart). Generation")
    assert (outcome.returned_to, machine.restarts) == (OLD.name, 0)


def test_nothing_comes_back_that_was_never_proven(machine: FakeMachine) -> None:
    machine.behaviour = {OLD.name: BUSY, NEW.name: BAD}
    deploy(machine, OLD)
    outcome = deploy(machine, NEW)
    assert (outcome.returned_to, outcome.generation, machine.enabled) == (None, None, False)


def test_a_returning_generation_may_be_busy(machine: FakeMachine) -> None:
    deploy(machine, OLD)
    machine.behaviour = {NEW.name: BAD, OLD.name: BUSY}
    assert deploy(machine, NEW).returned_to == OLD.name


def test_a_process_that_fails_its_late_probe_gives_the_good_one_back(machine: FakeMachine) -> None:
    deploy(machine, OLD)
    machine.behaviour[NEW.name] = BUSY
    deploy(machine, NEW)
    machine.behaviour[NEW.name] = BAD
    outcome = deploy(machine, NEW)
    assert (outcome.action, outcome.returned_to, outcome.generation) == (Action.VERIFY, OLD.name, OLD.name)


@pytest.mark.parametrize(
    ("lacking", "strangers", "obstacle"),
    [
        (["release 0.32.0-x is not installed"], [], "release 0.32.0-x is not installed"),
        ([], [Owner(7, "docker-proxy", "/docker")], "port 8022 is held by process 7 (docker-proxy)"),
    ],
)
def test_what_can_be_known_before_the_stop_touches_nothing(
    machine: FakeMachine, lacking: list[str], strangers: list[Owner], obstacle: str
) -> None:
    deploy(machine, OLD)
    machine.lacking, machine.strangers = lacking, strangers
    outcome = deploy(machine, NEW)
    assert outcome.failure is not None
    assert outcome.failure.startswith(f"nothing was touched: {obstacle}")
    assert (outcome.generation, outcome.changed, machine.calls) == (OLD.name, False, [])
    assert links(machine) == (OLD.name, None)


def test_a_seat_without_room_touches_nothing_and_names_the_holder(machine: FakeMachine) -> None:
    deploy(machine, OLD)
    machine.shortage = ["card GPU-1 has 10.00 GiB free, the seat wants 86.40 GiB: python3 (process 9) holds 70.00 GiB"]
    outcome = deploy(machine, NEW)
    assert outcome.failure is not None
    assert outcome.failure.startswith("nothing was touched: card GPU-1 has 10.00 GiB free")
    assert (outcome.generation, outcome.changed, machine.calls) == (OLD.name, False, [])


def test_flags_that_the_release_refuses_touch_nothing(machine: FakeMachine) -> None:
    deploy(machine, OLD)
    machine.refusal = "vllm serve: error: unrecognized arguments: --swap-space 4"
    outcome = deploy(machine, NEW)
    assert outcome.failure == f"nothing was touched: release {RELEASE.id} refuses these flags: {machine.refusal}"
    assert (outcome.generation, outcome.changed, machine.calls) == (OLD.name, False, [])
    (foreseen,) = foresee(machine, [NEW], KEYS, machine.paths.root)
    assert (foreseen.action, foreseen.failure) == (Action.RESTART, outcome.failure)


def test_flags_are_asked_before_anything_is_staged_but_not_of_a_release_that_is_yet_to_come(
    machine: FakeMachine,
) -> None:
    deploy(machine, OLD)
    machine.asked.clear()
    machine.lacking = ["release 0.32.0-x is not installed"]
    (outcome,) = foresee(machine, [NEW], KEYS, machine.paths.root)
    assert (outcome.failure, machine.asked) == (None, [])
    machine.lacking = []
    foresee(machine, [NEW], KEYS, machine.paths.root)
    assert machine.asked == [NEW.name]


def test_the_way_back_does_not_wait_for_a_check_of_flags(machine: FakeMachine) -> None:
    deploy(machine, OLD)
    deploy(machine, NEW)
    machine.asked.clear()
    assert deploy(machine, OLD).failure is None
    assert machine.asked == []


@pytest.mark.parametrize(
    ("requests", "drained_s", "aborted"),
    [([], 0.0, 0), ([0], 1.0, 0), ([2, 1, 0, 0], 3.0, 0), ([2, 0, 1, 0, 0], 4.0, 0), ([3], 300.0, 3)],
)
def test_running_requests_are_waited_for(
    machine: FakeMachine, requests: list[int], drained_s: float, aborted: int
) -> None:
    deploy(machine, OLD)
    machine.requests = requests
    outcome = deploy(machine, NEW)
    assert (outcome.failure, outcome.drained_s, outcome.aborted) == (None, drained_s, aborted)


def test_a_seat_that_was_given_up_gets_its_port_back_from_the_stub(machine: FakeMachine) -> None:
    deploy(machine, OLD)
    slice_ = "/system.slice/system-seatfleet\\x2dstub.slice"
    machine.process, machine.sub, machine.result = None, "failed", "start-limit-hit"
    machine.strangers = [Owner(7, "seatctl", f"{slice_}/seatfleet-stub@8022.service")]
    outcome = deploy(machine, OLD)
    assert (outcome.failure, outcome.action, machine.strangers) == (None, Action.START, [])
    machine.process, machine.sub = None, "failed"
    machine.strangers = [Owner(7, "seatctl", f"{slice_}/seatfleet-stub@8023.service")]
    assert "port 8022 is held by process 7" in str(deploy(machine, OLD).failure)


def test_an_unstaged_generation_is_an_obstacle(machine: FakeMachine) -> None:
    (outcome,) = roll_out(machine, [OLD], KEYS, machine.paths.root)
    assert outcome.failure is not None
    assert "is not staged: run seat_stage first" in outcome.failure


def test_a_process_that_ignores_sigterm_is_killed(machine: FakeMachine) -> None:
    deploy(machine, OLD)
    machine.stubborn = True
    assert deploy(machine, NEW).failure is None
    assert machine.calls[:2] == ["stop", "kill"]


def test_a_process_that_cannot_be_killed_stops_the_rollout(machine: FakeMachine) -> None:
    deploy(machine, OLD)
    machine.immortal = True
    outcome = deploy(machine, NEW)
    assert outcome.failure is not None
    assert outcome.failure.startswith("the seat does not stop: processes 211 of the seat do not end")
    assert "start" not in " ".join(machine.calls)
    assert links(machine) == (OLD.name, None)


@pytest.mark.parametrize(
    ("looks", "waited_s", "failure"),
    [
        ([(90, 70), (20, 0)], 0, None),
        ([(90, 70), (90, 0), (60, 0), (20, 0)], 2, None),
        ([(90, 0), (90, 0)], 0, None),  # held by nobody of the seat: nothing to wait for
        ([(90, 70), (60, 0)], 300, "the seat is gone, and 60.00 GiB are still in use on GPU-0"),
    ],
)
def test_a_start_waits_for_the_memory_of_the_stopped_seat(
    machine: FakeMachine, looks: list[tuple[int, int]], waited_s: float, failure: str | None
) -> None:
    on_card = [render(seat(SEAT, gpus=[0], kv_cache_memory=size), RELEASE, TINY, RTX) for size in ("64MiB", "128MiB")]
    deploy(machine, on_card[0])
    machine.clock, machine.memory = 0.0, [(used * GIB, held * GIB) for used, held in looks]
    outcome = deploy(machine, on_card[1])
    assert machine.clock == waited_s
    assert str(outcome.failure).startswith(str(failure))
    # the process is gone, so what served is tried again
    assert machine.calls[-1] == f"probe {on_card[failure is None].name}"


@pytest.mark.parametrize(
    ("available", "waited_s"),
    [
        ([100, 196], 0),
        ([100, 120, 150, 196], 2),
        ([100, 120], 120),  # less comes back than was declared: the start says itself what it lacks
        ([], 0),
    ],
)
def test_a_start_waits_for_the_table_of_the_stopped_seat(
    machine: FakeMachine, available: list[int], waited_s: float
) -> None:
    table = {"engram": {"cpu_offload": True}, "host_memory": "96GiB"}
    pinned = [render(seat(SEAT, kv_cache_memory=size, **table), RELEASE, TINY, CPU) for size in ("64MiB", "128MiB")]
    deploy(machine, pinned[0])
    machine.clock, machine.available = 0.0, [size * GIB for size in available]
    outcome = deploy(machine, pinned[1])
    assert (machine.clock, outcome.failure) == (waited_s, None)


def altered(process: Process, **environment: str) -> Process:
    return dataclasses.replace(process, environ={**process.environ, **environment})


RUNNING = make_process(OLD.manifest, "sk-seat-1")


def runs(process: Process | None, **unit: str) -> Any:
    """Arrange what the host shows beside the files that the rollout left."""

    def arrange(machine: FakeMachine) -> None:
        machine.process = process
        for name, value in unit.items():
            setattr(machine, name, value)

    return arrange


@pytest.mark.parametrize(
    ("arrange", "reason"),
    [
        (runs(None, sub="auto-restart"), "the unit is activating (auto-restart)"),
        (runs(None, sub="failed", result="oom-kill"), "the unit is failed (oom-kill"),
        (runs(None, sub="dead"), "the unit is inactive"),
        (runs(RUNNING, sub="stop-sigterm"), "the unit is inactive (stop-sigterm)"),
        (runs(altered(RUNNING, VLLM_CPU_OMP_THREADS_BIND="7")), "another environment: VLLM_CPU_OMP_THREADS_BIND"),
        (runs(altered(RUNNING, VLLM_USE_V2="1")), "another environment: VLLM_USE_V2"),
        (runs(altered(RUNNING, VLLM_API_KEY="x")), "the API key of the seat has changed"),
        (runs(altered(RUNNING, SEATFLEET_GENERATION="gone")), "the process runs generation gone, wanted is"),
        (
            runs(dataclasses.replace(RUNNING, argv=("/opt/other/bin/python3", *RUNNING.argv[1:]))),
            "the process runs from /opt/other/bin/python3",
        ),
        (runs(dataclasses.replace(RUNNING, argv=(*RUNNING.argv, "--port=1"))), "started with other arguments"),
    ],
)
def test_what_runs_decides_and_not_the_files(machine: FakeMachine, arrange: Any, reason: str) -> None:
    deploy(machine, OLD)
    arrange(machine)
    outcome = deploy(machine, OLD)
    assert reason in outcome.reasons[0]
    assert (outcome.failure, outcome.generation) == (None, OLD.name)
    assert deploy(machine, OLD).changed is False


def edit_unit(machine: FakeMachine) -> None:
    machine.paths.unit.write_text(machine.paths.unit.read_text().replace("Restart=always", "Restart=no"))


def add_drop_in(machine: FakeMachine) -> None:
    name = f"/etc/systemd/system/{machine.paths.unit.name}.d/50-hand.conf"
    path = machine.paths.root / name.lstrip("/")
    path.parent.mkdir()
    path.write_text("[Service]\n")
    machine.drop_ins = (name,)


@pytest.mark.parametrize(
    ("arrange", "repair"),
    [
        (edit_unit, "unit file vllm-seat-lab-oracle.service"),
        (add_drop_in, "remove /etc/systemd/system/vllm-seat-lab-oracle.service.d/50-hand.conf"),
        (lambda m: generations.point(m.paths.current, None), f"link current: None -> {OLD.name}"),
        (lambda m: m.paths.api_key.write_text("VLLM_API_KEY=sk-by-hand\n"), "the file of the API key"),
        (lambda m: setattr(m, "enabled", False), "enable vllm-seat-lab-oracle.service"),
        (lambda m: setattr(m, "needs_reload", True), "systemd has not read the unit file yet"),
    ],
)
def test_files_beside_a_right_process_are_put_right_without_a_restart(
    machine: FakeMachine, arrange: Any, repair: str
) -> None:
    deploy(machine, OLD)
    arrange(machine)
    outcome = deploy(machine, OLD)
    assert (outcome.action, outcome.repairs, outcome.changed) == (Action.NOTHING, (repair,), True)
    assert machine.calls == ["install"]
    assert deploy(machine, OLD).changed is False


@pytest.mark.parametrize("killed_at", ["stop", "install", f"start {NEW.name}", f"probe {NEW.name}"])
def test_a_controller_killed_anywhere_is_put_right_by_the_next_run(
    machine: FakeMachine, killed_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy(machine, OLD)
    note = machine._note

    def killed(call: str) -> None:
        note(call)
        if call == killed_at:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(machine, "_note", killed)
        with pytest.raises(KeyboardInterrupt):
            deploy(machine, NEW)
    machine.locked = False
    outcome = deploy(machine, NEW)
    assert (outcome.failure, outcome.generation) == (None, NEW.name)
    assert links(machine) == (NEW.name, OLD.name)
    assert deploy(machine, NEW).changed is False


@pytest.mark.parametrize("killed_at", ["install", f"start {NEW.name}", f"probe {NEW.name}"])
def test_a_bad_generation_after_a_kill_still_gives_the_good_one_back(
    machine: FakeMachine, killed_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    test_a_controller_killed_anywhere_is_put_right_by_the_next_run(machine, killed_at, monkeypatch)
    machine.behaviour[THIRD.name] = BAD
    assert deploy(machine, THIRD).returned_to == NEW.name


def test_each_rollout_is_watched_before_it_stops_anything(machine: FakeMachine) -> None:
    """A rollout that is killed after the stop leaves nobody else who would start the seat again."""
    deploy(machine, OLD)
    machine.watched.clear()
    assert deploy(machine, NEW).failure is None
    assert machine.watched == [(SEAT, 0)]
    assert machine.calls[0] == "stop"
    deploy(machine, NEW)
    assert len(machine.watched) == 1


FULL = OSError(errno.ENOSPC, "No space left on device")
OTHER_UNIT = generation(kv_cache_memory="128MiB", probe={"canary": "golden", "ready_timeout_s": 900})


@pytest.mark.parametrize(("what", "wanted"), [("point", NEW), ("write_atomic", OTHER_UNIT)])
def test_a_disk_that_is_full_after_the_stop_brings_back_what_served(
    machine: FakeMachine, what: str, wanted: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red without the OSError in Rollout._exchange: the module ended with a traceback and the seat was stopped."""
    deploy(machine, OLD)
    stage_host([wanted], KEYS, check=False, root=machine.paths.root)
    real = getattr(generations, what)

    def full(path: Path, *rest: Any) -> None:
        # A link that is right already, or the way back to it, needs no room.
        if wanted.name in rest or path.suffix == ".service":
            raise FULL
        real(path, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(generations, what, full)
        (outcome,) = roll_out(machine, [wanted], KEYS, machine.paths.root)
    assert (outcome.generation, outcome.returned_to) == (OLD.name, OLD.name)
    assert outcome.failure is not None and "No space left on device" in outcome.failure
    assert deploy(machine, wanted).generation == wanted.name
    assert deploy(machine, wanted).changed is False


def test_a_proven_generation_that_cannot_be_marked_so_serves_and_is_proven_by_the_next_run(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy(machine, OLD)

    def full(*_: Any) -> None:
        raise FULL

    with monkeypatch.context() as patch:
        patch.setattr(generations, "mark_good", full)
        outcome = deploy(machine, NEW)
    assert (outcome.generation, outcome.returned_to) == (NEW.name, None)
    assert outcome.failure is not None and "cannot be marked so" in outcome.failure
    outcome = deploy(machine, NEW)
    assert (outcome.action, outcome.failure) == (Action.VERIFY, None)
    assert deploy(machine, NEW).changed is False


def test_a_repair_on_a_full_disk_says_so_and_touches_nothing_that_runs(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy(machine, OLD)
    machine.paths.unit.write_text("[Unit]\n")

    def full(*_: Any) -> None:
        raise FULL

    with monkeypatch.context() as patch:
        patch.setattr(generations, "write_atomic", full)
        outcome = deploy(machine, OLD)
    assert outcome.generation == OLD.name
    assert outcome.failure is not None and "No space left on device" in outcome.failure
    assert deploy(machine, OLD).changed is True


def test_what_comes_back_after_a_kill_is_not_its_own_way_back(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while NEW starts, OLD is `previous`; when THIRD fails then, OLD is what comes back."""
    deploy(machine, FOURTH)
    deploy(machine, OLD)
    note = machine._note

    def killed(call: str) -> None:
        note(call)
        if call.startswith("probe"):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(machine, "_note", killed)
        with pytest.raises(KeyboardInterrupt):
            deploy(machine, NEW)
    machine.locked = False
    machine.behaviour[THIRD.name] = BAD
    assert deploy(machine, THIRD).returned_to == OLD.name
    assert links(machine) == (OLD.name, FOURTH.name)


def test_foresee_says_what_and_how_long_and_changes_nothing(machine: FakeMachine) -> None:
    (virgin,) = foresee(machine, [OLD], KEYS, machine.paths.root)
    assert (virgin.action, virgin.changed, virgin.expected_s) == (Action.START, True, None)
    assert not machine.paths.home.exists()
    deploy(machine, OLD)
    machine.calls.clear()
    (restart,) = foresee(machine, [NEW], KEYS, machine.paths.root)
    assert summary_line(restart) == "seat lab-oracle: restart, about 28 s: kv-cache-memory-bytes: 67108864 -> 134217728"
    (key,) = foresee(machine, [OLD], {SEAT: "sk-seat-2"}, machine.paths.root)
    assert key.reasons == ("the API key of the seat has changed",)
    (nothing,) = foresee(machine, [OLD], KEYS, machine.paths.root)
    assert nothing.changed is False
    assert machine.calls == []


def test_what_was_done_is_one_sentence_for_each_seat(machine: FakeMachine) -> None:
    """Whoever edits a line back has to see that the earlier generation came back, and not one made anew."""
    first, change, back = deploy(machine, OLD), deploy(machine, NEW), deploy(machine, OLD)
    assert report_line(first).startswith("seat lab-oracle: started: ")
    bytes_ = "kv-cache-memory-bytes: 67108864 -> 134217728"
    ready = f"READY after {change.ready_s:.0f} s with generation"
    assert report_line(change) == f"seat lab-oracle: restarted: {bytes_}. {ready} {NEW.name}"
    assert report_line(back).endswith(f" with generation {OLD.name}, which served before")
    assert report_line(dataclasses.replace(change, aborted=2)).endswith(". Requests that were cut off: 2")
    nothing = Outcome(SEAT, Action.NOTHING, (), OLD.name, OLD.name, changed=True, repairs=("the unit was edited",))
    assert report_line(nothing) == "seat lab-oracle: no restart: the unit was edited"


def test_another_api_key_restarts(machine: FakeMachine) -> None:
    deploy(machine, OLD)
    outcome = deploy(machine, OLD, {SEAT: "sk-seat-2"})
    assert (outcome.action, outcome.generation) == (Action.RESTART, OLD.name)
    assert "sk-seat" not in repr(outcome)
    assert api_keys(machine) == ("sk-seat-2", "sk-seat-2")
    assert machine.paths.api_key.stat().st_mode & 0o777 == 0o600
    assert deploy(machine, OLD, OTHER_KEYS).changed is False


OTHER_KEYS = {SEAT: "sk-seat-2"}


def api_keys(machine: FakeMachine) -> tuple[str | None, str | None]:
    """Return the key of the process and the one that the unit would start with."""
    return machine.process.environ["VLLM_API_KEY"] if machine.process else None, api_key.read(machine.paths)


@pytest.mark.parametrize("wanted", [OLD, NEW])
@pytest.mark.parametrize(
    "obstacle",
    [
        {"lacking": ["the disk of / has 3 MiB free, 64 are wanted"]},
        {"shortage": ["card GPU-1 has 10.00 GiB free"]},
        {"strangers": [Owner(7, "docker-proxy", "/docker")]},
        {"refusal": "unrecognized arguments"},
    ],
)
def test_a_refused_rollout_leaves_the_api_key_that_serves(
    machine: FakeMachine, obstacle: dict[str, Any], wanted: Generation
) -> None:
    """Red when staging writes the file: the probes got 401 then, and all callers after the next crash."""
    deploy(machine, THIRD)
    for name, value in obstacle.items():
        setattr(machine, name, value)
    outcome = deploy(machine, wanted, OTHER_KEYS)
    assert str(outcome.failure).startswith("nothing was touched: ")
    assert api_keys(machine) == ("sk-seat-1", "sk-seat-1")
    for name, value in obstacle.items():
        setattr(machine, name, type(value)() if isinstance(value, list) else None)
    assert deploy(machine, wanted, OTHER_KEYS).failure is None
    assert api_keys(machine) == ("sk-seat-2", "sk-seat-2")


def test_a_restart_that_the_gateway_forbids_leaves_the_api_key_that_serves(machine: FakeMachine) -> None:
    """The play ends between staging and rollout then."""
    deploy(machine, OLD)
    (staged,) = stage_host([OLD], OTHER_KEYS, check=False, root=machine.paths.root)
    assert (staged.changed, staged.before, staged.after) == (
        False,
        "api-key.env: (another, replaced with the restart)\n",
        "api-key.env: (secret)\n",
    )
    assert api_keys(machine) == ("sk-seat-1", "sk-seat-1")
    assert deploy(machine, OLD).changed is False


def test_a_seat_that_does_not_stop_keeps_its_api_key(machine: FakeMachine) -> None:
    deploy(machine, OLD)
    machine.immortal = True
    assert "does not stop" in str(deploy(machine, NEW, OTHER_KEYS).failure)
    assert api_keys(machine) == ("sk-seat-1", "sk-seat-1")


@pytest.mark.parametrize("behaviour", [NO_EXEC, DIES, BAD])
def test_what_comes_back_has_the_api_key_that_its_aliases_are_opened_with(machine: FakeMachine, behaviour: str) -> None:
    deploy(machine, OLD)
    machine.behaviour[NEW.name] = behaviour
    assert deploy(machine, NEW, OTHER_KEYS).returned_to == OLD.name
    assert api_keys(machine) == ("sk-seat-2", "sk-seat-2")
    assert deploy(machine, OLD, OTHER_KEYS).changed is False


def test_without_room_for_the_api_key_the_old_one_serves_on(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy(machine, OLD)

    def full(*_: Any, **__: Any) -> None:
        raise FULL

    with monkeypatch.context() as patch:
        patch.setattr(api_key, "write_atomic", full)
        outcome = deploy(machine, NEW, OTHER_KEYS)
    assert outcome.returned_to == OLD.name
    assert outcome.failure is not None and "No space left on device" in outcome.failure
    assert api_keys(machine) == ("sk-seat-1", "sk-seat-1")
    assert deploy(machine, NEW, OTHER_KEYS).failure is None
    assert api_keys(machine) == ("sk-seat-2", "sk-seat-2")


@pytest.mark.parametrize("wanted", [OLD, NEW])
@pytest.mark.parametrize("killed_at", ["stop", "install", "start", "probe"])
def test_a_rollout_with_another_api_key_that_was_killed_is_put_right(
    machine: FakeMachine, killed_at: str, wanted: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever key the seat is started with until then: the next run makes it the one that its aliases get."""
    deploy(machine, OLD)
    note = machine._note

    def killed(call: str) -> None:
        note(call)
        if call.split()[0] == killed_at:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(machine, "_note", killed)
        with pytest.raises(KeyboardInterrupt):
            deploy(machine, wanted, OTHER_KEYS)
    if killed_at in {"install", "start"}:  # as `seatctl settle --after-rollout` does it, and the unit's own settle
        generations.settle(machine.paths)
        machine.start(machine.paths.unit.name)
        assert machine.process is not None
        assert machine.process.environ["SEATFLEET_GENERATION"] == OLD.name
    machine.locked = False
    outcome = deploy(machine, wanted, OTHER_KEYS)
    assert (outcome.failure, outcome.generation) == (None, wanted.name)
    assert api_keys(machine) == ("sk-seat-2", "sk-seat-2")
    assert deploy(machine, wanted, OTHER_KEYS).changed is False


def test_after_a_failure_other_seats_are_left_alone(machine: FakeMachine) -> None:
    machine.behaviour[OLD.name] = BAD
    stage_host([OLD, NEW], KEYS, check=False, root=machine.paths.root)
    outcomes = roll_out(machine, [OLD, NEW], KEYS, machine.paths.root)
    assert [outcome.wanted for outcome in outcomes] == [OLD.name]


def test_a_seat_that_cannot_start_keeps_the_others_of_its_host_from_being_touched(machine: FakeMachine) -> None:
    deploy(machine, OLD)
    machine.calls.clear()
    outcomes = roll_out(machine, [OLD, NEW], KEYS, machine.paths.root)  # the second was not staged
    (refused,) = outcomes
    assert (refused.wanted, refused.changed, machine.calls) == (NEW.name, False, [])
    assert "is not staged" in str(refused.failure)


def test_old_generations_are_pruned(machine: FakeMachine) -> None:
    sizes = [f"{64 * step}MiB" for step in range(1, 9)]
    outcomes = [deploy(machine, generation(kv_cache_memory=size)) for size in sizes]
    left = {path.name for path in machine.paths.generations.iterdir()}
    assert left == {outcome.wanted for outcome in outcomes[-5:]}
    assert [len(outcome.pruned) for outcome in outcomes] == [0] * 5 + [1] * 3


def test_staging_tells_what_serves_and_what_is_wanted_without_secrets(machine: FakeMachine) -> None:
    deploy(machine, OLD)
    keys = {SEAT: "sk-seat-2"}
    (staged,) = stage_host([NEW], keys, check=True, root=machine.paths.root)
    assert "kv-cache-memory-bytes: 67108864" in staged.before
    assert "kv-cache-memory-bytes: 134217728" in staged.after
    assert "sk-seat" not in staged.before + staged.after
    assert (staged.created, staged.changed) == (True, True)
    assert not machine.paths.generation(NEW.name).exists()
    assert machine.paths.api_key.read_text() == "VLLM_API_KEY=sk-seat-1\n"
    (same,) = stage_host([OLD], KEYS, check=True, root=machine.paths.root)
    assert (same.changed, same.before, same.after) == (False, "", "")


def test_api_keys_are_private(machine: FakeMachine) -> None:
    stage_host([OLD], KEYS, check=False, root=machine.paths.root)
    assert machine.paths.api_key.stat().st_mode & 0o777 == 0o600
    assert machine.paths.home.stat().st_mode & 0o777 == 0o755


def test_seats_nobody_declares_are_named(machine: FakeMachine) -> None:
    assert unmanaged([], machine.paths.root) == []
    stage_host([OLD], KEYS, check=False, root=machine.paths.root)
    assert unmanaged([], machine.paths.root) == [SEAT]
    assert unmanaged([SEAT], machine.paths.root) == []
