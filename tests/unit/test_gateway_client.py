"""The gateway client and what is built on it, against a proxy in memory."""

from __future__ import annotations

import os
import re
import stat
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from gateway_stub import MASTER, GatewayStub, error
from pytest_httpserver import HTTPServer
from werkzeug import Response

from seatfleet.clients import gateway_sync
from seatfleet.clients.gateway import Gateway, GatewayDownError, GatewayError
from seatfleet.clients.gateway_lock import LockTimeoutError, gateway_lock, lock_directory
from seatfleet.clients.gateway_sync import KeyOptions, ProofAlias, close_alias, prove, sync_aliases, sync_keys
from seatfleet.core.gateway.keys import GRANTS_FIELD, WantedKey, key_hash
from seatfleet.core.gateway.state import WantedAlias
from seatfleet.core.gateway.verdict import faulty_aliases

INFRA = "sk-infra-ops-0123456789abcdef"
AGENTS = "sk-all-agents-0123456789abcdef"
CONTROL = "sk-control-0123456789abcdef"
VALUES = {"infra-ops": INFRA, "all-agents": AGENTS, "control": CONTROL}
ID = "seat-fv-ml1-flash-next-gen-large"
SEAT_SECRET = "sk-seat-canary"
SEAT = "fv-ml1/flash-next"


@pytest.fixture
def stub(httpserver: HTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GatewayStub:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(gateway_sync.random, "uniform", lambda *_: 0.0)
    return GatewayStub(httpserver)


@pytest.fixture
def gateway(stub: GatewayStub) -> Iterator[Gateway]:
    with Gateway(stub.url, MASTER, connect_retries=0) as client:
        yield client


def want(**changes: Any) -> WantedAlias:
    given: dict[str, Any] = {
        "alias": "gen-large",
        "host": "fv-ml1",
        "seat": "flash-next",
        "api_base": "http://10.0.0.11:8022/v1",
        "api_key": SEAT_SECRET,
        "sampling": {"temperature": 1.0},
    }
    return WantedAlias(**{**given, **changes})


# --- errors ---


def test_an_error_never_shows_a_key_and_names_what_to_do(stub: GatewayStub) -> None:
    with Gateway(stub.url, INFRA) as client, pytest.raises(GatewayError) as raised:
        client.list_keys()
    assert INFRA not in str(raised.value)
    assert (raised.value.kind, raised.value.status) == ("key_missing", 401)


def test_a_gateway_that_is_down_is_an_error_of_its_own() -> None:
    with Gateway("http://127.0.0.1:9", MASTER, connect_retries=1) as client, pytest.raises(GatewayDownError) as raised:
        client.list_deployments()
    assert "127.0.0.1:9 is not reachable" in str(raised.value)


@pytest.mark.parametrize("key", [f"{INFRA}\n", f"{INFRA} x", f"{INFRA}\x00", f"{INFRA}\u2713", ""])
def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(stub: GatewayStub, key: str) -> None:
    with pytest.raises(GatewayError, match="characters that no header can carry") as raised:
        Gateway(stub.url, key).list_deployments()
    assert INFRA not in str(raised.value)
    assert not isinstance(raised.value, GatewayDownError), "nobody would look at the key"
    with Gateway(stub.url, MASTER) as client, pytest.raises(GatewayError), client.as_key(key):
        pytest.fail("a caller with such a key")


@pytest.mark.parametrize("url", ["http://[::1", "http://gw:port"])
def test_a_url_that_is_none_is_named(url: str) -> None:
    with pytest.raises(GatewayError, match=re.escape(url)):
        Gateway(url, MASTER)


@pytest.mark.parametrize("status", [502, 503, 504])
def test_what_stands_in_front_of_a_gateway_that_is_down_speaks_for_no_seat(
    stub: GatewayStub, gateway: Gateway, status: int
) -> None:
    stub.hooks.append(lambda *_: Response("<h1>Bad Gateway</h1>", status, content_type="text/html"))
    with pytest.raises(GatewayDownError, match=f"answered .* with {status}"):
        sync_aliases(gateway, [want()], "fv-ml1")
    with pytest.raises(GatewayDownError):
        gateway.complete("gen-large")


def test_a_page_that_is_no_answer_of_a_gateway_is_an_error(stub: GatewayStub, gateway: Gateway) -> None:
    stub.hooks.append(lambda *_: Response("<h1>Log in</h1>", 200, content_type="text/html"))
    with pytest.raises(GatewayError, match="no JSON"):
        gateway.list_deployments()


def test_a_slow_gateway_is_an_error_without_a_second_try(stub: GatewayStub) -> None:
    given_up = threading.Event()
    stub.hooks.append(lambda *_: None if given_up.wait(60) else pytest.fail("never given up"))
    with Gateway(stub.url, MASTER, timeout_s=1.0) as client, pytest.raises(GatewayDownError) as raised:
        client.create_deployment(want().body(1))
    given_up.set()
    with Gateway(stub.url, MASTER) as client:
        client.list_deployments()  # after all that came before: the stub answers one at a time
    assert "in time" in str(raised.value)
    assert stub.requests == ["POST /model/new", "GET /model/info"]


def test_an_existing_value_that_changed_nothing_is_detected(stub: GatewayStub, gateway: Gateway) -> None:
    stub.key(INFRA, "somebody-else", ["x"])
    with pytest.raises(GatewayError, match="somebody-else"):
        gateway.create_key(INFRA, "infra-ops", ["gen-large"], {})


@pytest.mark.parametrize("call", ["create", "update"])
def test_an_empty_list_is_never_sent(stub: GatewayStub, gateway: Gateway, call: str) -> None:
    with pytest.raises(ValueError, match="every model"):
        gateway.create_key(INFRA, "a", [], {}) if call == "create" else gateway.update_key(key_hash(INFRA), models=[])
    assert stub.requests == []


def test_keys_of_all_pages_are_listed(stub: GatewayStub, gateway: Gateway) -> None:
    for number in range(5):
        stub.key(f"sk-{number}", f"key-{number}", ["x"])
    assert [state.alias for state in gateway.list_keys()] == [f"key-{number}" for number in range(5)]


def test_deleting_what_is_gone_is_no_error(gateway: Gateway) -> None:
    assert gateway.delete_deployment("never-was") is False
    gateway.delete_keys([key_hash(INFRA)])


# --- aliases ---

# A deployment is tried out under a name of its own before callers are led to it.
TRIAL = ("POST /model/delete", "POST /model/new", "POST /v1/chat/completions", "POST /model/delete")


def test_register_then_nothing_to_do(stub: GatewayStub, gateway: Gateway) -> None:
    assert sync_aliases(gateway, [want()], "fv-ml1").changed
    assert list(stub.deployments) == [ID]
    assert not sync_aliases(gateway, [want()], "fv-ml1").changed


def test_replacing_makes_proves_and_only_then_breaks(stub: GatewayStub, gateway: Gateway) -> None:
    sync_aliases(gateway, [want()], "fv-ml1")
    stub.requests.clear()
    result = sync_aliases(gateway, [want(sampling={})], "fv-ml1")
    assert [line for line in stub.requests if line != "GET /model/info"] == [
        *TRIAL,
        "POST /model/new",
        "POST /v1/chat/completions",
        "POST /model/delete",
    ]
    assert list(stub.deployments) == [f"{ID}@2"]
    assert "temperature: 1.0" not in str(result.after)


def test_a_new_deployment_that_does_not_answer_is_taken_back(stub: GatewayStub, gateway: Gateway) -> None:
    sync_aliases(gateway, [want()], "fv-ml1")
    stub.dead.add(f"{ID}@2")
    with pytest.raises(GatewayError, match=r"back\. The old deployment stays\. Cause: .*Cannot connect") as failed:
        sync_aliases(gateway, [want(api_base="http://10.0.0.12:8022/v1")], "fv-ml1")
    assert list(stub.deployments) == [ID]
    assert failed.value.seats == ("flash-next",)


def test_no_caller_is_led_to_a_deployment_before_it_has_answered(stub: GatewayStub, gateway: Gateway) -> None:
    sync_aliases(gateway, [want()], "fv-ml1")
    led_to: list[str] = []

    def watch(stub: GatewayStub, path: str, body: dict[str, Any]) -> None:
        led_to.extend(name for name, one in stub.deployments.items() if one["model_name"] == "gen-large")

    stub.hooks.append(watch)
    stub.dead.add(f"{ID}@2")
    with pytest.raises(GatewayError):
        sync_aliases(gateway, [want(api_base="http://10.0.0.12:8022/v1")], "fv-ml1")
    assert set(led_to) == {ID}
    stub.dead.clear()
    sync_aliases(gateway, [want(api_base="http://10.0.0.12:8022/v1")], "fv-ml1")
    assert set(led_to) == {ID, f"{ID}@2"}
    assert list(stub.deployments) == [f"{ID}@2"]


def test_a_trial_is_in_no_access_group_and_what_a_killed_run_leaves_of_it_goes(
    stub: GatewayStub, gateway: Gateway
) -> None:
    one = want(access_groups=("agents",))
    trial = one.trial(1)
    assert "access_groups" not in trial["model_info"]
    assert (trial["model_name"], trial["model_info"]["id"]) == (f"trial-{ID}", f"trial-{ID}")
    assert trial["litellm_params"] == one.body(1)["litellm_params"]
    gateway.create_deployment(trial)
    sync_aliases(gateway, [want()], "fv-ml1")
    assert list(stub.deployments) == [ID]


@pytest.mark.parametrize("well", [True, False])
def test_a_seat_that_never_answers_is_told_from_a_gateway_that_does_not(
    stub: GatewayStub, gateway: Gateway, monkeypatch: pytest.MonkeyPatch, well: bool
) -> None:
    """Packets to the seat that vanish leave the call without an answer, like a gateway that hangs."""
    sync_aliases(gateway, [want()], "fv-ml1")

    def silent(*_: object) -> None:
        raise GatewayDownError("gateway gave no answer in time")

    monkeypatch.setattr(Gateway, "complete", silent)
    monkeypatch.setattr(Gateway, "ready", lambda _: well)
    with pytest.raises(GatewayError) as failed:
        sync_aliases(gateway, [want(api_base="http://10.0.0.12:8022/v1")], "fv-ml1")
    assert isinstance(failed.value, GatewayDownError) is not well
    assert failed.value.seats == (("flash-next",) if well else ())
    assert list(stub.deployments) == [ID]


# The dead one's alias is the first, as aliases are taken in order.
NEIGHBOUR: dict[str, Any] = {"alias": "a-first", "seat": "other", "api_base": "http://10.0.0.11:8030/v1"}
NEIGHBOUR_ID = "seat-fv-ml1-other-a-first"
THIRD: dict[str, Any] = {"alias": "gen-mid", "seat": "third", "api_base": "http://10.0.0.11:8031/v1"}
THIRD_ID = "seat-fv-ml1-third-gen-mid"


def refuse_to_make(stub: GatewayStub) -> None:
    """Fail to store the neighbour's deployment."""

    def refuse(_: GatewayStub, path: str, body: dict[str, Any]) -> Response | None:
        made = path == "/model/new" and body["model_info"]["id"] == NEIGHBOUR_ID
        return error(500, "auth_error", "Failed to add model to db.") if made else None

    stub.hooks.append(refuse)


def kill_neighbour(stub: GatewayStub) -> None:
    stub.dead.add(NEIGHBOUR_ID)


def kill_both_neighbours(stub: GatewayStub) -> None:
    stub.dead |= {NEIGHBOUR_ID, THIRD_ID}


@pytest.mark.parametrize(
    ("break_it", "seats", "named", "left"),
    [
        (kill_neighbour, ("other",), [f"alias a-first: its new deployment {NEIGHBOUR_ID} does not"], {ID, THIRD_ID}),
        (
            kill_both_neighbours,
            ("other", "third"),
            [
                f"alias a-first: its new deployment {NEIGHBOUR_ID} does not",
                f"alias gen-mid: its new deployment {THIRD_ID}",
            ],
            {ID},
        ),
        (refuse_to_make, (), ["gateway http"], {ID, THIRD_ID}),
    ],
)
def test_what_keeps_one_alias_from_being_opened_keeps_no_other(
    stub: GatewayStub, gateway: Gateway, break_it: Any, seats: tuple[str, ...], named: list[str], left: set[str]
) -> None:
    wanted = [want(), want(**NEIGHBOUR), want(**THIRD)]
    break_it(stub)
    with pytest.raises(GatewayError) as failed:
        sync_aliases(gateway, wanted, "fv-ml1")
    assert set(stub.deployments) == left
    assert failed.value.seats == seats
    lines = str(failed.value).splitlines()
    assert len(lines) == len(named)
    assert all(line.startswith(start) for line, start in zip(lines, named, strict=True))


def test_a_closed_alias_is_opened_beside_a_dead_neighbour(stub: GatewayStub, gateway: Gateway) -> None:
    stub.closed_url = STUB_URL
    wanted = [want(), want(**NEIGHBOUR)]
    sync_aliases(gateway, wanted, "fv-ml1")
    for one in wanted:
        close_alias(gateway, one, STUB_URL, seat_key)
    stub.dead.add(NEIGHBOUR_ID)
    with pytest.raises(GatewayError, match="alias a-first"):
        sync_aliases(gateway, wanted, "fv-ml1")
    assert set(stub.deployments) == {ID, "closed-fv-ml1-other-a-first"}


def test_what_is_not_declared_any_more_goes_although_a_seat_is_dead(stub: GatewayStub, gateway: Gateway) -> None:
    sync_aliases(gateway, [want(), want(alias="of-yesterday")], "fv-ml1")
    stub.dead.add(NEIGHBOUR_ID)
    with pytest.raises(GatewayError, match=r"^alias a-first: .*REDACTED:8022$"):
        sync_aliases(gateway, [want(), want(**NEIGHBOUR)], "fv-ml1")
    assert list(stub.deployments) == [ID]
    assert stub.requests[-1] == "POST /v1/chat/completions", "that nobody is answered under it any more is proven"


def test_a_gateway_that_goes_down_ends_everything(
    stub: GatewayStub, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def gone(_: Gateway, body: dict[str, Any]) -> str:
        asked.append(body["model_name"])
        raise GatewayDownError("gateway is not reachable")

    monkeypatch.setattr(Gateway, "create_deployment", gone)
    with pytest.raises(GatewayDownError):
        sync_aliases(gateway, [want(), want(**NEIGHBOUR)], "fv-ml1")
    assert asked == [f"trial-{NEIGHBOUR_ID}"]


def test_a_silent_seat_is_waited_for_once(stub: GatewayStub, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wait may take minutes, and others wait for the lock."""
    asked: list[str] = []
    complete = Gateway.complete

    def silent(self: Gateway, model: str, *more: Any) -> Any:
        asked.append(model)
        if model == f"trial-{NEIGHBOUR_ID}":
            raise GatewayDownError("gateway gave no answer in time")
        return complete(self, model, *more)

    monkeypatch.setattr(Gateway, "complete", silent)
    monkeypatch.setattr(Gateway, "ready", lambda _: True)
    with pytest.raises(GatewayError) as failed:
        sync_aliases(gateway, [want(), want(**NEIGHBOUR), want(**{**NEIGHBOUR, "alias": "b-second"})], "fv-ml1")
    assert asked == [f"trial-{NEIGHBOUR_ID}", f"trial-{ID}", ID]
    assert failed.value.seats == ("other",)
    assert "alias b-second: left as it is, since seat other gave no answer" in str(failed.value)


def test_check_mode_changes_nothing_and_tells_the_same(stub: GatewayStub, gateway: Gateway) -> None:
    checked = sync_aliases(gateway, [want()], "fv-ml1", check=True)
    assert stub.requests == ["GET /model/info"]
    done = sync_aliases(gateway, [want()], "fv-ml1")
    assert (checked.before, checked.after) == (done.before, done.after)


def test_problems_stop_before_the_first_change(stub: GatewayStub, gateway: Gateway) -> None:
    stub.deployments["theirs"] = {
        "model_name": "gen-large",
        "litellm_params": {},
        "model_info": {"id": "theirs", "db_model": True},
    }
    with pytest.raises(GatewayError, match="theirs"):
        sync_aliases(gateway, [want(), want(alias="gen-small")], "fv-ml1")
    assert list(stub.deployments) == ["theirs"]


STUB_URL = "http://10.0.0.11:8009/v1"
CLOSED_ID = "closed-fv-ml1-flash-next-gen-large"


def seat_key(host: str, seat: str) -> str:
    return f"sk-seat-of-{host}-{seat}"


def test_closing_leads_to_the_stub_first_and_opening_gives_the_first_id_back(
    stub: GatewayStub, gateway: Gateway
) -> None:
    stub.closed_url = STUB_URL
    sync_aliases(gateway, [want()], "fv-ml1")
    stub.requests.clear()
    assert close_alias(gateway, want(), STUB_URL, seat_key).changed
    assert [line for line in stub.requests if line != "GET /model/info"] == [
        *TRIAL,
        "POST /model/new",
        "POST /v1/chat/completions",
        "POST /model/delete",
    ]
    assert list(stub.deployments) == [CLOSED_ID]
    params = stub.deployments[CLOSED_ID]["litellm_params"]
    assert (params["api_base"], params["api_key"]) == (STUB_URL, "none")
    assert [params[name] for name in ("num_retries", "max_retries", "cooldown_time")] == [0, 0, 0]
    assert not close_alias(gateway, want(), STUB_URL, seat_key).changed

    opened = sync_aliases(gateway, [want()], "fv-ml1")
    assert [step.why for step in opened.plan.steps] == ["opened again: its seat serves"]
    assert list(stub.deployments) == [ID]
    assert not sync_aliases(gateway, [want()], "fv-ml1").changed


def test_a_declared_fallback_answers_instead_of_the_stub(stub: GatewayStub, gateway: Gateway) -> None:
    other = want(alias="gen-mid", seat="other", api_base="http://10.0.0.12:8030/v1", served_model="mid")
    sync_aliases(gateway, [want(), other], "fv-ml1")
    close_alias(gateway, want(fallback="gen-mid"), STUB_URL, seat_key)
    params = stub.deployments[CLOSED_ID]["litellm_params"]
    assert (params["api_base"], params["model"]) == ("http://10.0.0.12:8030/v1", "hosted_vllm/mid")
    assert params["api_key"] == "sk-seat-of-fv-ml1-other"
    assert params["temperature"] == 1.0
    assert gateway.complete("gen-large").deployment == CLOSED_ID


FALLBACK: dict[str, Any] = {"alias": "gen-mid", "seat": "other", "api_base": "http://10.0.0.12:8030/v1"}


def answer_for(api_base: str, status: int, message: str) -> Any:
    """Answer so for deployments that lead there."""

    def answer(stub: GatewayStub, path: str, body: dict[str, Any]) -> Response | None:
        asked = stub.deployments.get(str(body.get("model")))
        there = asked is not None and asked["litellm_params"]["api_base"] == api_base
        return error(status, "", message) if there and path.endswith("/chat/completions") else None

    return answer


# As LiteLLM words what a seat said.
FAULTS = [
    (401, "litellm.AuthenticationError: AuthenticationError: Hosted_vllmException - Unauthorized"),
    (404, "litellm.NotFoundError: Hosted_vllmException - The model `mid` does not exist."),
    (500, "litellm.InternalServerError: Cannot connect to host REDACTED:8030"),
]


@pytest.mark.parametrize(("status", "message"), FAULTS)
def test_a_fallback_that_does_not_answer_is_none(
    stub: GatewayStub, gateway: Gateway, status: int, message: str
) -> None:
    stub.closed_url = STUB_URL
    first = want(fallback="gen-mid")
    sync_aliases(gateway, [first, want(**FALLBACK)], "fv-ml1")
    stub.hooks.append(answer_for(FALLBACK["api_base"], status, message))
    closed = close_alias(gateway, first, STUB_URL, seat_key)
    assert stub.deployments[CLOSED_ID]["litellm_params"]["api_base"] == STUB_URL
    assert ID not in stub.deployments
    (note,) = closed.plan.notes
    assert note.startswith("alias gen-large: its fallback gen-mid does not answer, so callers get 503")


def test_a_fallback_that_never_answers_is_tried_again_and_changes_nothing(stub: GatewayStub, gateway: Gateway) -> None:
    stub.closed_url = STUB_URL
    first = want(fallback="gen-mid")
    sync_aliases(gateway, [first, want(**FALLBACK)], "fv-ml1")
    close_alias(gateway, replace(first, fallback=None), STUB_URL, seat_key)
    stub.dead.add(f"{CLOSED_ID}@2")
    again = close_alias(gateway, first, STUB_URL, seat_key)
    assert (again.changed, again.plan.ids) == (False, {"gen-large": (CLOSED_ID,)})
    stub.dead.clear()
    assert close_alias(gateway, first, STUB_URL, seat_key).plan.ids == {"gen-large": (f"{CLOSED_ID}@2",)}


def test_neither_fallback_nor_stub_leaves_the_alias_with_its_seat(stub: GatewayStub, gateway: Gateway) -> None:
    first = want(fallback="gen-mid")
    sync_aliases(gateway, [first, want(**FALLBACK)], "fv-ml1")
    stub.hooks += [answer_for(base, *FAULTS[0]) for base in (FALLBACK["api_base"], STUB_URL)]
    with pytest.raises(GatewayError, match="taken back") as failed:
        close_alias(gateway, first, STUB_URL, seat_key)
    assert ID in stub.deployments
    assert failed.value.refused is False, "no completion is a refusal of the gateway"


def test_a_stub_that_does_not_answer_leaves_the_alias_with_its_seat(stub: GatewayStub, gateway: Gateway) -> None:
    sync_aliases(gateway, [want()], "fv-ml1")
    stub.dead.add(CLOSED_ID)
    with pytest.raises(GatewayError, match="taken back") as failed:
        close_alias(gateway, want(), STUB_URL, seat_key)
    assert list(stub.deployments) == [ID]
    assert failed.value.seats == (), "the stub's fault is not the seat's"


def test_an_alias_that_is_not_registered_yet_is_not_closed(stub: GatewayStub, gateway: Gateway) -> None:
    assert not close_alias(gateway, want(), STUB_URL, seat_key).changed
    assert stub.deployments == {}


def test_a_seat_that_is_down_keeps_its_closed_alias(stub: GatewayStub, gateway: Gateway) -> None:
    stub.closed_url = STUB_URL
    sync_aliases(gateway, [want()], "fv-ml1")
    close_alias(gateway, want(), STUB_URL, seat_key)
    second = want(alias="gen-mid", seat="other", api_base="http://10.0.0.11:8030/v1")
    sync_aliases(gateway, [want(), second], "fv-ml1", spare=["flash-next"])
    assert list(stub.deployments) == [CLOSED_ID, "seat-fv-ml1-other-gen-mid"]


def test_a_removed_alias_that_still_answers_is_an_error(
    stub: GatewayStub, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_sync, "SPREAD_S", 0.0)
    sync_aliases(gateway, [want()], "fv-ml1")

    def wildcard(_: GatewayStub, path: str, __: dict[str, Any]) -> Response | None:
        return Response("{}", 200) if path.endswith("/chat/completions") else None

    stub.hooks.append(wildcard)
    with pytest.raises(GatewayError, match="gen-large was removed and is still answered"):
        sync_aliases(gateway, [], "fv-ml1")
    stub.hooks.clear()
    assert sync_aliases(gateway, [], "fv-ml1").plan.steps == ()


def test_no_result_shows_the_seats_secret(stub: GatewayStub, gateway: Gateway) -> None:
    first = sync_aliases(gateway, [want()], "fv-ml1")
    second = sync_aliases(gateway, [want(api_key=SEAT_SECRET + "-rotated")], "fv-ml1")
    assert second.changed
    assert SEAT_SECRET not in repr((first, second))


# --- keys ---


def wanted_keys(*aliases: str, grants: dict[str, str] | None = None) -> list[WantedKey]:
    given = {"gen-large": SEAT} if grants is None else grants
    return [WantedKey(alias, given, value=VALUES[alias]) for alias in aliases]


QUICK = KeyOptions(settle_s=0.0)


def grant(gateway: Gateway, keys: Sequence[WantedKey], **more: Any) -> gateway_sync.KeyResult:
    return sync_keys(gateway, keys, "fv-ml1", ["gen-large"], options=more.pop("options", QUICK), **more)


def test_create_update_and_take_back(stub: GatewayStub, gateway: Gateway) -> None:
    stub.key(AGENTS, "all-agents", ["other"], metadata={"note": "kept"})
    assert grant(gateway, wanted_keys("infra-ops", "all-agents")).changed
    assert (stub.models("infra-ops"), stub.models("all-agents")) == (["gen-large"], ["other", "gen-large"])
    assert stub.keys[key_hash(AGENTS)]["metadata"] == {"note": "kept", GRANTS_FIELD: {"gen-large": SEAT}}
    assert not grant(gateway, wanted_keys("infra-ops", "all-agents")).changed
    assert grant(gateway, wanted_keys("infra-ops", "all-agents", grants={})).changed
    assert (stub.models("infra-ops"), stub.models("all-agents")) == (["no-default-models"], ["other"])


def test_the_cap_of_a_keys_team_is_known(stub: GatewayStub, gateway: Gateway) -> None:
    stub.teams["t"] = ["gen-mid"]
    hashed = stub.key(INFRA, "infra-ops", ["gen-large"], team_id="t")
    assert gateway.list_keys()[0].team_models == ("gen-mid",)
    assert gateway.key(hashed) == gateway.list_keys()[0]
    with pytest.raises(GatewayError, match="team_model_access_denied"):
        grant(gateway, wanted_keys("infra-ops"))


def test_ghosts_of_a_run_that_was_cut_off_before_the_lists_are_cleaned(stub: GatewayStub, gateway: Gateway) -> None:
    sync_aliases(gateway, [want()], "fv-ml1")
    grant(gateway, wanted_keys("infra-ops"))
    stub.key("sk-somebody-elses-key-00000", "foreign", ["gen-large", "other"])
    sync_aliases(gateway, [], "fv-ml1")
    # What that run dropped is known to nobody any more.
    sync_keys(gateway, wanted_keys("infra-ops", grants={}), "fv-ml1", [], options=QUICK)
    assert (stub.models("foreign"), stub.models("infra-ops")) == (["other"], ["no-default-models"])


def test_an_alias_that_moved_to_another_host_is_no_ghost(stub: GatewayStub, gateway: Gateway) -> None:
    sync_aliases(gateway, [want()], "fv-ml1")
    grant(gateway, wanted_keys("infra-ops"))
    stub.key("sk-somebody-elses-key-00000", "foreign", ["gen-large"])
    sync_aliases(gateway, [want(host="spark-1")], "spark-1")
    sync_keys(gateway, wanted_keys("infra-ops", grants={}), "fv-ml1", [], options=QUICK)
    assert stub.models("foreign") == ["gen-large"]


def test_check_mode_writes_no_key(stub: GatewayStub, gateway: Gateway) -> None:
    checked = grant(gateway, wanted_keys("infra-ops"), check=True)
    assert checked.changed
    assert not any(line.startswith("POST") for line in stub.requests)
    assert checked.after == grant(gateway, wanted_keys("infra-ops")).after


def test_an_edit_that_another_controller_overwrote_is_repaired(stub: GatewayStub, gateway: Gateway) -> None:
    hashed = stub.key(INFRA, "infra-ops", ["mine"])
    lost = threading.Event()

    def overwrite(here: GatewayStub, path: str, _: dict[str, Any]) -> Response | None:
        # A list read before our write arrives after it: at the first look after the write, ours is gone.
        if path == "/key/list" and "gen-large" in here.keys[hashed]["models"] and not lost.is_set():
            here.keys[hashed]["models"] = ["mine", "theirs"]
            lost.set()
        return None

    stub.hooks.append(overwrite)
    grant(gateway, wanted_keys("infra-ops"))
    assert lost.is_set()
    assert stub.models("infra-ops") == ["mine", "theirs", "gen-large"]


def test_lists_that_never_settle_are_an_error(stub: GatewayStub, gateway: Gateway) -> None:
    hashed = stub.key(INFRA, "infra-ops", ["mine"])

    def overwrite(here: GatewayStub, path: str, _: dict[str, Any]) -> Response | None:
        if path == "/key/list":
            here.keys[hashed]["models"] = ["mine"]
        return None

    stub.hooks.append(overwrite)
    with pytest.raises(GatewayError, match="another program edits"):
        grant(gateway, wanted_keys("infra-ops"))


def test_a_key_made_here_is_handed_out_in_a_private_file(stub: GatewayStub, gateway: Gateway, tmp_path: Path) -> None:
    options = KeyOptions(handout=tmp_path / "keys", settle_s=0.0)
    result = grant(gateway, [WantedKey("new-key", {"gen-large": SEAT})], options=options)
    path = tmp_path / "keys/new-key.key"
    value = path.read_text().strip()
    assert stub.models("new-key") == ["gen-large"]
    assert key_hash(value) in stub.keys
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)
    assert value not in repr(result)


def test_a_key_that_could_not_be_made_leaves_no_file(stub: GatewayStub, gateway: Gateway, tmp_path: Path) -> None:
    stub.hooks.append(lambda _, path, __: error(500, "x", "no") if path == "/key/generate" else None)
    with pytest.raises(GatewayError):
        grant(gateway, [WantedKey("new-key")], options=KeyOptions(handout=tmp_path / "keys", settle_s=0.0))
    assert os.listdir(tmp_path / "keys") == []  # noqa: PTH208 - hidden files count


def test_rotation_keeps_the_old_value_for_a_while(stub: GatewayStub, gateway: Gateway) -> None:
    stub.teams["t"] = []
    old = stub.key("sk-infra-ops-the-old-value-0", "infra-ops", ["x"], team_id="t", max_budget=5.0)
    grant(gateway, wanted_keys("infra-ops"), options=KeyOptions(rotate=True, settle_s=0.0, overlap="2h"))
    new = stub.keys[key_hash(INFRA)]
    assert (new["key_alias"], new["models"], new["team_id"], new["max_budget"]) == (
        "infra-ops",
        ["x", "gen-large"],
        "t",
        5.0,
    )
    assert stub.keys[old]["key_alias"] == f"infra-ops.retired-{old[:8]}"
    assert stub.keys[old]["duration"] == "2h"


def test_a_rotation_that_fails_gives_the_alias_back(stub: GatewayStub, gateway: Gateway) -> None:
    old = stub.key("sk-infra-ops-the-old-value-0", "infra-ops", ["x"])
    stub.hooks.append(lambda _, path, __: error(500, "x", "no") if path == "/key/generate" else None)
    with pytest.raises(GatewayError):
        grant(gateway, wanted_keys("infra-ops"), options=KeyOptions(rotate=True, settle_s=0.0))
    assert stub.keys[old]["key_alias"] == "infra-ops"


def after(seconds: float) -> str:
    """Return a point in time from now, as the proxy writes it."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize(
    ("left_s", "retired_duration"),
    [(3600, None), (-3600, None), (86400 * 30, "2h"), (None, "2h")],
    ids=["expires within the overlap", "has expired", "expires later", "never expires"],
)
def test_a_rotation_never_lengthens_the_old_values_life(
    stub: GatewayStub, gateway: Gateway, left_s: float | None, retired_duration: str | None
) -> None:
    life = {} if left_s is None else {"expires": after(left_s), "created_at": after(left_s - 7200)}
    old = stub.key("sk-infra-ops-the-old-value-0", "infra-ops", ["gen-large"], **life)
    grant(gateway, wanted_keys("infra-ops"), options=KeyOptions(rotate=True, settle_s=0.0, overlap="2h"))
    assert stub.keys[old].get("duration") == retired_duration
    assert stub.keys[key_hash(INFRA)].get("duration") == (None if left_s is None else "7200s")


def test_a_rotation_opens_nothing_that_was_closed(stub: GatewayStub, gateway: Gateway) -> None:
    stub.key("sk-infra-ops-the-old-value-0", "infra-ops", ["gen-large"], blocked=True, spend=4.5, max_budget=5.0)
    grant(gateway, wanted_keys("infra-ops"), options=KeyOptions(rotate=True, settle_s=0.0))
    new = stub.keys[key_hash(INFRA)]
    assert (new["blocked"], new["spend"], new["max_budget"]) == (True, 4.5, 5.0)


def killed(*_: object, **__: object) -> None:
    """Stand in for the moment at which a run is killed."""
    raise KeyboardInterrupt


@pytest.mark.parametrize("life", [{}, {"expires": after(86400 * 30), "created_at": after(-86400)}])
def test_a_rotation_that_was_cut_off_goes_on_with_team_and_limits(
    stub: GatewayStub, gateway: Gateway, monkeypatch: pytest.MonkeyPatch, life: dict[str, str]
) -> None:
    stub.teams["t"] = []
    old = stub.key("sk-infra-ops-the-old-value-0", "infra-ops", ["gen-large"], team_id="t", max_budget=5.0, **life)
    rotating = KeyOptions(rotate=True, settle_s=0.0, overlap="2h")

    with monkeypatch.context() as patched:
        patched.setattr(Gateway, "copy_key", killed)
        with pytest.raises(KeyboardInterrupt):
            grant(gateway, wanted_keys("infra-ops"), options=rotating)
    stub.keys[old] |= {"expires": after(7200)}
    with pytest.raises(GatewayError, match="seat_alias_rotate_keys"):
        grant(gateway, wanted_keys("infra-ops"))
    grant(gateway, wanted_keys("infra-ops"), options=rotating)
    new = stub.keys[key_hash(INFRA)]
    assert (new["key_alias"], new["team_id"], new["max_budget"], new["models"]) == (
        "infra-ops",
        "t",
        5.0,
        ["gen-large"],
    )
    assert new.get("duration") == ("2678400s" if life else None)
    assert stub.keys[old]["key_alias"] == f"infra-ops.retired-{old[:8]}"
    assert not grant(gateway, wanted_keys("infra-ops")).changed


def test_an_overlap_of_another_form_is_refused_before_any_change(stub: GatewayStub, gateway: Gateway) -> None:
    with pytest.raises(GatewayError, match="seat_alias_rotation_overlap: expected a duration"):
        grant(gateway, wanted_keys("infra-ops"), options=KeyOptions(overlap="1 day"))
    assert stub.requests == []


def test_a_name_like_that_of_a_retired_key_earns_no_grant(stub: GatewayStub, gateway: Gateway) -> None:
    stub.key(INFRA, "infra-ops", ["gen-large"])
    stub.key("sk-somebody-elses-key-00000", "infra-ops.retired-01234567", ["other"])
    grant(gateway, wanted_keys("infra-ops"))
    assert stub.models("infra-ops.retired-01234567") == ["other"]


# --- proof ---


@pytest.fixture
def fleet(stub: GatewayStub, gateway: Gateway) -> GatewayStub:
    """One alias, two keys that may call it, one that may not."""
    sync_aliases(gateway, [want()], "fv-ml1")
    for alias in ("infra-ops", "all-agents"):
        stub.key(VALUES[alias], alias, ["gen-large"])
    stub.key(CONTROL, "control", ["no-default-models"])
    return stub


ALIAS = ProofAlias("gen-large", (ID,), ("infra-ops", "all-agents"))


def outcome(gateway: Gateway, **more: Any) -> dict[str, str]:
    proof = prove(gateway, more.pop("aliases", [ALIAS]), more.pop("values", VALUES), **more)
    return {cell.key: ("" if cell.ok else "FAILED ") + cell.verdict for cell in proof.cells}


GOOD = {"infra-ops": "ok", "all-agents": "ok", "control": "refused"}


def test_a_good_fleet_is_proven(fleet: GatewayStub, gateway: Gateway) -> None:
    assert outcome(gateway, control="control") == GOOD


def forget_key(stub: GatewayStub) -> None:
    del stub.keys[key_hash(AGENTS)]


def narrow_key(stub: GatewayStub) -> None:
    stub.keys[key_hash(AGENTS)]["models"] = ["other"]


def kill_seat(stub: GatewayStub) -> None:
    stub.dead.add(ID)


def add_second(stub: GatewayStub) -> None:
    stub.deployments["theirs"] = {"model_name": "gen-large", "litellm_params": {}, "model_info": {"id": "theirs"}}


def drop_alias(stub: GatewayStub) -> None:
    stub.deployments.clear()


def open_control(stub: GatewayStub) -> None:
    stub.keys[key_hash(CONTROL)]["models"] = ["gen-large"]


def open_side_door(stub: GatewayStub) -> None:
    def serve(_: GatewayStub, path: str, __: dict[str, Any]) -> Response | None:
        return Response("{}", 200, content_type="application/json") if path.startswith("/openai/") else None

    stub.hooks.append(serve)


@pytest.mark.parametrize(
    ("break_it", "expected"),
    [
        (forget_key, {**GOOD, "all-agents": "FAILED key_missing"}),
        (narrow_key, {**GOOD, "all-agents": "FAILED key_scope"}),
        (kill_seat, {**GOOD, "infra-ops": "FAILED seat_down", "all-agents": "FAILED seat_down"}),
        (add_second, {**GOOD, "infra-ops": "FAILED wrong_seat", "all-agents": "FAILED wrong_seat"}),
        (drop_alias, {**GOOD, "infra-ops": "FAILED alias_unknown", "all-agents": "FAILED alias_unknown"}),
        (open_control, {**GOOD, "control": "FAILED over_granted"}),
        (open_side_door, {**GOOD, "control": "FAILED over_granted"}),
    ],
)
def test_what_is_broken_is_named(
    fleet: GatewayStub, gateway: Gateway, monkeypatch: pytest.MonkeyPatch, break_it: Any, expected: dict[str, str]
) -> None:
    monkeypatch.setattr(gateway_sync, "COOLDOWN_LIMIT_S", 0.0)
    break_it(fleet)
    assert outcome(gateway, control="control") == expected
    # only a seat that does not answer is brought back for it: no key and no list is its fault
    proof = prove(gateway, [ALIAS], VALUES, control="control")
    assert faulty_aliases(proof.cells) == (["gen-large"] if break_it is kill_seat else [])


def test_without_a_control_key_one_is_made_and_removed(fleet: GatewayStub, gateway: Gateway) -> None:
    values = {name: VALUES[name] for name in ("infra-ops", "all-agents")}
    before = set(fleet.keys)
    assert outcome(gateway, values=values) == {"infra-ops": "ok", "all-agents": "ok", "(control)": "refused"}
    assert set(fleet.keys) == before


def test_a_key_whose_value_is_not_ours_is_proven_by_a_twin(fleet: GatewayStub, gateway: Gateway) -> None:
    before = set(fleet.keys)
    proof = prove(gateway, [ALIAS], {"infra-ops": INFRA, "control": CONTROL}, control="control")
    assert {cell.key: (cell.ok, cell.twin) for cell in proof.cells} == {
        "all-agents": (True, True),
        "infra-ops": (True, False),
        "control": (True, False),
    }
    assert set(fleet.keys) == before


@pytest.mark.parametrize(
    ("state", "verdict"),
    [
        ({"blocked": True}, "FAILED key_blocked"),
        ({"expires": "2020-01-01T00:00:00Z"}, "FAILED key_expired"),
        ({"expires": "2999-01-01T00:00:00+00:00"}, "ok"),
        ({"max_budget": 5.0, "spend": 5.0}, "FAILED budget_exceeded"),
        ({"max_budget": 5.0, "spend": 4.9}, "ok"),
    ],
)
def test_a_twin_does_not_hide_what_stops_the_key_itself(
    fleet: GatewayStub, gateway: Gateway, state: dict[str, Any], verdict: str
) -> None:
    fleet.keys[key_hash(AGENTS)] |= state
    seen = outcome(gateway, values={"infra-ops": INFRA, "control": CONTROL}, control="control")
    assert seen == {**GOOD, "all-agents": verdict}


def test_the_twin_of_a_stopped_key_still_shows_what_its_list_allows_too_much(
    fleet: GatewayStub, gateway: Gateway
) -> None:
    fleet.keys[key_hash(AGENTS)] |= {"blocked": True}
    alias = ProofAlias("gen-large", (ID,), ("infra-ops",))
    second = ProofAlias("gen-small", (), ("all-agents",))
    proof = prove(gateway, [alias, second], {"infra-ops": INFRA, "control": CONTROL}, control="control")
    assert [cell.verdict for cell in proof.cells if (cell.key, cell.alias) == ("all-agents", "gen-large")] == [
        "over_granted"
    ]


@pytest.mark.parametrize("poisonable", [False, True])
def test_an_alias_that_one_request_can_change_for_everybody_is_named(
    stub: GatewayStub, gateway: Gateway, poisonable: bool
) -> None:
    sync_aliases(gateway, [want(chat_template_kwargs={"enable_thinking": False, "style": "short"})], "fv-ml1")
    sent: list[Any] = []

    def poison(here: GatewayStub, path: str, body: dict[str, Any]) -> Response | None:
        if path.endswith("/chat/completions") and "chat_template_kwargs" in body:
            sent.append(body["chat_template_kwargs"])
            if poisonable:
                here.deployments[ID]["litellm_params"]["extra_body"] = {"chat_template_kwargs": sent[-1]}
        return None

    stub.hooks.append(poison)
    problems = prove(gateway, [ProofAlias("gen-large", (ID,), ())], {}).problems
    assert sent == [{"enable_thinking": True}]
    assert len(problems) == poisonable
    assert all(f"one request changed extra_body of deployment {ID}" in problem for problem in problems)


def test_a_declared_key_that_nobody_knows_is_missing(fleet: GatewayStub, gateway: Gateway) -> None:
    alias = ProofAlias("gen-large", (ID,), ("infra-ops", "unborn"))
    assert outcome(gateway, aliases=[alias], control="control")["unborn"] == "FAILED key_missing"


def test_an_admin_key_proves_no_allowlist(fleet: GatewayStub, gateway: Gateway) -> None:
    proof = prove(gateway, [ALIAS], {**VALUES, "infra-ops": MASTER}, control="control")
    cell = next(cell for cell in proof.cells if cell.key == "infra-ops")
    assert (cell.ok, cell.verdict) == (True, "admin")
    assert "proves no allowlist" in cell.sentence


def test_expired_proof_keys_of_killed_runs_are_swept(fleet: GatewayStub, gateway: Gateway) -> None:
    dead = fleet.key("sk-1", "seatfleet-proof-dead", ["x"], expires="2020-01-01T00:00:00Z")
    alive = fleet.key("sk-2", "seatfleet-proof-alive", ["x"], expires="2999-01-01T00:00:00Z")
    prove(gateway, [ALIAS], VALUES, control="control")
    assert dead not in fleet.keys
    assert alive in fleet.keys


# --- lock ---


def test_a_runtime_directory_that_is_gone_costs_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with gateway_lock("http://gw", wait_s=0.0):
        assert [path.parent for path in tmp_path.glob("*/*.lock")] == [lock_directory()]


def test_the_lock_waits_and_then_names_the_file(tmp_path: Path) -> None:
    with gateway_lock("http://gw", tmp_path), pytest.raises(LockTimeoutError, match=str(tmp_path)):  # noqa: SIM117
        with gateway_lock("http://gw/", tmp_path, wait_s=0.0):
            pytest.fail("two holders")
    with gateway_lock("http://gw", tmp_path, wait_s=0.0), gateway_lock("http://other", tmp_path, wait_s=0.0):
        pass
