from __future__ import annotations

DOCUMENTATION = r"""
module: litellm_config
short_description: Aliases of a host's seats in the config file of a LiteLLM proxy
description:
  - For a proxy whose C(model_list) is a file. Owns one marked block of the file; everything outside keeps every byte,
    and inside only the entries of O(host) change.
  - The API keys of the seats go to an environment file of their own, mode 0600, that a drop-in adds to the unit.
  - The proxy is restarted when one of the files changed, and must be ready again; otherwise the old files come back and
    the module fails. Running streams end by themselves; until the proxy listens again, new connections are refused
    (LiteLLM reads its file at the start only).
  - Runs on the gateway's host. Edits of several hosts at once queue at a lock.
options:
  path:
    description: The proxy's config file, or one that it includes.
    type: path
    default: /etc/litellm/aliases.yaml
  environment_file:
    description: Environment file for the seats' API keys.
    type: path
    default: /etc/litellm/seatfleet.env
  unit:
    description: The proxy's systemd unit.
    type: str
    default: litellm.service
  port:
    description: Port of the proxy on the loopback address.
    type: int
    default: 4000
  ready_timeout_s:
    description: Seconds until the proxy must be ready after a restart.
    type: float
    default: 300.0
  host:
    description: The GPU host whose seats are meant.
    type: str
    required: true
  aliases:
    description: All aliases of all seats of O(host), as M(seatfleet.fleet.litellm_aliases) takes them.
    type: list
    elements: dict
    required: true
attributes:
  check_mode:
    support: full
    description: Tells what would change.
  diff_mode:
    support: full
    description: Shows deployments without their secrets.
author: [seatfleet]
"""

EXAMPLES = r"""
- name: Register aliases in the gateway's file
  seatfleet.fleet.litellm_config:
    host: "{{ inventory_hostname }}"
    aliases: "{{ __aliases }}"
  delegate_to: gw-1
"""

RETURN = r"""
dropped:
  description: Aliases that the file does not have any more.
  type: list
  elements: str
  returned: success
restarted:
  description: Whether the proxy was restarted.
  type: bool
  returned: success
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.seatfleet.fleet.plugins.module_utils.gateway_module import ALIAS, diff_text, wanted_alias
from ansible_collections.seatfleet.fleet.plugins.module_utils.litellm_service import Service
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.gateway.config import (
    ConfigError,
    edit,
    environment,
)


@contextmanager
def edits_of_one(directory: Path) -> Iterator[None]:
    """Let one module at a time edit the files of a directory."""
    with (directory / ".seatfleet.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read(path: Path) -> str:
    """Return a file's text, nothing for one that is absent."""
    return path.read_text(encoding="utf-8") if path.exists() else ""


def write(path: Path, text: str, mode: int | None = None) -> None:
    """Write a file, complete or not at all; owner and mode of an existing one are kept unless a mode is given."""
    part = path.with_name(f".{path.name}.part")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    if path.exists():
        old = path.stat()
        os.chown(part, old.st_uid, old.st_gid)
        part.chmod(old.st_mode & 0o777)
    if mode is not None:
        part.chmod(mode)
    part.replace(path)


def apply(module: AnsibleModule, service: Service, files: dict[Path, tuple[str, str, int | None]]) -> None:
    """Write the files and restart the proxy; on failure put the old ones back, restart and fail."""
    for path, (_, new, mode) in files.items():
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        write(path, new, mode)
    problem = service.restart(module.params["ready_timeout_s"])
    if problem is None:
        return
    for path, (old, _, mode) in files.items():
        write(path, old, mode)
    again = service.restart(module.params["ready_timeout_s"])
    state = "The old files are back and the proxy is ready." if again is None else f"With the old files: {again}"
    module.fail_json(msg=f"the proxy did not get ready with the new aliases: {problem}\n{state}")


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "default": "/etc/litellm/aliases.yaml"},
            "environment_file": {"type": "path", "default": "/etc/litellm/seatfleet.env"},
            "unit": {"type": "str", "default": "litellm.service"},
            "port": {"type": "int", "default": 4000},
            "ready_timeout_s": {"type": "float", "default": 300.0},
            "host": {"type": "str", "required": True},
            "aliases": {"type": "list", "elements": "dict", "required": True, "options": ALIAS},
        },
        supports_check_mode=True,
    )
    params = module.params
    host = params["host"]
    path, env = Path(params["path"]), Path(params["environment_file"])
    drop_in = Path(f"/etc/systemd/system/{params['unit']}.d/seatfleet.conf")
    if not path.exists():
        module.fail_json(msg=f"{path}: expected the config file of the gateway, seen no such file; set path")
    wanted = [wanted_alias(entry, host) for entry in params["aliases"]]
    with edits_of_one(path.parent):
        try:
            edited = edit(read(path), host, wanted)
        except ConfigError as error:
            module.fail_json(msg=f"{path}: {error}")
        new: dict[Path, tuple[str, int | None]] = {
            path: (edited.text, None),
            env: (environment(read(env), host, {want.seat: want.api_key for want in wanted}), 0o600),
            drop_in: (f"[Service]\nEnvironmentFile={env}\n", 0o644),
        }
        files: dict[Path, tuple[str, str, int | None]] = {
            file: (read(file), text, mode) for file, (text, mode) in new.items() if read(file) != text
        }
        service = Service(module, params["unit"], params["port"])
        # Files that an earlier run wrote before it was cut off count as well.
        restart = bool(files) or bool(service.outdated(new))
        if restart and not module.check_mode:
            apply(module, service, files)
    before, after = dict(edited.before), dict(edited.after)
    if env in files:
        before["API keys of the seats"], after["API keys of the seats"] = "(as before)", "(changed)"
    result: dict[str, Any] = {
        "changed": restart,
        "restarted": restart and not module.check_mode,
        "dropped": list(edited.dropped),
        "diff": {"before": diff_text(before), "after": diff_text(after)},
    }
    module.exit_json(**result)


if __name__ == "__main__":
    main()
