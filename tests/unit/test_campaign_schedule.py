from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatfleet.campaign.definition import load_definition
from seatfleet.campaign.schedule import boot_order, make_schedule, number_slots, rep_order

ARMS = [f"k{i}" for i in range(1, 9)]


@pytest.mark.parametrize(
    ("mode", "order"),
    [
        ("screen", "off k1 k2 k3 off"),
        ("palindrome", "off k1 k2 k3 off k3 k2 k1 off"),
        ("confirm", "off k1 k2 k3 off k3 k1 k2 off k2 k3 k1 off"),
    ],
)
def test_orders_of_the_three_arm_campaign(mode: str, order: str):
    assert " ".join(boot_order("off", ["k1", "k2", "k3"], mode)) == order


@given(
    count=st.integers(1, 8),
    mode=st.sampled_from(["palindrome", "confirm"]),
    slope=st.floats(-5, 5),
    start=st.floats(-100, 100),
)
def test_linear_drift_cancels_in_every_difference(count: int, mode: str, slope: float, start: float):
    order = boot_order("off", ARMS[:count], mode)

    def mean(arm: str) -> float:
        drifted = [start + slope * position for position, name in enumerate(order) if name == arm]
        return sum(drifted) / len(drifted)

    for arm in ARMS[:count]:
        assert mean(arm) - mean("off") == pytest.approx(0, abs=1e-9)


def test_an_arm_that_is_broken_on_purpose_boots_once_after_all_that_is_compared():
    arms = {"off": {}, "bad": {"speculative-config": {"method": "mtp", "num_speculative_tokens": 2}}}
    arms["k1"] = {"speculative-config": {"method": "mtp", "num_speculative_tokens": 1}}
    written = {"seat": "s", "question": "?", "studied_keys": ["speculative-config"], "arms": arms}
    definition = load_definition({**written, "positive_controls": ["bad"]}, name="mtp", where="t")
    assert [slot.directory for slot in make_schedule(definition)] == [
        "00_off_1", "01_k1_1", "02_off_2", "03_k1_2", "04_off_3", "05_bad_1",
    ]  # fmt: skip


def test_linear_drift_does_not_cancel_in_the_order_of_the_seed():
    order = boot_order("off", ["k1", "k2", "k3"], "screen")
    centre = sum(i for i, name in enumerate(order) if name == "off") / 2
    assert order.index("k1") - centre == -1 and order.index("k3") - centre == 1


@pytest.mark.parametrize("count", range(1, 9))
@pytest.mark.parametrize(("mode", "least"), [("screen", 1), ("palindrome", 2), ("confirm", 3)])
def test_every_arm_gets_its_boots_and_the_control_one_more(count: int, mode: str, least: int):
    order = boot_order("off", ARMS[:count], mode)
    boots = [order.count(arm) for arm in ARMS[:count]]
    assert len(set(boots)) == 1 and boots[0] >= least
    assert order.count("off") == boots[0] + 1
    assert order[0] == order[-1] == "off"


def test_slots_are_numbered_per_arm_and_sort_by_name():
    slots = number_slots(boot_order("off", ["k1"], "palindrome"))
    assert [slot.directory for slot in slots] == ["00_off_1", "01_k1_1", "02_off_2", "03_k1_2", "04_off_3"]


def test_cells_are_shuffled_per_repetition_and_the_same_again():
    cells = [(shape, c) for shape in ("prose", "code") for c in (1, 4, 8)]
    first = rep_order("id", 0, 0, cells)
    assert sorted(first) == sorted(cells)
    assert first == rep_order("id", 0, 0, cells)
    assert len({rep_order("id", slot, rep, cells) for slot in range(4) for rep in range(4)}) > 8
