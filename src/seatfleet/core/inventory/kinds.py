"""Kinds of values in a seat: what is accepted, how to say so, and the same thing as JSON Schema.

A kind never stops at the first fault: it reports to a :class:`Findings` and returns :data:`INVALID`.
"""

from __future__ import annotations

import datetime
import difflib
import ipaddress
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from ..units import SIZE_FORM, parse_size

Path = tuple[str, ...]
#: A checked value of the type that its kind promises, or :data:`INVALID`.
Checked: TypeAlias = Any
INVALID: Final = object()
_TEMPLATE = re.compile(r"\{[{%]")
_SIZE_LIKE = re.compile(r"([1-9][0-9]*)\s*([mMgG])(i?[bB])?")
_PLACEHOLDER = "<fill in"


def is_template(value: object) -> bool:
    """Return True for text that Ansible would still evaluate, so that its value is not known yet."""
    return isinstance(value, str) and _TEMPLATE.search(value) is not None


def is_placeholder(value: object) -> bool:
    """Return True for ``<fill in: ...>``: a value that only the owner of the fleet can know."""
    return isinstance(value, str) and value.startswith(_PLACEHOLDER)


def show(value: object) -> str:
    """Return a value as a message shows it: as YAML writes it, on one line, at most 80 characters."""
    words = {None: "null", True: "true", False: "false"}
    text = words[value] if value is None or isinstance(value, bool) else " ".join(repr(value).split())
    return text if len(text) <= 80 else text[:77] + "..."


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)``, or an empty text when nothing is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


@dataclass
class Findings:
    """What was found while reading one mapping; paths are relative to it."""

    wrong: list[tuple[Path, str, str]] = field(default_factory=list)
    unknown_yet: list[Path] = field(default_factory=list)
    placeholders: list[Path] = field(default_factory=list)

    def add(self, path: Path, expected: str, seen: str) -> Checked:
        """Record a fault and return :data:`INVALID`, so that a kind can ``return findings.add(...)``."""
        self.wrong.append((path, expected, seen))
        return INVALID


class Kind(ABC):
    """Base of all kinds."""

    @property
    @abstractmethod
    def expected(self) -> str:
        """What a message says was expected."""

    @abstractmethod
    def convert(self, value: object, at: Path, findings: Findings) -> Checked:
        """Return the checked value, or report and return :data:`INVALID`."""

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of this kind."""

    def read(self, value: object, at: Path, findings: Findings) -> Checked:
        """Convert a value unless Ansible has yet to evaluate it, or its owner has yet to fill it in."""
        if is_template(value):
            findings.unknown_yet.append(at)
            return INVALID
        if is_placeholder(value):
            findings.placeholders.append(at)
            return INVALID
        return self.convert(value, at, findings)


@dataclass(frozen=True)
class Integer(Kind):
    """An integer in a range. Quoted digits and booleans are refused: both are accidents of YAML."""

    low: int
    high: int
    unit: str = ""

    @property
    def expected(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        return f"an integer from {self.low} to {self.high}{unit}"

    def convert(self, value: object, at: Path, findings: Findings) -> Checked:
        if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
            return findings.add(at, self.expected, show(value))
        return int(value)

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True)
class Number(Kind):
    """A number in a range; ``above`` excludes the lower end."""

    low: float
    high: float
    above: bool = False

    @property
    def expected(self) -> str:
        if self.above:
            return f"a number above {self.low:g} and at most {self.high:g}"
        return f"a number from {self.low:g} to {self.high:g}"

    def convert(self, value: object, at: Path, findings: Findings) -> Checked:
        number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
        if self.low <= number <= self.high and not (self.above and number == self.low):
            return number
        return findings.add(at, self.expected, show(value))

    def schema(self) -> dict[str, Any]:
        return {"type": "number", ("exclusiveMinimum" if self.above else "minimum"): self.low, "maximum": self.high}


@dataclass(frozen=True)
class Boolean(Kind):
    """``true`` or ``false``; quoted, it would be a text that is always true."""

    @property
    def expected(self) -> str:
        return "true or false, without quotes"

    def convert(self, value: object, at: Path, findings: Findings) -> Checked:
        return bool(value) if isinstance(value, bool) else findings.add(at, self.expected, show(value))

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Text(Kind):
    """Text that matches a pattern as a whole."""

    what: str
    pattern: str = r"[^\x00-\x1f]+"

    @property
    def expected(self) -> str:
        return self.what

    def convert(self, value: object, at: Path, findings: Findings) -> Checked:
        if isinstance(value, str) and re.fullmatch(self.pattern, value):
            return str(value)
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and "quotes" not in self.what
        hint = " (in quotes: without them YAML reads a number)" if number else ""
        return findings.add(at, self.what + hint, show(value))

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^(?:{self.pattern})$"}


@dataclass(frozen=True)
class Choice(Kind):
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def expected(self) -> str:
        return "one of " + ", ".join(self.words)

    def convert(self, value: object, at: Path, findings: Findings) -> Checked:
        if value not in self.words:
            hint = did_you_mean(value, self.words) if isinstance(value, str) else ""
            return findings.add(at, self.expected + hint, show(value))
        return str(value)

    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.words)}


@dataclass(frozen=True)
class Size(Kind):
    """A size, returned in bytes."""

    @property
    def expected(self) -> str:
        return SIZE_FORM

    def convert(self, value: object, at: Path, findings: Findings) -> Checked:
        try:
            return parse_size(value)
        except ValueError:
            like = _SIZE_LIKE.fullmatch(value) if isinstance(value, str) else None
            hint = f" (did you mean {like[1]}{like[2].upper()}iB?)" if like else ""
            return findings.add(at, SIZE_FORM + hint, show(value))

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": "^[1-9][0-9]*(MiB|GiB)$"}


@dataclass(frozen=True)
class Address(Kind):
    """An IPv4 or IPv6 address to listen on."""

    @property
    def expected(self) -> str:
        return "an IP address, for example 0.0.0.0 or 127.0.0.1"

    def convert(self, value: object, at: Path, findings: Findings) -> Checked:
        try:
            return str(ipaddress.ip_address(value if isinstance(value, str) else ""))
        except ValueError:
            return findings.add(at, self.expected, show(value))

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "anyOf": [{"format": "ipv4"}, {"format": "ipv6"}]}


@dataclass(frozen=True)
class Gpu(Kind):
    """A GPU: its index in PCI order, or its UUID."""

    pattern = r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"

    @property
    def expected(self) -> str:
        return "a GPU index in PCI order (0 to 63) or a GPU UUID as nvidia-smi -L prints it"

    def convert(self, value: object, at: Path, findings: Findings) -> Checked:
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 64:
            return int(value)
        if isinstance(value, str) and re.fullmatch(self.pattern, value):
            return str(value)
        return findings.add(at, self.expected, show(value))

    def schema(self) -> dict[str, Any]:
        return {
            "anyOf": [
                {"type": "integer", "minimum": 0, "maximum": 63},
                {"type": "string", "pattern": f"^{self.pattern}$"},
            ]
        }


@dataclass(frozen=True)
class Plain(Kind):
    """Anything that JSON can say: what the engine's own parser will judge."""

    @property
    def expected(self) -> str:
        return "a plain value (text, number, true/false, list or mapping)"

    def convert(self, value: object, at: Path, findings: Findings) -> Checked:
        if isinstance(value, Mapping):
            items = {key: self.read(item, (*at, str(key)), findings) for key, item in value.items()}
            bad = [key for key in items if not isinstance(key, str)]
            return findings.add(at, "keys that are text", show(bad[0])) if bad else items
        if isinstance(value, list):
            return [self.read(item, (*at, str(index)), findings) for index, item in enumerate(value)]
        if isinstance(value, (datetime.date, datetime.datetime)):
            return findings.add(at, "text in quotes (YAML reads this as a date)", show(str(value)))
        if isinstance(value, float) and not math.isfinite(value):
            return findings.add(at, "a finite number", show(value))
        if value is None or isinstance(value, (str, int, float)):
            return value
        return findings.add(at, self.expected, show(value))

    def schema(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class Items(Kind):
    """A list, returned as a tuple; without repetitions unless ``unique`` is off."""

    item: Kind
    what: str
    least: int = 0
    unique: bool = True
    most: int | None = None

    @property
    def expected(self) -> str:
        if self.most is not None:
            return (
                f"a list of {self.least} {self.what}" if self.least == self.most else f"at most {self.most} {self.what}"
            )
        return f"a list of {self.what}" + (", not empty" if self.least else "")

    def convert(self, value: object, at: Path, findings: Findings) -> Checked:
        if not isinstance(value, Sequence) or isinstance(value, str) or len(value) < self.least:
            return findings.add(at, self.expected, show(value))
        if self.most is not None and len(value) > self.most:
            return findings.add(at, self.expected, f"{len(value)} entries")
        items = [self.item.read(item, (*at, str(index)), findings) for index, item in enumerate(value)]
        if any(item is INVALID for item in items):
            return INVALID
        for index, item in enumerate(items):
            if self.unique and item in items[:index]:
                findings.add((*at, str(index)), "every entry once", show(item))
        return tuple(items)

    def schema(self) -> dict[str, Any]:
        limit = {} if self.most is None else {"maxItems": self.most}
        return {
            "type": "array", "items": self.item.schema(), "minItems": self.least, **limit, "uniqueItems": self.unique
        }  # fmt: skip


@dataclass(frozen=True)
class Table(Kind):
    """A mapping from names to values of one kind."""

    name: Text
    value: Kind
    what: str

    @property
    def expected(self) -> str:
        return f"a mapping of {self.what}"

    def convert(self, value: object, at: Path, findings: Findings) -> Checked:
        if not isinstance(value, Mapping):
            return findings.add(at, self.expected, show(value))
        result = {}
        for key, item in value.items():
            name = self.name.convert(key, (*at, str(key)), findings)
            converted = self.value.read(item, (*at, str(key)), findings)
            if name is not INVALID and converted is not INVALID:
                result[name] = converted
        return result

    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "propertyNames": {"pattern": self.name.schema()["pattern"]},
            "additionalProperties": self.value.schema(),
        }


@dataclass(frozen=True)
class Field:
    """One key of a record. ``default`` is what an absent key means (``None`` also where null is allowed)."""

    name: str
    kind: Kind
    doc: str
    required: bool = False
    nullable: bool = False
    default: Any = None
    default_text: str | None = None

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the field with its documentation."""
        schema = self.kind.schema()
        if self.nullable:
            schema = {"anyOf": [schema, {"type": "null"}]}
        return {**schema, "description": self.doc}


@dataclass(frozen=True)
class Record(Kind):
    """A mapping with known keys; an unknown one is a fault, with the nearest known name."""

    what: str
    fields: tuple[Field, ...]

    @property
    def expected(self) -> str:
        return f"a mapping ({', '.join(item.name for item in self.fields)})"

    @property
    def names(self) -> tuple[str, ...]:
        """The known keys, in the order of the documentation."""
        return tuple(item.name for item in self.fields)

    def convert(self, value: object, at: Path, findings: Findings) -> Checked:
        if not isinstance(value, Mapping):
            return findings.add(at, self.expected, show(value))
        for key in value:
            if key not in self.names:
                hint = did_you_mean(str(key), self.names)
                findings.add((*at, str(key)), f"a known field of {self.what}{hint}", "an unknown field")
        result: dict[str, Any] = {}
        for item in self.fields:
            here = (*at, item.name)
            if item.name not in value:
                if item.required:
                    result[item.name] = findings.add(here, item.kind.expected, "nothing")
                else:
                    result[item.name] = (
                        None if item.default is None else item.kind.convert(item.default, here, findings)
                    )
            elif value[item.name] is None and item.nullable:
                result[item.name] = None
            else:
                result[item.name] = item.kind.read(value[item.name], here, findings)
        return result

    def schema(self) -> dict[str, Any]:
        required = [item.name for item in self.fields if item.required]
        return {
            "type": "object",
            "properties": {item.name: item.schema() for item in self.fields},
            "additionalProperties": False,
            **({"required": required} if required else {}),
        }
