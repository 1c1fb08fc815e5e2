"""Everything a host's seats need on disk, written while whatever runs keeps running."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..files import umask
from ..paths import SEATS, SeatPaths
from . import api_key, generations
from .render import MANIFEST_FILE, Generation

_SECRET = "(secret)\n"


@dataclass(frozen=True)
class SeatStage:
    """What staging did, or would do, for one seat. ``before`` and ``after`` are readable texts without secrets.

    They also name another API key, which staging leaves to the rollout: that alone is no change of its own.
    """

    seat: str
    generation: str
    created: bool
    changed: bool
    before: str
    after: str


def stage_host(
    rendered: Sequence[Generation], api_keys: Mapping[str, str], *, check: bool, root: Path = Path("/")
) -> list[SeatStage]:
    """Stage the generations of all seats of a host, and API keys where there are none; in check mode only say it.

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


def _stage(generation: Generation, wanted_key: str, check: bool, paths: SeatPaths) -> SeatStage:
    key = api_key.read(paths)
    before, after = _difference(paths, generation)
    if check:
        plan = generations.plan_stage(paths, generation.name, generation.files)
    else:
        plan = generations.stage(paths, generation.name, generation.files, generation.release_path)
        # Another one belongs to what runs, and stays as long as that may run on.
        if key is None:
            api_key.write(paths, wanted_key)
    if key != wanted_key:
        seen = "none" if key is None else "another, replaced with the restart"
        before, after = f"{before}{paths.api_key.name}: ({seen})\n", f"{after}{paths.api_key.name}: {_SECRET}"
    return SeatStage(generation.seat, generation.name, plan.create, plan.changed or key is None, before, after)


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
