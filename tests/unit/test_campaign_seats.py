"""How arms are started and stopped: as a local process, and as the units of a seat host."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from seatfleet.campaign import host
from seatfleet.campaign.definition import Arm
from seatfleet.campaign.host import Calm, calm_down
from seatfleet.campaign.parity import Deployment, Refusal, derive_arm
from seatfleet.campaign.seats import LocalSeat, SeatFailed, engine_config, model_digest
from seatfleet.campaign.systemd import SystemdSeat, arm_environment, arm_unit
from seatfleet.core.host.processes import Process, SeatState, UnitState
from seatfleet.core.host.sockets import Owner
from seatfleet.core.paths import campaign_unit
from seatfleet.core.seat.rollout import RolloutError

KEY = "speculative-config"
MTP = {"method": "mtp", "num_speculative_tokens": 1}
GENERATIONS = Path(__file__).parent / "data/generations"


@pytest.mark.parametrize(
    ("settings", "written"),
    [
        ({"enable-prefix-caching": False}, {"no-enable-prefix-caching": True}),
        ({"enforce-eager": True}, {"enforce-eager": True}),
        ({"max-num-seqs": 0, "x": [], "y": 1}, {"max-num-seqs": 0, "x": [], "y": 1}),
    ],
)
def test_a_false_switch_is_written_as_its_no_form(settings: dict[str, Any], written: dict[str, Any]):
    assert engine_config(settings) == written


# --- local ------------------------------------------------------------------------------------------------------------

SERVER = """
import os, signal, sys, time
print("args", sys.argv[1:], flush=True)
print("env", os.environ.get("VLLM_CACHE_ROOT"), os.environ.get("VLLM_X"), flush=True)
if os.fork() == 0:
    print("child", os.getpid(), flush=True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(600)
"""


@pytest.fixture
def local(tmp_path: Path) -> LocalSeat:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    (tmp_path / "server.py").write_text(SERVER)
    content = {
        "executable": [sys.executable, str(tmp_path / "server.py")],
        "config": {"model": str(tmp_path / "model"), "port": 18000, "enable-prefix-caching": False},
        "env": {"VLLM_X": "1"},
    }
    (tmp_path / "live.yml").write_text(yaml.safe_dump(content))
    return LocalSeat(tmp_path / "live.yml", tmp_path / "work")


def wait_for(local: LocalSeat, text: str) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = [line for line in local.log() if line.startswith(text)]
        if found:
            return found[0]
        time.sleep(0.02)
    pytest.fail(f"no line {text!r} in {local.log()}")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # the second: it ended between opening and reading
        return False


def test_a_local_arm_starts_with_its_config_and_leaves_nothing_behind(local: LocalSeat):
    config = derive_arm(local.live(), Arm("k1", {KEY: MTP}), [KEY])
    local.start(config, "k1")
    assert wait_for(local, "args") == f"args ['--config', '{local.work / 'k1.yaml'}']"
    assert f"{local.work}/caches/k1/vllm 1" in wait_for(local, "env")
    written = yaml.safe_load((local.work / "k1.yaml").read_text())
    assert written[KEY] == MTP and written["no-enable-prefix-caching"] is True
    child = int(wait_for(local, "child").split()[1])
    state = local.host().unit()
    assert state.running and alive(child)
    with pytest.raises(SeatFailed, match="still running"):
        local.start(config, "k1")
    local.stop()
    deadline = time.monotonic() + 60
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(child) and not alive(state.main_pid)
    local.stop()
    with pytest.raises(SeatFailed, match="no arm is running"):
        local.host()


def test_a_local_arm_that_dies_is_seen_as_dead(local: LocalSeat):
    config = derive_arm(local.live(), Arm("k1", {KEY: MTP}), [KEY])
    local._content["executable"] = [sys.executable, "-c", "print('ValueError: no'); raise SystemExit(3)"]
    local.start(config, "k1")
    deadline = time.monotonic() + 60
    while local.host().unit().running and time.monotonic() < deadline:
        time.sleep(0.02)
    state = local.host().unit()
    assert (state.running, state.exit_status) == (False, 3)
    assert local.host().journal(state, "Error") == ["ValueError: no"] and local.host().journal(state, "x") == []
    local.stop()


def test_the_live_deployment_names_its_file_and_its_model(local: LocalSeat, tmp_path: Path):
    live = local.live()
    assert live.source.startswith("live.yml sha256:") and live.env == {"VLLM_X": "1"}
    before = live.identity["model_files"]
    (tmp_path / "model/config.json").write_text("{ }")
    assert local.live().identity["model_files"] != before


def test_a_deployed_model_is_known_by_its_manifest(tmp_path: Path):
    (tmp_path / "model.safetensors").write_bytes(b"1")
    (tmp_path / "manifest.json").write_text("{}")
    before = model_digest(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"22")
    assert model_digest(tmp_path) == before


# --- systemd ----------------------------------------------------------------------------------------------------------


def unit(name: str, active: str = "inactive") -> UnitState:
    return UnitState(name, "loaded", active, "running", "success", 0, 0, f"/system.slice/{name}", True, False, (), 0)


@dataclass
class FakeMachine:
    """Records what is asked of systemd; ``left`` are processes that outlive a stop."""

    calls: list[str] = field(default_factory=list)
    running: dict[str, str] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    held: bool = False
    fail: str = ""
    requests: list[int] = field(default_factory=list)

    def unit_state(self, name: str) -> UnitState:
        return unit(name, "active" if name in self.running else "inactive")

    def seat_state(self, state: UnitState, port: int) -> SeatState:
        generation = self.running.get(state.name)
        process = Process(7, ("vllm",), {"SEATFLEET_GENERATION": generation}) if generation else None
        pids = (7,) if generation or self.left.get(state.name) else ()
        listeners = (Owner(9, "python", "/user.slice"),) if self.held and port else ()
        return SeatState(state, process, pids, listeners)

    def running_requests(self, base_url: str) -> int | None:
        assert base_url == "http://127.0.0.1:8031"
        self.calls.append("requests?")
        return self.requests.pop(0) if self.requests else None

    def start(self, name: str) -> None:
        self.calls.append(f"start {name}")
        if self.fail and self.fail in name:
            raise RolloutError(f"systemctl start {name}: exit code 1")
        self.running[name] = "arm"

    def stop(self, name: str, timeout_s: float) -> None:
        self.calls.append(f"stop {name}")
        self.running.pop(name, None)

    def kill(self, name: str) -> None:
        self.calls.append(f"kill {name}")
        self.left[name] = max(0, self.left.get(name, 0) - 1)

    def reload(self, name: str) -> None:
        self.calls.append(f"reload {name}")


SEAT = "lab-dense"
PRODUCTION = f"vllm-seat-{SEAT}.service"
ARM_UNIT = campaign_unit(SEAT)


@pytest.fixture
def seat(tmp_path: Path) -> SystemdSeat:
    home = tmp_path / "etc/vllm/seats" / SEAT
    shutil.copytree(GENERATIONS / SEAT, home / "generations/g")
    (home / "generations/g/probe.json").write_text("{}")
    (home / "current").symlink_to("generations/g")
    (home / "api-key.env").write_text("VLLM_API_KEY=sk-seat-1\n")
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    shutil.copy(GENERATIONS / SEAT / PRODUCTION, tmp_path / "etc/systemd/system")
    return SystemdSeat(SEAT, FakeMachine(), root=tmp_path)


def generation(seat: SystemdSeat) -> str:
    return str(seat._manifest()["generation"])


def config_of(seat: SystemdSeat, **overrides: Any) -> Any:
    return derive_arm(seat.live(), Arm("k1", {KEY: MTP}), [KEY], overrides)


@pytest.mark.parametrize("name", sorted(path.name for path in GENERATIONS.iterdir() if list(path.glob("*.service"))))
def test_an_arms_unit_is_the_production_unit_elsewhere(name: str):
    (file,) = (GENERATIONS / name).glob("*.service")
    production, real = file.read_text(), file.name.removeprefix("vllm-seat-").removesuffix(".service")
    text = arm_unit(production, real, Path("/var/lib/seatfleet/campaigns/x"), exclusive=True)
    assert f"/etc/vllm/seats/{real}/current" not in text and f"/var/cache/vllm/{real}" not in text
    assert f"Conflicts=vllm-seat-{real}.service" in text and "Restart=no" in text and "[Install]" not in text
    assert f"EnvironmentFile=/etc/vllm/seats/{real}/api-key.env" in text
    kept = {"NoNewPrivileges=yes", "ProtectSystem=strict", "KillMode=mixed", "User=vllm"}
    assert kept <= set(text.splitlines())
    changed = set(production.partition("[Install]")[0].splitlines()) ^ set(text.splitlines())
    assert {line.partition("=")[0] for line in changed if line} == {
        *("Description", "Conflicts", "EnvironmentFile", "ExecStartPre", "ExecStart", "Restart"),
        *("CacheDirectory", "WorkingDirectory", *(["OnFailure"] if "OnFailure" in production else [])),
    }
    assert "OnFailure" not in arm_unit(
        production.replace("[Unit]", "[Unit]\nOnFailure=x"), real, Path("/x"), exclusive=True
    )
    assert f"Conflicts={file.name}" not in arm_unit(production, real, Path("/x"), exclusive=False)


def test_a_unit_that_is_not_understood_is_refused():
    text = (GENERATIONS / SEAT / PRODUCTION).read_text().replace("Restart=always", "Restart=on-failure")
    with pytest.raises(SeatFailed, match="has no 'Restart=always': deploy the seat with this version first"):
        arm_unit(text, SEAT, Path("/x"), exclusive=True)


def test_the_live_deployment_is_read_from_the_current_generation(seat: SystemdSeat):
    live = seat.live()
    assert generation(seat) in live.source and "sha256:" in live.source
    assert live.config["host"] == "127.0.0.1" and live.identity["release"] and seat.api_key == "sk-seat-1"
    assert "sk-seat-1" not in repr(seat) + repr(live)


def test_a_process_of_another_generation_is_refused(seat: SystemdSeat):
    seat.machine.running[PRODUCTION] = "000000000000"
    with pytest.raises(Refusal, match=r"R8 retyped.*runs generation 000000000000"):
        seat.live()


def test_arms_are_not_derived_from_a_generation_that_was_never_proven(seat: SystemdSeat):
    (seat.paths.current / "probe.json").unlink()
    with pytest.raises(Refusal, match="R18 unproven"):
        seat.live()


def test_a_seat_that_was_never_deployed_is_refused(tmp_path: Path):
    with pytest.raises(Refusal, match="deploy seat nowhere first"):
        SystemdSeat("nowhere", FakeMachine(), root=tmp_path).live()


def test_an_arm_is_written_and_started(seat: SystemdSeat):
    seat.machine.running[PRODUCTION] = generation(seat)
    seat.clear()
    assert seat.machine.calls == ["requests?", f"stop {PRODUCTION}"]
    seat.start(config_of(seat), "k1")
    assert seat.machine.calls[2:] == [f"reload {ARM_UNIT}", f"start {ARM_UNIT}"]
    live = seat.home / "live"
    assert live.readlink() == Path("arms/k1")
    written = yaml.safe_load((live / "vllm.yaml").read_text())
    assert written[KEY] == MTP and written["host"] == "127.0.0.1"
    environment = dict(line.split("=", 1) for line in (live / "seat.env").read_text().splitlines())
    assert environment["VLLM_CACHE_ROOT"] == f"/var/cache/vllm-campaign/{SEAT}/k1/vllm"
    assert environment["HOME"] == f"/var/cache/vllm-campaign/{SEAT}"
    assert not any("/var/cache/vllm/" in value for value in environment.values())
    assert (live / "release").readlink() == Path(environment["SEATFLEET_RELEASE"])
    text = seat.unit_file.read_text()
    assert f"/var/lib/seatfleet/campaigns/{SEAT}/live/release/bin/vllm serve" in text


def test_requests_that_run_may_end_before_production_is_stopped(seat: SystemdSeat, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("seatfleet.campaign.systemd.DRAIN_POLL_S", 0.0)
    seat.machine.requests = [2, 0, 1, 0, 0, 7]
    seat.clear()
    assert seat.machine.calls == ["requests?"] * 5 + [f"stop {PRODUCTION}"]


def test_a_shadow_seat_leaves_production_alone(seat: SystemdSeat):
    shadow = replace(seat, shadow=True)
    shadow.machine.running[PRODUCTION] = generation(seat)
    shadow.clear()
    shadow.start(config_of(shadow, **{"port": 8099, "env:CUDA_VISIBLE_DEVICES": "3"}), "k1")
    shadow.restore()
    assert PRODUCTION in shadow.machine.running
    assert not any(PRODUCTION in call for call in shadow.machine.calls)
    environment = (shadow.home / "live/seat.env").read_text()
    assert "CUDA_VISIBLE_DEVICES=3" in environment and "Conflicts" not in (shadow.home / "live/vllm.yaml").read_text()


@pytest.mark.parametrize("running", [[], [PRODUCTION], [ARM_UNIT]])
def test_production_is_back_whatever_was_left(seat: SystemdSeat, running: list[str]):
    seat.start(config_of(seat), "k1")
    seat.machine.running = dict.fromkeys(running, generation(seat))
    seat.machine.calls.clear()
    seat.restore()
    assert list(seat.machine.running) == [PRODUCTION]
    assert not seat.unit_file.exists() and seat.machine.calls[-1] == f"start {PRODUCTION}"


def test_production_is_started_even_when_the_arm_does_not_go(seat: SystemdSeat, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("seatfleet.campaign.systemd.STOP_LIMIT_S", 0.0)
    seat.machine.left[ARM_UNIT] = 99
    seat.restore()
    assert PRODUCTION in seat.machine.running


def test_what_survives_a_stop_is_killed_and_a_held_port_is_named(seat: SystemdSeat):
    seat.start(config_of(seat), "k1")
    seat.machine.left[ARM_UNIT] = 1
    seat.stop()
    assert f"kill {ARM_UNIT}" in seat.machine.calls
    seat.machine.held = True
    with pytest.raises(SeatFailed, match="is still held by process 9"):
        seat.stop()


def test_a_unit_that_does_not_start_is_a_failed_boot(seat: SystemdSeat):
    seat.machine.fail = "campaign"
    with pytest.raises(SeatFailed, match="exit code 1"):
        seat.start(config_of(seat), "k1")


def test_nothing_of_a_finished_campaign_stays(seat: SystemdSeat):
    seat.start(config_of(seat), "k1")
    caches = [seat.root / seat.cache_root(name).lstrip("/") for name in ("c1/k1", "c2/k1")]
    for cache in caches:
        cache.mkdir(parents=True)
    seat.discard("c1")
    assert list(seat.home.iterdir()) == []
    assert [cache.exists() for cache in caches] == [False, True], "another campaign of the seat may go on"


def test_production_is_started_even_when_systemd_does_not_read_its_files_again(seat: SystemdSeat):
    seat.start(config_of(seat), "k1")

    def reload(unit: str) -> None:
        raise subprocess.TimeoutExpired("systemctl daemon-reload", 120)

    seat.machine.reload = reload
    seat.restore()
    assert seat.machine.calls[-1] == "start vllm-seat-lab-dense.service"


def test_the_arms_environment_drops_what_the_arm_drops():
    """Also a variable that is not known to matter: an arm without it must not keep what production has."""
    production = {"VLLM_A": "1", "VLLM_B": "2", "RAYON_X": "1", "HOME": "/var/cache/vllm/s"}
    production["VLLM_CACHE_ROOT"] = "/var/cache/vllm/s/x/vllm"
    arm = Arm("k1", {"env:VLLM_A": 9, "env:VLLM_B": None, "env:RAYON_X": None})
    live = Deployment((), {"model": "/m"}, production, "s")
    config = replace(derive_arm(live, arm, list(arm.values)), argv_hash="ab" * 32)
    found = arm_environment(production, config, "s", "k1")
    assert found["VLLM_A"] == "9" and not {"VLLM_B", "RAYON_X"} & found.keys() and found["HOME"]
    assert found["SEATFLEET_GENERATION"] == "abababababab"
    assert config.changes["env:RAYON_X"] == ("1", None)
    assert found["VLLM_CACHE_ROOT"] == "/var/cache/vllm-campaign/s/k1/vllm"


# --- the machine ------------------------------------------------------------------------------------------------------

REST = Calm(1000.0, 40.0, 60_000.0)


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (REST, []),
        (Calm(1060.0, 44.0, 1.0), []),
        (Calm(1100.0, 40.0, None), ["100 MiB of GPU memory"]),
        (Calm(1000.0, 46.0, None), ["6 C warmer"]),
        (Calm(None, None, 58_000.0), ["2000 MiB of host memory"]),
        (Calm(None, None, None), []),
    ],
)
def test_when_a_machine_is_calm(now: Calm, words: list[str]):
    found = now.excess(REST)
    assert len(found) == len(words) and all(word in text for word, text in zip(words, found, strict=True))


def test_the_next_boot_waits_for_the_machine_and_says_when_it_gave_up():
    clock = [0.0]
    readings = iter([Calm(1500.0, 40.0, None), Calm(1500.0, 40.0, None), REST])

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    found = calm_down(REST, 60.0, clock=lambda: clock[0], sleep=sleep, measure=lambda gpus: next(readings))
    assert found["waited_s"] == 64.0 and found["not_calm"] == []
    gave_up = calm_down(REST, 60.0, clock=lambda: clock[0], sleep=sleep, measure=lambda gpus: Calm(9000.0, 40.0, None))
    assert gave_up["waited_s"] == pytest.approx(960, abs=3) and "8000 MiB" in gave_up["not_calm"][0]


def test_facts_of_a_machine_with_and_without_cards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert host.facts()["gpus"] == [] and host.free_gpu_mib() is None and host.facts() == host.facts()
    fake = tmp_path / "nvidia-smi"

    def answer(text: str) -> None:
        fake.write_text(f"#!/bin/sh\nprintf '{text}\\n'\n")
        fake.chmod(0o755)

    answer("GPU-1, NVIDIA RTX, 580.1, 98.0, 97887, 600.00, 2617, Enabled, [N/A], 5, 16")
    assert host.facts()["gpus"][0]["driver_version"] == "580.1"
    answer("4242, python3\\n77, Xorg")
    assert host.gpu_processes(["3"]) == ["4242 python3", "77 Xorg"]
    answer("")
    assert host.gpu_processes(["3"]) == []
    answer("90000\\n2085")
    assert host.free_gpu_mib(["0", "1"]) == 2085.0
    answer("[N/A], 44")
    assert (host.look().gpu_used_mib, host.look().gpu_temp_c) == (None, 44.0)
