from __future__ import annotations

DOCUMENTATION = r"""
module: litellm_keys
short_description: Give the virtual keys of a LiteLLM proxy exactly the aliases that the seats of a host grant
description:
  - Creates missing keys, adds and removes entries of their lists, and takes back grants that seatfleet made for
    O(host) and no seat asks for any more. Keys that are not declared are left alone otherwise.
  - Never writes an empty list, which LiteLLM reads as every model.
  - Lists are edited under a lock on the controller, and read again after a settling time, so that two controllers do
    not lose each other's edits.
extends_documentation_fragment: [seatfleet.fleet.gateway, seatfleet.fleet.gateway.grants]
options:
  values:
    description:
      - Key alias to value, also for keys that no alias names at present. A key alias that only O(grants) name must
        exist at the gateway; its value lives with its users.
    type: dict
    required: true
  models:
    description: Key alias to entries that the key always has, such as access groups.
    type: dict
    default: {}
  dropped:
    description: Aliases that the same run removed from the gateway; they leave the lists of all keys.
    type: list
    elements: str
    default: []
  rotate:
    description: Replace the value of a key when the declared one differs; otherwise that is an error.
    type: bool
    default: false
  overlap:
    description: How long the old value of a rotated key goes on working.
    type: str
    default: 24h
  handout_dir:
    description: Directory on the controller where values of keys made here are written, one 0600 file each.
    type: path
attributes:
  check_mode:
    support: full
    description: Tells what would change.
  diff_mode:
    support: full
    description: Shows the lists of the keys, never a value.
author: [seatfleet]
"""

EXAMPLES = r"""
- name: Grant aliases to keys
  seatfleet.fleet.litellm_keys:
    url: https://gateway.example.net
    admin_key: "{{ gateway_admin_key }}"
    host: fv-ml1
    values: "{{ vault_litellm_keys }}"
    grants:
      - {name: gen-large, seat: flash-next, keys: [infra-ops, all-agents]}
  delegate_to: localhost
"""

RETURN = r"""
steps:
  description: What was (or in check mode would be) done, one sentence each.
  type: list
  elements: str
  returned: success
notes:
  description: What an operator should know, such as keys that may call everything.
  type: list
  elements: str
  returned: success
ghosts:
  description: Key name to entries of its list that lead nowhere; a call of such an entry is answered with 400.
  type: dict
  returned: success
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.seatfleet.fleet.plugins.module_utils.gateway_module import (
    CONNECTION,
    GRANT,
    diff_text,
    gateway_of,
    sync,
)
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.gateway.keys import WantedKey


def wanted_keys(
    values: dict[str, str], models: dict[str, list[str]], grants: list[dict[str, Any]], host: str
) -> list[WantedKey]:
    """Return declared keys, and those that only an alias names, with their grants."""
    names = {*values, *models, *(key for grant in grants for key in grant["keys"])}
    via = {grant["name"]: tuple(grant["access_groups"]) for grant in grants}
    return [
        WantedKey(
            alias=name,
            grants={grant["name"]: f"{host}/{grant['seat']}" for grant in grants if name in grant["keys"]},
            via=via,
            models=tuple(models.get(name, ())),
            value=values.get(name),
        )
        for name in sorted(names)
    ]


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            **CONNECTION,
            "values": {"type": "dict", "required": True, "no_log": True},
            "models": {"type": "dict", "default": {}},
            "grants": {"type": "list", "elements": "dict", "required": True, "options": GRANT},
            "dropped": {"type": "list", "elements": "str", "default": []},
            "rotate": {"type": "bool", "default": False},
            "overlap": {"type": "str", "default": "24h"},
            "handout_dir": {"type": "path"},
        },
        supports_check_mode=True,
    )
    params = module.params
    host = params["host"]
    wanted = wanted_keys(params["values"], params["models"], params["grants"], host)
    options = sync.KeyOptions(
        rotate=params["rotate"],
        overlap=params["overlap"],
        handout=Path(params["handout_dir"]) if params["handout_dir"] else None,
    )
    undone = [f"key {want.alias} for {', '.join(sorted(want.grants)) or 'no alias'}" for want in wanted]
    with gateway_of(module, undone) as gateway:
        result = sync.sync_keys(
            gateway,
            wanted,
            host,
            [grant["name"] for grant in params["grants"]],
            dropped=params["dropped"],
            options=options,
            check=module.check_mode,
        )
    module.exit_json(
        changed=result.changed,
        steps=[step.describe() for step in result.steps],
        notes=list(result.notes),
        ghosts={name: list(entries) for name, entries in result.ghosts.items()},
        diff={"before": diff_text(result.before), "after": diff_text(result.after)},
    )


if __name__ == "__main__":
    main()
