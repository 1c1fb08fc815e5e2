"""What a play says last: sentences, for whoever reads the end of the output at night, and no dictionary or list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from test_alias_plays import rendered, tasks_of, trusted

from seatfleet.core.gateway import verdict
from seatfleet.core.health import probe_report
from seatfleet.core.report import status

PROJECT = Path(__file__).resolve().parents[2]
FILES = sorted([*PROJECT.glob("playbooks/*.yml"), *PROJECT.glob("roles/*/tasks/*.yml")])
DEBUG = "ansible.builtin.debug"
HERE = {"inventory_hostname": "fv-ml1", "ansible_check_mode": False, "seat": "a", "seats": {"a": {"port": 8022}}}


def shown(file: Path) -> list[dict[str, Any]]:
    return [task for task in tasks_of(yaml.safe_load(file.read_text()) or []) if DEBUG in task]


def said(playbook: str, task: str, **variables: Any) -> str:
    (found,) = [one for one in shown(PROJECT / playbook) if one["name"] == task]
    return str(rendered(found[DEBUG]["msg"], HERE | trusted(found.get("vars", {})) | variables)).strip()


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.parent.name}/{file.name}")
def test_nobody_is_shown_a_bare_variable(file: Path) -> None:
    """``var:`` prints a dictionary, ``stdout_lines`` a list whose dashes and quotes break a table."""
    for task in shown(file):
        assert "var" not in task[DEBUG], task["name"]
        assert "stdout_lines" not in task[DEBUG]["msg"], task["name"]


def test_a_table_of_nothing_is_a_sentence() -> None:
    for table in (verdict.table([]), probe_report.table([]), status.table([])):
        assert table.startswith("no ")
        assert "  " not in table


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"said": ["seat a: restarted"]}, "seat a: restarted"),
        ({"said": ["seat a: restarted"], "msg": "seat b: dead"}, "seat a: restarted\nseat b: dead"),
        ({"msg": "MODULE FAILURE"}, "MODULE FAILURE"),
        ({"said": []}, ""),
    ],
)
def test_a_roll_out_says_what_it_did(result: dict[str, Any], text: str) -> None:
    name = "roll_out | Show what was done, and the first cause of what failed"
    assert said("roles/seat/tasks/roll_out.yml", name, seat_rolled_out=result) == text


def removed(**changes: Any) -> dict[str, Any]:
    one = {"seat": "a", "removed": ["/x", "/y"], "kept": [], "aborted": 0, "follower": None}
    return {"__remove_done": {"seats": [one | changes]}}


def test_remove_says_what_became_of_each_seat() -> None:
    name = "playbooks/remove.yml", "Show what was removed"
    evidence = "its evidence stays in /var/lib/seatfleet/evidence/a"
    what = "its aliases and 2 paths (-v lists them);"
    assert said(*name, **removed()) == (
        f"removed seat a from fv-ml1: {what} requests that were cut off: 0; {evidence}."
    )
    assert said(*name, **removed(follower="spark-2", kept=["/srv/m", "/opt/r"], aborted=2)) == (
        f"removed seat a from fv-ml1 and spark-2: {what} requests that were cut off: 2; {evidence}; "
        "other seats need /srv/m, /opt/r."
    )
    assert said(*name, **removed(), ansible_check_mode=True) == f"would remove seat a from fv-ml1: {what} {evidence}."
    assert said(*name, **removed(removed=[])) == "nothing of seat a is on fv-ml1."
    two = {
        "__remove_done": {
            "seats": [*removed()["__remove_done"]["seats"], removed(seat="b")["__remove_done"]["seats"][0]]
        }
    }
    assert len(said(*name, **two).splitlines()) == 2


def test_stop_says_which_other_host_it_did_not_reach() -> None:
    """Such a host may be why the seat is stopped: that is told, and does not end the play as unreachable."""
    (play,) = yaml.safe_load((PROJECT / "playbooks/stop.yml").read_text())
    (task,) = [one for one in play["tasks"] if "delegate_to" in one]
    assert task["ignore_unreachable"] is True
    name = "playbooks/stop.yml", "Show what was stopped"
    done: dict[str, Any] = {"__stop": {"seats": [{"seat": "a", "ran": True, "aborted": 0}]}}
    item = {"seat": "a", "follower": "spark-2"}
    reached = said(*name, **done, **{task["register"]: {"results": [{"item": item, "changed": True}]}})
    assert reached.startswith("stopped: a; requests that were cut off: 0.")
    assert said(*name, **done, **{task["register"]: {"changed": False, "skipped": True}}) == reached
    lost = said(*name, **done, **{task["register"]: {"results": [{"item": item, "unreachable": True}]}})
    assert lost == f"spark-2 cannot be reached: nothing there says that a was stopped on purpose. {reached}"


def test_stop_tells_the_host_which_aliases_were_closed() -> None:
    (play,) = yaml.safe_load((PROJECT / "playbooks/stop.yml").read_text())
    (task,) = [one for one in play["tasks"] if one["name"] == "Stop"]
    seats = {"a": {"aliases": {"x": {}, "y": {}}}, "b": {}}
    variables = {"seats": seats, "__stop_names": ["a", "b"], **trusted(task["vars"])}
    closed = rendered(
        task["seatfleet.fleet.seat_stop"]["closed"], variables | {"seat_alias_closed": {"not_closed": ["y"]}}
    )
    assert closed == {"a": ["x"], "b": []}
    skipped = rendered(
        task["seatfleet.fleet.seat_stop"]["closed"], variables | {"seat_alias_closed": {"skipped": True}}
    )
    assert skipped == {}, "aliases in the proxy's config file are not closed"


def test_adopt_says_what_differs_and_how_it_ended() -> None:
    name = "roles/seat/tasks/adopt.yml", "adopt | Compare the seat with what serves"
    comparison = {"differs": ["a: runs with 1, the seat has 2"], "added": ["b: 3"]}
    assert said(*name, __seat_adopt_comparison=comparison) == (
        "differs: a: runs with 1, the seat has 2\nthe seat adds b: 3"
    )
    assert said(*name, __seat_adopt_comparison={"differs": [], "added": []}) == "The seat equals what serves."
    end = "playbooks/adopt.yml", "Show what came of it"
    for take, back, words in (
        (False, False, "nothing was changed."),
        (True, False, "seat a has taken port 8022 over."),
        (False, True, "gave port 8022 of seat a back to what served there before; it answered after 12 s."),
    ):
        text = said(*end, __adopt_take=take, __adopt_give_back=back, seat_adopted={"back_s": 12.3} if back else {})
        assert text.startswith(words)


@pytest.mark.parametrize(
    ("playbook", "task", "variables", "text"),
    [
        (
            "copy-model",
            "Show what was copied",
            {"__copy_received": {"changed": True}},
            "copied and verified m from spark-1",
        ),
        (
            "copy-model",
            "Show what was copied",
            {"__copy_received": {"changed": False}},
            "nothing was copied: fv-ml1 has m",
        ),
        (
            "observability",
            "Show what is timed",
            {"__observability_present": ["a", "b"]},
            "its own state and probes a, b;",
        ),
        ("observability", "Show what is timed", {"__observability_present": []}, "and has no seat to probe;"),
        (
            "validate",
            "Show what was not checked",
            {"validate_fleet_report": {"not_checked": ["x", "y"]}},
            "x\nnot checked: y",
        ),
        (
            "gateway",
            "Show what answers",
            {"gateway_version": "1", "gateway_port": 4000},
            "LiteLLM 1 answers on port 4000",
        ),
        ("headroom", "Show how it ended", {}, "Seat a serves again as deployed."),
        ("remove", "Tell that nothing is to be removed", {}, "nothing was removed from fv-ml1"),
    ],
)
def test_other_verbs(playbook: str, task: str, variables: dict[str, Any], text: str) -> None:
    given = {"model": "m", "from": "spark-1", "__copy_place": "m/0"} | variables
    assert text in said(f"playbooks/{playbook}.yml", task, **given)
