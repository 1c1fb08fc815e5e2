"""Where a lab lives and what its things are called; everything here is derived, nothing is created."""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import cgroups
from .errors import LabError

PROJECT = Path(__file__).resolve().parents[2]
HOSTS_FILE = PROJECT / "lab" / "hosts.toml"

# Linux cuts nothing and refuses: an interface name has at most 15 characters (IFNAMSIZ 16 with its zero).
# nspawn names the outer end of a host's link "vb-<machine>".
LINK_PREFIX = "vb-"
PLAIN_PATH = re.compile(r"[A-Za-z0-9/._+@=~-]+")
ID_DIGITS = 6


@dataclass(frozen=True)
class Bind:
    """A directory of this machine that a host sees read-only."""

    source: Path
    target: str


@dataclass(frozen=True)
class HostSpec:
    """A declared host: its name, its number (last byte of its address) and what it sees of this machine."""

    name: str
    number: int
    binds: tuple[Bind, ...] = ()


@dataclass(frozen=True)
class Lab:
    """One lab: a state directory, from whose path its id and so every name outside of that directory comes."""

    state: Path
    cache: Path
    specs: Mapping[str, HostSpec]

    @property
    def id(self) -> str:
        """Six hex digits from the path of the state directory; two labs on one machine differ in it."""
        return lab_id(self.state)

    @property
    def bridge(self) -> str:
        """Name of the bridge all links of this lab hang on."""
        return f"sfbr-{self.id}"

    @property
    def cgroup(self) -> str:
        """Name of the directory that holds this lab's hosts in every cgroup hierarchy."""
        return f"{cgroups.PREFIX}{self.id}"

    @property
    def hosts(self) -> Path:
        """Directory with one directory per host."""
        return self.state / "hosts"

    @property
    def layers(self) -> Path:
        """Directory of prepared layers; they hold secrets of this lab, so they are not in the shared cache."""
        return self.state / "layers"

    @property
    def key(self) -> Path:
        """Private SSH key that opens every host of this lab."""
        return self.state / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        """Host keys of all hosts of this lab, for ssh and Ansible."""
        return self.state / "known_hosts"

    @property
    def addresses(self) -> Path:
        """``hosts.json``: ``{name: {"address": ...}}`` of every declared host, read by the inventory."""
        return self.state / "hosts.json"

    @property
    def secrets(self) -> Path:
        """``secrets.json``: generated once per lab, read by the inventory."""
        return self.state / "secrets.json"

    def machine(self, spec: HostSpec) -> str:
        """Machine name of a host for nspawn: unique on this machine and short enough for its link's name."""
        return f"sf{self.id}-{spec.number}"

    def link(self, spec: HostSpec) -> str:
        """Name of the outer end of a host's network link."""
        return LINK_PREFIX + self.machine(spec)

    def spec(self, name: str) -> HostSpec:
        """Return a declared host; ``LabError`` naming those that exist."""
        try:
            return self.specs[name]
        except KeyError:
            raise LabError(f"no host '{name}' in {HOSTS_FILE.name}; declared: {', '.join(self.specs)}") from None


def lab_id(state: Path) -> str:
    """Return the id of the lab in directory ``state`` (absolute, links resolved)."""
    return hashlib.sha256(os.fsencode(state)).hexdigest()[:ID_DIGITS]


def cache_dir(environ: Mapping[str, str]) -> Path:
    """Return the cache that labs and clones share: SEATFLEET_CACHE, or seatfleet in the user's cache directory."""
    if given := environ.get("SEATFLEET_CACHE"):
        return Path(given).resolve()
    home = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME") or "~").expanduser() / ".cache")
    return Path(home).resolve() / "seatfleet"


def read_specs(declaration: Mapping[str, Any], cache: Path) -> dict[str, HostSpec]:
    """Turn the parsed hosts.toml into hosts; ``LabError`` for a number that is no host number or used twice."""
    specs: dict[str, HostSpec] = {}
    numbers: dict[int, str] = {}
    for name, entry in declaration["hosts"].items():
        number = entry["number"]
        if not isinstance(number, int) or not 2 <= number <= 254:
            raise LabError(f"{HOSTS_FILE.name}: {name}: number: expected 2 to 254, seen {number!r}")
        if number in numbers:
            raise LabError(f"{HOSTS_FILE.name}: {name}: number {number} is already that of {numbers[number]}")
        numbers[number] = name
        own = tuple(Bind(cache / bind["source"], bind["target"]) for bind in entry.get("binds", ()))
        specs[name] = HostSpec(name, number, (Bind(cache / "mirror", "/srv/mirror"), *own))
    return specs


def load(environ: Mapping[str, str]) -> Lab:
    """Return the lab that the environment names (SEATFLEET_LAB, SEATFLEET_CACHE) or this project's own."""
    state = Path(environ.get("SEATFLEET_LAB") or PROJECT / ".lab").resolve()
    cache = cache_dir(environ)
    for path, variable in ((state, "SEATFLEET_LAB"), (cache, "SEATFLEET_CACHE")):
        if not PLAIN_PATH.fullmatch(str(path)):
            raise LabError(f"'{path}': only letters, digits and /._+@=~- may be in it (mount, ssh): set {variable}")
    with HOSTS_FILE.open("rb") as declared:
        return Lab(state, cache, read_specs(tomllib.load(declared), cache))
