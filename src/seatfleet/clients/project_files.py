"""Files of the project that the fleet's rules ask about; each is read once, however many hosts refer to it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ..core.problems import Problem, ProblemsError
from ..core.release.patches import Series, load_series


class ProjectFiles:
    """The files below ``root``, as :class:`seatfleet.core.inventory.fleet.ProjectFiles` asks for them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._json: dict[str, Mapping[str, Any] | None] = {}
        self._series: dict[str, Series | None] = {}
        self._names: dict[str, frozenset[str] | None] = {}

    def exists(self, path: str) -> bool:
        """Return True when the file or directory is there."""
        return (self._root / path).exists()

    def manifest_revision(self, path: str) -> str | None:
        """Return the revision in a model's manifest, None when there is no such file.

        Raises:
            ProblemsError: it is malformed.
        """
        manifest = self._read_json(path)
        return None if manifest is None else str(manifest.get("revision"))

    def model_config(self, path: str, manifest: str) -> Mapping[str, Any] | None:
        """Return the content of a copy of a model's config.json, None when it or the manifest is not there.

        Raises:
            ProblemsError: it is malformed, or not the file that the manifest lists: the revision moved on without it.
        """
        config, listing = self._read_json(path), self._read_json(manifest)
        if config is None or listing is None:
            return None
        listed = listing.get("files", {}).get("config.json", {}).get("sha256")
        found = hashlib.sha256((self._root / path).read_bytes()).hexdigest()
        if found != listed:
            expected = f"the config.json that {manifest} lists, sha256 {listed}"
            raise ProblemsError([Problem(path, "model", "facts.config", expected, found)])
        return config

    def series(self, name: str) -> Series | None:
        """Return the series in ``files/patches/<name>/series.yml``, None when there is none.

        Raises:
            ProblemsError: it is malformed.
        """
        if name not in self._series:
            path = f"files/patches/{name}/series.yml"
            file = self._root / path
            if not file.is_file():
                self._series[name] = None
            else:
                try:
                    content = yaml.safe_load(file.read_text(encoding="utf-8"))
                except yaml.YAMLError as error:
                    raise ProblemsError([Problem(path, "series", "", "YAML", " ".join(str(error).split()))]) from None
                self._series[name] = load_series(content if isinstance(content, dict) else {}, path)
        return self._series[name]

    def environment_names(self, path: str) -> frozenset[str] | None:
        """Return the names listed in a file, one a line, ``#`` starting a comment; None when there is none."""
        if path not in self._names:
            file = self._root / path
            text = file.read_text(encoding="utf-8") if file.is_file() else None
            names = (line.partition("#")[0].strip() for line in (text or "").splitlines())
            self._names[path] = None if text is None else frozenset(name for name in names if name)
        return self._names[path]

    def content(self, path: str) -> bytes | None:
        """Return what is in a file, None when there is no such file."""
        file = self._root / path
        return file.read_bytes() if file.is_file() else None

    def _read_json(self, path: str) -> Mapping[str, Any] | None:
        if path not in self._json:
            file = self._root / path
            try:
                content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
            except json.JSONDecodeError as error:
                raise ProblemsError([Problem(f"{path}:{error.lineno}", "", "", "JSON", error.msg)]) from None
            if content is not None and not isinstance(content, dict):
                raise ProblemsError([Problem(path, "", "", "a JSON object", type(content).__name__)])
            self._json[path] = content
        return self._json[path]
