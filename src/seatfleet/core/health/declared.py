"""Compare the flags a seat declares with what the engine says it runs with.

Needed because vLLM's ``--config`` file drops ``enable-x: false`` without a word (measured on 0.32.0), because an
abbreviated flag may stop matching, and because the engine adjusts values. Two sources: the labels of
``vllm:cache_config_info`` and the log line ``non-default args: {...}`` of the same start.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Flag -> label of ``vllm:cache_config_info``, where the names differ.
_CACHE_LABELS = {"kv_cache_dtype": "cache_dtype"}
#: The label is what the engine made of the flag, legally another value: hybrid models raise the block size.
_ADJUSTED_BY_ENGINE = frozenset({"block_size", "mamba_block_size", "mamba_cache_mode"})
_NON_DEFAULT = re.compile(r"non-default args: (\{.*\})")
_REPR = re.compile(r"<[\w.]+(?:: |\s)?[^<>]*>")


@dataclass(frozen=True)
class Comparison:
    """One declared flag; ``status`` is ok, fail, warn (adjusted by the engine) or not_checked (reported nowhere)."""

    flag: str
    declared: object
    seen: object
    status: str
    source: str


def parse_non_default_args(lines: Sequence[str]) -> dict[str, Any] | None:
    """Return the arguments of the last ``non-default args`` line; None when there is none or it cannot be read."""
    for line in reversed(lines):
        match = _NON_DEFAULT.search(line)
        if match is None:
            continue
        # An enum's repr, <Mode.NONE: 0>, is no Python literal: compare such values as text.
        for text in (match[1], _REPR.sub(lambda value: repr(value[0]), match[1])):
            try:
                found = ast.literal_eval(text)
            except (ValueError, SyntaxError):
                continue
            return dict(found)
    return None


def _canonical(flag: str, value: object) -> tuple[str, object]:
    """Return the engine's name of a flag and its value: ``no-enable-x: true`` is ``enable_x`` false."""
    name = flag.lstrip("-").replace("-", "_")
    if name.startswith("no_") and isinstance(value, bool):
        return name[3:], not value
    return name, value


def _plain(value: object) -> object:
    """Return a value in a form that compares equal whichever side wrote it: text, JSON text or Python."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if not isinstance(value, str):
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    known = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
    if value in known:
        return known[value]
    try:
        return _plain(json.loads(value))
    except ValueError:
        return value


def same(declared: object, seen: object) -> bool:
    """Tell whether a declared value is what the engine shows; one name and a list of one name are the same."""
    left, right = _plain(declared), _plain(seen)
    if isinstance(left, dict) and isinstance(right, dict):  # the engine may add what it resolved
        return all(key in right and same(value, right[key]) for key, value in left.items())
    if isinstance(right, list) and not isinstance(left, list):
        left = [left]
    # 1 == True in Python; a flag set to true is not the number 1
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def compare(
    declared: Mapping[str, Any], cache_config: Mapping[str, str], arguments: Mapping[str, Any] | None
) -> list[Comparison]:
    """Return one comparison per declared flag, in the order of the flags."""
    return [_compare_one(flag, declared[flag], cache_config, arguments or {}) for flag in sorted(declared)]


def _compare_one(flag: str, value: object, cache_config: Mapping[str, str], arguments: Mapping[str, Any]) -> Comparison:
    name, wanted = _canonical(flag, value)
    for source, seen in _sources(name, cache_config, arguments):
        if same(wanted, seen):
            return Comparison(flag, value, seen, "ok", source)
        adjusted = name in _ADJUSTED_BY_ENGINE and source == "vllm:cache_config_info"
        return Comparison(flag, value, seen, "warn" if adjusted else "fail", source)
    return Comparison(flag, value, None, "not_checked", "")


def _sources(name: str, cache_config: Mapping[str, str], arguments: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    label = _CACHE_LABELS.get(name, name)
    if label in cache_config:
        yield "vllm:cache_config_info", cache_config[label]
    if name in arguments:
        yield "non-default args", arguments[name]
