"""Aliases and keys at a real LiteLLM proxy with PostgreSQL; only the seats behind it are stubs.

By default the proxy is the lab's gw-1, installed by playbooks/gateway.yml. Another one is used when these are set:
SEATFLEET_GATEWAY_URL, SEATFLEET_GATEWAY_ADMIN_KEY and SEATFLEET_GATEWAY_RESTART (a command).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import secrets
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from seat_stub import SeatStub

from seatfleet.cli import main
from seatfleet.clients.gateway import Gateway, GatewayDownError, GatewayError
from seatfleet.clients.gateway_sync import KeyOptions, ProofAlias, close_alias, prove, sync_aliases, sync_keys
from seatfleet.core.gateway.keys import NO_MODELS, WantedKey, key_hash
from seatfleet.core.gateway.state import WantedAlias
from seatfleet.core.seat.stub import SeatStub as AwayStub

PROJECT = Path(__file__).resolve().parents[2]
READY_LIMIT_S = 240
# Tokens of a stream that goes on until the test lets it end.
ENDLESS = 400


@dataclass(frozen=True)
class Proxy:
    """The proxy under test, and how this machine is reached from it."""

    url: str
    admin_key: str = field(repr=False)
    restart: Sequence[str]
    here: str

    def wait(self) -> None:
        """Wait until it is ready, with its database."""
        end = time.monotonic() + READY_LIMIT_S
        with Gateway(self.url, self.admin_key, connect_retries=0) as gateway:
            while time.monotonic() < end:
                try:
                    if gateway.ready():
                        return
                except GatewayDownError:
                    pass
                time.sleep(1)
        pytest.fail(f"{self.url} is not ready after {READY_LIMIT_S} s")


@pytest.fixture(scope="session")
def proxy(request: pytest.FixtureRequest) -> Proxy:
    names = ("SEATFLEET_GATEWAY_URL", "SEATFLEET_GATEWAY_ADMIN_KEY", "SEATFLEET_GATEWAY_RESTART")
    given = [os.environ.get(name) for name in names]
    if any(given) and not all(given):
        pytest.fail(f"set all of {', '.join(names)}, or none")
    url, key, restart = given
    if url is None or key is None or restart is None:
        lab = request.getfixturevalue("lab")
        lab.run("ansible-playbook", "playbooks/gateway.yml")
        state = Path(lab.environment["SEATFLEET_LAB"])
        address = json.loads((state / "hosts.json").read_text())["gw-1"]["address"]
        url, key = f"http://{address}:4000", str(lab.secrets()["litellm_master_key"])
        restart = f"env SEATFLEET_LAB={state} {PROJECT}/lab/lab ssh gw-1 systemctl restart litellm"
    parts = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((parts.hostname, parts.port or 80))
        here = probe.getsockname()[0]
    made = Proxy(url, key, shlex.split(restart), here)
    made.wait()
    return made


@pytest.fixture
def gateway(proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with Gateway(proxy.url, proxy.admin_key) as client:
        yield client


@contextmanager
def stub(proxy: Proxy, *names: str, api_key: str | None) -> Iterator[SeatStub]:
    """Run a seat stub that the proxy reaches."""
    server = SeatStub((proxy.here, 0), names, api_key)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class Fleet:
    """One seat of a host of its own, one alias, one key; everything is removed at the end of the test."""

    def __init__(self, gateway: Gateway, seat: SeatStub) -> None:
        self.gateway = gateway
        self.seat = seat
        self.tag = secrets.token_hex(4)
        self.host = f"host-{self.tag}"
        self.alias = f"gen-{self.tag}"
        self.value = f"sk-test-{secrets.token_hex(16)}"
        self.key = f"key-{self.tag}"
        self.quick = KeyOptions(settle_s=0.0)
        seat.names.append(self.alias)

    @property
    def ref(self) -> str:
        return f"{self.host}/seat"

    def want(self, **changes: Any) -> WantedAlias:
        address, port = self.seat.server_address[:2]
        given = WantedAlias(
            alias=self.alias,
            host=self.host,
            seat="seat",
            api_base=f"http://{address!s}:{port}/v1",
            api_key=self.seat.api_key or "",
            keys=(self.key,),
            sampling={"temperature": 0.5, "top_k": 20},
        )
        return replace(given, **changes)

    def register(self, *wanted: WantedAlias) -> Any:
        return sync_aliases(self.gateway, wanted, self.host)

    def grant(self, *keys: WantedKey, aliases: Sequence[str] | None = None, dropped: Sequence[str] = ()) -> Any:
        declared = [self.alias] if aliases is None else aliases
        return sync_keys(self.gateway, keys, self.host, declared, dropped=dropped, options=self.quick)

    def wanted_key(self, **changes: Any) -> WantedKey:
        return replace(WantedKey(self.key, {self.alias: self.ref}, value=self.value), **changes)

    def call(self, value: str | None = None) -> str:
        """Call the alias with the key; return the verdict's word."""
        with self.gateway.as_key(value or self.value) as caller:
            return caller.complete(self.alias).verdict.kind

    def proven(self, **values: str) -> dict[str, tuple[bool, str]]:
        ids = tuple(item.id for item in self.gateway.list_deployments() if item.host == self.host)
        proof = prove(self.gateway, [ProofAlias(self.alias, ids, (self.key,))], values or {self.key: self.value})
        return {cell.key: (cell.ok, cell.verdict) for cell in proof.cells}

    def last(self) -> dict[str, Any]:
        """Return the body of the last completion that reached the seat."""
        return dict(self.seat.seen[-1]["body"])

    def remove(self) -> None:
        sync_aliases(self.gateway, [], self.host)
        mine = [state.hash for state in self.gateway.list_keys() if self.tag in state.alias]
        self.gateway.delete_keys(mine)


@pytest.fixture
def fleet(proxy: Proxy, gateway: Gateway) -> Iterator[Fleet]:
    with stub(proxy, api_key="sk-seat-canary-2f7d") as seat:
        made = Fleet(gateway, seat)
        yield made
        made.remove()


@pytest.fixture
def registered(fleet: Fleet) -> Fleet:
    fleet.register(fleet.want())
    fleet.grant(fleet.wanted_key())
    return fleet


# --- what the proxy does, which the rest relies on ---


def test_an_empty_list_means_every_alias(registered: Fleet) -> None:
    registered.gateway._call("POST", "/key/update", json={"key": key_hash(registered.value), "models": []})
    registered.grant(registered.wanted_key(grants={}))
    assert registered.call() == "ok"
    assert registered.gateway.key(key_hash(registered.value)).models == ()  # type: ignore[union-attr]


def test_an_existing_value_changes_nothing_and_is_detected(registered: Fleet) -> None:
    with pytest.raises(GatewayError, match=registered.key):
        registered.gateway.create_key(registered.value, f"other-{registered.tag}", ["x"], {})


def test_no_default_models_means_none(registered: Fleet) -> None:
    registered.grant(registered.wanted_key(grants={}))
    assert registered.gateway.key(key_hash(registered.value)).models == (NO_MODELS,)  # type: ignore[union-attr]
    assert registered.call() == "key_scope"


# --- aliases ---


def test_create_then_nothing_to_do(registered: Fleet) -> None:
    assert not registered.register(registered.want()).changed
    assert not registered.grant(registered.wanted_key()).changed
    assert registered.proven() == {registered.key: (True, "ok"), "(control)": (True, "refused")}
    assert registered.last()["model"] == registered.alias
    assert (registered.last()["temperature"], registered.last()["top_k"]) == (0.5, 20)
    assert "presence_penalty" not in registered.last()


@pytest.mark.parametrize(
    ("changes", "reaches_the_seat"),
    [
        ({"sampling": {"temperature": 0.9, "top_k": 20}}, {"temperature": 0.9, "top_k": 20}),
        ({"sampling": {"temperature": 0.5, "top_k": 7}}, {"temperature": 0.5, "top_k": 7}),
        ({"sampling": {"temperature": 0.5}}, {"temperature": 0.5, "top_k": None}),
        ({"sampling": {}}, {"temperature": None, "top_k": None}),
        (
            {"chat_template_kwargs": {"enable_thinking": False}},
            {"chat_template_kwargs": {"enable_thinking": False}, "top_k": 20},
        ),
        ({"limits": {"timeout_s": 33, "max_input_tokens": 2048}}, {"temperature": 0.5}),
        ({"access_groups": ("agents",)}, {"temperature": 0.5}),
    ],
)
def test_each_field_changes_and_disappears_again(
    registered: Fleet, changes: dict[str, Any], reaches_the_seat: Mapping[str, Any]
) -> None:
    assert registered.register(registered.want(**changes)).changed
    assert not registered.register(registered.want(**changes)).changed
    assert registered.call() == "ok"
    assert {name: registered.last().get(name) for name in reaches_the_seat} == reaches_the_seat
    assert registered.register(registered.want()).changed
    assert registered.call() == "ok"
    assert {name for name in ("temperature", "top_k", "chat_template_kwargs") if name in registered.last()} == {
        "temperature",
        "top_k",
    }
    assert len([item for item in registered.gateway.list_deployments() if item.alias == registered.alias]) == 1


def test_the_backend_moves(registered: Fleet, proxy: Proxy) -> None:
    with stub(proxy, registered.alias, api_key="sk-seat-second") as other:
        address, port = other.server_address[:2]
        registered.register(registered.want(api_base=f"http://{address!s}:{port}/v1", api_key="sk-seat-second"))
        assert registered.call() == "ok"
        assert len(other.seen) == 3  # the trial of the new deployment, its proof, and the call


def test_a_rotated_secret_of_the_seat_is_noticed(registered: Fleet) -> None:
    registered.seat.api_key = "sk-seat-rotated"
    assert list(registered.register(registered.want()).plan.steps[0].changes) == ["api_key"]
    assert registered.call() == "ok"


def test_a_seat_that_refuses_the_gateway_is_no_refused_key(registered: Fleet) -> None:
    registered.seat.api_key = "sk-seat-changed-behind-our-back"
    assert registered.proven()[registered.key] == (False, "seat_key")


def test_an_edit_by_hand_is_undone(registered: Fleet) -> None:
    identifier = registered.want().base_id
    registered.gateway._call(
        "PATCH",
        f"/model/{identifier}/update",
        json={"litellm_params": {"temperature": 1.9, "rpm": 1}, "model_info": {"id": identifier}},
    )
    assert set(registered.register(registered.want()).plan.steps[0].changes) == {"temperature", "rpm"}
    assert registered.call() == "ok"
    assert registered.last()["temperature"] == 0.5


def test_a_dead_new_backend_leaves_the_old_one(registered: Fleet) -> None:
    with pytest.raises(GatewayError, match="The old deployment stays"):
        registered.register(registered.want(api_base="http://127.0.0.1:9/v1"))
    assert registered.call() == "ok"
    assert [item.id for item in registered.gateway.list_deployments() if item.alias == registered.alias] == [
        registered.want().base_id
    ]


def test_replacing_leaves_no_hole(registered: Fleet, proxy: Proxy) -> None:
    verdicts: list[str] = []
    stop = threading.Event()

    def call() -> None:
        with Gateway(proxy.url, registered.value) as caller:
            while not stop.is_set():
                verdicts.append(caller.complete(registered.alias).verdict.kind)

    caller = threading.Thread(target=call)
    caller.start()
    for temperature in (0.1, 0.2, 0.3):
        registered.register(registered.want(sampling={"temperature": temperature}))
    stop.set()
    caller.join()
    assert len(verdicts) > 5
    assert set(verdicts) == {"ok"}


def test_removing_an_alias_cleans_every_list(registered: Fleet) -> None:
    foreign = f"sk-foreign-{secrets.token_hex(12)}"
    registered.gateway.create_key(foreign, f"foreign-{registered.tag}", [registered.alias, "elsewhere"], {})
    assert registered.call(foreign) == "ok"
    result = registered.register()
    assert result.plan.dropped == (registered.alias,)
    # The ghost: listed, and every call is a 400.
    assert registered.call(foreign) == "alias_unknown"
    registered.grant(registered.wanted_key(grants={}), aliases=[], dropped=result.plan.dropped)
    keys = {state.alias: state.models for state in registered.gateway.list_keys()}
    assert keys[f"foreign-{registered.tag}"] == ("elsewhere",)
    assert keys[registered.key] == (NO_MODELS,)
    with registered.gateway.as_key(registered.value) as caller:
        assert caller.models() == []


def test_a_blocked_alias_is_named_and_opened(registered: Fleet) -> None:
    registered.gateway.set_blocked(registered.want().base_id, True)
    assert registered.proven()[registered.key] == (False, "alias_blocked")
    assert [step.kind for step in registered.register(registered.want()).plan.steps] == ["unblock"]
    assert registered.proven()[registered.key] == (True, "ok")


# --- keys ---


def test_a_key_with_the_access_group_is_not_edited(fleet: Fleet) -> None:
    group = f"group-{fleet.tag}"
    key = fleet.wanted_key(models=(group,), via={fleet.alias: (group,)})
    fleet.register(fleet.want(access_groups=(group,)))
    fleet.grant(key)
    assert fleet.gateway.key(key_hash(fleet.value)).models == (group,)  # type: ignore[union-attr]
    assert fleet.proven() == {fleet.key: (True, "ok"), "(control)": (True, "refused")}
    # A second alias joins the group: the key may call it, and was not touched.
    second = f"{fleet.alias}-b"
    fleet.seat.names.append(second)
    before = fleet.gateway.key(key_hash(fleet.value))
    fleet.register(fleet.want(access_groups=(group,)), fleet.want(alias=second, access_groups=(group,)))
    with fleet.gateway.as_key(fleet.value) as caller:
        assert caller.complete(second).verdict.kind == "ok"
    assert fleet.gateway.key(key_hash(fleet.value)) == before


def test_a_team_cap_is_seen_before_and_after(fleet: Fleet) -> None:
    team = f"team-{fleet.tag}"
    fleet.gateway._call("POST", "/team/new", json={"team_id": team, "team_alias": team, "models": ["elsewhere"]})
    try:
        fleet.register(fleet.want())
        fleet.gateway.create_key(fleet.value, fleet.key, [fleet.alias], {}, more={"team_id": team})
        with pytest.raises(GatewayError, match="team_model_access_denied"):
            fleet.grant(fleet.wanted_key())
        # The silent case: /v1/models shows the alias, the call is refused.
        assert fleet.proven()[fleet.key] == (False, "team_scope")
        fleet.gateway._call("POST", "/team/update", json={"team_id": team, "models": ["elsewhere", fleet.alias]})
        fleet.grant(fleet.wanted_key())
        assert fleet.proven()[fleet.key] == (True, "ok")
    finally:
        fleet.gateway._call("POST", "/team/delete", json={"team_ids": [team]})


def test_wrong_and_missing_keys_are_named(registered: Fleet) -> None:
    wrong = {registered.key: f"sk-wrong-{secrets.token_hex(12)}"}
    assert registered.proven(**wrong)[registered.key] == (False, "key_missing")
    registered.gateway.delete_keys([key_hash(registered.value)])
    assert registered.proven(other=registered.value)[registered.key] == (False, "key_missing")


def test_a_key_without_its_value_is_proven_by_a_twin(registered: Fleet) -> None:
    before = {state.hash for state in registered.gateway.list_keys()}
    ids = (registered.want().base_id,)
    proof = prove(registered.gateway, [ProofAlias(registered.alias, ids, (registered.key,))], {})
    assert [(cell.key, cell.ok, cell.twin) for cell in proof.cells] == [
        (registered.key, True, True),
        ("(control)", True, False),
    ]
    assert {state.hash for state in registered.gateway.list_keys()} == before
    assert proof.version == "1.106.12"


def test_the_admin_key_proves_no_allowlist(registered: Fleet, proxy: Proxy) -> None:
    assert registered.proven(**{registered.key: proxy.admin_key})[registered.key] == (True, "admin")


def test_rotation_overlaps(registered: Fleet) -> None:
    new = f"sk-rotated-{secrets.token_hex(12)}"
    key = registered.wanted_key(value=new)
    with pytest.raises(GatewayError, match="seat_alias_rotate_keys"):
        registered.grant(key)
    options = replace(registered.quick, rotate=True, overlap="20s")
    sync_keys(registered.gateway, [key], registered.host, [registered.alias], options=options)
    assert (registered.call(new), registered.call()) == ("ok", "ok")
    end = time.monotonic() + 120
    while (old := registered.call()) == "ok" and time.monotonic() < end:
        time.sleep(1)
    assert (registered.call(new), old) == ("ok", "key_expired")


def test_a_rotation_keeps_what_was_closed_closed_and_what_was_spent_spent(registered: Fleet) -> None:
    """What /key/generate and /key/update make of the fields that a rotation hands over."""
    old = key_hash(registered.value)
    registered.gateway.update_key(old, max_budget=5.0, spend=4.5, blocked=True, duration="1h")
    new = f"sk-rotated-{secrets.token_hex(12)}"
    options = replace(registered.quick, rotate=True, overlap="24h")
    sync_keys(
        registered.gateway, [registered.wanted_key(value=new)], registered.host, [registered.alias], options=options
    )
    states = {key_hash(value): registered.gateway.key(key_hash(value)) for value in (registered.value, new)}
    made, retired = states[key_hash(new)], states[old]
    assert made is not None
    assert retired is not None
    assert (made.alias, made.blocked, made.spend, made.max_budget) == (registered.key, True, 4.5, 5.0)
    assert retired.blocked
    now = datetime.now(UTC)
    for state in (made, retired):
        left = state.left_s(now)
        assert left is not None
        assert 3000 < left < 4200
    assert registered.call(new) == "key_blocked"


@pytest.mark.parametrize(
    ("change", "verdict"),
    [({"blocked": True}, "key_blocked"), ({"duration": "1s"}, "key_expired"), ({"max_budget": 0.0}, "budget_exceeded")],
)
def test_a_twin_does_not_hide_what_stops_the_key_itself(
    registered: Fleet, change: dict[str, Any], verdict: str
) -> None:
    registered.gateway.update_key(key_hash(registered.value), **change)
    time.sleep(2)
    ids = (registered.want().base_id,)
    proof = prove(registered.gateway, [ProofAlias(registered.alias, ids, (registered.key,))], {})
    assert [(cell.ok, cell.verdict, cell.twin) for cell in proof.cells if cell.key == registered.key] == [
        (False, verdict, True)
    ]


@pytest.mark.parametrize("team", [None, "elsewhere"])
def test_who_may_call_an_alias_in_one_command(
    registered: Fleet,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    team: str | None,
) -> None:
    monkeypatch.setenv("SEATFLEET_GATEWAY_ADMIN_KEY", proxy.admin_key)
    hashed = key_hash(registered.value)
    registered.gateway.update_key(hashed, max_budget=5.0, duration="1h")
    expires = registered.gateway.key(hashed).expires  # type: ignore[union-attr]
    if team:
        # The proxy refuses to put a key into a team that caps it; it does not look when the cap comes later.
        registered.gateway._call("POST", "/team/new", json={"team_id": registered.tag, "models": [registered.alias]})
        registered.gateway.update_key(hashed, team_id=registered.tag)
        registered.gateway._call("POST", "/team/update", json={"team_id": registered.tag, "models": [team]})
    code = main(["gateway", "--url", proxy.url, "who", registered.alias])
    lines = capsys.readouterr().out.splitlines()
    if team:
        registered.gateway._call("POST", "/team/delete", json={"team_ids": [registered.tag]})
        assert (code, len(lines)) == (1, 1)
    else:
        assert code == 0
        assert lines[1].split()[:2] == [registered.alias, registered.key]
        assert f"expires {expires[:19]}" in lines[1]
        assert "of 5" in lines[1]


def register_many(url: str, admin: str, fleet: Mapping[str, Any], number: int, lock: str) -> None:
    """Grant four aliases of a host of its own to one shared key, one after another; runs in a process of its own."""
    os.environ["XDG_RUNTIME_DIR"] = lock
    host = f"{fleet['host']}-{number}"
    with Gateway(url, admin) as gateway:
        granted: dict[str, str] = {}
        for index in range(4):
            granted[f"{fleet['alias']}-{number}-{index}"] = f"{host}/seat"
            sync_keys(gateway, [WantedKey(fleet["key"], dict(granted), value=fleet["value"])], host, list(granted))


@pytest.mark.parametrize("controllers", [1, 2])
def test_two_hosts_that_register_at_once_lose_nothing(
    fleet: Fleet, proxy: Proxy, tmp_path: Path, controllers: int
) -> None:
    fleet.gateway.create_key(fleet.value, fleet.key, [NO_MODELS], {})
    shared = {"host": fleet.host, "alias": fleet.alias, "key": fleet.key, "value": fleet.value}
    context = multiprocessing.get_context("spawn")
    locks = [tmp_path / f"lock-{number % controllers}" for number in range(2)]
    for lock in locks:
        lock.mkdir(exist_ok=True)
    workers = [
        context.Process(target=register_many, args=(proxy.url, proxy.admin_key, shared, number, str(locks[number])))
        for number in range(2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=240)
    assert [worker.exitcode for worker in workers] == [0, 0]
    expected = {f"{fleet.alias}-{number}-{index}" for number in range(2) for index in range(4)}
    state = fleet.gateway.key(key_hash(fleet.value))
    assert state is not None
    assert set(state.models) == set(state.grants) == expected


# --- the proxy in trouble ---


def test_a_restart_between_calls_loses_nothing(registered: Fleet, proxy: Proxy) -> None:
    subprocess.run(proxy.restart, check=True, capture_output=True)
    proxy.wait()
    assert not registered.register(registered.want()).changed
    assert not registered.grant(registered.wanted_key()).changed
    assert registered.register(registered.want(sampling={})).changed
    assert registered.proven() == {registered.key: (True, "ok"), "(control)": (True, "refused")}


class Stream:
    """A call that streams a token every half second, read in a thread of its own; it has begun when this returns."""

    def __init__(self, url: str, model: str, value: str, tokens: int) -> None:
        self.lines: list[str] = []
        self.tokens = tokens
        body = {"model": model, "max_tokens": tokens, "stream": True, "messages": [{"role": "user", "content": "x"}]}
        headers = {"authorization": f"Bearer {value}"}

        def read() -> None:
            address = f"{url}/v1/chat/completions"
            with httpx.stream("POST", address, json=body, headers=headers, timeout=60) as response:
                self.lines.extend(line for line in response.iter_lines() if line)

        self._reader = threading.Thread(target=read)
        self._reader.start()
        end = time.monotonic() + 30
        while not self.lines and time.monotonic() < end:
            time.sleep(0.1)

    @property
    def runs(self) -> bool:
        """Whether it has begun and not ended."""
        return bool(self.lines) and self._reader.is_alive()

    def whole(self) -> bool:
        """Wait for its end and tell whether every token came."""
        self._reader.join(timeout=60)
        return sum("content" in line for line in self.lines) == self.tokens and self.lines[-1] == "data: [DONE]"


def test_a_running_stream_outlives_a_restart(registered: Fleet, proxy: Proxy) -> None:
    stream = Stream(proxy.url, registered.alias, registered.value, tokens=12)
    subprocess.run(proxy.restart, check=True, capture_output=True)
    assert stream.whole()
    proxy.wait()


# --- an alias whose seat restarts ---


@contextmanager
def away(proxy: Proxy) -> Iterator[str]:
    """Run what answers for a seat that is away, as a host does; yield its base URL."""
    with AwayStub(0, 15) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{proxy.here}:{server.server_address[1]}/v1"
        server.shutdown()


def ask(proxy: Proxy, fleet: Fleet, **more: object) -> httpx.Response:
    """Call the alias as a user does."""
    body = {"model": fleet.alias, "max_tokens": 1, "messages": [{"role": "user", "content": "x"}], **more}
    headers = {"authorization": f"Bearer {fleet.value}"}
    return httpx.post(f"{proxy.url}/v1/chat/completions", json=body, headers=headers, timeout=60)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_closed_alias_lets_streams_end_and_tells_others_when_to_repeat(
    registered: Fleet, proxy: Proxy, streaming: bool
) -> None:
    stream = Stream(proxy.url, registered.alias, registered.value, tokens=ENDLESS)
    with away(proxy) as stub_url:
        close_alias(registered.gateway, registered.want(), stub_url, lambda *_: "unused")
        answer = ask(proxy, registered, stream=streaming)
        assert (answer.status_code, answer.headers.get("retry-after")) == (503, "15")
        assert "seat_draining" in answer.text
        # LiteLLM's own repetitions would have taken twice the Retry-After.
        assert answer.elapsed.total_seconds() < 30
        assert stream.runs
        registered.seat.pace_s = 0
        # Closed twice is closed; and to the keys nothing has changed.
        assert not close_alias(registered.gateway, registered.want(), stub_url, lambda *_: "unused").changed
        assert not registered.grant(registered.wanted_key()).changed
        assert stream.whole()
        registered.register(registered.want())
    assert registered.call() == "ok"
    assert [item.id for item in registered.gateway.list_deployments() if item.alias == registered.alias] == [
        registered.want().base_id
    ]


def test_a_closed_alias_with_a_fallback_is_answered_by_it(registered: Fleet, proxy: Proxy) -> None:
    other = f"{registered.alias}-other"
    with stub(proxy, other, api_key="sk-seat-of-the-fallback") as second, away(proxy) as stub_url:
        address, port = second.server_address[:2]
        base = f"http://{address!s}:{port}/v1"
        fallback = registered.want(alias=other, seat="second", api_base=base, api_key="sk-seat-of-the-fallback")
        first = registered.want(fallback=other)
        registered.register(first, fallback)
        stream = Stream(proxy.url, registered.alias, registered.value, tokens=ENDLESS)
        close_alias(registered.gateway, first, stub_url, lambda *_: "sk-seat-of-the-fallback")
        answer = ask(proxy, registered)
        assert stream.runs
        registered.seat.pace_s = 0
        assert answer.status_code == 200
        body = second.seen[-1]["body"]
        assert (body["model"], body["temperature"], body["top_k"]) == (other, 0.5, 20)
        assert stream.whole()
        registered.register(first, fallback)
        assert registered.call() == "ok"
        assert registered.last()["model"] == registered.alias


def test_a_stub_that_does_not_answer_leaves_the_alias_open(registered: Fleet) -> None:
    with pytest.raises(GatewayError, match="The old deployment stays"):
        close_alias(registered.gateway, registered.want(), "http://127.0.0.1:9/v1", lambda *_: "unused")
    assert registered.call() == "ok"


def test_metrics_need_a_key_and_show_none(registered: Fleet, proxy: Proxy) -> None:
    assert registered.call() == "ok"
    url = f"{proxy.url}/metrics"
    assert httpx.get(url, follow_redirects=True, timeout=30).status_code == 401
    headers = {"authorization": f"Bearer {proxy.admin_key}"}
    page = httpx.get(url, headers=headers, follow_redirects=True, timeout=30)
    assert page.status_code == 200
    assert registered.alias in page.text
    assert "litellm_proxy_total_requests_metric_total" in page.text
    for secret in (registered.value, proxy.admin_key, str(registered.seat.api_key)):
        assert secret not in page.text


def test_a_poke_with_the_opposite_setting_poisons_nothing(registered: Fleet, proxy: Proxy) -> None:
    thinking = {"chat_template_kwargs": {"enable_thinking": False}}
    registered.register(registered.want(**thinking))
    before = {item.id: item.params for item in registered.gateway.list_deployments()}
    body = {"model": registered.alias, "max_tokens": 1, "messages": [{"role": "user", "content": "x"}], "top_k": 3}
    for extra in ({"chat_template_kwargs": {"enable_thinking": True}}, {"extra_body": {"min_p": 0.3}}):
        response = httpx.post(
            f"{proxy.url}/v1/chat/completions",
            json={**body, **extra},
            headers={"authorization": f"Bearer {registered.value}"},
            timeout=60,
        )
        assert response.status_code == 200
    assert registered.call() == "ok"
    assert registered.last()["chat_template_kwargs"] == {"enable_thinking": False}
    assert registered.last()["top_k"] == 20
    assert "min_p" not in registered.last()
    assert {item.id: item.params for item in registered.gateway.list_deployments()} == before


# --- the modules ---


def play(proxy: Proxy, fleet: Fleet, directory: Path, *options: str, url: str | None = None) -> tuple[int, str, int]:
    """Run the three modules as the role does; return exit code, everything printed at -vvv, and what changed."""
    want = fleet.want()
    connection = {"url": url or proxy.url, "admin_key": "{{ admin }}", "host": fleet.host}
    alias = {
        "name": want.alias,
        "seat": want.seat,
        "api_base": want.api_base,
        "api_key": "{{ seat_key }}",
        "sampling": dict(want.sampling),
        "keys": [fleet.key],
    }
    grants = [{"name": want.alias, "seat": want.seat, "keys": [fleet.key]}]
    values = {fleet.key: "{{ key_value }}"}
    tasks = [
        {"seatfleet.fleet.litellm_aliases": {**connection, "aliases": [alias]}},
        {"seatfleet.fleet.litellm_keys": {**connection, "values": values, "grants": grants}},
        {"seatfleet.fleet.litellm_proof": {**connection, "values": values, "grants": grants,
                                           "evidence": str(directory / "evidence.json")}},
    ]  # fmt: skip
    book = directory / "play.json"
    book.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]))
    given = directory / "secrets.json"
    given.write_text(json.dumps({"admin": proxy.admin_key, "seat_key": want.api_key, "key_value": fleet.value}))
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"),
        "ANSIBLE_COLLECTIONS_PATH": str(PROJECT / "collections"),
        "ANSIBLE_FORCE_COLOR": "0",
    }
    done = subprocess.run(
        ["ansible-playbook", "-i", "localhost,", "-c", "local", "-e", f"@{given}", "-vvv", "--diff",
         "-e", "ansible_python_interpreter={{ ansible_playbook_python }}", *options, str(book)],
        env=environment, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    recap = [line for line in done.stdout.splitlines() if line.startswith("localhost ")]
    changed = int(recap[-1].split("changed=")[1].split()[0]) if recap else -1
    return done.returncode, done.stdout, changed


def test_modules_check_apply_repeat_and_show_no_secret(fleet: Fleet, proxy: Proxy, tmp_path: Path) -> None:
    printed = []
    for options, expected in ((["--check"], 2), ([], 2), ([], 0), (["--check"], 0)):
        code, output, changed = play(proxy, fleet, tmp_path, *options)
        assert (code, changed) == (0, expected), output
        printed.append(output)
    assert fleet.call() == "ok"
    written = (tmp_path / "evidence.json").read_text()
    assert json.loads(written)["cells"][0]["ok"] is True
    for secret in (fleet.value, str(fleet.seat.api_key), proxy.admin_key):
        assert not any(secret in text for text in (*printed, written))


def test_a_gateway_that_is_down_is_a_list_of_what_was_not_registered(
    fleet: Fleet, proxy: Proxy, tmp_path: Path
) -> None:
    code, output, _ = play(proxy, fleet, tmp_path, url="http://127.0.0.1:9")
    assert code != 0
    assert f"alias {fleet.alias} of seat seat, for keys {fleet.key}" in output
    assert "keep running" in output
    code, output, changed = play(proxy, fleet, tmp_path)
    assert (code, changed) == (0, 2), output
