"""seatctl gateway: what an operator reads, and that the admin key is no argument."""

from __future__ import annotations

import json

import pytest
from gateway_stub import MASTER, GatewayStub
from pytest_httpserver import HTTPServer

from seatfleet.cli import main
from seatfleet.core.gateway.keys import GRANTS_FIELD

SEAT = {"api_base": "http://10.0.0.11:8022/v1", "model": "hosted_vllm/gen-large"}


@pytest.fixture
def stub(httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> GatewayStub:
    made = GatewayStub(httpserver)
    monkeypatch.setenv("SEATFLEET_GATEWAY_URL", made.url)
    monkeypatch.setenv("SEATFLEET_GATEWAY_ADMIN_KEY", MASTER)
    info = {
        "id": "d1",
        "db_model": True,
        "managed_by": "seatfleet",
        "seatfleet": {"host": "fv-ml1", "seat": "flash-next"},
    }
    made.deployments["d1"] = {"model_name": "gen-large", "litellm_params": SEAT, "model_info": info}
    made.key("sk-1", "infra-ops", ["gen-large"], metadata={GRANTS_FIELD: {"gen-large": "fv-ml1/flash-next"}})
    made.key("sk-2", "agents", ["ghost"], expires="2027-01-01", max_budget=10.0, spend=2.5)
    return made


def test_who(stub: GatewayStub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gateway", "who", "gen-large"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "ALIAS      KEY        THROUGH                        TEAM  STATE",
        "gen-large  infra-ops  granted for fv-ml1/flash-next  -     ok",
    ]


def test_who_sees_what_a_shared_access_group_allows(stub: GatewayStub, capsys: pytest.CaptureFixture[str]) -> None:
    stub.groups = {"g1": ("fleet", ["gen-large"]), "g2": ("rest", ["gen-small"])}
    stub.key("sk-3", "pool", ["no-default-models"], access_group_ids=["g1"])
    stub.key("sk-4", "rest", ["no-default-models"], access_group_ids=["g2"])
    assert main(["gateway", "--json", "who", "gen-large"]) == 0
    assert {row["key"]: row["through"] for row in json.loads(capsys.readouterr().out)} == {
        "infra-ops": "granted for fv-ml1/flash-next",
        "pool": "shared access group fleet",
    }


def test_nobody_and_nothing_is_exit_1(stub: GatewayStub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gateway", "who", "gen-small"]) == 1
    assert "no such alias" in capsys.readouterr().err


def test_keys_shows_ghosts_and_limits(stub: GatewayStub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gateway", "--json", "keys"]) == 0
    agents, infra = json.loads(capsys.readouterr().out)
    assert agents == {
        "key": "agents",
        "may_call": "ghost",
        "leads_nowhere": "ghost",
        "team": "-",
        "state": "expires 2027-01-01, spent 2.5 of 10",
    }
    assert infra["state"] == "ok"


def test_aliases_names_the_owner(stub: GatewayStub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gateway", "aliases"]) == 0
    assert "seat flash-next on fv-ml1 (database)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("variable", "value", "code"),
    [
        ("SEATFLEET_GATEWAY_URL", None, 2),
        ("SEATFLEET_GATEWAY_ADMIN_KEY", None, 2),
        ("SEATFLEET_GATEWAY_ADMIN_KEY", "sk-wrong-canary", 1),
    ],
)
def test_what_is_missing_or_wrong_is_said_without_the_key(
    stub: GatewayStub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str,
    value: str | None, code: int,
) -> None:  # fmt: skip
    if value is None:
        monkeypatch.delenv(variable)
    else:
        monkeypatch.setenv(variable, value)
    assert main(["gateway", "keys"]) == code
    seen = capsys.readouterr()
    assert seen.err
    assert "canary" not in seen.out + seen.err
