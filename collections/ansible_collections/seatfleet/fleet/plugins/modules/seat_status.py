#!/usr/bin/python
# Copyright: seatfleet developers
# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
from __future__ import annotations

DOCUMENTATION = r"""
module: seat_status
short_description: Tell what runs on a host and what was proven of it
description:
  - One row per seat that the inventory names or that is found on the host, from systemd, C(/proc), the evidence of
    the last probe and the last gateway proof, and one page of counters of each seat that runs. Reads only, and sends
    nothing to a model.
options:
  host:
    description: Name of the host in the rows.
    type: str
    required: true
  seats:
    description: Seat name to the names of its aliases, as the inventory has them.
    type: dict
    required: true
  history:
    description: How many of the latest probes of each seat come along, for plots.
    type: int
    default: 0
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
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.host.machine import LocalMachine
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.report.host_status import host_status


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "seats": {"type": "dict", "required": True},
            "history": {"type": "int", "default": 0},
        },
        supports_check_mode=True,
    )
    statuses = host_status(
        LocalMachine(), module.params["host"], module.params["seats"], history=module.params["history"]
    )
    module.exit_json(changed=False, seats=[status.as_dict() for status in statuses])


if __name__ == "__main__":
    main()
