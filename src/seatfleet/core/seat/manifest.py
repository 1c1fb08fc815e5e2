"""``manifest.json`` of a seat's generation: what was declared, for whoever has to check it on the host.

Written by :mod:`seatfleet.core.seat.render` with the generation, read by the probe. Holds no secret: the API key is in
``api_key_file``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..problems import Problem, ProblemsError

FORMAT = 1


@dataclass(frozen=True)
class Speculation:
    """How the seat speculates: vLLM's method name and the number of draft positions."""

    method: str
    k: int


@dataclass(frozen=True)
class Manifest:
    """The content of a generation's ``manifest.json``; sizes in bytes, times in seconds."""

    seat: str
    host: str
    unit: str | None  # None: not run by systemd (a server started by hand)
    base_url: str
    port: int
    api_key_file: Path | None
    model_id: str
    served_names: tuple[str, ...]
    max_model_len: int
    release_id: str
    generation: str
    kv_cache_memory_bytes: int | None
    max_num_seqs: int | None
    prefix_caching: bool
    speculative: Speculation | None
    declared: Mapping[str, Any]
    ready_timeout_s: int
    acceptance: Mapping[str, float] | None
    canary: str
    model_path: Path | None
    drafter_path: Path | None
    sampling: Mapping[str, float] = field(default_factory=dict)  # what callers send, from the first alias that says


CANARY_MODES = ("auto", "answers", "golden", "off")


def load_manifest(path: Path) -> Manifest:
    """Read a manifest.

    Raises:
        ProblemsError: unreadable, not JSON, another format, or fields missing or of the wrong type; all at once.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProblemsError([Problem(str(path), "", "", "a readable seat manifest", error.strerror or "?")]) from error
    except ValueError as error:
        raise ProblemsError([Problem(str(path), "", "", "JSON", str(error))]) from error
    return _Reader(str(path), content).manifest()


class _Reader:
    """Collects every problem of one manifest before giving up."""

    def __init__(self, where: str, content: object) -> None:
        self.where = where
        self.content: Mapping[str, Any] = content if isinstance(content, dict) else {}
        self.problems: list[Problem] = []
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            seen = content.get("format") if isinstance(content, dict) else type(content).__name__
            self.problems.append(Problem(where, "", "format", str(FORMAT), repr(seen)))

    def get(self, kind: type | tuple[type, ...], name: str, default: object = ..., within: str = "") -> Any:  # noqa: ANN401
        holder = self.content.get(within) if within else self.content
        value = holder.get(name, default) if isinstance(holder, dict) else default
        if value is default and default is not ...:
            return default
        kinds = kind if isinstance(kind, tuple) else (kind,)
        # bool is an int in Python; a port `true` is still wrong
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            expected = " or ".join(one.__name__ for one in kinds)
            seen = "nothing" if value is ... else repr(value)
            self.problems.append(Problem(self.where, "", f"{within}.{name}" if within else name, expected, seen))
            return None
        return value

    def optional(self, kind: type | tuple[type, ...], name: str, within: str = "") -> Any:  # noqa: ANN401
        holder = self.content.get(within) if within else self.content
        if not isinstance(holder, dict) or holder.get(name) is None:
            return None
        return self.get(kind, name, within=within)

    def path(self, name: str) -> Path | None:
        text = self.optional(str, name)
        return Path(text) if text else None

    def manifest(self) -> Manifest:
        speculative = None
        if self.optional(dict, "speculative") is not None:
            speculative = Speculation(
                self.get(str, "method", within="speculative"), self.get(int, "k", within="speculative")
            )
        canary = self.get(str, "canary", "auto", within="probe")
        if canary is not None and canary not in CANARY_MODES:
            self.problems.append(Problem(self.where, "", "probe.canary", " or ".join(CANARY_MODES), repr(canary)))
        manifest = Manifest(
            seat=self.get(str, "seat"),
            host=self.get(str, "host"),
            unit=self.optional(str, "unit"),
            base_url=self.get(str, "base_url"),
            port=self.get(int, "port"),
            api_key_file=self.path("api_key_file"),
            model_id=self.get(str, "model_id"),
            served_names=tuple(self.get(list, "served_names") or ()),
            max_model_len=self.get(int, "max_model_len"),
            release_id=self.get(str, "release_id"),
            generation=self.get(str, "generation"),
            kv_cache_memory_bytes=self.optional(int, "kv_cache_memory_bytes"),
            max_num_seqs=self.optional(int, "max_num_seqs"),
            prefix_caching=self.get(bool, "prefix_caching"),
            speculative=speculative,
            declared=self.get(dict, "declared", {}),
            ready_timeout_s=self.get(int, "ready_timeout_s", 1800, within="probe"),
            acceptance=self.optional(dict, "acceptance", within="probe"),
            canary=canary,
            model_path=self.path("model_path"),
            drafter_path=self.path("drafter_path"),
            sampling=self.optional(dict, "sampling", within="probe") or {},
        )
        if self.problems:
            raise ProblemsError(self.problems)
        return manifest


def read_api_key(path: Path, reader: Callable[[Path], str] = lambda path: path.read_text(encoding="utf-8")) -> str:
    """Return the value of ``VLLM_API_KEY=`` in a systemd environment file.

    Raises:
        ProblemsError: the file cannot be read or has no such line. The content is never part of the message.
    """
    try:
        lines = reader(path).splitlines()
    except OSError as error:
        raise ProblemsError(
            [Problem(str(path), "", "VLLM_API_KEY", "a readable key file", error.strerror or "?")]
        ) from error
    for line in lines:
        name, separator, value = line.strip().partition("=")
        if separator and name.strip() == "VLLM_API_KEY":
            return value.strip().strip("\"'")
    raise ProblemsError([Problem(str(path), "", "VLLM_API_KEY", "a line VLLM_API_KEY=...", "none")])
