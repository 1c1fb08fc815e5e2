from __future__ import annotations

DOCUMENTATION = r"""
name: release
short_description: What the vllm_release module needs for entries of the release catalogue
description:
  - Reads locks, patch series and diffs of the named catalogue entries on the controller, checks that they fit together,
    and computes the id of each release before anything is installed.
version_added: "0.1.0"
options:
  _terms:
    description: Names of entries of the catalogue.
    required: true
  catalogue:
    description: The release catalogue.
    type: dict
    required: true
  architecture:
    description: The host's architecture, C(x86_64) or C(aarch64).
    type: str
    required: true
  project_dir:
    description: The checkout; locks and series are relative to it.
    type: path
    required: true
  wheelhouse_dir:
    description: Directory on the host that wheelhouses are below, by the name of their lock.
    type: path
    required: true
  suffix:
    description: Appended to a wheelhouse's path, C(.tar) for an archive.
    type: str
    default: ""
author: seatfleet developers
"""

EXAMPLES = r"""
- name: Install releases
  seatfleet.fleet.vllm_release:
    releases: "{{ query('seatfleet.fleet.release', '0.32.0+cpu.1', catalogue=releases, architecture='x86_64',
      project_dir=fleet_project_dir, wheelhouse_dir='/srv/mirror/wheelhouses') }}"
"""

RETURN = r"""
_raw:
  description: Per name the options of one release of the module, its C(id) and C(lock_name).
  type: list
  elements: dict
"""

from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.problems import Problem, ProblemsError
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.release import releases


class LookupModule(LookupBase):
    def run(self, terms: list[str], variables: dict[str, Any] | None = None, **kwargs: object) -> list[dict[str, Any]]:
        self.set_options(var_options=variables, direct=kwargs)
        catalogue = self.get_option("catalogue")
        results, problems = [], []
        for name in terms:
            try:
                if name not in catalogue:
                    known = f"one of {', '.join(sorted(catalogue))}"
                    raise ProblemsError([Problem("releases", f"release {name}", "", known, name)])
                results.append(self._read(name, catalogue[name]))
            except ProblemsError as error:
                problems.extend(error.problems)
        if problems:
            raise AnsibleLookupError(str(ProblemsError(problems)))
        return results

    def _read(self, name: str, entry: dict[str, Any]) -> dict[str, Any]:
        project, architecture = Path(self.get_option("project_dir")), self.get_option("architecture")
        data = releases.read_release(project, name, entry, architecture, yaml.safe_load)
        wheelhouse = Path(self.get_option("wheelhouse_dir")) / (data["lock_name"] + self.get_option("suffix"))
        return {**data, "wheelhouse": str(wheelhouse)}
