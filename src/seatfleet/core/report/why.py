"""Why a seat failed the last time: its failed starts from the journal, its failed probes from the evidence.

Pure: the journal comes as the lines of ``journalctl --output=json``, known failures as a function.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from . import kernel
from .journal import KILLED, first_cause, says_why

# What systemd says of a start that came to nothing, or of a process that ended when nobody wanted it to.
_ENDED = re.compile(
    r"Main process exited, code=(?:exited, status=(?!0/)|killed|dumped)|Failed with result|Failed to start"
    r"|Control process exited|killed by the OOM killer|systemd-oomd killed"
    r"|Start request repeated too quickly"
)
# The first of these says more than "Failed with result 'exit-code'", which follows it.
_SAYS_HOW = re.compile(r"process exited|OOM killer|oomd|Start request repeated")
_REFUSED = re.compile(r"Start request repeated")
# What vLLM's processes say of each other when one was ended from outside.
_DIED = re.compile(r"died unexpectedly")
# "(EngineCore pid=374) ": of processes that write through another's standard output.
_NAMED = re.compile(r"\(\w[\w:.-]* pid=(\d+)\) ")
_AT = "%Y-%m-%dT%H:%M:%SZ"
JOURNAL_FIELDS = "MESSAGE,_PID,_COMM,_SYSTEMD_INVOCATION_ID,INVOCATION_ID,__REALTIME_TIMESTAMP"


@dataclass(frozen=True)
class Known:
    """A failure that is known: its name, what it looks like, what to do, and where it was reported."""

    id: str
    symptom: str
    advice: str
    sources: tuple[str, ...]


Explain = Callable[[Sequence[str]], Sequence[Known]]


@dataclass(frozen=True)
class Start:
    """One start of the unit (one systemd invocation). Times in seconds since the epoch; ``ended`` is systemd's word.

    ``systemd`` are those of the lines that are its, ``pids`` and ``names`` the processes that the others are from.
    """

    began: float
    last: float
    lines: tuple[str, ...]
    ended: str | None
    systemd: tuple[str, ...] = ()
    pids: frozenset[int] = frozenset()
    names: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Failure:
    """A ``start``, ``run`` or ``probe`` that went wrong: when, how it ended, its first cause, what is known of it.

    ``kernel`` are the kernel's lines about it.
    """

    kind: str
    at: float
    ended: str
    cause: str | None
    known: tuple[Known, ...]
    kernel: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def starts(lines: Iterable[str]) -> list[Start]:
    """Return the starts of a unit, oldest first, from ``journalctl --output=json``; other lines are left out."""
    groups: dict[str, list[_Entry]] = {}
    for line in lines:
        entry = _entry(line)
        if entry is None:
            continue
        # systemd's own messages about a unit name the invocation they are about in another field.
        invocation = str(entry.get("INVOCATION_ID") or entry.get("_SYSTEMD_INVOCATION_ID") or "")
        groups.setdefault(invocation, []).append(
            _Entry(_time(entry), _message(entry), int(entry.get("_PID") or 0), str(entry.get("_COMM") or ""))
        )
    return [_start(group) for group in groups.values()]


class _Entry(NamedTuple):
    at: float
    text: str
    pid: int
    name: str


def _start(group: Sequence[_Entry]) -> Start:
    said = tuple(entry.text for entry in group if entry.pid == 1)
    own = [entry for entry in group if entry.pid > 1]
    ends = [text for text in said if _ENDED.search(text)]
    ended = next((text for text in ends if _SAYS_HOW.search(text)), ends[0] if ends else None)
    pids = {entry.pid for entry in own} | {int(pid) for entry in own for pid in _NAMED.findall(entry.text)}
    return Start(
        group[0].at,
        group[-1].at,
        tuple(entry.text for entry in group),
        ended,
        said,
        frozenset(pids),
        frozenset(entry.name for entry in own if entry.name),
    )


def kernel_lines(
    lines: Iterable[str], start: Start, unit: str, cards: Collection[str] | None = None
) -> list[kernel.Line]:
    """Return what the kernel says about the end of a start, from ``journalctl _TRANSPORT=kernel --output=json``.

    ``cards`` are the PCI addresses of the seat's, None when they are not known.
    """
    since, until = kernel.window(start.began, start.last)
    entries = [(_time(entry), _message(entry)) for line in lines if (entry := _entry(line)) is not None]
    seat = kernel.Seat(unit, start.pids, start.names, start.last, cards)
    return kernel.relevant([(at, text) for at, text in entries if since <= at <= until], seat)


def failed_start(
    found: Sequence[Start], explain: Explain, ask_kernel: Callable[[Start], Sequence[kernel.Line]] = lambda _: ()
) -> Failure | None:
    """Return the last start that failed, None when none did; ``ask_kernel`` returns the kernel's lines about one.

    A start that systemd refused, because there were too many, has no cause of its own: the one before it has.
    """
    failed = [start for start in found if start.ended]
    if not failed:
        return None
    # One that died without a word is not one that was refused: an older start's cause is none of its.
    tried = [start for start in failed if not _REFUSED.search(start.ended or "") or first_cause(_own(start))]
    start = tried[-1] if tried else failed[-1]
    own = _own(start)
    asked = list(ask_kernel(start))
    cause = _cause(own, asked)
    # The cause decides; other errors of the log are asked only when it is nothing that is known, and what systemd says
    # only when nothing was logged.
    known = [*(explain([cause]) if cause else ()), *explain([line.text for line in asked])]
    if not known:
        known = [*explain([line for line in own if says_why(line)] if cause else start.systemd)]
    shown = tuple(f"{_utc(line.at)}: {line.text}" for line in asked)
    return Failure("start", start.last, failed[-1].ended or "", cause, tuple(dict.fromkeys(known)), shown)


def _cause(own: Sequence[str], asked: Sequence[kernel.Line]) -> str | None:
    """Return the first cause: the OOM killer's, else what the seat itself logged, else what the kernel says.

    A card's fault or a crash does not go before an exception of the seat's: the driver reports the fault that the
    exception is about, and processes also crash while they end. That another process died is no exception.
    """
    killed = next((line.text for line in asked if line.killed), None)
    logged = first_cause(own)
    if killed or (asked and (logged is None or not says_why(logged) or _DIED.search(logged))):
        return killed or asked[0].text
    return logged


def _own(start: Start) -> list[str]:
    """Return the lines without systemd's summary, which quotes no cause; that somebody's OOM killer acted is one."""
    return [line for line in start.lines if KILLED.search(line) or not _ENDED.search(line)]


def guarded(mark: Mapping[str, Any] | None, explain: Explain) -> Failure | None:
    """Return that the memory guard ended the seat, from its mark (:func:`..host.guard.read_marker`)."""
    if mark is None:
        return None
    at = _seconds(str(mark["at"])) if "at" in mark else 0.0
    cause = f"the memory guard killed it: {mark.get('why', '?')}"
    return Failure("run", at, "SIGKILL, and not started again by systemd", cause, tuple(explain([cause])))


def failed_probe(reports: Iterable[Mapping[str, Any]], explain: Explain) -> Failure | None:
    """Return the latest probe that failed, from rows of :func:`.status.read_history`, None when none did."""
    failed = [report for report in reports if report["verdict"] not in ("READY", "BUSY")]
    if not failed:
        return None
    report = failed[-1]
    cause = str(report["cause"]) if report.get("cause") else None
    at = _seconds(str(report["at"]))
    ended = f"level {report['level']}: {report['verdict']}"
    return Failure("probe", at, ended, cause, tuple(explain([cause]) if cause else ()))


def last_ready(reports: Iterable[Mapping[str, Any]]) -> float | None:
    """Return when the latest probe that found the seat READY began, in seconds since the epoch; None when none did."""
    return max((_seconds(str(report["at"])) for report in reports if report["verdict"] == "READY"), default=None)


def text(seat: str, state: str, failures: Sequence[Failure], ready: float | None = None) -> str:
    """Return what an operator reads: the state, then each failure, the latest first, and whether it is over.

    ``ready`` is :func:`last_ready`: a seat that was proven since then and is down now has another reason.
    """
    lines = [f"seat {seat}: {state}"]
    if not failures:
        lines.append("no failed start in the journal that is kept, no failed probe in the evidence")
    for failure in sorted(failures, key=lambda one: one.at, reverse=True):
        lines += ["", f"last failed {failure.kind}: {_utc(failure.at)}, {failure.ended}"]
        if ready is not None and ready > failure.at:
            lines.append(f"  over: the seat was proven READY after that, last at {_utc(ready)}")
        lines.append(f"  first cause: {failure.cause or 'none was logged; journalctl -u vllm-seat-' + seat}")
        lines += [f"  the kernel, {line}" for line in failure.kernel if not line.endswith(f": {failure.cause}")]
        if failure.cause and not failure.known:
            lines.append(
                "    what to do: what that line says; no advice beyond it is on record (docs/known-failures.md)"
            )
        for known in failure.known:
            lines.append(f"  known failure {known.id}: {known.symptom}")
            lines += [f"    what to do: {known.advice}"] * bool(known.advice)
            lines += [f"    reported in {', '.join(known.sources)}"] * bool(known.sources)
    return "\n".join(lines)


def _seconds(at: str) -> float:
    return datetime.strptime(at, _AT).replace(tzinfo=UTC).timestamp()


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _entry(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def _time(entry: Mapping[str, Any]) -> float:
    return int(entry.get("__REALTIME_TIMESTAMP") or 0) / 1e6


def _message(entry: Mapping[str, Any]) -> str:
    return _words(entry.get("MESSAGE"))


def _words(value: object) -> str:
    """Return text; a list of bytes is text that is no UTF-8 or has escape sequences, any other one several values."""
    if not isinstance(value, list):
        return str(value or "")
    if all(isinstance(one, int) for one in value):
        return bytes(value).decode(errors="replace")
    return " ".join(map(_words, value))
