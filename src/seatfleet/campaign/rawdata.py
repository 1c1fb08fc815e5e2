"""The raw data of a campaign on disk. Every number of a report can be computed again from it.

Layout (units in the names)::

    <campaign id>/campaign.json          definition, schedule, arms, client hashes, shapes
    <campaign id>/campaign.lock.json     progress: written with fsync and rename after every boot
    <campaign id>/boots/<nn>_<arm>_<i>/  boot.json, cells/*, scrapes/*.prom.gz, telemetry.csv, log.txt.gz, SHA256SUMS
    <campaign id>/aborted/               boots that did not end, kept and never read by the analysis
    <campaign id>/SHA256SUMS             over everything above but ``aborted``; written when the last boot is done
    <campaign id>/report/                what ``seatctl campaign report`` makes of it

A boot is written in ``boots/.partial-<name>`` and renamed when complete: what has the right name is whole.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from ..core.health.metrics import Page, parse
from .load import CellRun, request_from_json
from .observe import Cell, read_counters
from .schedule import Slot, number_slots

FORMAT = 1
LOCK = "campaign.lock.json"
_SUMS = "SHA256SUMS"
_APART = ("aborted", "report")
_LOOKS, _LOOK_S = 10, 0.02


class RawError(Exception):
    """The raw data is not what it should be: files changed, missing or added, or another format."""


# --- durable writing --------------------------------------------------------------------------------------------------


def write_durably(path: Path, content: bytes) -> None:
    """Write a file so that after a crash it is either the old or the new one."""
    temporary = path.with_name(f".{path.name}.new")
    with temporary.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_tree(path: Path) -> None:
    for folder, _, names in os.walk(path):
        for name in names:
            with (Path(folder) / name).open("rb") as stream:
                os.fsync(stream.fileno())
        _sync_directory(Path(folder))


def to_json(value: object) -> bytes:
    """Return readable JSON; NaN is refused."""
    return (json.dumps(value, indent=1, sort_keys=False, allow_nan=False, ensure_ascii=False) + "\n").encode()


def pack(content: bytes) -> bytes:
    """Compress without a time stamp, so that equal content gives equal files."""
    return gzip.compress(content, compresslevel=9, mtime=0)


# --- progress ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planned:
    """One entry of the schedule as it runs: ``extra`` marks a control boot inserted after a pause."""

    arm: str
    extra: bool = False


@dataclass(frozen=True)
class Progress:
    """Where a campaign stands. ``done`` are directory names in order; ``gaps`` the pauses before a boot, in seconds."""

    campaign_id: str
    schedule: tuple[Planned, ...]
    done: tuple[str, ...] = ()
    block: int = 0
    host_boot_id: str = ""
    last_end_utc: float = 0.0
    gaps: tuple[tuple[int, float], ...] = ()

    @property
    def slots(self) -> tuple[Slot, ...]:
        """All boots, numbered."""
        return number_slots([planned.arm for planned in self.schedule])

    @property
    def next_slot(self) -> Slot | None:
        """The boot to measure next, None when all are done."""
        return self.slots[len(self.done)] if len(self.done) < len(self.schedule) else None

    def finished(self, slot: Slot, now_utc: float) -> Progress:
        """Return the progress after a boot."""
        return replace(self, done=(*self.done, slot.directory), last_end_utc=now_utc)

    def resumed(self, control: str, host_boot_id: str, now_utc: float, longest_gap_s: float) -> Progress:
        """Return the progress after a pause: a long one, or a reboot, opens a new block with an extra control boot.

        The machine may have changed while nothing ran. The extra boot shows it, and the analysis takes a step between
        blocks out of every comparison.
        """
        gap = now_utc - self.last_end_utc
        # a clock that was set back does not tell how long the pause was
        short = 0 <= gap <= longest_gap_s and host_boot_id == self.host_boot_id
        position = len(self.done)
        # an extra boot that no boot has followed yet serves for this pause as well
        if not self.done or self.next_slot is None or short or self.schedule[position].extra:
            return replace(self, host_boot_id=host_boot_id)
        schedule = (*self.schedule[:position], Planned(control, extra=True), *self.schedule[position:])
        return replace(
            self,
            schedule=schedule,
            block=self.block + 1,
            host_boot_id=host_boot_id,
            gaps=(*self.gaps, (position, round(gap, 1))),
        )

    def as_json(self) -> dict[str, Any]:
        """Return the content of the lock file."""
        return {"format": FORMAT, **asdict(self)}


def progress_from_json(raw: Mapping[str, Any]) -> Progress:
    """Read the lock file back."""
    if raw.get("format") != FORMAT:
        raise RawError(f"{LOCK}: expected format {FORMAT}, seen {raw.get('format')!r}")
    return Progress(
        campaign_id=raw["campaign_id"],
        schedule=tuple(Planned(**entry) for entry in raw["schedule"]),
        done=tuple(raw["done"]),
        block=raw["block"],
        host_boot_id=raw["host_boot_id"],
        last_end_utc=raw["last_end_utc"],
        gaps=tuple((int(position), float(seconds)) for position, seconds in raw["gaps"]),
    )


# --- writing ----------------------------------------------------------------------------------------------------------


def _lock(stream: IO[str], kind: int, attempts: int = 1) -> bool:
    """Take a lock. Who only looks holds it for a moment, which must not stop somebody who measures."""
    for attempt in range(attempts):
        if attempt:
            time.sleep(_LOOK_S)
        try:
            fcntl.flock(stream, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        return True
    return False


class BootWriter:
    """Collects one boot. Nothing of it counts until :meth:`RawCampaign.complete` has renamed its directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._scrapes = 0
        (path / "cells").mkdir(parents=True)
        (path / "scrapes").mkdir()

    def scrape(self, text: str) -> str:
        """Keep one ``/metrics`` page verbatim and return its name; cells that follow each other share one."""
        name = f"{self._scrapes:04d}.prom.gz"
        self._scrapes += 1
        (self.path / "scrapes" / name).write_bytes(pack(text.encode()))
        return name

    def cell(self, run: CellRun, header: Mapping[str, Any]) -> None:
        """Keep one cell: a JSON header and one line per request."""
        name = cell_name(header["rep"], header["shape"], header["concurrency"], header["kind"])
        failed = sum(not request.ok for request in run.requests)
        content = {
            **header,
            "t0_mono_ns": run.t0_mono_ns,
            "t1_mono_ns": run.t1_mono_ns,
            "t0_utc": run.t0_utc,
            "n_ok": len(run.requests) - failed,
            "n_err": failed,
        }
        lines = "".join(json.dumps(request.as_json(), allow_nan=False) + "\n" for request in run.requests)
        (self.path / "cells" / f"{name}.json").write_bytes(to_json(content))
        (self.path / "cells" / f"{name}.requests.jsonl.gz").write_bytes(pack(lines.encode()))

    def file(self, name: str, content: bytes) -> None:
        """Keep another file of the boot."""
        (self.path / name).write_bytes(content)


def cell_name(rep: int, shape: str, concurrency: int, kind: str) -> str:
    """Return the file name of a cell: ``0_tool_c8``, with the kind behind it when it is not the plain stream."""
    return f"{rep}_{shape}_c{concurrency}" + ("" if kind == "stream" else f"_{kind}")


class RawCampaign:
    """One campaign's directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    # --- making and locking

    @classmethod
    def create(cls, path: Path, manifest: Mapping[str, Any], schedule: Sequence[str]) -> RawCampaign:
        """Make the directory of a new campaign.

        Raises:
            RawError: there is one already.
        """
        if (path / "campaign.json").exists():
            raise RawError(f"{path}: there is a campaign already; resume it, or choose another id")
        (path / "boots").mkdir(parents=True)
        (path / "aborted").mkdir()
        campaign = cls(path)
        campaign.save(Progress(str(manifest["campaign_id"]), tuple(Planned(arm) for arm in schedule)))
        # last: a directory with campaign.json is complete
        write_durably(path / "campaign.json", to_json({"schema_version": FORMAT, **manifest}))
        return campaign

    @property
    def exists(self) -> bool:
        """Tell whether the campaign was made."""
        return (self.path / "campaign.json").exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the campaign for one process; a lock that dies with its process, so that nothing is left to clean up.

        Raises:
            RawError: another process measures, or there is no such directory.
        """
        if not self.path.is_dir():
            raise RawError(f"{self.path}: not there; is this the directory of a campaign?")
        with (self.path / ".running").open("w") as stream:
            if not _lock(stream, fcntl.LOCK_EX, _LOOKS):
                raise RawError(f"{self.path}: another process is measuring this campaign")
            yield

    @property
    def running(self) -> bool:
        """Tell whether a process measures this campaign now."""
        try:
            with (self.path / ".running").open() as stream:
                return not _lock(stream, fcntl.LOCK_SH)
        except FileNotFoundError:
            return False

    # --- progress

    def manifest(self) -> dict[str, Any]:
        """Return ``campaign.json``."""
        return _read_json(self.path / "campaign.json")

    def progress(self) -> Progress:
        """Return how far the campaign is."""
        return progress_from_json(_read_json(self.path / LOCK))

    def save(self, progress: Progress) -> None:
        """Write the progress durably."""
        write_durably(self.path / LOCK, to_json(progress.as_json()))

    def amend(self, **entries: object) -> None:
        """Add entries to ``campaign.json`` that are known only once measuring has begun (the KV pin, shape hashes)."""
        write_durably(self.path / "campaign.json", to_json({**self.manifest(), **entries}))

    # --- boots

    def begin(self, name: str) -> BootWriter:
        """Begin a boot; leftovers of an interrupted one are moved to ``aborted`` first."""
        self.clear_partial("interrupted: found when the campaign went on")
        return BootWriter(self.path / "boots" / f".partial-{name}")

    def clear_partial(self, reason: str) -> list[str]:
        """Move boots that did not end to ``aborted``, and complete ones that the progress does not know.

        The latter were renamed but not recorded: a crash between two writes. Measuring one boot again is cheaper than
        deciding whether it counts.
        """
        if not self.exists:
            return []
        known = set(self.progress().done)
        moved = []
        for path in sorted((self.path / "boots").iterdir()):
            if path.name not in known:
                moved.append(self._abort(path, reason))
        if moved:  # the report names them: who ends a boot that he does not like chooses his boots
            entries = [{"boot": name.rpartition(".")[0], "reason": reason} for name in moved]
            self.amend(aborted=[*self.manifest().get("aborted", []), *entries])
        return moved

    def _abort(self, path: Path, reason: str) -> str:
        base = path.name.removeprefix(".partial-")
        taken = sum(1 for other in (self.path / "aborted").glob(f"{base}.*"))
        target = self.path / "aborted" / f"{base}.{taken}"
        path.rename(target)
        write_durably(target / "aborted.json", to_json({"reason": reason}))
        return target.name

    def complete(
        self, writer: BootWriter, boot: Mapping[str, Any], progress: Progress, slot: Slot, now_utc: float
    ) -> Progress:
        """Seal a boot: sums, fsync, rename, progress. Return the new progress."""
        writer.file("boot.json", to_json(boot))
        writer.file(_SUMS, _sums(writer.path))
        _sync_tree(writer.path)
        writer.path.rename(self.path / "boots" / slot.directory)
        _sync_directory(self.path / "boots")
        progress = progress.finished(slot, now_utc)
        self.save(progress)
        return progress

    def redo(self, name: str, reason: str) -> Progress:
        """Take the last boot back, so that it is measured again; it stays in ``aborted`` with the reason.

        Only the last one: taking out an earlier one would change the order that makes drift cancel.
        """
        progress = self.progress()
        if not progress.done or progress.done[-1] != name:
            last = progress.done[-1] if progress.done else "none"
            raise RawError(f"only the last boot can be measured again: expected {last}, seen {name}")
        self._abort(self.path / "boots" / name, reason)
        # the report says so: measuring until it fits would be no measuring
        self.amend(redone=[*self.manifest().get("redone", []), {"boot": name, "reason": reason}])
        (self.path / _SUMS).unlink(missing_ok=True)
        progress = replace(progress, done=progress.done[:-1])
        self.save(progress)
        return progress

    @property
    def sealed(self) -> bool:
        """Tell whether there are sums over the whole campaign."""
        return (self.path / _SUMS).exists()

    def seal(self) -> None:
        """Write the sums over the whole campaign."""
        write_durably(self.path / _SUMS, _sums(self.path))

    # --- reading

    def verify(self) -> None:
        """Check every file against the sums.

        Raises:
            RawError: a file was changed, is missing or was added; all are named.
        """
        if not (self.path / "boots").is_dir():
            raise RawError(f"{self.path}/boots: not there; is this the directory of a campaign?")
        problems = list(_compare_sums(self.path))
        present = tuple(sorted(path.name for path in (self.path / "boots").iterdir()))
        if present != self.boots():
            problems.append(f"boots: expected {', '.join(self.boots())}, seen {', '.join(present)}")
        if problems:
            raise RawError(f"{self.path}: raw data changed since it was measured: " + "; ".join(problems))

    def boots(self) -> tuple[str, ...]:
        """Return the names of the complete boots, in order."""
        return self.progress().done

    def boot(self, name: str) -> dict[str, Any]:
        """Return ``boot.json``."""
        return _read_json(self.path / "boots" / name / "boot.json")

    def page(self, boot: str, scrape: str) -> Page:
        """Return one kept ``/metrics`` page."""
        return parse(gzip.decompress((self.path / "boots" / boot / "scrapes" / scrape).read_bytes()).decode())

    def text(self, boot: str, name: str) -> str:
        """Return another file of a boot as text; empty when there is none."""
        path = self.path / "boots" / boot / name
        if not path.exists():
            return ""
        content = path.read_bytes()
        return (gzip.decompress(content) if name.endswith(".gz") else content).decode()

    def cells(self, boot: str) -> list[Cell]:
        """Return the cells of a boot in the order they were measured, counters computed from the kept pages."""
        info = self.boot(boot)
        pages: dict[str, Page] = {}

        def page(name: str) -> Page:
            if name not in pages:
                pages[name] = self.page(boot, name)
            return pages[name]

        cells = []
        for path in (self.path / "boots" / boot / "cells").glob("*.json"):
            header = _read_json(path)
            lines = gzip.decompress(path.with_suffix(".requests.jsonl.gz").read_bytes()).decode().splitlines()
            cells.append(
                Cell(
                    slot=info["slot"],
                    arm=info["arm"],
                    rep=header["rep"],
                    shape=header["shape"],
                    concurrency=header["concurrency"],
                    kind=header["kind"],
                    order=header["order_index"],
                    requests=tuple(request_from_json(json.loads(line)) for line in lines),
                    counters=read_counters(page(header["prom_before"]), page(header["prom_after"])),
                )
            )
        return sorted(cells, key=lambda cell: cell.order)


def newest(base: Path, name: str) -> Path | None:
    """Return the newest campaign of that name below ``base``; directories sort by the time in their name."""
    # the whole name: "mtp" is not "table-mtp"
    whole = re.compile(rf"\d{{8}}-\d{{6}}-{re.escape(name)}")
    found = sorted(path.parent for path in base.glob(f"*-{name}/campaign.json") if whole.fullmatch(path.parent.name))
    return found[-1] if found else None


def directory_for(base: Path, name: str, now: datetime, *, new: bool = False) -> Path:
    """Return the directory to measure in: that of the newest campaign of this name, or another one if ``new``."""
    known = None if new else newest(base, name)
    return known or base / f"{now:%Y%m%d-%H%M%S}-{name}"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise RawError(f"{path}: not there; is this the directory of a campaign?") from error
    except ValueError as error:
        raise RawError(f"{path}: not JSON: {error}") from error


def _counted(path: Path) -> list[Path]:
    """Return the files that sums cover: not the sums, not locks, not what was aborted, not reports made from it."""
    skip = {_SUMS, ".running"}
    return sorted(
        file
        for file in path.rglob("*")
        if file.is_file()
        and file.name not in skip
        and not any(part in _APART or part.startswith(".partial-") for part in file.relative_to(path).parts)
    )


def _sums(path: Path) -> bytes:
    lines = [
        f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.relative_to(path).as_posix()}\n" for f in _counted(path)
    ]
    return "".join(lines).encode()


def _compare_sums(path: Path) -> Iterator[str]:
    if not (path / _SUMS).exists():
        yield f"{_SUMS} is missing"
        return
    lines = (path / _SUMS).read_text(encoding="utf-8").splitlines()
    expected = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    seen = {file.relative_to(path).as_posix(): file for file in _counted(path)}
    yield from (f"{name} is missing" for name in sorted(expected.keys() - seen.keys()))
    yield from (f"{name} was added" for name in sorted(seen.keys() - expected.keys()))
    for name in sorted(expected.keys() & seen.keys()):
        if hashlib.sha256(seen[name].read_bytes()).hexdigest() != expected[name]:
            yield f"{name} was changed"
