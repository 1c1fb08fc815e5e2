"""A release of three small wheels: an engine of four modules with one patch, a name shim, and a stand-in for pip."""

from __future__ import annotations

import hashlib
import platform
import sys
from pathlib import Path

from seatfleet.clients import wheels
from seatfleet.clients.wheelhouse import pin_of
from seatfleet.core.release.locks import Lock, Target
from seatfleet.core.release.patches import FileChange, Patch, Series
from seatfleet.core.release.releases import Release

TARGET = Target(sys.version_info.minor, platform.machine(), 17)
PRISTINE = "answer = 41\n"
PATCHED = "answer = 42\n"
DIFF = "--- a/engine/core.py\n+++ b/engine/core.py\n@@ -1 +1 @@\n-answer = 41\n+answer = 42\n"
HANG = "import os, pathlib, time\npathlib.Path(os.environ['HOME'], '..', 'hanging').touch()\ntime.sleep(60)\n"


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


SERIES = Series(
    "engine",
    "1.0",
    (
        Patch(
            "answer",
            "0001-answer.patch",
            sha(DIFF),
            {"engine/core.py": FileChange(sha(PRISTINE), sha(PATCHED))},
            why="w",
            upstream="u",
            seats="s",
            tested="t",
        ),
    ),
)


# The stand-in for pip: unpacks the wheels of the requirements file and writes their scripts.
TINY_PIP = b"""
import configparser, pathlib, sys, sysconfig, zipfile
options = dict(part[2:].split("=", 1) for part in sys.argv[1:] if "=" in part)
site, scripts = (pathlib.Path(sysconfig.get_path(name)) for name in ("purelib", "scripts"))
for line in pathlib.Path(options["requirement"]).read_text().splitlines():
    with zipfile.ZipFile(pathlib.Path(options["find-links"], line.split()[3])) as wheel:
        wheel.extractall(site)
        for name in wheel.namelist():
            if name.endswith("entry_points.txt"):
                entries = configparser.ConfigParser()
                entries.read_string(wheel.read(name).decode())
                for script in entries["console_scripts"]:
                    (scripts / script).write_text(f"#!{sys.executable}\\n")
"""


def fill(directory: Path) -> Path:
    files = {
        "engine/__init__.py": b"",
        "engine/core.py": PRISTINE.encode(),
        "engine/other.py": b"other = 1\n",
        "engine/broken.py": b"raise RuntimeError('no such device')\n",
        "engine/hang.py": HANG.encode(),
        "{dist-info}/entry_points.txt": b"[console_scripts]\nengine = engine.core:main\n",
    }
    wheels.build_wheel(directory, "engine", "1.0", files, "")
    wheels.build_shim(directory, "shim", "1.0+cpu", "engine==1.0")
    return directory


def add_tiny_pip(directory: Path) -> Path:
    wheels.build_wheel(directory, "pip", "1.0", {"pip/__main__.py": TINY_PIP, "pip/__init__.py": b""}, "")
    return directory


def release_of(wheelhouse: Path, imports: tuple[str, ...] = ("engine.core",)) -> Release:
    pins = tuple(pin_of(path, "index") for path in sorted(wheelhouse.glob("*.whl")))
    return Release("r", "engine", "1.0", Lock(TARGET, pins), SERIES, {"answer": DIFF}, imports)
