from __future__ import annotations

DOCUMENTATION = r"""
module: seat_names
short_description: Ports and model names of the running seats of a host, and the sampling of their checkpoints
description:
  - Asks each seat on the loopback address for its model list, on the port of its current generation, which is another
    than the declared one after a change of the port was taken back. A seat that does not answer is left out, which is
    no error.
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
        description: Its port, where there is no current generation to ask.
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
ports:
  description: Seat to the port that it answers on; the same seats as in C(names).
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
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.seat.generations import (
    link_target,
    read_manifest,
)

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


def current_manifest(seat: str) -> dict[str, Any]:
    """Return the manifest of a seat's current generation; empty when there is nothing to read."""
    paths = SeatPaths(seat)
    name = link_target(paths.current)
    return (read_manifest(paths, name) if name else None) or {}


def checkpoint_sampling(manifest: dict[str, Any]) -> dict[str, Any] | None:
    """Return what the checkpoint of a generation declares; None when there is nothing to read."""
    try:
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
    manifests = {seat["name"]: current_manifest(seat["name"]) for seat in params["seats"]}
    ports = {seat["name"]: manifests[seat["name"]].get("port", seat["port"]) for seat in params["seats"]}
    found = {
        seat["name"]: model_names(ports[seat["name"]], seat["api_key"], params["timeout_s"]) for seat in params["seats"]
    }
    declared = {seat: checkpoint_sampling(manifest) for seat, manifest in manifests.items()}
    module.exit_json(
        changed=False,
        names={seat: names for seat, names in found.items() if names},
        ports={seat: ports[seat] for seat, names in found.items() if names},
        sampling={seat: sampling for seat, sampling in declared.items() if sampling is not None},
    )


if __name__ == "__main__":
    main()
