"""Every command in the documents is one: parsed by the very program it is for, or named here as needing more.

Parsing finds what goes wrong with documents: verbs, options, playbooks, variables, tags, hosts and targets that were
renamed. What the commands *do* is shown by ``tests/integration/nightly/test_doc_blocks.py``, which types them on lab
hosts, and for docs/example.md by ``test_example.py``; here each has to be in one of them, or to be excused.
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

# Behind tests/unit, which has modules of the same names.
sys.path.append(str(Path(__file__).parents[1] / "integration"))
sys.path.append(str(Path(__file__).parents[1] / "integration/nightly"))
import test_doc_blocks as blocks
from documented import ASSIGNED, EXAMPLE, PAGES, PROJECT, block_with, commands, here, named_only, program, same

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
    **dict.fromkeys(
        ("systemd-analyze", "ssh-keyscan", "journalctl", "curl", "openssl", "eval"), "run by nightly/test_doc_blocks.py"
    ),
    "nvidia-smi": "a card",
    "lab/system-packages": "root on a machine that may be changed; run by make prepare",
    "lab/gateway/prepare": "downloads; run by make prepare",
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


# ---- what runs them -------------------------------------------------------------------------------------------------

TYPED = {same(here(command)): here(command) for page, command in ALL if page != EXAMPLE and not named_only(command)}


def without_a_test(command: str) -> bool:
    """Tell whether a command is neither typed on lab hosts nor excused."""
    return same(command) not in map(same, blocks.RUN) and not command.startswith(tuple(blocks.ELSEWHERE))


def test_every_command_is_typed_by_a_test_or_excused() -> None:
    assert [command for command in TYPED.values() if without_a_test(command)] == []
    assert without_a_test("ansible-playbook playbooks/new.yml -l fv-ml1")
    assert without_a_test("ansible-playbook site.yml -l fv-ml1 --tags seat")


def test_what_is_typed_is_in_the_documents_and_not_excused() -> None:
    assert [command for command in blocks.RUN if same(command) not in TYPED] == []
    assert [command for command in blocks.RUN if command.startswith(tuple(blocks.ELSEWHERE))] == []
    assert {*blocks.CODES, *blocks.WRITES} <= blocks.LOOKS.keys()
    # Names that stand for something would be typed as they are.
    assert [
        command for command in blocks.RUN if re.search(r"(?<![$A-Z_{])\b[A-Z]{2,}\b(?!=)|spark-1\b(?!')|<", command)
    ] == []


def test_every_excuse_is_needed_and_names_tests_that_are_there() -> None:
    assert [
        begin for begin in blocks.ELSEWHERE if not any(command.startswith(begin) for command in TYPED.values())
    ] == []
    named = re.findall(r"tests/[\w/]+\.py", " ".join(blocks.ELSEWHERE.values()))
    assert len(named) > 10
    assert [name for name in named if not (PROJECT / name).exists()] == []


@pytest.mark.parametrize(
    ("written", "typed"),
    [
        ("ansible-playbook site.yml", "ansible-playbook site.yml -l '!spark-1'"),
        ("ansible-playbook site.yml [-l HOST]", "ansible-playbook site.yml -l fv-ml1"),
        ("ansible-playbook -i inventory/production site.yml", "ansible-playbook -i inventory/production site.yml"),
        ("ansible spark-1 -a 'x vllm-seat-agent'", "ansible fv-ml1 -a 'x vllm-seat-flash-next'"),
        ("seatctl why SEAT", "/opt/vllm/toolbox/bin/seatctl why flash-next"),
        ("seatctl status /tmp/x.json", "seatctl status $SCRATCH/x.json"),
        ("ansible-playbook x.yml -e seat=NAME -l HOST", "ansible-playbook x.yml -e seat=flash-next -l fv-ml1"),
        ("seatctl export --host NAME", "/opt/vllm/toolbox/bin/seatctl export --host fv-ml1"),
    ],
)
def test_what_stands_for_a_readers_names(written: str, typed: str) -> None:
    assert here(written) == typed


def test_order_of_options_and_verbs_that_are_only_named() -> None:
    assert same("a -l h -e s=1") == same("a -e s=1 -l h") != same("a -l h")
    assert [named_only(command) for command in ("seatctl probe", "seatctl why x", "make unit")] == [True, False, False]


def test_the_call_of_the_readme_is_found_whole() -> None:
    script = block_with((PROJECT / "README.md").read_text(), "chat/completions")
    assert script.startswith("url=$(")
    assert script.rstrip().endswith("}'")


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
