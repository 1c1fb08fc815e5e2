#!/usr/bin/env python3
"""The same scenarios at one real proxy, with this project and with two other reconcilers; prints a Markdown table.

usage: bench/gateway_peers.py --as-code DIR --lasm DIR       (virtual environments with the tools named below)
Needs SEATFLEET_GATEWAY_URL and SEATFLEET_GATEWAY_ADMIN_KEY of a proxy that nobody else uses. Each tool runs as its
manual says; what counts is what the proxy does afterwards, not what a tool prints.
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

PROJECT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT / "tests/integration")]

from seat_stub import SeatStub  # noqa: E402

from seatfleet.clients.gateway import Gateway, GatewayError  # noqa: E402
from seatfleet.clients.gateway_sync import KeyOptions, ProofAlias, prove, sync_aliases, sync_keys  # noqa: E402
from seatfleet.core.gateway.keys import WantedKey, key_hash  # noqa: E402
from seatfleet.core.gateway.state import WantedAlias  # noqa: E402

DEAD = "http://127.0.0.1:9/v1"
# Without a licence the proxy answers /organization/list with 403, where 0.5.0 stops before it comes to keys.
AS_CODE = """
import sys
from litellm_as_code.api import LiteLLMClient
from litellm_as_code.cli import main
LiteLLMClient.list_organizations = lambda self: []
sys.exit(main())
"""


@dataclass(frozen=True)
class Spec:
    """What an operator declares in every scenario: at most one alias, and one key."""

    tag: str
    api_base: str
    api_key: str
    value: str
    temperature: float | None = 0.5
    alias_declared: bool = True
    models: tuple[str, ...] | None = None

    @property
    def alias(self) -> str:
        """The alias."""
        return f"gen-{self.tag}"

    @property
    def key(self) -> str:
        """The key alias."""
        return f"key-{self.tag}"

    @property
    def listed(self) -> list[str]:
        """The list of the key."""
        return list(self.models) if self.models is not None else [self.alias] if self.alias_declared else ["other"]


@dataclass(frozen=True)
class Tool:
    """A reconciler; ``apply`` returns whether it said that something is wrong."""

    name: str
    apply: Callable[[Spec], bool]


def ours(gateway: Gateway) -> Tool:
    """Return this project: what its three modules call."""

    def apply(spec: Spec) -> bool:
        host = f"host-{spec.tag}"
        sampling = {} if spec.temperature is None else {"temperature": spec.temperature}
        alias = WantedAlias(spec.alias, host, "seat", spec.api_base, spec.api_key, (spec.key,), sampling)
        wanted = [alias] if spec.alias_declared else []
        grants = {spec.alias: f"{host}/seat"} if spec.alias_declared and spec.models is None else {}
        try:
            done = sync_aliases(gateway, wanted, host)
            names = [item.alias for item in wanted]
            key = WantedKey(spec.key, grants, value=spec.value)
            sync_keys(gateway, [key], host, names, dropped=done.plan.dropped, options=KeyOptions(settle_s=0.0))
        except GatewayError as error:
            print(f"    {error}", file=sys.stderr)
            return True
        ids = tuple(identifier for found in done.plan.ids.values() for identifier in found)
        proven = [ProofAlias(item.alias, ids, tuple(key for key in (spec.key,) if grants)) for item in wanted]
        return bool(prove(gateway, proven, {spec.key: spec.value}).failed)

    return Tool("this project", apply)


def run(argv: list[str], directory: Path, **environment: str) -> bool:
    """Run a tool; return whether it ended with an error."""
    done = subprocess.run(
        argv, cwd=directory, env={"PATH": os.environ["PATH"], "HOME": str(directory), **environment},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        print("    " + "\n    ".join(done.stdout.strip().splitlines()[-4:]), file=sys.stderr)
    return done.returncode != 0


def as_code(environment: Path, gateway: Gateway, admin: str) -> Tool:
    """Return litellm-as-code."""

    def apply(spec: Spec) -> bool:
        params: dict[str, Any] = {
            "model": f"hosted_vllm/{spec.alias}", "api_base": spec.api_base, "api_key": spec.api_key,
        }  # fmt: skip
        if spec.temperature is not None:
            params["temperature"] = spec.temperature
        model = {"model_name": spec.alias, "litellm_params": params, "model_info": {"id": f"ac-{spec.tag}"}}
        text = {
            "models": [model] if spec.alias_declared else [],
            "virtual_keys": [{"key_alias": spec.key, "key": spec.value, "models": spec.listed}],
        }
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "spec.yml"
            path.write_text(yaml.safe_dump(text))
            arguments = ["--base-url", gateway.url, "--prune", str(path)]
            return run(
                [str(environment / "bin/python"), "-c", AS_CODE, *arguments], Path(directory), LITELLM_API_KEY=admin
            )

    return Tool("litellm-as-code 0.5.0", apply)


def lasm(environment: Path, gateway: Gateway, admin: str) -> Tool:
    """Return litellm-auto-synch-manager."""

    def apply(spec: Spec) -> bool:
        params = {} if spec.temperature is None else {"temperature": spec.temperature}
        model = {
            "name": spec.alias, "upstream_model": spec.alias, "provider": "seat", "endpoint_type": "chat",
            "base_url": spec.api_base, "api_key_env": "SEAT_KEY", "litellm_params": params,
        }  # fmt: skip
        data = {
            "version": "2.2",
            "providers": {"seat": {"default_base_url": spec.api_base, "default_api_key_env": "SEAT_KEY"}},
            "endpoint_types": {"chat": {"mode": "chat", "model_prefix": "hosted_vllm/"}},
            "models": [model] if spec.alias_declared else [],
            "keys": [{"app": spec.tag, "key_alias": spec.key, "key": "${VIRTUAL_KEY}", "models": spec.listed}],
        }
        settings = {"managed_by": f"lasm-{spec.tag}"}
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            for part in ("config", "data", "virtual_keys", "logs"):
                (directory / part).mkdir()
            (directory / "config/config.yaml").write_text(yaml.safe_dump({"settings": settings}))
            (directory / "data/data.yaml").write_text(yaml.safe_dump(data))
            return run(
                [str(environment / "bin/lasm"), "--apply", "--prune", "--litellm-base-url", gateway.url], directory,
                LITELLM_API_KEY=admin, SEAT_KEY=spec.api_key, VIRTUAL_KEY=spec.value,
            )  # fmt: skip

    return Tool("litellm-auto-synch-manager 1.9.1", apply)


@dataclass
class World:
    """One tool with a seat and a spec of its own."""

    gateway: Gateway
    tool: Tool
    seat: SeatStub
    spec: Spec
    complained: bool = False

    def apply(self, **changes: object) -> None:
        """Declare something else and run the tool."""
        self.spec = replace(self.spec, **changes)  # type: ignore[arg-type]
        self.complained = self.tool.apply(self.spec)

    def calls(self) -> str:
        """Return the verdict's word of a call with the key."""
        with self.gateway.as_key(self.spec.value) as caller:
            return caller.complete(self.spec.alias).verdict.kind

    def deployments(self) -> list[Any]:
        """Return what the proxy serves under the alias."""
        return [item for item in self.gateway.list_deployments() if item.alias == self.spec.alias]


def repeated(world: World) -> str:
    """Apply twice."""
    world.apply()
    first = [item.info.get("updated_at") for item in world.deployments()]
    world.apply()
    same = first == [item.info.get("updated_at") for item in world.deployments()] and len(first) == 1
    return f"{'one deployment' if same else f'{len(world.deployments())} deployments'}, call: {world.calls()}"


def drifted(world: World) -> str:
    """Change the backend by hand, then apply."""
    world.apply()
    for item in world.deployments():
        body = {"litellm_params": {"api_base": DEAD}, "model_info": {"id": item.id}}
        world.gateway._call("PATCH", f"/model/{item.id}/update", json=body)
    world.apply()
    bases = {item.params.get("api_base") for item in world.deployments()}
    return "restored" if bases == {world.spec.api_base} else "not noticed"


def removed_field(world: World) -> str:
    """Take temperature out of the declaration."""
    world.apply()
    world.apply(temperature=None)
    left = [item.params.get("temperature") for item in world.deployments()]
    return "gone" if left == [None] else f"stays {left}"


def rotated(world: World) -> str:
    """Change the API key of the backend."""
    world.apply()
    world.seat.api_key = "sk-seat-rotated-" + world.spec.tag
    world.apply(api_key=world.seat.api_key)
    return f"call: {world.calls()}"


def dropped(world: World) -> str:
    """Take the alias out of the declaration."""
    world.apply()
    foreign = f"sk-foreign-{secrets.token_hex(12)}"
    hashed = world.gateway.create_key(foreign, f"foreign-{world.spec.tag}", [world.spec.alias, "other"], {})
    world.apply(alias_declared=False)
    state = world.gateway.key(hashed)
    ghost = state is not None and world.spec.alias in state.models
    gone = "deployment gone" if not world.deployments() else "deployment stays"
    return f"{gone}, {'ghost stays' if ghost else 'no ghost'} in another key's list"


def capped(world: World) -> str:
    """Put the key into a team, then take the alias from the team."""
    team = f"team-{world.spec.tag}"
    world.gateway._call("POST", "/team/new", json={"team_id": team, "models": [world.spec.alias]})
    world.apply()
    world.gateway._call("POST", "/key/update", json={"key": key_hash(world.spec.value), "team_id": team})
    world.gateway._call("POST", "/team/update", json={"team_id": team, "models": ["other"]})
    world.apply()
    seen = f"call: {world.calls()}, {'reported' if world.complained else 'not noticed'}"
    world.gateway._call("POST", "/team/delete", json={"team_ids": [team]})
    return seen


def emptied(world: World) -> str:
    """Declare a key without any alias."""
    world.apply(models=())
    verdict = world.calls()
    return "may call everything" if verdict == "ok" else f"call: {verdict}{', reported' if world.complained else ''}"


def dead(world: World) -> str:
    """Declare a backend that does not answer."""
    world.apply()
    world.apply(api_base=DEAD)
    return f"alias afterwards: {world.calls()}, {'reported' if world.complained else 'not noticed'}"


SCENARIOS = {
    "applied twice": repeated,
    "backend changed by hand": drifted,
    "sampling field no longer declared": removed_field,
    "API key of the backend rotated": rotated,
    "alias no longer declared": dropped,
    "team that may not call the alias": capped,
    "key with an empty list": emptied,
    "new backend does not answer": dead,
}


@contextmanager
def world_of(gateway: Gateway, tool: Tool, here: str) -> Iterator[World]:
    """Yield a fresh world; what it left at the proxy is removed."""
    tag = secrets.token_hex(4)
    seat = SeatStub((here, 0), [f"gen-{tag}"], f"sk-seat-{tag}")
    threading.Thread(target=seat.serve_forever, daemon=True).start()
    base = f"http://{here}:{seat.server_address[1]}/v1"
    yield World(gateway, tool, seat, Spec(tag, base, f"sk-seat-{tag}", f"sk-bench-{secrets.token_hex(16)}"))
    for item in gateway.list_deployments():
        if tag in item.alias:
            gateway.delete_deployment(item.id)
    gateway.delete_keys([state.hash for state in gateway.list_keys() if tag in state.alias])
    seat.shutdown()
    seat.server_close()


def main() -> int:
    """Run every scenario with every tool."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--as-code", type=Path, required=True)
    parser.add_argument("--lasm", type=Path, required=True)
    given = parser.parse_args()
    url, admin = os.environ["SEATFLEET_GATEWAY_URL"], os.environ["SEATFLEET_GATEWAY_ADMIN_KEY"]
    parts = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((parts.hostname, parts.port or 80))
        here = probe.getsockname()[0]
    with Gateway(url, admin) as gateway:
        tools = [
            ours(gateway),
            as_code(given.as_code.resolve(), gateway, admin),
            lasm(given.lasm.resolve(), gateway, admin),
        ]
        print("| scenario | " + " | ".join(tool.name for tool in tools) + " |")
        print("|---" * (len(tools) + 1) + "|")
        for name, scenario in SCENARIOS.items():
            cells = []
            for tool in tools:
                print(f"{name}: {tool.name}", file=sys.stderr)
                with world_of(gateway, tool, here) as world:
                    cells.append(scenario(world))
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
