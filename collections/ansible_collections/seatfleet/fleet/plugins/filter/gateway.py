# Copyright: seatfleet developers
# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.gateway import (
    sampling as gateway_sampling,
)
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.gateway import (
    state as gateway_state,
)
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.gateway import (
    versions as gateway_versions,
)
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.inventory.schema import Presets, load_seat
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.inventory.seat import Seat
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.problems import ProblemsError


def _load(seats: Mapping[str, Any], host: str, presets: Mapping[str, Any] | None) -> list[Seat]:
    try:
        return [load_seat(name, host, written, Presets(**(presets or {}))) for name, written in seats.items()]
    except ProblemsError as error:
        raise AnsibleFilterError(str(error)) from error


def gateway_aliases(
    seats: Mapping[str, Any],
    host: str,
    address: str,
    api_keys: Mapping[str, str],
    served: Mapping[str, list[str]] | None = None,
    ports: Mapping[str, int] | None = None,
    presets: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Return the aliases of a host's seats as litellm_aliases takes them; they hold the seats' API keys."""
    return gateway_state.alias_entries(_load(seats, host, presets), address, api_keys, served or {}, ports or {})


def gateway_grants(
    seats: Mapping[str, Any], host: str, presets: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return who may call the aliases of a host's seats, as litellm_keys and litellm_proof take it."""
    return gateway_state.grant_entries(_load(seats, host, presets))


def gateway_seats(
    seats: Mapping[str, Any], host: str, api_keys: Mapping[str, str], presets: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return the seats of a host as seat_names takes them; they hold the seats' API keys."""
    return [
        {"name": seat.name, "port": seat.port, "api_key": api_keys[seat.name]}
        for seat in _load(seats, host, presets)
        if seat.state == "present"
    ]


def gateway_name_notes(
    seats: Mapping[str, Any],
    host: str,
    served: Mapping[str, list[str]],
    presets: Mapping[str, Any] | None = None,
) -> list[str]:
    """Return a sentence for each alias whose running seat does not know its name yet."""
    return gateway_state.name_notes(_load(seats, host, presets), served)


def gateway_sampling_notes(
    seats: Mapping[str, Any],
    host: str,
    checkpoints: Mapping[str, Mapping[str, Any]],
    presets: Mapping[str, Any] | None = None,
) -> list[str]:
    """Return a sentence for each sampling parameter in which an alias and its seat's checkpoint differ."""
    return [
        note
        for seat in _load(seats, host, presets)
        if seat.name in checkpoints
        for alias in seat.aliases
        for note in gateway_sampling.sampling_notes(alias.name, alias.sampling, checkpoints[seat.name])
    ]


class FilterModule:
    """Filters about the gateway."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "gateway_aliases": gateway_aliases,
            "gateway_grants": gateway_grants,
            "gateway_name_notes": gateway_name_notes,
            "gateway_sampling_notes": gateway_sampling_notes,
            "gateway_seats": gateway_seats,
            "gateway_version_problem": gateway_versions.version_problem,
        }
