"""Ansible module: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: text_files
short_description: Keep text files as given, in one call
version_added: "0.1.0"
description:
  - Writes files of root, each whole or not at all. What M(ansible.builtin.template) does with five calls to the host
    per file (a directory for the transfer, a look, the transfer, the file, the removal) this does with one for all of
    them, because the texts come along with the arguments. For small texts; they may hold no secret, since differences
    are shown.
attributes:
  check_mode:
    description: Says which files would change; a new text is not validated then.
    support: full
  diff_mode:
    description: Shows the texts before and after.
    support: full
options:
  files:
    description: The files, written in this order; the first that cannot be written ends it.
    type: list
    elements: dict
    required: true
    suboptions:
      path:
        description: The file.
        type: path
        required: true
      content:
        description: The whole text, best from the lookup P(ansible.builtin.template#lookup). Empty removes the file.
        type: str
        required: true
      mode:
        description: Permissions as an octal number in quotes.
        type: str
        default: "0644"
      validate:
        description: Command that must accept the new text before it takes the file's place; C(%s) is where it lies.
        type: str
author:
  - seatfleet developers
"""

EXAMPLES = r"""
- name: Write the table
  seatfleet.fleet.text_files:
    files:
      - path: /etc/seatfleet-firewall.nft
        content: "{{ lookup('ansible.builtin.template', 'firewall.nft.j2') }}"
        validate: /usr/sbin/nft --check --file %s
"""

RETURN = r"""
paths:
  description: The files that were (or in check mode would be) written or removed.
  returned: success
  type: list
  elements: str
"""

import shlex
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.files import write_atomic

FILE: dict[str, Any] = {
    "path": {"type": "path", "required": True},
    "content": {"type": "str", "required": True},
    "mode": {"type": "str", "default": "0644"},
    "validate": {"type": "str"},
}
ARGUMENTS: dict[str, Any] = {"files": {"type": "list", "elements": "dict", "required": True, "options": FILE}}


@dataclass(frozen=True)
class Wanted:
    """One file as it should be."""

    path: Path
    content: str
    mode: int
    validate: str | None


def main() -> None:
    module = AnsibleModule(ARGUMENTS, supports_check_mode=True)
    written, differences = [], []
    for wanted in [load(module, entry) for entry in module.params["files"]]:
        text, mode = read(module, wanted.path)
        if (text, mode) == (wanted.content, wanted.mode) or (text is None and not wanted.content):
            continue
        if not module.check_mode:
            try:
                write(module, wanted)
            except OSError as error:
                module.fail_json(msg=f"{wanted.path}: the new text could not be written: {error}")
        written.append(str(wanted.path))
        seen = f" (mode {mode:04o})" if mode is not None else ""
        becomes = f"(mode {wanted.mode:04o})" if wanted.content else "(removed)"
        differences.append(
            {
                "before": text or "",
                "after": wanted.content,
                "before_header": f"{wanted.path}{seen}",
                "after_header": f"{wanted.path} {becomes}",
            }
        )
    module.exit_json(changed=bool(written), paths=written, diff=differences)


def load(module: AnsibleModule, entry: dict[str, Any]) -> Wanted:
    """Return one entry of the option in its typed form."""
    try:
        mode = int(entry["mode"], 8)
    except ValueError:
        module.fail_json(msg=f"{entry['path']}: mode: expected an octal number such as '0644', seen {entry['mode']!r}")
    return Wanted(Path(entry["path"]), entry["content"], mode, entry["validate"])


def read(module: AnsibleModule, path: Path) -> tuple[str | None, int | None]:
    """Return text and permissions, None where there is no file."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape"), stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return None, None
    except OSError as error:
        module.fail_json(msg=f"{path}: expected a file or nothing, seen: {error.strerror}")
        raise AssertionError from error


def write(module: AnsibleModule, wanted: Wanted) -> None:
    """Put the text in place, after the validation if there is one; without a text, remove the file."""
    path = wanted.path
    if not wanted.content:
        path.unlink(missing_ok=True)
        return
    if not path.parent.is_dir():
        module.fail_json(msg=f"{path}: expected a directory {path.parent}, seen none")
    if wanted.validate:
        trial = path.with_name(f".{path.name}.check")
        write_atomic(trial, wanted.content, wanted.mode)
        command = [str(trial) if word == "%s" else word for word in shlex.split(wanted.validate)]
        code, output, errors = module.run_command(command)
        trial.unlink()
        if code != 0:
            module.fail_json(msg=f"{path}: {wanted.validate} refuses the new text: {(errors or output).strip()}")
    write_atomic(path, wanted.content, wanted.mode)


if __name__ == "__main__":
    main()
