"""The command line: a verb that is named is the only one imported, since a timer starts it every minute."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from seatfleet.cli import build_parser, main
from seatfleet.commands import status

SRC = Path(__file__).resolve().parents[2] / "src"


def verbs(only: str | None) -> list[str]:
    return next(list(action.choices) for action in build_parser(only)._actions if action.dest == "verb")


def test_a_known_verb_stands_alone() -> None:
    assert verbs("probe") == ["probe"]


@pytest.mark.parametrize("only", [None, "nonsense", "--help"])
def test_else_all_are_offered(only: str | None) -> None:
    assert {"probe", "plan", "headroom", "guard"} <= set(verbs(only))


def test_a_probe_imports_nothing_of_other_verbs() -> None:
    code = (
        "import sys\nfrom seatfleet.cli import main\nmain(['probe', '--manifest', '/nowhere'])\n"
        "slow = ('jinja2', 'yaml', 'seatfleet.core.release.patches', 'asyncio')\n"
        "print(*[name for name in sys.modules if name in slow])"
    )
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def seatctl(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run seatctl as a shell does, where a test has to see what the interpreter says at its end."""
    command = [sys.executable, "-m", "seatfleet.cli", *words]
    environment = {**os.environ, "PYTHONPATH": str(SRC), "PYTHONUNBUFFERED": ""}
    return subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, check=False, **more)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A few bytes of output: they are still in a buffer when the verb returns."""
    path = tmp_path / "rows.json"
    path.write_text("[]")
    return path


def test_a_reader_that_went_is_no_message(rows: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = seatctl("status", str(rows), stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_output_that_cannot_be_written_is_one_line(rows: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = seatctl("status", str(rows), stdout=full)
    assert (done.returncode, done.stderr) == (1, "seatctl status: [Errno 28] No space left on device\n")


def test_without_any_output_the_exit_code_still_counts(rows: Path) -> None:
    code = "import sys; sys.stdout = None\nfrom seatfleet.cli import main\nsys.exit(main(['status', sys.argv[1]]))"
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    assert subprocess.run([sys.executable, "-c", code, str(rows)], env=environment, check=False).returncode == 0


def test_a_key_of_the_operator_ends_it_quietly(monkeypatch: pytest.MonkeyPatch, rows: Path) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(status, "table", interrupted)
    try:
        assert main(["status", str(rows)]) == 130
    except KeyboardInterrupt:  # pytest itself would end
        pytest.fail("a traceback")


CONFIG = {"model_type": "qwen3", "num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 1024}
PLAN = ("plan", "--config", "config.json", "--kv", "1GiB", "--vllm", "0.33.0", "--max-model-len")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        *(((*PLAN, number), 2) for number in ("0", "-5", "x")),
        *(((*PLAN, "100", option, "0"), 2) for option in ("--block-size", "--tensor-parallel-size")),
        ((*PLAN, "100", "-k", "-3"), 2),
        (("model", "tensors", "nope"), 2),
        (("model", "tensors", ".", "--need", "mtp=x"), 2),
        (("model", "verify", ".", "--manifest", "list.json"), 2),
        (("patch", "status", "--site", ".", "list.json"), 2),
        (("patch", "status", "--site", ".", "bytes"), 2),
        (("patch", "hash", "nope.whl", "nope"), 1),
        (("patch", "survey", "bytes", "--series-root", str(SRC.parent / "files/patches")), 2),
        (("patch", "selftest", "--python", "/nope"), 1),
        (("release", "--project", ".", "check", "x"), 1),
        (("schema", "--check", "bytes"), 1),
        (("status", "list.json", "--html", "/nope/x.html"), 1),
        (("why", "x", "--journal", "nope"), 1),
        (("why", "x", "--journal", "bytes"), 0),
        (("headroom", "run", "--local", "nope", "--out", "o"), 2),
        (("headroom", "run", "--local", "bytes", "--out", "o"), 2),
        (("headroom", "run", "--local", "list.json", "--out", "o"), 2),
        (("campaign", "plan", "--definition", "bytes", "--name", "x"), 2),
        (("campaign", "redo", "nope", "b", "--reason", "r"), 5),
        (("campaign", "report", ".", "--verify"), 3),
        (("campaign", "bench", "--base-url", "http://[::1"), 5),
        (("stub", "--port", "99999"), 2),
        (("guard", "run", "--config", "list.json"), 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_input_is_a_sentence_and_an_exit_code(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    code: int,
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\n")
    monkeypatch.chdir(tmp_path)
    try:
        ended = main(words)
    except SystemExit as stop:  # argparse
        ended = int(str(stop.code))
    assert ended == code
    assert bool(capsys.readouterr().err) == bool(code)
