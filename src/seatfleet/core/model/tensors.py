"""The tensors of a checkpoint: whether those a seat needs are there, in a form that vLLM will read as they are.

Three ways to get a draft head that serves and accepts nothing: its tensors are in no file, they are in a file but not
in the index that vLLM loads by, or the quantization configuration says of them what is not so. Only headers are read:
milliseconds for a checkpoint of 130 GB.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ..problems import Problem

INDEX = "model.safetensors.index.json"
# A header is JSON of some hundred bytes per tensor; more than this is no header (safetensors' own limit).
_LARGEST_HEADER = 100_000_000
# A parameter beside or instead of `weight` that only a quantized layer has.
_QUANTIZED = re.compile(
    r"\.(weight_(scale|scale_inv|scale_2|packed|shape|zero_point|global_scale)|input_scale|input_global_scale|qweight"
    r"|qzeros|scales|g_idx)$"
)
_PLAIN_TYPES = frozenset({"BF16", "F16", "F32", "F64"})
# Under which names quantizers list the layers that they left alone.
_IGNORE_KEYS = ("ignore", "modules_to_not_convert", "exclude_modules", "ignored_layers")


@dataclass(frozen=True)
class Tensor:
    """One tensor of a checkpoint: safetensors' name of its type, its shape, and the file that holds it."""

    dtype: str
    shape: tuple[int, ...]
    file: str


@dataclass(frozen=True)
class Need:
    """Tensors that must be there: their prefix, how many (None: at least one), and of which types (empty: any)."""

    prefix: str
    count: int | None = None
    dtypes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checkpoint:
    """What a directory holds: tensors by name as its files have them, and file by name as its index has them."""

    tensors: Mapping[str, Tensor]
    index: Mapping[str, str]
    config: Mapping[str, Any] = field(default_factory=dict)


def needs_of(model: Mapping[str, Any]) -> list[Need]:
    """Return what a catalogue entry says of its tensors; a model with MTP layers needs some under ``mtp.`` at least."""
    facts = model.get("facts") or {}
    written = facts.get("tensors") or {}
    needs = [
        Need(prefix, entry.get("count"), tuple(entry.get("dtypes") or ())) for prefix, entry in sorted(written.items())
    ]
    if facts.get("mtp_layers") and not any(need.prefix.startswith("mtp") for need in needs):
        needs.append(Need("mtp."))
    return needs


def read_checkpoint(directory: Path) -> tuple[Checkpoint, list[Problem]]:
    """Read index, configuration and the headers of all safetensors files; what cannot be read is a problem."""
    problems: list[Problem] = []
    tensors: dict[str, Tensor] = {}
    for file in sorted(directory.glob("*.safetensors")):
        try:
            tensors.update((name, tensor) for name, tensor in _header(file))
        except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
            problems.append(Problem(str(file), "checkpoint", "header", "a safetensors header", str(error)))
    index, config = _json(directory / INDEX, problems), _json(directory / "config.json", problems)
    listed = index.get("weight_map") if index else {name: tensor.file for name, tensor in tensors.items()}
    if not isinstance(listed, Mapping) or not all(isinstance(file, str) for file in listed.values()):
        problems.append(
            Problem(str(directory / INDEX), "checkpoint", "weight_map", "tensor names to files", repr(listed))
        )
        listed = {}
    return Checkpoint(tensors, listed, config), problems


def check(checkpoint: Checkpoint, needs: Sequence[Need], where: str) -> list[Problem]:
    """Return what is wrong with the tensors of a checkpoint, and with those that are needed."""
    problems = list(_index_problems(checkpoint, where))
    for need in needs:
        problems.extend(_need_problems(checkpoint, need, where))
    return problems


def _json(path: Path, problems: list[Problem]) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        problems.append(Problem(str(path), "checkpoint", "", "JSON", str(error)))
        return {}
    return content if isinstance(content, dict) else {}


def _header(file: Path) -> Iterator[tuple[str, Tensor]]:
    with file.open("rb") as stream:
        (size,) = struct.unpack("<Q", stream.read(8))
        if size > _LARGEST_HEADER:
            raise ValueError(f"its length would be {size} bytes")
        header = json.loads(stream.read(size))
    if not isinstance(header, dict):
        raise ValueError("it is no mapping")
    end = 0
    for name, entry in header.items():
        if name != "__metadata__":
            _, stop = entry["data_offsets"]
            end = max(end, stop)
            yield name, Tensor(entry["dtype"], tuple(entry["shape"]), file.name)
    if (found := file.stat().st_size) != 8 + size + end:
        raise ValueError(f"a file of {8 + size + end} bytes, seen {found}")


def _index_problems(checkpoint: Checkpoint, where: str) -> Iterator[Problem]:
    missing = sorted(set(checkpoint.index.values()) - {one.file for one in checkpoint.tensors.values()})
    for file in missing:
        count = sum(1 for value in checkpoint.index.values() if value == file)
        yield Problem(where, "checkpoint", file, f"the {count} tensors that {INDEX} places there", "no such file")
    for name, file in checkpoint.index.items():
        tensor = checkpoint.tensors.get(name)
        if file not in missing and (tensor is None or tensor.file != file):
            seen = "in no file" if tensor is None else f"in {tensor.file}"
            yield Problem(where, "checkpoint", name, f"in {file}, as {INDEX} says", seen)


def _need_problems(checkpoint: Checkpoint, need: Need, where: str) -> Iterator[Problem]:
    listed = sorted(name for name in checkpoint.index if name.startswith(need.prefix))
    there = sorted(name for name in checkpoint.tensors if name.startswith(need.prefix))
    subject = f"{need.prefix}*"
    unlisted = sorted(set(there) - set(listed))
    if unlisted:
        seen = f"{len(unlisted)} that are in the files only, {unlisted[0]} the first: vLLM loads by the index"
        yield Problem(where, "checkpoint", subject, f"all {len(there)} tensors in {INDEX}", seen)
    elif len(listed) != (len(listed) if need.count is None else need.count) or not listed:
        expected = "at least one tensor" if need.count is None else f"{need.count} tensors"
        yield Problem(where, "checkpoint", subject, expected, f"{len(listed)}")
    dtypes = sorted({checkpoint.tensors[name].dtype for name in there})
    if need.dtypes and (others := [dtype for dtype in dtypes if dtype not in need.dtypes]):
        yield Problem(where, "checkpoint", subject, f"dtype {' or '.join(need.dtypes)}", ", ".join(others))
    yield from _quantization_problems(checkpoint, need, where)


def _quantization_problems(checkpoint: Checkpoint, need: Need, where: str) -> Iterator[Problem]:
    """Compare what the files hold with what the configuration says of it, layer by layer."""
    quantization = quantization_config(checkpoint.config)
    if quantization is None:
        return
    patterns = ignore_list(quantization)
    quantized, plain = _layers(checkpoint.tensors, need.prefix)
    caught = sorted(layer for layer in quantized if is_ignored(layer, patterns))
    if caught:
        expected = f"quantized layers outside of the list of {len(patterns)} layers left alone"
        seen = f"{len(caught)} of {len(quantized)} in it, {caught[0]} the first: they would be read as plain"
        yield Problem(where, "checkpoint", f"{need.prefix}* quantization", expected, seen)
    exposed = sorted(layer for layer in plain if not is_ignored(layer, patterns))
    if exposed:
        expected = (
            f"plain layers among those left alone ({', '.join(patterns[:3]) or 'none'}{', ...' * (len(patterns) > 3)})"
        )
        seen = f"{len(exposed)} of {len(plain)} that are not, {exposed[0]} the first: they would be read as quantized"
        yield Problem(where, "checkpoint", f"{need.prefix}* quantization", expected, seen)


def _layers(tensors: Mapping[str, Tensor], prefix: str) -> tuple[set[str], set[str]]:
    """Return the quantized and the plain linear layers under a prefix.

    A linear layer has a matrix; norms and biases are vectors, embeddings and routers are told by their names.
    """
    quantized: set[str] = set()
    plain: set[str] = set()
    for name, tensor in tensors.items():
        if not name.startswith(prefix):
            continue
        layer = name.rpartition(".")[0]
        if _QUANTIZED.search(name):
            quantized.add(layer)
        elif name.endswith(".weight") and len(tensor.shape) >= 2 and not layer.endswith(("embed_tokens", ".gate")):
            (plain if tensor.dtype in _PLAIN_TYPES else quantized).add(layer)
    return quantized, plain - quantized


def quantization_config(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return a checkpoint's quantization configuration, which multimodal ones keep with the text model's."""
    for holder in (config, config.get("text_config")):
        if isinstance(holder, Mapping) and isinstance(found := holder.get("quantization_config"), Mapping):
            return found
    return None


def ignore_list(quantization: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the patterns of layers that the quantizer left alone."""
    found: list[str] = []
    for holder in (quantization, quantization.get("quantization")):
        if isinstance(holder, Mapping):
            for key in _IGNORE_KEYS:
                value = holder.get(key)
                found += [str(one) for one in value] if isinstance(value, list) else []
    return tuple(dict.fromkeys(found))


def is_ignored(layer: str, patterns: Iterable[str]) -> bool:
    """Say whether a layer is in an ignore list, in the forms that quantizers write.

    ``re:`` and a regular expression from the name's beginning (compressed-tensors), a shell pattern (ModelOpt), a whole
    name, or a part of a name between dots (FP8, AWQ, AutoRound).
    """
    for pattern in patterns:
        if pattern.startswith("re:"):
            with suppress(re.error):  # vLLM says so at its start
                if re.match(pattern[3:], layer):
                    return True
        elif "*" in pattern:
            if fnmatchcase(layer, pattern):
                return True
        elif f".{pattern}." in f".{layer}.":
            return True
    return False
