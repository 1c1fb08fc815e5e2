"""What differs between the fleet and the repository, as one list: from the very results that a check run comes to.

Nothing is compared here. ``playbooks/drift.yml`` runs the roles of ``site.yml`` in check mode and hands their results
on, so that the two cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..tables import aligned

Result = Mapping[str, Any]
_COLUMNS = ("HOST", "PART", "WHAT", "DIFFERS")


@dataclass(frozen=True)
class Drift:
    """One difference: ``part`` is host, release, model, seat, alias or key, ``what`` the thing, ``differs`` how."""

    host: str
    part: str
    what: str
    differs: str

    def as_dict(self) -> dict[str, str]:
        """Return the JSON form."""
        return asdict(self)


def rows(host: str, results: Mapping[str, Result], tasks: Mapping[str, Result]) -> list[Drift]:
    """Return the differences of one host.

    ``results`` are those of the modules: ``release``, ``model``, ``staged``, ``foreseen``, ``aliases``, ``keys``; a
    part that failed is a difference in itself, one that did not run is none. ``tasks`` are other tasks of the roles by
    the name of what they keep: changed means different, failed is a difference too, and those that name their ``paths``
    are a row per file.
    """
    failed = {what: task for what, task in tasks.items() if task.get("failed")}
    changed = [name for what, task in tasks.items() if task.get("changed") for name in task.get("paths") or [what]]
    found = [Drift(host, "host", name, "would be changed") for name in changed]
    found += [Drift(host, "host", what, _why(task)) for what, task in failed.items()]
    readers = {
        "release": _releases,
        "model": _models,
        "staged": _staged,
        "linked": _linked,
        "linked_there": _linked_there,
        "foreseen": _seats,
        "aliases": _steps("alias"),
        "keys": _steps("key"),
    }
    parts = {
        "staged": "seat",
        "linked": "seat",
        "linked_there": "seat",
        "foreseen": "seat",
        "aliases": "alias",
        "keys": "key",
    }
    for name, read in readers.items():
        result, part = results.get(name) or {}, parts.get(name, name)
        if result.get("failed"):
            found.append(Drift(host, part, "-", _why(result)))
        elif not result.get("skipped"):
            found += [Drift(host, part, what, differs) for what, differs in read(result)]
    return found


def _why(result: Result) -> str:
    return str(result.get("msg", "the check failed")).strip()


def table(found: Sequence[Mapping[str, str]]) -> str:
    """Return the differences as aligned lines; ``found`` are :meth:`Drift.as_dict`."""
    if not found:
        return "no drift"
    # A message of several lines would break the table; it is complete in the JSON.
    cells = [(row["host"], row["part"], row["what"], row["differs"].splitlines()[0]) for row in found]
    return "\n".join(aligned([_COLUMNS, *cells]))


def _releases(result: Result) -> Iterator[tuple[str, str]]:
    for name, release in (result.get("releases") or {}).items():
        if release["before"] != "present":
            yield name, f"{release['path']} is {release['before']}"
    for name in result.get("removed") or ():
        yield name, "no seat uses it: would be removed"


def _models(result: Result) -> Iterator[tuple[str, str]]:
    for model in result.get("models") or ():
        if model["before"] != "present":
            yield model["name"], f"{model['path']} is {model['before']}"


def _staged(result: Result) -> Iterator[tuple[str, str]]:
    for seat in result.get("seats") or ():
        if seat["created"]:
            yield seat["seat"], f"generation {seat['generation']} is not on the host"
        elif seat.get("changed"):
            yield seat["seat"], f"files of generation {seat['generation']} differ, or there is no API key"
    for name in result.get("unmanaged") or ():
        yield name, "not in the inventory: playbooks/remove.yml removes it, or bring its entry back"


def _linked(result: Result) -> Iterator[tuple[str, str]]:
    for seat in result.get("seats") or ():
        if seat["changed"]:
            yield seat["seat"], "the link to its other host is not as declared, or does not run"


def _linked_there(result: Result) -> Iterator[tuple[str, str]]:
    for one in result.get("results") or ():
        for seat in one.get("seats") or ():
            if seat["changed"]:
                yield (
                    seat["seat"],
                    f"its half on {one['item']}: generation {seat['generation']} or the link is not there",
                )


def _seats(result: Result) -> Iterator[tuple[str, str]]:
    for seat in result.get("seats") or ():
        if seat["changed"]:
            words = [f"would {seat['action']}"] * (seat["action"] != "nothing")
            refused = [seat["failure"]] if seat.get("failure") else []
            yield seat["seat"], ": ".join([*words, "; ".join([*seat["reasons"], *seat["repairs"], *refused])])


def _steps(part: str) -> Any:  # noqa: ANN401 - one of the readers above
    def read(result: Result) -> Iterator[tuple[str, str]]:
        for step in result.get("steps") or ():
            head, _, why = str(step).partition(": ")
            yield head.removeprefix(f"update {part} "), why or head

    return read
