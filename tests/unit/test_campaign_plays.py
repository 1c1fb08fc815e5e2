"""What the play and the role of a campaign decide, as their variables say it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_alias_plays import PLAYS, rendered, trusted

PROJECT = Path(__file__).resolve().parents[2]
VARS = yaml.safe_load((PROJECT / "roles/campaign/vars/main.yml").read_text())
PLAN = yaml.safe_load((PROJECT / "roles/campaign/tasks/plan.yml").read_text())
IDLE = ["ActiveState=inactive", "Description=vllm-campaign-run-s.service"]
BUSY = ["ActiveState=active", "Description=Campaign mtp of seat s"]


def variables(known: Any = None, unit: list[str] = IDLE, state: Any = None, **changes: Any) -> dict[str, Any]:
    given = {
        "campaign_definitions": {"mtp": {"seat": "s"}},
        "campaign_name": "mtp",
        "campaign_seat": "s",
        "campaign_base": "/raw",
        "campaign_seatctl": "seatctl",
        "campaign_new": False,
        "campaign_window": True,
        "__campaign_known": {"skipped": True} if known is None else {"stdout": json.dumps(known)},
        "__campaign_measuring": {"stdout_lines": unit},
        "__campaign_plan": {"stdout": json.dumps({"order": ["off", "k2", "off"]})},
        "__campaign_state": {"stdout": json.dumps(state)},
    }
    return {**trusted(VARS), **given, **changes}


def value(name: str, **changes: Any) -> Any:
    return rendered("{{ " + name + " }}", variables(**changes))


def allowed(task: str, **changes: Any) -> bool:
    (found,) = (entry for entry in PLAN if entry["name"] == f"plan | {task}")
    that = found["ansible.builtin.assert"]["that"]
    return bool(rendered("{{ " + that + " }}", variables(**changes)))


@pytest.mark.parametrize(
    ("written", "shadow"),
    [({}, False), ({"shadow": None}, False), ({"shadow": {"gpus": [3], "port": 8099}}, True)],
    ids=["none", "without a value", "a shadow"],
)
def test_a_shadow_is_what_the_definition_takes_for_one(written: dict[str, Any], shadow: bool) -> None:
    """Else production is stopped with its aliases open, without a window, and not restored after a kill."""
    definitions = {"mtp": {"seat": "s", **written}}
    assert value("__campaign_shadow", campaign_definitions=definitions) is shadow
    in_place = PLAYS["campaign"][0]["vars"]["__campaign_in_place"]
    assert rendered(in_place, {"campaigns": definitions, "campaign": "mtp"}) is not shadow


@pytest.mark.parametrize("play", ["campaign", "headroom"])
@pytest.mark.parametrize(("written", "going"), [({}, True), ({"state": "present"}, True), ({"state": "absent"}, False)])
def test_a_seat_that_is_to_go_is_not_measured(play: str, written: dict[str, Any], going: bool) -> None:
    (task,) = (entry for entry in PLAYS[play][0]["tasks"] if entry["name"] == "Refuse a seat that is to go")
    that = task["ansible.builtin.assert"]["that"]
    assert rendered("{{ " + that + " }}", {"seat": "s", "seats": {"s": written}}) is going


def test_a_refusal_before_the_first_boot_can_be_told() -> None:
    assert value("__campaign_reached", state=None) == {"left": 1, "done": [], "boots": 3}
    assert value("__campaign_reached", state={"left": 0, "done": [1], "boots": 1})["left"] == 0


@pytest.mark.parametrize(
    ("known", "new", "complete"),
    [(None, False, False), ({"left": 0}, False, True), ({"left": 2}, False, False), ({"left": 0}, True, False)],
)
def test_when_nothing_is_left_to_measure(known: Any, new: bool, complete: bool) -> None:
    assert value("campaign_complete", known=known, campaign_new=new) is complete


@pytest.mark.parametrize(
    ("known", "new", "unit", "argv"),
    [
        (None, True, IDLE, []),
        ({"campaign": "old"}, False, IDLE, []),
        ({"campaign": "old"}, True, IDLE, ["--other-than", "old"]),
        ({"campaign": "new"}, True, BUSY, []),
    ],
    ids=["the first", "goes on", "a new one", "the new one, its command died"],
)
def test_a_new_campaign_is_not_taken_for_the_one_before_it(known: Any, new: bool, unit: list[str], argv: Any) -> None:
    """The old one is complete: whoever waits for it is done at once, and stops the new one."""
    assert value("__campaign_other_than", known=known, campaign_new=new, unit=unit) == argv


@pytest.mark.parametrize(
    ("unit", "going"),
    [
        (IDLE, True),
        (["ActiveState=failed", "Description=Campaign other of seat s"], True),
        (BUSY, True),
        (["ActiveState=active", "Description=Campaign other of seat s"], False),
        (["ActiveState=deactivating", "Description=Campaign other of seat s"], False),
    ],
)
def test_another_campaign_of_the_seat_is_left_alone(unit: list[str], going: bool) -> None:
    assert allowed("Leave another campaign of the seat alone", unit=unit) is going


@pytest.mark.parametrize(
    ("known", "new", "going"),
    [
        (None, False, True),
        ({"changed": []}, False, True),
        ({"changed": ["arms"], "campaign": "c"}, False, False),
        ({"changed": ["arms"], "campaign": "c"}, True, True),
    ],
)
def test_an_edited_definition_is_not_answered_by_what_was_measured(known: Any, new: bool, going: bool) -> None:
    assert allowed("Require the definition that the campaign began with", known=known, campaign_new=new) is going


@pytest.mark.parametrize(
    ("given", "looked_at", "going"),
    [
        ({}, ["a", "b"], True),
        ({"seat": "b"}, ["b"], True),
        ({"seat": "typo"}, [], False),
    ],
    ids=["all", "one", "of no host"],
)
def test_a_look_is_at_the_seats_that_are_there_and_a_wrong_name_is_refused(
    given: dict[str, Any], looked_at: list[str], going: bool
) -> None:
    """A seat with `state: present` written out was left out, and a typo was a green play that showed nothing."""
    seats = {"a": {"port": 1}, "b": {"port": 2, "state": "present"}, "c": {"port": 3, "state": "absent"}}
    (play,) = yaml.safe_load((PROJECT / "playbooks/bench.yml").read_text())
    hosts = {"ansible_play_hosts_all": ["h", "bare"], "hostvars": {"h": {"seats": seats}, "bare": {}}}
    fleet = trusted(yaml.safe_load((PROJECT / "group_vars/all/main.yml").read_text()))
    variables = {**fleet, **trusted(play["vars"]), **hosts, "seats": seats, **given}
    assert rendered("{{ __bench_seats | list }}", variables) == looked_at
    that = play["tasks"][0]["ansible.builtin.assert"]["that"]
    assert bool(rendered("{{ " + that + " }}", variables)) is going
