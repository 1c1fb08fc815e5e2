"""Look at the gateway; changes nothing.

  who ALIAS...   which keys may call an alias, through what, and when they expire or run out of budget
  aliases        every deployment: alias, id, backend, whose it is
  keys           every key: what its list allows, and entries that lead nowhere

The gateway's URL is --url or $SEATFLEET_GATEWAY_URL, its admin key only $SEATFLEET_GATEWAY_ADMIN_KEY: arguments are
seen by everybody on the machine. Whether a key really may call an alias is proven with a completion:
ansible-playbook playbooks/gateway.yml --tags prove
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from seatfleet.core.tables import aligned

if TYPE_CHECKING:
    from seatfleet.clients.gateway import Gateway
    from seatfleet.core.gateway.keys import KeyState

HELP = "who may call which alias at the gateway"
Row = Sequence[str]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the actions."""
    parser.add_argument("--url", default=os.environ.get("SEATFLEET_GATEWAY_URL"), help="base URL of the gateway")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("who").add_argument("aliases", nargs="+", metavar="ALIAS")
    actions.add_parser("aliases")
    actions.add_parser("keys")


def run(args: argparse.Namespace) -> int:
    """Print one table; 2 for missing input, 1 when the gateway refused or did not answer, or nobody may call."""
    from seatfleet.clients.gateway import Gateway, GatewayError

    key = os.environ.get("SEATFLEET_GATEWAY_ADMIN_KEY")
    if not args.url or not key:
        missing = "--url or SEATFLEET_GATEWAY_URL" if not args.url else "SEATFLEET_GATEWAY_ADMIN_KEY"
        print(f"seatctl gateway: expected {missing}, seen nothing", file=sys.stderr)
        return 2
    tables: dict[str, Callable[[Gateway, argparse.Namespace], list[Row]]] = {
        "who": _who,
        "aliases": _aliases,
        "keys": _keys,
    }
    try:
        with Gateway(args.url, key) as gateway:
            head, *rows = tables[args.action](gateway, args)
    except GatewayError as error:
        print(error, file=sys.stderr)
        return 1
    if args.json:
        names = [name.lower().replace(" ", "_") for name in head]
        print(json.dumps([dict(zip(names, row, strict=True)) for row in rows], indent=2))
    else:
        print("\n".join(aligned([head, *rows])))
    return 0 if rows else 1


def _who(gateway: Gateway, args: argparse.Namespace) -> list[Row]:
    from seatfleet.core.gateway.keys import who_can_call

    deployments, keys = gateway.list_deployments(), gateway.list_keys()
    served = {item.alias for item in deployments}
    shared = gateway.shared_groups() if any(key.access_group_ids for key in keys) else {}
    rows: list[Row] = [("ALIAS", "KEY", "THROUGH", "TEAM", "STATE")]
    for alias in args.aliases:
        if alias not in served:
            print(f"{alias}: the gateway serves no such alias", file=sys.stderr)
        found = who_can_call(alias, deployments, keys, shared)
        rows += [(alias, key.name, reason, key.team_id or "-", _state(key)) for key, reason in found]
    return rows


def _aliases(gateway: Gateway, _: argparse.Namespace) -> list[Row]:
    rows: list[Row] = [("ALIAS", "DEPLOYMENT", "BACKEND", "MODEL", "OWNER", "STATE")]
    for item in sorted(gateway.list_deployments(), key=lambda item: (item.alias, item.id)):
        place = "database" if item.in_database else "config file"
        state = "blocked" if item.blocked else "open"
        backend, model = str(item.params.get("api_base", "-")), str(item.params.get("model", "-"))
        rows.append((item.alias, item.id, backend, model, f"{item.owner()} ({place})", state))
    return rows


def _keys(gateway: Gateway, _: argparse.Namespace) -> list[Row]:
    from seatfleet.core.gateway.keys import ghosts

    keys = gateway.list_keys()
    names = {item.alias for item in gateway.list_deployments()} | set(gateway.access_groups())
    lost = ghosts(keys, names)
    rows: list[Row] = [("KEY", "MAY CALL", "LEADS NOWHERE", "TEAM", "STATE")]
    for key in sorted(keys, key=lambda key: key.name):
        may = "every alias" if key.unrestricted else ", ".join(key.models)
        rows.append((key.name, may, ", ".join(lost.get(key.name, [])) or "-", key.team_id or "-", _state(key)))
    return rows


def _state(key: KeyState) -> str:
    """Say what stops a key, or will."""
    words = ["blocked"] if key.blocked else []
    words += [f"expires {key.expires}"] if key.expires else []
    words += [f"spent {key.spend:g} of {key.max_budget:g}"] if key.max_budget is not None else []
    return ", ".join(words) or "ok"
