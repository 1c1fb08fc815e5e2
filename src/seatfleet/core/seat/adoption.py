"""Adopting what already serves on a port: its command line and environment as a seat, and a rendered seat compared.

The service itself, as what a seat replaces and as the way back, is in :mod:`seatfleet.core.seat.predecessor`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..host.processes import read_process
from ..host.sockets import PROC, listeners
from ..inventory.schema import OWNED_ENV
from ..units import MIB, format_size
from .rollout import RolloutError

FILL_IN = "<fill in: {}>"
# What a variable must start with to matter to vLLM; the rest of an environment is the login's or the image's.
_PREFIXES = ("VLLM_", "CUDA_", "NCCL_", "HF_", "TORCH", "FLASHINFER_", "TRITON_", "GLOO_")
_SHORT = {"-tp": "tensor-parallel-size", "-pp": "pipeline-parallel-size", "-dp": "data-parallel-size", "-O": "O"}
# Options that a field of the seat takes as they are.
_FIELDS = {
    name.replace("_", "-"): name
    for name in (
        "attention_backend",
        "kv_cache_dtype",
        "mamba_block_size",
        "mamba_ssm_cache_dtype",
        "max_model_len",
        "max_num_batched_tokens",
        "max_num_seqs",
        "moe_backend",
        "reasoning_parser",
        "tensor_parallel_size",
        "tool_call_parser",
        "gpu_memory_utilization",
        "enforce_eager",
        "port",
    )
} | {"host": "bind"}
# They follow from other fields or are the fleet's own.
_OTHERS = frozenset(
    {
        "api-key",
        "config",
        "enable-auto-tool-choice",
        "enable-prefix-caching",
        "enable-prompt-tokens-details",
        "fail-on-environ-validation",
        "kv-cache-memory-bytes",
        "model",
        "no-enable-prefix-caching",
        "quantization",
        "revision",
        "served-model-name",
        "shutdown-timeout",
        "speculative-config",
    }
)
# Compared by what they mean, or not the process's affair: keys are per seat, weights may lie elsewhere.
_NOT_COMPARED = frozenset({"api-key", "config", "served-model-name", "model", "revision"})
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)")


# --- what runs -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Running:
    """A server that this project did not start. ``version`` of vLLM as its installation says it, where it says one."""

    service: str
    argv: tuple[str, ...]
    environ: Mapping[str, str] = field(repr=False)
    version: str | None = None
    compose_file: str | None = None
    config_text: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return what Ansible may show: of the environment only what matters to vLLM, and no key."""
        return {
            "service": self.service,
            "argv": _without_key(self.argv),
            "environ": relevant(self.environ),
            "version": self.version,
            "compose_file": self.compose_file,
            "config_text": self.config_text,
        }


def find(port: int, proc: Path = PROC) -> Running:
    """Return the systemd service that listens on a port.

    Raises:
        RolloutError: nobody listens, or whoever does is no systemd service.
    """
    owners = listeners(port, proc)
    if not owners:
        raise RolloutError(f"nobody listens on port {port}")
    unit = next((Path(owner.cgroup).name for owner in owners if owner.cgroup.endswith(".service")), None)
    process = read_process(owners[0].pid, proc)
    if unit is None or process is None:
        raise RolloutError(
            f"port {port} is held by {owners[0]}, which is no systemd service; of a compose service give the file"
        )
    return Running(
        unit,
        process.argv,
        process.environ,
        installed_version(process.argv[0]),
        config_text=_config_text(options(process.argv).get("config"), proc / str(owners[0].pid) / "cwd"),
    )


def from_compose(text: str, file: str, service: str | None, port: int) -> Running:
    """Return the service of a compose file (``docker compose config --format json``) that publishes a port.

    Raises:
        RolloutError: no service does, or several do and none is named.
    """
    services: dict[str, Any] = json.loads(text).get("services") or {}
    fitting = [name for name, body in services.items() if service in {name, None} and _publishes(body, port)]
    if len(fitting) != 1:
        raise RolloutError(f"{file}: expected one service on port {port}, seen {', '.join(fitting) or 'none'}")
    body = services[fitting[0]]
    argv = [*_words(body.get("entrypoint")), *_words(body.get("command"))]
    environ = {name: str(value) for name, value in (body.get("environment") or {}).items() if value is not None}
    tag = str(body.get("image", "")).rpartition(":")[2]
    version = re.match(r"v?(\d+\.\d+\.\d+)", tag)
    return Running(fitting[0], tuple(argv), environ, version[1] if version else None, file)


def installed_version(interpreter: str) -> str | None:
    """Return the version of vLLM beside an interpreter, None when there is none."""
    lib = Path(interpreter).parent.parent / "lib"
    names = sorted(path.name for path in lib.glob("python3*/site-packages/vllm-*.dist-info"))
    return names[-1].removeprefix("vllm-").removesuffix(".dist-info") if names else None


def relevant(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what of an environment matters to vLLM and is no secret."""
    secret = ("KEY", "TOKEN", "SECRET", "PASSWORD")
    return {
        name: value
        for name, value in sorted(environ.items())
        if name.startswith(_PREFIXES) and not any(word in name for word in secret)
    }


def options(argv: Sequence[str]) -> dict[str, Any]:
    """Return the options of a ``vllm serve`` command line, by canonical name; values as YAML would have them."""
    words = list(argv)
    words = words[words.index("serve") + 1 :] if "serve" in words else _after_program(words)
    found: dict[str, Any] = {}
    if words and not words[0].startswith("-"):
        found["model"] = words.pop(0)
    name: str | None = None
    for word in words:
        if word in _SHORT or word.startswith("--"):
            head, equal, value = word.partition("=")
            name = _SHORT.get(head, head.removeprefix("--").replace("_", "-"))
            found[name] = _value(value) if equal else True
        elif name is not None:
            before = found[name]
            found[name] = _value(word) if before is True else [*_listed(before), _value(word)]
    return found


# --- as a seat -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """The seat that equals a server: its fields for ``group_vars``, and what a person has to look at."""

    fields: Mapping[str, Any]
    notes: tuple[str, ...]


def as_seat(running: Running, releases: Mapping[str, Any], models: Mapping[str, Any], gpus: int) -> Entry:
    """Return the entry of a seat that equals what runs. ``gpus`` is how many cards the host has."""
    given = {**running.config, **options(running.argv)}
    environ = relevant(running.environ)
    notes: list[str] = []
    fields: dict[str, Any] = {
        "model": _model(str(given.get("model", "")), models, notes),
        "release": _release(running, releases, notes),
        "gpus": _gpus(running.environ.get("CUDA_VISIBLE_DEVICES"), gpus),
    }
    if "kv-cache-memory-bytes" in given:
        fields["kv_cache_memory"] = _memory(given["kv-cache-memory-bytes"], notes)
    for option, name in _FIELDS.items():
        if option in given:
            fields[name] = given[option]
    if "max_model_len" not in fields:
        fields["max_model_len"] = FILL_IN.format("what /v1/models says; it was left to the checkpoint")
    fields["prefix_caching"] = _prefix_caching(given, notes)
    if speculative := given.get("speculative-config"):
        fields["speculative"] = _speculative(speculative, models, notes)
    elif "mtp_layers" in (models.get(fields["model"], {}).get("facts") or {}):
        fields["speculative_why"] = {"state": "unmeasured", "note": "as it ran before it was adopted"}
    engine = dict(_positive(*item) for item in given.items() if item[0] not in {*_FIELDS, *_OTHERS})
    env = {name: value for name, value in environ.items() if name not in OWNED_ENV}
    names = [name for name in _listed(given.get("served-model-name", [])) if name != fields["model"]]
    fields |= {"engine": engine} if engine else {}
    fields |= {"env": env} if env else {}
    if names:
        fields["aliases"] = {str(name): {"keys": [FILL_IN.format("who may call it")], "adopt": True} for name in names}
    return Entry(fields, tuple(notes))


def compare(running: Running, manifest: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Compare what runs with a rendered seat: differences, and what the fleet adds.

    A difference is an option or a variable of the server that the seat has otherwise or not at all.
    """
    given = {**running.config, **options(running.argv)}
    declared = {**manifest["declared"]}
    differs = [
        f"{key}: runs with {_shown(value)}, the seat has {_shown(_declared(key, declared))}"
        for key, value in given.items()
        if key not in _NOT_COMPARED and not _same(key, value, declared)
    ]
    model, wanted = str(given.get("model", "")), str(declared.get("model", ""))
    if not _same_weights(model, wanted):
        differs.append(f"model: runs with {model}, the seat has {wanted}: compare their files")
    environment = manifest["environment"]
    differs += [
        f"{name}: runs with {value}, the seat has {environment.get(name, 'nothing')}"
        for name, value in relevant(running.environ).items()
        if name not in OWNED_ENV and environment.get(name) != value
    ]
    added = [f"{key}: {_shown(value)}" for key, value in declared.items() if not _given(key, given)]
    return differs, added


# --- details ---------------------------------------------------------------------------------------------------------


def _config_text(file: object, folder: Path) -> str:
    """Return the text of vLLM's configuration file, which is YAML and so for the controller to read."""
    return (folder / file).read_text(encoding="utf-8") if isinstance(file, str) else ""


def _after_program(words: list[str]) -> list[str]:
    """Leave out interpreter and module of ``python -m vllm.entrypoints.openai.api_server``."""
    for number, word in enumerate(words):
        if word.startswith("vllm.entrypoints") or Path(word).name in {"vllm", "api_server.py"}:
            return words[number + 1 :]
    return words


def _value(text: str) -> Any:  # noqa: ANN401 - what YAML makes of a word
    if text[:1] in "[{":
        try:
            return json.loads(text)
        except ValueError:
            return text
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _listed(value: Any) -> list[Any]:  # noqa: ANN401
    return list(value) if isinstance(value, list) else [value]


def _model(name: str, models: Mapping[str, Any], notes: list[str]) -> str:
    for entry, body in models.items():
        places = {entry, str(body.get("repository")), str(body.get("mirror"))}
        if name in places or Path(name).name == entry or Path(name).parent.name == entry:
            return entry
    notes.append(f"model {name}: no entry of `models` names it; add one with its repository and revision")
    return FILL_IN.format(f"the entry of models for {name}")


def _release(running: Running, releases: Mapping[str, Any], notes: list[str]) -> str:
    version = (running.version or "").partition("+")[0]
    fitting = [name for name, body in releases.items() if str(body.get("version")).partition("+")[0] == version]
    if len(fitting) == 1:
        notes.append(f"release {fitting[0]} is vLLM {version} as this project builds it, patches included")
        return fitting[0]
    seen = running.version or "unknown"
    notes.append(f"vLLM {seen}: the releases of that version are {', '.join(fitting) or 'none'}")
    return FILL_IN.format(f"an entry of releases for vLLM {seen}")


def _gpus(visible: str | None, count: int) -> list[int | str]:
    if visible is None:
        return list(range(count))
    return [int(card) if card.isdigit() else card for card in visible.split(",") if card]


def _memory(value: object, notes: list[str]) -> str:
    size = _bytes(value)
    if size is None or size < MIB:
        notes.append(f"kv-cache-memory-bytes {value}: not a size that a seat can have")
        return FILL_IN.format(f"the KV memory, it runs with {value}")
    if size % MIB:
        notes.append(f"kv-cache-memory-bytes {value}: a seat has whole MiB, so this is rounded down")
    return format_size(size)


def _bytes(value: object) -> int | None:
    """Read a size in vLLM's units: ``25G`` is 1024-based, ``25g`` and ``25.5g`` 1000-based."""
    match = _SIZE.fullmatch(str(value))
    if match is None:
        return None
    power = " kmgt".index(match[2].lower()) if match[2] else 0
    base = 1024 if match[2].isupper() else 1000
    return int(float(match[1]) * base**power)


def _prefix_caching(given: Mapping[str, Any], notes: list[str]) -> bool:
    if given.get("no-enable-prefix-caching") or given.get("enable-prefix-caching") is False:
        return False
    if "enable-prefix-caching" not in given:
        notes.append("prefix caching was left to the release's default; a seat says it, so look at the server's log")
    return True


def _speculative(written: object, models: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    config = dict(written) if isinstance(written, dict) else {}
    fields: dict[str, Any] = {"method": config.pop("method", FILL_IN.format("the method"))}
    fields["num_speculative_tokens"] = config.pop("num_speculative_tokens", 1)
    if drafter := config.pop("model", None):
        fields["model"] = _model(str(drafter), models, notes)
    if backend := config.pop("attention_backend", None):
        fields["attention_backend"] = backend
    return fields | ({"engine": config} if config else {})


def _positive(key: str, value: object) -> tuple[str, object]:
    return (key.removeprefix("no-"), False) if key.startswith("no-") and value is True else (key, value)


def _same(key: str, value: object, declared: Mapping[str, Any]) -> bool:
    seat = _declared(key, declared)
    if key == "kv-cache-memory-bytes":
        return _bytes(value) == _bytes(seat)
    if key == "speculative-config":
        return _speculation(value) == _speculation(seat)
    if key == "gpu-memory-utilization" and "kv-cache-memory-bytes" in declared:
        return True  # ignored beside a pin, but for the check that it fits
    if key == "shutdown-timeout":
        return True  # probe.stop_timeout_s of the seat
    if key == "quantization":
        return seat in {value, None}  # None: vLLM reads it from the checkpoint
    return seat == value or str(seat) == str(value)


def _speculation(value: object) -> object:
    """Return a speculative config without the place of its drafter."""
    return {key: part for key, part in value.items() if key != "model"} if isinstance(value, dict) else value


def _declared(key: str, declared: Mapping[str, Any]) -> object:
    if key in declared:
        return declared[key]
    opposite = key.removeprefix("no-") if key.startswith("no-") else f"no-{key}"
    return False if opposite in declared else None


def _given(key: str, given: Mapping[str, Any]) -> bool:
    return key in given or (key.removeprefix("no-") if key.startswith("no-") else f"no-{key}") in given


def _same_weights(model: str, wanted: str) -> bool:
    parts = {Path(wanted).name, Path(wanted).parent.name}
    return model == wanted or Path(model).name in parts or Path(model).parent.name in parts


def _shown(value: object) -> str:
    return "nothing" if value is None else value if isinstance(value, str) else json.dumps(value)


def _words(value: str | Sequence[str] | None) -> list[str]:
    return shlex.split(value) if isinstance(value, str) else [str(word) for word in value or ()]


def _publishes(body: Mapping[str, Any], port: int) -> bool:
    if body.get("network_mode") == "host":
        words = [*_words(body.get("entrypoint")), *_words(body.get("command"))]
        return bool(options(words).get("port", 8000) == port)
    return any(str(published.get("published")) == str(port) for published in body.get("ports") or ())


def _without_key(argv: Sequence[str]) -> list[str]:
    return list(_masked(argv))


def _masked(argv: Sequence[str]) -> Iterator[str]:
    after = False
    for word in argv:
        if after and not word.startswith("--"):
            yield "(secret)"
            continue
        after = word in {"--api-key", "--hf-token"}
        yield re.sub(r"^(--(?:api-key|hf-token)=).*", r"\1(secret)", word)
