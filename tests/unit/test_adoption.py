"""Adoption: command lines as seats, seats compared with what runs, and the old service as the way back."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fake_machine import BAD, DIES, FakeMachine
from pytest_httpserver import HTTPServer
from seat_examples import CPU, RELEASE, TINY, seat
from test_rollout import KEYS, SEAT, deploy, machine  # noqa: F401 - a fixture

from seatfleet.core.host.machine import LocalMachine
from seatfleet.core.host.sockets import Owner
from seatfleet.core.seat import predecessor
from seatfleet.core.seat.adoption import Running, as_seat, compare, from_compose, options
from seatfleet.core.seat.render import render
from seatfleet.core.seat.rollout import RolloutError, roll_out
from seatfleet.core.seat.staging import stage_host

MODELS = {
    "tiny-oracle": {"repository": "local:tiny-oracle", "facts": {"mtp_layers": 1}},
    "drafter": {"repository": "example/drafter", "facts": {}},
}
RELEASES = {"0.32.0+cpu.1": {"version": "0.32.0"}, "0.33.0": {"version": "0.33.0"}}
SPEC = '{"method": "mtp", "num_speculative_tokens": 2}'


def running(*words: str, version: str | None = "0.32.0+cpu", **environ: str) -> Running:
    return Running("old.service", ("/opt/old/bin/python3", "/opt/old/bin/vllm", "serve", *words), environ, version)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["/opt/bin/vllm", "serve", "/srv/m", "--port", "8022"], {"model": "/srv/m", "port": 8022}),
        (["vllm", "serve", "--port=8022", "--enforce-eager"], {"port": 8022, "enforce-eager": True}),
        (["vllm", "serve", "--served-model-name", "a", "b", "--x", "1.5"], {"served-model-name": ["a", "b"], "x": 1.5}),
        (["vllm", "serve", "--speculative-config", SPEC], {"speculative-config": json.loads(SPEC)}),
        (["vllm", "serve", "m", "-tp", "2"], {"model": "m", "tensor-parallel-size": 2}),
        (["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"], {"model": "m"}),
        (["--model", "m", "--max_model_len", "64"], {"model": "m", "max-model-len": 64}),
        (["vllm", "serve", "--hf-overrides", "{broken"], {"hf-overrides": "{broken"}),
    ],
)
def test_options_of_a_command_line(words: list[str], found: dict[str, Any]) -> None:
    assert options(words) == found


def test_a_server_as_a_seat() -> None:
    server = running(
        "/srv/old/tiny-oracle", "--served-model-name", "tiny-oracle", "gen-large", "--port", "8022",
        "--host", "0.0.0.0", "--no-async-scheduling",
        "--kv-cache-memory-bytes", "64M", "--max-model-len", "2048", "--no-enable-prefix-caching", "--enforce-eager",
        "--speculative-config", SPEC, "--block-size", "32", "--api-key", "sk-1", "--tool-call-parser", "hermes",
        "--enable-auto-tool-choice",
        VLLM_CPU_OMP_THREADS_BIND="0", VLLM_NO_USAGE_STATS="1", VLLM_API_KEY="sk-1", LANG="C",
    )  # fmt: skip
    entry = as_seat(server, RELEASES, MODELS, gpus=0)
    assert entry.fields == {
        "model": "tiny-oracle", "release": "0.32.0+cpu.1", "gpus": [], "kv_cache_memory": "64MiB",
        "enforce_eager": True,
        "max_model_len": 2048, "tool_call_parser": "hermes", "port": 8022, "bind": "0.0.0.0", "prefix_caching": False,
        "speculative": {"method": "mtp", "num_speculative_tokens": 2},
        "engine": {"block-size": 32, "async-scheduling": False},
        "env": {"VLLM_CPU_OMP_THREADS_BIND": "0"},
        "aliases": {"gen-large": {"keys": ["<fill in: who may call it>"], "adopt": True}},
    }  # fmt: skip
    assert "sk-1" not in json.dumps(server.as_dict())


def test_what_cannot_be_known_is_left_to_a_person() -> None:
    entry = as_seat(running("/x/other", version="0.9.1", CUDA_VISIBLE_DEVICES="1"), RELEASES, MODELS, gpus=2)
    assert {name for name, value in entry.fields.items() if "fill in" in str(value)} == {
        "model", "release", "max_model_len",
    }  # fmt: skip
    assert entry.fields["gpus"] == [1]
    assert len(entry.notes) == 3


MANIFEST = render(seat(SEAT, engine={"block-size": 32}), RELEASE, TINY, CPU).manifest


@pytest.mark.parametrize(
    ("change", "environ", "differs"),
    [
        ({}, {}, []),
        ({"--block-size": "16"}, {}, ["block-size: runs with 16, the seat has 32"]),
        ({"--kv-cache-memory-bytes": "64M"}, {}, []),
        ({"--kv-cache-memory-bytes": "65m"}, {}, ["kv-cache-memory-bytes: runs with 65m, the seat has 67108864"]),
        ({"--swap-space": "4"}, {}, ["swap-space: runs with 4, the seat has nothing"]),
        ({}, {"VLLM_USE_V2": "1"}, ["VLLM_USE_V2: runs with 1, the seat has nothing"]),
        ({}, {"HF_HUB_OFFLINE": "0", "VLLM_API_KEY": "sk-1"}, []),
    ],
)
def test_a_seat_is_compared_with_what_runs(change: dict[str, str], environ: dict[str, str], differs: list[str]) -> None:
    words = [MANIFEST["declared"]["model"]]
    given = {
        f"--{key}": value for key, value in MANIFEST["declared"].items() if key not in {"model", "shutdown-timeout"}
    }
    for name, value in {**given, **change}.items():
        text = json.dumps(value) if isinstance(value, dict) else str(value)
        parts = [*map(str, value)] if isinstance(value, list) else [] if value is True else [text]
        words += [name, *parts]
    found, added = compare(running(*words, **environ), MANIFEST)
    assert found == differs
    assert added == [f"shutdown-timeout: {MANIFEST['declared']['shutdown-timeout']}"]


COMPOSE = {
    "services": {
        "vllm": {
            "image": "vllm/vllm-openai:v0.33.0",
            "command": ["--model", "/m/tiny-oracle", "--max-model-len", "64"],
            "environment": {"VLLM_USE_V2": "1", "HF_TOKEN": "hf-1"},
            "ports": [{"target": 8000, "published": "8022"}],
        },
        "other": {"image": "nginx", "ports": [{"target": 80, "published": "80"}]},
    }
}


def test_a_compose_service_is_found_by_its_port() -> None:
    found = from_compose(json.dumps(COMPOSE), "/srv/compose.yml", None, 8022)
    assert (found.service, found.version, found.compose_file) == ("vllm", "0.33.0", "/srv/compose.yml")
    entry = as_seat(found, RELEASES, MODELS, gpus=1)
    assert (entry.fields["model"], entry.fields["release"], entry.fields["gpus"]) == ("tiny-oracle", "0.33.0", [0])
    assert entry.fields["env"] == {"VLLM_USE_V2": "1"}
    with pytest.raises(RolloutError, match="expected one service on port 9, seen none"):
        from_compose(json.dumps(COMPOSE), "/srv/compose.yml", None, 9)


DOCKER = """#!/bin/sh
echo "$*" >> "{log}"
case "$*" in *" ps "*) printf 'c1\\nc2\\n' ;; *broken*) echo "no such service" >&2; exit 1 ;; esac
"""


def test_what_is_asked_of_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, httpserver: HTTPServer) -> None:
    """There is no docker engine where the tests run: this shows the commands, and not what an engine makes of them."""
    log, docker = tmp_path / "log", tmp_path / "docker"
    docker.write_text(DOCKER.format(log=log))
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    httpserver.expect_request("/v1/models").respond_with_json({"data": []})
    old = predecessor.OldCompose("/srv/compose.yml", "vllm", httpserver.port, LocalMachine())
    old.stop()
    assert old.come_back() < 60
    assert log.read_text().splitlines() == [
        "compose --file /srv/compose.yml ps --all --quiet vllm",
        "update --restart=no c1",
        "update --restart=no c2",
        "compose --file /srv/compose.yml stop vllm",
        "compose --file /srv/compose.yml up --detach --force-recreate vllm",
    ]
    with pytest.raises(RolloutError, match="up --detach --force-recreate broken: no such service"):
        predecessor.OldCompose("/srv/compose.yml", "broken", httpserver.port, LocalMachine()).come_back()


@dataclass
class Old:
    """A service on the seat's port."""

    on: FakeMachine
    name: str = "old.service"
    broken: bool = False
    calls: list[str] = field(default_factory=list)

    def owns(self, owner: Owner) -> bool:
        return owner.cgroup.endswith(self.name)

    def stop(self) -> None:
        self.on.strangers = []
        self.calls.append("stop")

    def come_back(self) -> float:
        self.calls.append("come back")
        if self.broken:
            raise RolloutError("old.service does not answer")
        self.on.strangers = [HOLDER]
        return 4.0


HOLDER = Owner(7, "vllm", "/system.slice/old.service")
NEW = render(seat(SEAT), RELEASE, TINY, CPU)


def test_a_port_is_taken_over_in_one_window(machine: FakeMachine) -> None:  # noqa: F811
    old, machine.strangers = Old(machine), [HOLDER]
    assert "is held by process 7" in str(deploy(machine, NEW).failure)
    (outcome,) = roll_out(machine, [NEW], KEYS, machine.paths.root, old)
    assert (outcome.failure, outcome.generation, old.calls) == (None, NEW.name, ["stop"])


@pytest.mark.parametrize("behaviour", [DIES, BAD])
@pytest.mark.parametrize(
    ("broken", "words"),
    [(False, ". old.service is back and answers after 4.0 s"), (True, ". old.service did not come back either: ")],
)
def test_what_served_before_comes_back(machine: FakeMachine, behaviour: str, broken: bool, words: str) -> None:  # noqa: F811
    old, machine.strangers = Old(machine, broken=broken), [HOLDER]
    machine.behaviour[NEW.name] = behaviour
    stage_host([NEW], KEYS, check=False, root=machine.paths.root)
    (outcome,) = roll_out(machine, [NEW], KEYS, machine.paths.root, old)
    assert words in str(outcome.failure)
    assert (old.calls[-1], machine.process, machine.enabled) == ("come back", None, False)


def test_what_a_seat_took_over_is_remembered(tmp_path: Path) -> None:
    with pytest.raises(RolloutError, match="took over no other service"):
        predecessor.remembered("s", None, tmp_path)  # type: ignore[arg-type]
    for old in (predecessor.OldUnit("old.service", 1, None), predecessor.OldCompose("/f.yml", "vllm", 1, None)):  # type: ignore[arg-type]
        predecessor.remember("s", old, tmp_path)
        assert predecessor.remembered("s", None, tmp_path) == old  # type: ignore[arg-type]
