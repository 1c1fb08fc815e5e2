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

import json
import time
import urllib.error
import urllib.request

from ansible.module_utils.basic import AnsibleModule

PAUSE_S = 1.0
LOG_LINES = 15


def state(module: AnsibleModule, unit: str) -> tuple[str, str]:
    """Return the unit's state and how often systemd has restarted it by itself."""
    _, out, _ = module.run_command(["systemctl", "show", unit, "--property=ActiveState,NRestarts"])
    fields = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
    return fields.get("ActiveState", "unknown"), fields.get("NRestarts", "0")


def answer(port: int) -> str:
    """Return ``ready``, or what the proxy says instead."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}/health/readiness", timeout=10) as response:
            database = json.load(response).get("db")
    except (urllib.error.URLError, OSError, ValueError, AttributeError) as error:
        return f"no answer ({error})"
    return "ready" if database == "connected" else f"database: {database}"


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
    _, restarts = state(module, unit)
    while (seen := answer(port)) != "ready":
        active, now = state(module, unit)
        waited = time.monotonic() - begin
        if active not in ("active", "activating") or now != restarts or waited > limit:
            _, log, _ = module.run_command(["journalctl", "-u", unit, "-n", str(LOG_LINES), "-o", "cat", "--no-pager"])
            what = f"{unit} is {active}, restarted {now} times" if waited <= limit else f"not ready in {limit:.0f} s"
            module.fail_json(msg=f"the proxy on port {port} is not ready: {what}; {seen}. Its last words:\n{log}")
        time.sleep(PAUSE_S)
    module.exit_json(changed=False, waited_s=round(time.monotonic() - begin, 1))


if __name__ == "__main__":
    main()
