"""Ansible module: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: text_file
short_description: Keep a text file as given, in one call
version_added: "0.1.0"
description:
  - Writes a file of root whole or not at all. What M(ansible.builtin.template) does with five calls to the host (a
    directory for the transfer, a look, the transfer, the file, the removal) this does with one, because the text comes
    along with the arguments. For small texts; they may hold no secret, since differences are shown.
attributes:
  check_mode:
    description: Says whether the file would change; a new text is not validated then.
    support: full
  diff_mode:
    description: Shows the text before and after.
    support: full
options:
  path:
    description: The file.
    type: path
    required: true
  content:
    description: The whole text, best from the lookup P(ansible.builtin.template#lookup).
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
  seatfleet.fleet.text_file:
    path: /etc/seatfleet/firewall.nft
    content: "{{ lookup('ansible.builtin.template', 'firewall.nft.j2') }}"
    validate: /usr/sbin/nft --check --file %s
"""

RETURN = r"""
path:
  description: The file.
  returned: always
  type: str
"""

import shlex
import stat
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.files import write_atomic

ARGUMENTS: dict[str, Any] = {
    "path": {"type": "path", "required": True},
    "content": {"type": "str", "required": True},
    "mode": {"type": "str", "default": "0644"},
    "validate": {"type": "str"},
}


def main() -> None:
    module = AnsibleModule(ARGUMENTS, supports_check_mode=True)
    path, content = Path(module.params["path"]), module.params["content"]
    try:
        mode = int(module.params["mode"], 8)
    except ValueError:
        module.fail_json(msg=f"{path}: mode: expected an octal number such as '0644', seen {module.params['mode']!r}")
    before, seen = read(module, path)
    changed = (before, seen) != (content, mode)
    if changed and not module.check_mode:
        try:
            write(module, path, content, mode)
        except OSError as error:
            module.fail_json(msg=f"{path}: the new text could not be written: {error}")
    headers = [f"{path} (mode {seen:04o})" if seen is not None else str(path), f"{path} (mode {mode:04o})"]
    diff = {"before": before or "", "after": content, "before_header": headers[0], "after_header": headers[1]}
    module.exit_json(changed=changed, path=str(path), **({"diff": diff} if changed else {}))


def read(module: AnsibleModule, path: Path) -> tuple[str | None, int | None]:
    """Return text and permissions, None where there is no file."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape"), stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return None, None
    except OSError as error:
        module.fail_json(msg=f"{path}: expected a file or nothing, seen: {error.strerror}")
        raise AssertionError from error


def write(module: AnsibleModule, path: Path, content: str, mode: int) -> None:
    """Put the text in place, after the validation if there is one."""
    if not path.parent.is_dir():
        module.fail_json(msg=f"{path}: expected a directory {path.parent}, seen none")
    if module.params["validate"]:
        trial = path.with_name(f".{path.name}.check")
        write_atomic(trial, content, mode)
        command = [str(trial) if word == "%s" else word for word in shlex.split(module.params["validate"])]
        code, output, errors = module.run_command(command)
        trial.unlink()
        if code != 0:
            module.fail_json(
                msg=f"{path}: {module.params['validate']} refuses the new text: {(errors or output).strip()}"
            )
    write_atomic(path, content, mode)


if __name__ == "__main__":
    main()
