"""Print the JSON Schema of seats, catalogues and presets, for editors.

Put `# yaml-language-server: $schema=../../docs/seat.schema.json` at the top of a file in group_vars, and an editor with
a YAML language server completes fields, shows their documentation and marks what is misspelt.

With --check FILE nothing is printed; the exit code is 1 when FILE is not what would be printed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..core.inventory.schema_docs import json_schema_text

HELP = "print the JSON Schema of seats, for editors"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--check", type=Path, metavar="FILE", help="compare with FILE instead of printing")


def run(args: argparse.Namespace) -> int:
    """Print, or compare."""
    text = json_schema_text()
    if args.check is None:
        print(text, end="")
        return 0
    if args.check.is_file() and args.check.read_bytes() == text.encode():
        return 0
    print(f"{args.check}: out of date, run `make docs`", file=sys.stderr)
    return 1
