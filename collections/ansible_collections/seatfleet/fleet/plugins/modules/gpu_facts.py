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
        capability:
          description: Compute capability, C(12.0) and so on; null where the driver does not know the question.
          type: str
        persistence:
          description: Whether persistence mode is on.
          type: bool
        power_limit:
          description: Watts; null where they cannot be read (GB10).
          type: float
        throttle:
          description: Why the card is slowed down now.
          type: list
          elements: str
        used:
          description: Bytes in use; null where the driver does not know (unified memory).
          type: int
"""

import dataclasses
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.host.gpus import (
    ANSWERED,
    Gpu,
    read_cards,
)

ARGUMENTS: dict[str, Any] = {
    "expected": {"type": "int", "required": True},
    "nvidia_smi": {"type": "str", "default": "nvidia-smi"},
}


def main() -> None:
    module = AnsibleModule(ARGUMENTS, supports_check_mode=True)
    try:
        cards, trouble = read(module)
    except ValueError as error:
        module.fail_json(msg=str(error))
    expected, warnings = module.params["expected"], []
    if len(cards) < expected:
        message = f"expected {expected} GPUs, seen {len(cards)}" + (f": {trouble}" if trouble else "")
        if not module.check_mode:
            module.fail_json(msg=f"{message}. Is the driver loaded (nvidia-smi), is a card missing (lspci)?")
        warnings.append(message)
    gpus = [dataclasses.asdict(card) for card in cards]
    module.exit_json(ansible_facts={"seatfleet_gpus": gpus}, warnings=warnings)


def read(module: AnsibleModule) -> tuple[list[Gpu], str]:
    """Return the cards and, when nvidia-smi cannot tell them, why."""
    command = module.get_bin_path(module.params["nvidia_smi"])
    if command is None:
        return [], f"no {module.params['nvidia_smi']} on this host"

    def ask(arguments: tuple[str, ...]) -> tuple[int, str]:
        code, output, errors = module.run_command([command, *arguments])
        return code, output if code in ANSWERED else output + errors

    return read_cards(ask)


if __name__ == "__main__":
    main()
