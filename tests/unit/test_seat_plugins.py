"""The seats' filters and modules as Ansible calls them."""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible.module_utils.testing import patch_module_args
from fake_machine import BAD, FakeMachine
from pytest_httpserver import HTTPServer
from seat_examples import UUIDS, WRITTEN

from seatfleet.core.paths import SeatPaths
from seatfleet.core.seat.render import load_generation
from seatfleet.core.seat.stopped import read as read_mark

PROJECT = Path(__file__).resolve().parents[2]
PLUGINS = "ansible_collections.seatfleet.fleet.plugins"
HOST = "fv-ml1"
RELEASES = [{"name": name, "id": f"{name}-0123456789ab"} for name in ("0.32.0+cpu.1", "0.33.0+rtx.1")]
CATALOGUE: dict[str, dict[str, Any]] = {
    "tiny-oracle": {"facts": {}},
    "qwen3.8-flash-next": {"facts": {"engram_table": "96GiB"}, "quantization": "modelopt"},
}


def model_of(name: str, size: int = 1000) -> dict[str, Any]:
    files = {"model.safetensors": {"sha256": "0" * 64, "size": size}}
    return {"manifest": {"format": 1, "name": name, "revision": "0" * 40, "files": files}, "source": "/srv/mirror"}


@pytest.fixture
def filters(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[..., Any]]:
    monkeypatch.syspath_prepend(str(PROJECT / "collections"))
    found: dict[str, Callable[..., Any]] = importlib.import_module(f"{PLUGINS}.filter.seats").FilterModule().filters()
    return found


def render(filters: dict[str, Callable[..., Any]], seats: dict[str, Any], **changes: Any) -> list[dict[str, Any]]:
    given = {
        "releases": RELEASES,
        "models": [model_of("tiny-oracle"), model_of("qwen3.8-flash-next", 170 << 30)],
        "catalogue": CATALOGUE,
        "hardware": {"architecture": "x86_64", "gpus": 0},
    }
    rendered: list[dict[str, Any]] = filters["seat_generations"](seats, HOST, **(given | changes))
    return rendered


def test_generations_of_a_host(filters: dict[str, Callable[..., Any]]) -> None:
    seats = {"a": WRITTEN["lab-oracle"], "b": {**WRITTEN["lab-oracle"], "state": "absent"}}
    (only,) = render(filters, seats, release_root="/opt/r", model_root="/srv/m")
    generation = load_generation(only)
    assert (generation.seat, generation.release_path) == ("a", "/opt/r/0.32.0+cpu.1-0123456789ab")
    assert generation.manifest["declared"]["model"] == "/srv/m/tiny-oracle/000000000000"


def test_a_host_with_cards(filters: dict[str, Callable[..., Any]]) -> None:
    hardware = {"architecture": "x86_64", "gpus": 4, "gpu_memory": "97887MiB"}
    (only,) = render(filters, {"a": WRITTEN["rtx-flash-next"]}, hardware=hardware, gpu_uuids=list(UUIDS))
    declared = load_generation(only).manifest["declared"]
    # 170 GiB of files, 96 of them a table in host RAM; 14 GiB KV; 2 GiB for the engine; of 95.6 GiB
    assert declared["gpu-memory-utilization"] == 0.95
    assert declared["quantization"] == "modelopt"
    assert UUIDS[2] in only["files"]["seat.env"]
    assert "DeviceAllow=char-nvidia* rw" in only["files"]["vllm-seat-a.service"]


def test_all_problems_of_all_seats_at_once(filters: dict[str, Callable[..., Any]]) -> None:
    seats = {name: {**WRITTEN["lab-oracle"], "port": port} for name, port in (("a", 0), ("b", "x"))}
    with pytest.raises(AnsibleFilterError, match=r"(?s)2 problems.*seat a on fv-ml1: port.*seat b on fv-ml1: port"):
        render(filters, seats)


@pytest.mark.parametrize(
    ("changes", "given", "message"),
    [
        ({"release": "9"}, {}, r"release: expected one of 0\.32\.0\+cpu\.1, 0\.33\.0\+rtx\.1, seen 9"),
        ({"model": "other"}, {}, "model: expected one of qwen3.8-flash-next, tiny-oracle, seen other"),
        ({"gpus": [7]}, {"gpu_uuids": list(UUIDS)}, "gpus: expected 0 to 3 or a UUID of this host, seen 7"),
    ],
)
def test_what_is_not_there(
    filters: dict[str, Callable[..., Any]], changes: dict[str, Any], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(AnsibleFilterError, match=message):
        render(filters, {"a": WRITTEN["lab-oracle"] | changes}, **given)


@pytest.mark.parametrize(
    ("what", "found"),
    [
        ("seat_releases", ["0.32.0+cpu.1", "0.33.0+rtx.1"]),
        ("seat_models", ["qwen3.8-flash-next", "tiny-qwen3"]),
        # it may still run
        ("seat_ports", [8022, 8031, 8040]),
        ("seat_guards", [{"name": "a", "port": 8022}, {"name": "b", "port": 8031}, {"name": "c", "port": 8040}]),
    ],
)
def test_what_seats_use(filters: dict[str, Callable[..., Any]], what: str, found: list[Any]) -> None:
    seats = {
        "a": {"profile": "big"},
        "b": WRITTEN["lab-dense"],
        "c": {**WRITTEN["spark-dflash"], "state": "absent", "port": 8040},
    }
    presets = {"profiles": {"big": WRITTEN["rtx-flash-next"]}}
    assert filters[what](seats, HOST, presets) == found


def test_only_heads_are_asked_who_follows_them(filters: dict[str, Callable[..., Any]]) -> None:
    """What every host is asked for each time it needs to know: the answer must not depend on having asked first."""
    pair = {"model": "m", "nodes": {"hosts": [{"host": "one"}, {"host": "three"}]}}
    seats = {"one": {"pair": pair, "own": {"model": "m"}}, "two": {"own": {"model": "m"}}, "three": None, "four": {}}
    hosts = [{"inventory_hostname": name, "seats": written} for name, written in seats.items()] + [
        {"inventory_hostname": "without"}
    ]
    heads = filters["seat_heads"](hosts)
    assert heads == ["one"]
    chosen = [host for host in hosts if host["inventory_hostname"] in heads]
    for name in [*seats, "without"]:
        assert filters["seats_followed"](chosen, name) == filters["seats_followed"](hosts, name)
    assert filters["seats_followed"](chosen, "three") == {"pair": pair}


def test_api_keys(filters: dict[str, Callable[..., Any]]) -> None:
    keys = filters["seat_api_keys"](WRITTEN, HOST, "secret")
    assert set(keys) == set(WRITTEN)
    assert len(set(keys.values())) == len(WRITTEN)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    monkeypatch.syspath_prepend(str(PROJECT / "collections"))
    return lambda name: importlib.import_module(f"{PLUGINS}.modules.{name}")


def call(module: ModuleType, capsys: pytest.CaptureFixture[str], check: bool, **options: Any) -> dict[str, Any]:
    with patch_module_args({**options, "_ansible_check_mode": check, "_ansible_diff": True}), pytest.raises(SystemExit):
        module.main()
    text = capsys.readouterr().out
    assert "sk-seat-1" not in text
    result: dict[str, Any] = json.loads(text)
    return result


def test_modules(
    filters: dict[str, Callable[..., Any]],
    module: Callable[[str], ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    machine = FakeMachine(SeatPaths("a", tmp_path))
    stage, rollout = module("seat_stage"), module("seat_rollout")
    for name in ("stage_host", "unmanaged"):
        monkeypatch.setattr(stage, name, functools.partial(getattr(stage, name), root=tmp_path))
    for name in ("foresee", "roll_out"):
        monkeypatch.setattr(rollout, name, functools.partial(getattr(rollout, name), root=tmp_path))
    monkeypatch.setattr(rollout, "LocalMachine", lambda: machine)
    options = {"generations": render(filters, {"a": WRITTEN["lab-oracle"]}), "api_keys": {"a": "sk-seat-1"}}
    name = options["generations"][0]["name"]

    for check in (True, True, False):  # check mode changes nothing, so it says the same again
        staged = call(stage, capsys, check, **options)
        created = {"seat": "a", "generation": name, "created": True, "changed": True}
        assert (staged["changed"], staged["seats"]) == (True, [created])
        assert "api-key.env: (secret)" in staged["diff"][0]["after"]
    assert call(stage, capsys, False, **options)["changed"] is False

    for check in (True, False):
        rolled = call(rollout, capsys, check, **options)
        assert (rolled["changed"], rolled["seats"][0]["action"]) == (True, "start")
        assert rolled["diff"]["prepared"] == "seat a: start: the unit is not installed\n"
    assert call(rollout, capsys, False, **options)["changed"] is False

    other = {**options, "generations": render(filters, {"a": {**WRITTEN["lab-oracle"], "kv_cache_memory": "1GiB"}})}
    machine.behaviour[other["generations"][0]["name"]] = BAD
    call(stage, capsys, False, **other)
    failed = call(rollout, capsys, False, **other)
    assert failed["failed"] is True
    assert failed["msg"].startswith("seat a: acceptance: expected 3.0, seen 1.0")
    assert failed["seats"][0]["returned_to"] == name
    assert call(stage, capsys, True, **{**options, "generations": []})["unmanaged"] == ["a"]


def test_names_are_asked_for_on_the_port_of_the_current_generation(
    module: Callable[[str], ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    httpserver: HTTPServer,
) -> None:
    httpserver.expect_request("/v1/models", headers={"Authorization": "Bearer k"}).respond_with_json(
        {"data": [{"id": "tiny"}]}
    )
    names = module("seat_names")
    monkeypatch.setattr(names, "SeatPaths", functools.partial(SeatPaths, root=tmp_path))
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.6}')
    paths = SeatPaths("a", tmp_path)
    paths.generation("0123456789ab").mkdir(parents=True)
    manifest = {"port": httpserver.port, "model_path": str(tmp_path)}
    (paths.generation("0123456789ab") / "manifest.json").write_text(json.dumps(manifest))
    seats = [{"name": "a", "port": 1, "api_key": "k"}, {"name": "b", "port": 1, "api_key": "k"}]
    nothing = call(names, capsys, True, seats=seats)
    assert (nothing["names"], nothing["ports"], nothing["sampling"]) == ({}, {}, {})
    paths.current.symlink_to(paths.generation("0123456789ab"))
    found = call(names, capsys, True, seats=seats)
    assert (found["names"], found["ports"]) == ({"a": ["tiny"]}, {"a": httpserver.port})
    assert found["sampling"] == {"a": {"temperature": 0.6}}


def test_rollback_and_removal(
    filters: dict[str, Callable[..., Any]],
    module: Callable[[str], ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    machine = FakeMachine(SeatPaths("a", tmp_path))
    names = ("seat_stage", "seat_rollout", "seat_rollback", "seat_remove", "seat_stop")
    stage, rollout, rollback, removal, stopped = (module(name) for name in names)
    monkeypatch.setattr(stage, "stage_host", functools.partial(stage.stage_host, root=tmp_path))
    for user in (rollout, rollback):
        for name in ("foresee", "roll_out"):
            monkeypatch.setattr(user, name, functools.partial(getattr(user, name), root=tmp_path))
    for user in (rollout, rollback, removal, stopped):
        monkeypatch.setattr(user, "LocalMachine", lambda: machine)
    for user in (rollback, removal, stopped):
        monkeypatch.setattr(user, "SeatPaths", lambda seat: SeatPaths(seat, tmp_path))

    assert "no previous good generation" in call(rollback, capsys, False, seat="a")["msg"]
    for memory in ("64MiB", "1GiB"):
        seats = {"a": {**WRITTEN["lab-oracle"], "kv_cache_memory": memory}}
        options = {"generations": render(filters, seats), "api_keys": {"a": "sk-seat-1"}}
        call(stage, capsys, False, **options)
        call(rollout, capsys, False, **options)
    for check in (True, False):
        back = call(rollback, capsys, check, seat="a")
        assert (back["changed"], back["seats"][0]["action"]) == (True, "restart")
        assert back["lines"] == ["kv_cache_memory: 64MiB  # instead of 1GiB"]
    assert call(rollout, capsys, True, **options)["seats"][0]["action"] == "restart"
    assert call(rollback, capsys, False, seat="a", api_key="sk-seat-2")["changed"] is True
    other = {**options, "api_keys": {"a": "sk-seat-2"}}
    assert call(rollout, capsys, False, **other)["changed"] is False
    shown = call(stage, capsys, True, **options)
    assert (shown["changed"], shown["diff"][0]["after"]) == (False, "api-key.env: (secret)\n")

    for check, changed in ((True, True), (False, True), (False, False)):
        assert call(stopped, capsys, check, seats=["a"], closed={"a": ["gen-large"]})["changed"] is changed
        assert (machine.process is None) is not check
        mark = read_mark("a", tmp_path)
        assert (mark.closed if mark else None) == (None if check else ("gen-large",))
    assert call(rollout, capsys, False, **other)["seats"][0]["action"] == "start"

    for check in (True, False):
        gone = call(removal, capsys, check, seats=["a"])
        assert gone["changed"] is True
        assert str(tmp_path / "etc/vllm/seats/a") in gone["seats"][0]["removed"]
    assert call(removal, capsys, False, seats=["a"])["changed"] is False
