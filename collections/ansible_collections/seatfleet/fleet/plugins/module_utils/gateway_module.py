"""What the modules that talk to the gateway share: connection options, the connection, and how failures end."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.gateway.state import WantedAlias

try:
    from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.clients import gateway_sync as sync
except ImportError:
    sync = None
    HTTPX_ERROR: str | None = traceback.format_exc()
else:
    HTTPX_ERROR = None

CONNECTION: dict[str, dict[str, Any]] = {
    "url": {"type": "str", "required": True},
    "admin_key": {"type": "str", "required": True, "no_log": True},
    "ca_file": {"type": "path"},
    "timeout_s": {"type": "float", "default": 30.0},
    "host": {"type": "str", "required": True},
}

# One alias of a seat, as the filter gateway_aliases makes it.
ALIAS: dict[str, dict[str, Any]] = {
    "name": {"type": "str", "required": True},
    "seat": {"type": "str", "required": True},
    "api_base": {"type": "str", "required": True},
    "api_key": {"type": "str", "required": True, "no_log": True},
    "served_model": {"type": "str"},
    "sampling": {"type": "dict", "default": {}},
    "chat_template_kwargs": {"type": "dict"},
    "limits": {"type": "dict", "default": {}},
    "access_groups": {"type": "list", "elements": "str", "default": []},
    "keys": {"type": "list", "elements": "str", "default": [], "no_log": False},
    "adopt": {"type": "bool", "default": False},
    "fallback": {"type": "str"},
}

# One alias with the keys that may call it, as the filter gateway_grants makes it.
GRANT: dict[str, dict[str, Any]] = {
    "name": {"type": "str", "required": True},
    "seat": {"type": "str", "required": True},
    "keys": {"type": "list", "elements": "str", "required": True, "no_log": False},
    "access_groups": {"type": "list", "elements": "str", "default": []},
}


def wanted_alias(entry: Mapping[str, Any], host: str) -> WantedAlias:
    """Return one entry of the option in its typed form."""
    return WantedAlias(
        alias=entry["name"],
        host=host,
        seat=entry["seat"],
        api_base=entry["api_base"],
        api_key=entry["api_key"],
        keys=tuple(entry["keys"]),
        sampling=entry["sampling"],
        chat_template_kwargs=entry["chat_template_kwargs"],
        access_groups=tuple(entry["access_groups"]),
        limits=entry["limits"],
        served_model=entry["served_model"],
        adopt=entry["adopt"],
        fallback=entry["fallback"],
    )


@contextmanager
def gateway_of(module: AnsibleModule, left_undone: Iterable[str]) -> Iterator[Any]:
    """Yield a :class:`Gateway`; a gateway that is down ends the module with the list of what was left undone.

    In check mode that is no failure: the gateway may be one that the same run would bring up first.
    """
    if HTTPX_ERROR is not None:
        module.fail_json(msg=missing_required_lib("httpx"), exception=HTTPX_ERROR)
    params: Mapping[str, Any] = module.params
    undone = list(left_undone)
    try:
        with sync.Gateway(
            params["url"], params["admin_key"], timeout_s=params["timeout_s"], ca_file=params["ca_file"]
        ) as gateway:
            yield gateway
    except sync.GatewayDownError as error:
        if module.check_mode:
            module.warn(f"{error}: taken for a gateway that has nothing of {params['host']} yet")
            module.exit_json(changed=bool(undone), steps=undone, ids={}, dropped=[], not_registered=undone)
        listing = "".join(f"\n  {line}" for line in undone)
        module.fail_json(
            msg=f"{error}. Not done:{listing}\nThe seats of {params['host']} keep running; run the play again when the"
            " gateway answers.",
            gateway_down=True,
            not_registered=undone,
        )
    except (sync.GatewayError, sync.LockTimeoutError) as error:
        module.fail_json(msg=str(error), gateway_down=False, at_fault=list(getattr(error, "seats", ())))


def diff_text(picture: Mapping[str, Any]) -> str:
    """Return a picture of the gateway as the lines that Ansible compares."""
    lines: list[str] = []
    for name in sorted(picture):
        value = picture[name]
        if isinstance(value, Mapping):
            lines.append(f"{name}:")
            lines += [f"  {field}: {value[field]}" for field in value]
        else:
            lines.append(f"{name}: {value}")
    return "".join(f"{line}\n" for line in lines)
