"""Is there room for a seat while its old process still serves: cards, unified memory, and who holds the rest."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from seatfleet.core.host.tenants import Tenant, names, parse_apps
from seatfleet.core.seat.admission import Card, large_processes, parse_cards, shortages
from seatfleet.core.units import GIB, MIB

CARD = "GPU-11111111-2222-3333-4444-555555555555"
OTHER = "GPU-99999999-2222-3333-4444-555555555555"
TOTAL = 96 * GIB
MEMINFO = "MemTotal:       127926272 kB\nMemFree: 1 kB\nMemAvailable:   62914560 kB\n"  # 122 and 60 GiB


def manifest(share: float | None = 0.9, card: str = CARD) -> dict[str, Any]:
    return {"declared": {"gpu-memory-utilization": share}, "environment": {"CUDA_VISIBLE_DEVICES": card}}


def card(free: int | None, total: int | None = TOTAL) -> Card:
    return Card("0", CARD, total, free)


def tenant(pid: int, gib: float | None, gpu: str = CARD, name: str = "a.service") -> Tenant:
    return Tenant(gpu, pid, None if gib is None else int(gib * GIB), name)


@pytest.mark.parametrize(
    ("free", "tenants", "pids", "refused"),
    [
        (90, [], (), False),  # an empty card
        (20, [], (), True),  # held by nobody who is listed
        (10, [tenant(7, 80)], (7,), False),  # its own old process gives back
        (10, [tenant(7, 40), tenant(8, 40)], (7,), True),
        (10, [tenant(7, 40), tenant(8, 40, OTHER)], (7,), True),
        (10, [tenant(7, None)], (7,), False),  # nobody knows: not refused
        (10, [tenant(8, 80)], (7,), False),  # the driver lists none of its processes: not refused
        (86, [], (), True),  # 86.4 wanted less 0.25 for rounding is 86.15
    ],
)
def test_a_card(free: int, tenants: list[Tenant], pids: tuple[int, ...], refused: bool) -> None:
    found = shortages(manifest(), None, [card(free * GIB)], tenants, pids, MEMINFO)
    assert bool(found) == refused


def test_the_holders_are_named_largest_first() -> None:
    rest = [tenant(8, 12, name="vllm-seat-mog.service"), tenant(9, 30, name="python3"), tenant(7, 40)]
    (found,) = shortages(manifest(), None, [card(10 * GIB)], rest, (7,), MEMINFO)
    assert found.startswith(f"card {CARD} has 10.00 GiB free and the seat's own process gives back 40.00 GiB")
    assert "the seat wants 86.40 GiB: python3 (process 9) holds 30.00 GiB; vllm-seat-mog.service (process 8)" in found


def test_only_the_seats_own_cards_count() -> None:
    full = Card("0", OTHER, TOTAL, 0)
    assert shortages(manifest(), None, [full, card(TOTAL)], [], (), MEMINFO) == []
    assert len(shortages(manifest(card="0"), None, [full], [], (), MEMINFO)) == 1  # named by index


@pytest.mark.parametrize("share", [None, "0.9"])
def test_a_seat_whose_share_nobody_declared_is_not_judged(share: Any) -> None:
    assert shortages(manifest(share), None, [card(0)], [], (), MEMINFO) == []


@pytest.mark.parametrize(
    ("share", "serving", "tenants", "refused"),
    [
        (0.4, None, [], False),  # 48.8 of 60 GiB
        (0.6, None, [], True),  # 73.2
        (0.6, manifest(0.3), [], False),  # what runs gives 36.6 back
        (0.6, manifest(0.3), [tenant(7, 5)], True),  # the driver knows better: 5
        (0.6, manifest(0.3), [tenant(7, 20)], False),
    ],
)
def test_unified_memory(share: float, serving: Mapping[str, Any] | None, tenants: list[Tenant], refused: bool) -> None:
    found = shortages(
        manifest(share), serving, [card(None, None)], tenants, (7,), MEMINFO, lambda: ["gdm (process 5) has 3.00 GiB"]
    )
    assert bool(found) == refused
    if refused:
        assert "this host has 60.00 GiB free" in found[0]
        assert "gdm (process 5)" in found[0]


def test_parsing() -> None:
    assert parse_cards(f"0, {CARD}, 97887, 2085\n1, {OTHER}, [N/A], [N/A]\n") == [
        Card("0", CARD, 97_887 * MIB, 2_085 * MIB),
        Card("1", OTHER, None, None),
    ]
    with pytest.raises(ValueError, match="expected index, UUID"):
        parse_cards("No devices were found\n")
    found = parse_apps(f"{CARD}, 12, 300\n{CARD}, 13, [N/A]\n", lambda pid: f"unit{pid}")
    assert [str(one) for one in found] == [
        "unit12 (process 12) holds 0.29 GiB",
        "unit13 (process 13) holds memory of unknown size",
    ]
    assert names(found + found) == ["unit12", "unit13"]
    with pytest.raises(ValueError, match="of a process"):
        parse_apps("nonsense\n")


@pytest.mark.parametrize("page", [4096, 65536])  # aarch64 has kernels with either
def test_large_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: int) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": page}.__getitem__)
    for pid, pages, comm in ((5, GIB // page, "desktop"), (6, 10, "small"), (7, 9 * GIB // page, "mine")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "statm").write_text(f"1 {pages} 0")
        (tmp_path / str(pid) / "comm").write_text(f"{comm}\n")
    (tmp_path / "self").mkdir()
    assert large_processes({7}, tmp_path) == ["desktop (process 5) has 1.00 GiB resident"]
