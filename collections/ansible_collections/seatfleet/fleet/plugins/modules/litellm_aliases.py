from __future__ import annotations

DOCUMENTATION = r"""
module: litellm_aliases
short_description: Make a LiteLLM proxy serve exactly the aliases of a host's seats
description:
  - Compares every field of the deployments that seatfleet made for O(host) with O(aliases), and creates, replaces or
    deletes whole deployments. Deployments that seatfleet did not make are never touched.
  - A changed deployment is replaced by a second one, proven with a real completion before the first is
    deleted.
  - A step that fails keeps no other from being done; the module fails at the end, with a line for each that did.
extends_documentation_fragment: [seatfleet.fleet.gateway]
options:
  aliases:
    description: All aliases of all seats of O(host). What is not listed any more is deleted.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: The model name that callers use.
        type: str
        required: true
      seat:
        description: Name of the seat.
        type: str
        required: true
      api_base:
        description: Where the gateway reaches the seat, with C(/v1).
        type: str
        required: true
      api_key:
        description: API key of the seat.
        type: str
        required: true
      served_model:
        description: Model name that the running seat answers to; the alias when left out.
        type: str
      sampling:
        description: Sampling defaults; what is not listed stays unset.
        type: dict
        default: {}
      chat_template_kwargs:
        description: Arguments of the chat template.
        type: dict
      limits:
        description: Limits as in the seat schema.
        type: dict
        default: {}
      access_groups:
        description: Access groups that shall contain the alias.
        type: list
        elements: str
        default: []
      keys:
        description: Key aliases that may call it. Only named in messages here.
        type: list
        elements: str
        default: []
      adopt:
        description: Replace deployments of this alias that seatfleet did not make.
        type: bool
        default: false
      fallback:
        description: Alias that answers while the seat restarts; for M(seatfleet.fleet.litellm_close).
        type: str
  spare:
    description: Seats whose aliases stay as they are, because the seats do not answer.
    type: list
    elements: str
    default: []
  in_file:
    description:
      - The proxy's config file serves the aliases (see M(seatfleet.fleet.litellm_config)); only what the database
        still has of O(host) is deleted.
    type: bool
    default: false
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
- name: Register aliases
  seatfleet.fleet.litellm_aliases:
    url: https://gateway.example.net
    admin_key: "{{ gateway_admin_key }}"
    host: fv-ml1
    aliases:
      - name: gen-large
        seat: flash-next
        api_base: http://fv-ml1:8022/v1
        api_key: "{{ seat_key }}"
        sampling: {temperature: 1.0, top_p: 0.95, top_k: 20}
  delegate_to: localhost
"""

RETURN = r"""
steps:
  description: What was (or in check mode would be) done, one sentence each.
  type: list
  elements: str
  returned: success
ids:
  description: Alias to the deployment ids that may answer for it.
  type: dict
  returned: success
dropped:
  description: Aliases that the gateway does not serve any more.
  type: list
  elements: str
  returned: success
not_registered:
  description: What was left undone because the gateway was down.
  type: list
  elements: str
  returned: when the gateway is down
at_fault:
  description: The seats that do not answer through a gateway that does; only their aliases were not opened.
  type: list
  elements: str
  returned: when the gateway answers, and not as it should
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


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            **CONNECTION,
            "aliases": {"type": "list", "elements": "dict", "required": True, "options": ALIAS},
            "spare": {"type": "list", "elements": "str", "default": []},
            "in_file": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    host = module.params["host"]
    wanted = [wanted_alias(entry, host) for entry in module.params["aliases"]]
    undone = [f"alias {item.alias} of seat {item.seat}, for keys {', '.join(item.keys) or 'none'}" for item in wanted]
    with gateway_of(module, undone) as gateway:
        result = sync.sync_aliases(
            gateway,
            wanted,
            host,
            spare=module.params["spare"],
            in_file=module.params["in_file"],
            check=module.check_mode,
        )
    module.exit_json(
        changed=result.changed,
        steps=[step.describe() for step in result.plan.steps],
        ids={alias: list(ids) for alias, ids in result.plan.ids.items()},
        dropped=list(result.plan.dropped),
        diff={"before": diff_text(result.before), "after": diff_text(result.after)},
    )


if __name__ == "__main__":
    main()
