from __future__ import annotations

DOCUMENTATION = r"""
module: litellm_proof
short_description: Prove, per key and alias, that what should work at a LiteLLM proxy works and what should not does not
description:
  - Calls every alias with every key for one token. A key that may call it must see the alias in C(/v1/models) and be
    answered by a deployment of the alias' seat; any other key must get 401 or 403, through every way to name a model.
  - Changes nothing that lasts. Without O(control), and for keys whose value is not given, keys that live ten minutes at
    most are made and deleted.
  - Fails when a single pair came out wrong; the message is the table.
extends_documentation_fragment: [seatfleet.fleet.gateway, seatfleet.fleet.gateway.grants]
options:
  values:
    description: Key alias to value, for the keys whose value is known here.
    type: dict
    required: true
  control:
    description: Key alias in O(values) that no alias names. Left out, a key is made for the purpose.
    type: str
  evidence:
    description: File on the controller for the evidence as JSON.
    type: path
attributes:
  check_mode:
    support: partial
    description: Proves nothing in check mode, as the aliases may not be there yet.
  diff_mode:
    support: none
    description: Changes nothing.
author: [seatfleet]
"""

EXAMPLES = r"""
- name: Prove aliases
  seatfleet.fleet.litellm_proof:
    url: https://gateway.example.net
    admin_key: "{{ gateway_admin_key }}"
    host: fv-ml1
    values: "{{ vault_litellm_keys }}"
    grants:
      - {name: gen-large, seat: flash-next, keys: [infra-ops, all-agents]}
  delegate_to: localhost
"""

RETURN = r"""
table:
  description: One line per pair of key and alias.
  type: str
  returned: always
evidence:
  description: The same for programs (C(cells)), with the proxy's version and the time.
  type: dict
  returned: when something was proven
at_fault:
  description: Seats that do not answer through a gateway that does.
  type: list
  elements: str
  returned: when something was proven
"""

import json
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.seatfleet.fleet.plugins.module_utils.gateway_module import (
    CONNECTION,
    GRANT,
    gateway_of,
    sync,
)
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.gateway.verdict import (
    faulty_aliases,
    table,
)


def write_evidence(path: str, content: dict[str, Any]) -> None:
    """Write the proof as JSON, complete or not at all."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.part")
    part.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    part.replace(target)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            **CONNECTION,
            "grants": {"type": "list", "elements": "dict", "required": True, "options": GRANT},
            "values": {"type": "dict", "required": True, "no_log": True},
            "control": {"type": "str", "no_log": False},
            "evidence": {"type": "path"},
        },
        supports_check_mode=True,
    )
    params = module.params
    host = params["host"]
    if module.check_mode:
        module.exit_json(changed=False, table="not proven in check mode")
    undone = [f"proof of alias {entry['name']} of seat {entry['seat']}" for entry in params["grants"]]
    with gateway_of(module, undone) as gateway:
        live = gateway.list_deployments()
        aliases = [
            sync.ProofAlias(
                entry["name"],
                tuple(
                    item.id
                    for item in live
                    if item.managed
                    and not item.closed
                    and (item.alias, item.host, item.seat) == (entry["name"], host, entry["seat"])
                ),
                tuple(entry["keys"]),
            )
            for entry in params["grants"]
        ]
        proof = sync.prove(gateway, aliases, params["values"], control=params["control"])
    evidence = {
        "format": 1,
        "gateway": params["url"],
        "host": host,
        "version": proof.version,
        "proven_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "problems": list(proof.problems),
        "cells": [cell.as_dict() for cell in proof.cells],
    }
    if params["evidence"]:
        write_evidence(params["evidence"], evidence)
    faulty = faulty_aliases(proof.cells)
    seats = sorted({entry["seat"] for entry in params["grants"] if entry["name"] in faulty})
    result: dict[str, Any] = {"changed": False, "table": table(proof.cells), "evidence": evidence, "at_fault": seats}
    if proof.failed or proof.problems:
        wrong = [*proof.problems, *(f"key {cell.key}, alias {cell.alias}: {cell.sentence}" for cell in proof.failed)]
        module.fail_json(msg="\n".join([f"gateway {params['url']}:", *wrong, result["table"]]), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
