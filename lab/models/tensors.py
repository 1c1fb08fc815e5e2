"""Bfloat16 tensors and the safetensors format with the standard library: the same bytes on every machine.

Values come from the Mersenne twister, whose floats Python defines to the bit, and from operations that IEEE 754 rounds
correctly (+, *, sqrt, ``math.fsum``): no result depends on a maths library or on the order of a vectorised sum.
"""

from __future__ import annotations

import json
import math
import random
import sys
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Tensor:
    """Bfloat16 values, row by row, little-endian."""

    shape: tuple[int, ...]
    data: bytes


def tensor(shape: tuple[int, ...], values: Iterable[float]) -> Tensor:
    """Round values to bfloat16, the nearest and on a tie the even one."""
    words = array("I", array("f", values).tobytes())
    if words.itemsize != 4:
        raise RuntimeError(f"expected 4-byte unsigned integers, seen {words.itemsize}")
    halves = array("H", ((word + 0x7FFF + ((word >> 16) & 1)) >> 16 for word in words))
    if len(halves) != math.prod(shape):
        raise ValueError(f"expected {math.prod(shape)} values for {shape}, seen {len(halves)}")
    if sys.byteorder == "big":
        halves.byteswap()
    return Tensor(shape, halves.tobytes())


def filled(shape: tuple[int, ...], value: float) -> Tensor:
    """Return a tensor of one value."""
    return tensor(shape, [value] * math.prod(shape))


def noise(shape: tuple[int, ...], source: random.Random, deviation: float = 0.2) -> Tensor:
    """Return uniform noise around 0 with the given standard deviation."""
    reach = deviation * math.sqrt(3)
    return tensor(shape, (reach * (2 * source.random() - 1) for _ in range(math.prod(shape))))


def unit_rows(rows: int, columns: int, length: float, source: random.Random) -> list[list[float]]:
    """Return random rows of the given Euclidean length."""
    result = []
    for _ in range(rows):
        row = [2 * source.random() - 1 for _ in range(columns)]
        scale = length / math.sqrt(math.fsum(value * value for value in row))
        result.append([value * scale for value in row])
    return result


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write one safetensors file, tensors in the order of their names."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, value in sorted(tensors.items()):
        end = offset + len(value.data)
        header[name] = {"dtype": "BF16", "shape": value.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format wants the data aligned to 8 bytes
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for _, value in sorted(tensors.items()):
            stream.write(value.data)
