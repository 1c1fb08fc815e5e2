"""Arms are identical except for the studied keys: proven by canonical arguments and environment, not by trust.

Everything is derived from the live deployment (:class:`Deployment`, read from the machine); nothing is retyped.
Arguments on the command line and settings in a ``--config`` file become one mapping, because vLLM merges them (the
command line wins).
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from .definition import CACHE_ENV, SECRET_ENV, Arm, synthetic_settings

#: Environment that can change what the engine computes or how fast.
ENV_PREFIXES = (
    *("VLLM_", "TORCH", "PYTORCH_", "CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "NCCL_", "UCX_", "FLASHINFER_", "TRITON_"),
    *("OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "MALLOC_", "LD_", "TOKENIZERS_"),
)
SHORT_FLAGS = {
    "tp": "tensor-parallel-size",
    "pp": "pipeline-parallel-size",
    "dp": "data-parallel-size",
    "dcp": "decode-context-parallel-size",
    "ep": "enable-expert-parallel",
    "q": "quantization",
    "sc": "speculative-config",
    "cc": "compilation-config",
}
#: An alias for an option reads as the same option in both its spellings.
LONG_ALIASES = {"kv-cache-memory": "kv-cache-memory-bytes"}


class Refusal(Exception):
    """A campaign or a comparison that must not be made; ``rule`` names the rule of ``docs/campaign.md``."""

    def __init__(self, rule: str, message: str) -> None:
        self.rule = rule
        super().__init__(f"refused ({rule}): {message}")


@dataclass(frozen=True)
class Deployment:
    """The live seat as read from the machine.

    ``argv`` is the command line after ``serve``; ``config`` the mapping of its ``--config`` file. ``source`` says where
    both were read (path and hash): a deployment without it is retyped and refused. ``identity`` holds what must not
    move during a campaign: release and patch set, model digest, GPU, driver, kernel.
    """

    argv: tuple[str, ...]
    config: Mapping[str, Any]
    env: Mapping[str, str]
    source: str
    identity: Mapping[str, Any] = field(default_factory=dict)


def canonical_json(value: object) -> str:
    """Return JSON with sorted keys and no blanks: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest(value: object) -> str:
    """Return the sha256 of the canonical JSON of ``value``."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def _key(flag: str) -> str:
    name = flag.lstrip("-").replace("_", "-")
    if flag.startswith("-") and not flag.startswith("--"):
        name = SHORT_FLAGS.get(name, name)
    return LONG_ALIASES.get(name, name)


def _value(text: str) -> object:
    """Type a value of the command line as YAML or JSON would: ``8`` and ``"8"`` are the same setting."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _is_flag(token: str) -> bool:
    """Tell flags from values; a negative number is a value."""
    return token.startswith("-") and len(token) > 1 and not token[1].isdigit()


def parse_argv(argv: Sequence[str]) -> dict[str, Any]:
    """Return the settings of a vLLM command line (after ``serve``) as a mapping from option to value.

    ``--a=b``, ``--a b``, ``-tp 2``, switches, several values and dotted keys (``--speculative-config.method mtp``) are
    understood; the first positional is ``model``. An option given twice keeps the last, as argparse does.
    """
    settings: dict[str, Any] = {}
    tokens = list(argv)
    if tokens and not _is_flag(tokens[0]):
        settings["model"] = tokens.pop(0)
    while tokens:
        flag, has_value, inline = tokens.pop(0).partition("=")
        values = [inline] if has_value else []
        while not has_value and tokens and not _is_flag(tokens[0]):
            values.append(tokens.pop(0))
        option, _, path = flag.lstrip("-").partition(".")
        typed: object = True if not values else _value(values[0]) if len(values) == 1 else [_value(v) for v in values]
        key = _key(flag.partition(".")[0]) if option else ""
        if path:
            inner = settings.setdefault(key, {})
            for part in path.split(".")[:-1]:
                inner = inner.setdefault(part, {})
            inner[path.split(".")[-1]] = typed
        else:
            settings[key] = typed
    return settings


def canonical_settings(argv: Sequence[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """Merge command line and config file into one mapping of canonical option names to canonical values.

    ``no-x: true`` becomes ``x: false``; a false switch is kept, null is absent; JSON in text is parsed, so that the
    same setting written in two ways compares equal.
    """
    merged: dict[str, Any] = {}
    for source in ({_key(name): value for name, value in config.items()}, parse_argv(argv)):
        for key, value in source.items():
            if key == "config":
                continue
            if key.startswith("no-") and isinstance(value, bool):
                key, value = key.removeprefix("no-"), not value
            if isinstance(value, str) and value[:1] in "{[":
                value = _value(value)
            if key == "served-model-name" and isinstance(value, str):
                value = [value]
            merged[key] = value
    return {key: merged[key] for key in sorted(merged) if merged[key] is not None}


def canonical_env(env: Mapping[str, str], studied: Collection[str] = ()) -> dict[str, str]:
    """Return the part of the environment that belongs to the comparison: no secrets, no cache roots.

    ``studied`` names belong to it whatever they are called: an arm without one must not keep the live value.
    """
    return {
        name: env[name]
        for name in sorted(env)
        if (name.startswith(ENV_PREFIXES) or name in studied) and name not in SECRET_ENV and name not in CACHE_ENV
    }


@dataclass(frozen=True)
class ArmConfig:
    """What one arm runs: full settings and environment, their hashes, and the difference from the live deployment."""

    arm: str
    settings: Mapping[str, Any]
    env: Mapping[str, str]
    argv_hash: str
    base_hash: str
    changes: Mapping[str, tuple[Any, Any]]


def derive_arm(
    live: Deployment,
    arm: Arm,
    studied_keys: Sequence[str],
    overrides: Mapping[str, Any] | None = None,
) -> ArmConfig:
    """Return the configuration of ``arm``: the live deployment, ``overrides`` common to all arms, the studied keys.

    ``overrides`` (a KV pin found in step 0; GPUs and port of a shadow seat) belong to the base, the same for every arm.
    Keys of the form ``env:NAME`` address the environment.
    """
    settings = canonical_settings(live.argv, live.config)
    studied_env = {key.removeprefix("env:") for key in studied_keys if key.startswith("env:")}
    env = canonical_env(live.env, studied_env)
    before_settings, before_env = dict(settings), dict(env)
    for key, value in {**(overrides or {}), **arm.values}.items():
        target: dict[str, Any] = env if key.startswith("env:") else settings
        name = key.removeprefix("env:") if key.startswith("env:") else _key(key)
        if value is None:
            target.pop(name, None)
        else:
            target[name] = str(value) if key.startswith("env:") else value
    studied_settings = {_key(key) for key in studied_keys if not key.startswith("env:")}
    base = {
        "settings": {key: value for key, value in settings.items() if key not in studied_settings},
        "env": {key: value for key, value in env.items() if key not in studied_env},
        "identity": dict(live.identity),
    }
    changes = dict(_differences(before_settings, settings, ""))
    changes.update(_differences(before_env, env, "env:"))
    return ArmConfig(
        arm=arm.id,
        settings=settings,
        env=env,
        argv_hash=digest({"settings": settings, "env": env, "identity": dict(live.identity)}),
        base_hash=digest(base),
        changes=changes,
    )


def changed_env(config: ArmConfig, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the live environment with what this arm changes: other values, and variables that are gone."""
    changes = {name[4:]: new for name, (_, new) in config.changes.items() if name.startswith("env:")}
    kept = {name: value for name, value in environment.items() if name not in changes}
    return kept | {name: str(value) for name, value in changes.items() if value is not None}


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str) -> Iterable[tuple[str, tuple[Any, Any]]]:
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            yield f"{prefix}{key}", (old.get(key), new.get(key))


def induced_differences(
    resolved: Mapping[str, Mapping[str, Any]], control: str
) -> dict[str, dict[str, tuple[Any, Any]]]:
    """Return, per arm, what the engine resolved differently from the control: ``{arm: {name: (control, arm)}}``.

    Speculation changes block size, KV tokens and CUDA graph sizes. These are consequences of the studied keys:
    reported, never hidden, never a reason to tune one arm.
    """
    reference = resolved[control]
    return {
        arm: dict(_differences(reference, values, ""))
        for arm, values in resolved.items()
        if arm != control and dict(_differences(reference, values, ""))
    }


# --- refusals ---------------------------------------------------------------------------------------------------------


def refuse_unproven(live: Deployment) -> None:
    """R8: arguments nobody read from the machine."""
    if not live.source:
        raise Refusal("R8 retyped", "the arguments of the seat carry no source; derive them from the live deployment")


def refuse_base_mismatch(arms: Iterable[ArmConfig]) -> None:
    """R3: arms that differ in more than the studied keys."""
    by_hash: dict[str, list[str]] = {}
    for arm in arms:
        by_hash.setdefault(arm.base_hash, []).append(arm.arm)
    if len(by_hash) > 1:
        groups = "; ".join(f"{hash_[:12]}: {', '.join(names)}" for hash_, names in sorted(by_hash.items()))
        raise Refusal("R3 base", f"arms differ outside the studied keys: {groups}")


def refuse_synthetic(arms: Iterable[ArmConfig]) -> None:
    """R20: a live seat whose acceptance is fabricated; of studied values the definition says so already."""
    for arm in arms:
        names = ", ".join(synthetic_settings(arm.settings))
        if names:
            reason = f"arm {arm.arm} fabricates its acceptance ({names}); declare synthetic: true, or deploy without"
            raise Refusal("R20 synthetic", reason)


def refuse_startup_plan(arms: Iterable[ArmConfig]) -> None:
    """R14: vLLM >= 0.28 can remember a KV size and skip profiling in the second boot of an arm."""
    for arm in arms:
        if arm.env.get("VLLM_ENABLE_STARTUP_PLAN", "0") not in ("0", "", "false", "False"):
            raise Refusal("R14 startup plan", f"arm {arm.arm} sets VLLM_ENABLE_STARTUP_PLAN; boots would not be alike")


def refuse_remote_client(base_url: str) -> None:
    """R10: a network between client and seat is in every number."""
    host = ""
    try:
        host = urlsplit(base_url).hostname or ""
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    if not local:
        raise Refusal(
            "R10 remote client", f"{base_url} is not on this host; run the client beside the seat, on loopback"
        )


def refuse_busy(running: float, waiting: float) -> None:
    """R11: a seat that serves somebody else."""
    if running or waiting:
        raise Refusal("R11 foreign traffic", f"the seat has {running:g} running and {waiting:g} waiting requests")
