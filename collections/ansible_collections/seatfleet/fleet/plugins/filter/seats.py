"""Filters that turn the seats of a host into what its modules take."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.problems import ProblemsError
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.render_host import (
    HostInput,
    render_host,
    seat_api_keys,
)
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.schema import Presets


def generations(seats: dict[str, Any], presets: dict[str, Any] | None = None, **given: Any) -> list[dict[str, Any]]:
    try:
        rendered = render_host(HostInput(seats=seats, presets=Presets(**(presets or {})), **given))
    except ProblemsError as error:
        raise AnsibleFilterError(str(error)) from error
    return [generation.as_dict() for generation in rendered]


class FilterModule:
    """What Ansible asks for."""

    def filters(self) -> dict[str, Any]:
        return {"seat_generations": generations, "seat_api_keys": seat_api_keys}
