"""The lab's models: the builder makes what the committed manifests list, and the oracle is one."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from array import array
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from seatfleet.core.model import models

PROJECT = Path(__file__).resolve().parents[2]
BUILDER = PROJECT / "lab/models/build.py"
NAMES = ("tiny-oracle", "tiny-oracle-badmtp", "tiny-qwen3", "tiny-qwen3-other")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("models")
    subprocess.run([sys.executable, str(BUILDER), str(out)], check=True, capture_output=True)
    return out


def committed(name: str) -> models.Manifest:
    path = PROJECT / f"files/models/{name}.json"
    return models.load_manifest(json.loads(path.read_text()), str(path))


@pytest.mark.parametrize("name", NAMES)
def test_a_built_model_is_the_committed_one(built: Path, name: str) -> None:
    assert models.measure(built / name, name) == committed(name)


def test_a_manifest_of_every_built_model_is_committed(built: Path) -> None:
    assert sorted(path.name for path in built.iterdir()) == sorted(NAMES)
    assert set(NAMES) <= {path.stem for path in (PROJECT / "files/models").glob("*.json")}


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, str(BUILDER), str(tmp_path), "nope"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert "unknown: nope; there are tiny-oracle" in result.stderr


class Weights:
    """A safetensors file, read as the format describes it."""

    def __init__(self, path: Path) -> None:
        self._data = path.read_bytes()
        (length,) = struct.unpack("<Q", self._data[:8])
        self.header: dict[str, Any] = json.loads(self._data[8 : 8 + length])
        self._start = 8 + length

    def rows(self, name: str) -> list[list[float]]:
        entry = self.header[name]
        first, last = (self._start + offset for offset in entry["data_offsets"])
        halves = array("H", self._data[first:last])
        values = array("f", array("I", (half << 16 for half in halves)).tobytes())
        width = entry["shape"][-1]
        return [list(values[at : at + width]) for at in range(0, len(values), width)]


def test_tensors_lie_side_by_side_and_aligned(built: Path) -> None:
    weights = Weights(built / "tiny-oracle/model.safetensors")
    assert weights._start % 8 == 0
    spans = sorted(entry["data_offsets"] for name, entry in weights.header.items() if name != "__metadata__")
    assert all(left[1] == right[0] for left, right in pairwise(spans))
    assert weights._start + spans[-1][1] == (built / "tiny-oracle/model.safetensors").stat().st_size


def dot(left: list[float], right: list[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def test_the_oracle_says_the_words_in_turn(built: Path) -> None:
    weights = Weights(built / "tiny-oracle/model.safetensors")
    ids = json.loads((built / "tiny-oracle/tokenizer.json").read_text())["model"]["vocab"]
    texts = {number: token for token, number in ids.items()}
    embedding, head = weights.rows("model.embed_tokens.weight"), weights.rows("lm_head.weight")
    token, said = ids["Ċ"], []
    for _ in range(29):
        token = max(range(512), key=lambda candidate: dot(embedding[token], head[candidate]))
        said.append(texts[token])
    assert said[:4] == ["Ġthe", "Ġquick", "Ġbrown", "Ġfox"]
    assert said[-2:] == ["Ġunit", "Ċ"]


def test_nothing_but_the_embedding_reaches_the_oracles_head(built: Path) -> None:
    weights = Weights(built / "tiny-oracle/model.safetensors")
    outputs = [
        name for name in weights.header if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight"))
    ]
    assert len(outputs) == 5 + 5 * 5
    assert all(value == 0 for name in outputs for row in weights.rows(name) for value in row)


def test_the_twin_differs_in_the_sign_of_its_mtp_head_only(built: Path) -> None:
    good, bad = (Weights(built / name / "model.safetensors") for name in ("tiny-oracle", "tiny-oracle-badmtp"))
    assert good.header == bad.header
    different = [name for name in good.header if name != "__metadata__" and good.rows(name) != bad.rows(name)]
    assert different == ["mtp.fc.weight"]
    assert [[-value for value in row] for row in good.rows("mtp.fc.weight")] == bad.rows("mtp.fc.weight")


def test_every_id_has_a_text_and_every_word_is_one_token(built: Path) -> None:
    tokenizer = json.loads((built / "tiny-qwen3/tokenizer.json").read_text())
    vocabulary, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
    assert sorted(vocabulary.values()) == list(range(512))
    assert [token["content"] for token in tokenizer["added_tokens"]] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    ranks = {tuple(merge): rank for rank, merge in enumerate(merges)}
    for word in ("the", "headroom", "ansible", "systemd"):
        for text in (word, f"Ġ{word}"):
            pieces = list(text)
            while pairs := [pair for pair in pairwise(pieces) if pair in ranks]:
                best = min(pairs, key=ranks.__getitem__)
                at = next(i for i in range(len(pieces) - 1) if (pieces[i], pieces[i + 1]) == best)
                pieces[at : at + 2] = ["".join(best)]
            assert pieces == [text]
