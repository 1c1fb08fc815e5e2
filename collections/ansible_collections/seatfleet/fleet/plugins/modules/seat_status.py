#!/usr/bin/python
# Copyright: seatfleet developers
# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
from __future__ import annotations

DOCUMENTATION = r"""
module: seat_status
short_description: Tell what runs on a host and what was proven of it
description:
  - One row per seat that the inventory names or that is found on the host, from systemd, C(/proc) and the evidence of
    the last probe and the last gateway proof. Reads only, and talks to no seat.
options:
  host:
    description: Name of the host in the rows.
    type: str
    required: true
  seats:
    description: Seat name to the names of its aliases, as the inventory has them.
    type: dict
    required: true
attributes:
  check_mode:
    support: full
    description: Changes nothing.
  diff_mode:
    support: none
    description: Changes nothing.
author:
  - seatfleet developers
"""

EXAMPLES = r"""
- name: Look at the seats of this host
  seatfleet.fleet.seat_status:
    host: "{{ inventory_hostname }}"
    seats: {flash-next: [gen-large]}
  register: __status
"""

RETURN = r"""
seats:
  description: One row per seat.
  returned: always
  type: list
  elements: dict
  sample:
    - {host: fv-ml1, seat: flash-next, state: READY, generation: 0123456789ab, notes: []}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.machine import LocalMachine
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.paths import SeatPaths
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.status import (
    read_gateway_evidence,
    seat_status,
    seats_on_disk,
)


def main() -> None:
    module = AnsibleModule(
        argument_spec={"host": {"type": "str", "required": True}, "seats": {"type": "dict", "required": True}},
        supports_check_mode=True,
    )
    wanted, cells, machine = module.params["seats"], read_gateway_evidence(), LocalMachine()
    statuses = [
        seat_status(
            machine,
            SeatPaths(name),
            module.params["host"],
            managed=name in wanted,
            aliases=wanted.get(name, []),
            cells=cells,
        ).as_dict()
        for name in sorted({*wanted, *seats_on_disk()})
    ]
    module.exit_json(changed=False, seats=statuses)


if __name__ == "__main__":
    main()
