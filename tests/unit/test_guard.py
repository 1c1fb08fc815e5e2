"""The memory guard: when it kills, whom, and what keeps the killed seat down; on made-up hosts and one real process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from seatfleet.cli import main
from seatfleet.core.host import guard
from seatfleet.core.host.guard import Config, Guard, Guarded, Judge
from seatfleet.core.paths import SeatPaths
from seatfleet.core.seat import stopped
from seatfleet.core.units import GIB

FLOOR = 4 * GIB
ROLE = Path(__file__).resolve().parents[2] / "roles/memory_guard"
SEATS = (Guarded("agent", 8031), Guarded("draft", 8032))


@pytest.mark.parametrize(
    ("samples", "killed_at"),
    [
        ([5.0, 4.0, 5.0], None),  # at the floor is not below it
        ([5.0, 3.9, 5.0, 3.9, 4.1], None),  # one moment each
        ([5.0, 3.9, 3.9, 5.0], 2),
        ([9.0, 2.0, 1.0], 2),
    ],
)
def test_two_samples_below_the_floor_kill(samples: list[float], killed_at: int | None) -> None:
    judge = Judge(FLOOR)
    found = [number for number, free in enumerate(samples) if judge.why(int(free * GIB), False)]
    assert found[:1] == ([] if killed_at is None else [killed_at])


def test_pressure_kills_only_near_the_floor() -> None:
    judge = Judge(FLOOR)
    assert judge.why(20 * GIB, True) is None
    assert "every task waited for memory, with 7.00 GiB available" in str(judge.why(7 * GIB, True))


def test_the_message_names_the_figures() -> None:
    judge = Judge(FLOOR, below=1)
    assert judge.why(3 * GIB, False) == "3.00 GiB of memory were available, the floor is 4.00 GiB"


class Machine(guard.Host):
    """A host whose memory follows a script; seats give theirs back when killed."""

    def __init__(self, root: Path, samples: list[float], running: tuple[str, ...] = ("agent", "draft")) -> None:
        self.root, self.replayed, self._pressure = root, True, None
        self.samples, self.alive = (
            [int(one * GIB) for one in samples],
            [f"vllm-seat-{seat}.service" for seat in running],
        )
        self.calls: list[tuple[str, ...]] = []

    def wait(self) -> bool:
        return False

    def free(self) -> int:
        return self.samples.pop(0)

    def running(self, unit: str) -> bool:
        return unit in self.alive

    def kill(self, unit: str) -> None:
        self.calls.append(("kill", unit))
        self.alive.remove(unit)

    def _systemctl(self, *arguments: str) -> None:  # type: ignore[override]
        self.calls.append(arguments)


def run(root: Path, samples: list[float], **more: Any) -> tuple[Machine, list[str]]:
    machine, said = Machine(root, samples, **more), []
    clock = iter(range(10_000))
    Guard(Config(FLOOR, SEATS), machine, said.append, lambda: next(clock)).run(len(samples))
    return machine, said


def current(root: Path, seat: str, generation: str) -> None:
    paths = SeatPaths(seat, root)
    paths.generation(generation).mkdir(parents=True)
    paths.current.symlink_to(Path("generations") / generation)


def test_a_killed_seat_is_marked_stays_down_and_answers_503(tmp_path: Path) -> None:
    current(tmp_path, "agent", "0123456789ab")
    stopped.write("agent", stopped.Mark(1.0), tmp_path)
    machine, said = run(tmp_path, [9, 3, 3, 9, 9])
    assert machine.calls == [
        ("kill", "vllm-seat-agent.service"),
        ("stop", "vllm-seat-agent.service"),
        ("disable", "--quiet", "vllm-seat-agent.service"),
        ("start", "--no-block", "seatfleet-stub@8031.service"),
    ]
    assert said == ["killed seat agent: 3.00 GiB of memory were available, the floor is 4.00 GiB"]
    mark = guard.read_marker("agent", tmp_path)
    assert mark is not None
    assert stopped.read("agent", tmp_path) is None, "it was started by hand since, and is not out for maintenance"
    assert (mark["available"], mark["generation"]) == (3 * GIB, "0123456789ab")


def test_a_mark_that_cannot_be_written_keeps_no_killed_seat_running(tmp_path: Path) -> None:
    """Without a stop systemd would start the seat again into the same memory, and the guard with it."""
    marks = guard.marker("agent", tmp_path).parent
    marks.parent.mkdir(parents=True)
    marks.write_text("a full disk")
    machine, said = run(tmp_path, [9, 3, 3, 9, 9])
    assert [call[0] for call in machine.calls] == ["kill", "stop", "disable", "start"]
    assert "seat agent cannot be marked" in said[-1]


def test_the_next_seat_goes_only_when_the_first_was_not_enough(tmp_path: Path) -> None:
    machine, _ = run(tmp_path, [3, 3, 3, 3, 3, 3, 3, 3, 9])
    assert [call[1] for call in machine.calls if call[0] == "kill"] == [
        "vllm-seat-agent.service",
        "vllm-seat-draft.service",
    ]


def test_a_file_that_was_written_since_counts(tmp_path: Path) -> None:
    """Who wrote it may have been killed before the restart, and the next run finds nothing to do."""
    file, seats = tmp_path / "guard.json", '"seats": [{"name": "new", "port": 1}]}'

    class Edited(Machine):
        def free(self) -> int:
            written = {7: "no JSON", 5: f'{{"floor": "9GiB", {seats}'}.get(len(self.samples))
            if written:
                file.write_text(written)
                os.utime(file, ns=(len(self.samples),) * 2)
            return super().free()

    file.write_text(f'{{"floor": "4GiB", {seats}')
    said: list[str] = []
    machine, clock = Edited(tmp_path, [8] * 8, running=("agent", "new")), iter(range(10_000))
    Guard(Config(FLOOR, SEATS), machine, said.append, lambda: next(clock), file).run(8)
    assert ("kill", "vllm-seat-new.service") in machine.calls
    assert [text[:26] for text in said[:2]] == ["warning: goes on as before", "killed seat new: 8.00 GiB "]


def test_what_is_measured_goes_before_what_serves_and_production_may_come_back(tmp_path: Path) -> None:
    current(tmp_path, "draft", "0123456789ab")
    machine = Machine(tmp_path, [3, 3, 9])
    machine.alive.append("vllm-campaign-draft.service")
    said: list[str] = []
    clock = iter(range(10_000))
    Guard(Config(FLOOR, SEATS), machine, said.append, lambda: next(clock)).run(3)
    assert machine.calls == [("kill", "vllm-campaign-draft.service")]
    assert said == ["killed what is measured of seat draft: 3.00 GiB of memory were available, the floor is 4.00 GiB"]
    assert guard.read_marker("draft", tmp_path) is None


def test_the_stub_answers_where_the_seat_did(tmp_path: Path) -> None:
    """The declared port is another one after a change of it was taken back."""
    current(tmp_path, "agent", "0123456789ab")
    (SeatPaths("agent", tmp_path).generation("0123456789ab") / "manifest.json").write_text('{"port": 8099}')
    machine, _ = run(tmp_path, [3, 3, 9])
    assert machine.calls[-1] == ("start", "--no-block", "seatfleet-stub@8099.service")


def test_memory_that_is_no_seats_is_said_and_nothing_is_killed(tmp_path: Path) -> None:
    machine, said = run(tmp_path, [3] * 30, running=())
    assert machine.calls == []
    assert len(said) == 1
    assert "no seat of ['agent', 'draft'] runs" in said[0]


def mark_seat(root: Path, **more: Any) -> None:
    path = guard.marker("agent", root)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"at": "now", "why": "3.00 GiB", "generation": "0123456789ab", **more}))


@pytest.mark.parametrize(
    ("mark", "generation", "refused"),
    [
        ({}, "0123456789ab", True),
        ({}, "ba9876543210", False),  # another configuration is a new attempt
        ({"generation": None}, "ba9876543210", True),
    ],
)
def test_a_rollout_does_not_start_what_was_killed(
    tmp_path: Path, mark: Mapping[str, Any], generation: str, refused: bool
) -> None:
    mark_seat(tmp_path, **mark)
    found = guard.obstacle({"seat": "agent", "generation": generation}, tmp_path)
    assert ("seatctl guard clear agent" in str(found)) == refused
    assert guard.obstacle({"seat": "other", "generation": generation}, tmp_path) is None


def test_a_mark_that_cannot_be_read_still_counts(tmp_path: Path) -> None:
    mark_seat(tmp_path)
    guard.marker("agent", tmp_path).write_text("{")
    assert "cannot be read" in str(guard.obstacle({"seat": "agent", "generation": "0123456789ab"}, tmp_path))


@pytest.mark.parametrize("tree", ["", "unified"])
def test_the_kernel_kills_the_whole_group(tmp_path: Path, tree: str) -> None:
    group = tmp_path / "sys/fs/cgroup" / tree / "system.slice/vllm-seat-agent.service"
    group.mkdir(parents=True)
    (group / "cgroup.kill").write_text("")
    (group / "cgroup.procs").write_text("12\n13\n")
    host, unit = guard.Host(tmp_path / "meminfo", tmp_path), "vllm-seat-agent.service"
    assert host.running(unit)
    host.kill(unit)
    assert (group / "cgroup.kill").read_text() == "1"
    (group / "cgroup.procs").write_text("")
    assert not host.running(unit)
    assert not host.running("vllm-seat-never-there.service")


@pytest.mark.parametrize("text", ["{", "{}", '{"floor": "4G", "seats": []}', '{"floor": "4GiB", "seats": [{}]}'])
def test_a_configuration_that_is_none(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "guard.json"
    file.write_text(text)
    assert main(["guard", "run", "--config", str(file)]) == 2
    assert "floor and seats" in capsys.readouterr().err


def test_other_guards_and_swap_are_named(tmp_path: Path) -> None:
    (tmp_path / "proc/77").mkdir(parents=True)
    (tmp_path / "proc/77/comm").write_text("earlyoom\n")
    (tmp_path / "proc/swaps").write_text("Filename Type Size Used Priority\n/swap.img file 9 0 -2\n")
    found = guard.neighbours(tmp_path)
    assert len(found) == 2
    assert "earlyoom runs" in found[0]
    assert "/swap.img" in found[1]
    (tmp_path / "proc/swaps").write_text("Filename Type Size Used Priority\n")
    (tmp_path / "proc/77/comm").write_text("bash\n")
    assert guard.neighbours(tmp_path) == []


@pytest.mark.parametrize(
    ("memory", "declared", "floor"),
    [
        ("124610MiB", None, "4096MiB"),
        ("480GiB", None, "14745MiB"),
        ("491520MiB", None, "14745MiB"),
        (None, None, "4096MiB"),
        ("480GiB", "6GiB", "6GiB"),
    ],
)
def test_the_floor_of_a_host(memory: str | None, declared: str | None, floor: str) -> None:
    """Of a size in GiB the role made 0, and the least floor there is."""
    given = {"fleet_hardware": {"gpu_memory": memory}, "memory_guard_floor": declared, "ansible_check_mode": False}
    argv = [str(Path(sys.executable).parent / "ansible"), "localhost", "-i", "localhost,", "-c", "local"]
    argv += ["-m", "ansible.builtin.debug", "-a", "var=__memory_guard_floor"]
    argv += ["-e", f"@{ROLE}/vars/main.yml", "-e", json.dumps(given)]
    environment = {**os.environ, "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert f'"__memory_guard_floor": "{floor}"' in done.stdout, done.stdout + done.stderr


def test_clear_and_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("seatfleet.core.paths.GUARDED", str(tmp_path))
    monkeypatch.setattr(guard, "GUARDED", str(tmp_path))
    assert main(["guard", "status"]) == 0
    (tmp_path / "agent.json").write_text('{"at": "now", "why": "3.00 GiB"}')
    assert main(["guard", "status"]) == 1
    assert "agent: killed at now: 3.00 GiB" in capsys.readouterr().out
    assert main(["guard", "clear", "agent"]) == 0
    assert main(["guard", "status"]) == 0


def test_systemd_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "notify"))
        server.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        run(tmp_path, [9, 9])
        assert server.recv(99) == b"WATCHDOG=1"
    guard.notify("READY=1")  # nobody listens any more: not worth an error
    monkeypatch.delenv("NOTIFY_SOCKET")
    guard.notify("READY=1")


def test_a_guard_that_cannot_see_does_not_start(tmp_path: Path) -> None:
    file = tmp_path / "guard.json"
    file.write_text('{"floor": "4GiB", "seats": []}')
    argv = [sys.executable, "-m", "seatfleet.cli", "guard", "run", "--config", str(file), "--meminfo", "/nowhere"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "seatctl guard: [Errno 2] No such file or directory: '/nowhere'\n"
