"""Sampling defaults of an alias beside what the checkpoint itself declares (``generation_config.json``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Names of generation_config.json that mean the same at the gateway; the others there are no sampling.
NAMES = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


def declared_sampling(generation_config: Mapping[str, Any]) -> dict[str, float | int]:
    """Return what a checkpoint declares. ``do_sample`` is not looked at: vLLM does not either."""
    return {name: generation_config[name] for name in NAMES if generation_config.get(name) is not None}


def sampling_notes(alias: str, sampling: Mapping[str, Any], checkpoint: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each sampling parameter in which an alias and its checkpoint differ.

    No parameter is filled in: what neither declares stays unset, and the engine's own default holds.
    """
    notes = []
    for name in NAMES:
        mine, theirs = sampling.get(name), checkpoint.get(name)
        if mine is None and theirs is not None:
            notes.append(
                f"alias {alias} leaves {name} unset, the checkpoint declares {theirs}: vLLM uses the checkpoint's"
            )
        elif mine is not None and theirs is None:
            notes.append(f"alias {alias} sets {name} to {mine}, for which the checkpoint declares no value")
        elif mine != theirs:
            notes.append(f"alias {alias} sets {name} to {mine}, the checkpoint declares {theirs}")
    return notes
