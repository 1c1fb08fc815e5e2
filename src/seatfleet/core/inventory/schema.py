"""What a seat may say: one table of fields, the rules between them, and the strict loader.

The table :data:`SEAT` is the only place where a field is described; ``docs/seats.md`` and ``docs/seat.schema.json`` are
generated from it. Rules that need the catalogues or other seats are in :mod:`seatfleet.core.inventory.fleet`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..problems import Problem, ProblemsError
from ..seat.manifest import CANARY_MODES
from .kinds import (
    INVALID,
    Address,
    Boolean,
    Choice,
    Field,
    Findings,
    Gpu,
    Integer,
    Items,
    Number,
    Path,
    Plain,
    Record,
    Size,
    Table,
    Text,
    did_you_mean,
    is_template,
    show,
)
from .seat import Alias, Evidence, Node, Nodes, Probe, Seat, Speculative

EVIDENCE_STATES = ("measured", "elsewhere", "unmeasured", "unsupported")
WORKLOADS = ("count", "code", "prose", "agent")
MEMORY_FIELDS = ("kv_cache_memory", "gpu_memory_utilization")

#: Methods that need a drafter checkpoint, and those that bring their own (a head in the checkpoint, or n-grams).
DRAFTER_METHODS = ("dflash", "draft_model", "eagle", "eagle3")
OWN_METHODS = ("mtp", "ngram")
#: The drafter of DFlash attends non-causally; of the CUDA backends only this one can (vLLM 0.23.0, 0.33.0).
DFLASH_BACKEND = "FLASH_ATTN"

_NAME = Text("a name of lower-case letters, digits and hyphens, at most 40", r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_ALIAS_NAME = Text(
    "a model name of letters, digits, '.', '_' and '-' that starts with a letter or digit, at most 80",
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}",
)
_KEY_NAME = Text("the alias of a key, for example infra-ops", r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_CATALOGUE_NAME = Text("the name of a catalogue entry", r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
_FLAG = Text(
    "a long vLLM flag without the leading dashes, in its positive form and with hyphens, for example block-size",
    r"(?!no-)[a-z][a-z0-9]*(-[a-z0-9]+)*",
)
_ENV_NAME = Text("an environment name in capitals", r"[A-Z_][A-Z0-9_]*")
_BACKEND = Text("the name of a vLLM attention backend in capitals, for example FLASH_ATTN", r"[A-Z][A-Z0-9_]*")
_WORD = Text("a word as vLLM spells it", r"[A-Za-z0-9][A-Za-z0-9_.-]*")

#: Names that mean something else to the gateway, to systemd or to our own directories.
RESERVED_SEATS = ("current", "previous", "generations", "all", "none", "default")
#: A seat of such a name would boot its variants in the unit that runs the campaign of another one.
RESERVED_PREFIX = "run-"
RESERVED_ALIASES = ("all-proxy-models", "all-team-models", "no-default-models")

EVIDENCE = Record(
    "an evidence note",
    (
        Field(
            "state",
            Choice(EVIDENCE_STATES),
            "`measured` on this seat (then `reference` names the report), `elsewhere`: a number of another machine, "
            "build or harness; `unmeasured`: nobody has compared it here; `unsupported`: it cannot run here.",
            required=True,
        ),
        Field("note", Text("a sentence"), "What is known, in one sentence.", required=True),
        Field("reference", Text("a path or link"), "The report behind it.", nullable=True),
    ),
)

SPECULATIVE = Record(
    "speculative",
    (
        Field(
            "method",
            Choice((*DRAFTER_METHODS, *OWN_METHODS)),
            "How tokens are drafted. `mtp`: the checkpoint's own head; `ngram`: from the prompt.",
            required=True,
        ),
        Field("num_speculative_tokens", Integer(1, 32), "Tokens drafted per step (k, n).", required=True),
        Field("model", _CATALOGUE_NAME, "Drafter, an entry of `models`. Not for mtp and ngram.", nullable=True),
        Field(
            "attention_backend",
            _BACKEND,
            f"Attention backend of the drafter. DFlash needs `{DFLASH_BACKEND}`: its attention is not causal.",
            nullable=True,
        ),
        Field(
            "engine",
            Table(Text("a key of vLLM's speculative config", r"[a-z][a-z0-9_]*"), Plain(), "further keys to values"),
            "Further keys of vLLM's speculative config, as vLLM spells them.",
            default={},
        ),
    ),
)

SAMPLING = Record(
    "sampling",
    (
        Field("temperature", Number(0, 2), "Set only what the checkpoint declares; unset stays unset."),
        Field("top_p", Number(0, 1, above=True), "As above."),
        Field("top_k", Integer(-1, 1_000_000), "As above; -1 is off."),
        Field("min_p", Number(0, 1), "As above."),
        Field("presence_penalty", Number(-2, 2), "As above."),
        Field("frequency_penalty", Number(-2, 2), "As above."),
        Field("repetition_penalty", Number(0, 2, above=True), "As above."),
        Field("max_tokens", Integer(1, 10_000_000, "tokens"), "Default length of an answer."),
    ),
)

LIMITS = Record(
    "limits",
    (
        Field("max_input_tokens", Integer(1, 10_000_000, "tokens"), "Shown by the gateway as the model's limit."),
        Field("max_output_tokens", Integer(1, 10_000_000, "tokens"), "As above."),
        Field("rpm", Integer(1, 1_000_000), "Requests per minute the gateway lets through."),
        Field("tpm", Integer(1, 1_000_000_000, "tokens"), "Tokens per minute the gateway lets through."),
        Field("max_parallel_requests", Integer(1, 100_000), "Requests in flight the gateway lets through."),
        Field("timeout_s", Integer(1, 86_400, "seconds"), "The gateway's limit for one request."),
    ),
)

ALIAS = Record(
    "an alias",
    (
        Field(
            "keys",
            Items(_KEY_NAME, "key aliases", least=1),
            "Key aliases that may call it; each must be among the gateway's keys. Every other key gets 403.",
            required=True,
        ),
        Field("sampling", SAMPLING, "Sampling defaults at the gateway; a request may override them.", default={}),
        Field(
            "chat_template_kwargs",
            Table(Text("a name", r"[A-Za-z_][A-Za-z0-9_]*"), Plain(), "names to values"),
            "Sent with each request, for example `{enable_thinking: false}`. With two aliases on one seat, all of them "
            "must say it or none.",
            nullable=True,
        ),
        Field("limits", LIMITS, "Limits at the gateway. The same for all aliases of one seat.", default={}),
        Field("fallback", _ALIAS_NAME, "Alias that answers while this seat is drained.", nullable=True),
        Field(
            "access_groups",
            Items(_ALIAS_NAME, "access groups of the gateway"),
            "Access groups that contain the alias. A key whose list names one is not edited when seats change.",
            default=(),
        ),
        Field("adopt", Boolean(), "Replace deployments of it that somebody else made at the gateway.", default=False),
    ),
)

PROBE = Record(
    "probe",
    (
        Field(
            "acceptance",
            Table(
                Text("a workload (" + ", ".join(WORKLOADS) + ")", "|".join(WORKLOADS)),
                Number(1, 33),
                "workloads to the least mean acceptance length (1 + accepted / drafts)",
            ),
            "Least mean acceptance length per workload; null takes the bands of the method.",
            nullable=True,
        ),
        Field(
            "canary",
            Choice(CANARY_MODES),
            "Which answers the canary asks for: known ones (answers), only that the seat answers as before (golden), "
            "known ones from the day the model gives them (auto), or nothing (off).",
            default="auto",
        ),
        Field("ready_timeout_s", Integer(10, 14_400, "seconds"), "From start to READY.", default=1800),
        Field("drain_timeout_s", Integer(0, 86_400, "seconds"), "For running requests to end.", default=300),
        Field("stop_timeout_s", Integer(5, 3_600, "seconds"), "From SIGTERM to an empty cgroup.", default=120),
    ),
)

ENGRAM = Record(
    "engram",
    (
        Field(
            "cpu_offload",
            Boolean(),
            "Keep the n-gram (PLE) table in pinned host memory; needs `host_memory`. vLLM's own default is true, so a "
            "model with such a table must say it.",
            required=True,
        ),
    ),
)

#: vLLM itself takes more; this is what was tried.
NODE_COUNT = 2
NODES = Record(
    "nodes",
    (
        Field(
            "port",
            Integer(1024, 65_534),
            "TCP port on the head where the other host asks what to run; the processes of the engine meet on the next.",
            required=True,
        ),
        Field(
            "hosts",
            Items(
                Record(
                    "a node",
                    (
                        Field("host", Text("the name of a host"), "Host of the inventory.", required=True),
                        Field("address", Address(), "Its address on the link between the two.", required=True),
                        Field(
                            "interface",
                            Text("the name of a network interface", r"[A-Za-z0-9][A-Za-z0-9._-]{0,14}"),
                            "The interface that has this address.",
                            required=True,
                        ),
                    ),
                ),
                "nodes",
                least=NODE_COUNT,
                most=NODE_COUNT,
            ),
            "Two hosts of one class: first this one, which has port, aliases and probe, then the one that follows.",
            required=True,
        ),
    ),
)

SEAT = Record(
    "a seat",
    (
        Field("profile", _NAME, "A preset of `seat_profiles`; fields written here win over it.", nullable=True),
        Field("model", _CATALOGUE_NAME, "Entry of `models`: repository, revision, quantization, facts.", required=True),
        Field("release", _CATALOGUE_NAME, "Entry of `releases`: version, patch series, locks.", required=True),
        Field(
            "gpus",
            Items(Gpu(), "GPU indices in PCI order or GPU UUIDs"),
            "GPUs of the host (with `nodes`: of each) that this seat alone uses. Empty on hosts without GPU.",
            required=True,
        ),
        Field("port", Integer(1024, 65_535), "TCP port, one per seat on a host.", required=True),
        Field(
            "bind",
            Address(),
            "Address to listen on. The firewall lets only the gateway and loopback reach the port.",
            default="0.0.0.0",
        ),
        Field(
            "max_model_len",
            Integer(1, 10_000_000, "tokens"),
            "Context of one request; must fit the KV pool.",
            required=True,
        ),
        Field(
            "kv_cache_memory",
            Size(),
            "KV cache pinned to this size. vLLM then does not measure the activation peak: take it from a headroom "
            "probe. Exactly one of this and `gpu_memory_utilization`.",
            nullable=True,
        ),
        Field(
            "gpu_memory_utilization",
            Number(0.05, 0.98),
            "Share of GPU memory vLLM may use in all; it then sizes the KV cache itself.",
            nullable=True,
        ),
        Field("kv_cache_why", EVIDENCE, "Where the memory setting comes from.", nullable=True),
        Field(
            "max_num_batched_tokens",
            Integer(1, 1_000_000, "tokens"),
            "Tokens per step. Bounds the activation peak of a deep prefill; a KV pin is valid only with it.",
            nullable=True,
        ),
        Field("max_num_seqs", Integer(1, 100_000), "Sequences per step.", nullable=True),
        Field(
            "tensor_parallel_size",
            Integer(1, 64),
            "GPUs the model is split over. Less than all of both hosts, with `nodes`, is a pipeline of both.",
            nullable=True,
            default_text="number of `gpus`, at least 1; of both hosts with `nodes`",
        ),
        Field("nodes", NODES, "One seat over two hosts.", nullable=True),
        Field(
            "speculative",
            SPECULATIVE,
            "Speculative decoding; null (with `speculative_why`) is off.",
            nullable=True,
        ),
        Field(
            "speculative_why",
            EVIDENCE,
            "Why speculation is off. Required when it is, so that nobody takes a default for a measurement.",
            nullable=True,
        ),
        Field(
            "prefix_caching",
            Boolean(),
            "Reuse the KV cache of common prefixes. With a hybrid model and DFlash it needs a patched release.",
            default=True,
        ),
        Field(
            "attention_backend",
            _BACKEND,
            "Attention backend of the model itself; that of a drafter is `speculative.attention_backend`.",
            nullable=True,
        ),
        Field("moe_backend", _WORD, "Kernel of mixture-of-experts layers, for example `marlin`.", nullable=True),
        Field("kv_cache_dtype", _WORD, "Type of KV entries, for example `fp8`.", nullable=True),
        Field(
            "mamba_block_size",
            Integer(8, 65_536, "tokens"),
            "Block of recurrent states. Refused on hybrid models in align mode, where it breaks the block geometry.",
            nullable=True,
        ),
        Field(
            "mamba_ssm_cache_dtype",
            Choice(("auto", "float32", "float16", "bfloat16")),
            "Type of the recurrent state.",
            nullable=True,
        ),
        Field("enforce_eager", Boolean(), "Run without CUDA graphs and compilation.", default=False),
        Field("reasoning_parser", _WORD, "Parser of reasoning text, for example `qwen3`.", nullable=True),
        Field("tool_call_parser", _WORD, "Parser of tool calls; set, it also enables tool choice.", nullable=True),
        Field("engram", ENGRAM, "Storage of the model's n-gram (PLE) table.", nullable=True),
        Field(
            "host_memory",
            Size(),
            "Host memory the seat pins (an offloaded table); admission counts it. Two seats are two tables.",
            nullable=True,
        ),
        Field(
            "env",
            Table(_ENV_NAME, Text("text in quotes", r"[^\x00-\x1f]*"), "environment names to text"),
            "Further environment. Unknown `VLLM_*` names and names the unit itself sets are refused.",
            default={},
        ),
        Field(
            "engine",
            Table(_FLAG, Plain(), "vLLM flags to values"),
            "Any other flag of vLLM, checked by the installed release's own parser. `flag: false` is written as "
            "`no-flag: true`.",
            default={},
        ),
        Field(
            "aliases",
            Table(_ALIAS_NAME, ALIAS, "model names at the gateway to who may call them"),
            "Model names at the gateway. Empty: not registered there.",
            default={},
        ),
        Field("probe", PROBE, "What the probe expects, and time limits.", default={}),
        Field("state", Choice(("present", "absent")), "`absent` removes the seat and its alias.", default="present"),
    ),
)

#: Flags the renderer writes from fields (or that the service owns), with where to say it instead. ``engine`` may not.
OWNED_FLAGS: Mapping[str, str] = {
    **{
        name.replace("_", "-"): name
        for name in (
            "max_model_len",
            "gpu_memory_utilization",
            "max_num_batched_tokens",
            "max_num_seqs",
            "tensor_parallel_size",
            "attention_backend",
            "moe_backend",
            "kv_cache_dtype",
            "mamba_block_size",
            "mamba_ssm_cache_dtype",
            "enforce_eager",
            "reasoning_parser",
            "tool_call_parser",
            "port",
        )
    },
    "host": "bind",
    "kv-cache-memory": "kv_cache_memory",
    "kv-cache-memory-bytes": "kv_cache_memory",
    "enable-prefix-caching": "prefix_caching",
    "speculative-config": "speculative",
    "engram-config": "engram",
    "enable-auto-tool-choice": "tool_call_parser",
    "model": "model",
    "model-tag": "model",
    "revision": "the model catalogue",
    "quantization": "the model catalogue",
    "served-model-name": "aliases",
    "api-key": "nothing: each seat has its own key",
    "config": "nothing: the seat is rendered as that file",
    "fail-on-environ-validation": "nothing: always on where the release has it",
    "enable-prompt-tokens-details": "nothing: always on, the prefix probe needs it",
    "shutdown-timeout": "probe.stop_timeout_s",
    "uds": "nothing: a seat listens on its port",
    **dict.fromkeys(("nnodes", "node-rank", "master-addr", "master-port", "headless"), "nodes"),
    "root-path": "nothing: the gateway reaches the seat at its root",
    "ssl-keyfile": "nothing: only the gateway and loopback reach the port",
    "ssl-certfile": "nothing: only the gateway and loopback reach the port",
}

_CACHE = "nothing: the unit keeps its caches in one directory"
_OFFLINE = "nothing: a seat runs offline"

#: Environment the unit sets itself, with where to say it instead.
OWNED_ENV: Mapping[str, str] = {
    **dict.fromkeys(("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"), "gpus"),
    **dict.fromkeys(
        (
            "CUDA_CACHE_PATH",
            "FLASHINFER_WORKSPACE_BASE",
            "HF_HOME",
            "HOME",
            "TORCHINDUCTOR_CACHE_DIR",
            "TRITON_CACHE_DIR",
            "VLLM_CACHE_ROOT",
            "VLLM_CONFIG_ROOT",
            "XDG_CACHE_HOME",
            "XDG_CONFIG_HOME",
        ),
        _CACHE,
    ),
    **dict.fromkeys(
        ("DO_NOT_TRACK", "HF_HUB_DISABLE_TELEMETRY", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "VLLM_NO_USAGE_STATS"),
        _OFFLINE,
    ),
    "PATH": "nothing: the release's programs come first",
    "PYTHONUNBUFFERED": "nothing: the journal needs it",
    "SEATFLEET_GENERATION": "nothing: the renderer writes it",
    "SEATFLEET_RELEASE": "nothing: the renderer writes it",
    "SEATFLEET_SEAT": "nothing: the renderer writes it",
    "VLLM_API_KEY": "nothing: each seat has its own key",
    "VLLM_ATTENTION_BACKEND": "attention_backend",
    "VLLM_ENGINE_READY_TIMEOUT_S": "probe.ready_timeout_s",
}

#: What a seat over two hosts gets from its nodes, and another may set itself.
NODE_ENV = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "VLLM_HOST_IP")


@dataclass(frozen=True)
class Layer:
    """One mapping that contributes to a seat, lowest precedence first; ``at`` is its path in the variables."""

    at: Path
    content: Mapping[str, Any]


@dataclass(frozen=True)
class Presets:
    """What a seat builds on: fleet-wide defaults, defaults of the host's class, named profiles."""

    defaults: Mapping[str, Any] = field(default_factory=dict)
    class_defaults: Mapping[str, Any] = field(default_factory=dict)
    profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Merged:
    """A seat with its presets applied, and for each key path the layer it came from."""

    content: dict[str, Any]
    origin: Mapping[Path, Path]

    def source(self, path: Path) -> Path:
        """Return the path in the variables that holds (or would hold) ``path`` of the seat."""
        for length in range(len(path), -1, -1):
            if (layer := self.origin.get(path[:length])) is not None:
                return (*layer, *path)
        return path


def merge(name: str, written: Mapping[str, Any], presets: Presets) -> Merged:
    """Apply defaults, class defaults and the profile under what the operator wrote; later layers win.

    Mappings merge key by key, lists and scalars replace. Three things are alternatives, so the later layer drops the
    earlier's other half: the two memory settings, ``speculative`` against ``speculative_why``, and a ``speculative``
    of another method. A null in ``env`` or ``engine`` removes the key.

    Raises:
        ProblemsError: the profile does not exist (``where`` is left to the caller, who knows the files).
    """
    layers = [Layer(("seat_defaults",), presets.defaults), Layer(("seat_class_defaults",), presets.class_defaults)]
    profile = written.get("profile", presets.class_defaults.get("profile", presets.defaults.get("profile")))
    if isinstance(profile, str) and profile in presets.profiles:
        layers.append(Layer(("seat_profiles", profile), presets.profiles[profile]))
    layers.append(Layer(("seats", name), written))
    content: dict[str, Any] = {}
    origin: dict[Path, Path] = {(): ("seats", name)}
    for layer in layers:
        _drop_alternatives(content, layer.content)
        _overlay(content, layer.content, (), layer.at, origin)
    for table in ("env", "engine"):
        if isinstance(content.get(table), dict):
            content[table] = {key: value for key, value in content[table].items() if value is not None}
    return Merged(content, origin)


def _drop_alternatives(content: dict[str, Any], top: Mapping[str, Any]) -> None:
    """Remove from the lower layers what the next layer replaces by an alternative."""
    if any(top.get(name) is not None for name in MEMORY_FIELDS):
        for name in (*MEMORY_FIELDS, "kv_cache_why"):
            content.pop(name, None)
    if "speculative" in top:
        content.pop("speculative_why", None)
        below, above = content.get("speculative"), top["speculative"]
        methods = [part.get("method") for part in (below, above) if isinstance(part, Mapping)]
        if len(methods) == 2 and methods[1] not in (None, methods[0]):
            content.pop("speculative")


def _overlay(base: dict[str, Any], top: Mapping[str, Any], at: Path, layer: Path, origin: dict[Path, Path]) -> None:
    for key, value in top.items():
        here = (*at, str(key))
        if isinstance(value, Mapping) and isinstance(base.get(key), dict):
            _overlay(base[key], value, here, layer, origin)
            continue
        for stale in [path for path in origin if path[: len(here)] == here]:
            del origin[stale]
        origin[here] = layer
        base[key] = _copy(value)


def _copy(value: object) -> object:
    """Return plain dicts and lists: what came from Ansible may be read-only and shared between seats."""
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_copy(item) for item in value]
    return value


Rule = Callable[[Mapping[str, Any], Findings], None]


def _known(*values: object) -> bool:
    """Return True when every value could be read: rules stay silent about what is already reported."""
    return all(value is not INVALID for value in values)


def _one_memory_setting(seat: Mapping[str, Any], findings: Findings) -> None:
    given = [name for name in MEMORY_FIELDS if seat[name] is not None]
    if _known(*(seat[name] for name in MEMORY_FIELDS)) and len(given) != 1:
        seen = " and ".join(given) if given else "neither"
        findings.add(
            (given[-1],) if given else ("kv_cache_memory",), "exactly one of " + ", ".join(MEMORY_FIELDS), seen
        )


def _speculation_is_explained(seat: Mapping[str, Any], findings: Findings) -> None:
    speculative, why = seat["speculative"], seat["speculative_why"]
    if not _known(speculative, why):
        return
    if speculative is None and why is None:
        expected = f"why speculation is off: {{state: {' | '.join(EVIDENCE_STATES)}, note: ...}}"
        findings.add(("speculative_why",), expected, "nothing, with speculative: null")
    elif speculative is not None and why is not None:
        findings.add(("speculative_why",), "nothing, because speculative is set", show(why.get("note")))


def _evidence_has_reference(seat: Mapping[str, Any], findings: Findings) -> None:
    for name in ("speculative_why", "kv_cache_why"):
        why = seat[name]
        if _known(why) and why is not None and why["state"] == "measured" and why["reference"] is None:
            findings.add((name, "reference"), "the report behind state: measured", "nothing")


def _drafter_fits_method(seat: Mapping[str, Any], findings: Findings) -> None:
    spec = seat["speculative"]
    if not _known(spec) or spec is None or not _known(spec["method"], spec["model"]):
        return
    method, model = spec["method"], spec["model"]
    if method in DRAFTER_METHODS and model is None:
        findings.add(("speculative", "model"), f"the drafter that method {method} needs", "nothing")
    if method in OWN_METHODS and model is not None:
        findings.add(("speculative", "model"), f"nothing: method {method} has no drafter", show(model))
    if method == "dflash" and _known(spec["attention_backend"]) and spec["attention_backend"] != DFLASH_BACKEND:
        expected = f"{DFLASH_BACKEND} (the DFlash drafter attends non-causally; no other backend can)"
        seen = show(spec["attention_backend"]) if spec["attention_backend"] is not None else "nothing"
        findings.add(("speculative", "attention_backend"), expected, seen)


def _acceptance_is_reachable(seat: Mapping[str, Any], findings: Findings) -> None:
    spec, probe = seat["speculative"], seat["probe"]
    if not _known(spec, probe) or not _known(probe["acceptance"]) or not probe["acceptance"]:
        return
    if spec is None:
        findings.add(("probe", "acceptance"), "null, because speculative is null", show(probe["acceptance"]))
    elif _known(spec["num_speculative_tokens"]):
        most = spec["num_speculative_tokens"] + 1
        for workload, least in probe["acceptance"].items():
            if least > most:
                expected = f"at most {most} (num_speculative_tokens + 1)"
                findings.add(("probe", "acceptance", workload), expected, show(least))


def _gpus_fit_parallelism(seat: Mapping[str, Any], findings: Findings) -> None:
    gpus, ranks, nodes = seat["gpus"], seat["tensor_parallel_size"], seat["nodes"]
    if not _known(gpus, ranks, nodes) or ranks is None:
        return
    if nodes is None:
        if gpus and ranks != len(gpus):
            findings.add(("tensor_parallel_size",), f"{len(gpus)}, the number of gpus", show(ranks))
        return
    total = _ranks(gpus, NODE_COUNT)
    if ranks not in {total, total // NODE_COUNT}:
        expected = f"{total}, the GPUs of both hosts, or {total // NODE_COUNT} for a pipeline of both"
        findings.add(("tensor_parallel_size",), expected, show(ranks))


def _ranks(gpus: Sequence[object], nodes: int) -> int:
    """Return how many processes compute: one per GPU of every host, on hosts without any one per host."""
    return max(1, len(gpus)) * nodes


def _nodes_are_two(seat: Mapping[str, Any], findings: Findings) -> None:
    nodes, gpus, port = seat["nodes"], seat["gpus"], seat["port"]
    if nodes is None or not _known(nodes) or not _known(nodes["hosts"]):
        return
    for name in ("host", "address"):
        values = [node[name] for node in nodes["hosts"]]
        if _known(*values) and len(set(values)) < len(values):
            findings.add(("nodes", "hosts", "1", name), f"another {name} than the first node", show(values[1]))
    for index, gpu in enumerate(gpus if _known(gpus) else ()):
        if isinstance(gpu, str):
            findings.add(("gpus", str(index)), "an index, which means a card on each of the two hosts", show(gpu))
    if _known(nodes["port"], port) and port in {nodes["port"], nodes["port"] + 1}:
        findings.add(
            ("nodes", "port"), f"one that with the next is not {port}, the port of the seat", show(nodes["port"])
        )
    flags = seat["engine"] if _known(seat["engine"]) else {}
    for flag, why in (
        ("pipeline-parallel-size", "tensor_parallel_size decides it"),
        ("distributed-executor-backend", "it is mp over two hosts"),
    ):
        if flag in flags:
            findings.add(("engine", flag), f"nothing with nodes: {why}", show(flags[flag]))
    for name in NODE_ENV if _known(seat["env"]) else ():
        if name in seat["env"]:
            findings.add(("env", name), "nodes instead", "a name that each of the two units sets")


def _batch_holds_sequences(seat: Mapping[str, Any], findings: Findings) -> None:
    tokens, sequences = seat["max_num_batched_tokens"], seat["max_num_seqs"]
    if _known(tokens, sequences) and tokens is not None and sequences is not None and tokens < sequences:
        findings.add(("max_num_batched_tokens",), f"at least max_num_seqs ({sequences})", show(tokens))


def _offload_names_host_memory(seat: Mapping[str, Any], findings: Findings) -> None:
    engram, memory = seat["engram"], seat["host_memory"]
    offload = engram["cpu_offload"] if _known(engram) and engram is not None else None
    if offload is True and memory is None:
        findings.add(("host_memory",), "the host memory that engram.cpu_offload pins, for example 96GiB", "nothing")
    if _known(engram, memory) and memory is not None and offload is not True and _known(offload):
        findings.add(("host_memory",), "nothing, because engram.cpu_offload is not true", "a size")


def _elsewhere(place: str) -> str:
    return place if place.startswith("nothing") else f"{place} instead"


def _engine_leaves_fields_alone(seat: Mapping[str, Any], findings: Findings) -> None:
    for flag in seat["engine"] if _known(seat["engine"]) else ():
        if flag in OWNED_FLAGS:
            findings.add(("engine", flag), _elsewhere(OWNED_FLAGS[flag]), "a flag that the renderer writes")


def _env_leaves_fields_alone(seat: Mapping[str, Any], findings: Findings) -> None:
    for name in seat["env"] if _known(seat["env"]) else ():
        if name in OWNED_ENV:
            findings.add(("env", name), _elsewhere(OWNED_ENV[name]), "a name that the unit sets")
        elif name.endswith(("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")):
            findings.add(("env", name), "no secret (the unit is readable by everybody)", "a name of a secret")


def _aliases_agree(seat: Mapping[str, Any], findings: Findings) -> None:
    """Two aliases over one backend share gateway state, so what may leak between them has to be equal.

    Measured on LiteLLM 1.106.12: `model_info` limits of one alias appear on the others (upstream #42215, #38543);
    before the fix #29620 one request's `enable_thinking` stayed for all later ones.
    """
    if not _known(seat["aliases"]):
        return
    aliases = {name: alias for name, alias in seat["aliases"].items() if _known(*alias.values())}
    for name, alias in aliases.items():
        if name in RESERVED_ALIASES:
            findings.add(("aliases", name), "another name: this one is a keyword of the gateway", show(name))
        if alias["fallback"] == name:
            findings.add(("aliases", name, "fallback"), "another alias than itself", show(name))
    if len(aliases) < 2:
        return
    first, *others = aliases
    same = f"the same {{}} as alias {first} over the same backend ({{}}), because the gateway lets them leak"
    for name in others:
        for field_name, names_only in (("chat_template_kwargs", True), ("limits", False)):
            mine, other = (_said(aliases[alias][field_name], names_only) for alias in (name, first))
            if mine != other:
                expected = same.format("names" if names_only else "values", other)
                findings.add(("aliases", name, field_name), expected, mine)


def _said(mapping: Mapping[str, Any] | None, names_only: bool) -> str:
    """Return what a mapping says, for comparison and for a message: ``rpm 5, tpm 100``, or ``none``."""
    said = {key: value for key, value in (mapping or {}).items() if value is not None}
    return ", ".join(key if names_only else f"{key} {said[key]}" for key in sorted(said)) or "none"


RULES: tuple[Rule, ...] = (
    _one_memory_setting,
    _speculation_is_explained,
    _evidence_has_reference,
    _drafter_fits_method,
    _acceptance_is_reachable,
    _gpus_fit_parallelism,
    _nodes_are_two,
    _batch_holds_sequences,
    _offload_names_host_memory,
    _engine_leaves_fields_alone,
    _env_leaves_fields_alone,
    _aliases_agree,
)


@dataclass(frozen=True)
class Read:
    """Outcome of reading one seat; ``seat`` is None when anything is wrong or not known yet."""

    seat: Seat | None
    merged: Merged
    findings: Findings
    values: Mapping[str, Any] = field(default_factory=dict)  # of every field; INVALID where it could not be read


def read_seat(name: object, host: str, written: object, presets: Presets | None = None) -> Read:
    """Check one seat and return everything found; nothing is raised. ``name`` is as YAML read it, which may be 8022."""
    presets = presets or Presets()
    findings = Findings()
    if not isinstance(written, Mapping):
        findings.add((), SEAT.expected, show(written))
        return Read(None, Merged({}, {(): ("seats", str(name))}), findings)
    merged = merge(str(name), written, presets)
    profile = merged.content.get("profile")
    lost = isinstance(profile, str) and not is_template(profile) and profile not in presets.profiles
    if lost:
        known = f"a profile of seat_profiles{did_you_mean(str(profile), presets.profiles)}"
        findings.add(("profile",), known, show(profile))
    checked = _NAME.convert(name, (), Findings())
    if checked is INVALID or checked in RESERVED_SEATS or checked.startswith(RESERVED_PREFIX):
        reserved = f"none of {', '.join(RESERVED_SEATS)}, none that begins with {RESERVED_PREFIX}"
        findings.add((), f"{_NAME.expected}, in quotes if it is a number, {reserved}", show(name))
    values = SEAT.convert(merged.content, (), findings)
    if lost:
        # What is not written is not known: the profile that was meant may say it.
        values = {name: value if name in merged.content else INVALID for name, value in values.items()}
    for rule in RULES:
        rule(values, findings)
    if lost:
        findings.wrong = [item for item in findings.wrong if not item[2].startswith("nothing")]
    complete = not (findings.wrong or findings.unknown_yet or findings.placeholders)
    return Read(_build(str(name), host, values) if complete else None, merged, findings, values)


def load_seat(name: str, host: str, written: object, presets: Presets | None = None) -> Seat:
    """Return the checked seat.

    Raises:
        ProblemsError: with every problem of the seat. Files are not known here: ``where`` is the variable's path.
    """
    read = read_seat(name, host, written, presets)
    if read.seat is None:
        for path in (*read.findings.unknown_yet, *read.findings.placeholders):
            read.findings.add(path, "a value", show(_at(read.merged.content, path)))
        raise ProblemsError(seat_problems(name, host, read, where=lambda path: ".".join(path[:2])))
    return read.seat


def _at(content: Any, path: Path) -> object:  # noqa: ANN401 - walks through mappings and lists alike
    for part in path:
        content = content[int(part)] if isinstance(content, list) else content[part]
    return content


def seat_problems(name: str, host: str, read: Read, where: Callable[[Path], str]) -> Iterable[Problem]:
    """Yield the problems of a read seat; ``where`` turns a path in the variables into ``file:line``."""
    subject = f"seat {name} on {host}"
    for path, expected, seen in read.findings.wrong:
        yield Problem(where(read.merged.source(path)), subject, ".".join(path), expected, seen)


def _evidence(values: Mapping[str, Any] | None) -> Evidence | None:
    return None if values is None else Evidence(values["state"], values["note"], values["reference"])


def _build(name: str, host: str, values: Mapping[str, Any]) -> Seat:
    """Return the dataclass from values that passed every check."""
    special = {
        "tensor_parallel_size", "nodes", "kv_cache_why", "speculative", "speculative_why", "engram", "aliases", "probe"
    }  # fmt: skip
    spec, engram = values["speculative"], values["engram"]
    nodes = None if values["nodes"] is None else _nodes(values["nodes"])
    return Seat(
        name=name,
        host=host,
        tensor_parallel_size=values["tensor_parallel_size"] or _ranks(values["gpus"], len(nodes.hosts) if nodes else 1),
        nodes=nodes,
        kv_cache_why=_evidence(values["kv_cache_why"]),
        speculative=None if spec is None else Speculative(**spec),
        speculative_why=_evidence(values["speculative_why"]),
        engram_cpu_offload=None if engram is None else engram["cpu_offload"],
        aliases=tuple(_alias(alias, content) for alias, content in sorted(values["aliases"].items())),
        probe=Probe(**values["probe"]),
        **{key: value for key, value in values.items() if key not in special},
    )


def _nodes(values: Mapping[str, Any]) -> Nodes:
    return Nodes(values["port"], tuple(Node(**node) for node in values["hosts"]))


def _alias(name: str, values: Mapping[str, Any]) -> Alias:
    """Return one alias; sampling and limits keep only what was written."""
    given = {key: {k: v for k, v in values[key].items() if v is not None} for key in ("sampling", "limits")}
    return Alias(
        name,
        values["keys"],
        given["sampling"],
        values["chat_template_kwargs"],
        given["limits"],
        values["fallback"],
        values["access_groups"],
        values["adopt"],
    )
