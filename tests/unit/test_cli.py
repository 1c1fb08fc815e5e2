"""The command line: a verb that is named is the only one imported, since a timer starts it every minute."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from seatfleet.cli import build_parser

SRC = Path(__file__).resolve().parents[2] / "src"


def verbs(only: str | None) -> list[str]:
    return next(list(action.choices) for action in build_parser(only)._actions if action.dest == "verb")


def test_a_known_verb_stands_alone() -> None:
    assert verbs("probe") == ["probe"]


@pytest.mark.parametrize("only", [None, "nonsense", "--help"])
def test_else_all_are_offered(only: str | None) -> None:
    assert {"probe", "plan", "headroom", "guard"} <= set(verbs(only))


def test_a_probe_imports_nothing_of_other_verbs() -> None:
    code = (
        "import sys\nfrom seatfleet.cli import main\nmain(['probe', '--manifest', '/nowhere'])\n"
        "slow = ('jinja2', 'yaml', 'seatfleet.core.release.patches', 'asyncio')\n"
        "print(*[name for name in sys.modules if name in slow])"
    )
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
