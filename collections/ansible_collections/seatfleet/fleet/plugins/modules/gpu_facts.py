"""Ansible module: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gpu_facts
short_description: Cards of a host, in PCI order
version_added: "0.1.0"
description:
  - Asks C(nvidia-smi) for the cards of a host, so that seats can be bound to UUIDs instead of indices.
  - Fails when there are fewer cards than expected, because seats would be bound to others than they are now. In check
    mode, where an earlier run has yet to install the driver, that is a warning.
attributes:
  check_mode:
    description: Only reads.
    support: full
  diff_mode:
    description: Only reads.
    support: none
options:
  expected:
    description: How many cards the host has.
    type: int
    required: true
  nvidia_smi:
    description: The command.
    type: str
    default: nvidia-smi
author:
  - seatfleet developers
"""

EXAMPLES = r"""
- name: Read the cards
  seatfleet.fleet.gpu_facts:
    expected: 4
"""

RETURN = r"""
ansible_facts:
  description: The facts.
  returned: always
  type: dict
  contains:
    seatfleet_gpus:
      description: One entry per card, in PCI order.
      type: list
      elements: dict
      contains:
        uuid:
          description: UUID of the card.
          type: str
        pci:
          description: PCI address.
          type: str
        name:
          description: Product name.
          type: str
        memory:
          description: Bytes; null where the driver does not know (unified memory).
          type: int
        driver:
          description: Version of the driver.
          type: str
"""

import dataclasses
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.gpus import QUERY, parse_query

ARGUMENTS: dict[str, Any] = {
    "expected": {"type": "int", "required": True},
    "nvidia_smi": {"type": "str", "default": "nvidia-smi"},
}


def main() -> None:
    module = AnsibleModule(ARGUMENTS, supports_check_mode=True)
    output, trouble = read(module)
    try:
        gpus = [dataclasses.asdict(gpu) for gpu in parse_query(output)]
    except ValueError as error:
        module.fail_json(msg=str(error))
    expected, warnings = module.params["expected"], []
    if len(gpus) < expected:
        message = f"expected {expected} GPUs, seen {len(gpus)}" + (f": {trouble}" if trouble else "")
        if not module.check_mode:
            module.fail_json(msg=f"{message}. Is the driver loaded (nvidia-smi), is a card missing (lspci)?")
        warnings.append(message)
    module.exit_json(ansible_facts={"seatfleet_gpus": gpus}, warnings=warnings)


def read(module: AnsibleModule) -> tuple[str, str]:
    """Return what nvidia-smi prints and, when it cannot, why."""
    command = module.get_bin_path(module.params["nvidia_smi"])
    if command is None:
        return "", f"no {module.params['nvidia_smi']} on this host"
    code, output, errors = module.run_command([command, *QUERY])
    return (output, "") if code == 0 else ("", (output + errors).strip() or f"exit code {code}")


if __name__ == "__main__":
    main()
