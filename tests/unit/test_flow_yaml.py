"""What the emitter writes must be what PyYAML, vLLM's reader, reads back."""

from __future__ import annotations

import math

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from seatfleet.core.seat.flow_yaml import dump_mapping

KEYS = st.from_regex(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", fullmatch=True)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=100), inner), max_leaves=12
)


@settings(max_examples=60)
@given(st.dictionaries(KEYS, VALUES, max_size=8))
def test_read_back(mapping: dict[str, object]) -> None:
    text = dump_mapping(mapping)
    assert (yaml.safe_load(text) or {}) == mapping
    assert len(text.splitlines()) == len(mapping)
    assert text.isascii()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        # PyYAML reads 1e-05 as text
        (1e-05, "1.0e-05"),
        (-2.5e300, "-2.5e+300"),
        (0.92, "0.92"),
        ("1e5", '"1e5"'),
        ("no", '"no"'),
        ("\U0001f600\x7f\x85", '"\\U0001f600\\x7f\\x85"'),
        ({"method": "mtp", "k": [1, True, None]}, '{"method": "mtp", "k": [1, true, null]}'),
    ],
)
def test_form(value: object, text: str) -> None:
    assert dump_mapping({"a": value}) == f"a: {text}\n"


@pytest.mark.parametrize("value", [math.nan, math.inf, {1, 2}, b"x", object()])
def test_refused_values(value: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        dump_mapping({"a": value})


def test_a_key_that_yaml_would_lose_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 1024"):
        dump_mapping({"a": {"x" * 1024: 1}})


@pytest.mark.parametrize("key", ["", "A", "-a", "a b", "a:b", "a\n"])
def test_refused_keys(key: str) -> None:
    with pytest.raises(ValueError, match="expected an option name"):
        dump_mapping({key: 1})
