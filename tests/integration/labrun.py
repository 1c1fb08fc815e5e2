"""How the integration tests run commands against the lab, and from which project directory."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
# The tests' own lab, unless told of another that may be changed: molecule's, of whoever started it.
LAB = Path(os.environ.get("SEATFLEET_TEST_LAB") or PROJECT / ".lab-test").resolve()
CACHE = Path(
    os.environ.get("SEATFLEET_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "seatfleet"
).expanduser()
HOSTS = ("fv-ml1", "spark-1", "gw-1")
# PLAY RECAP, one line per host.
RECAP = re.compile(
    r"^(?P<host>\S+)\s+: ok=\d+\s+changed=(?P<changed>\d+)\s+unreachable=(?P<dead>\d+)\s+failed=(?P<failed>\d+)"
)


@dataclass(frozen=True)
class Run:
    """The outcome of one command: exit code, everything it printed, and Ansible's recap per host if it had one."""

    code: int
    output: str
    changed: Mapping[str, int] = field(default_factory=dict)
    failed: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Lab:
    """The running lab, seen from a project directory (the repository, or an edited copy of it)."""

    project: Path = PROJECT

    @property
    def environment(self) -> dict[str, str]:
        """What ``. lab/env`` sets, for the tests' own lab."""
        return {
            **os.environ,
            "ANSIBLE_CONFIG": str(self.project / "ansible.cfg"),
            "ANSIBLE_INVENTORY": str(self.project / "inventory/lab"),
            "ANSIBLE_FORCE_COLOR": "0",
            "SEATFLEET_LAB": str(LAB),
        }

    def run(self, *argv: str, check: bool = True, stdin: str | None = None, timeout_s: float = 1800) -> Run:
        """Run a command in the project; with ``check`` a non-zero exit fails the test with the whole output."""
        done = subprocess.run(
            argv, cwd=self.project, env=self.environment, timeout=timeout_s, input=stdin or "",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        recap = [match for line in done.stdout.splitlines() if (match := RECAP.match(line))]
        run = Run(
            done.returncode,
            done.stdout,
            {match["host"]: int(match["changed"]) for match in recap},
            frozenset(match["host"] for match in recap if int(match["failed"]) or int(match["dead"])),
        )
        if check and run.code:
            pytest.fail(f"{' '.join(argv)} ended with {run.code}:\n{run.output}", pytrace=False)
        return run

    def site(self, *arguments: str, check: bool = True) -> Run:
        """Run ``ansible-playbook site.yml``."""
        return self.run("ansible-playbook", "site.yml", *arguments, check=check)

    def host(self, name: str, *argv: str, check: bool = True, stdin: str | None = None) -> Run:
        """Run a command as root on a lab host over ssh, whose shell splits the words again, unlike `console`."""
        return self.run(str(PROJECT / "lab/lab"), "ssh", name, *argv, check=check, stdin=stdin)

    def console(self, name: str, *argv: str) -> Run:
        """Run a command on a lab host without its network, and never fail."""
        return self.run(str(PROJECT / "lab/lab"), "exec", name, *argv, check=False)

    def power(self, verb: str, name: str) -> Run:
        """Kill, cut, heal, boot: what happens to a host from outside."""
        return self.run(str(PROJECT / "lab/lab"), verb, name)

    def molecule(self, scenario: str) -> Run:
        """Run one molecule scenario against the running lab."""
        return self.run("molecule", "test", "--scenario-name", scenario)

    def secrets(self) -> dict[str, object]:
        """Return the generated secrets of the lab."""
        loaded: dict[str, object] = json.loads((LAB / "secrets.json").read_text())
        return loaded

    def edited(self, copy: Path, edits: Sequence[tuple[str, str, str]]) -> Lab:
        """Return the lab seen from a copy of the project in which ``(file, old, new)`` edits were made.

        The way an operator works, without touching the repository: every edit must match exactly once.
        """
        ignore = shutil.ignore_patterns(".git", ".venv*", ".lab*", ".cache", "__pycache__", ".*_cache")
        shutil.copytree(self.project, copy, symlinks=True, ignore=ignore)
        for name, old, new in edits:
            path = copy / name
            text = path.read_text()
            assert text.count(old) == 1, f"{name}: {old!r} occurs {text.count(old)} times"
            path.write_text(text.replace(old, new))
        return Lab(copy)
