"""litellm_aliases as Ansible calls it: what it says of seats that do not answer."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from gateway_stub import MASTER, GatewayStub
from pytest_httpserver import HTTPServer

PROJECT = Path(__file__).resolve().parents[2]
SEATS = {"a-first": "other", "gen-large": "flash-next", "gen-mid": "third"}


def call(url: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    module = importlib.import_module("ansible_collections.seatfleet.fleet.plugins.modules.litellm_aliases")
    aliases = [
        {"name": name, "seat": seat, "api_base": "http://10.0.0.11:8022/v1", "api_key": "sk-seat"}
        for name, seat in SEATS.items()
    ]
    options = {"url": url, "admin_key": MASTER, "host": "fv-ml1", "aliases": aliases}
    with patch_module_args(options), pytest.raises(SystemExit):
        module.main()
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


@pytest.mark.parametrize(
    ("dead", "at_fault"), [([], None), (["a-first"], ["other"]), (["a-first", "gen-mid"], ["other", "third"])]
)
def test_every_seat_at_fault_is_named_and_no_other_alias_waits_for_it(
    httpserver: HTTPServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    dead: list[str],
    at_fault: list[str] | None,
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.syspath_prepend(str(PROJECT / "collections"))
    stub = GatewayStub(httpserver)
    stub.dead |= {f"seat-fv-ml1-{SEATS[alias]}-{alias}" for alias in dead}
    done = call(stub.url, capsys)
    assert done.get("at_fault") == at_fault
    assert [f"alias {alias}: " in done.get("msg", "") for alias in SEATS] == [alias in dead for alias in SEATS]
    assert {entry["model_name"] for entry in stub.deployments.values()} == set(SEATS) - set(dead)
