"""Deployments at the gateway: what is compared, and the steps from what is there to what is declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from seatfleet.core.gateway.state import (
    LiveDeployment,
    WantedAlias,
    alias_entries,
    closed_alias,
    differences,
    grant_entries,
    plan_aliases,
    plan_close,
    plan_removal,
    secret_digest,
    secret_matches,
)
from seatfleet.core.inventory.seat import Alias, Seat

WANT = WantedAlias(
    alias="gen-large",
    host="fv-ml1",
    seat="flash-next",
    api_base="http://10.0.0.11:8022/v1",
    api_key="seat-secret",
    keys=("infra-ops",),
    sampling={"temperature": 1.0, "top_p": 0.95, "top_k": 20},
    chat_template_kwargs={"enable_thinking": False},
    access_groups=("agents",),
    limits={"max_input_tokens": 2048, "timeout_s": 600},
)
# What LiteLLM 1.106.12 adds to every deployment, and the limits its process-wide table fills in.
ADDED_PARAMS = {"use_in_pass_through": False, "use_litellm_proxy": False, "merge_reasoning_content_in_choices": False}
ADDED_INFO = {"db_model": True, "blocked": False, "max_tokens": 77, "key": "hosted_vllm/gen-large"}


def live(
    want: WantedAlias = WANT,
    revision: int = 1,
    *,
    params: Mapping[str, Any] | None = None,
    info: Mapping[str, Any] | None = None,
    alias: str | None = None,
) -> LiveDeployment:
    """Return a deployment as the gateway shows it after it was made from ``want``, then tampered with."""
    body = want.body(revision)
    shown = {name: value for name, value in body["litellm_params"].items() if name != "api_key"}
    return LiveDeployment.from_api(
        {
            "model_name": alias or body["model_name"],
            "litellm_params": {**shown, **ADDED_PARAMS, **(params or {})},
            "model_info": {**body["model_info"], **ADDED_INFO, **(info or {})},
        }
    )


def foreign(identifier: str = "by-hand", *, db: bool = True) -> LiveDeployment:
    """Return a deployment of the same alias that somebody else made."""
    params = {"model": "hosted_vllm/other", "api_base": "http://10.0.0.9/v1"}
    return LiveDeployment(identifier, "gen-large", params, {"id": identifier, "db_model": db})


def test_what_was_registered_is_no_difference() -> None:
    assert differences(live(), WANT) == {}


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("api_base", {"api_base": "http://10.0.0.12:8022/v1"}),
        ("model", {"served_model": "tiny-oracle"}),
        ("temperature", {"sampling": {"temperature": 0.7, "top_p": 0.95, "top_k": 20}}),
        ("top_p", {"sampling": {"temperature": 1.0, "top_k": 20}}),
        ("extra_body", {"sampling": {"temperature": 1.0, "top_p": 0.95}}),
        ("extra_body", {"chat_template_kwargs": None}),
        ("extra_body", {"chat_template_kwargs": {"enable_thinking": True}}),
        ("access_groups", {"access_groups": ()}),
        ("limits", {"limits": {"timeout_s": 600}}),
        ("limits", {"limits": {"max_input_tokens": 4096, "timeout_s": 600}}),
        ("timeout", {"limits": {"max_input_tokens": 2048}}),
        ("api_key", {"api_key": "rotated"}),
    ],
)
def test_each_field_is_compared_also_when_it_disappears(field: str, change: dict[str, Any]) -> None:
    assert list(differences(live(), replace(WANT, **change))) == [field]


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"api_base": "http://10.0.0.66/v1"}, "api_base"),
        ({"extra_body": {"top_k": 20, "chat_template_kwargs": {"enable_thinking": True}}}, "extra_body"),
        ({"rpm": 5}, "rpm"),
        ({"drop_params": True}, "drop_params"),
    ],
)
def test_an_edit_by_hand_is_a_difference(params: dict[str, Any], field: str) -> None:
    assert field in differences(live(params=params), WANT)


def test_a_difference_of_secrets_shows_none() -> None:
    changes = differences(live(), replace(WANT, api_key="rotated-secret"))
    assert "rotated-secret" not in str(changes)
    assert "seat-secret" not in str(changes)


def test_secret_digests_are_salted_and_only_match_their_secret() -> None:
    first, second = secret_digest("s"), secret_digest("s")
    assert first != second
    assert secret_matches("s", first)
    assert not secret_matches("t", first)
    assert not any(secret_matches("s", malformed) for malformed in (None, "", "no-salt", 7))


def steps(plan: Any) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(step.kind, step.id, step.retire) for step in plan.steps]


ID = "seat-fv-ml1-flash-next-gen-large"
MOVED = replace(WANT, host="spark-1", seat="dense")
CHANGED = replace(WANT, sampling={})


@pytest.mark.parametrize(
    ("what", "present", "wanted", "expected"),
    [
        ("nothing there", [], [WANT], [("create", ID, ())]),
        ("as declared", [live()], [WANT], []),
        ("a changed field", [live()], [CHANGED], [("replace", f"{ID}@2", (ID,))]),
        ("changed again", [live(revision=2)], [CHANGED], [("replace", f"{ID}@3", (f"{ID}@2",))]),
        ("changed back", [live(CHANGED, revision=2)], [WANT], [("replace", f"{ID}@3", (f"{ID}@2",))]),
        ("interrupted before the new one was proven away", [live(), live(CHANGED, 2)], [CHANGED], [("delete", ID, ())]),
        ("blocked", [live(info={"blocked": True})], [WANT], [("unblock", ID, ())]),
        ("dropped alias", [live()], [], [("delete", ID, ())]),
        ("other host's alias", [live(MOVED)], [], []),
        ("moved here", [live(MOVED)], [WANT], [("replace", ID, (MOVED.base_id,))]),
        ("moved here, old one still there", [live(), live(MOVED)], [WANT], [("delete", MOVED.base_id, ())]),
        ("stable id taken by a renamed one", [live(alias="renamed")], [WANT],
         [("create", f"{ID}@2", ()), ("delete", ID, ())]),
        ("foreign, not ours to touch", [foreign()], [], []),
        ("foreign, adopted", [foreign()], [replace(WANT, adopt=True)], [("replace", ID, ("by-hand",))]),
    ],
)  # fmt: skip
def test_steps(what: str, present: list[LiveDeployment], wanted: list[WantedAlias], expected: list[Any]) -> None:
    plan = plan_aliases(present, wanted, "fv-ml1")
    assert steps(plan) == expected, what
    assert plan.problems == ()


@pytest.mark.parametrize(
    ("present", "word"),
    [([foreign()], "adopt: true"), ([foreign(db=False)], "config file"), ([live(), foreign()], "adopt: true")],
)
def test_a_foreign_deployment_behind_our_alias_is_a_problem(present: list[LiveDeployment], word: str) -> None:
    plan = plan_aliases(present, [WANT], "fv-ml1")
    assert plan.steps == ()
    assert len(plan.problems) == 1
    assert word in plan.problems[0]


def test_config_file_deployments_cannot_be_adopted() -> None:
    assert plan_aliases([foreign(db=False)], [replace(WANT, adopt=True)], "fv-ml1").problems


IN_FILE = {"db_model": False}


@pytest.mark.parametrize("wanted", [[WANT], []])
def test_our_block_in_a_config_file_is_no_business_of_the_database(wanted: list[WantedAlias]) -> None:
    plan = plan_aliases([live(info=IN_FILE)], wanted, "fv-ml1")
    assert plan.steps == ()
    assert "seat_alias_backend: config" in plan.problems[0]


def test_leaving_a_host_to_the_config_file_removes_its_database_entries_only() -> None:
    present = [live(), live(revision=2, info=IN_FILE), live(MOVED), foreign()]
    assert steps(plan_removal(present, "fv-ml1")) == [("delete", ID, ())]
    assert plan_removal(present, "fv-ml1").dropped == ()


def test_dropped_aliases_are_those_nobody_serves_any_more() -> None:
    assert plan_aliases([live()], [], "fv-ml1").dropped == ("gen-large",)
    assert plan_aliases([live(), foreign()], [], "fv-ml1").dropped == ()
    assert plan_aliases([live()], [CHANGED], "fv-ml1").dropped == ()


def test_ids_name_the_deployment_that_may_answer_afterwards() -> None:
    assert plan_aliases([live()], [WANT], "fv-ml1").ids == {"gen-large": (ID,)}
    assert plan_aliases([live()], [CHANGED], "fv-ml1").ids == {"gen-large": (f"{ID}@2",)}


def test_two_deployments_of_one_run_never_have_one_id() -> None:
    other = replace(WANT, seat="flash", alias="next-gen-large")
    assert other.base_id == WANT.base_id
    ids = [step.id for step in plan_aliases([], [WANT, other], "fv-ml1").steps]
    assert len(set(ids)) == 2


def test_two_aliases_never_share_the_model_string() -> None:
    other = replace(WANT, alias="gen-large-nothink")
    assert WANT.public_params()["model"] != other.public_params()["model"]


def seat(*aliases: Alias, name: str = "flash-next", state: str = "present") -> Seat:
    return Seat(
        name=name, host="fv-ml1", model="tiny-oracle", release="r", port=8022, max_model_len=2048, gpus=(),
        kv_cache_memory=None, gpu_memory_utilization=0.5, aliases=aliases, state=state,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("served", "expected"),
    [
        ({}, "gen-large"),
        ({"flash-next": ["tiny-oracle", "gen-large"]}, "gen-large"),
        ({"flash-next": ["tiny-oracle"]}, "tiny-oracle"),
    ],
)
def test_an_alias_added_since_the_start_is_served_under_the_models_own_name(served: Any, expected: str) -> None:
    entries = alias_entries([seat(Alias("gen-large", ("infra-ops",)))], "10.0.0.11", {"flash-next": "k"}, served, {})
    assert [entry["served_model"] for entry in entries] == [expected]
    assert entries[0]["api_base"] == "http://10.0.0.11:8022/v1"


def test_an_alias_leads_to_where_its_seat_runs() -> None:
    """After a change of the port was taken back, the declared port is not the one that serves."""
    declared = [seat(Alias("gen-large", ("infra-ops",)))]
    (entry,) = alias_entries(declared, "10.0.0.11", {"flash-next": "k"}, {}, {"flash-next": 8044, "other": 1})
    assert entry["api_base"] == "http://10.0.0.11:8044/v1"


def test_absent_seats_have_neither_aliases_nor_grants() -> None:
    gone = seat(Alias("gen-large", ("infra-ops",)), state="absent")
    assert alias_entries([gone], "10.0.0.11", {"flash-next": "k"}, {}, {}) == []
    assert grant_entries([gone]) == []
    assert grant_entries([seat(Alias("gen-large", ("infra-ops",)))]) == [
        {"name": "gen-large", "seat": "flash-next", "keys": ["infra-ops"], "access_groups": []}
    ]


# --- closing ---

STUB_URL = "http://10.0.0.11:8009/v1"
MID = replace(WANT, alias="gen-mid", seat="other", host="spark-1", api_base="http://10.0.0.12:8030/v1")
CLOSED = closed_alias(WANT, [], STUB_URL, lambda host, seat: "unused")


@pytest.mark.parametrize(
    ("there", "api_base"),
    [
        ([], STUB_URL),
        ([live(MID)], MID.api_base),
        ([live(replace(MID, alias="gen-other"))], STUB_URL),
        ([live(MID, info={"blocked": True})], STUB_URL),
        ([live(closed_alias(MID, [], STUB_URL, lambda host, seat: ""))], STUB_URL),
        ([foreign("gen-mid")], STUB_URL),
    ],
)
def test_where_a_closed_alias_leads(there: list[LiveDeployment], api_base: str) -> None:
    want = replace(WANT, fallback="gen-mid")
    closed = closed_alias(want, there, STUB_URL, lambda host, seat: f"{host}/{seat}")
    assert (closed.api_base, closed.closed, closed.limits) == (api_base, True, {})
    assert closed.sampling == WANT.sampling
    assert closed.api_key == ("spark-1/other" if api_base == MID.api_base else "none")


@pytest.mark.parametrize(
    ("there", "kinds"),
    [
        ([], []),
        ([live()], ["replace"]),
        ([live(revision=3)], ["replace"]),
        ([live(CLOSED)], []),
        ([live(CLOSED), live()], ["delete"]),
        ([live(replace(WANT, host="spark-1"))], []),
    ],
)
def test_steps_that_close(there: list[LiveDeployment], kinds: list[str]) -> None:
    plan = plan_close(there, [CLOSED])
    assert [step.kind for step in plan.steps] == kinds


def test_where_another_deployment_serves_the_alias_only_ours_goes() -> None:
    theirs = live(replace(WANT, host="spark-2"))
    plan = plan_close([live(), theirs], [CLOSED])
    assert [(step.kind, step.id) for step in plan.steps] == [("delete", WANT.base_id)]


def test_a_closed_alias_is_opened_under_its_first_id() -> None:
    plan = plan_aliases([live(CLOSED)], [WANT], WANT.host)
    assert [(step.kind, step.id, step.retire) for step in plan.steps] == [("replace", WANT.base_id, (CLOSED.base_id,))]
    assert plan_aliases([live(CLOSED)], [WANT], WANT.host, spare=[WANT.seat]).steps == ()
