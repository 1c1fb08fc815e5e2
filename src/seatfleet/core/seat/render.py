"""From a checked seat to the files of one generation. Pure functions: equal input gives equal bytes.

A generation is everything that reaches the seat's process: vLLM's configuration file, the environment and the unit.
Its name is a hash of these three, so an older value in ``group_vars`` leads back to the very generation that served
before. Two things may change without another generation, and so without a restart: the names under which aliases call
the model (a new alias must not cost a restart; until the next one the model's own name serves it) and what the probe
expects. :mod:`seatfleet.core.seat.generations` refreshes both in place.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..files import canonical_json, pretty_json
from ..inventory.seat import Nodes, Seat, Speculative
from ..paths import API_KEY_FILE, CACHE, SEATS, unit_name
from ..problems import Problem, ProblemsError
from ..units import GIB
from .flow_yaml import dump_mapping
from .unit import STOP_MARGIN_S, UnitSpec, exec_start, render_unit

FORMAT = 1
HASH_LENGTH = 12
CONFIG_FILE = "vllm.yaml"
ENVIRONMENT_FILE = "seat.env"
MANIFEST_FILE = "manifest.json"
GENERATION_VARIABLE = "SEATFLEET_GENERATION"
RELEASE_VARIABLE = "SEATFLEET_RELEASE"
API_KEY_VARIABLE = "VLLM_API_KEY"

# Beside weights and KV cache: activations, CUDA context and graphs. An RTX PRO 6000 profiled 1.65 GiB at 8,192 batched
# tokens. Low on purpose: a start that is refused beside a small tenant is worse than one vLLM itself has to refuse.
ENGINE_OVERHEAD = 2 * GIB
MAX_UTILIZATION = 0.98

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PLAIN_VALUE = re.compile(r"[A-Za-z0-9_./:,@%+=-]*")


@dataclass(frozen=True)
class HostClass:
    """What a seat has to know about the machine it runs on.

    ``accelerator`` is ``cuda`` or ``cpu``. ``device_memory`` is that of one GPU in bytes (the unified memory on GB10);
    ``gpu_uuids`` are the cards in PCI order, empty where they are not known yet; ``devices`` is what the unit lets
    through, in the words of systemd's ``DeviceAllow=``.
    """

    accelerator: str
    device_memory: int | None = None
    gpu_uuids: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ("char-nvidia*",)
    capabilities: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReleaseRef:
    """An installed release: its name in the catalogue, its id (``<version>-<hash12>``) and where it is."""

    name: str
    id: str
    path: str


@dataclass(frozen=True)
class ModelRef:
    """Weights on the host.

    ``resident`` is what they take of device memory in bytes, None where nobody knows; ``quantization`` is vLLM's name
    of it, None to let vLLM read the checkpoint.
    """

    name: str
    revision: str
    path: str
    resident: int | None = None
    quantization: str | None = None


@dataclass(frozen=True)
class Generation:
    """One rendered configuration. ``files`` maps file names to text; ``manifest`` is the parsed manifest."""

    seat: str
    name: str
    release_path: str
    files: Mapping[str, str]
    manifest: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain types, for Ansible; :func:`load_generation` reads it back."""
        return {"seat": self.seat, "name": self.name, "release_path": self.release_path, "files": dict(self.files)}


def load_generation(values: Mapping[str, Any]) -> Generation:
    """Return the generation that :meth:`Generation.as_dict` wrote."""
    files = dict(values["files"])
    return Generation(values["seat"], values["name"], values["release_path"], files, json.loads(files[MANIFEST_FILE]))


def seat_api_key(secret: str, host: str, seat: str) -> str:
    """Return the API key of one seat, derived from the fleet's secret: nothing to store, and no seat opens another."""
    digest = hmac.new(secret.encode(), f"{host}/{seat}".encode(), hashlib.sha256).hexdigest()
    return f"sk-seat-{digest}"


def render(
    seat: Seat, release: ReleaseRef, model: ModelRef, host: HostClass, drafter: ModelRef | None = None
) -> Generation:
    """Render a seat, of one over two hosts the part of its head.

    Raises:
        ProblemsError: ``engine:`` or ``env:`` of the seat sets what the seat's own fields or the fleet set.
    """
    return render_parts(seat, release, model, host, drafter)[0]


def render_parts(
    seat: Seat, release: ReleaseRef, model: ModelRef, host: HostClass, drafter: ModelRef | None = None
) -> tuple[Generation, ...]:
    """Render a seat for each of its hosts, the head first; the hosts are of one class.

    All parts have one name, a hash of all of them: what one host runs says what the other has to.

    Raises:
        ProblemsError: as :func:`render`.
    """
    parts = [
        _part(seat, rank, release, model, host, drafter) for rank in range(len(seat.nodes.hosts) if seat.nodes else 1)
    ]
    identity = [text for part in parts for text in part.identity]
    name = hashlib.sha256(canonical_json(identity).encode()).hexdigest()[:HASH_LENGTH]
    return tuple(_generation(seat, name, part, release, model, drafter) for part in parts)


@dataclass(frozen=True)
class _Part:
    """What one host runs of a seat."""

    rank: int
    config: Mapping[str, Any]
    environment: Mapping[str, str]
    unit: str

    @property
    def identity(self) -> list[str]:
        nameless = {**self.config, "served-model-name": [self.config["served-model-name"][0]]}
        return [dump_mapping(nameless), render_environment(self.environment), self.unit]


def _part(
    seat: Seat, rank: int, release: ReleaseRef, model: ModelRef, host: HostClass, drafter: ModelRef | None
) -> _Part:
    config = vllm_config(seat, model, host, drafter, rank)
    return _Part(
        rank, config, seat_environment(seat, release, model, host, rank), render_unit(_unit_spec(seat, host, rank))
    )


def _generation(
    seat: Seat, name: str, part: _Part, release: ReleaseRef, model: ModelRef, drafter: ModelRef | None
) -> Generation:
    environment = {**part.environment, GENERATION_VARIABLE: name}
    manifest = _manifest(seat, name, release, model, drafter, part.config, environment)
    if seat.nodes is not None:
        manifest |= {"host": seat.nodes.hosts[part.rank].host, "nodes": _manifest_nodes(seat.nodes, part.rank)}
    files = {
        CONFIG_FILE: dump_mapping(part.config),
        ENVIRONMENT_FILE: render_environment(environment),
        unit_name(seat.name): part.unit,
        MANIFEST_FILE: pretty_json(manifest),
    }
    return Generation(seat.name, name, release.path, files, manifest)


def _manifest_nodes(nodes: Nodes, rank: int) -> dict[str, Any]:
    return {"rank": rank, "port": nodes.port, "hosts": [asdict(node) for node in nodes.hosts]}


def vllm_config(
    seat: Seat, model: ModelRef, host: HostClass, drafter: ModelRef | None = None, rank: int = 0
) -> dict[str, Any]:
    """Return what goes into vLLM's ``--config`` file: canonical option names, in the order they are written.

    ``rank`` is the place of the host among the seat's nodes.

    Only canonical names: an abbreviation (``kv-cache-memory``) is accepted until a release adds a second option that
    starts the same way. ``enable-x: false`` is dropped without a word there, so a switched-off option is written as
    ``no-enable-x: true``.
    """
    resident = [part.resident for part in (model, drafter) if part is not None]
    config: dict[str, Any] = {
        "model": model.path,
        "quantization": model.quantization,
        "served-model-name": served_names(seat),
        "host": seat.bind,
        "port": seat.port,
        "max-model-len": seat.max_model_len,
        "kv-cache-memory-bytes": seat.kv_cache_memory,
        "gpu-memory-utilization": seat.gpu_memory_utilization or matching_utilization(seat, host, resident),
        "kv-cache-dtype": seat.kv_cache_dtype,
        "max-num-batched-tokens": seat.max_num_batched_tokens,
        "max-num-seqs": seat.max_num_seqs,
        "tensor-parallel-size": seat.tensor_parallel_size,
        **(_parallel_nodes(seat, seat.nodes, rank) if seat.nodes else {}),
        "enable-prefix-caching": seat.prefix_caching,
        "enforce-eager": seat.enforce_eager or None,
        "attention-backend": seat.attention_backend,
        "moe-backend": seat.moe_backend,
        "mamba-block-size": seat.mamba_block_size,
        "mamba-ssm-cache-dtype": seat.mamba_ssm_cache_dtype,
        "engram-config": None if seat.engram_cpu_offload is None else {"cpu_offload": seat.engram_cpu_offload},
        "reasoning-parser": seat.reasoning_parser,
        "enable-auto-tool-choice": True if seat.tool_call_parser else None,
        "tool-call-parser": seat.tool_call_parser,
        "speculative-config": _speculative(seat.speculative, drafter),
        # The prefix probe reads usage.prompt_tokens_details.cached_tokens.
        "enable-prompt-tokens-details": True,
        # A misspelt VLLM_ variable ends the start instead of being ignored.
        "fail-on-environ-validation": True,
        "shutdown-timeout": max(0, seat.probe.stop_timeout_s - STOP_MARGIN_S),
    }
    engine = {key.replace("_", "-"): value for key, value in seat.engine.items()}
    taken = sorted(key for key in engine if key.removeprefix("no-") in config)
    if taken:
        raise ProblemsError(_taken(seat, "engine", key, "a field of the seat or the fleet sets it") for key in taken)
    return dict(_switch(key, value) for key, value in (config | engine).items() if value is not None)


def _parallel_nodes(seat: Seat, nodes: Nodes, rank: int) -> dict[str, Any]:
    """Return vLLM's own launch over several hosts: the head answers, the others have no API server."""
    return {
        "pipeline-parallel-size": seat.ranks // seat.tensor_parallel_size,
        "distributed-executor-backend": "mp",
        "nnodes": len(nodes.hosts),
        "node-rank": rank,
        "master-addr": nodes.head.address,
        "master-port": nodes.rendezvous_port,
        "headless": True if rank else None,
    }


def served_names(seat: Seat) -> list[str]:
    """Return the names vLLM answers to: the model's own first (it labels the metrics), then one per alias.

    Every alias has a name of its own because LiteLLM shares settings between aliases over one (model, api_base).
    """
    return list(dict.fromkeys((seat.model, *(alias.name for alias in seat.aliases))))


def seat_environment(
    seat: Seat, release: ReleaseRef, model: ModelRef, host: HostClass, rank: int = 0
) -> dict[str, str]:
    """Return the environment of the seat's process, without the generation and the API key.

    Every cache lies in the unit's ``CacheDirectory``, in a folder per (release, weights, drafter settings): vLLM's
    compile cache does not know the number of speculative tokens and would hand one arm the kernels of another.
    """
    speculative = seat.speculative
    arm = [release.id, model.path, speculative and [speculative.method, speculative.num_speculative_tokens]]
    key = hashlib.sha256(canonical_json(arm).encode()).hexdigest()[:HASH_LENGTH]
    home = f"{CACHE}/{seat.name}"
    cache = f"{home}/{key}"
    fixed = {
        "CUDA_CACHE_PATH": f"{cache}/cuda",
        "DO_NOT_TRACK": "1",
        "FLASHINFER_WORKSPACE_BASE": cache,
        "HF_HOME": f"{home}/huggingface",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_OFFLINE": "1",
        "HOME": home,
        "PATH": f"{release.path}/bin:{host.environment.get('PATH', _SYSTEM_PATH)}",
        "PYTHONUNBUFFERED": "1",
        RELEASE_VARIABLE: release.path,
        "SEATFLEET_SEAT": seat.name,
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
        "TRANSFORMERS_OFFLINE": "1",
        "TRITON_CACHE_DIR": f"{cache}/triton",
        "VLLM_CACHE_ROOT": f"{cache}/vllm",
        "VLLM_CONFIG_ROOT": f"{home}/config",
        # The default of 600 s ends a cold start that compiles kernels, and leaves the engine behind.
        "VLLM_ENGINE_READY_TIMEOUT_S": str(seat.probe.ready_timeout_s),
        "VLLM_NO_USAGE_STATS": "1",
        "XDG_CACHE_HOME": f"{cache}/xdg",
        "XDG_CONFIG_HOME": f"{home}/config",
        **_devices(seat, host),
    }
    # The processes of one engine meet on ports of their own (16 of them on the host's address, measured); on loopback
    # nobody else reaches those, and over two hosts the firewall lets only the other in.
    node = seat.nodes.hosts[rank] if seat.nodes else None
    interface, address = (node.interface, node.address) if node else ("lo", "127.0.0.1")
    adjustable = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface, "VLLM_HOST_IP": address}
    # LiteLLM keeps idle connections for 120 s (AIOHTTP_KEEPALIVE_TIMEOUT) and vLLM closes them after 5: a call on one
    # that is just being closed is a 500 for its caller ("Connection closed", seen under load on an untouched seat).
    adjustable["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] = "180"
    reserved = {*fixed, GENERATION_VARIABLE, API_KEY_VARIABLE, "CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"}
    taken = sorted(reserved & set(seat.env))
    if taken:
        raise ProblemsError(_taken(seat, "env", name, "the fleet sets it") for name in taken)
    return dict(sorted({**adjustable, **host.environment, **fixed, **seat.env}.items()))


def render_environment(environment: Mapping[str, str]) -> str:
    """Return the text of a systemd ``EnvironmentFile``.

    Raises:
        ValueError: a value has a line break, which such a file cannot carry.
    """
    return "".join(f"{name}={_environment_value(name, value)}\n" for name, value in sorted(environment.items()))


def _environment_value(name: str, value: str) -> str:
    if any(ord(char) < 0x20 for char in value):
        raise ValueError(f"environment variable {name}: expected one line of text, seen {value!r}")
    if _PLAIN_VALUE.fullmatch(value):
        return value
    return '"' + re.sub(r'(["\\`$])', r"\\\1", value) + '"'


def _switch(key: str, value: object) -> tuple[str, object]:
    if value is False:
        return (key.removeprefix("no-"), True) if key.startswith("no-") else (f"no-{key}", True)
    return key, value


def matching_utilization(seat: Seat, host: HostClass, resident: list[int | None]) -> float | None:
    """Return the utilization to write beside a KV pin.

    vLLM refuses to start unless ``free >= utilization * total``, also when the pin makes it ignore the value from
    then on: the default of 0.92 would refuse a seat that fits well beside a tenant. Written is what the seat is known
    to take, rounded up to whole percent. On CPU hosts that check is skipped for a pin.
    """
    if seat.kv_cache_memory is None or host.accelerator != "cuda" or host.device_memory is None:
        return None
    weights = sum(size or 0 for size in resident) / seat.ranks
    share = (weights + seat.kv_cache_memory + ENGINE_OVERHEAD) / host.device_memory
    return min(MAX_UTILIZATION, math.ceil(share * 100) / 100)


def _speculative(speculative: Speculative | None, drafter: ModelRef | None) -> dict[str, Any] | None:
    if speculative is None:
        return None
    rendered: dict[str, Any] = {"method": speculative.method}
    if drafter is not None:
        rendered["model"] = drafter.path
    rendered["num_speculative_tokens"] = speculative.num_speculative_tokens
    if speculative.attention_backend is not None:
        rendered["attention_backend"] = speculative.attention_backend
    return rendered | dict(speculative.engine)


def _devices(seat: Seat, host: HostClass) -> dict[str, str]:
    if host.accelerator != "cuda":
        return {}
    visible = [_uuid(gpu, host.gpu_uuids) for gpu in seat.gpus]
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(visible)}


def _uuid(gpu: int | str, uuids: tuple[str, ...]) -> str:
    """Return the UUID of a card given by index. An index stays one while the host's cards are not known."""
    if isinstance(gpu, int) and gpu < len(uuids):
        return uuids[gpu]
    return str(gpu)


def _taken(seat: Seat, field_name: str, key: str, reason: str) -> Problem:
    return Problem("", f"seat {seat.name} on {seat.host}", f"{field_name}.{key}", f"no such entry ({reason})", key)


def _unit_spec(seat: Seat, host: HostClass, rank: int) -> UnitSpec:
    cuda = host.accelerator == "cuda"
    return UnitSpec(
        seat=seat.name,
        description=f"vLLM seat {seat.name}: {_what(seat, rank)}",
        port=seat.port,
        ready_timeout_s=seat.probe.ready_timeout_s,
        stop_timeout_s=seat.probe.stop_timeout_s,
        devices=host.devices if cuda else (),
        capabilities=host.capabilities,
        after=("nvidia-persistenced.service",) if cuda else (),
        link=seat.nodes is not None,
        follows=rank > 0,
    )


def _what(seat: Seat, rank: int) -> str:
    if seat.nodes is not None and rank:
        return f"{seat.model}, following {seat.nodes.head.host}"
    return f"{seat.model} on port {seat.port}"


def _manifest(
    seat: Seat,
    name: str,
    release: ReleaseRef,
    model: ModelRef,
    drafter: ModelRef | None,
    config: Mapping[str, Any],
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """Return what the probe, the status page and the rollout need to know, without any secret.

    The reader is :mod:`seatfleet.core.seat.manifest`.
    """
    speculative = seat.speculative
    return {
        "format": FORMAT,
        "seat": seat.name,
        "host": seat.host,
        "generation": name,
        "unit": unit_name(seat.name),
        "argv": list(exec_start(seat.name)),
        "bind": seat.bind,
        "port": seat.port,
        "base_url": f"http://{_reachable(seat.bind)}:{seat.port}",
        "api_key_file": f"{SEATS}/{seat.name}/{API_KEY_FILE}",
        "release_id": release.id,
        "release_name": release.name,
        "release_path": release.path,
        "model_id": seat.model,
        "model_revision": model.revision,
        "model_path": model.path,
        "drafter_id": drafter and drafter.name,
        "drafter_path": drafter and drafter.path,
        "gpus": list(seat.gpus),
        "served_names": served_names(seat),
        "max_model_len": seat.max_model_len,
        "max_num_seqs": seat.max_num_seqs,
        "kv_cache_memory_bytes": seat.kv_cache_memory,
        "host_memory": seat.host_memory,
        "prefix_caching": seat.prefix_caching,
        "speculative": speculative and {"method": speculative.method, "k": speculative.num_speculative_tokens},
        "declared": dict(config),
        "environment": dict(environment),
        "probe": {
            "canary": seat.probe.canary,
            "ready_timeout_s": seat.probe.ready_timeout_s,
            "drain_timeout_s": seat.probe.drain_timeout_s,
            "stop_timeout_s": seat.probe.stop_timeout_s,
            "acceptance": seat.probe.acceptance and dict(seat.probe.acceptance),
            "sampling": next((dict(alias.sampling) for alias in seat.aliases if alias.sampling), {}),
        },
    }


def _reachable(bind: str) -> str:
    """Return the address under which a seat that listens on ``bind`` answers on its own host."""
    address = ipaddress.ip_address(bind)
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "[::1]"
    return str(address) if address.version == 4 else f"[{address}]"
