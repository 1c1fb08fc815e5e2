"""The API key of a seat in the environment file that its unit starts with.

The file belongs to the process that runs: its timed probes read it, and systemd starts it again with it. So a rollout
replaces it, between stop and start. Any earlier, and a refused rollout would leave a seat that no caller can use after
its next crash.
"""

from __future__ import annotations

from ..files import write_atomic
from ..paths import SeatPaths
from .render import API_KEY_VARIABLE


def read(paths: SeatPaths) -> str | None:
    """Return the key that the unit would start with, None where there is no file."""
    try:
        text = paths.api_key.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    return text.strip().removeprefix(f"{API_KEY_VARIABLE}=")


def write(paths: SeatPaths, key: str) -> None:
    """Make it the key that the unit starts with; a file that has it is not written again."""
    if read(paths) != key:
        write_atomic(paths.api_key, f"{API_KEY_VARIABLE}={key}\n", mode=0o600)
