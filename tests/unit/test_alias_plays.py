"""Which seats' silence fails a play, and what a play opens again, as its variables say it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

PROJECT = Path(__file__).resolve().parents[2]
ROLE_VARS = yaml.safe_load((PROJECT / "roles/seat_alias/vars/main.yml").read_text())
PLAYS = {
    name: yaml.safe_load((PROJECT / f"playbooks/{name}.yml").read_text())
    for name in ("seats", "rollback", "headroom", "campaign", "adopt", "remove")
}
GRANTS = [{"seat": "own"}, {"seat": "own"}, {"seat": "well"}, {"seat": "dead"}]


def trusted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: trusted(item) for name, item in value.items()}
    if isinstance(value, list):
        return [trusted(item) for item in value]
    return trust_as_template(value) if isinstance(value, str) else value


def rendered(value: Any, variables: dict[str, Any]) -> Any:
    return Templar(loader=DataLoader(), variables=variables).template(trusted(value))


def tasks_of(entries: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for entry in entries:
        yield entry
        for part in ("tasks", "post_tasks", "block", "always", "rescue"):
            yield from tasks_of(entry.get(part, []))


def opening(play: str) -> list[dict[str, Any]]:
    """Return the tasks of a play that open aliases."""
    roles = [
        (task, task.get("ansible.builtin.include_role", task.get("ansible.builtin.import_role")))
        for task in tasks_of(PLAYS[play])
    ]
    return [task for task, role in roles if role and role["name"] == "seat_alias" and "tasks_from" not in role]


def silent(served: list[str], inputs: dict[str, Any]) -> set[str]:
    given = {"__seat_alias_grants": GRANTS, "__seat_alias_served": {seat: [seat] for seat in served}}
    return set(rendered(ROLE_VARS["__seat_alias_silent"], {**given, "seat_alias_must_answer": [], **inputs}))


@pytest.mark.parametrize(
    ("served", "inputs", "spared"),
    [
        (["own", "well"], {"seat_alias_spare_silent": False}, set()),
        (["own", "well"], {"seat_alias_spare_silent": True}, {"dead"}),
        (["well"], {"seat_alias_spare_silent": True}, {"own", "dead"}),
        (["well"], {"seat_alias_spare_silent": True, "seat_alias_must_answer": ["own"]}, {"dead"}),
        (["own", "well"], {"seat_alias_spare_silent": True, "seat_alias_must_answer": ["own"]}, {"dead"}),
        (["well"], {"seat_alias_spare_silent": False, "seat_alias_must_answer": ["own"]}, set()),
    ],
)
def test_whose_silence_is_left_alone(served: list[str], inputs: dict[str, Any], spared: set[str]) -> None:
    assert silent(served, inputs) == spared


@pytest.mark.parametrize(
    ("play", "outcome", "spared"),
    [
        ("rollback", {"__rollback": {}}, {"dead"}),
        ("rollback", {"__rollback": {"msg": "neither came up"}}, {"own", "dead"}),
        ("adopt", {"seat_adopted": {}}, {"dead"}),
        ("adopt", {}, {"dead"}),
        ("adopt", {"seat_adopted": {"msg": "did not come up"}}, {"own", "dead"}),
        ("headroom", {}, {"dead"}),
        ("campaign", {}, {"dead"}),
    ],
)
def test_a_play_about_one_seat_leaves_silent_neighbours_alone(
    play: str, outcome: dict[str, Any], spared: set[str]
) -> None:
    (task,) = opening(play)
    assert silent(["well"], rendered(task["vars"], {"seat": "own", **outcome})) == spared


def test_a_removal_leaves_silent_neighbours_alone() -> None:
    """What it removes is not among the seats that the role gets, so that it is never spared."""
    (task,) = opening("remove")
    assert silent(["own", "well"], {"seat_alias_spare_silent": task["vars"]["seat_alias_spare_silent"]}) == {"dead"}


RESTART = [{"seat": "own", "action": "restart"}]
START = [{"seat": "own", "action": "start"}]


@pytest.mark.parametrize(
    ("closed", "foreseen", "opens", "refuses"),
    [
        ({"refused": ["b"], "closed": {"a": ["id"]}, "steps": ["replace"]}, RESTART, True, True),
        # closed by an earlier run that was cut off
        ({"refused": ["b"], "closed": {"a": ["id"]}, "steps": []}, RESTART, True, True),
        # led away by the deletion of ours, as another deployment serves
        ({"refused": ["b"], "closed": {}, "steps": ["delete"]}, RESTART, True, True),
        ({"refused": ["b"], "closed": {}, "steps": []}, RESTART, False, True),
        ({"refused": ["b"], "closed": {"a": ["id"]}, "steps": ["replace"]}, START, False, False),
        ({"refused": [], "closed": {"a": ["id"]}, "steps": ["replace"]}, RESTART, False, False),
        ({"skipped": True}, RESTART, False, False),
        (None, RESTART, False, False),
    ],
)
def test_nothing_stays_closed_when_nothing_is_restarted(
    closed: dict[str, Any] | None, foreseen: list[dict[str, str]], opens: bool, refuses: bool
) -> None:
    tasks = list(tasks_of(PLAYS["seats"]))
    names = [task["name"] for task in tasks]
    refuse = names.index("Refuse a restart that every caller would notice")
    assert names[refuse - 1] == "Open the aliases of seats that are not restarted"
    play = next(play for play in PLAYS["seats"] if play["name"] == "Deploy seats")
    variables = {
        "seat_foreseen": {"seats": foreseen},
        "__seats_restart_refused": trusted(play["vars"]["__seats_restart_refused"]),
    }
    variables |= {"seat_alias_closed": closed} if closed is not None else {}
    templar = Templar(loader=DataLoader(), variables=variables)
    assert [templar.evaluate_conditional(trusted(tasks[at]["when"])) for at in (refuse - 1, refuse)] == [opens, refuses]
