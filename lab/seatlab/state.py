"""What a lab keeps beside its hosts: addresses, secrets, the SSH key and the hosts' keys."""

from __future__ import annotations

import ipaddress
import json
import secrets

from . import disk, network
from .errors import run
from .files import locked, write
from .settings import Lab
from .supervisor import Paths

# Aliases of the gateway keys that the lab's fleet names; "control" is the one that may use nothing.
KEY_ALIASES = ("infra-ops", "all-agents", "control")


def new_secrets() -> dict[str, object]:
    """Return fresh secrets in the form the inventory reads."""

    def token(prefix: str = "") -> str:
        return prefix + secrets.token_urlsafe(24)

    return {
        "litellm_master_key": token("sk-"),
        "litellm_salt_key": token("sk-"),
        "litellm_keys": {alias: token("sk-") for alias in KEY_ALIASES},
        "seat_api_key_secret": token(),
    }


def initialise(lab: Lab) -> ipaddress.IPv4Network:
    """Make what the inventory reads, once; needs neither root nor a running host. Returns the lab's subnet."""
    with locked(lab.state / "lock"):
        return initialise_locked(lab)


def initialise_locked(lab: Lab) -> ipaddress.IPv4Network:
    """Do the work of ``initialise`` for a caller that holds the lab's lock."""
    if not lab.secrets.exists():
        write(lab.secrets, json.dumps(new_secrets(), indent=2) + "\n", 0o600)
    subnet = network.subnet(lab)
    addresses = {name: {"address": str(subnet[spec.number])} for name, spec in lab.specs.items()}
    write(lab.state / "network.json", json.dumps({"subnet": str(subnet)}) + "\n")
    write(lab.addresses, json.dumps(addresses, indent=2) + "\n")
    if not lab.known_hosts.exists():
        write(lab.known_hosts, "")
    return subnet


def ensure_key(lab: Lab) -> None:
    """Make the key that opens the lab's hosts, once; call with the lab's lock held."""
    if not lab.key.exists():
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"lab-{lab.id}", "-f", str(lab.key)])


def addresses(lab: Lab) -> dict[str, str]:
    """Return the address of every declared host."""
    return {name: entry["address"] for name, entry in json.loads(lab.addresses.read_text()).items()}


def write_known_hosts(lab: Lab) -> None:
    """Collect the keys of the hosts that have a disk; call with the lab's lock held."""
    lines = []
    for name, address in addresses(lab).items():
        upper = Paths(lab.hosts / name).upper
        if (upper / "etc/ssh/ssh_host_ed25519_key.pub").exists():
            lines.append(f"{address} {disk.host_key(upper)}\n")
    write(lab.known_hosts, "".join(lines))
