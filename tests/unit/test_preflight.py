"""The preflight: facts from captures of both classes of hosts, and one sentence for each injected fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_host import CAPTURES, fake_host, recorded_host
from seat_examples import WRITTEN

from seatfleet.core.host.gpus import DETAILS, QUERY
from seatfleet.core.host.hostfacts import LocalHost, Packages, read_facts
from seatfleet.core.host.preflight import (
    FAIL,
    OK,
    UNKNOWN,
    WARN,
    Check,
    ModelWish,
    ReleaseWish,
    Rules,
    SeatWish,
    Sight,
    Wishes,
    judge,
    load_wishes,
    look,
    report,
    table,
)
from seatfleet.core.host.sockets import Owner
from seatfleet.core.host.wishes import gather
from seatfleet.core.inventory.schema import Presets
from seatfleet.core.units import GIB, MIB

UUIDS = [f"GPU-{start}-0000-0000-0000-000000000000" for start in ("4aaaaaaa", "3bbbbbbb", "2ccccccc", "1ddddddd")]
RELEASE = ReleaseWish(
    "0.33.0+rtx.1", "/opt/vllm/releases/0.33.0-aaa", "3.12", 35, 5 * GIB, "580.65.06", ("nvcc", "ffmpeg")
)
RTX = Wishes(
    hardware={"architecture": "x86_64", "gpus": 4, "gpu_memory": "97887MiB", "compute_capability": "12.0"},
    releases=(RELEASE,),
    models=(ModelWish("flash", "/srv/models/flash/0123", 130 * GIB),),
    seats=(SeatWish("flash-next", 8022, RELEASE.name, (2,), 0.95, 96 * GIB),),
)
SPARK = Wishes(
    hardware={
        "architecture": "aarch64",
        "gpus": 1,
        "gpu_memory": "124610MiB",
        "unified_memory": True,
        "compute_capability": "12.1",
    },
    releases=(replace(RELEASE, name="0.23.0+gb10.1", needs=("nvcc",)),),
    seats=(
        SeatWish(
            "agent", 8031, "0.23.0+gb10.1", (0,), 0.82, environment={"TRITON_PTXAS_PATH": "/usr/local/cuda/bin/ptxas"}
        ),
    ),
)
WISHES = {"fv-ml1": RTX, "spark-1": SPARK}
RULES = Rules(kernel_deny=("6.17.0-1008-nvidia*",))


def roomy(sight: Sight) -> Sight:
    """Give the host disks of its own: the test's are of another size."""
    paths = ("/opt/vllm/releases", "/srv/models", "/var/cache/vllm")
    return replace(sight, free={path: (number, 2000 * GIB) for number, path in enumerate(paths)})


def preflight(host: LocalHost, wishes: Wishes, rules: Rules = RULES, **seen: Any) -> list[Check]:
    return judge(read_facts(host), wishes, replace(roomy(look(host, wishes)), **seen), rules)


def faults(checks: list[Check]) -> list[str]:
    return [f"{check.status}: {check}" for check in checks if check.status != OK]


def test_captures_say_where_they_are_from() -> None:
    captures = sorted(CAPTURES.glob("*.txt"))
    assert len(captures) == 6
    for capture in captures:
        head = capture.read_text().split("\n\n")[0]
        assert "Constructed, no such machine was at hand." in head
        assert "Sources:" in head


def test_facts_of_four_cards(tmp_path: Path) -> None:
    facts = read_facts(fake_host(tmp_path, "fv-ml1"))
    assert [card.uuid for card in facts.gpus] == UUIDS, "not in PCI order, which is that of indices in a seat"
    first = facts.gpus[0]
    assert (first.memory, first.used, first.driver) == (97887 * MIB, 1 * MIB, "580.105.06")
    assert (first.capability, first.persistence, first.power_limit, first.throttle) == ("12.0", True, 600.0, ())
    assert facts.driver.module == "580.105.06"
    assert len(facts.driver.on_the_bus) == 4
    assert facts.driver.trouble == ""
    assert facts.packages.driver == ("libnvidia-compute-580", "nvidia-driver-580-open")
    assert facts.packages.held == set(facts.packages.driver)
    assert facts.packages.unattended
    assert (facts.glibc, facts.systemd, facts.cgroup) == ((2, 39), 255, "v2")
    assert facts.memory.available == 511705088 * 1024
    assert (facts.synchronized, facts.ffmpeg, facts.kernel) == (True, (58,), "6.8.0-85-generic")


def test_facts_of_unified_memory(tmp_path: Path) -> None:
    facts = read_facts(fake_host(tmp_path, "spark-1"))
    (card,) = facts.gpus
    assert (card.name, card.memory, card.used, card.power_limit) == ("NVIDIA GB10", None, None, None)
    assert (card.capability, card.persistence, facts.architecture) == ("12.1", True, "aarch64")
    assert round(facts.memory.total / GIB, 2) == 121.69


def test_a_driver_that_does_not_know_the_newer_fields_still_names_its_cards(tmp_path: Path) -> None:
    facts = read_facts(fake_host(tmp_path, "fv-ml1-old-driver"))
    assert [card.uuid for card in facts.gpus] == UUIDS
    assert {card.capability for card in facts.gpus} == {None}


def test_an_unknown_query_of_the_fake_is_refused(tmp_path: Path) -> None:
    host = fake_host(tmp_path, "fv-ml1")
    assert host.run("nvidia-smi", *QUERY).code == host.run("nvidia-smi", *DETAILS).code == 0
    unknown = host.run("nvidia-smi", "--query-gpu=uuid,no.such.field", "--format=csv,noheader,nounits")
    assert unknown.code == 2
    assert "is not a valid field to query" in unknown.output


@pytest.mark.parametrize("capture", ["fv-ml1", "spark-1"])
def test_a_good_host_has_nothing_to_say(capture: str, tmp_path: Path) -> None:
    checks = preflight(fake_host(tmp_path, capture), WISHES[capture])
    assert faults(checks) == []
    assert len(checks) >= 20


FAULTS = yaml.safe_load((Path(__file__).parent / "tables/preflight_faults.yml").read_text())
SMI = "$ nvidia-smi --query-gpu=uuid,pci"
MORE = "$ nvidia-smi --query-gpu=uuid,compute_cap"
FIRST = "GPU-4aaaaaaa-0000-0000-0000-000000000000, 12.0, Enabled, 600.00, 0x0000000000000001"
THIRD = FIRST.replace("4aaaaaaa", "2ccccccc")


@pytest.mark.parametrize("fault", FAULTS, ids=[fault["sentence"].split(":")[1].strip() for fault in FAULTS])
def test_one_fault_gives_one_sentence(fault: Mapping[str, Any], tmp_path: Path) -> None:
    host = recorded_host(tmp_path, fault["capture"], fault["changes"])
    found = faults(preflight(host, SPARK if fault["capture"].startswith("spark") else RTX))
    assert len(found) == 1, found
    assert found[0].startswith(fault["sentence"]), found[0]


def test_a_driver_that_was_upgraded_under_its_module(tmp_path: Path) -> None:
    """One cause, the sentences that follow from it, and what cannot be known without a driver is not claimed."""
    checks = preflight(recorded_host(tmp_path, "fv-ml1-driver-mismatch"), RTX)
    assert faults(checks) == [
        "fail: driver answers: expected nvidia-smi to name 4 cards, seen Failed to initialize NVML: Driver/library "
        "version mismatch NVML library version: 580.126; the driver was upgraded under the running kernel module "
        "(580.105.06 is loaded): reboot, then hold its packages",
        "fail: driver packages: expected driver packages held, seen unattended upgrades on, and not held: "
        "libnvidia-compute-580, nvidia-driver-580-open; apt-mark hold libnvidia-compute-580 nvidia-driver-580-open, or "
        "name them in gpu_host_held_packages",
    ]


def test_an_old_driver(tmp_path: Path) -> None:
    checks = preflight(recorded_host(tmp_path, "fv-ml1-old-driver"), RTX)
    assert faults(checks) == [
        "fail: driver for 0.33.0+rtx.1: expected 580.65.06 or newer, seen 570.124.04; install driver 580.65.06 or "
        "newer and reboot, or run a release for an older CUDA"
    ]


def test_persistence_is_the_cards_or_the_services(tmp_path: Path) -> None:
    off = {MORE: (FIRST, FIRST.replace("Enabled", "Disabled"))}
    assert faults(preflight(recorded_host(tmp_path / "1", "fv-ml1", off), RTX)) == []
    stopped = {**off, "$ systemctl is-active": ("= 0", "= 3")}
    (found,) = faults(preflight(recorded_host(tmp_path / "2", "fv-ml1", stopped), RTX))
    assert found.startswith("fail: persistence: expected persistence mode on, seen off on 00000000:01:00.0; systemctl")


@pytest.mark.parametrize(
    ("seen", "sentence"),
    [
        (
            {"free": dict.fromkeys(("/opt/vllm/releases", "/srv/models", "/var/cache/vllm"), (7, 150 * GIB))},
            "fail: disk /opt/vllm/releases /srv/models /var/cache/vllm: expected 146.00 GiB free",
        ),
        (
            {"strangers": {"flash-next": "process 99 (python3) in /user.slice"}},
            "fail: port of flash-next: expected port 8022 free or the seat's own, seen process 99 (python3) in "
            "/user.slice; end that process, or give the seat another port",
        ),
    ],
)
def test_what_is_there_of_the_wishes(seen: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    checks = preflight(recorded_host(tmp_path, "fv-ml1"), RTX, **seen)
    found = faults(checks)
    if "free" in seen:
        assert found == [], "150 GiB are enough for 130 of weights, three times 5 of wheels and 1 to keep"
        less = {path: (number, 140 * GIB) for path, (number, _) in seen["free"].items()}
        found = faults(preflight(recorded_host(tmp_path / "less", "fv-ml1"), RTX, free=less))
    assert len(found) == 1
    assert found[0].startswith(sentence)


def test_what_runs_already_needs_no_room(tmp_path: Path) -> None:
    """A running seat has its table and its card; only the total has to fit, as two tables in it would."""
    changes = {
        "@ /proc/meminfo": ("MemAvailable:   511705088", "MemAvailable:    91705088"),
        MORE: (f"{THIRD}, 1", f"{THIRD}, 92000"),
    }
    host = recorded_host(tmp_path, "fv-ml1", changes)
    assert faults(preflight(host, RTX, running=frozenset({"flash-next"}))) == []
    seats = tuple(replace(RTX.seats[0], name=f"s{number}", port=9000 + number, gpus=(0,)) for number in range(6))
    found = faults(preflight(host, replace(RTX, seats=seats), running=frozenset(seat.name for seat in seats)))
    assert len(found) == 1
    assert "two seats are two tables" in found[0]


def test_a_mirror_matters_only_to_what_is_missing(tmp_path: Path) -> None:
    host = recorded_host(tmp_path, "fv-ml1")
    (found,) = faults(preflight(host, replace(RTX, mirror="/srv/mirror")))
    assert found.startswith(
        "fail: mirror: expected /srv/mirror, for 0.33.0+rtx.1, flash, seen no such directory; mount"
    )
    everything = frozenset({RELEASE.path, "/srv/models/flash/0123"})
    assert faults(preflight(host, replace(RTX, mirror="/srv/mirror"), installed=everything)) == []


def test_ninja_of_an_installed_release(tmp_path: Path) -> None:
    host = recorded_host(tmp_path, "fv-ml1")
    wishes = replace(RTX, releases=(replace(RELEASE, needs=("ninja",)),))
    assert faults(preflight(host, wishes)) == [], "not installed yet: its lock has it"
    marker = host.at(f"{RELEASE.path}/release.json")
    marker.parent.mkdir(parents=True)
    marker.touch()
    (found,) = faults(preflight(host, wishes))
    assert found.startswith("fail: ninja for 0.33.0+rtx.1: expected ninja in the release, seen none; build")


def test_a_host_without_cards_is_asked_for_none(tmp_path: Path) -> None:
    bare = dict.fromkeys((SMI, MORE), ("= 0", "= 9"))
    host = recorded_host(tmp_path, "fv-ml1", bare)
    wishes = Wishes(hardware={"architecture": "x86_64", "gpus": 0}, releases=(replace(RELEASE, needs=()),))
    assert faults(preflight(host, wishes)) == []


def test_what_cannot_be_read_is_not_passed(tmp_path: Path) -> None:
    changes = {
        "$ timedatectl": ("NTPSynchronized=yes", "Failed to connect to bus"),
        "@ /proc/sys/fs/nr_open": ("1048576", "permission denied"),
    }
    checks = preflight(
        recorded_host(tmp_path, "fv-ml1", changes), replace(RTX, releases=(replace(RELEASE, min_driver=None),))
    )
    assert {check.id for check in checks if check.status == UNKNOWN} == {
        "time",
        "open files",
        "driver for 0.33.0+rtx.1",
    }
    assert {check.status for check in checks} == {OK, UNKNOWN}


def test_rules() -> None:
    rules = Rules.load({"kernel_deny": ["6.17.0-1008-*"], "memory_reserve": "10GiB", "synchronized": False})
    assert (rules.kernel_deny, rules.memory_reserve, rules.synchronized) == (("6.17.0-1008-*",), 10 * GIB, False)
    with pytest.raises(ValueError, match=r"expected disk_reserve, kernel_allow.*seen kernel_denied"):
        Rules.load({"kernel_denied": []})
    with pytest.raises(ValueError, match=r"kernel_deny: expected a list of kernel releases, seen '6.17'"):
        Rules.load({"kernel_deny": "6.17"})


def test_allowed_kernels(tmp_path: Path) -> None:
    host = recorded_host(tmp_path, "spark-1")
    assert faults(preflight(host, SPARK, Rules(kernel_allow=("6.17.0-10[23]*-nvidia",)))) == []
    (found,) = faults(preflight(host, SPARK, Rules(kernel_allow=("6.14.*",))))
    assert found.startswith("fail: kernel: expected one of 6.14.*, seen 6.17.0-1031-nvidia; boot a listed kernel")


def test_wishes_survive_ansible() -> None:
    assert load_wishes(asdict(RTX)) == RTX


def test_one_table_for_the_fleet(tmp_path: Path) -> None:
    reports = []
    for name, capture in (("fv-ml1", "fv-ml1-missing-card"), ("spark-1", "spark-1")):
        host = recorded_host(tmp_path / name, capture)
        facts = read_facts(host)
        reports.append(report(name, facts, judge(facts, WISHES[name], roomy(look(host, WISHES[name])), RULES)))
    lines = table(reports).splitlines()
    assert lines[0].split()[:3] == ["HOST", "CARDS", "DRIVER"]
    assert "3 x RTX PRO 6000 Blackwell Server Edition" in lines[1]
    assert lines[2].split()[:6] == ["spark-1", "1", "x", "GB10", "580.173.02", "6.17.0-1031-nvidia"]
    assert lines[2].split()[-4:] == [str(len(reports[1]["checks"])), "0", "0", "0"]
    assert lines[3].startswith("fv-ml1: failed: cards: expected 4 cards, seen 3")
    assert len(lines) == 4
    assert {check["status"] for check in reports[0]["checks"]} == {OK, FAIL}
    assert WARN == "warn"


@pytest.mark.parametrize(
    ("seen", "fault"),
    [
        (frozenset({"10.0.0.2", "fe80::1"}), None),
        (frozenset({"10.0.0.9"}), "seen 10.0.0.9"),
        (frozenset(), "seen no address"),
        (None, "seen no interface fast0"),
    ],
)
def test_the_address_of_a_seat_over_two_hosts(tmp_path: Path, seen: frozenset[str] | None, fault: str | None) -> None:
    linked = replace(SPARK, seats=(replace(SPARK.seats[0], link=("fast0", "10.0.0.2")),))
    assert load_wishes(asdict(linked)) == linked
    found = faults(preflight(fake_host(tmp_path, "spark-1"), linked, addresses={"fast0": seen}))
    todo = "configure the link between the two hosts, or correct nodes of the seat"
    assert found == ([f"fail: link of agent: expected 10.0.0.2 on fast0, {fault}; {todo}"] if fault else [])


def test_addresses_of_an_interface(tmp_path: Path) -> None:
    (tmp_path / "ip").write_text("#!/bin/sh\n[ $5 = lo ] && echo lo UNKNOWN 127.0.0.1/8 ::1/128\n")
    (tmp_path / "ip").chmod(0o755)
    host = LocalHost(path=f"{tmp_path}:/usr/bin:/bin")
    linked = [replace(RTX.seats[0], link=(name, "127.0.0.1")) for name in ("lo", "none")]
    seen = look(host, Wishes(hardware={}, seats=tuple(linked))).addresses
    assert seen == {"lo": frozenset({"127.0.0.1", "::1"}), "none": None}


def test_a_follower_has_no_port_that_another_seat_could_hold(tmp_path: Path) -> None:
    """The head's port may be a seat's of its own on this host."""

    class Busy(LocalHost):
        def listeners(self, port: int) -> list[Owner]:
            return [Owner(7, "python3", "/system.slice/vllm-seat-own.service")]

    host = Busy(tmp_path, "/nowhere")
    for port, expected in ((8031, {"agent"}), (None, set())):
        wishes = replace(SPARK, seats=(replace(SPARK.seats[0], port=port),))
        assert set(look(host, load_wishes(asdict(wishes))).strangers) == expected


def test_followers_are_told_from_heads() -> None:
    nodes = {
        "port": 29500,
        "hosts": [{"host": h, "address": f"10.0.0.{n}", "interface": "e"} for n, h in enumerate("ab", 1)],
    }
    seats = {"pair": {**WRITTEN["lab-dense"], "nodes": nodes}}
    for host, port in (("a", WRITTEN["lab-dense"]["port"]), ("b", None)):
        (seat,) = gather(
            seats,
            host,
            presets=Presets(),
            hardware={"gpus": 0},
            environment={},
            releases=(),
            catalogue={},
            models={},
            project=Path("/nowhere"),
            release_root="",
            model_root="",
            mirror=None,
        ).seats
        assert (seat.port, seat.link) == (port, ("e", f"10.0.0.{'ab'.index(host) + 1}"))


def test_a_pattern_of_the_operator_that_is_no_expression_keeps_nothing() -> None:
    packages = Packages(("nvidia-driver-580", "libnvidia-x"), frozenset(), True, ("*nvidia*", "libnvidia"), False)
    assert packages.loose == ("nvidia-driver-580",)
