"""Sampling of an alias beside that of its checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from seatfleet.core.gateway.sampling import declared_sampling, sampling_notes

CHECKPOINT = {"temperature": 1.0, "top_p": 0.95, "top_k": 20}


def test_only_sampling_is_read_from_a_generation_config() -> None:
    config = {**CHECKPOINT, "do_sample": True, "eos_token_id": 2, "min_p": None, "transformers_version": "5"}
    assert declared_sampling(config) == CHECKPOINT
    assert declared_sampling({"eos_token_id": 2}) == {}


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        (CHECKPOINT, []),
        ({"temperature": 1, "top_p": 0.95, "top_k": 20}, []),
        ({"temperature": 0.7, "top_p": 0.95, "top_k": 20}, ["sets temperature to 0.7, the checkpoint declares 1.0"]),
        ({"temperature": 1.0, "top_p": 0.95}, ["leaves top_k unset, the checkpoint declares 20"]),
        (
            {**CHECKPOINT, "presence_penalty": 1.5},
            ["sets presence_penalty to 1.5, for which the checkpoint declares no"],
        ),
        ({}, ["temperature", "top_p", "top_k"]),
    ],
)
def test_each_difference_is_a_sentence(sampling: dict[str, Any], words: list[str]) -> None:
    notes = sampling_notes("gen-large", sampling, CHECKPOINT)
    assert len(notes) == len(words)
    assert all(word in note for word, note in zip(words, notes, strict=True))


def test_a_checkpoint_that_declares_nothing_is_no_difference_to_an_alias_that_sets_nothing() -> None:
    assert sampling_notes("gen-large", {}, {}) == []
