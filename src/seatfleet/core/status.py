"""The state of a host's seats as one row each: what runs, what was proven of it, what the gateway was seen to allow.

Read-only and quick: it asks systemd and ``/proc`` and reads the evidence that the last probe and the last gateway proof
left on the host. It never talks to a seat; :mod:`seatfleet.clients.probe` does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import generations
from .guard import read_marker
from .paths import EVIDENCE, SEATS, STUB_PREFIX, UNIT_PREFIX, SeatPaths
from .pins import host_doubts
from .processes import SeatState, UnitState
from .render import GENERATION_VARIABLE
from .rollout import Machine
from .tables import aligned

GATEWAY_EVIDENCE = "gateway.json"
_COLUMNS = ("HOST", "SEAT", "RELEASE", "GENERATION", "STATE", "READY S", "AL", "KV TOKENS", "ALIAS", "KEYS PROVEN")


@dataclass(frozen=True)
class SeatStatus:
    """One seat of one host.

    ``state`` is in words; ``generation`` is what the *process* was started from. ``proven`` maps each alias to the
    keys that a real completion was seen for; ``refused`` counts the pairs that were seen to be refused as they should.
    """

    host: str
    seat: str
    managed: bool
    release: str | None
    generation: str | None
    state: str
    good: bool
    ready_s: float | None
    acceptance: Mapping[str, float]
    kv_cache_tokens: int | None
    proven: Mapping[str, Sequence[str]]
    refused: int
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def seats_on_disk(root: Path = Path("/")) -> list[str]:
    """Return the names of all seats that have a directory or a unit on this host."""
    directories = (root / SEATS.lstrip("/")).glob("*/generations")
    units = (root / "etc/systemd/system").glob(f"{UNIT_PREFIX}*.service")
    names = {path.parent.name for path in directories} | {
        path.name[len(UNIT_PREFIX) : -len(".service")] for path in units
    }
    return sorted(names)


def read_gateway_evidence(root: Path = Path("/")) -> list[Mapping[str, Any]]:
    """Return the cells of the last gateway proof, empty when there was none or it cannot be read."""
    try:
        cells = json.loads((root / EVIDENCE.lstrip("/") / GATEWAY_EVIDENCE).read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [cell for cell in cells if isinstance(cell, Mapping)] if isinstance(cells, list) else []


def seat_status(
    machine: Machine,
    paths: SeatPaths,
    host: str,
    *,
    managed: bool,
    aliases: Iterable[str],
    cells: Sequence[Mapping[str, Any]],
) -> SeatStatus:
    """Look at one seat. ``managed`` says whether the inventory has it, ``aliases`` which names it should have."""
    current = generations.link_target(paths.current)
    manifest = generations.read_manifest(paths, current) if current else None
    unit = machine.unit_state(paths.unit.name)
    port = int(manifest["port"]) if manifest else 0
    seen = machine.seat_state(unit, port)
    running = seen.process.environ.get(GENERATION_VARIABLE) if seen.process else None
    evidence = generations.read_evidence(paths, running) if running else {}
    notes = tuple(_notes(paths, seen, unit, current, running, managed, manifest))
    own = [cell for cell in cells if cell.get("alias") in set(aliases)]
    proven: dict[str, list[str]] = {alias: [] for alias in aliases}
    for cell in own:
        if cell.get("ok") and cell.get("expected") == "allow":
            proven[str(cell["alias"])].append(str(cell["key"]))
    lengths = {name: float(values["al"]) for name, values in (evidence.get("acceptance") or {}).items()}
    return SeatStatus(
        host=host,
        seat=paths.seat,
        managed=managed,
        release=str(manifest["release_id"]) if manifest else None,
        generation=running,
        state=_state(unit, bool(evidence)),
        good=bool(evidence),
        ready_s=evidence.get("ready_s"),
        acceptance=lengths,
        kv_cache_tokens=evidence.get("kv_cache_tokens"),
        proven=proven,
        refused=sum(1 for cell in own if cell.get("ok") and cell.get("expected") == "deny"),
        notes=notes,
    )


def _state(unit: UnitState, proven: bool) -> str:
    if not unit.running:
        return str(unit)
    return "READY" if proven else "running, not proven"


def _notes(
    paths: SeatPaths,
    seen: SeatState,
    unit: UnitState,
    current: str | None,
    running: str | None,
    managed: bool,
    manifest: Mapping[str, Any] | None,
) -> Iterable[str]:
    if manifest is not None:
        yield from host_doubts(manifest, paths.root)
    if mark := read_marker(paths.seat, paths.root):
        yield (
            f"the memory guard killed it at {mark.get('at', '?')}: {mark.get('why', '?')}; give it less memory and run "
            f"site.yml, or: seatctl guard clear {paths.seat}"
        )
    if not managed:
        yield "not in the inventory: playbooks/remove.yml removes it, or bring its entry back"
    if unit.running and running != current:
        yield f"the process runs generation {running or 'unknown'}, current is {current or 'none'}: run site.yml"
    if unit.running and unit.needs_reload:
        yield "systemd has not read the unit file yet: run site.yml"
    if unit.running and unit.restarts:
        yield f"systemd restarted it {unit.restarts} times since the last start by hand"
    for owner in seen.strangers:
        if Path(owner.cgroup).name.startswith(STUB_PREFIX):
            yield "systemd gave it up; its port answers 503 with Retry-After: see its journal, then run site.yml"
        else:
            yield f"process {owner.pid} listens on the seat's port and is not the seat"
    if not paths.home.is_dir():
        yield "nothing is installed here yet: run site.yml"


def _row(status: Mapping[str, Any]) -> tuple[str, ...]:
    # The least and the most over the workloads; the probe's own table has each.
    lengths = "-".join(dict.fromkeys(f"{pick(status['acceptance'].values(), default=0):.2f}" for pick in (min, max)))
    keys = " ".join(f"{', '.join(keys) or 'none'}" for keys in status["proven"].values())
    refused = f" (+{status['refused']} refused)" if status["refused"] else ""
    tokens, ready = status["kv_cache_tokens"], status["ready_s"]
    return (
        status["host"],
        status["seat"],
        status["release"] or "-",
        status["generation"] or "-",
        status["state"],
        "-" if ready is None else f"{ready:.1f}",
        lengths if status["acceptance"] else "-",
        "-" if tokens is None else f"{tokens:,}",
        " ".join(status["proven"]) or "-",
        (keys + refused) or "-",
    )


def table(statuses: Sequence[Mapping[str, Any]]) -> str:
    """Return one aligned line per seat, then every note in full; ``statuses`` are :meth:`SeatStatus.as_dict`."""
    lines = list(aligned([_COLUMNS, *(_row(status) for status in statuses)]))
    lines += [f"{status['host']}/{status['seat']}: {note}" for status in statuses for note in status["notes"]]
    return "\n".join(lines)
