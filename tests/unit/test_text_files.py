"""The module that keeps text files with one call."""

from __future__ import annotations

import errno
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

PROJECT = Path(__file__).resolve().parents[2]
NAME = "ansible_collections.seatfleet.fleet.plugins.modules.text_files"
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.syspath_prepend(str(PROJECT / "collections"))
    module = importlib.import_module(NAME)

    def call(*more: dict[str, Any], check: bool = False, **arguments: Any) -> dict[str, Any]:
        options = {"files": [arguments, *more], "_ansible_check_mode": check}
        with patch_module_args(options), pytest.raises(SystemExit):
            module.main()
        answer: dict[str, Any] = json.loads(capsys.readouterr().out)
        return answer

    return call


def test_a_file_is_written_once_and_kept(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "a.conf"
    assert run(path=str(file), content="one\n")["changed"]
    assert (file.read_text(), oct(file.stat().st_mode)[-3:]) == ("one\n", "644")
    assert not run(path=str(file), content="one\n")["changed"]
    file.chmod(0o600)
    again = run(path=str(file), content="one\n")
    assert again["changed"]
    assert "mode 0600" in again["diff"][0]["before_header"]
    assert oct(file.stat().st_mode)[-3:] == "644"


def test_a_full_disk_is_told_in_one_line_and_the_old_text_stays(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.conf"
    run(path=str(file), content="one\n")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(importlib.import_module(NAME), "write_atomic", full)
    told = run(path=str(file), content="two\n")["msg"]
    assert told.startswith(f"{file}: the new text could not be written: [Errno 28]")
    assert file.read_text() == "one\n"


def test_of_several_files_only_those_that_differ_are_written(run: Run, tmp_path: Path) -> None:
    first, second = ({"path": str(tmp_path / name), "content": name} for name in "ab")
    assert run(first, **second)["paths"] == [second["path"], first["path"]]
    (tmp_path / "a").write_text("by hand")
    again = run(first, **second)
    assert (again["changed"], again["paths"]) == (True, [first["path"]])
    assert (tmp_path / "a").read_text() == "a"


def test_an_empty_text_removes_the_file_once(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "a.conf"
    file.write_text("one\n")
    foreseen = run(check=True, path=str(file), content="")
    assert (foreseen["paths"], foreseen["diff"][0]["before"]) == ([str(file)], "one\n")
    assert file.exists()
    assert run(path=str(file), content="", validate="/bin/false %s")["paths"] == [str(file)]
    assert not file.exists()
    assert not run(path=str(file), content="")["changed"]
    assert not run(path=str(tmp_path / "none/a.conf"), content="")["changed"]


def test_check_mode_shows_and_writes_nothing(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "a.conf"
    foreseen = run(check=True, path=str(file), content="one\n", validate="/bin/false %s")
    assert foreseen["changed"]
    assert foreseen["diff"][0]["after"] == "one\n"
    assert list(tmp_path.iterdir()) == []


def test_a_text_that_is_refused_does_not_get_there(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "a.conf"
    assert run(path=str(file), content="good\n", validate="grep -q good %s")["changed"]
    refused = run(path=str(file), content="bad\n", validate="grep -q good %s")
    assert refused["failed"]
    assert "refuses the new text" in refused["msg"]
    assert file.read_text() == "good\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.conf"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"mode": "rw-r--r--"}, "expected an octal number"), ({"path": "{directory}/none/a"}, "expected a directory")],
)
def test_mistakes_are_said(run: Run, tmp_path: Path, arguments: dict[str, str], message: str) -> None:
    given = {"path": str(tmp_path / "a"), **arguments}
    given["path"] = given["path"].format(directory=tmp_path)
    assert message in run(content="x", **given)["msg"]
    assert message in run(content="x", **given)["msg"]


def test_a_directory_in_its_place_is_said(run: Run, tmp_path: Path) -> None:
    assert "expected a file or nothing" in run(path=str(tmp_path), content="x")["msg"]
