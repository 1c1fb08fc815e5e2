"""What the kernel's journal adds to why a seat failed: lines as kernels and NVIDIA's driver wrote them.

The OOM killer's (of a control group) and the segfault were recorded on a machine of this project's, the global one and
those of the driver are from public reports; names and numbers of processes are those of the seat here.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from seatfleet.cli import main
from seatfleet.commands import why as command
from seatfleet.commands.why import explain
from seatfleet.core.host.processes import UnitState
from seatfleet.core.report.why import Failure, failed_start, kernel_lines, starts, text
from seatfleet.core.seat import stopped

UNIT = "vllm-seat-a.service"
SERVER, ENGINE, STRANGER = 300, 374, 9000
BEGAN, ENDED = 1_796_000_000, 1_796_003_600
GROUP = "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg={group},"
OOM_OF = GROUP + "task={name},pid={pid},uid=998"
OOM = "Out of memory: Killed process {pid} ({name}) total-vm:81306880kB, anon-rss:1058560kB, file-rss:21412kB, "
OOM += "shmem-rss:428kB, UID:998 pgtables:28484kB oom_score_adj:0"
OOM_IN_GROUP = "Memory cgroup out of memory: Killed process {pid} (python3) total-vm:218672kB, anon-rss:65280kB, "
OOM_IN_GROUP += "file-rss:5360kB, shmem-rss:0kB, UID:998 pgtables:192kB oom_score_adj:0"
SEGFAULT = "{name}[{pid}]: segfault at 0 ip 00007ff3df585ad8 sp 00007ffe3c7b4808 error 4 in "
SEGFAULT += "libcuda.so.580.95.05[167ad8,7ff3df444000+156000] likely on CPU 1 (core 1, socket 0)"
FAULT = "traps: {name}[{pid}] general protection fault ip:7f1c2a sp:7ffd10 error:0 in libnccl.so.2[7f1c00+1000]"
XID = "NVRM: Xid (PCI:0000:{card}:00): {xid}, pid={pid}, name={name}, {words}"
LOST = "NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
NOISE = (
    "nvidia-modeset: WARNING: GPU:0: Unable to read EDID",
    "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from "
    "_memdescAllocInternal(pMemDesc) @ mem_desc.c:1359",
    "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "oom_reaper: reaped process 374 (VLLM::EngineCor), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
    "audit: type=1400 audit(1796003600.1:7): apparmor=DENIED",
)
DIED = (
    f"(APIServer pid={SERVER}) ERROR 11-29 20:47:08 [core_client.py:600] Engine core proc EngineCore died unexpectedly."
)
VALUE = f"(EngineCore pid={ENGINE}) ValueError: something of the model"
EXITED = f"{UNIT}: Main process exited, code=exited, status=1/FAILURE"
KILLED = f"{UNIT}: Main process exited, code=killed, status=9/KILL"


def entry(message: str, at: float, **fields: str) -> str:
    return json.dumps({"MESSAGE": message, "__REALTIME_TIMESTAMP": str(int(at * 1e6)), **fields})


def journal(*said: str, ended: str = EXITED) -> list[str]:
    own = {"_PID": str(SERVER), "_COMM": "vllm", "_SYSTEMD_INVOCATION_ID": "1"}
    serving = f"(EngineCore pid={ENGINE}) INFO 11-29 20:40:00 [core.py:1] serving"
    return [
        entry(serving, BEGAN, **own),
        *(entry(line, ENDED - 2, **own) for line in said),
        entry(ended, ENDED, _PID="1", INVOCATION_ID="1"),
    ]


def kernel(*lines: str, at: float = ENDED - 3) -> list[str]:
    return [entry(line, at) for line in lines]


def why(said: Sequence[str], lines: Sequence[str]) -> Failure:
    found = failed_start(starts(said), explain, lambda start: kernel_lines(lines, start, UNIT))
    assert found is not None
    return found


def seen(*lines: str, at: float = ENDED - 3) -> tuple[str, ...]:
    return tuple(line.split(": ", 1)[1] for line in why(journal(), kernel(*lines, at=at)).kernel)


def ids(failure: Failure) -> list[str]:
    return [known.id for known in failure.known]


@pytest.mark.parametrize(
    ("line", "known"),
    [
        (OOM.format(pid=ENGINE, name="VLLM::EngineCor"), ["M20"]),
        (OOM_IN_GROUP.format(pid=SERVER), ["M20"]),
        (SEGFAULT.format(pid=ENGINE, name="VLLM::EngineCor"), ["X25"]),
        (FAULT.format(pid=ENGINE + 40, name="pt_main_thread"), ["X25"]),
        (LOST, ["X6"]),
        ("NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.", ["X6"]),
        (XID.format(card="01", xid=31, pid=ENGINE, name="VLLM::EngineCor", words="Ch 00000008, MMU Fault"), ["X19"]),
        (XID.format(card="01", xid=119, pid=STRANGER, name="nvidia-smi", words="Timeout after 6s of RPC"), ["X24"]),
        ("NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset)", ["X24"]),
    ],
)
def test_a_seat_that_died_without_a_word(line: str, known: list[str]) -> None:
    """What systemd says of it is no cause, and that somebody else died is none either."""
    for said in (journal(ended=KILLED), journal(DIED)):
        found = why(said, kernel(*NOISE, line))
        assert found.cause == line
        assert ids(found) == known
        shown = text("a", "failed", [found])
        assert shown.count(line) == 1
        assert f"known failure {known[0]}" in shown


@pytest.mark.parametrize(
    "line",
    [
        *NOISE,
        OOM.format(pid=STRANGER, name="postgres"),
        SEGFAULT.format(pid=STRANGER, name="chrome"),
        XID.format(card="41", xid=13, pid=STRANGER, name="Xorg", words="Graphics Exception"),
        XID.format(card="01", xid=45, pid=ENGINE, name="VLLM::EngineCor", words="Ch 00000001"),
    ],
)
def test_what_is_about_something_else_is_left_out(line: str) -> None:
    found = why(journal(ended=KILLED), kernel(line))
    assert (found.cause, found.kernel) == (None, ())
    assert ids(found) == ["X22"]


def test_a_neighbour_that_the_kernel_killed_is_not_this_seat() -> None:
    """Its processes have the same names; the control group tells them apart."""
    other = {"pid": STRANGER, "name": "VLLM::EngineCor"}
    killed = OOM.format(**other)
    assert seen(killed) == (killed,), "nothing says whose it was"
    assert seen(OOM_OF.format(**other, group="/system.slice/vllm-seat-a.service"), killed) == (killed,)
    assert seen(OOM_OF.format(**other, group="/system.slice/vllm-seat-b.service"), killed) == ()
    assert seen(OOM_OF.format(**other, group="/system.slice/vllm-seat-a.service-x"), killed) == ()
    assert seen(killed, at=ENDED - 120) == (), "a name counts at the end only"
    assert seen(OOM.format(pid=ENGINE, name="x"), at=ENDED - 120) != ()


def test_only_the_time_of_that_end_counts() -> None:
    assert seen(LOST, at=ENDED - 600) == (LOST,), "a collective is given up after ten minutes"
    assert seen(LOST, at=ENDED - 1000) == ()
    assert seen(LOST, at=ENDED + 60) == ()


def test_the_killer_goes_before_what_the_others_say_and_an_exception_before_the_rest() -> None:
    killed = OOM.format(pid=ENGINE, name="VLLM::EngineCor")
    assert why(journal(VALUE), kernel(killed)).cause == killed
    systemd = f"{UNIT}: A process of this unit has been killed by the OOM killer."
    assert why(journal(ended=systemd), kernel(killed)).cause == killed, "it says which process, and how large it was"
    for line, known in ((LOST, "X6"), (SEGFAULT.format(pid=ENGINE, name="VLLM::EngineCor"), "X25")):
        found = why(journal(VALUE), kernel(line))
        assert found.cause == "ValueError: something of the model"
        assert ids(found) == [known]
        assert re.search(rf"\n  the kernel, [0-9: -]+ UTC: {re.escape(line)}\n", text("a", "failed", [found]))


def test_a_storm_is_a_few_lines() -> None:
    storm = [
        XID.format(card="01", xid=13, pid=ENGINE, name="VLLM::EngineCor", words=f"Graphics Exception: ESR {number:#x}")
        for number in range(500)
    ]
    cards = [XID.format(card=f"{card:02x}", xid=79, pid=1, name="x", words="lost") for card in range(20)]
    assert seen(*storm) == (storm[0],)
    assert len(seen(*storm, *cards)) == 5
    killed = OOM.format(pid=ENGINE, name="VLLM::EngineCor")
    assert seen(*storm, *cards, killed)[-1] == killed, "it decides the cause, and comes last"


@pytest.mark.parametrize(
    "line",
    [
        LOST,
        "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.",
        XID.format(card="01", xid=31, pid=ENGINE, name="VLLM::EngineCor", words="Ch 00000008, MMU Fault"),
    ],
)
def test_a_card_of_a_neighbour_is_none_of_the_seats(line: str) -> None:
    lines, (start,) = kernel(line), starts(journal())
    for cards, count in (({"00000000:01:00.0"}, 1), ({"00000000:C1:00.0"}, 0), (None, 1)):
        assert len(kernel_lines(lines, start, UNIT, cards)) == count


@pytest.mark.parametrize(
    ("visible", "said", "cards"),
    [
        ("GPU-a,GPU-b", "GPU-{}, 00000000:{}1:00.0, RTX, 97887, 580.95.05", {"00000000:a1:00.0", "00000000:b1:00.0"}),
        ("GPU-a,GPU-x", "GPU-{}, 00000000:{}1:00.0, RTX, 97887, 580.95.05", None),
        ("GPU-a", "Unable to determine the device handle for GPU{}: 0000:{}1:00.0: Unknown Error", None),
        ("", "GPU-{}, 00000000:{}1:00.0, RTX, 97887, 580.95.05", None),
    ],
)
def test_cards_are_known_when_the_driver_names_each(
    visible: str, said: str, cards: set[str] | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A card that has fallen off the bus is one that nvidia-smi does not name: then any may be the seat's."""
    generation = tmp_path / "generations/0123456789ab"
    generation.mkdir(parents=True)
    (generation / "manifest.json").write_text(json.dumps({"environment": {"CUDA_VISIBLE_DEVICES": visible}}))
    monkeypatch.setattr("seatfleet.core.paths.SeatPaths.home", tmp_path)
    output = "\n".join(said.format(card, card) for card in "abc")
    monkeypatch.setattr(command.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, output))
    assert command._cards("a") == cards


def test_a_precise_cause_without_advice_is_not_called_unknown() -> None:
    shown = text("a", "failed", [why(journal(VALUE), [])])
    assert "none of the known failures" not in shown
    assert "first cause: ValueError: something of the model\n    what to do: what that line says; no advice" in shown


def test_the_command_asks_the_kernels_journal_about_that_end_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[list[str]] = []

    def journalctl(arguments: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        if arguments[0] == "nvidia-smi":
            raise FileNotFoundError
        asked.append(arguments)
        lines = kernel(LOST) if "_TRANSPORT=kernel" in arguments else journal(ended=KILLED)
        return subprocess.CompletedProcess(arguments, 0, "\n".join(lines).encode())

    monkeypatch.setattr(command.subprocess, "run", journalctl)
    monkeypatch.setattr("seatfleet.core.report.status.seats_on_disk", lambda: ["a"])
    unit = UnitState(UNIT, "loaded", "inactive", "dead", "success", 0, 3, f"/system.slice/{UNIT}", True, False, (), 0)
    monkeypatch.setattr("seatfleet.core.host.machine.LocalMachine.unit_state", lambda *_: unit)
    monkeypatch.setattr(stopped, "STOPPED", str(tmp_path / "stopped"))
    stopped.write("a", stopped.Mark(1.0))
    assert main(["why", "a"]) == 0
    shown = capsys.readouterr().out
    assert f"first cause: {LOST}" in shown
    assert "inactive (3 restarts), stopped on purpose (playbooks/stop.yml)" in shown
    assert [f"--since=@{ENDED - 900}.000000", f"--until=@{ENDED + 5}.000000"] == asked[1][-2:]
    files = {"journal": journal(ended=KILLED), "kernel": kernel(LOST)}
    for name, lines in files.items():
        (tmp_path / name).write_text("\n".join(lines))
    read = ["why", "a", "--json", "--journal", str(tmp_path / "journal")]
    assert main(read) == 0
    assert json.loads(capsys.readouterr().out)["failures"][0]["kernel"] == []
    assert main([*read, "--kernel", str(tmp_path / "kernel")]) == 0
    (failure,) = json.loads(capsys.readouterr().out)["failures"]
    assert failure["kernel"][0].endswith(LOST)
