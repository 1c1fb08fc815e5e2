"""What the firewall of a host has to cover beside what is declared: the generations that are current on it.

After a change of a port was taken back, and for a seat that nobody declares any more, they are others. ``coming``
names, by seat, generations that are about to become current.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..paths import SEATS, SeatPaths
from .generations import link_target, read_manifest
from .link import Config, config_of


def current_ports(root: Path = Path("/"), coming: Mapping[str, str] | None = None) -> list[int]:
    """Return the ports that the current generations of a host answer on, sorted; a follower's half has none."""
    heads = (one for one in _current(root, coming) if not ((hosts := config_of(one)) and hosts.rank))
    return sorted({int(one["port"]) for one in heads if "port" in one})


def current_links(root: Path = Path("/"), coming: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Return the links of current generations over two hosts, in the form of :func:`.render_host.links`."""
    return [_link(str(one["seat"]), hosts) for one in _current(root, coming) if (hosts := config_of(one))]


def _link(seat: str, hosts: Config) -> dict[str, Any]:
    return {
        "seat": seat,
        # The second one is the rendezvous: Nodes.rendezvous_port.
        "ports": [hosts.port, hosts.port + 1],
        "address": hosts.own[1],
        "peers": [address for rank, (_, address) in enumerate(hosts.hosts) if rank != hosts.rank],
    }


def _current(root: Path, coming: Mapping[str, str] | None) -> Iterator[dict[str, Any]]:
    home = root / SEATS.lstrip("/")
    for entry in sorted(home.iterdir()) if home.is_dir() else ():
        paths = SeatPaths(entry.name, root)
        # Once each, and in this order: the table is compared by its text.
        for name in dict.fromkeys((link_target(paths.current), (coming or {}).get(entry.name))):
            if name and (manifest := read_manifest(paths, name)):
                yield manifest
