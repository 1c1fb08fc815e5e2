from __future__ import annotations

DOCUMENTATION = r"""
module: seat_names
short_description: Model names that the running seats of a host answer to, and the sampling of their checkpoints
description:
  - Asks each seat on the loopback address for its model list. A seat that does not answer is left
    out, which is no error.
  - Reads C(generation_config.json) of the model that the seat's current generation names.
options:
  seats:
    description: The seats to ask.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the seat.
        type: str
        required: true
      port:
        description: Its port.
        type: int
        required: true
      api_key:
        description: Its API key.
        type: str
        required: true
  timeout_s:
    description: Limit of one request in seconds.
    type: float
    default: 10.0
attributes:
  check_mode:
    support: full
    description: Only reads.
  diff_mode:
    support: none
    description: Only reads.
author: [seatfleet]
"""

EXAMPLES = r"""
- name: Ask the running seats
  seatfleet.fleet.seat_names:
    seats: "{{ seats | seatfleet.fleet.gateway_seats(inventory_hostname, __api_keys) }}"
"""

RETURN = r"""
names:
  description: Seat to the names, in the order of the seat; the model's own name is the first.
  type: dict
  returned: always
sampling:
  description: Seat to the sampling parameters that its checkpoint declares; seats without such a file are left out.
  type: dict
  returned: always
"""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.gateway.sampling import declared_sampling
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.paths import SeatPaths

SEAT: dict[str, dict[str, Any]] = {
    "name": {"type": "str", "required": True},
    "port": {"type": "int", "required": True},
    "api_key": {"type": "str", "required": True, "no_log": True},
}


def model_names(port: int, key: str, timeout_s: float) -> list[str]:
    """Return the names that the server on a port of this host lists; none when there is no such answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/models", headers={"Authorization": f"Bearer {key}"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s) as response:
            return [str(entry["id"]) for entry in json.load(response)["data"]]
    except (urllib.error.URLError, OSError, ValueError, KeyError, TypeError):
        return []


def checkpoint_sampling(seat: str) -> dict[str, Any] | None:
    """Return what the checkpoint of a seat's current generation declares; None when there is nothing to read."""
    try:
        manifest = json.loads((SeatPaths(seat).current / "manifest.json").read_text(encoding="utf-8"))
        config = Path(manifest["model_path"]) / "generation_config.json"
        return declared_sampling(json.loads(config.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "seats": {"type": "list", "elements": "dict", "required": True, "options": SEAT},
            "timeout_s": {"type": "float", "default": 10.0},
        },
        supports_check_mode=True,
    )
    params = module.params
    found = {seat["name"]: model_names(seat["port"], seat["api_key"], params["timeout_s"]) for seat in params["seats"]}
    declared = {seat["name"]: checkpoint_sampling(seat["name"]) for seat in params["seats"]}
    module.exit_json(
        changed=False,
        names={seat: names for seat, names in found.items() if names},
        sampling={seat: sampling for seat, sampling in declared.items() if sampling is not None},
    )


if __name__ == "__main__":
    main()
