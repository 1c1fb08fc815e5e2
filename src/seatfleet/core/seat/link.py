"""The link between the two hosts of one seat: they run one generation, start together and end together. Decisions only.

The head's host runs the seat as any other host does. Every two seconds the follower's host tells it what it has and
what it runs, and hears which generation the head's process is of, and of which start. With each start of the head the
follower starts anew, because processes of two starts never find each other. When one half ends the other has to: vLLM
itself goes on answering ``/health`` with 200 and fails the next request (0.32.0).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

POLL_S = 2.0
#: Without a word for so long the other host counts as gone: a restart of the link itself takes a second or two.
SILENCE_S = 20.0
#: How its line in the journal begins when it ends the seat.
ENDED = "ended the seat: "
MAX_MESSAGE = 64 << 10


class LinkError(Exception):
    """What came from the other host is not what it should be."""


@dataclass(frozen=True)
class Config:
    """``nodes`` of a manifest: which of the hosts this one is, the port, and (host, address) of all, the head first."""

    rank: int
    port: int
    hosts: tuple[tuple[str, str], ...]

    @property
    def head(self) -> tuple[str, str]:
        """Name and address of the head."""
        return self.hosts[0]

    @property
    def own(self) -> tuple[str, str]:
        """Name and address of this host."""
        return self.hosts[self.rank]

    @property
    def follower(self) -> tuple[str, str]:
        """Name and address of the other one."""
        return self.hosts[1]


def load_config(nodes: Mapping[str, Any]) -> Config:
    """Read ``nodes`` of a manifest.

    Raises:
        KeyError, TypeError: it is none.
    """
    hosts = tuple((str(node["host"]), str(node["address"])) for node in nodes["hosts"])
    return Config(int(nodes["rank"]), int(nodes["port"]), hosts)


def config_of(manifest: Mapping[str, Any] | None) -> Config | None:
    """Return the hosts of a generation over two, None of any other."""
    nodes = (manifest or {}).get("nodes")
    return load_config(nodes) if nodes else None


@dataclass(frozen=True)
class Report:
    """What the follower tells: the start of the head that its process belongs to, and whether it still runs.

    ``generations`` maps each that is staged to why it could not start, None where it could; ``cause`` is the first
    cause in the journal of a process that ended.
    """

    start: str | None = None
    running: bool = False
    generations: Mapping[str, str | None] = field(default_factory=dict)
    cause: str | None = None


@dataclass(frozen=True)
class Answer:
    """What the head's host answers: start and generation of its process, None while there is nothing to join."""

    start: str | None = None
    generation: str | None = None


def encode(message: Report | Answer) -> bytes:
    """Return a message as it is sent."""
    return json.dumps(asdict(message)).encode()


def decode_report(text: bytes) -> Report:
    """Read what a follower sent.

    Raises:
        LinkError: it is no report.
    """
    content = _mapping(text)
    found = content.get("generations")
    if not isinstance(found, dict):
        raise LinkError("a report without generations")
    generations = {str(name): None if why is None else str(why) for name, why in found.items()}
    return Report(_text(content, "start"), content.get("running") is True, generations, _text(content, "cause"))


def decode_answer(text: bytes) -> Answer:
    """Read what a head's host answered.

    Raises:
        LinkError: it is no answer.
    """
    content = _mapping(text)
    return Answer(_text(content, "start"), _text(content, "generation"))


def _mapping(text: bytes) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise LinkError(f"no JSON: {error}") from error
    if not isinstance(content, dict):
        raise LinkError("no mapping")
    return content


def _text(content: Mapping[str, Any], name: str) -> str | None:
    value = content.get(name)
    if value is not None and not isinstance(value, str):
        raise LinkError(f"{name} is no text")
    return value


@dataclass(frozen=True)
class Heard:
    """The last report of the follower and when it came, on the head's host. ``joined`` is the start it was seen in.

    Times are of the monotonic clock: a clock that is set must not look like silence.
    """

    report: Report | None = None
    at: float = 0.0
    joined: str | None = None

    def hear(self, report: Report, start: str | None, now: float) -> Heard:
        """Return what is known after a report, while the head's process is of ``start``."""
        joined = start if start is not None and report.start == start else self.joined
        return Heard(report, now, joined)

    def answer(self, start: str | None, generation: str | None) -> Answer:
        """Return what to tell the follower: a start that it was in before and is not any more is over for it."""
        if start is None or (self.joined == start and (self.report is None or self.report.start != start)):
            return Answer()
        return Answer(start, generation)

    def verdict(self, start: str | None, follower: str, now: float) -> str | None:
        """Return why the head's process has to be ended, None when it has not. Nobody ends one that still waits."""
        if start is None or self.joined != start or self.report is None:
            return None
        if now - self.at > SILENCE_S:
            return f"{follower} has said nothing for {now - self.at:.0f} s"
        if self.report.start == start and self.report.running:
            return None
        return f"the half of the seat on {follower} ended" + (f": {self.report.cause}" if self.report.cause else "")


class Step(StrEnum):
    """What the follower does."""

    STAY = "stay"
    START = "start"
    STOP = "stop"


@dataclass(frozen=True)
class Half:
    """The follower's own process: the start of the head that it was started for, None for none, and whether it runs."""

    start: str | None
    running: bool


def follow(own: Half, answer: Answer | None, silent_s: float) -> Step:
    """Say what a follower does next. ``answer`` is None when none came, the last one ``silent_s`` ago."""
    if answer is None:
        return Step.STOP if own.running and silent_s > SILENCE_S else Step.STAY
    if own.running:
        return Step.STAY if answer.start == own.start else Step.STOP
    # One that ended for this start would not find the others any more: the head starts anew first.
    return Step.START if answer.start is not None and answer.start != own.start else Step.STAY


def obstacles(heard: Mapping[str, Any] | None, generation: str, follower: str, now: float) -> list[str]:
    """Return why a generation could not be joined by the follower, in words, from what the link last knew."""
    if heard is None or now - float(heard["at"]) > SILENCE_S:
        since = "" if heard is None else f" for {now - float(heard['at']):.0f} s"
        return [
            f"{follower} has said nothing{since} over the link of the two hosts: look at seatfleet-link@ there, at the "
            "cable and at the address"
        ]
    known = heard["generations"]
    if generation not in known:
        return [f"generation {generation} is not on {follower}: run site.yml, which stages it there"]
    return [f"{follower}: {known[generation]}"] if known[generation] else []
