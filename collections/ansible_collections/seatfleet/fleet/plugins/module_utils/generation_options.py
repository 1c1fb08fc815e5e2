"""The options of the modules that take rendered generations; documented in the fragment ``generations``."""

from __future__ import annotations

from typing import Any

GENERATION: dict[str, dict[str, Any]] = {
    "seat": {"type": "str", "required": True},
    "name": {"type": "str", "required": True},
    "release_path": {"type": "path", "required": True},
    "files": {"type": "dict", "required": True},
}
GENERATIONS: dict[str, dict[str, Any]] = {
    "generations": {"type": "list", "elements": "dict", "required": True, "options": GENERATION},
    "api_keys": {"type": "dict", "required": True, "no_log": True},
}
