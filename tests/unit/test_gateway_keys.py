"""Key lists at the gateway: who gets what, who keeps what, and what is never written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from seatfleet.core.gateway.keys import (
    GRANTS_FIELD,
    KeyPlan,
    KeyState,
    WantedKey,
    edit_models,
    ghosts,
    key_form_problem,
    key_hash,
    plan_keys,
    who_can_call,
)
from seatfleet.core.gateway.state import LiveDeployment

VALUE = "sk-infra-ops-0123456789abcdef"
SEAT = "fv-ml1/flash-next"
GRANT = {"gen-large": SEAT}


def key(
    models: Sequence[str], alias: str = "infra-ops", *, grants: dict[str, str] | None = None, **more: Any
) -> KeyState:
    metadata = {} if grants is None else {GRANTS_FIELD: grants, "note": "kept"}
    return KeyState(key_hash(VALUE if alias == "infra-ops" else alias), alias, tuple(models), metadata, **more)


def want(alias: str = "infra-ops", grants: dict[str, str] | None = None, **more: Any) -> WantedKey:
    return WantedKey(alias, GRANT if grants is None else grants, **more)


def plan(live: Sequence[KeyState], wanted: Sequence[WantedKey], **more: Any) -> KeyPlan:
    return plan_keys(live, wanted, host="fv-ml1", aliases=more.pop("aliases", ["gen-large"]), **more)


@pytest.mark.parametrize(
    ("models", "add", "remove", "expected"),
    [
        ([], ["a"], [], ("a",)),
        (["no-default-models"], ["a"], [], ("a",)),
        (["a"], [], ["a"], ("no-default-models",)),
        (["b", "a"], ["a", "c"], [], ("b", "a", "c")),
        (["b", "a"], ["a"], ["b"], ("a",)),
        ([], [], [], ("no-default-models",)),
    ],
)
def test_lists_are_edited_in_place_and_never_empty(
    models: list[str], add: list[str], remove: list[str], expected: tuple[str, ...]
) -> None:
    assert edit_models(models, add, remove) == expected


@pytest.mark.parametrize(
    ("what", "live", "wanted", "options", "expected"),
    [
        ("missing key", [], [want(value=VALUE)], {}, [("create", "infra-ops", ("gen-large",), GRANT)]),
        ("missing key without grants", [], [want(grants={}, value=VALUE)], {},
         [("create", "infra-ops", ("no-default-models",), {})]),
        ("granted", [key(["gen-large"], grants=GRANT)], [want()], {}, []),
        ("new grant", [key(["other"])], [want()], {}, [("update", "infra-ops", ("other", "gen-large"), GRANT)]),
        ("listed by hand before", [key(["gen-large"])], [want()], {}, [("update", "infra-ops", ("gen-large",), GRANT)]),
        ("a seat dropped the key", [key(["gen-large", "other"], grants=GRANT)], [want(grants={})], {},
         [("update", "infra-ops", ("other",), {})]),
        ("the last grant goes", [key(["gen-large"], grants=GRANT)], [want(grants={})], {},
         [("update", "infra-ops", ("no-default-models",), {})]),
        ("hand-made entry for our alias on a declared key", [key(["gen-large"])], [want(grants={})], {},
         [("update", "infra-ops", ("no-default-models",), {})]),
        ("another host's grant stays", [key(["gen-small"], grants={"gen-small": "spark-1/dense"})], [want(grants={})],
         {}, []),
        ("dropped alias of this host", [key(["gone"], grants={"gone": SEAT})], [want(grants={})],
         {"dropped": ["gone"]}, [("update", "infra-ops", ("no-default-models",), {})]),
        ("dropped alias, killed before its clean-up", [key(["gone"], grants={"gone": SEAT})], [want(grants={})], {},
         [("update", "infra-ops", ("no-default-models",), {})]),
        ("foreign key keeps its own list", [key(["gen-large"], "bob")], [], {}, []),
        ("foreign key loses the ghost we made", [key(["gen-large", "x"], "bob")], [],
         {"dropped": ["gen-large"], "aliases": []}, [("update", "bob", ("x",), {})]),
        ("key no longer declared loses our grants", [key(["gen-large", "x"], "old", grants=GRANT)], [], {},
         [("update", "old", ("x",), {})]),
        ("foreign key that may call everything stays", [key([], "root")], [],
         {"dropped": ["gen-large"], "aliases": []}, []),
        ("access group covers it", [key(["agents"])],
         [want(via={"gen-large": ("agents",)}, models=("agents",))], {}, []),
        ("access group is declared but missing", [key(["x"])],
         [want(via={"gen-large": ("agents",)}, models=("agents",))], {},
         [("update", "infra-ops", ("x", "agents"), {})]),
        ("access group by hand covers it too", [key(["agents"])], [want(via={"gen-large": ("agents",)})], {}, []),
        ("follows its team", [key(["all-team-models"], team_id="t", team_models=("gen-large",))], [want()], {}, []),
        ("a rotated key's old value keeps its grants",
         [key(["gen-large"], grants=GRANT), key(["gen-large"], "infra-ops.retired-1a2b", grants=GRANT)],
         [want()], {}, []),
        ("and loses what the seats drop", [key(["x"]), key(["gen-large", "x"], "infra-ops.retired-1a2b", grants=GRANT)],
         [want(grants={})], {}, [("update", "infra-ops.retired-1a2b", ("x",), {})]),
        ("made here", [], [want()], {"may_generate": True}, [("create", "infra-ops", ("gen-large",), GRANT)]),
    ],
)  # fmt: skip
def test_steps(
    what: str, live: list[KeyState], wanted: list[WantedKey], options: dict[str, Any], expected: list[Any]
) -> None:
    made = plan(live, wanted, **options)
    assert [(step.kind, step.alias, step.after, dict(step.grants)) for step in made.steps] == expected, what
    assert made.problems == ()


@pytest.mark.parametrize(
    ("live", "wanted", "words"),
    [
        ([], [want()], "no value"),
        ([], [want(value="sk-short")], "at least 21"),
        ([], [want(value="pk-infra-ops-0123456789abcdef")], "sk-"),
        ([key(["x"], "infra-ops")], [want("all-agents", value=VALUE)], "very value under the key alias infra-ops"),
        ([key(["x"])], [want(value=VALUE + "-rotated")], "seat_alias_rotate_keys"),
        ([key(["gen-large"], team_id="t", team_models=("gen-mid",))], [want()], "team_model_access_denied"),
        ([key(["all-team-models"], team_id="t", team_models=("gen-mid",))], [want()], "team t"),
    ],
)
def test_problems_name_the_remedy_and_no_value(live: list[KeyState], wanted: list[WantedKey], words: str) -> None:
    made = plan(live, wanted)
    assert made.steps == ()
    assert len(made.problems) == 1
    assert words in made.problems[0]
    assert not any(item.value and item.value in made.problems[0] for item in wanted)


def test_all_problems_are_reported_at_once() -> None:
    assert len(plan([], [want(value="sk-a"), want("all-agents", value="sk-b")]).problems) == 2


@pytest.mark.parametrize("models", [[], ["all-proxy-models"], ["*"]])
def test_a_key_that_may_call_everything_is_noted_and_left_alone(models: list[str]) -> None:
    made = plan([key(models)], [want()])
    assert made.steps == made.problems == ()
    assert "every alias" in made.notes[0]


def test_rotation_is_planned_when_asked_for_and_then_edits_the_new_key() -> None:
    made = plan([key(["x"])], [want(value=VALUE + "-rotated")], rotate=True)
    assert [(step.kind, step.hash) for step in made.steps] == [
        ("rotate", key_hash(VALUE)),
        ("update", key_hash(VALUE + "-rotated")),
    ]
    assert made.steps[1].after == ("x", "gen-large")


def test_no_step_or_problem_shows_a_value() -> None:
    made = plan([key(["x"])], [want(value=VALUE)])
    assert VALUE not in repr(made)
    assert VALUE not in repr(want(value=VALUE))


def test_key_form() -> None:
    assert key_form_problem(VALUE) is None
    assert key_form_problem("sk-" + "a" * 20) is not None


def test_ghosts_are_entries_that_lead_nowhere() -> None:
    keys = [key(["gen-large", "ghost", "agents", "no-default-models", "openai/*"]), key(["all-team-models"], "team")]
    assert ghosts(keys, {"gen-large", "agents"}) == {"infra-ops": ["ghost"]}


def test_who_can_call_tells_every_way_in() -> None:
    deployment = LiveDeployment("d", "gen-large", {}, {"access_groups": ["agents"]})
    keys = [
        key(["gen-large"], "granted", grants=GRANT),
        key(["gen-large"], "by-hand"),
        key(["agents"], "group"),
        key([], "root"),
        key(["*"], "star"),
        key(["gen-large"], "capped", team_models=("other",)),
        key(["all-team-models"], "team", team_models=("gen-large",)),
        key(["other"], "no"),
    ]
    assert [(state.alias, reason) for state, reason in who_can_call("gen-large", [deployment], keys)] == [
        ("granted", "granted for fv-ml1/flash-next"),
        ("by-hand", "listed"),
        ("group", "access group agents"),
        ("root", "empty list: every alias"),
        ("star", "every alias"),
        ("team", "follows its team"),
    ]
