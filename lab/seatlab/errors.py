"""The one exception of the lab tool, and the place where commands of the machine are run."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence


class LabError(Exception):
    """Something the operator can mend; ``str()`` is one line that says what and how."""


def run(command: Sequence[str], *, env: Mapping[str, str] | None = None) -> str:
    """Run a command of the machine and return its stdout; ``LabError`` with its stderr when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, env=env, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())
        raise LabError(f"'{' '.join(command)}' ended with {done.returncode}: {said or 'no output'}")
    return done.stdout
