#!/usr/bin/python
# Copyright: seatfleet developers
# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
from __future__ import annotations

DOCUMENTATION = r"""
---
module: host_preflight
short_description: Tell whether a host would carry its seats
version_added: "0.1.0"
description:
  - Compares what a host is (cards, driver, kernel, packages, memory, disk, tools, ports) with what it is declared to
    carry.
  - Changes nothing and does not fail for what it finds. Each fault is one sentence with what was expected, what was
    seen and what to do next.
options:
  host:
    description: Name of the host in the report.
    type: str
    required: true
  wishes:
    description: What the filter P(seatfleet.fleet.preflight_wishes#filter) returns for the host.
    type: dict
    required: true
  rules:
    description:
      - Rules of the class of hosts, all optional.
      - C(kernel_allow) and C(kernel_deny), lists of shell patterns of kernel releases.
      - C(synchronized), whether the clock has to be.
      - C(shm), C(disk_reserve), C(memory_reserve), sizes as in seats.
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
    description: Changes nothing.
  diff_mode:
    support: none
    description: Changes nothing.
author:
  - seatfleet developers
"""

EXAMPLES = r"""
- name: Look at the host
  seatfleet.fleet.host_preflight:
    host: "{{ inventory_hostname }}"
    wishes: "{{ __preflight_wishes }}"
    rules: {kernel_deny: ["6.17.0-1008-*"]}
  register: __preflight
"""

RETURN = r"""
report:
  description: One line of the table, all checks, and sentences for those that are not fine.
  returned: success
  type: dict
  contains:
    checks:
      description: Everything that was looked at.
      type: list
      elements: dict
      sample:
        - {id: kernel, status: ok, expected: a kernel that is not denied, seen: 6.17.0-1031-nvidia, next: ""}
    failed:
      description: Sentences of the faults that would keep a seat from serving.
      type: list
      elements: str
    warned:
      description: Sentences of what an operator should know.
      type: list
      elements: str
    not_checked:
      description: Sentences of what could not be looked at.
      type: list
      elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.host import preflight
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.host.hostfacts import LocalHost, read_facts


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "wishes": {"type": "dict", "required": True},
            "rules": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    host = LocalHost()
    try:
        rules = preflight.Rules.load(module.params["rules"])
        wishes = preflight.load_wishes(module.params["wishes"])
        facts = read_facts(host)
    except ValueError as error:
        module.fail_json(msg=str(error))
    checks = preflight.judge(facts, wishes, preflight.look(host, wishes), rules)
    module.exit_json(changed=False, report=preflight.report(module.params["host"], facts, checks))


if __name__ == "__main__":
    main()
