"""The real edges of a rollout that need no systemd: lock, probe process, what is missing."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from seatfleet.core.host import machine as module
from seatfleet.core.host.machine import LocalMachine, count_requests, full_disks
from seatfleet.core.seat.rollout import ProbeResult, RolloutError


@pytest.fixture
def machine(tmp_path: Path) -> LocalMachine:
    return LocalMachine(tmp_path / "run/lock/start.lock", lock_timeout_s=0)


def test_one_start_at_a_time(machine: LocalMachine) -> None:
    assert not machine.start_under_way()
    with machine.start_lock():
        assert machine.start_under_way()
        with (
            pytest.raises(RolloutError, match=r"another start on this host has held .*start\.lock"),
            machine.start_lock(),
        ):
            pass
    assert not machine.start_under_way()
    with machine.start_lock():
        pass


def toolbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> Path:
    """Install a seatctl that answers as told, and return a manifest to probe."""
    seatctl = tmp_path / "toolbox/bin/seatctl"
    seatctl.parent.mkdir(parents=True)
    seatctl.write_text(f"#!{sys.executable}\nimport sys, time\n{body}")
    seatctl.chmod(0o755)
    monkeypatch.setattr(module, "TOOLBOX", str(tmp_path / "toolbox"))
    return tmp_path / "seats/flash-next/generations/1111/manifest.json"


def result_of(machine: LocalMachine, manifest: Path) -> ProbeResult:
    with machine.probe(manifest) as run:
        while (result := run.poll()) is None:
            time.sleep(0.01)
    return result


def test_how_the_probe_is_called(machine: LocalMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "import json; print(json.dumps({'argv': sys.argv[1:]}))"
    manifest = toolbox(tmp_path, monkeypatch, body)
    result = result_of(machine, manifest)
    assert result.passed
    assert result.evidence["argv"] == [
        "probe",
        "--manifest",
        str(manifest),
        "--level",
        "acceptance",
        "--json",
        "--evidence",
        "/var/lib/seatfleet/evidence/flash-next",
    ]


@pytest.mark.parametrize(
    ("body", "passed", "busy", "message"),
    [
        ('print(\'{"verdict": "READY"}\')', True, False, ""),
        ('print(\'{"cause": "al: low"}\'); sys.exit(7)', False, False, "al: low"),
        ('print(\'{"cause": "3 others"}\'); sys.exit(4)', False, True, "3 others"),
        ("sys.exit('seatctl probe: internal error')", False, False, "seatctl probe: internal error"),
        # a pass without evidence is none
        ("", False, False, ""),
        ("print('[]')", False, False, ""),
        # more than a pipe holds
        ("print('{\"a\": \"' + 'x' * 200000 + '\"}')", True, False, ""),
    ],
)
def test_probe_results(
    machine: LocalMachine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    body: str,
    passed: bool,
    busy: bool,
    message: str,
) -> None:
    result = result_of(machine, toolbox(tmp_path, monkeypatch, body))
    assert (result.passed, result.busy, result.message) == (passed, busy, message)


def test_a_probe_that_is_given_up_ends(machine: LocalMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = toolbox(tmp_path, monkeypatch, f"open({str(tmp_path / 'started')!r}, 'w'); time.sleep(300)")
    begin = time.monotonic()
    with machine.probe(manifest) as run:
        assert run.poll() is None
    assert time.monotonic() - begin < 100


def test_everything_missing_is_told_at_once(
    machine: LocalMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = {
        "seat": "s",
        "generation": "0",
        "release_id": "0.32.0-x",
        "release_path": str(tmp_path / "release"),
        "model_id": "m",
        "model_path": str(tmp_path / "m"),
        "drafter_id": None,
        "drafter_path": None,
    }
    monkeypatch.setattr(module, "TOOLBOX", str(tmp_path / "toolbox"))
    monkeypatch.setattr(module, "SERVICE_USER", "no-such-user")
    assert machine.missing(manifest) == [
        f"release 0.32.0-x is not installed ({tmp_path}/release/release.json is missing)",
        f"model m is not there ({tmp_path}/m)",
        f"the toolbox is not installed ({tmp_path}/toolbox)",
        "there is no user no-such-user",
    ]
    toolbox(tmp_path, monkeypatch, "")
    (tmp_path / "m").mkdir()
    (tmp_path / "release").mkdir()
    (tmp_path / "release/release.json").touch()
    monkeypatch.setattr(module, "SERVICE_USER", "root")
    assert machine.missing(manifest) == []


def test_a_full_disk_is_told_before_the_stop(tmp_path: Path) -> None:
    here, absent, other = str(tmp_path), str(tmp_path / "absent"), "/proc"
    assert full_disks([here, absent], room=0) == []
    # each disk once; /proc has nothing free
    assert [line.split()[3] for line in full_disks([here, here, other, absent], room=1 << 60)] == [here, other]
    assert full_disks([other]) == ["the disk of /proc has 0 MiB free, 64 are wanted"]


def test_requests_are_counted_over_all_engines() -> None:
    text = """# HELP vllm:num_requests_running Number of requests in model execution batches.
vllm:num_requests_running{engine="0",model_name="tiny"} 2.0
vllm:num_requests_running{engine="1",model_name="tiny"} 1.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 4.0
"""
    assert count_requests(text) == 7
    assert count_requests("up 1\n") is None


def test_a_port_without_a_server_has_no_requests() -> None:
    assert LocalMachine().running_requests("http://127.0.0.1:9") is None


@pytest.mark.parametrize(
    ("body", "missing"),
    [
        ("assert sys.argv[1:3] == ['patch', 'verify']", []),
        ("sys.exit('a.py: expected sha256 1, seen 2')", ["patched files of release: a.py: expected sha256 1, seen 2"]),
    ],
)
def test_patched_files_are_verified_before_the_stop(
    machine: LocalMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, missing: list[str]
) -> None:
    toolbox(tmp_path, monkeypatch, body)
    monkeypatch.setattr(module, "SERVICE_USER", "root")
    release = tmp_path / "release"
    release.mkdir()
    (release / "release.json").touch()
    manifest = {
        "seat": "s",
        "generation": "0",
        "release_id": "x",
        "release_path": str(release),
        "model_id": "m",
        "model_path": str(tmp_path),
    }
    assert machine.missing(manifest) == missing
