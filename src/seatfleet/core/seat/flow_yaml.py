"""Write a YAML mapping one key a line with flow values: deterministic, and readable by a YAML 1.1 parser.

vLLM reads its ``--config`` file with PyYAML (YAML 1.1), where JSON is *almost* a subset: ``1e-05`` would be text and
a character outside the basic plane would come back as two halves. Both are written in the longer form here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

_KEY = re.compile(r"[a-z][a-z0-9._-]*")
# YAML's limit for a key without a question mark; PyYAML does not find the end of a longer one.
_LONGEST_KEY = 1024
_BARE_EXPONENT = re.compile(r"^(-?[0-9]+)e")


def dump_mapping(mapping: Mapping[str, Any]) -> str:
    """Return the mapping as YAML text, in its own order.

    Raises:
        ValueError: a key is no lower-case option name, or a value is nothing that JSON can say.
    """
    for key in mapping:
        if not _KEY.fullmatch(key):
            raise ValueError(f"expected an option name in lower case, seen {key!r}")
    return "".join(f"{key}: {_flow(value)}\n" for key, value in mapping.items())


def _flow(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_inner_key(str(key))}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    raise ValueError(f"expected text, number, true/false, null, list or mapping, seen {type(value).__name__}")


def _inner_key(key: str) -> str:
    text = _text(key)
    if len(text) > _LONGEST_KEY:
        raise ValueError(f"expected keys of at most {_LONGEST_KEY} characters, seen {len(text)}: {key[:40]}...")
    return text


def _number(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(f"expected a finite number, seen {value!r}")
    return _BARE_EXPONENT.sub(r"\1.0e", repr(value))


def _text(value: str) -> str:
    return '"' + "".join(_character(char) for char in value) + '"'


def _character(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    code = ord(char)
    if 0x20 <= code < 0x7F:
        return char
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
