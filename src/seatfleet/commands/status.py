"""Show the rows that ``playbooks/status.yml -e status_file=FILE`` wrote, as the table it printed.

seatctl status FILE
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ..core.problems import Problem, ProblemsError
from ..core.status import table

HELP = "show a state file of playbooks/status.yml as a table"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``seatctl status``."""
    parser.add_argument("file", type=Path, help="JSON written by playbooks/status.yml")


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    try:
        rows = json.loads(args.file.read_text(encoding="utf-8"))
        print(table(rows))
    except (OSError, ValueError, KeyError, TypeError) as error:
        expected = "JSON written by playbooks/status.yml -e status_file=FILE"
        raise ProblemsError([Problem(str(args.file), "", "", expected, str(error))]) from error
    return 0
