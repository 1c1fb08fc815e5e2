"""Show the rows that ``playbooks/status.yml -e status_file=FILE`` wrote: as the table it printed, JSON or a page.

seatctl status FILE [--drift DRIFT] [--json | --html PAGE]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ..core.problems import Problem, ProblemsError
from ..core.report.status import table
from ..core.report.status_page import page

HELP = "show a state file of playbooks/status.yml as a table, JSON or an HTML page"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``seatctl status``."""
    parser.add_argument("file", type=Path, help="JSON written by playbooks/status.yml -e status_file=FILE")
    parser.add_argument("--drift", type=Path, metavar="FILE", help="JSON of playbooks/drift.yml, to be shown with it")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the rows as JSON")
    form.add_argument("--html", type=Path, metavar="PAGE", help="write one self-contained page there")


def run(args: argparse.Namespace) -> int:
    """Print or write."""
    rows = _read(args.file, "playbooks/status.yml -e status_file=FILE")
    drift = _read(args.drift, "playbooks/drift.yml -e drift_file=FILE") if args.drift else []
    try:
        rows = [_with_drift(row, drift) for row in rows]
        if args.json:
            print(json.dumps(rows, indent=2))
        elif args.html:
            args.html.write_text(page(rows), encoding="utf-8")
        else:
            print(table(rows))
    except (KeyError, TypeError) as error:
        seen = f"rows without {error}" if isinstance(error, KeyError) else str(error)
        expected = "JSON written by playbooks/status.yml of this version"
        raise ProblemsError([Problem(str(args.file), "", "", expected, seen)]) from error
    return 0


def _with_drift(row: dict[str, Any], drift: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a row with the drift of its seat; differences of the host go to each of its seats."""
    found = [
        f"{one['part']} {one['what']}: {one['differs']}"
        for one in drift
        if one["host"] == row["host"] and (one["part"] not in ("seat", "alias") or one["what"] in _names(row))
    ]
    return {**row, "drifted": [*row["drifted"], *found], "notes": [*row["notes"], *(f"drift: {one}" for one in found)]}


def _names(row: dict[str, Any]) -> set[str]:
    return {row["seat"], *row["proven"]}


def _read(path: Path, expected: str) -> list[dict[str, Any]]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ProblemsError([Problem(str(path), "", "", f"JSON written by {expected}", str(error))]) from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ProblemsError([Problem(str(path), "", "", f"JSON written by {expected}", "something else")])
    return rows
