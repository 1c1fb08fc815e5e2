"""Aliases in a proxy's own config file, of which one marked block is ours.

For a gateway whose ``model_list`` is a file: everything outside of the block belongs to others and keeps every byte.
Inside, each line is one deployment as JSON (which is YAML), so that neither reading nor writing needs a YAML library,
and the entries of other hosts are carried over as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .state import MANAGED_BY, WantedAlias

BEGIN = "# BEGIN seatfleet: written by Ansible, edits are overwritten"
END = "# END seatfleet"
_LIST = re.compile(r"^model_list:[ \t]*(?P<empty>\[[ \t]*\])?[ \t]*(#.*)?$", re.MULTILINE)
_ITEM = re.compile(r"^(?P<indent>[ ]*)- ")
_NAME = re.compile(r"^[ \t]*-?[ \t]*model_name:[ \t]*[\"']?(?P<name>[^\"'#\n]+?)[\"']?[ \t]*(#.*)?$", re.MULTILINE)


class ConfigError(ValueError):
    """The file cannot be edited safely; the message says why."""


@dataclass(frozen=True)
class Edit:
    """The new text of the file, and what changed for the diff and the keys."""

    text: str
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()


def variable(host: str, seat: str) -> str:
    """Return the environment variable that holds a seat's API key: the file itself stays without secrets."""
    return "SEATFLEET_KEY_" + re.sub(r"[^A-Z0-9]", "_", f"{host}_{seat}".upper())


def entry_id(want: WantedAlias) -> str:
    """Return the deployment id of an alias in the file.

    Not the one it has in the database: LiteLLM keeps deployments by id, so deleting the database's would take the
    file's out of the running proxy with it (measured on 1.106.12: every call a 400 until a restart).
    """
    return f"file-{want.host}-{want.seat}-{want.alias}"


def entry(want: WantedAlias) -> dict[str, Any]:
    """Return one entry of ``model_list``."""
    body = want.body(1)
    marker = {name: value for name, value in body["model_info"][MANAGED_BY].items() if name != "secret"}
    return {
        "model_name": want.alias,
        "litellm_params": {**want.public_params(), "api_key": f"os.environ/{variable(want.host, want.seat)}"},
        "model_info": {**body["model_info"], "id": entry_id(want), MANAGED_BY: marker},
    }


def edit(text: str, host: str, wanted: Sequence[WantedAlias]) -> Edit:
    """Return the file with the entries of ``host`` replaced by exactly these.

    Raises:
        ConfigError: a damaged block, an entry of others with a wanted name, or no place for the block.
    """
    head, block, tail = _split(text)
    foreign = {match["name"] for part in (head, tail) for match in _NAME.finditer(part)}
    taken = sorted(want.alias for want in wanted if want.alias in foreign)
    if taken:
        raise ConfigError(
            f"{', '.join(taken)} also stands outside of our block and would answer part of the calls: remove it there"
        )
    old = [_parse(line) for line in block]
    mine = [item for item in old if _host(item) == host]
    new = [item for item in old if _host(item) != host] + [entry(want) for want in wanted]
    names = {item["model_name"] for item in new} | foreign
    return Edit(
        text=_joined(head, new, tail) if new else _emptied(head + tail) if block else text,
        before={_identity(item): _shown(item) for item in mine},
        after={entry_id(want): _shown(entry(want)) for want in wanted},
        dropped=tuple(sorted({item["model_name"] for item in mine} - names)),
    )


def _joined(head: str, entries: Sequence[Mapping[str, Any]], tail: str) -> str:
    indent = _indent(tail)
    lines = [BEGIN, *("- " + json.dumps(item, sort_keys=True) for item in sorted(entries, key=_identity)), END]
    return head + "".join(f"{indent}{line}\n" for line in lines) + tail


def _emptied(text: str) -> str:
    """Return the file without our block; a list that nobody uses is written as one, since YAML reads it as null."""
    place = _LIST.search(text)
    if place is None or _ITEM.match(_next_line(text[place.end() :])):
        return text
    return text[: place.start()] + "model_list: []" + text[place.end() :]


def environment(text: str, host: str, keys: Mapping[str, str]) -> str:
    """Return the environment file with the API keys of a host's seats replaced by exactly these (seat -> key)."""
    prefix = variable(host, "")
    kept = [line for line in text.splitlines() if line and not line.startswith(prefix)]
    mine = [f"{variable(host, seat)}={key}" for seat, key in keys.items()]
    return "".join(f"{line}\n" for line in sorted([*kept, *mine]))


def _split(text: str) -> tuple[str, list[str], str]:
    """Return the text before our block, the lines in it, and the text after it."""
    lines = text.splitlines(keepends=True)
    begins = [index for index, line in enumerate(lines) if line.strip() == BEGIN]
    ends = [index for index, line in enumerate(lines) if line.strip() == END]
    if begins or ends:
        if len(begins) != 1 or len(ends) != 1 or ends[0] < begins[0]:
            raise ConfigError(
                f"expected one block from {BEGIN!r} to {END!r}, seen {len(begins)} and {len(ends)} of them"
            )
        inside = [line.strip() for line in lines[begins[0] + 1 : ends[0]]]
        return "".join(lines[: begins[0]]), [line for line in inside if line], "".join(lines[ends[0] + 1 :])
    place = _LIST.search(text)
    if place is None:
        if re.search(r"^model_list:", text, re.MULTILINE):
            raise ConfigError("expected `model_list:` on a line of its own with its entries below, or `model_list: []`")
        return text.rstrip("\n") + ("\n" if text.strip() else "") + "model_list:\n", [], ""
    return text[: place.start()] + "model_list:\n", [], text[place.end() :].removeprefix("\n")


def _next_line(text: str) -> str:
    """Return the first line that is neither empty nor a comment."""
    lines = (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    return next(lines, "")


def _indent(tail: str) -> str:
    """Return the indentation of the list's entries: that of the next one, else two spaces."""
    item = _ITEM.match(_next_line(tail))
    return item["indent"] if item else "  "


def _parse(line: str) -> dict[str, Any]:
    try:
        parsed: dict[str, Any] = json.loads(line.removeprefix("- "))
        _ = parsed["model_name"], parsed["litellm_params"], parsed["model_info"]["id"]
        return parsed
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"a line in our block is not ours ({error}): {line[:60]!r}; empty the block and run again"
        ) from None


def _identity(item: Mapping[str, Any]) -> str:
    return str(item["model_info"]["id"])


def _host(item: Mapping[str, Any]) -> str:
    return str(item["model_info"].get(MANAGED_BY, {}).get("host", ""))


def _shown(item: Mapping[str, Any]) -> dict[str, Any]:
    params: Iterable[tuple[str, Any]] = sorted(item["litellm_params"].items())
    shown = {"alias": item["model_name"], **{name: value for name, value in params if name != "api_key"}}
    if item["model_info"].get("access_groups"):
        shown["access_groups"] = item["model_info"]["access_groups"]
    return shown
