"""Back to the last good generation at once, and what has to be written into ``group_vars`` for it to stay.

A generation on disk is complete, so a rollback needs nothing but the host: it is the rollout of an older generation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..paths import SeatPaths
from ..units import format_size
from . import api_key, generations
from .generations import EVIDENCE_FILE, GenerationError
from .render import CONFIG_FILE, ENVIRONMENT_FILE, MANIFEST_FILE, Generation

# Fields of the manifest that a field of the seat sets.
_FIELDS = {
    "release_name": "release",
    "model_id": "model",
    "gpus": "gpus",
    "port": "port",
    "bind": "bind",
    "max_model_len": "max_model_len",
    "kv_cache_memory_bytes": "kv_cache_memory",
    "max_num_seqs": "max_num_seqs",
    "prefix_caching": "prefix_caching",
}
# Options of vLLM that a field of the seat sets and the manifest says nowhere else.
_OPTIONS = {
    name.replace("_", "-"): name
    for name in (
        "attention_backend",
        "kv_cache_dtype",
        "mamba_block_size",
        "mamba_ssm_cache_dtype",
        "max_num_batched_tokens",
        "moe_backend",
        "reasoning_parser",
        "tensor_parallel_size",
        "tool_call_parser",
    )
}
# Options and variables that follow from what is listed otherwise.
_FOLLOWS = frozenset(
    {
        "CUDA_DEVICE_ORDER",
        "CUDA_VISIBLE_DEVICES",
        "HOME",
        "PATH",
        "SEATFLEET_GENERATION",
        "SEATFLEET_RELEASE",
        "enable-auto-tool-choice",
        "enable-prefix-caching",
        "enforce-eager",
        "host",
        "kv-cache-memory-bytes",
        "max-model-len",
        "max-num-seqs",
        "model",
        "no-enable-prefix-caching",
        "port",
        "quantization",
        "served-model-name",
        "speculative-config",
    }
)
# (where, name in the manifest) -> field of the seat's probe.
_LIMITS = {"VLLM_ENGINE_READY_TIMEOUT_S": "ready_timeout_s", "shutdown-timeout": "stop_timeout_s"}


@dataclass(frozen=True)
class Target:
    """The generation to go back to, the API key that is on the host, and the lines for ``group_vars``."""

    generation: Generation
    api_key: str
    lines: tuple[str, ...]


def target(paths: SeatPaths, name: str | None = None) -> Target:
    """Return what a rollback leads to: ``previous``, or a generation given by name.

    Raises:
        GenerationError: there is no such generation, or its probes have never passed.
    """
    current, previous = generations.link_target(paths.current), generations.link_target(paths.previous)
    if current is not None and previous == current:  # as older versions left it after a return
        previous = generations.last_good(paths, current)
    chosen = name or previous
    if chosen is None:
        raise GenerationError(f"seat {paths.seat} has no previous good generation ({paths.previous} is not there)")
    if not generations.is_good(paths, chosen):
        good = ", ".join(sorted(path.parent.name for path in paths.generations.glob(f"*/{EVIDENCE_FILE}"))) or "none"
        raise GenerationError(f"seat {paths.seat}: expected a good generation ({good}), seen {chosen}")
    generation = load(paths, chosen)
    serving = generations.read_manifest(paths, current) if current else None
    lines = tuple(field_lines(serving, generation.manifest)) if serving else ()
    return Target(generation, _api_key(paths), lines)


def load(paths: SeatPaths, name: str) -> Generation:
    """Return a generation as it was rendered, from its directory.

    Raises:
        GenerationError: a file of it is missing.
    """
    directory = paths.generation(name)
    try:
        files = {
            file: (directory / file).read_text(encoding="utf-8")
            for file in (CONFIG_FILE, ENVIRONMENT_FILE, paths.unit.name, MANIFEST_FILE)
        }
        manifest = json.loads(files[MANIFEST_FILE])
    except (OSError, ValueError) as error:
        raise GenerationError(f"{directory} is not complete: {error}") from error
    return Generation(paths.seat, name, str(manifest["release_path"]), files, manifest)


def field_lines(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Yield what to write at the seat in ``group_vars`` to get from one manifest to another, one field each."""
    for key, field in _FIELDS.items():
        if before.get(key) != after.get(key):
            yield _line(field, _written(key, before.get(key)), _written(key, after.get(key)))
    if _speculative(before) != _speculative(after):
        yield _line("speculative", _speculative(before), _speculative(after))
    declared = (before["declared"], after["declared"])
    for key, field in _OPTIONS.items():
        if declared[0].get(key) != declared[1].get(key):
            yield _line(field, declared[0].get(key), declared[1].get(key))
    eager = [bool(part.get("enforce-eager")) for part in declared]
    if eager[0] != eager[1]:
        yield _line("enforce_eager", *eager)
    yield from _others("engine", *declared)
    yield from _others("env", *(_own_environment(part) for part in (before, after)))
    yield from _catalogue(before, after)


def _others(place: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted({*before, *after} - _FOLLOWS - set(_OPTIONS)):
        if before.get(key) == after.get(key):
            continue
        if key in _LIMITS:
            yield f"probe.{_LIMITS[key]}: the value that gives {key} {_shown(after.get(key))}"
        elif key == "gpu-memory-utilization":
            yield f"gpu_memory_utilization: {_shown(after.get(key))}, unless kv_cache_memory is set, which decides it"
        else:
            name = key.replace("-", "_") if place == "engine" else key
            yield _line(f"{place}.{name}", before.get(key), after.get(key))


def _own_environment(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables that do not only name a folder of the seat's caches."""
    environment = manifest["environment"]
    home = environment.get("HOME", "/nowhere")
    return {name: value for name, value in environment.items() if not str(value).startswith(f"{home}/")}


def _catalogue(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Yield what differs under one and the same name: then the catalogue was edited, not the seat."""
    if before["release_name"] == after["release_name"] and before["release_id"] != after["release_id"]:
        yield (
            f"releases entry {after['release_name']}: what it was when it gave {after['release_id']} (now"
            f" {before['release_id']}): version, lock or patch series changed"
        )
    if before["model_id"] == after["model_id"] and before["model_revision"] != after["model_revision"]:
        yield _line(f"models entry {after['model_id']}: revision", before["model_revision"], after["model_revision"])


def _speculative(manifest: Mapping[str, Any]) -> dict[str, Any] | None:
    given = manifest.get("speculative")
    if not given:
        return None
    drafter = manifest.get("drafter_id")
    written = {"method": given["method"], "num_speculative_tokens": given["k"]}
    return {**written, **({"model": drafter} if drafter else {})}


def _written(key: str, value: object) -> object:
    return format_size(value) if key == "kv_cache_memory_bytes" and isinstance(value, int) else value


def _line(field: str, before: object, after: object) -> str:
    return f"{field}: {_shown(after)}  # instead of {_shown(before)}"


def _shown(value: object) -> str:
    """Return a value as YAML takes it; JSON is YAML, and plain words need no quotes."""
    return value if isinstance(value, str) and value.replace("-", "").isalnum() else json.dumps(value)


def _api_key(paths: SeatPaths) -> str:
    try:
        key = api_key.read(paths)
    except OSError as error:
        raise GenerationError(f"seat {paths.seat}: no API key ({error}): run site.yml") from error
    if key is None:
        raise GenerationError(f"seat {paths.seat}: no API key ({paths.api_key} is not there): run site.yml")
    return key
