"""Hosts from captures: files below a root and commands that answer exactly what was recorded, and refuse the rest.

A capture (tests/unit/data/hosts/*.txt) says at its top where it is from. ``$`` is a command line, ``@`` a file, ``|`` a
line of it, ``=`` the exit code.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from seatfleet.core.host.hostfacts import Answer, LocalHost

CAPTURES = Path(__file__).parent / "data" / "hosts"
# What nvidia-smi says of a field it does not know, and its exit code.
REFUSED = """*) echo "Field \\"$*\\" is not a valid field to query."; exit 2 ;;"""


Recorded = dict[str, list[tuple[str, str, int]]]


class RecordedHost(LocalHost):
    """A host whose commands answer from memory: the same answers as the scripts give, in a tenth of the time."""

    def __init__(self, root: Path, commands: Recorded) -> None:
        super().__init__(root, "/nowhere")
        self._commands = commands

    def run(self, *argv: str) -> Answer:
        name, arguments = argv[0], " ".join(argv[1:])
        if name not in self._commands:
            return Answer(127, f"no {name} on this host")
        for recorded, output, code in self._commands[name]:
            if recorded == arguments:
                return Answer(code, output)
        return Answer(2, f'Field "{arguments}" is not a valid field to query.')


def fake_host(tmp_path: Path, capture: str) -> LocalHost:
    """Lay out a capture with scripts as its commands."""
    root, commands = _lay_out(tmp_path, capture, {})
    for name, answers in commands.items():
        _script(root / name[1:] if name.startswith("/") else tmp_path / "bin" / name, answers)
    return LocalHost(root, f"{tmp_path}/bin:/nowhere")


def recorded_host(tmp_path: Path, capture: str, changes: Mapping[str, Sequence[str]] | None = None) -> LocalHost:
    """Lay out a capture; ``changes`` replaces one text by another in the part that begins with a line.

    Every change must match exactly once, so that a test cannot pass because it changed nothing.
    """
    return RecordedHost(*_lay_out(tmp_path, capture, changes or {}))


def nvidia_smi_script(capture: str) -> str:
    """Return the text of an nvidia-smi that answers as recorded and refuses every other question."""
    parts = (CAPTURES / f"{capture}.txt").read_text().split("\n\n")
    return _text([_answer(part)[1] for part in parts if part.startswith("$ nvidia-smi ")])


def _answer(part: str) -> tuple[str, tuple[str, str, int]]:
    """Return the command and (arguments, output, exit code) of one part of a capture."""
    head, *lines = part.splitlines()
    body = "".join(f"{line[2:]}\n" for line in lines if line.startswith("|"))
    name, _, arguments = head[2:].partition(" ")
    return name, (arguments, body, int(lines[-1].removeprefix("= ")))


def _lay_out(tmp_path: Path, capture: str, changes: Mapping[str, Sequence[str]]) -> tuple[Path, Recorded]:
    text = (CAPTURES / f"{capture}.txt").read_text()
    parts = [part for part in text.split("\n\n") if part.startswith(("$ ", "@ "))]
    for begin, (old, new) in changes.items():
        at = [index for index, part in enumerate(parts) if part.startswith(begin)]
        assert len(at) == 1, f"{begin!r} begins {len(at)} parts of {capture}"
        assert parts[at[0]].count(old) == 1, f"{old!r} is not once in {parts[at[0]]!r}"
        parts[at[0]] = parts[at[0]].replace(old, new)
    root = tmp_path / "root"
    commands: Recorded = {}
    for part in parts:
        head, *lines = part.splitlines()
        if head.startswith("@ "):
            file = root / head[3:]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(f"{line[2:]}\n" for line in lines))
        else:
            name, answer = _answer(part)
            commands.setdefault(name, []).append(answer)
    (root / "dev/shm").mkdir(parents=True)
    return root, commands


def _script(path: Path, answers: list[tuple[str, str, int]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_text(answers))
    path.chmod(0o755)


def _text(answers: list[tuple[str, str, int]]) -> str:
    cases = [
        f"{shlex.quote(arguments)}) /usr/bin/printf %s {shlex.quote(body)}; exit {code} ;;"
        for arguments, body, code in answers
    ]
    return '#!/bin/sh\ncase "$*" in\n' + "\n".join([*cases, REFUSED]) + "\nesac\n"
