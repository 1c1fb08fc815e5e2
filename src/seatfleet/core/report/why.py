"""Why a seat failed the last time: its failed starts from the journal, its failed probes from the evidence.

Pure: the journal comes as the lines of ``journalctl --output=json``, known failures as a function.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

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
_AT = "%Y-%m-%dT%H:%M:%SZ"
JOURNAL_FIELDS = "MESSAGE,_PID,_SYSTEMD_INVOCATION_ID,INVOCATION_ID,__REALTIME_TIMESTAMP"


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

    ``systemd`` are those of the lines that are its.
    """

    began: float
    last: float
    lines: tuple[str, ...]
    ended: str | None
    systemd: tuple[str, ...] = ()


@dataclass(frozen=True)
class Failure:
    """A ``start``, ``run`` or ``probe`` that went wrong: when, how it ended, its first cause, what is known of it."""

    kind: str
    at: float
    ended: str
    cause: str | None
    known: tuple[Known, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def starts(lines: Iterable[str]) -> list[Start]:
    """Return the starts of a unit, oldest first, from ``journalctl --output=json``; other lines are left out."""
    groups: dict[str, list[tuple[float, str, bool]]] = {}
    for line in lines:
        entry = _entry(line)
        if entry is None:
            continue
        # systemd's own messages about a unit name the invocation they are about in another field.
        invocation = str(entry.get("INVOCATION_ID") or entry.get("_SYSTEMD_INVOCATION_ID") or "")
        at = int(entry.get("__REALTIME_TIMESTAMP") or 0) / 1e6
        groups.setdefault(invocation, []).append((at, _message(entry), entry.get("_PID") == "1"))
    return [_start(group) for group in groups.values()]


def _start(group: Sequence[tuple[float, str, bool]]) -> Start:
    said = tuple(text for _, text, systemd in group if systemd)
    ends = [text for text in said if _ENDED.search(text)]
    ended = next((text for text in ends if _SAYS_HOW.search(text)), ends[0] if ends else None)
    return Start(group[0][0], group[-1][0], tuple(text for _, text, _ in group), ended, said)


def failed_start(found: Sequence[Start], explain: Explain) -> Failure | None:
    """Return the last start that failed, None when none did.

    A start that systemd refused, because there were too many, has no cause of its own: the one before it has.
    """
    failed = [start for start in found if start.ended]
    if not failed:
        return None
    # One that died without a word is not one that was refused: an older start's cause is none of its.
    tried = [start for start in failed if not _REFUSED.search(start.ended or "") or first_cause(_own(start))]
    start = tried[-1] if tried else failed[-1]
    own = _own(start)
    cause = first_cause(own)
    # The cause decides; other errors of the log are asked only when it is nothing that is known, and what systemd says
    # only when nothing was logged.
    known = explain([cause]) or explain([line for line in own if says_why(line)]) if cause else explain(start.systemd)
    return Failure("start", start.last, failed[-1].ended or "", cause, tuple(known))


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
        if failure.cause and not failure.known:
            lines.append("  this is none of the known failures (docs/known-failures.md)")
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


def _message(entry: Mapping[str, Any]) -> str:
    message = entry.get("MESSAGE")
    # The journal shows text that is no UTF-8, or has escape sequences, as a list of bytes.
    return bytes(message).decode(errors="replace") if isinstance(message, list) else str(message or "")
