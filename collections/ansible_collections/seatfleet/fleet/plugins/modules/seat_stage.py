"""Ansible module: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: seat_stage
short_description: Write the generations and API keys of a host's seats
version_added: "0.1.0"
description:
  - Writes the configuration of every seat of a host below C(/etc/vllm/seats), one directory per generation, and the
    API key files of seats that have none.
  - Nothing that runs is touched. M(seatfleet.fleet.seat_rollout) makes a seat use what was staged.
  - An API key file that is there stays, as a running seat would start again with it. A key that differs is shown, and
    replaced by the rollout.
attributes:
  check_mode:
    description: Says what would be written, also on a host that has nothing yet.
    support: full
  diff_mode:
    description: Compares the wanted files with those that serve now. API keys are never shown.
    support: full
extends_documentation_fragment: [seatfleet.fleet.generations]
options:
  api_keys:
    description: API key of each seat, by its name.
    type: dict
    required: true
  followed:
    description:
      - Names of seats of other hosts that this host follows; M(seatfleet.fleet.seat_link) stages them.
    type: list
    elements: str
    default: []
author:
  - seatfleet developers
"""

EXAMPLES = r"""
- name: Stage the generations of all seats
  seatfleet.fleet.seat_stage:
    generations: "{{ __seat_generations }}"
    api_keys: "{{ __seat_api_keys }}"
"""

RETURN = r"""
seats:
  description: What was staged, one entry per seat.
  returned: always
  type: list
  elements: dict
  contains:
    seat:
      description: Name of the seat.
      type: str
    generation:
      description: Name of the staged generation.
      type: str
    created:
      description: Whether the generation was not on the host yet.
      type: bool
    changed:
      description: Whether anything of it differed, or there was no API key.
      type: bool
unmanaged:
  description: Seats that are on the host and that nobody declares any more.
  returned: always
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.seatfleet.fleet.plugins.module_utils.generation_options import GENERATIONS
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.seat.generations import GenerationError
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.seat.render import load_generation
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.seat.staging import stage_host, unmanaged

ARGUMENTS = {**GENERATIONS, "followed": {"type": "list", "elements": "str", "default": []}}


def main() -> None:
    module = AnsibleModule(ARGUMENTS, supports_check_mode=True)
    rendered = [load_generation(values) for values in module.params["generations"]]
    try:
        staged = stage_host(rendered, module.params["api_keys"], check=module.check_mode)
    except GenerationError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"nothing that runs was touched: {error}")
    left = unmanaged([*(seat.seat for seat in staged), *module.params["followed"]])
    if left:
        module.warn(
            "seats on this host that the inventory does not declare: they run on as they are, but their aliases are"
            f" taken from callers: {', '.join(left)}"
        )
    module.exit_json(
        changed=any(seat.changed for seat in staged),
        seats=[
            {"seat": seat.seat, "generation": seat.generation, "created": seat.created, "changed": seat.changed}
            for seat in staged
        ],
        unmanaged=left,
        diff=[
            {
                "before_header": f"seat {seat.seat}, as on the host",
                "after_header": f"seat {seat.seat}, generation {seat.generation}",
                "before": seat.before,
                "after": seat.after,
            }
            for seat in staged
            if seat.changed or seat.before != seat.after
        ],
    )


if __name__ == "__main__":
    main()
