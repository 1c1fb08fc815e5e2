"""The lab's private network: one bridge with a /24 that nothing else on the machine uses, no way out of it."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import socket
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from .errors import LabError, run
from .settings import Lab

# 10.64.0.0/10: the part of 10/8 where neither Docker (172.17+, 192.168) nor the usual site networks start counting.
POOL = ipaddress.ip_network("10.64.0.0/10")
CANDIDATES = 64
IFF_UP = 0x1  # net/if.h


def candidates(lab_id: str) -> Iterator[ipaddress.IPv4Network]:
    """Return the /24 networks that a lab tries, in its own fixed order."""
    for attempt in range(CANDIDATES):
        digest = hashlib.sha256(f"{lab_id}/{attempt}".encode()).digest()
        index = int.from_bytes(digest[:4]) % (1 << (24 - POOL.prefixlen))
        yield ipaddress.IPv4Network((int(POOL.network_address) + (index << 8), 24))


def parse_routes(table: str) -> dict[ipaddress.IPv4Network, str]:
    """Return the networks of /proc/net/route with their interfaces, without the default route."""
    routes = {}
    for line in table.splitlines()[1:]:
        interface, destination, _, _, _, _, _, mask = line.split()[:8]
        network = ipaddress.IPv4Network((_address(destination), _address(mask)))
        if network.prefixlen:
            routes[network] = interface
    return routes


def _address(little_endian_hex: str) -> str:
    return socket.inet_ntoa(struct.pack("<L", int(little_endian_hex, 16)))


def choose(
    lab_id: str, bridge: str, routes: dict[ipaddress.IPv4Network, str], recorded: str | None
) -> ipaddress.IPv4Network:
    """Return the lab's subnet: the recorded one while it is free or this lab's own, else the first free candidate.

    A route wider than /16 (a site's 10.0.0.0/8) is no conflict: the lab's more specific one wins beside it.
    """
    taken = [network for network, interface in routes.items() if interface != bridge and network.prefixlen >= 16]
    order = ([ipaddress.IPv4Network(recorded)] if recorded else []) + list(candidates(lab_id))
    for network in order:
        if not any(network.overlaps(other) for other in taken):
            return network
    raise LabError(f"no free /24 among {CANDIDATES} candidates in {POOL}: remove routes of that range")


def subnet(lab: Lab) -> ipaddress.IPv4Network:
    """Return the lab's subnet: the one in network.json, unless something else on the machine has taken it meanwhile."""
    record = lab.state / "network.json"
    recorded = json.loads(record.read_text())["subnet"] if record.exists() else None
    if recorded and exists(lab.bridge):  # hosts may be running with addresses in it
        return ipaddress.IPv4Network(recorded)
    return choose(lab.id, lab.bridge, parse_routes(Path("/proc/net/route").read_text()), recorded)


def ensure_bridge(lab: Lab, network: ipaddress.IPv4Network) -> None:
    """Make the bridge, or give an existing one what it lacks."""
    if not exists(lab.bridge):
        run(["ip", "link", "add", lab.bridge, "type", "bridge"])
    run(["ip", "address", "replace", f"{network[1]}/24", "dev", lab.bridge])
    run(["ip", "link", "set", lab.bridge, "up"])


def exists(link: str) -> bool:
    """Whether a network interface of this name exists."""
    return Path("/sys/class/net", link).exists()


def is_cut(link: str) -> bool:
    """Whether the link exists and is administratively down."""
    flags = Path("/sys/class/net", link, "flags")
    return flags.exists() and not int(flags.read_text(), 16) & IFF_UP


def remove(links: Iterable[str]) -> None:
    """Delete interfaces; one that is gone meanwhile (its other end died with its namespace) is fine."""
    for link in links:
        if exists(link):
            try:
                run(["ip", "link", "delete", link])
            except LabError:
                if exists(link):
                    raise


def set_link(link: str, state: str) -> None:
    """Plug a host's cable in ("up") or out ("down"); ``LabError`` when the host is not running."""
    if not exists(link):
        raise LabError(f"no link {link}: the host is not running, start it with 'lab up'")
    run(["ip", "link", "set", link, state])
