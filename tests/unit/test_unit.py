"""The unit of a seat."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from seatfleet.core.seat.unit import START_LIMIT_BURST, UnitSpec, exec_start, render_unit, start_window_s

SPEC = UnitSpec("flash-next", "vLLM seat flash-next: tiny on port 8022", 8022, ready_timeout_s=600, stop_timeout_s=120)
GPU = UnitSpec("a", "d", 8031, 1800, 120, devices=("char-nvidia*",), capabilities=("CAP_SYS_PTRACE",))


def settings(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if "=" in line:
            name, value = line.split("=", 1)
            found.setdefault(name, []).append(value)
    return found


def test_exec_start_does_not_depend_on_settings() -> None:
    assert settings(render_unit(SPEC))["ExecStart"] == [" ".join(exec_start("flash-next"))]
    assert not set(settings(render_unit(SPEC))["ExecStart"][0]) & set("\"'{}$%\\")


def test_times_come_from_the_seat() -> None:
    found = settings(render_unit(SPEC))
    assert (found["TimeoutStartSec"], found["TimeoutStopSec"]) == (["600"], ["120"])


@pytest.mark.parametrize("load_s", [1, 500, 600])
def test_a_seat_that_dies_at_the_end_of_every_load_is_caught(load_s: int) -> None:
    # the burst is reached when that many starts lie within the window
    assert START_LIMIT_BURST * load_s < start_window_s(600)


def test_description_is_not_expanded() -> None:
    assert settings(render_unit(UnitSpec("a", "50% of %H", 8031, 600, 120)))["Description"] == ["50%% of %%H"]


@pytest.mark.parametrize(
    ("spec", "private", "devices", "capabilities"),
    [(SPEC, ["yes"], None, [""]), (GPU, None, ["char-nvidia* rw"], ["CAP_SYS_PTRACE"])],
)
def test_devices_and_capabilities(
    spec: UnitSpec, private: list[str] | None, devices: list[str] | None, capabilities: list[str]
) -> None:
    found = settings(render_unit(spec))
    assert found.get("PrivateDevices") == private
    assert found.get("DeviceAllow") == devices
    # closed also where PrivateDevices is not: ProtectClock alone would turn the filter on and hide the GPUs
    assert found["DevicePolicy"] == ["closed"]
    assert found["CapabilityBoundingSet"] == found["AmbientCapabilities"] == capabilities
    assert found["NoNewPrivileges"] == ["yes"]


@pytest.mark.parametrize("spec", [SPEC, GPU])
@pytest.mark.parametrize(("extra", "good"), [("", True), ("ProtectSytem=strict\n", False)])
def test_systemd_understands_every_line(tmp_path: Path, spec: UnitSpec, extra: str, good: bool) -> None:
    text = render_unit(spec).replace("[Install]", f"{extra}[Install]")
    unit = tmp_path / f"vllm-seat-{spec.seat}.service"
    # the commands are not on this machine
    unit.write_text("\n".join(_runnable(line) for line in text.splitlines()) + "\n")
    command = ["systemd-analyze", "verify", "--man=no", "--generators=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if unit.name in line]
    assert (complaints == []) is good, done.stderr


def _runnable(line: str) -> str:
    name, separator, _ = line.partition("=")
    return f"{name}=/bin/true" if separator and name.startswith("Exec") else line
