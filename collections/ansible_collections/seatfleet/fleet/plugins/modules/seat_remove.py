"""Ansible module: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: seat_remove
short_description: Remove seats from a host
version_added: "0.1.0"
description:
  - Drains and stops each seat, then removes its unit, generations, API key, caches and probe timer. Its evidence stays.
  - The seat need not be in the inventory any more. Remove its aliases first with
    M(seatfleet.fleet.litellm_aliases).
attributes:
  check_mode:
    description: Says what would be removed.
    support: full
  diff_mode:
    description: Lists the paths.
    support: full
options:
  seats:
    description: Names of the seats.
    type: list
    elements: str
    required: true
  weights:
    description: Also remove the models of the seats that no other seat's generation names.
    type: bool
    default: false
  releases:
    description: Also remove the releases of the seats that no other seat's generation names.
    type: bool
    default: false
author:
  - seatfleet developers
"""

EXAMPLES = r"""
- name: Remove a seat
  seatfleet.fleet.seat_remove:
    seats: [flash-next]
"""

RETURN = r"""
seats:
  description: What was removed of each seat, as paths; C(kept) are weights and releases that other seats need.
  returned: always
  type: list
  elements: dict
"""

from dataclasses import asdict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.host.machine import LocalMachine
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.paths import SeatPaths
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.seat.removal import remove


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "seats": {"type": "list", "elements": "str", "required": True},
            "weights": {"type": "bool", "default": False},
            "releases": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params, machine = module.params, LocalMachine()
    done = [
        remove(
            machine,
            SeatPaths(seat),
            weights=params["weights"],
            releases=params["releases"],
            check=module.check_mode,
        )
        for seat in params["seats"]
    ]
    result = {
        "changed": any(removal.removed for removal in done),
        "seats": [asdict(removal) for removal in done],
        "diff": {"before": "".join(f"{path}\n" for removal in done for path in removal.removed), "after": ""},
    }
    failures = [f"seat {removal.seat}: {removal.failure}" for removal in done if removal.failure]
    if failures:
        module.fail_json(msg="; ".join(failures), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
