"""The state of a host's seats as one row each: what runs, what was proven of it, what the gateway was seen to allow.

Read-only and quick: it asks systemd and ``/proc``, reads the evidence that the last probe and the last gateway proof
left on the host, and at most one page of counters per seat. It generates nothing; :mod:`seatfleet.clients.probe` does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..health.metrics import MetricsError, parse
from ..host.guard import read_marker
from ..host.processes import SeatState, UnitState
from ..inventory.pins import host_doubts
from ..paths import EVIDENCE, SEATS, STUB_PREFIX, UNIT_PREFIX, SeatPaths
from ..seat import generations, stopped
from ..seat.link import config_of
from ..seat.render import GENERATION_VARIABLE
from ..seat.rollout import Machine
from ..tables import aligned

BASELINE_EVIDENCE = "baseline.json"
HEADROOM_EVIDENCE = "headroom/result.json"
STOPPED = "stopped"
_COLUMNS = (
    "HOST",
    "SEAT",
    "ALIAS",
    "RELEASE",
    "GENERATION",
    "STATE",
    "READY FOR",
    "AL (BASELINE)",
    "KV TOKENS",
    "KV USE",
    "HEADROOM",
    "DRIFT",
    "LAST CHANGE",
    "KEYS PROVEN",
)


@dataclass(frozen=True)
class Surroundings:
    """What is known of a seat beside systemd and its own directory. Times in seconds since the epoch.

    ``metrics`` is the text of its ``/metrics`` page, None when it was not asked or did not answer; ``started`` when its
    process began; ``foreign`` the processes on the host's cards that belong to no seat, in words.
    """

    now: float
    started: float | None = None
    metrics: str | None = None
    foreign: tuple[str, ...] = ()
    history: int = 0


@dataclass(frozen=True)
class SeatStatus:
    """One seat of one host.

    ``state`` is in words; ``generation`` is what the *process* was started from. ``proven`` maps each alias to the
    keys that a real completion was seen for; ``refused`` counts the pairs that were seen to be refused as they should.
    ``stopped`` is when an operator took the seat out of service, None when it is not; ``closed`` are the aliases that
    were closed for that.
    Times are seconds since the epoch, ``kv_use`` 0 to 1. ``drifted`` says what differs between the process and what
    the host has on disk, ``headroom`` the day the pin was measured, ``history`` what the latest probes found.
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
    looked: float
    started: float | None
    changed: float | None
    running: bool
    stopped: float | None
    closed: tuple[str, ...]
    restarts: int
    ready_timeout_s: int | None
    baseline: Mapping[str, float]
    kv_use: float | None
    requests: int | None
    waiting: int | None
    headroom: str | None
    drifted: tuple[str, ...]
    foreign: tuple[str, ...]
    history: tuple[Mapping[str, Any], ...]

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


def gateway_evidence(root: Path = Path("/")) -> tuple[Mapping[str, Any], float | None]:
    """Return the evidence of the last gateway proof and when it was written; empty and None when there was none."""
    path = root / EVIDENCE.lstrip("/") / stopped.GATEWAY_EVIDENCE
    content = _read_json(path)
    return (content, path.stat().st_mtime) if isinstance(content, Mapping) else ({}, None)


def read_gateway_evidence(root: Path = Path("/")) -> list[Mapping[str, Any]]:
    """Return the cells of the last gateway proof, empty when there was none or it cannot be read."""
    cells = gateway_evidence(root)[0].get("cells")
    return [cell for cell in cells if isinstance(cell, Mapping)] if isinstance(cells, list) else []


def seat_status(
    machine: Machine,
    paths: SeatPaths,
    host: str,
    *,
    managed: bool,
    aliases: Iterable[str],
    cells: Sequence[Mapping[str, Any]],
    around: Surroundings,
) -> SeatStatus:
    """Look at one seat. ``managed`` says whether the inventory has it, ``aliases`` which names it should have."""
    current = generations.link_target(paths.current)
    manifest = generations.read_manifest(paths, current) if current else None
    unit = machine.unit_state(paths.unit.name)
    port = int(manifest["port"]) if manifest else 0
    seen = machine.seat_state(unit, port)
    running = seen.process.environ.get(GENERATION_VARIABLE) if seen.process else None
    evidence = generations.read_evidence(paths, running) if running else {}
    drifted = tuple(_drifted(paths, unit, current, running))
    mark = stopped.out_of_service(paths.seat, unit.active, paths.root)
    # What was proven of a process that somebody stopped is true no more.
    own = [cell for cell in cells if cell.get("alias") in set(aliases) and mark is None]
    proven: dict[str, list[str]] = {alias: [] for alias in aliases}
    for cell in own:
        if cell.get("ok") and cell.get("expected") == "allow":
            proven[str(cell["alias"])].append(str(cell["key"]))
    lengths = {name: float(values["al"]) for name, values in (evidence.get("acceptance") or {}).items()}
    kept = paths.root / EVIDENCE.lstrip("/") / paths.seat
    use, requests, waiting = _load(around.metrics)
    return SeatStatus(
        host=host,
        seat=paths.seat,
        managed=managed,
        release=str(manifest["release_id"]) if manifest else None,
        generation=running,
        state=_state(unit, bool(evidence), _head(manifest), stopped=mark is not None),
        good=bool(evidence),
        ready_s=evidence.get("ready_s"),
        acceptance=lengths,
        kv_cache_tokens=evidence.get("kv_cache_tokens"),
        proven=proven,
        refused=sum(1 for cell in own if cell.get("ok") and cell.get("expected") == "deny"),
        notes=(*_notes(paths, seen, unit, managed, manifest, mark), *drifted),
        looked=around.now,
        started=around.started,
        changed=paths.current.lstat().st_mtime if current else None,
        running=unit.running,
        stopped=mark.at if mark else None,
        closed=tuple(alias for alias in proven if mark and alias in mark.closed),
        restarts=unit.restarts,
        ready_timeout_s=_ready_timeout(manifest),
        baseline=_baseline(kept),
        kv_use=use,
        requests=requests,
        waiting=waiting,
        headroom=_headroom(kept),
        drifted=drifted,
        foreign=around.foreign,
        history=tuple(read_history(kept, around.history)),
    )


def read_history(kept: Path, count: int) -> Iterator[dict[str, Any]]:
    """Yield what the latest ``count`` probes of a seat found, oldest first; files that cannot be read are left out."""
    for path in sorted(kept.glob("[0-9]*T[0-9]*Z-*.json"))[-count:] if count else ():
        report = _read_json(path)
        if not isinstance(report, Mapping) or "verdict" not in report:
            continue
        yield {
            "at": report.get("started_utc"),
            "level": report.get("level"),
            "verdict": report["verdict"],
            "cause": report.get("cause"),
            "duration_s": report.get("duration_s"),
            "ready_s": report.get("ready_s"),
            "acceptance": {name: values["al"] for name, values in (report.get("acceptance") or {}).items()},
        }


def _head(manifest: Mapping[str, Any] | None) -> str | None:
    """Return the host that this one follows, None where it is the seat's own."""
    hosts = config_of(manifest)
    return hosts.head[0] if hosts and hosts.own != hosts.head else None


def _state(unit: UnitState, proven: bool, head: str | None = None, *, stopped: bool = False) -> str:
    if not unit.running:
        words = STOPPED if stopped else str(unit)
        return f"{words}, follows {head}" if head else words
    if head:
        return f"follows {head}"
    return "READY" if proven else "running, not proven"


def _drifted(paths: SeatPaths, unit: UnitState, current: str | None, running: str | None) -> Iterator[str]:
    if unit.running and running != current:
        yield f"the process runs generation {running or 'unknown'}, current is {current or 'none'}: run site.yml"
    if unit.running and unit.needs_reload:
        yield "systemd has not read the unit file yet: run site.yml"
    if unit.drop_ins:
        yield f"systemd reads {', '.join(unit.drop_ins)}, which no generation has: run site.yml"
    if current and (text := generations.read_unit(paths, current)) is not None and text != _text(paths.unit):
        yield f"{paths.unit.name} is not the unit of generation {current}: run site.yml"


def _notes(
    paths: SeatPaths,
    seen: SeatState,
    unit: UnitState,
    managed: bool,
    manifest: Mapping[str, Any] | None,
    out_of_service: stopped.Mark | None,
) -> Iterable[str]:
    if out_of_service:
        yield f"stopped on purpose at {_minute(out_of_service.at)} UTC: site.yml starts it and opens its aliases"
    if manifest is not None:
        yield from host_doubts(manifest, paths.root)
    if mark := read_marker(paths.seat, paths.root):
        yield (
            f"the memory guard killed it at {mark.get('at', '?')}: {mark.get('why', '?')}; give it less memory and run "
            f"site.yml, or: seatctl guard clear {paths.seat}"
        )
    if not managed:
        yield "not in the inventory: playbooks/remove.yml removes it, or bring its entry back"
    if unit.running and unit.restarts:
        yield f"systemd restarted it {unit.restarts} times since the last start by hand: seatctl why {paths.seat}"
    for owner in seen.strangers:
        if Path(owner.cgroup).name.startswith(STUB_PREFIX):
            yield (
                "systemd gave it up; its port answers 503 with Retry-After: "
                f"seatctl why {paths.seat} on the host says why, then run site.yml"
            )
        else:
            yield f"process {owner.pid} listens on the seat's port and is not the seat"
    if not paths.home.is_dir():
        yield "nothing is installed here yet: run site.yml"


def _load(metrics: str | None) -> tuple[float | None, int | None, int | None]:
    """Return the use of the fullest engine's KV cache, and running and waiting requests, from a page of counters."""
    if metrics is None:
        return None, None, None
    try:
        page = parse(metrics)
        use = max(page.series("vllm:kv_cache_usage_perc").values(), default=None)
        counts = [int(page.total(f"vllm:num_requests_{name}")) for name in ("running", "waiting")]
    except MetricsError:
        return None, None, None
    return use, counts[0], counts[1]


def _baseline(kept: Path) -> dict[str, float]:
    """Return the mean acceptance length of the boots that made the seat's baseline, per workload."""
    content = _read_json(kept / BASELINE_EVIDENCE)
    workloads = content.get("workloads") if isinstance(content, Mapping) else None
    if not isinstance(workloads, Mapping):
        return {}
    return {
        str(name): sum(boots.values()) / len(boots)
        for name, boots in workloads.items()
        if isinstance(boots, Mapping) and boots
    }


def _headroom(kept: Path) -> str | None:
    path = kept / HEADROOM_EVIDENCE
    return _day(path.stat().st_mtime) if path.is_file() else None


def _ready_timeout(manifest: Mapping[str, Any] | None) -> int | None:
    value = (manifest or {}).get("probe", {}).get("ready_timeout_s")
    return int(value) if value is not None else None


def _row(status: Mapping[str, Any]) -> tuple[str, ...]:
    keys = " ".join(
        "closed" if alias in status["closed"] else ", ".join(keys) or "none" for alias, keys in status["proven"].items()
    )
    refused = f" (+{status['refused']} refused)" if status["refused"] else ""
    tokens, use = status["kv_cache_tokens"], status["kv_use"]
    return (
        status["host"],
        status["seat"],
        " ".join(status["proven"]) or "-",
        status["release"] or "-",
        status["generation"] or "-",
        status["state"],
        _age(ready_age(status)),
        acceptance_text(status),
        "-" if tokens is None else f"{tokens:,}",
        "-" if use is None else f"{use:.0%}",
        status["headroom"] or "-",
        str(len(status["drifted"])) if status["drifted"] else "none",
        "-" if status["changed"] is None else _minute(status["changed"]),
        (keys + refused) or "-",
    )


def ready_age(status: Mapping[str, Any]) -> float | None:
    """Return for how many seconds a proven seat has been READY, None where that is not known."""
    if not status["good"] or not status["running"] or status["started"] is None:
        return None
    return max(0.0, float(status["looked"] - status["started"] - (status["ready_s"] or 0.0)))


def acceptance_text(status: Mapping[str, Any]) -> str:
    """Return the least and the most acceptance length over the workloads, and the same of the baseline."""
    if not status["acceptance"]:
        return "-"
    text = _span(status["acceptance"])
    return f"{text} ({_span(status['baseline'])})" if status["baseline"] else text


def _span(lengths: Mapping[str, float]) -> str:
    return "-".join(dict.fromkeys(f"{pick(lengths.values()):.2f}" for pick in (min, max)))


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    minutes = int(seconds) // 60
    days, hours = minutes // 1440, minutes // 60
    if days:
        return f"{days} d {hours % 24} h"
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min"


def _minute(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")


def _day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


def messages(statuses: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return every note of every seat, then the foreign processes of each host once."""
    lines = [f"{status['host']}/{status['seat']}: {note}" for status in statuses for note in status["notes"]]
    foreign = [(status["host"], one) for status in statuses for one in status["foreign"]]
    return [*lines, *(f"{host}: no seat, but uses a card: {one}" for host, one in dict.fromkeys(foreign))]


def table(statuses: Sequence[Mapping[str, Any]]) -> str:
    """Return one aligned line per seat, then every note in full; ``statuses`` are :meth:`SeatStatus.as_dict`."""
    if not statuses:
        return "no seats"
    return "\n".join([*aligned([_COLUMNS, *(_row(status) for status in statuses)]), *messages(statuses)])


def cells(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the columns of one seat with their headings, as the table has them."""
    return list(zip(_COLUMNS, _row(status), strict=True))


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None


def _read_json(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
