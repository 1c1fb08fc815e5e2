"""What the kernel has to say about the end of a seat: its OOM killer, a crash in native code, NVIDIA's driver.

None of it is in the unit's journal. Pure: the lines come as those of ``journalctl _TRANSPORT=kernel --output=json``.
Most of what a kernel writes is about something else, so a line counts only where it names the seat (its control group,
one of its processes), where it is about a whole card that may be the seat's, or where it comes with the seat's end and
bears a name of its.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from .journal import MAX_LENGTH

FIELDS = "MESSAGE,__REALTIME_TIMESTAMP"
# A collective whose card has gone is given up after ten minutes.
BEFORE_S = 15 * 60
AFTER_S = 5
# What kills a process is written in the same second; systemd and the engine's other processes take a few more.
AT_ONCE_S = 30
MAX_LINES = 5

_MEMCG = re.compile(r"^oom-kill:.*\btask_memcg=(?P<group>[^,]+),task=(?P<name>.*),pid=(?P<pid>\d+),")
_KILLED = re.compile(r"[Oo]ut of memory: Killed process (?P<pid>\d+) \((?P<name>.*?)\)")
# x86 writes the first two, arm64 the last; the number is that of the thread.
_CRASHED = re.compile(
    r"^(?:traps: )?(?P<name>.{1,15})\[(?P<pid>\d+)\]"
    r"(?:: segfault at | general protection fault ip:| trap invalid opcode ip:|: unhandled exception: )"
)
_XID = re.compile(
    r"^NVRM: Xid \((?P<card>[^)]*)\): (?P<xid>\d+)(?:, pid='?(?P<pid>\d+|<unknown>)'?)?(?:, name=(?P<name>[^,]*))?"
)
_LOST = re.compile(r"^NVRM: (?:.*?(?P<card>[0-9a-fA-F]+:[0-9a-fA-F]+:[0-9a-fA-F]+))?.*fallen off the bus")
_ADDRESS = re.compile(r"([0-9a-fA-F]+):([0-9a-fA-F]+):([0-9a-fA-F]+)")
# The driver ends the channels of a process that is gone: follows from whatever ended it.
_CLEANUP = 45
# About the card, whoever's process the driver names: memory, bus, firmware, link, reset.
_WHOLE_CARD = frozenset({48, 62, 63, 64, 74, 79, 92, 95, 119, 120, 140, 143, 149, 154})
# Names of vLLM's processes and of their threads; longer ones are cut after 15 characters.
_OURS = re.compile(r"^(?:VLLM::|vllm|python|pt_|cuda|nccl)", re.IGNORECASE)


@dataclass(frozen=True)
class Line:
    """One line that matters; ``killed`` when it is the OOM killer's, after which nothing else is a cause."""

    at: float
    text: str
    killed: bool = False


@dataclass(frozen=True)
class Seat:
    """Whose end it is: its unit, its processes as its journal names them, when it ended, and where its cards are.

    ``cards`` is None when that is not known: then any card may be one of its.
    """

    unit: str
    pids: Collection[int]
    names: Collection[str]
    ended: float
    cards: Collection[str] | None = None

    def may_have(self, card: str | None) -> bool:
        """Tell whether a card at a PCI address may be one of its; the function, ``.0``, is not always written."""
        place = _place(card or "")
        return self.cards is None or place is None or place in map(_place, self.cards)


def _place(address: str) -> tuple[int, ...] | None:
    found = _ADDRESS.search(address)
    return tuple(int(part, 16) for part in found.groups()) if found else None


def window(began: float, ended: float) -> tuple[float, float]:
    """Return from when to when the kernel's lines are asked for, of a start that lasted from ``began`` to ``ended``."""
    return max(began - AFTER_S, ended - BEFORE_S), ended + AFTER_S


def relevant(lines: Iterable[tuple[float, str]], seat: Seat) -> list[Line]:
    """Return the few lines about the end of a seat, oldest first; what repeats itself only once."""
    every = list(lines)
    groups = [found for _, text in every if (found := _MEMCG.search(text))]
    own = {int(one["pid"]) for one in groups if seat.unit in one["group"].split("/")}
    others = {int(one["pid"]) for one in groups} - own
    own |= set(seat.pids) - others
    kept: dict[str, Line] = {}
    for at, text in every:
        near = abs(at - seat.ended) <= AT_ONCE_S
        for kind in _kinds(text, own, others, seat, near):
            kept.setdefault(kind, Line(at, text.strip()[:MAX_LENGTH], kind.startswith("killed")))
    # What the OOM killer says is kept: it comes last, and decides.
    first = sorted(kept.values(), key=lambda line: not line.killed)[:MAX_LINES]
    return [line for line in kept.values() if line in first]


def _kinds(text: str, own: Collection[int], others: Collection[int], seat: Seat, near: bool) -> Iterator[str]:
    """Yield what kind of line about the seat this is; nothing for one that is not."""

    def ours(pid: str, name: str) -> bool:
        return int(pid) in own or (near and int(pid) not in others and (name in seat.names or bool(_OURS.match(name))))

    if killed := _KILLED.search(text):
        if ours(killed["pid"], killed["name"]):
            yield f"killed {killed['pid']}"
    elif crashed := _CRASHED.match(text):
        if ours(crashed["pid"], crashed["name"]):
            yield "crashed"
    elif xid := _XID.match(text):
        number, pid = int(xid["xid"]), xid["pid"]
        anybody = pid is None or not pid.isdigit() or number in _WHOLE_CARD
        if number != _CLEANUP and seat.may_have(xid["card"]) and (anybody or ours(str(pid), xid["name"] or "")):
            yield f"xid {xid['card']} {number}"
    elif (lost := _LOST.match(text)) and seat.may_have(lost["card"]):
        yield "lost"
