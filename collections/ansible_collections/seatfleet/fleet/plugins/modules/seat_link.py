"""Ansible module: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: seat_link
short_description: Prepare this host's half of seats over two hosts
version_added: "0.1.0"
description:
  - Tells the link of each seat (the service C(seatfleet-link@SEAT)) who the other host is, and starts it. On the host
    that follows, the generation of its half is staged too, and the way to the head is tried.
  - Nothing that runs is touched. M(seatfleet.fleet.seat_rollout) on the head makes both halves use what was staged; the
    link carries that over.
  - Fails when the half could not start here, with everything that is missing.
  - O(generations) are this host's halves; on the host that follows they come from
    P(seatfleet.fleet.seat_followers#filter). Seats on one host are left out.
attributes:
  check_mode:
    description: Says what would change, also on a host that has nothing yet.
    support: full
  diff_mode:
    description: None.
    support: none
extends_documentation_fragment: [seatfleet.fleet.generations]
author:
  - seatfleet developers
"""

EXAMPLES = r"""
- name: Stage the other halves
  seatfleet.fleet.seat_link:
    generations: "{{ __seat_followers[item] }}"
  delegate_to: "{{ item }}"
  loop: "{{ __seat_follower_hosts }}"
"""

RETURN = r"""
seats:
  description: What was prepared, one entry per seat over two hosts.
  returned: always
  type: list
  elements: dict
  contains:
    seat:
      description: Name of the seat.
      type: str
    generation:
      description: Name of the generation.
      type: str
    created:
      description: Whether the generation was not on this host yet, where it is staged here.
      type: bool
    changed:
      description: Whether anything of it, or what the link is told, differed.
      type: bool
    obstacles:
      description: Why this half could not start.
      type: list
      elements: str
"""

from dataclasses import asdict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.seatfleet.fleet.plugins.module_utils.generation_options import GENERATIONS
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.files import umask
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.host.link import prepare
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.seat.generations import GenerationError
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.seat.render import load_generation


def main() -> None:
    module = AnsibleModule(
        {"generations": GENERATIONS["generations"]},
        supports_check_mode=True,
    )
    rendered = [load_generation(values) for values in module.params["generations"]]
    halves = [generation for generation in rendered if generation.manifest.get("nodes")]
    try:
        with umask(0o022):
            done = [prepare(generation, check=module.check_mode) for generation in halves]
    except GenerationError as error:
        module.fail_json(msg=str(error), seats=[])
    result = {"changed": any(one.changed for one in done), "seats": [asdict(one) for one in done]}
    causes = []
    for generation, one in zip(halves, done, strict=True):
        if one.obstacles:
            where, why = generation.manifest["host"], "; ".join(one.obstacles)
            both = ",".join(node["host"] for node in generation.manifest["nodes"]["hosts"])
            todo = f"Nothing was restarted; site.yml -l {both} prepares both hosts first"
            causes.append(f"seat {one.seat} on {where}: {why}. {todo}")
    if causes:
        module.fail_json(msg="\n".join(causes), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
