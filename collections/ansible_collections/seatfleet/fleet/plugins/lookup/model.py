from __future__ import annotations

DOCUMENTATION = r"""
name: model
short_description: What the model_store module needs for entries of the model catalogue
description: Reads the committed manifests of the named catalogue entries on the controller and checks them.
version_added: "0.1.0"
options:
  _terms:
    description: Names of entries of the catalogue.
    required: true
  catalogue:
    description: The model catalogue.
    type: dict
    required: true
  project_dir:
    description: The checkout; manifests are relative to it.
    type: path
    required: true
  mirror_dir:
    description: Directory on the hosts that the sources are below.
    type: path
    required: true
author: seatfleet developers
"""

EXAMPLES = r"""
- name: Publish models
  seatfleet.fleet.model_store:
    models: >-
      {{ query('seatfleet.fleet.model', *names, catalogue=models, project_dir=fleet_project_dir,
      mirror_dir=fleet_mirror_dir) }}
"""

RETURN = r"""
_raw:
  description: One dictionary with C(manifest) and C(source) per name.
  type: list
  elements: dict
"""

import json
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.model import models as store
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.problems import Problem, ProblemsError


class LookupModule(LookupBase):
    def run(self, terms: list[str], variables: dict[str, Any] | None = None, **kwargs: object) -> list[dict[str, Any]]:
        self.set_options(var_options=variables, direct=kwargs)
        catalogue = self.get_option("catalogue")
        project, mirror = Path(self.get_option("project_dir")), Path(self.get_option("mirror_dir"))
        results, problems = [], []
        for name in terms:
            try:
                results.append(_read(name, catalogue, project, mirror))
            except ProblemsError as error:
                problems.extend(error.problems)
        if problems:
            raise AnsibleLookupError(str(ProblemsError(problems)))
        return results


def _read(name: str, catalogue: dict[str, Any], project: Path, mirror: Path) -> dict[str, Any]:
    entry = catalogue.get(name)
    if entry is None:
        raise ProblemsError([Problem("models", f"model {name}", "", f"one of {', '.join(sorted(catalogue))}", name)])
    path = project / entry["manifest"]
    if not path.is_file():
        expected = "a committed manifest (seatctl model manifest DIRECTORY writes one)"
        raise ProblemsError([Problem(entry["manifest"], f"model {name}", "manifest", expected, "no such file")])
    manifest = store.load_manifest(json.loads(path.read_text(encoding="utf-8")), entry["manifest"])
    problems = [
        Problem(entry["manifest"], f"model {name}", field, f"{expected} as in the catalogue", seen)
        for field, expected, seen in (
            ("name", name, manifest.name),
            ("revision", str(entry["revision"]), manifest.revision),
        )
        if expected != seen
    ]
    if problems:
        raise ProblemsError(problems)
    return {"manifest": manifest.to_mapping(), "source": str(mirror / entry.get("mirror", f"models/{name}"))}
