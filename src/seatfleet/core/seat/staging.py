"""Everything a host's seats need on disk, written while whatever runs keeps running."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..files import umask, write_atomic
from ..paths import SEATS, SeatPaths
from . import generations
from .render import API_KEY_VARIABLE, MANIFEST_FILE, Generation

_SECRET = "(secret)\n"


@dataclass(frozen=True)
class SeatStage:
    """What staging did, or would do, for one seat. ``before`` and ``after`` are readable texts without secrets."""

    seat: str
    generation: str
    created: bool
    changed: bool
    before: str
    after: str


def stage_host(
    rendered: Sequence[Generation], api_keys: Mapping[str, str], *, check: bool, root: Path = Path("/")
) -> list[SeatStage]:
    """Stage the generations and API keys of all seats of a host; in check mode only say what would change.

    Raises:
        GenerationError: a generation on disk was edited.
        KeyError: a seat has no API key.
    """
    with umask(0o022):
        return [
            _stage(generation, api_keys[generation.seat], check, SeatPaths(generation.seat, root))
            for generation in rendered
        ]


def unmanaged(declared: Sequence[str], root: Path = Path("/")) -> list[str]:
    """Return the seats that are on the host and that nobody declares any more."""
    home = root / SEATS.lstrip("/")
    present = (entry.name for entry in home.iterdir() if entry.is_dir()) if home.is_dir() else ()
    return sorted(set(present) - set(declared))


def _stage(generation: Generation, api_key: str, check: bool, paths: SeatPaths) -> SeatStage:
    key_text = f"{API_KEY_VARIABLE}={api_key}\n"
    key_differs = _read(paths.api_key) != key_text
    before, after = _difference(paths, generation)
    if check:
        plan = generations.plan_stage(paths, generation.name, generation.files)
    else:
        plan = generations.stage(paths, generation.name, generation.files, generation.release_path)
        if key_differs:
            write_atomic(paths.api_key, key_text, mode=0o600)
    if key_differs:
        before, after = (
            before + f"{paths.api_key.name}: (another or none)\n",
            after + f"{paths.api_key.name}: {_SECRET}",
        )
    return SeatStage(generation.seat, generation.name, plan.create, plan.changed or key_differs, before, after)


def _difference(paths: SeatPaths, generation: Generation) -> tuple[str, str]:
    """Return the texts to compare: the files that serve now against the files that are wanted."""
    current = generations.link_target(paths.current)
    known = paths.generation(generation.name).is_dir()
    base = paths.generation(generation.name) if known or current is None else paths.generation(current)
    texts: tuple[list[str], list[str]] = ([], [])
    for name, after in generation.files.items():
        before = _read(base / name)
        if name == MANIFEST_FILE or before == after:
            continue  # the manifest only says again what the other files say
        texts[0].append("" if before is None else f"# {name}\n{before}")
        texts[1].append(f"# {name}\n{after}")
    return "".join(texts[0]), "".join(texts[1])


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
