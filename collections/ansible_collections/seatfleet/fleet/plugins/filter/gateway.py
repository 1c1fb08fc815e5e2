# Copyright: seatfleet developers
# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core import gateway_state, gateway_versions


def gateway_aliases(
    seats: Mapping[str, Mapping[str, Any]],
    address: str,
    api_keys: Mapping[str, str],
    served: Mapping[str, list[str]] | None = None,
) -> list[dict[str, Any]]:
    """Return the aliases of a host's seats as litellm_aliases takes them; they hold the seats' API keys."""
    try:
        return gateway_state.alias_entries(seats, address, api_keys, served or {})
    except (KeyError, AttributeError, TypeError) as error:
        raise AnsibleFilterError(f"gateway_aliases: not a mapping of checked seats: {error!r}") from error


def gateway_grants(seats: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return who may call the aliases of a host's seats, as litellm_keys and litellm_proof take it."""
    try:
        return gateway_state.grant_entries(seats)
    except (KeyError, AttributeError, TypeError) as error:
        raise AnsibleFilterError(f"gateway_grants: not a mapping of checked seats: {error!r}") from error


class FilterModule:
    """Filters about the gateway."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "gateway_aliases": gateway_aliases,
            "gateway_grants": gateway_grants,
            "gateway_version_problem": gateway_versions.version_problem,
        }
