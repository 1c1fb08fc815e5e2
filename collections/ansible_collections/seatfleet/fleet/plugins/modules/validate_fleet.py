# The module is documentation only: the action plugin of this name does the work on the controller.
from __future__ import annotations

DOCUMENTATION = r"""
---
module: validate_fleet
short_description: Check seats, releases, models and aliases of the whole fleet
version_added: 0.1.0
description:
  - Checks on the controller, without contacting any host, everything the inventory says about seats, with the variables
    of this run, so that C(-e) counts. C(seatctl validate) applies the same rules outside a run.
  - All problems are reported at once, each with file, line, seat and field.
  - A problem of a host outside the play (see C(--limit)) is a warning, unless it involves a host of the play too, such
    as an alias that both use.
options:
  deploy:
    description:
      - Whether hosts are going to be changed. Then values that only the fleet's owner can fill in (C(<fill in ...>))
        and files that are declared but not there yet are problems as well.
    type: bool
    default: true
attributes:
  check_mode:
    description: Runs in check mode, with the same result.
    support: full
  diff_mode:
    description: Changes nothing, so there is no difference to show.
    support: none
author:
  - seatfleet developers
seealso:
  - name: Seats
    description: How to write a seat, with every field.
    link: https://example.invalid/seatfleet/docs/seats.md
"""

EXAMPLES = r"""
- name: Check what the operator wrote
  seatfleet.fleet.validate_fleet:
  run_once: true
"""

RETURN = r"""
seats:
  description: The seats of the play's hosts, checked.
  returned: success
  type: list
  elements: dict
  sample: [{host: fv-ml1, seat: flash-next, model: qwen3.8-flash-next, release: 0.33.0+rtx.1, port: 8022}]
not_checked:
  description: What could not be checked, and why. Not to be read as passed.
  returned: success
  type: list
  elements: str
problems:
  description: The problems of the play's hosts, one line each.
  returned: failure
  type: list
  elements: str
"""
