"""Ansible module: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: seat_adopt
short_description: Take a port over from a service that this project did not start
version_added: "0.1.0"
description:
  - With O(state=read), tells what serves on a port, a systemd service or a service of a compose file.
  - With O(state=taken), rolls a staged seat out in its place. The old service is drained, stopped and disabled, and
    comes back, also at boot, when the seat does not come up.
  - With O(state=given_back), stops the seat and brings back the service that it took over.
attributes:
  check_mode:
    description: Says what would happen.
    support: full
  diff_mode:
    description: Shows one line.
    support: full
options:
  state:
    description: What to do.
    type: str
    choices: [read, taken, given_back]
    default: read
  port:
    description: The port; for O(state=read).
    type: int
  compose_file:
    description: Compose file of the old service, on the host.
    type: path
  compose_service:
    description: Its name there; the one that publishes the port by default.
    type: str
  generation:
    description: The seat's rendered generation, staged with M(seatfleet.fleet.seat_stage).
    type: dict
    suboptions:
      seat:
        description: Name of the seat.
        type: str
        required: true
      name:
        description: Name of the generation, 12 hexadecimal digits.
        type: str
        required: true
      release_path:
        description: Where its release is installed.
        type: path
        required: true
      files:
        description: File names to texts.
        type: dict
        required: true
  api_key:
    description: API key of the seat.
    type: str
author:
  - seatfleet developers
"""

EXAMPLES = r"""
- name: Look at what serves on the port
  seatfleet.fleet.seat_adopt:
    port: 8022
  register: __adopt_found
"""

RETURN = r"""
running:
  description: Service, arguments, environment and version of what serves; with O(state=read).
  returned: success
  type: dict
seats:
  description: What happened to the seat, in one element as M(seatfleet.fleet.seat_rollout) returns it.
  returned: with O(state=taken)
  type: list
  elements: dict
back_s:
  description: Seconds until the old service answered again; with O(state=given_back).
  returned: success
  type: float
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.seatfleet.fleet.plugins.module_utils.generation_options import GENERATION
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.host.machine import LocalMachine
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.seat import adoption, predecessor
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.seat.render import load_generation
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.seat.rollout import (
    RolloutError,
    foresee,
    roll_out,
    summary_line,
)

ARGUMENTS = {
    "state": {"type": "str", "choices": ["read", "taken", "given_back"], "default": "read"},
    "port": {"type": "int"},
    "compose_file": {"type": "path"},
    "compose_service": {"type": "str"},
    "generation": {"type": "dict", "options": GENERATION},
    "api_key": {"type": "str", "no_log": True},
}


def main() -> None:
    module = AnsibleModule(
        ARGUMENTS,
        supports_check_mode=True,
        required_if=[
            ("state", "read", ["port"]),
            ("state", "taken", ["generation", "api_key"]),
            ("state", "given_back", ["generation", "api_key"]),
        ],
    )
    carry_out = {"read": read, "taken": take, "given_back": give_back}[module.params["state"]]
    try:
        carry_out(module)
    except RolloutError as error:
        module.fail_json(msg=str(error))


def read(module: AnsibleModule) -> None:
    module.exit_json(changed=False, running=running(module, module.params["port"]).as_dict())


def running(module: AnsibleModule, port: int) -> adoption.Running:
    file = module.params["compose_file"]
    if file is None:
        return adoption.find(port)
    return adoption.from_compose(predecessor.compose_config(file), file, module.params["compose_service"], port)


def take(module: AnsibleModule) -> None:
    machine, generation = LocalMachine(), load_generation(module.params["generation"])
    port, unit = int(generation.manifest["port"]), str(generation.manifest["unit"])
    holders = machine.seat_state(machine.unit_state(unit), port).strangers
    old = None
    if holders:
        found = running(module, port)
        old = predecessor.old_service(machine, found.service, port, found.compose_file)
    carry_out = foresee if module.check_mode else roll_out
    if old is not None and not module.check_mode:
        predecessor.remember(generation.seat, old)
    keys = {generation.seat: module.params["api_key"]}
    (outcome,) = carry_out(machine, [generation], keys, predecessor=old)
    result = {
        "changed": outcome.changed,
        "seats": [outcome.as_dict()],
        "diff": {"prepared": f"{summary_line(outcome)}\n" if outcome.changed else ""},
    }
    if outcome.failure:
        module.fail_json(msg=f"seat {outcome.seat}: {outcome.failure}", **result)
    module.exit_json(**result)


def give_back(module: AnsibleModule) -> None:
    machine, generation = LocalMachine(), load_generation(module.params["generation"])
    old = predecessor.remembered(generation.seat, machine)
    if module.check_mode:
        module.exit_json(changed=True)
    module.exit_json(changed=True, back_s=predecessor.give_back(machine, generation, old))


if __name__ == "__main__":
    main()
