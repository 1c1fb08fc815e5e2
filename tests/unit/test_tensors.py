"""Tensors of checkpoints: needed ones that are missing, unlisted, of another type, or read as what they are not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from seatfleet.core.model.tensors import INDEX, Checkpoint, Need, Tensor, check, is_ignored, needs_of, read_checkpoint

MTP = [f"mtp.layers.0.mlp.experts.{number}.down_proj" for number in range(3)]


def write(file: Path, tensors: Mapping[str, tuple[str, list[int]]]) -> None:
    """Write a safetensors file of zeros, two bytes an element."""
    header, offset = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = 2
        for length in shape:
            size *= length
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(offset))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Two shards and an index, with a draft head of three matrices and a norm."""
    first = {"model.layers.0.mlp.up_proj.weight": ("BF16", [2, 2])}
    second = {f"{layer}.weight": ("BF16", [2, 2]) for layer in MTP} | {"mtp.norm.weight": ("BF16", [2])}
    write(tmp_path / "a.safetensors", first)
    write(tmp_path / "b.safetensors", second)
    index = dict.fromkeys(first, "a.safetensors") | dict.fromkeys(second, "b.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": index}))
    return tmp_path


def problems(directory: Path, *needs: Need) -> list[str]:
    checkpoint, found = read_checkpoint(directory)
    return [str(problem).replace(f"{directory}/", "").replace(f"{directory}: ", "") for problem in
            [*found, *check(checkpoint, needs, str(directory))]]  # fmt: skip


def edit_index(directory: Path, **changes: str | None) -> None:
    index = json.loads((directory / INDEX).read_text())
    for name, file in changes.items():
        if file is None:
            del index["weight_map"][name]
        else:
            index["weight_map"][name] = file
    (directory / INDEX).write_text(json.dumps(index))


def test_all_there(directory: Path) -> None:
    assert problems(directory, Need("mtp.", 4, ("BF16",)), Need("model.")) == []


def test_needed_tensors_that_are_not_there(directory: Path) -> None:
    assert problems(directory, Need("mtp.", 31)) == ["checkpoint: mtp.*: expected 31 tensors, seen 4"]
    assert problems(directory, Need("eagle.")) == ["checkpoint: eagle.*: expected at least one tensor, seen 0"]
    assert problems(directory, Need("mtp.", 4, ("F8_E4M3",))) == [
        "checkpoint: mtp.*: expected dtype F8_E4M3, seen BF16"
    ]


def test_tensors_in_the_files_and_not_in_the_index(directory: Path) -> None:
    """The published INT4 checkpoints of a 122B model: the head is there and nobody loads it."""
    edit_index(directory, **dict.fromkeys([*(f"{layer}.weight" for layer in MTP), "mtp.norm.weight"]))
    assert problems(directory, Need("mtp.", 4)) == [
        f"checkpoint: mtp.*: expected all 4 tensors in {INDEX}, seen 4 that are in the files only, {MTP[0]}.weight the "
        "first: vLLM loads by the index"
    ]


def test_an_index_that_is_not_true(directory: Path) -> None:
    edit_index(directory, **{"mtp.norm.weight": "a.safetensors", "mtp.gone.weight": "b.safetensors"})
    assert sorted(problems(directory)) == [
        f"checkpoint: mtp.gone.weight: expected in b.safetensors, as {INDEX} says, seen in no file",
        f"checkpoint: mtp.norm.weight: expected in a.safetensors, as {INDEX} says, seen in b.safetensors",
    ]
    (directory / "b.safetensors").unlink()
    assert problems(directory)[0] == (
        f"checkpoint: b.safetensors: expected the 4 tensors that {INDEX} places there, seen no such file"
    )


def test_files_that_are_none(directory: Path) -> None:
    whole = (directory / "b.safetensors").read_bytes()
    (directory / "b.safetensors").write_bytes(whole[:-3])
    assert (
        f"expected a safetensors header, seen a file of {len(whole)} bytes, seen {len(whole) - 3}"
        in problems(directory)[0]
    )
    (directory / "b.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert "b.safetensors: checkpoint: header: expected a safetensors header" in problems(directory)[0]
    (directory / INDEX).write_text("{")
    assert any("expected JSON" in problem for problem in problems(directory))


QUANTIZED = {"weight": ("F8_E4M3", [2, 2]), "weight_scale": ("F32", [2, 1])}


@pytest.mark.parametrize(
    ("quantized", "quantization", "sentence"),
    [
        # a plain head that the list names, in each quantizer's form
        (False, {"quant_method": "compressed-tensors", "ignore": ["lm_head", "re:mtp.*"]}, None),
        (False, {"quant_method": "modelopt", "exclude_modules": ["lm_head", "mtp*"]}, None),
        (False, {"quant_method": "fp8", "modules_to_not_convert": ["lm_head", "mtp"]}, None),
        (False, {"quant_method": "fp8", "ignored_layers": MTP}, None),
        (False, None, None),
        # a plain head that nobody names: vLLM would look for scales
        (
            False,
            {"quant_method": "compressed-tensors", "ignore": ["lm_head"]},
            f"checkpoint: mtp.* quantization: expected plain layers among those left alone (lm_head), seen 3 of 3 that "
            f"are not, {MTP[0]} the first: they would be read as quantized",
        ),
        (
            False,
            {"quant_method": "fp8", "modules_to_not_convert": MTP[1:]},
            f"checkpoint: mtp.* quantization: expected plain layers among those left alone ({MTP[1]}, {MTP[2]}), seen "
            f"1 of 3 that are not, {MTP[0]} the first: they would be read as quantized",
        ),
        # a quantized head, and the list catches it by accident
        (True, {"quant_method": "fp8", "ignored_layers": ["lm_head"]}, None),
        (
            True,
            {"quant_method": "compressed-tensors", "ignore": ["re:.*mtp.*", "lm_head"]},
            f"checkpoint: mtp.* quantization: expected quantized layers outside of the list of 2 layers left alone, "
            f"seen 3 of 3 in it, {MTP[0]} the first: they would be read as plain",
        ),
    ],
)
def test_what_the_configuration_says_of_the_head(
    quantized: bool, quantization: Mapping[str, Any] | None, sentence: str | None
) -> None:
    parts = QUANTIZED if quantized else {"weight": ("BF16", [2, 2])}
    tensors = {
        f"{layer}.{part}": Tensor(dtype, tuple(shape), "a") for layer in MTP for part, (dtype, shape) in parts.items()
    }
    tensors["mtp.norm.weight"] = Tensor("BF16", (2,), "a")
    tensors["mtp.layers.0.mlp.gate.weight"] = Tensor("BF16", (2, 2), "a")  # a router, which nobody quantizes
    config = {"text_config": {"quantization_config": quantization}} if quantization else {}
    found = check(Checkpoint(tensors, dict.fromkeys(tensors, "a"), config), [Need("mtp.")], "")
    assert [str(problem) for problem in found] == ([sentence] if sentence else [])


@pytest.mark.parametrize("header", ["[]", '{"a": []}', '{"a": {"dtype": "F32", "shape": [], "data_offsets": []}}'])
def test_a_header_of_another_form_is_a_problem(directory: Path, header: str) -> None:
    (directory / "c.safetensors").write_bytes(len(header).to_bytes(8, "little") + header.encode())
    assert any(text.startswith("c.safetensors: checkpoint: header") for text in problems(directory))


def test_an_index_of_another_form_is_a_problem(directory: Path) -> None:
    (directory / INDEX).write_text(json.dumps({"weight_map": {"a": ["a.safetensors"]}}))
    assert any("weight_map: expected tensor names to files" in text for text in problems(directory))


def test_ignore_lists() -> None:
    assert not is_ignored("a.b", ("re:*",)), "a pattern that is none catches nothing"
    assert is_ignored("model.layers.1.mlp", ["model.layers.1"])
    assert not is_ignored("model.layers.10.mlp", ["model.layers.1"])
    assert is_ignored("mtp.fc", ["*mtp*"])
    assert not is_ignored("model.mtp.fc", ["re:mtp"])


def test_what_a_catalogue_entry_needs() -> None:
    assert needs_of({"facts": {"mtp_layers": 1}}) == [Need("mtp.")]
    assert needs_of({"facts": {"mtp_layers": 1, "tensors": {"mtp.": {"count": 31, "dtypes": ["BF16"]}}}}) == [
        Need("mtp.", 31, ("BF16",))
    ]
    assert needs_of({"facts": {}}) == needs_of({}) == []
