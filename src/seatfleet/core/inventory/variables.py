"""Top-level names of the inventory: Ansible takes any, so that a slip in one is a variable that nobody reads.

And the other way round: what is read and not there, which Ansible says only when a task needs it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ..problems import Problem
from .kinds import Path, did_you_mean, is_template

#: What the project reads from an inventory's files, beside the defaults of its roles.
KNOWN = (
    "campaigns",
    "fleet_hardware",
    "fleet_mirror_dir",
    "fleet_pin_policy",
    "fleet_preflight",
    "fleet_project_dir",
    "fleet_seat_heads",
    "fleet_seat_presets",
    "fleet_seats_absent",
    "fleet_seats_followed",
    "fleet_seats_here",
    "fleet_stub_port",
    "gateway_admin_key",
    "gateway_control_key",
    "gateway_host_address",
    "gateway_key_names",
    "gateway_query_engine",
    "gateway_url",
    "lab_dir",
    "lab_hosts",
    "lab_secrets",
    "models",
    "releases",
    "seat_class_defaults",
    "seat_defaults",
    "seat_environment",
    "seat_profiles",
    "seats",
    "vault_litellm_keys",
    "vault_litellm_master_key",
    "vault_litellm_salt_key",
    "vault_seat_api_key_secret",
)
#: High, because a name of the operator's own is no fault: ``seat`` is near ``seats`` (0.89), ``seat_names`` is not.
_NEAR = 0.87


def meant(name: str) -> str | None:
    """Return the name that was probably meant, None for one that is known or like none."""
    if name in KNOWN:
        return None
    folded = name.lower().replace("-", "_")
    # Two letters that changed places weigh too much in a short name.
    for known in KNOWN:
        if folded == known or sorted(folded) == sorted(known):
            return known
    close = difflib.get_close_matches(folded, KNOWN, n=1, cutoff=_NEAR)
    return close[0] if close else None


def misspelt(written: Iterable[tuple[str, str, frozenset[str]]]) -> Iterator[tuple[Problem, frozenset[str]]]:
    """Yield a problem for each name (with its place and the hosts that read it) that is nearly a known one."""
    for name, where, hosts in written:
        if (near := meant(name)) is not None:
            expected = f"a variable that something reads (did you mean {near!r}?)"
            yield Problem(where, "", name, expected, "one that nothing does"), hosts


#: Variables of roles that their defaults make of a secret: group, variable, secret. Who sets the first needs no second.
ROLE_SECRETS = (
    ("gateway", "gateway_master_key", "vault_litellm_master_key"),
    ("gateway", "gateway_salt_key", "vault_litellm_salt_key"),
    ("gpu_hosts", "seat_api_key_secret", "vault_seat_api_key_secret"),
    ("gpu_hosts", "seat_alias_seat_key_secret", "vault_seat_api_key_secret"),
    ("gpu_hosts", "seat_alias_key_values", "vault_litellm_keys"),
)
_ROLES = ("gateway", "seat_alias", "seat")
_SECRET = re.compile(r"\bvault_\w+")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_OPTIONAL = re.compile(r"\bdefault\(|\bis (not )?(un)?defined\b")


def role_defaults(variable: str) -> str:
    """Return the file that gives a variable of :data:`ROLE_SECRETS` its value."""
    role = next(role for role in _ROLES if variable.startswith(f"{role}_"))
    return f"roles/{role}/defaults/main.yml"


def holds_secrets(variables: Mapping[str, Any]) -> bool:
    """Return False for a host whose variables have no secret at all: they are kept elsewhere, and given with ``-e``."""
    return any(name.startswith("vault_") for name in variables)


def missing_secrets(
    host: str, variables: Mapping[str, Any], locate: Callable[[str, Path], str]
) -> Iterator[tuple[str, Problem]]:
    """Yield each secret that something on a host needs and that no variable is, with its problem.

    ``variables`` are those of the host before they are evaluated; values of secrets are not looked at.
    """
    uses = [(locate(host, (name,)), name, secret) for name in variables for secret in _named(name, variables[name])]
    groups = variables.get("group_names") or ()
    for group, name, secret in ROLE_SECRETS:
        needed = group in groups and (group != "gpu_hosts" or variables.get("seats"))
        if needed and name not in variables:
            uses.append((role_defaults(name), name, secret))
    known = sorted(name for name in variables if name.startswith("vault_"))
    for where, name, secret in uses:
        if secret not in variables:
            expected = f"the variable {secret}, which it is made of, to be there{did_you_mean(secret, known)}"
            yield secret, Problem(where, "", name, expected, "no variable of that name")


def _named(name: str, value: object) -> Iterator[str]:
    """Yield the secrets that a variable names in a template, also in those of its values that are a mapping's."""
    deep = isinstance(value, Mapping) and name.startswith(("gateway_", "seat_", "vault_"))
    for text in value.values() if deep and isinstance(value, Mapping) else [value]:
        if isinstance(text, str) and is_template(text) and not _OPTIONAL.search(text):
            yield from dict.fromkeys(_SECRET.findall(_QUOTED.sub("", text)))
