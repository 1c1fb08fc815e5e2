"""Filters that turn what serves on a port into a seat, and compare the two."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import yaml
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.seat import adoption


def adopted_seat(
    running: Mapping[str, Any], releases: Mapping[str, Any], models: Mapping[str, Any], gpus: int
) -> dict[str, Any]:
    """Return ``fields`` and ``notes`` of the seat that equals what the module seat_adopt saw."""
    entry = adoption.as_seat(_running(running), releases, models, gpus)
    return {"fields": dict(entry.fields), "notes": list(entry.notes)}


def adoption_differences(running: Mapping[str, Any], generation: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return what a rendered seat has otherwise (``differs``) and what the fleet adds to it (``added``)."""
    manifest = json.loads(generation["files"]["manifest.json"])
    differs, added = adoption.compare(_running(running), manifest)
    return {"differs": differs, "added": added}


def _running(values: Mapping[str, Any]) -> adoption.Running:
    # vLLM takes underscores in its file too.
    config = yaml.safe_load(values["config_text"]) if values["config_text"] else {}
    return adoption.Running(
        service=values["service"],
        argv=tuple(values["argv"]),
        environ=values["environ"],
        version=values["version"],
        compose_file=values["compose_file"],
        config={str(key).replace("_", "-"): value for key, value in config.items()},
    )


class FilterModule:
    """What Ansible asks for."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"adopted_seat": adopted_seat, "adoption_differences": adoption_differences}
