"""What the firewall of a host has to cover beside what is declared: the generations that are current on it.

After a change of a port was taken back, and for a seat that nobody declares any more, they are others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..paths import SEATS, SeatPaths
from .generations import link_target, read_manifest


def current_ports(root: Path = Path("/")) -> list[int]:
    """Return the ports that the current generations of a host answer on, sorted; a follower's half has none."""
    return sorted(
        {int(one["port"]) for one in _current(root) if "port" in one and not (one.get("nodes") or {}).get("rank")}
    )


def current_links(root: Path = Path("/")) -> list[dict[str, Any]]:
    """Return the links of current generations over two hosts, in the form of :func:`.render_host.links`."""
    return [_link(str(one["seat"]), one["nodes"]) for one in _current(root) if one.get("nodes")]


def _link(seat: str, nodes: Mapping[str, Any]) -> dict[str, Any]:
    rank, hosts = int(nodes["rank"]), nodes["hosts"]
    return {
        "seat": seat,
        # The second one is the rendezvous: Nodes.rendezvous_port.
        "ports": [nodes["port"], nodes["port"] + 1],
        "address": hosts[rank]["address"],
        "peers": [node["address"] for place, node in enumerate(hosts) if place != rank],
    }


def _current(root: Path) -> Iterator[dict[str, Any]]:
    home = root / SEATS.lstrip("/")
    for entry in sorted(home.iterdir()) if home.is_dir() else ():
        paths = SeatPaths(entry.name, root)
        name = link_target(paths.current)
        if name and (manifest := read_manifest(paths, name)):
            yield manifest
