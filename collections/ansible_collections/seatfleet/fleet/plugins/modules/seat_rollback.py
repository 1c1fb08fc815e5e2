"""Ansible module: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: seat_rollback
short_description: Bring a seat back to its previous good generation
version_added: "0.1.0"
description:
  - The rollout of M(seatfleet.fleet.seat_rollout) to a generation that is on the host already; nothing is rendered,
    downloaded or built.
  - Run again it goes forward again, as the generation that it left is then the previous one.
  - The inventory does not know of it, and RV(lines) says what has to be written there; until then C(site.yml) would
    bring the newer generation back, and C(site.yml --check) says so.
attributes:
  check_mode:
    description: Says what would happen, and the lines.
    support: full
  diff_mode:
    description: Shows one line.
    support: full
options:
  seat:
    description: Name of the seat.
    type: str
    required: true
  generation:
    description: Name of a good generation; the previous one by default.
    type: str
  api_key:
    description:
      - API key that the seat shall have, the one that its aliases are opened with; the one on the host by default. They
        differ after the secret was changed and no rollout of the seat was carried out since.
    type: str
  reject:
    description:
      - The generation that runs has failed after its probe had passed. Once the other one is back it counts as never
        proven, so that no rollback and no reboot leads to it.
    type: bool
    default: false
author:
  - seatfleet developers
"""

EXAMPLES = r"""
- name: Go back
  seatfleet.fleet.seat_rollback:
    seat: flash-next
  register: __rollback
"""

RETURN = r"""
seats:
  description: What happened, in one element as M(seatfleet.fleet.seat_rollout) returns it.
  returned: always
  type: list
  elements: dict
lines:
  description: What to write at the seat in C(group_vars), one field each.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.host.machine import LocalMachine
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.paths import SeatPaths
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.seat.generations import (
    GenerationError,
    link_target,
    reject,
)
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.seat.rollback import target
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.seat.rollout import (
    foresee,
    roll_out,
    summary_line,
)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "seat": {"type": "str", "required": True},
            "generation": {"type": "str"},
            "api_key": {"type": "str", "no_log": True},
            "reject": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    seat = module.params["seat"]
    paths = SeatPaths(seat)
    left = link_target(paths.current)
    try:
        goal = target(paths, module.params["generation"])
    except GenerationError as error:
        module.fail_json(msg=str(error), seats=[], lines=[])
    carry_out = foresee if module.check_mode else roll_out
    (outcome,) = carry_out(LocalMachine(), [goal.generation], {seat: module.params["api_key"] or goal.api_key})
    if module.params["reject"] and left and not (outcome.failure or module.check_mode):
        reject(paths, left)
    result = {
        "changed": outcome.changed,
        "seats": [outcome.as_dict()],
        "lines": list(goal.lines),
        "diff": {"prepared": f"{summary_line(outcome)}\n" if outcome.changed else ""},
    }
    if outcome.failure:
        module.fail_json(msg=f"seat {seat}: {outcome.failure}", **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
