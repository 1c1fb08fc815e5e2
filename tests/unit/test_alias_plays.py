"""Which seats' silence fails a play, and what a play opens again, as its variables say it."""

from __future__ import annotations

import json
import subprocess
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
    for name in ("seats", "rollback", "headroom", "campaign", "adopt", "remove", "stop")
}
DEPLOY = next(play for play in PLAYS["seats"] if play["name"] == "Deploy seats")
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
REFUSE = "Refuse a restart that every caller would notice"
OPEN = "Open and prove the aliases"


@pytest.mark.parametrize(
    ("closed", "foreseen", "opens", "refuses"),
    [
        ({"refused": ["b"], "closed": {"a": ["id"]}, "steps": ["replace"]}, RESTART, True, True),
        # closed by an earlier run that was cut off
        ({"refused": ["b"], "closed": {"a": ["id"]}, "steps": []}, RESTART, True, True),
        # led away by the deletion of ours, as another deployment serves
        ({"refused": ["b"], "closed": {}, "steps": ["delete"]}, RESTART, True, True),
        ({"refused": ["b"], "closed": {}, "steps": []}, RESTART, False, True),
        ({"refused": ["b"], "closed": {"a": ["id"]}, "steps": ["replace"]}, START, True, False),
        ({"refused": [], "closed": {"a": ["id"]}, "steps": ["replace"]}, RESTART, True, False),
        ({"skipped": True}, RESTART, True, False),
        (None, RESTART, True, False),
    ],
)
def test_nothing_stays_closed_when_nothing_is_restarted(
    closed: dict[str, Any] | None, foreseen: list[dict[str, str]], opens: bool, refuses: bool
) -> None:
    when = {task["name"]: trusted(task["when"]) for task in tasks_of([DEPLOY]) if "when" in task}
    refused = trusted(DEPLOY["vars"]["__seats_restart_refused"])
    variables = {"seat_foreseen": {"seats": foreseen}, "__seats_restart_refused": refused}
    variables |= {"seat_alias_closed": closed} if closed is not None else {}
    templar = Templar(loader=DataLoader(), variables=variables)
    done = [templar.evaluate_conditional(when[name]) for name in (OPEN, "Roll out the seats", REFUSE)]
    assert done == [opens, not refuses, refuses]


def test_a_host_that_is_refused_takes_no_neighbour_out_of_service(tmp_path: Path) -> None:
    """The tasks of the play in their order, saying their names only: a failure ends all hosts of a batch."""
    kept = {"name", "when", "vars"}
    tasks = [
        {key: value for key, value in task.items() if key in kept} | {"ansible.builtin.debug": {"msg": "{{ item }}"}}
        if "ansible.builtin.fail" not in task
        else task
        for task in DEPLOY["tasks"]
    ]
    for task in tasks:
        task.get("ansible.builtin.debug", {})["msg"] = f"{task['name']}: {{{{ inventory_hostname }}}}"
    play = {key: value for key, value in DEPLOY.items() if key not in {"roles", "become"}}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([{**play, "connection": "local", "tasks": tasks}]))
    closed = {"closed": {"own": ["id"]}, "steps": ["replace"]}
    hosts = {
        "first": {"seat_alias_closed": {"refused": [], **closed}},
        "well": {"seat_alias_closed": {"refused": [], **closed}},
        "refused": {"seat_alias_closed": {"refused": ["b"], **closed}},
    }
    shared = {"fleet_hardware": {}, "gpu_host_seat_ports": [], "seat_foreseen": {"seats": RESTART}}
    shared |= {"fleet_serial": [1, "100%"], "vault_seat_api_key_secret": "secret"}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"gpu_hosts": {"hosts": hosts, "vars": shared}}))
    command = ["ansible-playbook", "-i", "hosts.yml", "play.yml", "-e", json.dumps({"fleet_serial": [1, "100%"]})]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    said = [host for host in hosts if f"{OPEN}: {host}" in done.stdout]
    restarted = [host for host in hosts if f"Roll out the seats: {host}" in done.stdout]
    assert (said, restarted) == ([*hosts], ["first", "well"]), done.stdout + done.stderr
    assert (done.returncode, "refuses to close b" in done.stdout) == (2, True)


@pytest.mark.parametrize(
    ("given", "going"),
    [
        ({"hosts": ["follower"]}, False),
        ({"hosts": ["follower", "head"]}, True),
        ({"hosts": ["follower"], "seat": "own"}, True),
        ({"hosts": ["head"], "followed": {}}, True),
    ],
)
def test_a_host_with_another_hosts_half_is_not_called_stopped(given: dict[str, Any], going: bool) -> None:
    (play,) = PLAYS["stop"]
    followed = {"pair": {"nodes": {"hosts": [{"host": "head"}, {"host": "follower"}]}}}
    variables = {**trusted(play["vars"]), "fleet_seats_followed": given.pop("followed", followed)}
    variables |= {"ansible_play_hosts_all": given.pop("hosts"), **given}
    (that,) = (
        task["ansible.builtin.assert"]["that"] for task in play["tasks"] if task["name"].startswith("Refuse to leave")
    )
    assert bool(rendered("{{ " + that + " }}", variables)) is going


@pytest.mark.parametrize("play", ["stop", "campaign", "headroom"])
@pytest.mark.parametrize(("closed", "refuses"), [({"refused": ["b"]}, True), ({"refused": []}, False), ({}, False)])
def test_a_seat_whose_callers_would_see_it_go_is_not_taken_down(
    play: str, closed: dict[str, Any], refuses: bool
) -> None:
    tasks = list(tasks_of(PLAYS[play]))
    after = next(at for at, task in enumerate(tasks) if task["name"].startswith("Close the aliases")) + 1
    assert "ansible.builtin.fail" in tasks[after]
    templar = Templar(loader=DataLoader(), variables={"seat_alias_closed": {"skipped": not closed, **closed}})
    assert templar.evaluate_conditional(trusted(tasks[after]["when"])) is refuses
