"""Ansible module: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: firewall_state
short_description: What the firewall of a host has to cover beside what is declared, and the table that is loaded
version_added: "0.1.0"
description:
  - Reads the ports of the generations that are current on the host. They are others than the declared ones after a
    change of a port was taken back, and for a seat that nobody declares any more.
  - Lists the table C(inet seatfleet) of the kernel.
options:
  coming:
    description: By seat, generations that are about to become current; they are covered too.
    type: dict
    default: {}
attributes:
  check_mode:
    description: Only reads.
    support: full
  diff_mode:
    description: Only reads.
    support: none
author:
  - seatfleet developers
"""

EXAMPLES = r"""
- name: Look what runs and which table is loaded
  seatfleet.fleet.firewall_state:
  register: gpu_host_firewall_state
"""

RETURN = r"""
ports:
  description: TCP ports that these generations answer on.
  returned: always
  type: list
  elements: int
links:
  description: Of those over two hosts C(seat), C(ports), the own C(address) and C(peers).
  returned: always
  type: list
  elements: dict
table:
  description: The table as nft lists it; empty where there is none, or no nft yet.
  returned: always
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.seat.restricted import (
    current_links,
    current_ports,
)


def main() -> None:
    module = AnsibleModule({"coming": {"type": "dict", "default": {}}}, supports_check_mode=True)
    coming = module.params["coming"]
    ports, links = current_ports(coming=coming), current_links(coming=coming)
    module.exit_json(changed=False, ports=ports, links=links, table=table(module))


def table(module: AnsibleModule) -> str:
    """Return the table that is loaded, empty for none."""
    nft = module.get_bin_path("nft", opt_dirs=["/usr/sbin", "/sbin"])
    if nft is None:
        return ""
    code, output, errors = module.run_command([nft, "list", "table", "inet", "seatfleet"])
    if code not in (0, 1):
        module.fail_json(msg=f"nft list table inet seatfleet: {errors.strip() or output.strip()}")
    return str(output) if code == 0 else ""


if __name__ == "__main__":
    main()
