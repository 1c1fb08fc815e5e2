from __future__ import annotations

DOCUMENTATION = r"""
module: litellm_ready
short_description: Wait until a LiteLLM proxy on this host is ready
description:
  - Ready is a proxy that answers C(/health/readiness) with status 200 and says that its database is connected; the
    status alone is 200 without the database too.
  - Does not wait for the limit when the unit ended or was restarted meanwhile; fails with its last log lines.
options:
  unit:
    description: The proxy's systemd unit.
    type: str
    default: litellm.service
  port:
    description: Port of the proxy on the loopback address.
    type: int
    required: true
  timeout_s:
    description: Seconds to wait.
    type: float
    default: 300.0
attributes:
  check_mode:
    support: partial
    description: Does not wait in check mode.
  diff_mode:
    support: none
    description: Changes nothing.
author: [seatfleet]
"""

EXAMPLES = r"""
- name: Wait until the proxy is ready
  seatfleet.fleet.litellm_ready:
    port: 4000
"""

RETURN = r"""
waited_s:
  description: Seconds until it was ready.
  type: float
  returned: success
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.seatfleet.fleet.plugins.module_utils.litellm_service import Service


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "default": "litellm.service"},
            "port": {"type": "int", "required": True},
            "timeout_s": {"type": "float", "default": 300.0},
        },
        supports_check_mode=True,
    )
    if module.check_mode:
        module.exit_json(changed=False)
    unit, port, limit = (module.params[name] for name in ("unit", "port", "timeout_s"))
    begin = time.monotonic()
    problem = Service(module, unit, port).wait(limit)
    if problem is not None:
        module.fail_json(msg=f"the proxy on port {port} is not ready: {problem}")
    module.exit_json(changed=False, waited_s=round(time.monotonic() - begin, 1))


if __name__ == "__main__":
    main()
