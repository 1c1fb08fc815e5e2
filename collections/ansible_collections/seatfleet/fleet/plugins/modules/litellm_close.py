from __future__ import annotations

DOCUMENTATION = r"""
module: litellm_close
short_description: Lead aliases of a LiteLLM proxy away from seats that are about to stop
description:
  - Calls to an alias go to its declared fallback when that is served and answers, to another deployment that serves the
    alias, or else to a stub that answers 503 with C(Retry-After). M(seatfleet.fleet.litellm_aliases) opens the aliases
    again.
  - The deployment of the seat is deleted only after its stand-in was seen to answer. Running requests go on.
  - A gateway that is down, or a stand-in that does not answer, is no failure, since it must not keep a seat from being
    repaired; RV(not_closed) and a warning say it.
extends_documentation_fragment: [seatfleet.fleet.gateway]
options:
  aliases:
    description: The aliases, as M(seatfleet.fleet.litellm_aliases) takes them. Others stay as they are.
    type: list
    elements: dict
    required: true
  stub_url:
    description: Base URL of the stub on the seats' host, with C(/v1).
    type: str
    required: true
  seat_key_secret:
    description: Secret that the seats' API keys are derived from; for calls to a fallback's seat.
    type: str
    required: true
attributes:
  check_mode:
    support: full
    description: Tells what would change.
  diff_mode:
    support: full
    description: Shows deployments without their secrets.
author: [seatfleet]
"""

EXAMPLES = r"""
- name: Close the aliases of the seats that restart
  seatfleet.fleet.litellm_close:
    url: https://gateway.example.net
    admin_key: "{{ gateway_admin_key }}"
    host: fv-ml1
    stub_url: http://fv-ml1:8009/v1
    seat_key_secret: "{{ vault_seat_api_key_secret }}"
    aliases: "{{ __aliases }}"
  delegate_to: localhost
"""

RETURN = r"""
steps:
  description: What was (or in check mode would be) done, one sentence each.
  type: list
  elements: str
  returned: always
closed:
  description: Alias to the deployments that answer for it meanwhile.
  type: dict
  returned: always
not_closed:
  description: Aliases that still lead to their seats, as the gateway did not do what it was asked for.
  type: list
  elements: str
  returned: always
refused:
  description:
    - Those of RV(not_closed) that the gateway refused to change (an answer of 4xx to an administrator's request), and
      said so. A stand-in that does not answer is none of them.
  type: list
  elements: str
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.seatfleet.fleet.plugins.module_utils.gateway_module import (
    ALIAS,
    CONNECTION,
    diff_text,
    gateway_of,
    sync,
    wanted_alias,
)
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.seat.render import seat_api_key


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            **CONNECTION,
            "aliases": {"type": "list", "elements": "dict", "required": True, "options": ALIAS},
            "stub_url": {"type": "str", "required": True},
            "seat_key_secret": {"type": "str", "required": True, "no_log": True},
        },
        supports_check_mode=True,
    )
    params = module.params
    wanted = [wanted_alias(entry, params["host"]) for entry in params["aliases"]]

    def key_of(host: str, seat: str) -> str:
        return seat_api_key(params["seat_key_secret"], host, seat)

    results = []
    not_closed: list[str] = []
    refused: list[str] = []

    def left(alias: str, error: Exception) -> None:
        not_closed.append(alias)
        module.warn(f"alias {alias} is not closed, callers will see its seat on {params['host']} go: {error}")

    with gateway_of(module, ()) as gateway:
        # One by one: what keeps one alias from being closed says nothing about the others.
        for number, alias in enumerate(wanted):
            try:
                result = sync.close_alias(gateway, alias, params["stub_url"], key_of, check=module.check_mode)
            except sync.GatewayDownError as error:
                for other in wanted[number:]:
                    left(other.alias, error)
                break
            except (sync.GatewayError, sync.LockTimeoutError) as error:
                left(alias.alias, error)
                if getattr(error, "refused", False):
                    refused.append(alias.alias)
            else:
                results.append(result)
                for note in result.plan.notes:
                    module.warn(note)
    before = {name: shown for result in results for name, shown in result.before.items()}
    after = {name: shown for result in results for name, shown in result.after.items()}
    steps = [step.describe() for result in results for step in result.plan.steps]
    closed = {name: list(ids) for result in results for name, ids in result.plan.ids.items()}
    module.exit_json(
        changed=bool(steps),
        steps=steps,
        closed=closed,
        not_closed=not_closed,
        refused=refused,
        diff={"before": diff_text(before), "after": diff_text(after)},
    )


if __name__ == "__main__":
    main()
