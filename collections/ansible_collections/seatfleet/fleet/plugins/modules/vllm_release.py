#!/usr/bin/python
# Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_release
short_description: Install vLLM releases on a host, offline, patched and verified
description:
  - Builds a virtual environment C(ROOT/VERSION-HASH12) per release from a wheelhouse on the host, every wheel checked
    against the lock; applies the patch series by sha256; compiles bytecode; imports as the service user; lets patches
    about prefix hits prove themselves; and writes the marker last. A directory without marker is the rest of an
    interrupted install and is built again.
  - A release that is there is compared by marker and patched files, which takes milliseconds.
  - Nothing is downloaded, and a finished release is never changed.
version_added: "0.1.0"
options:
  releases:
    description: What must be there; the P(seatfleet.fleet.release#lookup) lookup makes it from the catalogue.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name in the catalogue, for messages.
        type: str
        required: true
      id:
        description: The id that the controller computed. The module fails when it comes to another one.
        type: str
      distribution:
        description: The distribution that O(releases[].version) is the version of.
        type: str
        required: true
      version:
        description: Version of the distribution.
        type: str
        required: true
      lock:
        description: Text of the lock.
        type: str
        required: true
      lock_name:
        description: Name of the lock, for messages.
        type: str
        default: lock
      series:
        description: The selected patches, the content of C(series.yml).
        type: dict
      diffs:
        description: Text of each selected patch, by its name.
        type: dict
        default: {}
      imports:
        description: Modules that the service user must be able to import.
        type: list
        elements: str
        default: [torch, vllm, vllm.entrypoints.cli.serve]
      wheelhouse:
        description: Directory or tar archive on the host with the wheels. Read only when the release is absent.
        type: path
        required: true
  root:
    description: Where releases are.
    type: path
    default: /opt/vllm/releases
  user:
    description: The service user, which imports the result. Unset, the module's own user does.
    type: str
  python:
    description: Interpreter to build with. Unset, C(python3.N) of the lock is looked for in C(PATH).
    type: path
  link:
    description: Symbolic link to keep pointing at the release; for exactly one release.
    type: path
  activate:
    description:
      - Command to run, once, when O(link) has come to lead to another release, for what runs from the one before.
      - Only when it has succeeded is that written down (C(ROOT/.activated)), so that a run which ended in between is
        completed by the next one. A task that asks whether this one changed something would never learn of it.
    type: list
    elements: str
  verify:
    description: Also compare the sha256 of every installed file, which reads all of their bytes.
    type: bool
    default: false
  repair:
    description:
      - Build a damaged release again. Without it the module fails and names what is wrong.
      - Stop the seats that run from it first.
    type: bool
    default: false
  selftest:
    description:
      - A new release whose patches are about prefix hits must pass the state oracle, in its own Python, before it is
        marked. Takes under 30 s of CPU and no GPU.
    type: bool
    default: true
  keep:
    description:
      - Remove releases, except those named here, this many others (the newest), and whatever a seat's generation or a
        process uses. Unset, nothing is removed.
    type: int
  seats_root:
    description: Seats whose generations count as users of a release.
    type: path
    default: /etc/vllm/seats
attributes:
  check_mode:
    description:
      - Predicts installs and removals. A wheelhouse, service user or interpreter that an earlier task would bring may
        be missing then.
    support: full
  diff_mode:
    description: Lists releases before and after.
    support: full
author: seatfleet developers
"""

EXAMPLES = r"""
- name: Install releases
  seatfleet.fleet.vllm_release:
    releases: "{{ query('seatfleet.fleet.release', '0.32.0+cpu.1', catalogue=releases, architecture='x86_64',
      project_dir=fleet_project_dir, wheelhouse_dir='/srv/mirror/wheelhouses') }}"
    user: vllm
"""

RETURN = r"""
releases:
  description: By name, the C(id), C(path) and C(patches) of each release, C(before) and the C(seconds) an install took.
  returned: success
  type: dict
removed:
  description: Ids of releases that were removed.
  returned: success
  type: list
  elements: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.files import write_atomic
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.problems import ProblemsError
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.release import installs, releases

ACTIVATED = ".activated"
RELEASE_OPTIONS = {
    "name": {"type": "str", "required": True},
    "id": {"type": "str"},
    "distribution": {"type": "str", "required": True},
    "version": {"type": "str", "required": True},
    "lock": {"type": "str", "required": True},
    "lock_name": {"type": "str", "default": "lock"},
    "series": {"type": "dict"},
    "diffs": {"type": "dict", "default": {}},
    "imports": {"type": "list", "elements": "str", "default": list(releases.DEFAULT_IMPORTS)},
    "wheelhouse": {"type": "path", "required": True},
}
REMEDY = (
    "A damaged release is built again with repair (role variable vllm_release_repair: true); stop the seats that run "
    "from it first."
)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "releases": {"type": "list", "elements": "dict", "required": True, "options": RELEASE_OPTIONS},
            "root": {"type": "path", "default": "/opt/vllm/releases"},
            "user": {"type": "str"},
            "python": {"type": "path"},
            "link": {"type": "path"},
            "activate": {"type": "list", "elements": "str"},
            "verify": {"type": "bool", "default": False},
            "repair": {"type": "bool", "default": False},
            "selftest": {"type": "bool", "default": True},
            "keep": {"type": "int"},
            "seats_root": {"type": "path", "default": "/etc/vllm/seats"},
        },
        supports_check_mode=True,
    )
    root = Path(module.params["root"])
    if module.params["link"] and len(module.params["releases"]) != 1:
        module.fail_json(msg=f"link: expected exactly one release, seen {len(module.params['releases'])}")
    outcomes = _install(module, root)
    try:
        linked = _link(module, outcomes)
        linked |= _activate(module, root / ACTIVATED, outcomes)
        removed = _prune(module, root, outcomes)
    except OSError as error:
        module.fail_json(msg=f"releases in {root}: {error}")
    module.exit_json(
        changed=linked or bool(removed) or any(outcome.changed for outcome in outcomes),
        releases={outcome.release.name: _describe(outcome) for outcome in outcomes},
        removed=[path.name for path in removed],
        diff=_diff(outcomes, removed),
    )


def _install(module: AnsibleModule, root: Path) -> list[installs.Outcome]:
    host = installs.Host(root, module.params["user"], module.params["python"], module.params["selftest"])
    outcomes, problems = [], []
    for entry in module.params["releases"]:
        try:
            outcome = installs.ensure(
                host,
                releases.load_release(entry),
                Path(entry["wheelhouse"]),
                every_file=module.params["verify"],
                repair=module.params["repair"],
                check=module.check_mode,
            )
            outcomes.append(outcome)
        except ProblemsError as error:
            problems.extend(error.problems)
        except (installs.InstallError, OSError) as error:
            module.fail_json(msg=str(error), changed=True)
    if problems:
        module.fail_json(msg=f"{ProblemsError(problems)}\n{REMEDY}")
    return outcomes


def _link(module: AnsibleModule, outcomes: list[installs.Outcome]) -> bool:
    if not module.params["link"]:
        return False
    link, path = Path(module.params["link"]), outcomes[0].path
    if module.check_mode:
        return not (link.is_symlink() and link.readlink() == path)
    return releases.set_link(link, path)


def _activate(module: AnsibleModule, kept: Path, outcomes: list[installs.Outcome]) -> bool:
    """Run the command unless it has succeeded for this release already."""
    wanted = f"{outcomes[0].release.id}\n" if module.params["activate"] else ""
    if not wanted or (kept.is_file() and kept.read_text() == wanted):
        return False
    if not module.check_mode:
        module.run_command(module.params["activate"], check_rc=True)
        write_atomic(kept, wanted)
    return True


def _prune(module: AnsibleModule, root: Path, outcomes: list[installs.Outcome]) -> list[Path]:
    if module.params["keep"] is None or not root.is_dir():
        return []
    links = [*Path(module.params["seats_root"]).glob("*/generations/*/release")]
    links += [Path(module.params["link"])] if module.params["link"] else []
    wanted = {outcome.release.id for outcome in outcomes}
    with releases.locked(root):
        removed = releases.superfluous(root, module.params["keep"], wanted, releases.references(root, links))
        if not module.check_mode:
            for path in removed:
                releases.remove(path)
    return removed


def _describe(outcome: installs.Outcome) -> dict[str, object]:
    series = outcome.release.series
    return {
        "id": outcome.release.id,
        "path": str(outcome.path),
        "patches": [patch.name for patch in series.patches] if series else [],
        "before": outcome.before,
        "seconds": outcome.seconds,
    }


def _diff(outcomes: list[installs.Outcome], removed: list[Path]) -> dict[str, str]:
    before = [f"{outcome.path} ({outcome.release.name}) {outcome.before}\n" for outcome in outcomes]
    after = [f"{outcome.path} ({outcome.release.name}) present\n" for outcome in outcomes]
    before += [f"{path} not used\n" for path in removed]
    return {"before": "".join(before), "after": "".join(after)}


if __name__ == "__main__":
    main()
