"""Locks: exactly which files an environment is made of, for one Python and one architecture.

A lock is a pip requirements file, one line per distribution, and every line names the *one* wheel that is installed::

    # target: cp311 x86_64 manylinux_2_36
    aiohttp==3.14.5 --hash=sha256:50a1...  # aiohttp-3.14.5-cp311-cp311-manylinux_2_28_x86_64.whl 1929915 index

One hash and not all those of the release: which of several allowed files pip takes depends on pip's version and on the
tags it is told, and two wheelhouses of one lock must hold the same files.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ..problems import Problem, ProblemsError

Origin = Literal["index", "local", "built"]
ORIGINS: tuple[Origin, ...] = ("index", "local", "built")
ARCHITECTURES = ("x86_64", "aarch64")

_TARGET = re.compile(r"# target: cp3(?P<minor>[0-9]+) (?P<architecture>\S+) manylinux_2_(?P<glibc>[0-9]+)")
_PIN = re.compile(
    r"(?P<name>[a-z0-9]+(?:-[a-z0-9]+)*)==(?P<version>[A-Za-z0-9.+!]+)"
    r" --hash=sha256:(?P<sha256>[0-9a-f]{64})"
    r"  # (?P<file>[A-Za-z0-9_.+!-]+\.whl) (?P<size>[1-9][0-9]*) (?P<origin>[a-z]+)"
)
PIN_FORM = "NAME==VERSION --hash=sha256:HEX  # FILE.whl BYTES ORIGIN"


@dataclass(frozen=True)
class Target:
    """What a lock is for: CPython 3.``minor`` on Linux ``architecture`` with glibc 2.``glibc`` or newer."""

    minor: int
    architecture: str
    glibc: int

    @property
    def python(self) -> str:
        """The Python version as operators write it: ``3.11``."""
        return f"3.{self.minor}"

    @property
    def platforms(self) -> tuple[str, ...]:
        """Wheel platform tags such a host accepts, best first.

        The ladder of PEP 600, with the two older names of its lowest rungs. Pip does not derive it from the newest.
        """
        oldest = 17 if self.architecture == "aarch64" else 5
        legacy = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
        tags = []
        for rung in range(self.glibc, oldest - 1, -1):
            tags.append(f"manylinux_2_{rung}_{self.architecture}")
            if rung in legacy and not (self.architecture == "aarch64" and rung != 17):
                tags.append(f"{legacy[rung]}_{self.architecture}")
        return (*tags, f"linux_{self.architecture}")

    def __str__(self) -> str:
        return f"cp3{self.minor} {self.architecture} manylinux_2_{self.glibc}"


@dataclass(frozen=True)
class Pin:
    """One wheel of a lock. ``origin``: from the package index, a local directory, or made by ``seatctl`` itself."""

    name: str
    version: str
    sha256: str
    file: str
    size: int
    origin: Origin

    def __str__(self) -> str:
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}  # {self.file} {self.size} {self.origin}"


@dataclass(frozen=True)
class Lock:
    """A parsed lock."""

    target: Target
    pins: tuple[Pin, ...]

    @property
    def size(self) -> int:
        """Bytes of all wheels together."""
        return sum(pin.size for pin in self.pins)

    @property
    def digest(self) -> str:
        """Sha256 over target and pins; comments and the order of lines do not count."""
        content = [str(self.target), sorted([pin.name, pin.version, pin.sha256] for pin in self.pins)]
        return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()

    @property
    def sums(self) -> str:
        """The text of ``SHA256SUMS`` of a wheelhouse, as ``sha256sum --check`` reads it."""
        return "".join(f"{pin.sha256}  {pin.file}\n" for pin in sorted(self.pins, key=lambda pin: pin.file))

    def find(self, name: str) -> Pin | None:
        """Return the pin of a distribution (normalised name), or None."""
        return next((pin for pin in self.pins if pin.name == name), None)


def format_lock(lock: Lock, header: Iterable[str] = ()) -> str:
    """Return the text of a lock; ``header`` lines become comments at its top."""
    lines = [f"# {line}".rstrip() for line in header]
    lines.append(f"# target: {lock.target}")
    lines.extend(str(pin) for pin in sorted(lock.pins, key=lambda pin: pin.name))
    return "\n".join(lines) + "\n"


def parse_lock(text: str, where: str) -> Lock:
    """Read a lock; ``where`` names it in messages.

    Raises:
        ProblemsError: every line that is not of the form above, a missing target, a distribution pinned twice.
    """
    problems: list[Problem] = []
    targets: list[Target] = []
    pins: dict[str, Pin] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        place = f"{where}:{number}"
        if match := _TARGET.fullmatch(line):
            targets.append(Target(int(match["minor"]), match["architecture"], int(match["glibc"])))
        elif not line.strip() or line.startswith("#"):
            continue
        elif (match := _PIN.fullmatch(line)) is None or match["origin"] not in ORIGINS:
            problems.append(Problem(place, "", "", PIN_FORM, repr(line[:120])))
        elif match["name"] in pins:
            problems.append(Problem(place, match["name"], "", "one pin per distribution", "a second one"))
        else:
            origin = next(origin for origin in ORIGINS if origin == match["origin"])
            pin = Pin(match["name"], match["version"], match["sha256"], match["file"], int(match["size"]), origin)
            pins[pin.name] = pin
    if len(targets) != 1:
        expected = "one line '# target: cp3MINOR ARCHITECTURE manylinux_2_MINOR'"
        problems.append(Problem(where, "", "target", expected, f"{len(targets)}"))
    elif targets[0].architecture not in ARCHITECTURES:
        problems.append(Problem(where, "", "target", " or ".join(ARCHITECTURES), repr(targets[0].architecture)))
    if not pins and not problems:
        problems.append(Problem(where, "", "", "at least one pin", "none"))
    if problems:
        raise ProblemsError(problems)
    return Lock(targets[0], tuple(pins[name] for name in sorted(pins)))
