"""What runs: `systemctl show` output and /proc entries as captured from a lab host (systemd 252, vLLM 0.32.0)."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatfleet.core.host.processes import PROPERTIES, cgroup_pids, parse_show, read_process, read_seat

UNIT = "vllm-seat-flash-next.service"
GROUP = f"/system.slice/{UNIT}"
CURRENT = "/etc/vllm/seats/flash-next/current"
ARGV = (
    "/opt/vllm/releases/0.32.0-aaaabbbbcccc/bin/python3",
    f"{CURRENT}/release/bin/vllm",
    "serve",
    "--config",
    f"{CURRENT}/vllm.yaml",
)
# Hybrid hierarchy, as inside a lab host.
CGROUP = f"9:name=systemd:{GROUP}\n8:pids:{GROUP}\n7:blkio:/\n3:cpuset:/\n1:cpu:/system.slice\n0::{GROUP}\n"
# Port 8022 is 1F56; 0A is LISTEN, 06 TIME_WAIT.
TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0B004F0A:B51D 00000000:0000 0A 00000000:00000000 00:00000000 00000000   999        0 124655 1 0 100 0 0 10 0
  13: 00000000:1F56 00000000:0000 0A 00000000:00000000 00:00000000 00000000   999        0 104680 1 0 100 0 0 10 0
  18: 0100007F:1F56 0100007F:C9DE 06 00000000:00000000 03:000010F6 00000000     0        0 0 3 0
"""


def show(**changes: str) -> str:
    values = {
        "MainPID": "211",
        "Result": "success",
        "NRestarts": "0",
        "ExecMainStatus": "0",
        "ControlGroup": GROUP,
        "Id": UNIT,
        "LoadState": "loaded",
        "ActiveState": "active",
        "SubState": "running",
        "DropInPaths": "",
        "UnitFileState": "enabled",
        "NeedDaemonReload": "no",
    }
    assert set(values) == set(PROPERTIES)
    return "".join(f"{name}={value}\n" for name, value in (values | changes).items())


STATES = {
    "running": show(),
    "stopped": show(MainPID="0", ControlGroup="", ActiveState="inactive", SubState="dead"),
    "auto-restart": show(
        MainPID="0",
        ControlGroup="",
        ActiveState="activating",
        SubState="auto-restart",
        Result="exit-code",
        ExecMainStatus="1",
    ),
    "failed": show(
        MainPID="0",
        ControlGroup="",
        ActiveState="failed",
        SubState="failed",
        Result="exit-code",
        ExecMainStatus="1",
        NRestarts="4",
    ),
    "restarted": show(NRestarts="1"),
    "none": show(
        MainPID="0",
        ControlGroup="",
        LoadState="not-found",
        ActiveState="inactive",
        SubState="dead",
        UnitFileState="",
    ),
}


@pytest.mark.parametrize(
    ("state", "running", "ended", "text"),
    [
        ("running", True, False, "active (running)"),
        ("stopped", False, True, "inactive"),
        ("auto-restart", False, True, "activating (auto-restart, exit-code, status 1)"),
        ("failed", False, True, "failed (exit-code, status 1, 4 restarts)"),
        ("restarted", True, True, "active (running, 1 restart)"),
        ("none", False, True, "not installed"),
    ],
)
def test_states(state: str, running: bool, ended: bool, text: str) -> None:
    unit = parse_show(STATES[state])
    assert (unit.running, unit.ended(), str(unit)) == (running, ended, text)
    # also of a dead unit: left-over processes would be there
    assert unit.control_group == GROUP


@pytest.mark.parametrize(
    ("state", "restarts", "ended"),
    [
        ("restarted", 0, True),
        ("restarted", 1, False),
        ("auto-restart", 9, True),
        ("failed", 9, True),
        ("stopped", 9, True),
    ],
)
def test_a_restart_of_before_is_no_end(state: str, restarts: int, ended: bool) -> None:
    assert parse_show(STATES[state]).ended(restarts) is ended


@pytest.mark.parametrize(
    ("state", "left"),
    [
        ({}, False),
        ({"ActiveState": "inactive", "SubState": "dead"}, True),
        ({"ActiveState": "deactivating", "SubState": "stop-sigterm"}, True),
        ({"ActiveState": "failed", "SubState": "failed", "Result": "timeout"}, True),
        # systemd gave it up, or will start it itself, or shall not
        ({"ActiveState": "failed", "SubState": "failed", "Result": "exit-code"}, False),
        ({"ActiveState": "activating", "SubState": "auto-restart"}, False),
        ({"ActiveState": "inactive", "SubState": "dead", "UnitFileState": "disabled"}, False),
    ],
)
def test_what_a_rollout_that_died_left_stopped(state: dict[str, str], left: bool) -> None:
    assert parse_show(show(**state)).left_stopped is left


def test_drop_ins_of_all_services_are_not_ours() -> None:
    ours = f"/etc/systemd/system/{UNIT}.d/50-hand.conf"
    unit = parse_show(show(DropInPaths=f"/run/systemd/system/service.d/10-lxc.conf {ours}"))
    assert unit.drop_ins == (ours,)


def make_process(proc: Path, pid: int, argv: tuple[str, ...], group: str, inodes: tuple[str, ...] = ()) -> None:
    directory = proc / str(pid)
    (directory / "fd").mkdir(parents=True)
    (directory / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in argv))
    (directory / "environ").write_bytes(b"SEATFLEET_GENERATION=2b0fcfefb174\0VLLM_API_KEY=sk-seat-1=\0EMPTY=\0")
    (directory / "comm").write_text(argv[0].rsplit("/", 1)[-1] + "\n")
    (directory / "cgroup").write_text(CGROUP.replace(GROUP, group))
    for number, inode in enumerate(inodes):
        (directory / "fd" / str(number)).symlink_to(f"socket:[{inode}]")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text(TCP)
    make_process(tmp_path, 211, ARGV, GROUP, ("1", "104680"))
    make_process(tmp_path, 323, ("VLLM::EngineCore",), GROUP)
    make_process(tmp_path, 348, ("VLLM::Worker",), f"{GROUP}/nested")
    make_process(tmp_path, 34, ("/usr/sbin/sshd",), "/system.slice/ssh.service")
    make_process(tmp_path, 35, ("vllm",), f"{GROUP}-other")
    return tmp_path


def test_a_running_seat(proc: Path) -> None:
    state = read_seat(parse_show(show()), 8022, proc)
    assert state.process is not None
    assert state.process.argv == ARGV
    assert state.process.environ == {
        "SEATFLEET_GENERATION": "2b0fcfefb174",
        "VLLM_API_KEY": "sk-seat-1=",
        "EMPTY": "",
    }
    assert state.pids == (211, 323, 348)
    assert [owner.pid for owner in state.listeners] == [211]
    assert state.strangers == ()


def test_secrets_stay_out_of_messages(proc: Path) -> None:
    assert "sk-seat" not in repr(read_seat(parse_show(show()), 8022, proc))


def test_somebody_else_on_the_port(proc: Path) -> None:
    (proc / "34" / "fd" / "9").symlink_to("socket:[124655]")
    state = read_seat(parse_show(STATES["stopped"]), 0xB51D, proc)
    assert [(owner.pid, owner.command) for owner in state.strangers] == [(34, "sshd")]


def test_nobody_on_the_port(proc: Path) -> None:
    assert read_seat(parse_show(show()), 8023, proc).listeners == ()


def test_left_over_processes_of_a_dead_unit(proc: Path) -> None:
    state = read_seat(parse_show(STATES["failed"]), 8022, proc)
    assert state.process is None
    assert state.pids == (211, 323, 348)


def test_processes_that_end_meanwhile(proc: Path) -> None:
    assert read_process(99999, proc) is None
    (proc / "323" / "cgroup").unlink()
    assert cgroup_pids(GROUP, proc) == (211, 348)
