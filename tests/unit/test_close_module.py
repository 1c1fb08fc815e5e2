"""litellm_close as Ansible calls it: closes what it can, and never fails because of the gateway."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args
from gateway_stub import MASTER, GatewayStub, error
from pytest_httpserver import HTTPServer
from werkzeug import Response

PROJECT = Path(__file__).resolve().parents[2]
STUB_URL = "http://10.0.0.11:8009/v1"
SECRET = "sk-seat-canary-0123456789"


@pytest.fixture
def close(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.syspath_prepend(str(PROJECT / "collections"))
    return importlib.import_module("ansible_collections.seatfleet.fleet.plugins.modules.litellm_close")


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where they end up otherwise depends on what else of Ansible is imported in this process."""
    seen: list[str] = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda _, text: seen.append(text))
    return seen


def call(
    module: ModuleType,
    capsys: pytest.CaptureFixture[str],
    url: str,
    check: bool = False,
    key: str = MASTER,
    fallback: str | None = None,
) -> dict[str, Any]:
    aliases = [
        {
            "name": name,
            "seat": "flash-next",
            "api_base": "http://10.0.0.11:8022/v1",
            "api_key": SECRET,
            "fallback": fallback,
        }
        for name in ("gen-large", "gen-mid")
    ]
    options = {
        "url": url,
        "admin_key": key,
        "host": "fv-ml1",
        "aliases": aliases,
        "stub_url": STUB_URL,
        "seat_key_secret": "a-secret-of-the-fleet",
        "_ansible_check_mode": check,
        "_ansible_diff": True,
    }
    with patch_module_args(options), pytest.raises(SystemExit):
        module.main()
    text = capsys.readouterr().out
    assert SECRET not in text
    assert "a-secret-of-the-fleet" not in text
    result: dict[str, Any] = json.loads(text)
    return result


def register(stub: GatewayStub, alias: str, api_base: str = "http://10.0.0.11:8022/v1") -> None:
    identifier = f"seat-fv-ml1-flash-next-{alias}"
    info = {"id": identifier, "managed_by": "seatfleet", "db_model": True}
    info["seatfleet"] = {"host": "fv-ml1", "seat": "flash-next", "revision": 1}
    params = {"model": f"hosted_vllm/{alias}", "api_base": api_base}
    stub.deployments[identifier] = {"model_name": alias, "litellm_params": params, "model_info": info}


def test_closes_and_then_has_nothing_to_do(
    close: ModuleType, httpserver: HTTPServer, capsys: pytest.CaptureFixture[str]
) -> None:
    stub = GatewayStub(httpserver)
    stub.closed_url = STUB_URL
    register(stub, "gen-large")
    assert call(close, capsys, stub.url, check=True)["changed"] is True
    assert list(stub.deployments) == ["seat-fv-ml1-flash-next-gen-large"]
    done = call(close, capsys, stub.url)
    assert (done["changed"], done["not_closed"]) == (True, [])
    assert done["closed"] == {"gen-large": ["closed-fv-ml1-flash-next-gen-large"]}
    assert list(stub.deployments) == ["closed-fv-ml1-flash-next-gen-large"]
    assert call(close, capsys, stub.url)["changed"] is False


def test_what_cannot_be_closed_is_named_and_does_not_hide_the_others(
    close: ModuleType, httpserver: HTTPServer, capsys: pytest.CaptureFixture[str], warnings: list[str]
) -> None:
    stub = GatewayStub(httpserver)
    stub.closed_url = STUB_URL
    for alias in ("gen-large", "gen-mid"):
        register(stub, alias)
    stub.dead.add("closed-fv-ml1-flash-next-gen-large")
    done = call(close, capsys, stub.url)
    assert (done.get("failed"), done["not_closed"]) == (None, ["gen-large"])
    (warning,) = warnings
    assert warning.startswith("alias gen-large is not closed, callers will see its seat on fv-ml1 go: ")
    assert set(stub.deployments) == {"seat-fv-ml1-flash-next-gen-large", "closed-fv-ml1-flash-next-gen-mid"}


def test_a_gateway_that_is_down_keeps_no_seat_from_being_repaired(
    close: ModuleType, capsys: pytest.CaptureFixture[str], warnings: list[str]
) -> None:
    done = call(close, capsys, "http://127.0.0.1:9")
    assert (done.get("failed"), done["changed"]) == (None, False)
    assert done["not_closed"] == ["gen-large", "gen-mid"]
    assert "127.0.0.1:9 is not reachable" in warnings[1]


def test_a_gateway_that_refuses_is_told_from_one_that_is_down(
    close: ModuleType, httpserver: HTTPServer, capsys: pytest.CaptureFixture[str], warnings: list[str]
) -> None:
    stub = GatewayStub(httpserver)
    stub.closed_url = STUB_URL
    register(stub, "gen-large")
    done = call(close, capsys, stub.url, key="sk-of-yesterday")
    assert (done.get("failed"), done["refused"]) == (None, ["gen-large", "gen-mid"])
    assert len(warnings) == 2
    assert call(close, capsys, "http://127.0.0.1:9")["refused"] == []


def seat_refuses(api_base: str) -> Any:
    """Answer 401, as a seat with another API key does, where a deployment leads there."""

    def answer(stub: GatewayStub, path: str, body: dict[str, Any]) -> Response | None:
        asked = stub.deployments.get(str(body.get("model")))
        there = asked is not None and asked["litellm_params"]["api_base"] == api_base
        message = "litellm.AuthenticationError: Hosted_vllmException - Unauthorized"
        return error(401, "", message) if there and path.endswith("/chat/completions") else None

    return answer


def test_a_fallback_that_refuses_gives_way_to_the_stub_and_is_named(
    close: ModuleType, httpserver: HTTPServer, capsys: pytest.CaptureFixture[str], warnings: list[str]
) -> None:
    stub = GatewayStub(httpserver)
    stub.closed_url = STUB_URL
    register(stub, "gen-large")
    register(stub, "spare", api_base="http://10.0.0.12:8030/v1")
    stub.hooks.append(seat_refuses("http://10.0.0.12:8030/v1"))
    done = call(close, capsys, stub.url, fallback="spare")
    assert (done["not_closed"], done["refused"]) == ([], [])
    assert done["closed"] == {"gen-large": ["closed-fv-ml1-flash-next-gen-large"]}
    (warning,) = warnings
    assert warning.startswith("alias gen-large: its fallback spare does not answer, so callers get 503")


def test_a_stand_in_that_refuses_is_no_refusal_of_the_gateway(
    close: ModuleType, httpserver: HTTPServer, capsys: pytest.CaptureFixture[str], warnings: list[str]
) -> None:
    stub = GatewayStub(httpserver)
    register(stub, "gen-large")
    stub.hooks.append(seat_refuses(STUB_URL))
    done = call(close, capsys, stub.url)
    assert (done["not_closed"], done["refused"]) == (["gen-large"], [])
    assert len(warnings) == 1
