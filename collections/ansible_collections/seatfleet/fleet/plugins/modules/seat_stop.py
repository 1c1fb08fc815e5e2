"""Ansible module: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: seat_stop
short_description: Stop seats for work on their host
version_added: "0.1.0"
description:
  - Waits for the running requests of each seat, stops it, and marks it as stopped on purpose until it is started again.
    Nothing is removed, and the unit still starts at boot.
  - Close the aliases first with M(seatfleet.fleet.litellm_close). A rollout starts the seat again.
attributes:
  check_mode:
    description: Says which seats would be stopped.
    support: full
options:
  seats:
    description: Names of the seats.
    type: list
    elements: str
    required: true
  closed:
    description: Seat name to the names of its aliases that were closed for this.
    type: dict
    default: {}
author:
  - seatfleet developers
"""

EXAMPLES = r"""
- name: Stop a seat
  seatfleet.fleet.seat_stop:
    seats: [flash-next]
"""

RETURN = r"""
seats:
  description: For each seat whether it ran, the seconds its requests were waited for, how many were cut off, and the
    host that follows.
  returned: always
  type: list
  elements: dict
"""

from dataclasses import asdict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.host.machine import LocalMachine
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.paths import SeatPaths
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.seat.removal import stop


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "seats": {"type": "list", "elements": "str", "required": True},
            "closed": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    machine, closed = LocalMachine(), module.params["closed"]
    done = [
        stop(machine, SeatPaths(seat), check=module.check_mode, closed=closed.get(seat, ()))
        for seat in module.params["seats"]
    ]
    result = {"changed": any(one.ran for one in done), "seats": [asdict(one) for one in done]}
    failures = [f"seat {one.seat}: {one.failure}" for one in done if one.failure]
    if failures:
        module.fail_json(msg="; ".join(failures), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
