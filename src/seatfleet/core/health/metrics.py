"""Prometheus text as vLLM's ``/metrics`` writes it, and counter increments that can be trusted.

Rules, each from a failure somebody published: sum over ``engine`` *before* dividing (per-position rates were
under-counted under data parallelism), and a counter that went down, vanished or belongs to another start of the server
is a :class:`CounterReset`, never clamped to zero (a restart would read as "no traffic").
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

Labels = tuple[tuple[str, str], ...]

_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "\\": "\\", '"': '"'}
# Value, optional timestamp, optional exemplar (OpenMetrics).
_TAIL = re.compile(r"\s*(\S+)(?:\s+-?[0-9.]+)?\s*(?:#.*)?")
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


class MetricsError(ValueError):
    """The page is not Prometheus text, or lacks what was asked for."""


class CounterReset(MetricsError):
    """Two pages are not of one start of the server, or a counter went backwards."""


def parse_labels(text: str) -> Labels:
    """Return the sorted pairs of ``a="b",c="d"`` with escapes undone."""
    pairs = []
    position = 0
    while position < len(text):
        match = _LABEL.match(text, position)
        if match is None:
            if text[position:].strip() == "":
                break
            raise MetricsError(f"labels not understood: {text[:120]!r}")
        value = match[2]
        if "\\" in value:
            value = _ESCAPE.sub(lambda escape: _ESCAPES.get(escape[1], escape[0]), value)
        pairs.append((match[1], value))
        position = match.end()
    return tuple(sorted(pairs))


def _labels_end(line: str, start: int) -> int:
    """Return the index of the brace that closes the labels; a brace inside a quoted value does not count."""
    end = line.find("}", start)
    if line.count('"', start, end) % 2 == 0 and "\\" not in line[start:end]:
        return end
    quoted = escaped = False
    for index in range(start, len(line)):
        char = line[index]
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = quoted
        elif char == '"':
            quoted = not quoted
        elif char == "}" and not quoted:
            return index
    return -1


@dataclass
class Page:
    """One parsed ``/metrics`` page. Labels are parsed when a name is first asked for: most lines never are."""

    _raw: Mapping[str, list[tuple[str, float]]]
    _parsed: dict[str, dict[Labels, float]] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        """Tell whether at least one series has that name."""
        return name in self._raw

    def series(self, name: str) -> Mapping[Labels, float]:
        """Return every series of a name; empty when there is none."""
        if name not in self._parsed:
            table: dict[Labels, float] = {}
            for text, value in self._raw.get(name, ()):
                labels = parse_labels(text)
                if labels in table:
                    raise MetricsError(f"{name}: two lines with the same labels {dict(labels)}")
                table[labels] = value
            self._parsed[name] = table
        return self._parsed[name]

    def total(self, name: str, **wanted: str) -> float:
        """Return the sum over all engines (and every other label not given).

        Raises:
            MetricsError: no series matches, or one of them is NaN.
        """
        values = [value for labels, value in self.series(name).items() if wanted.items() <= dict(labels).items()]
        if not values:
            raise MetricsError(f"{name}: not on the page")
        if any(math.isnan(value) for value in values):
            raise MetricsError(f"{name}: the value is NaN")
        return math.fsum(values)

    def total_or(self, name: str, default: float) -> float:
        """Return :meth:`total`, or the default when the page lacks the name."""
        return self.total(name) if name in self else default

    def infos(self, name: str) -> list[dict[str, str]]:
        """Return the labels of each series of an ``_info`` metric, one mapping per engine, in engine order."""
        found = [dict(labels) for labels in self.series(name)]
        return sorted(found, key=lambda labels: labels.get("engine", ""))


def _value(text: str) -> float | None:
    """Return the number after the labels, None when there is none; a timestamp or an exemplar behind it is ignored."""
    match = _TAIL.fullmatch(text)
    try:
        return float(match[1]) if match else None
    except ValueError:
        return None


def parse(text: str) -> Page:
    """Parse a ``/metrics`` body. Counters keep the ``_total`` of the page in their name.

    Raises:
        MetricsError: a line is not ``name{labels} value``; the message has the line number.
    """
    raw: dict[str, list[tuple[str, float]]] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line or line[0] == "#" or line.isspace():
            continue
        opening = line.find("{")
        if opening >= 0:
            closing = _labels_end(line, opening)
            name, labels, tail = line[:opening], line[opening + 1 : closing], line[closing + 1 :]
        else:
            closing = 0
            name, _, tail = line.partition(" ")
            labels = ""
        try:
            value: float | None = float(tail)  # nearly every line: no timestamp, no exemplar
        except ValueError:
            value = _value(tail)
        if closing < 0 or value is None or (name not in raw and not _NAME.fullmatch(name)):
            raise MetricsError(f"line {number} is not Prometheus text: {line[:120]!r}")
        raw.setdefault(name, []).append((labels, value))
    return Page(raw)


def boot_identity(page: Page) -> str | None:
    """Return what tells one start of the server from the next, None when the page has nothing of the kind.

    ``process_start_time_seconds`` is missing with several API servers (multiprocess registry); the ``_created`` stamps
    of vLLM's counters serve then.
    """
    if "process_start_time_seconds" in page:
        return f"process_start_time_seconds={page.total('process_start_time_seconds'):.2f}"
    created = page.series("vllm:request_success_created")
    return f"created={min(created.values()):.2f}" if created else None


@dataclass(frozen=True)
class Delta:
    """Counter increments between two pages of one boot, per series."""

    increments: Mapping[str, Mapping[Labels, float]]

    def total(self, name: str) -> float:
        """Return the increment summed over engines and all other labels."""
        return math.fsum(self.increments[name].values())

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """Return increments per value of one label, summed over everything else."""
        sums: dict[str, float] = {}
        for labels, value in self.increments[name].items():
            key = dict(labels).get(label, "")
            sums[key] = sums.get(key, 0.0) + value
        return sums


def delta(before: Page, after: Page, names: Iterable[str]) -> Delta:
    """Return the increments of counters between two pages.

    A series that only the later page has counts from zero (vLLM makes some label values at first use).

    Raises:
        CounterReset: other boot, a series vanished, or a counter went down.
        MetricsError: a name is on neither page, or a value is NaN.
    """
    boots = boot_identity(before), boot_identity(after)
    if boots[0] != boots[1]:
        raise CounterReset(f"the server was restarted between two readings ({boots[0]}, then {boots[1]})")
    return Delta({name: dict(_increments(name, before.series(name), after.series(name))) for name in names})


def _increments(name: str, old: Mapping[Labels, float], new: Mapping[Labels, float]) -> Iterator[tuple[Labels, float]]:
    if not old and not new:
        raise MetricsError(f"{name}: not on the page")
    for labels in sorted(old.keys() | new.keys()):
        if labels not in new:
            raise CounterReset(f"{name}{dict(labels)} was on the page before and is not any more")
        increment = new[labels] - old.get(labels, 0.0)
        if math.isnan(increment):
            raise MetricsError(f"{name}{dict(labels)}: the value is NaN")
        if increment < 0:
            raise CounterReset(f"{name}{dict(labels)} went down from {old[labels]:g} to {new[labels]:g}")
        yield labels, increment
