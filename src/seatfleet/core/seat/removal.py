"""Taking a seat out of service: stopped for work on its host, or removed with nothing left but its evidence."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..paths import CACHE, SEATS, SeatPaths, link_unit, measuring_units
from . import generations, stopped
from .decision import Wanted
from .link import config_of
from .rollout import KILL_MARGIN_S, Machine, Rollout, RolloutError

_WANTS = "etc/systemd/system"
# What a seat without a readable manifest is taken for: enough to stop it.
_UNKNOWN: dict[str, Any] = {"generation": "-", "port": 0, "base_url": "http://127.0.0.1:9", "probe": {}}
_STOP_TIMEOUT_S = 120


@dataclass(frozen=True)
class Removal:
    """What was (or in check mode would be) removed, as paths. Nothing was when ``failure`` says why.

    ``follower`` is the other host of a seat over two, where its other half has to be removed next.
    """

    seat: str
    removed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    drained_s: float | None = None
    aborted: int = 0
    follower: str | None = None
    failure: str | None = None


@dataclass(frozen=True)
class Stop:
    """Whether a seat ran and what became of its requests. It runs on when ``failure`` says why.

    ``follower`` is the other host of a seat over two, whose half stops with it and has to be marked there.
    """

    seat: str
    ran: bool = False
    drained_s: float | None = None
    aborted: int = 0
    follower: str | None = None
    failure: str | None = None


def stop(machine: Machine, paths: SeatPaths, *, check: bool, closed: Sequence[str] = ()) -> Stop:
    """Drain and stop a seat of which nothing is removed, and mark it as stopped on purpose; never raises.

    One that had failed before is marked too: whoever stops it knows. ``closed`` are the aliases that were closed first.
    """
    manifests = list(_manifests(paths))
    if not manifests:
        return Stop(paths.seat)
    result = Stop(paths.seat, ran=_runs(machine, paths), follower=_follower(manifests))
    measuring = next((unit for unit in measuring_units(paths.seat) if _active(machine, unit)), None)
    if measuring:
        return replace(
            result, failure=f"{measuring} measures it and starts it again: wait for its end, or stop that unit first"
        )
    if check:
        return result
    try:
        # A rollout that is under way would start it again, and take the mark for the one before.
        with machine.start_lock():
            return _stop(machine, paths, manifests[0], replace(result, ran=_runs(machine, paths)), closed)
    except (RolloutError, OSError) as error:
        return replace(result, failure=f"it was not stopped: {error}")


def _stop(machine: Machine, paths: SeatPaths, manifest: Mapping[str, Any], result: Stop, closed: Sequence[str]) -> Stop:
    before = None if result.ran else stopped.read(paths.seat, paths.root)
    mark = stopped.Mark(before.at if before else time.time(), tuple(closed))
    # Before the stop: should this process die after it, what starts seats that were left stopped leaves this one alone.
    stopped.write(paths.seat, mark, paths.root)
    stopped.drop_proofs(closed, paths.root)
    if result.ran:
        try:
            drained_s, aborted = _take_down(machine, paths, manifest)
        except (RolloutError, OSError):
            stopped.clear(paths.seat, paths.root)
            raise
        # And after it: systemd may have started it once more meanwhile, which removes a mark.
        stopped.write(paths.seat, mark, paths.root)
        result = replace(result, drained_s=drained_s, aborted=aborted)
    if machine.unit_state(paths.unit.name).active == "failed":
        # Also after a stop that ended in SIGKILL. From now on "failed" is a start that somebody tried after this.
        machine.forget(paths.unit.name)
    return result


def _runs(machine: Machine, paths: SeatPaths) -> bool:
    return _active(machine, paths.unit.name)


def _active(machine: Machine, unit: str) -> bool:
    return machine.unit_state(unit).active not in {"inactive", "failed"}


def remove(machine: Machine, paths: SeatPaths, *, weights: bool, releases: bool, check: bool) -> Removal:
    """Drain and stop a seat, then remove its unit, generations, API key, caches and timer; never raises.

    Its evidence stays: it says what the seat was. Weights and releases go only when they are asked for and no other
    seat's generation names them.
    """
    manifests = list(_manifests(paths))
    own = [path for path in _files(paths) if path.exists() or path.is_symlink()]
    shared = {
        Path(str(manifest[key]))
        for manifest in manifests
        for key, asked in (("model_path", weights), ("drafter_path", weights), ("release_path", releases))
        if asked and manifest.get(key)
    }
    used = _used_by_others(paths)
    doomed = [*own, *sorted(_under(paths, path) for path in shared - used if _under(paths, path).is_dir())]
    result = Removal(
        paths.seat, tuple(map(str, doomed)), tuple(sorted(map(str, shared & used))), follower=_follower(manifests)
    )
    if check or not doomed:
        return result
    manifest = manifests[0] if manifests else _UNKNOWN
    timer = f"seatfleet-probe@{paths.seat}.timer"
    machine.stop(timer, KILL_MARGIN_S)
    if paths.link.exists():
        # First: it would start what is stopped next, or end it.
        machine.stop(link_unit(paths.seat), KILL_MARGIN_S)
    try:
        with machine.start_lock():
            drained_s, aborted = _take_down(machine, paths, manifest)
    except RolloutError as error:
        return Removal(paths.seat, failure=f"nothing was removed: {error}")
    for path in doomed:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    machine.forget(paths.unit.name)
    return replace(result, drained_s=drained_s, aborted=aborted)


def _take_down(machine: Machine, paths: SeatPaths, manifest: Mapping[str, Any]) -> tuple[float, int]:
    """Drain and stop; return seconds waited and requests cut off. Old generations lack some of what it takes."""
    manifest = {**manifest, "unit": paths.unit.name, "probe": {"stop_timeout_s": _STOP_TIMEOUT_S, **manifest["probe"]}}
    return Rollout(machine, paths, Wanted(manifest["generation"], manifest, "")).take_down()


def _files(paths: SeatPaths) -> Iterator[Path]:
    """Yield what belongs to one seat: what starts it first, so that a removal that is killed leaves nothing running."""
    units = paths.root / _WANTS
    yield units / "multi-user.target.wants" / paths.unit.name
    yield units / "multi-user.target.wants" / link_unit(paths.seat)
    yield units / "timers.target.wants" / f"seatfleet-probe@{paths.seat}.timer"
    yield paths.unit
    yield units / f"{paths.unit.name}.d"
    yield stopped.marker(paths.seat, paths.root)
    yield paths.root / "var/lib/seatfleet/metrics" / f"seat-{paths.seat}.prom"
    yield _under(paths, Path(CACHE) / paths.seat)
    # The last: what is left of a seat is found by it.
    yield paths.home


def _manifests(paths: SeatPaths) -> Iterator[dict[str, Any]]:
    """Yield the manifests of a seat's generations, that of the current one first."""
    current = generations.link_target(paths.current)
    names = sorted(path.parent.name for path in paths.generations.glob("*/manifest.json"))
    for name in sorted(names, key=lambda name: name != current):
        if manifest := generations.read_manifest(paths, name):
            yield manifest


def _follower(manifests: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the host that follows, of the latest generation over two hosts, on its head."""
    for manifest in manifests:
        hosts = config_of(manifest)
        if hosts and hosts.own == hosts.head:
            return hosts.follower[0]
    return None


def _used_by_others(paths: SeatPaths) -> set[Path]:
    homes = (paths.root / SEATS.lstrip("/")).glob("*")
    others = [SeatPaths(home.name, paths.root) for home in homes if home.name != paths.seat and home.is_dir()]
    manifests = [manifest for other in others for manifest in _manifests(other)]
    keys = ("model_path", "drafter_path", "release_path")
    return {Path(str(manifest[key])) for manifest in manifests for key in keys if manifest.get(key)}


def _under(paths: SeatPaths, path: Path) -> Path:
    return paths.root / path.relative_to("/")
