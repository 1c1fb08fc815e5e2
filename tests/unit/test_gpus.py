"""Cards of a host: nvidia-smi's output and the facts module over a scripted nvidia-smi."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args

from seatfleet.core.host.gpus import DETAILS, QUERY, Gpu, memory_held, parse_query, read_cards
from seatfleet.core.host.tenants import parse_apps
from seatfleet.core.seat.admission import Card, parse_cards
from seatfleet.core.units import MIB

PROJECT = Path(__file__).resolve().parents[2]
RTX = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
# nvidia-smi lists by its own index; CUDA_DEVICE_ORDER=PCI_BUS_ID goes by address.
FOUR = f"""\
GPU-2ccccccc-0000-0000-0000-000000000000, 00000000:C1:00.0, {RTX}, 97887, 580.95.05
GPU-4aaaaaaa-0000-0000-0000-000000000000, 00000000:01:00.0, {RTX}, 97887, 580.95.05
GPU-1ddddddd-0000-0000-0000-000000000000, 00000001:01:00.0, {RTX}, 97887, 580.95.05
GPU-3bbbbbbb-0000-0000-0000-000000000000, 00000000:41:00.0, {RTX}, 97887, 580.95.05
"""
GB10 = "GPU-eeeeeeee-0000-0000-0000-000000000000, 0000000F:01:00.0, NVIDIA GB10, [N/A], 580.95.05\n"


def test_cards_are_in_pci_order() -> None:
    cards = parse_query(FOUR)
    assert [card.uuid[4:12] for card in cards] == ["4aaaaaaa", "3bbbbbbb", "2ccccccc", "1ddddddd"]
    assert cards[0] == Gpu(
        "GPU-4aaaaaaa-0000-0000-0000-000000000000", "00000000:01:00.0", RTX, 97887 * MIB, "580.95.05"
    )


def test_unified_memory_is_not_known_to_the_driver() -> None:
    assert [card.memory for card in parse_query(GB10)] == [None]


def test_no_cards() -> None:
    assert parse_query("\n") == []


@pytest.mark.parametrize("text", ["No devices were found\n", "GPU-1, 00:00:00.0, x\n", "index, uuid, a, b, c\n"])
def test_other_output_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected uuid, pci"):
        parse_query(text)


def nvidia_smi(tmp_path: Path, output: str, code: int = 0) -> str:
    """Write a command that answers exactly the query of the module; any other is an error."""
    command = tmp_path / "nvidia-smi"
    (tmp_path / "output").write_text(output)
    wanted = " ".join(QUERY)
    command.write_text(f'#!/bin/sh\n[ "$*" = "{wanted}" ] || exit 99\ncat {tmp_path}/output\nexit {code}\n')
    command.chmod(0o755)
    return str(command)


@pytest.mark.parametrize(
    ("output", "code", "expected", "check", "found"),
    [
        (FOUR, 0, 4, False, 4),
        (FOUR, 0, 1, False, 4),
        (FOUR, 0, 5, False, "expected 5 GPUs, seen 4. Is the driver loaded"),
        (FOUR, 0, 5, True, 4),
        (
            "Failed to initialize NVML: Driver/library version mismatch",
            18,
            1,
            False,
            "seen 0: Failed to initialize NVML",
        ),
        ("garbage", 0, 1, False, "nvidia-smi: expected uuid"),
        (None, 0, 1, False, "no /nowhere/nvidia-smi on this host"),
        (None, 0, 1, True, 0),
    ],
)
def test_facts(
    output: str | None,
    code: int,
    expected: int,
    check: bool,
    found: int | str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(str(PROJECT / "collections"))
    module = importlib.import_module("ansible_collections.seatfleet.fleet.plugins.modules.gpu_facts")
    command = "/nowhere/nvidia-smi" if output is None else nvidia_smi(tmp_path, output, code)
    options = {"expected": expected, "nvidia_smi": command, "_ansible_check_mode": check}
    with patch_module_args(options), pytest.raises(SystemExit):
        module.main()
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    if isinstance(found, str):
        assert result["failed"] is True
        assert found in result["msg"]
    else:
        assert len(result["ansible_facts"]["seatfleet_gpus"]) == found
        assert bool(result.get("warnings")) is (found < expected)


@pytest.mark.parametrize(("entry", "more"), [("stage", {}), ("adopt", {"seat_adopt_state": "taken"})])
def test_whatever_renders_knows_the_cards(entry: str, more: dict[str, Any], tmp_path: Path) -> None:
    """A seat that is taken over by its index would be restarted by the next run, which knows the card's UUID."""
    nvidia_smi(tmp_path, FOUR)
    role = {
        "ansible.builtin.import_role": {"name": str(PROJECT / "roles/seat"), "tasks_from": entry},
        # What comes after the cards needs a host of the fleet.
        "vars": {"seat_seats": {}, "seat_hardware": {"gpus": 4, "architecture": "x86_64"}, **more},
    }
    seen = {"ansible.builtin.debug": {"msg": "cards: {{ ansible_facts['seatfleet_gpus'] | default([]) | length }}"}}
    play = {"hosts": "localhost", "connection": "local", "gather_facts": False}
    play["vars"] = {"seat_api_key_secret": "secret", "releases": {}, "models": {}, "fleet_project_dir": str(PROJECT)}
    play["vars"] |= {"fleet_seat_presets": {}}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([{**play, "tasks": [{"block": [role], "always": [seen]}]}]))
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"),
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }
    command = ["ansible-playbook", "--check", "-i", "localhost,", str(tmp_path / "play.yml")]
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
    assert "cards: 4" in done.stdout, done.stdout + done.stderr


USED = "GPU-a, 90000\nGPU-b, 500\n"
HOLDERS = "17, GPU-a, 70000\n18, GPU-a, 19000\n17, GPU-b, 400\n"


@pytest.mark.parametrize(
    ("used", "holders", "pids", "held"),
    [
        (USED, HOLDERS, {17}, (90000 * MIB, 70000 * MIB)),
        (USED, HOLDERS, {17, 18}, (90000 * MIB, 89000 * MIB)),
        (USED, "", (), (90000 * MIB, 0)),
        ("GPU-a, [N/A]\n", "17, GPU-a, [N/A]\n", {17}, None),
        ("", "", {17}, None),
    ],
)
def test_memory_that_processes_hold(used: str, holders: str, pids: set[int], held: tuple[int, int] | None) -> None:
    assert memory_held(used, holders, {"GPU-a"}, pids) == held


DETAILED = "GPU-2ccccccc-0000-0000-0000-000000000000, 12.0, Enabled, {}, {}, {}\n"
INFOROM = "WARNING: infoROM is corrupted at gpu 0000:41:00.0\n"


@pytest.mark.parametrize(
    "unreadable", ["[Unknown Error]", "[GPU is lost]", "[Insufficient Permissions]", "[N/A]", "N/A", "Unknown Error"]
)
def test_one_value_that_cannot_be_read_costs_no_card(unreadable: str) -> None:
    answers = {QUERY: (0, FOUR), DETAILS: (0, DETAILED.format(unreadable, unreadable, unreadable))}
    cards, trouble = read_cards(answers.__getitem__)
    card = cards[2]
    assert (len(cards), trouble) == (4, "")
    assert (card.capability, card.power_limit, card.throttle, card.used) == ("12.0", None, (), None)
    assert memory_held(f"GPU-a, {unreadable}\n", f"{unreadable}, GPU-a, 5\n", {"GPU-a"}, {5}) is None
    assert memory_held("GPU-a, 7\n", f"{unreadable}, GPU-a, 5\n", {"GPU-a"}, {5}) == (7 * MIB, 0)


def test_a_corrupted_inforom_is_no_missing_card() -> None:
    """Exit code 14 and a line below the answer; the cards work."""
    answers = {QUERY: (14, FOUR + INFOROM), DETAILS: (14, DETAILED.format("600.00", "0x8", "9") + INFOROM)}
    cards, trouble = read_cards(answers.__getitem__)
    assert (len(cards), trouble) == (4, "")
    assert (cards[2].power_limit, cards[2].throttle) == (600.0, ("hardware slowdown",))
    assert parse_cards(f"0, GPU-a, 97887, 2085\n{INFOROM}") == [Card("0", "GPU-a", 97887 * MIB, 2085 * MIB)]
    assert [tenant.pid for tenant in parse_apps(f"GPU-a, 12, 300\n{INFOROM}", str)] == [12]
