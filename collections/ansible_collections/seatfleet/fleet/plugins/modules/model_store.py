#!/usr/bin/python
# Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: model_store
short_description: Publish models on a host exactly as their manifests list them
description:
  - Copies each model from a directory or tar archive on the host to a staging directory, checks size and sha256 of
    every file, and publishes it in one rename as C(ROOT/NAME/REVISION12).
  - A model that is there is compared by manifest and file sizes, which takes milliseconds. Older revisions are not
    touched. A killed copy is resumed.
version_added: "0.1.0"
options:
  models:
    description: What must be there.
    type: list
    elements: dict
    required: true
    suboptions:
      manifest:
        description: Content of the model's manifest, C(files/models/NAME.json) of the project.
        type: dict
        required: true
      source:
        description: Directory or tar archive on the host with the model's files. Read only when the model is absent.
        type: path
        required: true
  root:
    description: The store.
    type: path
    default: /srv/models
  verify:
    description: Also compare the sha256 of every file of models that are there, which reads all of their bytes.
    type: bool
    default: false
  repair:
    description:
      - Replace a published model that is damaged. Without it the module fails and names what is wrong.
      - A seat that runs from it keeps the old files until it is restarted.
    type: bool
    default: false
  prune:
    description:
      - Remove published revisions that are not among O(models) and that no generation of any seat of the host names.
      - A generation that a seat can still go back to keeps its weights.
    type: bool
    default: false
  seats:
    description: Where the seats' generations are.
    type: path
    default: /etc/vllm/seats
attributes:
  check_mode:
    description: Predicts changes, problems of a source that is there included. A source that is not there yet is none.
    support: full
  diff_mode:
    description: Lists models before and after.
    support: full
author: seatfleet developers
"""

EXAMPLES = r"""
- name: Publish the lab's plain model
  seatfleet.fleet.model_store:
    models:
      - manifest: "{{ lookup('ansible.builtin.file', 'files/models/tiny-qwen3.json') | from_json }}"
        source: /srv/mirror/models/tiny-qwen3
"""

RETURN = r"""
models:
  description: For each model its O(ignore:name), C(path), and what was found C(before) (absent, present or damaged).
  returned: success
  type: list
  elements: dict
removed:
  description: Paths of revisions that were removed, or in check mode would be.
  returned: success
  type: list
  elements: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.model import models as store
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.paths import SEATS
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.problems import ProblemsError

REMEDY = "A damaged published model is replaced with repair (role variable model_store_repair: true)."


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "models": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "manifest": {"type": "dict", "required": True},
                    "source": {"type": "path", "required": True},
                },
            },
            "root": {"type": "path", "default": "/srv/models"},
            "verify": {"type": "bool", "default": False},
            "repair": {"type": "bool", "default": False},
            "prune": {"type": "bool", "default": False},
            "seats": {"type": "path", "default": SEATS},
        },
        supports_check_mode=True,
    )
    root = Path(module.params["root"])
    results, problems = [], []
    for entry in module.params["models"]:
        try:
            manifest = store.load_manifest(entry["manifest"], "manifest")
            outcome = store.ensure(
                root,
                manifest,
                Path(entry["source"]),
                hashes=module.params["verify"],
                repair=module.params["repair"],
                check=module.check_mode,
            )
            results.append((manifest, outcome))
        except ProblemsError as error:
            problems.extend(error.problems)
        except OSError as error:
            module.fail_json(msg=f"model store {root}: {error}")
    changed = any(outcome.changed for _, outcome in results)
    models = [
        {"name": manifest.name, "path": str(outcome.path), "before": outcome.before} for manifest, outcome in results
    ]
    if problems:
        module.fail_json(msg=f"{ProblemsError(problems)}\n{REMEDY}", models=models, changed=changed)
    wanted = [manifest for manifest, _ in results]
    doomed = (
        store.superfluous(root, wanted, store.referenced(Path(module.params["seats"])))
        if module.params["prune"]
        else []
    )
    if not module.check_mode:
        for path in doomed:
            store.remove(path)
    removed = [str(path) for path in doomed]
    module.exit_json(changed=changed or bool(doomed), models=models, removed=removed, diff=_diff(results, removed))


def _diff(results: list[tuple[store.Manifest, store.Outcome]], removed: list[str]) -> dict[str, str]:
    before = [f"{outcome.path} {outcome.before}\n" for _, outcome in results if outcome.before != "absent"]
    before += [f"{path} present\n" for path in removed]
    after = [f"{outcome.path} present\n" for _, outcome in results]
    return {"before": "".join(before), "after": "".join(after)}


if __name__ == "__main__":
    main()
