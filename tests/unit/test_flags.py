"""Flags asked of the release: what is asked how, what is remembered, and the script itself on a small release."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from seatfleet.core.seat import flag_check, flags

FILES = {"vllm.yaml": "port: 1\n", "seat.env": "A=b\n"}
RELEASE = Path("/opt/vllm/releases/0.32.0-0123456789ab")


class Asked:
    """Stands for systemd-run: answers the next of ``outputs`` and keeps what it saw."""

    def __init__(self, *outputs: str, code: int = 0) -> None:
        self.outputs, self.code = list(outputs), code
        self.seen: list[dict[str, str]] = []

    def __call__(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        folder = Path(argv[-1]).parent
        self.seen.append({path.name: path.read_text() for path in folder.iterdir()} | {"argv": " ".join(argv)})
        return subprocess.CompletedProcess(argv, self.code, self.outputs.pop(0), "Killed\n")


def ask(root: Path, asked: Asked, generation: str = "0" * 12) -> str | None:
    return flags.refused("flash-next", generation, RELEASE, FILES, root, asked)


def test_the_answer_of_the_release_is_kept(tmp_path: Path) -> None:
    asked = Asked('INFO loading\n{"refused": null}\n')
    assert ask(tmp_path, asked) is None
    assert ask(tmp_path, asked) is None
    (seen,) = asked.seen
    assert (seen["vllm.yaml"], seen["seat.env"]) == ("port: 1\n", "A=b\n")
    assert f"{RELEASE}/bin/python -P" in seen["argv"]
    for part in ("User=vllm", "RuntimeMaxSec=600", "CacheDirectory=vllm/flash-next", "EnvironmentFile=/"):
        assert part in seen["argv"]
    assert not Path(seen["argv"].split()[-1]).parent.exists()


def test_a_refusal_is_asked_for_again_later(tmp_path: Path) -> None:
    asked = Asked('{"refused": "ValueError: no"}', '{"refused": null}')
    assert [ask(tmp_path, asked), ask(tmp_path, asked)] == ["ValueError: no"] * 2
    (answer,) = (tmp_path / flags.ANSWERS.lstrip("/")).iterdir()
    old = answer.stat().st_mtime - flags.REFUSAL_LIFETIME_S - 1
    os.utime(answer, (old, old))
    assert ask(tmp_path, asked) is None
    os.utime(answer, (old, old))
    assert ask(tmp_path, asked) is None


def test_a_refusal_of_a_clock_that_was_wrong_is_asked_for_again(tmp_path: Path) -> None:
    asked = Asked('{"refused": "ValueError: no"}', '{"refused": null}')
    assert ask(tmp_path, asked) == "ValueError: no"
    (answer,) = tmp_path.rglob("*.json")
    os.utime(answer, (4e9, 4e9))
    assert ask(tmp_path, asked) is None


@pytest.mark.parametrize("output", ["", "Traceback\n", "[]\n"])
def test_a_check_that_ends_otherwise_is_a_refusal(tmp_path: Path, output: str) -> None:
    assert ask(tmp_path, Asked(output, code=137)) == "its check of flags ended with exit code 137 and said: Killed"


def test_a_refusal_is_one_readable_line(tmp_path: Path) -> None:
    assert len(str(ask(tmp_path, Asked(json.dumps({"refused": "x" * 5000}))))) == flags.MAX_LENGTH


def test_answers_do_not_grow_without_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flags, "KEEP", 3)
    for number in range(6):
        ask(tmp_path, Asked('{"refused": null}'), f"{number:012d}")
    assert len(list((tmp_path / flags.ANSWERS.lstrip("/")).iterdir())) == 3


# A release in small, with the names that the script looks for where 0.32.0 has them.
SMALL = {
    "utils/argparse_utils.py": "from argparse import ArgumentParser as FlexibleArgumentParser\n",
    "entrypoints/cli/serve.py": """
from vllm.entrypoints import launcher
class Serve:
    def subparser_init(self, subparsers):
        parser = subparsers.add_parser("serve")
        parser.add_argument("--config")
        parser.add_argument("--tool-parser-plugin", default=PLUGIN)
        parser.add_argument("--number", type=int, default=NUMBER)
        return parser
    def validate(self, args):
        pass
def cmd_init():
    return [Serve()]
""",
    "entrypoints/launcher.py": """
class ToolParserManager:
    @classmethod
    def import_tool_parser(cls, path):
        raise AssertionError("only logs what it could not import")
def validate_api_server_args(args):
    if PARSER != "hermes":
        raise KeyError("invalid tool call parser: " + PARSER)
""",
    "engine/arg_utils.py": """
class AsyncEngineArgs:
    @classmethod
    def from_cli_args(cls, args):
        return cls()
    def create_engine_config(self, usage_context):
        assert usage_context == "server"
        if METHOD:
            raise ValueError("1 validation error for SpeculativeConfig\\nmethod\\n  Input should be 'mtp'\\n a\\n b\\n")
""",
    "usage/usage_lib.py": "class UsageContext:\n    OPENAI_API_SERVER = 'server'\n",
}


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ({}, None),
        ({"NUMBER": "'x'"}, "vllm serve: error: argument --number: invalid int value: 'x'"),
        (
            {"PLUGIN": "'/plugins/none.py'"},
            "FileNotFoundError: [Errno 2] No such file or directory: '/plugins/none.py'",
        ),
        ({"PLUGIN": "'/plugins'"}, "ImportError: /plugins is no Python file"),
        ({"PARSER": "'nope'"}, "KeyError: 'invalid tool call parser: nope'"),
        ({"METHOD": "1"}, "ValueError: 1 validation error for SpeculativeConfig method Input should be 'mtp' a"),
        ({"def validate_api_server_args": "def renamed"}, "LookupError: this release has no validate_api_server_args"),
    ],
)
def test_the_script_takes_the_way_of_a_start(tmp_path: Path, change: dict[str, str], refused: str | None) -> None:
    names = {"PLUGIN": "None", "NUMBER": "1", "PARSER": "'hermes'", "METHOD": "0", **change}
    for name, text in SMALL.items():
        path = tmp_path / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for word, value in names.items():
            text = text.replace(word, value)
        path.write_text(text)
    done = subprocess.run(
        [sys.executable, "-P", flag_check.__file__, "vllm.yaml"],
        env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert json.loads(done.stdout.splitlines()[-1]) == {"refused": refused}, done.stderr
