from __future__ import annotations

DOCUMENTATION = r"""
module: litellm_service
short_description: Run a LiteLLM proxy as its files say, and wait until it is ready
description:
  - Enables the unit, and restarts it when it does not run or when one of O(files) is newer than the running process. So
    a run that was cut off between writing a file and the restart is made good by the next one, which a handler is not.
  - Ready is a proxy that answers C(/health/readiness) with status 200 and says that its database is connected; the
    status alone is 200 without the database too.
  - Does not wait for the limit when the unit ended or was restarted meanwhile; fails with its last log lines.
options:
  unit:
    description: The proxy's systemd unit.
    type: str
    default: litellm.service
  files:
    description: Files and links that the process reads at its start, the unit included.
    type: list
    elements: path
    required: true
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
    support: full
    description: Tells whether it would restart; does not wait.
  diff_mode:
    support: full
    description: Names what is newer than the process.
author: [seatfleet]
"""

EXAMPLES = r"""
- name: Run the proxy as configured
  seatfleet.fleet.litellm_service:
    port: 4000
    files: [/etc/systemd/system/litellm.service, /etc/litellm/config.yaml]
"""

RETURN = r"""
restarted:
  description: Whether it was (or in check mode would be) restarted.
  type: bool
  returned: success
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
            "files": {"type": "list", "elements": "path", "required": True},
            "port": {"type": "int", "required": True},
            "timeout_s": {"type": "float", "default": 300.0},
        },
        supports_check_mode=True,
    )
    params = module.params
    service = Service(module, params["unit"], params["port"])
    reasons = service.outdated(params["files"])
    enable = not service.enabled()
    begin = time.monotonic()
    if not module.check_mode:
        problem = service.enable() if enable else None
        problem = problem or (service.restart if reasons else service.wait)(params["timeout_s"])
        if problem is not None:
            module.fail_json(msg=f"the proxy on port {params['port']} is not ready: {problem}")
    after = [f"restarted: {reason}" for reason in reasons] + ["enabled"] * enable
    module.exit_json(
        changed=bool(after),
        restarted=bool(reasons),
        waited_s=round(time.monotonic() - begin, 1),
        diff={"before": "", "after": "".join(f"{line}\n" for line in after)},
    )


if __name__ == "__main__":
    main()
