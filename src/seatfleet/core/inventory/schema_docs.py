"""The table of fields as other people want it: JSON Schema for editors, Markdown tables for the manual."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from .catalogue import HARDWARE, MODEL, RELEASE
from .kinds import Field, Items, Record, Table
from .schema import SEAT

SCHEMA_ID = "https://json-schema.org/draft/2020-12/schema"
#: Regions of a Markdown file that :func:`fill_tables` writes: ``<!-- table: seat -->`` to ``<!-- end -->``.
TABLES = {"seat": SEAT, "release": RELEASE, "model": MODEL, "hardware": HARDWARE}
_REGION = re.compile(r"(<!-- table: ([a-z]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a file in ``group_vars``.

    A profile may bring any field of a seat, so nothing inside one is required there except in aliases; a seat without
    a profile must have all required fields.
    """
    partial = _without_required(SEAT.schema())
    required = [field.name for field in SEAT.fields if field.required]
    complete = {"anyOf": [{"required": ["profile"]}, {"required": required}]}

    def named(content: dict[str, Any], text: str) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": content, "description": text}

    return {
        "$schema": SCHEMA_ID,
        "title": "seatfleet variables",
        "description": "Generated from the table of fields; `seatctl validate` checks more than this can say.",
        "type": "object",
        "properties": {
            "seats": named({"$ref": "#/$defs/seat", **complete}, "Seats of the host, by name."),
            "seat_profiles": named({"$ref": "#/$defs/seat"}, "Named presets for seats."),
            "seat_defaults": {"$ref": "#/$defs/seat", "description": "What every seat starts from."},
            "seat_class_defaults": {"$ref": "#/$defs/seat", "description": "What seats of a host class start from."},
            "releases": named(RELEASE.schema(), "Catalogue of releases."),
            "models": named(MODEL.schema(), "Catalogue of models."),
            "fleet_hardware": HARDWARE.schema(),
        },
        "$defs": {"seat": partial},
    }


def json_schema_text() -> str:
    """Return the schema as the committed file has it."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _without_required(seat: dict[str, Any]) -> dict[str, Any]:
    """Return a seat's schema in which the seat and its direct records may be incomplete."""
    relaxed = {key: value for key, value in seat.items() if key != "required"}
    for name, content in seat["properties"].items():
        branches = content.get("anyOf", [content])
        for branch in branches:
            if branch.get("type") == "object" and "properties" in branch:
                branch.pop("required", None)
        relaxed["properties"][name] = content
    return relaxed


def markdown_table(record: Record) -> str:
    """Return one row per field, nested ones with a dotted name."""
    lines = ["| field | value | default | meaning |", "|---|---|---|---|"]
    return "\n".join([*lines, *_rows(record, "")]) + "\n"


def _rows(record: Record, prefix: str) -> Iterator[str]:
    for field in record.fields:
        name = prefix + field.name
        cells = (f"`{name}`", _value(field), _default(field), field.doc)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
        kind = field.kind
        if isinstance(kind, Record):
            yield from _rows(kind, f"{name}.")
        elif isinstance(kind, Table) and isinstance(kind.value, Record):
            yield from _rows(kind.value, f"{name}.<name>.")
        elif isinstance(kind, Items) and isinstance(kind.item, Record):
            yield from _rows(kind.item, f"{name}[].")


def _value(field: Field) -> str:
    """Return what a field takes; the fields of a record follow in rows of their own."""
    text = "a mapping" if isinstance(field.kind, Record) else field.kind.expected
    return f"{text}, or null" if field.nullable else text


def _default(field: Field) -> str:
    if field.required:
        return "*required*"
    if field.default_text is not None:
        return field.default_text
    if field.default is None:
        return "null" if field.nullable else ""
    return "empty" if field.default in ({}, ()) else f"`{json.dumps(field.default)}`"


def fill_tables(text: str) -> str:
    """Return a Markdown text with its table regions written anew.

    Raises:
        KeyError: a region names no table of :data:`TABLES`.
    """
    return _REGION.sub(lambda match: match[1] + markdown_table(TABLES[match[2]]) + match[3], text)
