"""Top-level names of the inventory: Ansible takes any, so that a slip in one is a variable that nobody reads."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

from ..problems import Problem

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
