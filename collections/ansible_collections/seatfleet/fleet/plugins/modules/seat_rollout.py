"""Ansible module: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: seat_rollout
short_description: Make a host's seats run their staged generations
version_added: "0.1.0"
description:
  - Compares the process of every seat with its wanted generation and restarts exactly those that differ.
  - Before anything stops, the installed release is asked whether it takes the seat's flags and environment, and what a
    start needs is looked at. When anything is wrong with one seat of the host, none is touched; check mode fails too.
  - A restart stops the seat and proves that it is gone, switches C(current), starts, and waits until the probe has
    passed. The generation is then marked good.
  - When a start or its probe fails, the last good generation comes back, and the module fails with the first cause
    from the journal. Seats after a failed one are left as they are.
  - One start at a time per host.
attributes:
  check_mode:
    description: Says per seat whether it would restart and why, also on a host that has nothing yet.
    support: full
  diff_mode:
    description: Shows one line per seat that changes.
    support: full
extends_documentation_fragment: [seatfleet.fleet.generations]
options:
  api_keys:
    description: API key of each seat, by its name. A seat whose process has another one is restarted.
    type: dict
    required: true
author:
  - seatfleet developers
"""

EXAMPLES = r"""
- name: Roll out the seats that need it
  seatfleet.fleet.seat_rollout:
    generations: "{{ __seat_generations }}"
    api_keys: "{{ __seat_api_keys }}"
  register: __seat_rollout
"""

RETURN = r"""
said:
  description: A sentence for each seat that changed and is as wanted; none in check mode, whose diff has them.
  returned: always
  type: list
  elements: str
seats:
  description: What happened to each seat, or in check mode would happen.
  returned: always
  type: list
  elements: dict
  contains:
    seat:
      description: Name of the seat.
      type: str
    action:
      description: V(nothing), V(verify) (probe only), V(start) or V(restart).
      type: str
    reasons:
      description: Why.
      type: list
      elements: str
    repairs:
      description: What is put right without a restart.
      type: list
      elements: str
    changed:
      description: Whether anything changed.
      type: bool
    wanted:
      description: The generation that should run.
      type: str
    generation:
      description: The generation that runs afterwards, null when nothing does.
      type: str
    ready_s:
      description: Seconds from the start to READY, null without a start.
      type: float
    evidence:
      description: What the probe found.
      type: dict
    pruned:
      description: Old generations that were removed.
      type: list
      elements: str
    failure:
      description: The first cause, null when the seat is as wanted.
      type: str
    returned_to:
      description: The good generation that came back after a failure.
      type: str
    way_back:
      description: The good generation that the wanted one took over from, null when it only was started again.
      type: str
    again:
      description: Whether the wanted generation had been proven before.
      type: bool
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.seatfleet.fleet.plugins.module_utils.generation_options import GENERATIONS
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.host.machine import LocalMachine
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.seat.render import load_generation
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.seat.rollout import (
    foresee,
    report_line,
    roll_out,
    summary_line,
)


def main() -> None:
    module = AnsibleModule(GENERATIONS, supports_check_mode=True)
    rendered = [load_generation(values) for values in module.params["generations"]]
    carry_out = foresee if module.check_mode else roll_out
    outcomes = carry_out(LocalMachine(), rendered, module.params["api_keys"])
    changed = [outcome for outcome in outcomes if outcome.changed]
    result = {
        "changed": bool(changed),
        "seats": [outcome.as_dict() for outcome in outcomes],
        # A diff says it already, where it is asked for.
        "said": [] if module.check_mode else [report_line(one) for one in changed if not one.failure],
        "diff": {"prepared": "".join(f"{summary_line(outcome)}\n" for outcome in changed)},
    }
    failures = [f"seat {outcome.seat}: {outcome.failure}" for outcome in outcomes if outcome.failure]
    if failures:
        module.fail_json(msg="; ".join(failures), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
