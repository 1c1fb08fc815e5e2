"""What makes daily use pleasant: completion of ``seatctl``, ``make help``, editors and hooks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

PROJECT = Path(__file__).resolve().parents[2]


def completions(line: str, directory: Path) -> set[str]:
    """Return what the shell would offer at the end of a line."""
    answer = directory / "answer"
    environment = {
        **os.environ,
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    subprocess.run([sys.executable, "-m", "seatfleet.cli"], env=environment, capture_output=True, check=False)
    return {word.strip() for word in answer.read_text().splitlines()}


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("seatctl ", {"status", "why", "probe", "validate"}),
        ("seatctl stat", {"status"}),
        ("seatctl status --h", {"--html", "--help"}),
        ("seatctl probe --level a", {"acceptance"}),
    ],
)
def test_the_shell_completes_verbs_options_and_choices(line: str, offered: set[str], tmp_path: Path) -> None:
    assert offered <= completions(line, tmp_path)


def test_make_help_lists_every_verb_for_people() -> None:
    # Called by `make unit`, this make would say which directory it enters.
    command = ["make", "--no-print-directory", "help"]
    shown = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    targets = re.findall(r"^([a-z0-9-]+):.*## ", (PROJECT / "Makefile").read_text(), re.MULTILINE)
    assert {line.split()[0] for line in shown.splitlines()} == set(targets)
    assert {"setup", "demo", "test", "test-fast", "docs", "lab-down"} <= set(targets)


def test_every_file_that_the_schema_describes_names_it_for_editors() -> None:
    schema = PROJECT / "docs/seat.schema.json"
    described = set(json.loads(schema.read_text())["properties"])
    files = [
        path
        for path in sorted(PROJECT.glob("group_vars/*/*.yml"))
        if path.name != "vault.yml" and described & set(yaml.safe_load(path.read_text()) or {})
    ]
    assert len(files) >= 11
    for file in files:
        match = re.search(r"^# yaml-language-server: \$schema=(\S+)$", file.read_text(), re.MULTILINE)
        assert match, file
        assert (file.parent / match[1]).resolve() == schema


def test_hooks_run_what_make_lint_runs() -> None:
    hooks = yaml.safe_load((PROJECT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    recipe = (PROJECT / "Makefile").read_text()
    for hook in hooks:
        assert hook["language"] == "system"
        program = hook["entry"].split()[0].removeprefix(".venv/bin/")
        assert f"$(BIN)/{program} " in recipe, f"{program} is not what make runs"


def test_navigator_uses_the_project_as_it_is() -> None:
    settings = yaml.safe_load((PROJECT / "ansible-navigator.yml").read_text())["ansible-navigator"]
    assert settings["execution-environment"]["enabled"] is False
    assert settings["playbook-artifact"]["enable"] is False


def test_no_colour_without_a_terminal() -> None:
    done = subprocess.run([sys.executable, "-m", "seatfleet.cli", "--help"], capture_output=True, check=True)
    assert b"\x1b[" not in done.stdout
