"""Where things are on the controller: the project's checkout and the cache that clones and labs share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ..core.problems import Problem, ProblemsError


def project_root(start: Path) -> Path:
    """Return the checkout that contains ``start``: the nearest directory upwards that holds ``files/locks``.

    Raises:
        ProblemsError: there is none.
    """
    for directory in (start, *start.parents):
        if (directory / "files/locks").is_dir():
            return directory
    expected = "a directory inside a checkout (it has files/locks), or --project"
    raise ProblemsError([Problem(str(start), "", "project", expected, "none")])


def cache_root(environment: Mapping[str, str] = os.environ) -> Path:
    """Return ``$SEATFLEET_CACHE``, by default ``seatfleet`` in the user's cache directory."""
    if chosen := environment.get("SEATFLEET_CACHE"):
        return Path(chosen)
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seatfleet"


def wheel_directories(environment: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Return the directories of wheels that are on no package index.

    ``SEATFLEET_WHEELS`` (separated like ``PATH``), by default the local directories among ``PIP_FIND_LINKS``.
    """
    if chosen := environment.get("SEATFLEET_WHEELS"):
        return tuple(Path(part) for part in chosen.split(os.pathsep) if part)
    links = environment.get("PIP_FIND_LINKS", "").split()
    return tuple(Path(link.removeprefix("file://")) for link in links if link.removeprefix("file://").startswith("/"))
