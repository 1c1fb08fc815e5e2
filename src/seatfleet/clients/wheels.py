"""Wheels made here, the same bytes on every machine: this project itself, and name shims.

Entries are stored, not compressed: the output of deflate depends on the zlib a Python was built with, and these wheels
are locked by sha256.
"""

from __future__ import annotations

import base64
import hashlib
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path

# The earliest time a zip can hold; any fixed value would do.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_REGULAR_FILE_0644 = 0o100644 << 16


def build_wheel(directory: Path, name: str, version: str, files: Mapping[str, bytes], metadata: str) -> Path:
    """Write the pure-Python wheel ``name-version-py3-none-any.whl`` and return its path.

    ``files`` maps paths inside the wheel to contents; those of ``dist-info`` may be among them (``entry_points.txt``).
    ``metadata`` is the text of METADATA after the lines for name and version.
    """
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    contents = {
        **{path.replace("{dist-info}", info): data for path, data in files.items()},
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: seatctl\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},{_record_hash(data)},{len(data)}\n" for path, data in sorted(contents.items()))
    contents[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    target = directory / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for path, data in sorted(contents.items()):
            entry = zipfile.ZipInfo(path, _EPOCH)
            entry.external_attr = _REGULAR_FILE_0644
            entry.create_system = 3  # Unix; the default is the building machine's
            archive.writestr(entry, data)
    return target


def build_shim(directory: Path, name: str, version: str, requires: str) -> Path:
    """Write a wheel that holds only the metadata of ``name``, for a program that asks for it under that name."""
    return build_wheel(directory, name, version, {}, f"Summary: Name shim for {requires}\nRequires-Dist: {requires}\n")


def build_project(project: Path, directory: Path) -> Path:
    """Write the wheel of the project in ``project`` (its ``pyproject.toml`` and ``src``) and return its path.

    The build backend would need packages from the network, stamps times and compresses; the project is pure Python
    with one source root, so a listing is all there is to it.
    """
    settings = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    root = project / "src"
    files = {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted((root / settings["name"]).rglob("*"))
        if path.is_file() and (path.suffix in {".py", ".json", ".jsonl"} or path.name == "py.typed")
    }
    scripts = "".join(f"{command} = {target}\n" for command, target in sorted(settings["scripts"].items()))
    files["{dist-info}/entry_points.txt"] = f"[console_scripts]\n{scripts}".encode()
    lines = [f"Summary: {settings['description']}", f"Requires-Python: {settings['requires-python']}"]
    lines.extend(f"Requires-Dist: {requirement}" for requirement in settings["dependencies"])
    return build_wheel(directory, settings["name"], settings["version"], files, "\n".join(lines) + "\n")


def _record_hash(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={digest}"
