#!/usr/bin/python
# Copyright: seatfleet developers
# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
from __future__ import annotations

DOCUMENTATION = r"""
---
module: seat_probe
short_description: Probe running seats with the host's own seatctl
version_added: 0.1.0
description:
  - Runs C(seatctl probe) of the host's toolbox for each seat, one after the other, and returns every report.
  - A seat that fails its probe does not fail the module, so that one table can show all seats of all hosts;
    fail on RV(causes) afterwards, or set O(fail_on_verdict=true).
  - Changes nothing on the host but evidence files, so it never reports a change.
options:
  seats:
    description: Names of the seats to probe.
    type: list
    elements: str
    required: true
  level:
    description:
      - How far to go; each level includes the former.
      - V(passive) only reads. V(ready) and V(identity) generate a few tokens. V(acceptance) and V(prefix) generate up
        to about 6000 tokens per seat and need a quiet seat.
    type: str
    choices: [passive, ready, identity, acceptance, prefix]
    default: identity
  ready_timeout:
    description:
      - Seconds to wait for a seat to become READY; V(0) tries once.
      - Without it, C(probe.ready_timeout_s) of the seat applies.
    type: int
  quiet_timeout:
    description: Seconds to wait for other requests to end before acceptance is measured.
    type: int
    default: 30
  fail_on_verdict:
    description: Fail when a seat is not READY or only BUSY, with the first cause as the message.
    type: bool
    default: false
  seatctl:
    description: The toolbox's command.
    type: path
    default: /opt/vllm/toolbox/bin/seatctl
  seats_directory:
    description: Where seats keep their generations.
    type: path
    default: /etc/vllm/seats
  evidence_directory:
    description: Reports, goldens and baselines are kept in a directory per seat below this one.
    type: path
    default: /var/lib/seatfleet/evidence
attributes:
  check_mode:
    support: full
    description: Sends nothing; RV(results) says which seats would be probed.
author:
  - seatfleet developers
"""

EXAMPLES = r"""
- name: Probe the seats of this host
  seatfleet.fleet.seat_probe:
    seats: [flash-next]
    level: acceptance
  register: __probe
"""

RETURN = r"""
results:
  description: One report per seat, in the order of O(seats); docs/probe.md describes the fields.
  returned: always
  type: list
  elements: dict
  sample:
    - {seat: flash-next, host: fv-ml1, level: identity, verdict: READY, exit: 0, cause: null}
table:
  description: The reports as one readable table.
  returned: always
  type: str
causes:
  description: One line per seat whose probe failed; a busy seat is not a failed one.
  returned: always
  type: list
  elements: str
"""

import json

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.health import probe_report


def unusable(seat: str, level: str, exit_code: int, cause: str) -> dict[str, object]:
    """Return a report for a seat whose probe itself could not be run."""
    report = probe_report.Report(seat, "", level, "", "", "")
    report.checks.append(probe_report.Check("seatctl", "fail", None, None, None, cause, exit_code))
    return report.as_json()


def probe(module: AnsibleModule, seat: str) -> dict[str, object]:
    """Run seatctl for one seat and return its report."""
    params = module.params
    argv = [
        params["seatctl"],
        "probe",
        "--manifest",
        f"{params['seats_directory']}/{seat}/current/manifest.json",
        "--evidence",
        f"{params['evidence_directory']}/{seat}",
        "--level",
        params["level"],
        "--quiet-timeout",
        str(params["quiet_timeout"]),
        "--json",
    ]
    if params["ready_timeout"] is not None:
        argv += ["--ready-timeout", str(params["ready_timeout"])]
    code, out, err = module.run_command(argv, handle_exceptions=False)
    try:
        return json.loads(out)
    except ValueError:
        cause = err.strip() or f"{params['seatctl']} ended with {code} and printed no report"
        return unusable(seat, params["level"], code or probe_report.EXIT_INTERNAL, cause)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "seats": {"type": "list", "elements": "str", "required": True},
            "level": {"type": "str", "choices": list(probe_report.LEVELS), "default": "identity"},
            "ready_timeout": {"type": "int"},
            "quiet_timeout": {"type": "int", "default": 30},
            "fail_on_verdict": {"type": "bool", "default": False},
            "seatctl": {"type": "path", "default": "/opt/vllm/toolbox/bin/seatctl"},
            "seats_directory": {"type": "path", "default": "/etc/vllm/seats"},
            "evidence_directory": {"type": "path", "default": "/var/lib/seatfleet/evidence"},
        },
        supports_check_mode=True,
    )
    if module.check_mode:
        results = [
            {"seat": seat, "level": module.params["level"], "verdict": "WOULD PROBE"} for seat in module.params["seats"]
        ]
        module.exit_json(changed=False, results=results, table=probe_report.table(results), causes=[])
    try:
        results = [probe(module, seat) for seat in module.params["seats"]]
    except OSError as error:
        module.fail_json(
            msg=f"cannot run {module.params['seatctl']}: {error.strerror}. The toolbox comes with the first seat: run "
            "site.yml for this host",
            results=[],
            table="",
            causes=[],
        )
    causes = [
        f"{result['seat']}: {result['verdict']}: {result['cause']}"
        for result in results
        if result["exit"] not in (probe_report.EXIT_READY, probe_report.EXIT_BUSY)
    ]
    outcome = {"changed": False, "results": results, "table": probe_report.table(results), "causes": causes}
    if causes and module.params["fail_on_verdict"]:
        module.fail_json(msg="\n".join(causes), **outcome)
    module.exit_json(**outcome)


if __name__ == "__main__":
    main()
