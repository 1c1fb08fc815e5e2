"""Every command in the documents is one: parsed by the very program it is for, or named here as needing more.

Parsing finds what goes wrong with documents: verbs, options, playbooks, variables, tags, hosts and targets that were
renamed. What the commands *do* is shown by the lab tests; those of docs/example.md are run one by one in
``tests/integration/nightly/test_example.py``.
"""

from __future__ import annotations

import contextlib
import functools
import io
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from ansible.cli.adhoc import AdHocCLI
from ansible.cli.doc import DocCLI
from ansible.cli.inventory import InventoryCLI
from ansible.cli.playbook import PlaybookCLI
from ansible.cli.vault import VaultCLI

from seatfleet.cli import build_parser
from seatlab.cli import parser as build_lab_parser

PROJECT = Path(__file__).resolve().parents[2]
PAGES = sorted([PROJECT / "README.md", PROJECT / "lab/README.md", *PROJECT.glob("docs/*.md")])
# What may stand before the program: "! " for one that is expected to fail, a variable of the environment.
ASSIGNED = re.compile(r"^(?:! |[A-Z_]+=\S+ )*")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# The first words of a line in an indented block that make it a command.
WORDS = (
    "make",
    "ansible",
    "ansible-playbook",
    "ansible-vault",
    "ansible-doc",
    "ansible-inventory",
    "seatctl",
    "lab/lab",
)


def program(command: str) -> str:
    """Return what a command runs."""
    return ASSIGNED.sub("", command).split()[0]


def commands(text: str) -> Iterator[str]:
    """Yield the commands of a page: lines of ``sh`` fences, and of indented blocks that begin with a known word."""
    fences = [match[2] for match in FENCE.finditer(text) if match[1] in ("sh", "bash")]
    shown = [line[2:] for match in FENCE.finditer(text) for line in match[2].splitlines() if line.startswith("$ ")]
    rest = FENCE.sub("", text)
    indented = [line[4:] for line in rest.splitlines() if line.startswith("    ") and line.split()[:1]]
    for line in joined("\n".join([*fences, *shown])):
        yield line
    for line in joined("\n".join(indented)):
        if program(line) in WORDS:
            yield line
    # In tables and running text: `seatctl …` and `ansible-playbook …` in backquotes.
    prose = re.sub(r"^    .*$", "", rest, flags=re.MULTILINE)
    for match in re.finditer(r"`((?:seatctl|ansible-playbook|make) [^`…]+)`", prose):
        yield " ".join(match[1].split())


def joined(text: str) -> Iterator[str]:
    """Yield the lines of a block without comments, those that end in a backslash joined."""
    for line in text.replace("\\\n", " ").splitlines():
        bare = (
            " ".join(shlex.split(line, comments=True)) if "'" not in line and '"' not in line else line.split(" # ")[0]
        )
        for part in bare.split(" && "):
            if part.strip() and not part.strip().startswith("#"):
                yield part.strip()


ALL = [(page, command) for page in PAGES for command in commands(page.read_text())]


# ---- what each program says -----------------------------------------------------------------------------------------


def parse_ansible(cli: Callable[[list[str]], object]) -> Callable[[list[str]], str | None]:
    def check(words: list[str]) -> str | None:
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(errors):
            try:
                cli(words).parse()  # type: ignore[attr-defined]
            except SystemExit:
                return next(line for line in errors.getvalue().splitlines() if "error:" in line)
        return None

    return check


def check_playbook(words: list[str]) -> str | None:
    if problem := parse_ansible(PlaybookCLI)(words):
        return problem
    playbooks = [PROJECT / word for word in words[1:] if word.endswith(".yml") and not word.startswith("@")]
    if missing := [str(path) for path in playbooks if not path.exists()]:
        return f"no playbook {missing}"
    text = "\n".join(path.read_text() for path in playbooks) + sources()
    for option, value in options(words):
        if option in ("-e", "--extra-vars"):
            unknown = [name for name in extra_names(value) if not re.search(rf"\b{re.escape(name)}\b", text)]
            if unknown:
                return f"no variable {unknown}"
        if option in ("-t", "--tags") and not set(value.split(",")) <= tags():
            return f"no tag {value}"
        if option in ("-l", "--limit") and (problem := unknown_hosts(value)):
            return problem
    return None


def check_adhoc(words: list[str]) -> str | None:
    return parse_ansible(AdHocCLI)(words) or unknown_hosts(words[1])


def check_seatctl(words: list[str]) -> str | None:
    # A verb that is only named is not meant to be typed like that.
    return with_parser(build_parser(), words[1:] if len(words) > 2 else [*words[1:], "--help"])


def check_lab(words: list[str]) -> str | None:
    return with_parser(build_lab_parser(), words[1:])


def check_bench(words: list[str]) -> str | None:
    sys.path.insert(0, str(PROJECT / "bench/converge"))
    try:
        from measure import build_parser as build_bench_parser
    finally:
        sys.path.pop(0)
    return with_parser(build_bench_parser(), words[1:])


def check_make(words: list[str]) -> str | None:
    targets = set(re.findall(r"^([a-z0-9-]+(?: [a-z0-9-]+)*):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    names = {name for line in targets for name in line.split()}
    asked = [word for word in words[1:] if "=" not in word and not word.startswith("-")]
    return None if set(asked) <= names else f"no target {sorted(set(asked) - names)}"


def with_parser(parser: object, words: list[str]) -> str | None:
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        try:
            parser.parse_args(words)  # type: ignore[attr-defined]
        except SystemExit as end:
            return None if end.code in (0, None) else errors.getvalue().strip().splitlines()[-1]
    return None


CHECKS: dict[str, Callable[[list[str]], str | None]] = {
    "ansible-playbook": check_playbook,
    "ansible": check_adhoc,
    "ansible-vault": parse_ansible(VaultCLI),
    "ansible-doc": parse_ansible(DocCLI),
    "ansible-inventory": parse_ansible(InventoryCLI),
    "seatctl": check_seatctl,
    "lab/lab": check_lab,
    "make": check_make,
    "bench/converge/measure.py": check_bench,
}
# Programs that are not ours and not Ansible's: why no parser here looks at a command of theirs, and what does.
ELSEWHERE = {
    ".": "bash; run by nightly/test_example.py",
    "sed": "run by nightly/test_example.py",
    "systemd-analyze": "a host with a seat; run by tests/integration/test_security.py",
    "ssh-keyscan": "a host of your own, whose console has to be compared with what it prints",
    "ansible-builder": "a tool that this project does not install; the file it reads is checked by test_runner.py",
}


def test_every_exception_is_needed() -> None:
    assert ELSEWHERE.keys() == {program(command) for _, command in ALL} - CHECKS.keys()


@pytest.mark.parametrize(("page", "command"), ALL, ids=[f"{page.name}: {command[:90]}" for page, command in ALL])
def test_commands_are_ones(page: Path, command: str) -> None:
    assert problem_of(command) is None


def problem_of(command: str) -> str | None:
    """Return what is wrong with a command, None when its program takes it."""
    optional = re.sub(r"\[([^][]*)\]", r"\1", command).replace(" | ", " ; ").split(" ; ")[0].split(" > ")[0]
    words = shlex.split(ASSIGNED.sub("", re.sub(r"\s+#.*$", "", optional)))
    if words[0] in CHECKS:
        return CHECKS[words[0]](words)
    return None if words[0] in ELSEWHERE else f"{words[0]}: is this a command? Then say in ELSEWHERE what it needs"


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("seatctl statsu x", "invalid choice"),
        ("seatctl status --jsno x", "jsno"),
        ("ansible-playbook playbooks/none.yml", "no playbook"),
        ("ansible-playbook site.yml --chekc", "chekc"),
        ("ansible-playbook site.yml -l fv-ml9", "no host"),
        ("ansible-playbook site.yml --tags seta", "no tag"),
        ("ansible-playbook playbooks/rollback.yml -e saet=x", "no variable"),
        ("ansible fv-ml1 -b --no-such", "no-such"),
        ("make tset", "no target"),
        ("lab/lab upp", "invalid choice"),
        ("bench/converge/measure.py simulate 3", "invalid choice"),
        ("SEATFLEET_LAB=/tmp/x lab/lab upp", "invalid choice"),
        ("rm -rf /", "is this a command?"),
    ],
)
def test_a_wrong_command_is_noticed(command: str, problem: str) -> None:
    assert problem in str(problem_of(command))


def test_commands_are_found() -> None:
    fence = "```sh\n# no\nseatctl plan \\\n  --help && . lab/env\n```\n"
    text = f"a\n\n    make demo    # minutes\n\n{fence}`make unit`, `x`\n"
    assert list(commands(text)) == ["seatctl plan --help", ". lab/env", "make demo", "make unit"]
    assert len(ALL) > 100


# ---- what the project has -------------------------------------------------------------------------------------------


def options(words: list[str]) -> Iterator[tuple[str, str]]:
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if word.startswith("--") and equals:
            yield name, value
        elif word.startswith("-"):
            yield word, following


def extra_names(value: str) -> list[str]:
    if value.startswith("@"):
        return []
    if value.startswith("{"):
        return list(yaml.safe_load(value))
    return [part.split("=")[0] for part in shlex.split(value)]


@functools.cache
def sources() -> str:
    """Return everything that may read a variable."""
    files = [
        *PROJECT.glob("playbooks/*.yml"),
        *PROJECT.glob("roles/*/defaults/*.yml"),
        *PROJECT.glob("group_vars/*/*.yml"),
    ]
    return "\n".join(path.read_text() for path in files)


@functools.cache
def tags() -> frozenset[str]:
    found = re.findall(r"tags: \[([\w, ]+)\]", "\n".join(path.read_text() for path in PROJECT.glob("playbooks/*.yml")))
    return frozenset(name.strip() for line in found for name in line.split(","))


def unknown_hosts(pattern: str) -> str | None:
    text = "".join((PROJECT / f"inventory/{name}/hosts.yml").read_text() for name in ("lab", "production"))
    known = set(re.findall(r"^\s+([\w-]+):", text, re.MULTILINE))
    names = {name.lstrip("!&") for name in pattern.split(",")} - {"HOST", "all", "localhost"}
    return None if names <= known else f"no host {sorted(names - known)}"
