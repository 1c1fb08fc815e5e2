"""The operator's inventory as Ansible reads it: merged variables of every host, from ``ansible-inventory --list``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..core.problems import Problem, ProblemsError
from .origins import FastLoader, Origins, group_depths


@dataclass(frozen=True)
class Inventory:
    """Merged variables per host (templates unevaluated) and where they were written."""

    hosts: Mapping[str, Mapping[str, Any]]
    groups: Mapping[str, Mapping[str, Any]]
    origins: Origins
    project: Path

    @property
    def members(self) -> frozenset[str]:
        """Hosts of any group; with a limit, only those in it."""
        return frozenset(host for content in self.groups.values() for host in content.get("hosts", []))


def default_inventory(project: Path = Path()) -> Path:
    """Return what ``ansible-playbook`` would read without ``-i``: after ``. lab/env``, the lab's."""
    return Path(os.environ.get("ANSIBLE_INVENTORY") or project / "inventory/production")


def read_inventory(source: Path, limit: str | None = None) -> Inventory:
    """Read an inventory directory or file.

    Raises:
        ProblemsError: the inventory is not there, has no host (within the limit), or ``ansible-inventory`` cannot read
            it.
    """
    if not source.exists():
        raise ProblemsError([Problem(str(source), "", "inventory", "a directory or file", "nothing there")])
    listing = _list(source, limit)
    hosts: dict[str, dict[str, Any]] = listing.pop("_meta", {}).get("hostvars", {})
    directory = source if source.is_dir() else source.parent
    project = project_of(source)
    depths = group_depths(listing)
    for host, groups in depths.items():
        # Ansible's own variable of this name, which the listing leaves out.
        hosts.setdefault(host, {})["group_names"] = sorted(groups.keys() - {"all"})
    if not hosts:
        raise ProblemsError([Problem(str(source), "", "limit" if limit else "inventory", "at least one host", "none")])
    return Inventory(hosts, listing, Origins(depths, [directory, project], project), project)


def project_of(source: Path) -> Path:
    """Return the project of ``inventory/<name>``: two directories up, as ``fleet_project_dir`` says."""
    directory = source if source.is_dir() else source.parent
    return directory.resolve().parent.parent


def _list(source: Path, limit: str | None) -> dict[str, Any]:
    """Run ``ansible-inventory``, preferring the one installed beside this Python."""
    beside = Path(sys.executable).parent / "ansible-inventory"
    argv = [str(beside) if beside.exists() else "ansible-inventory", "-i", str(source.absolute()), "--list"]
    argv += ["--limit", limit] if limit else []
    # It also reads the group_vars of the directory it runs in, as ansible-playbook does of the playbook's.
    project = project_of(source)
    config = project / "ansible.cfg"
    environment = {**os.environ, "ANSIBLE_CONFIG": str(config)} if config.exists() else dict(os.environ)
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment, cwd=project)
    except FileNotFoundError:
        problem = Problem("", "", "ansible-inventory", "on the PATH (run `make setup`)", "no such command")
        raise ProblemsError([problem]) from None
    if done.returncode != 0:
        if broken := list(_broken_files(source, project)):
            raise ProblemsError(broken)
        seen = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise ProblemsError([Problem(str(source), "", "inventory", "one that ansible-inventory can read", seen)])
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _broken_files(source: Path, project: Path) -> Iterator[Problem]:
    """Yield the files beside an inventory that are not YAML: ``ansible-inventory`` does not name them."""
    directory = source if source.is_dir() else source.parent
    for file in sorted([*directory.glob("*.yml"), *directory.glob("*_vars/**/*.yml")]):
        resolved = file.resolve()
        shown = resolved.relative_to(project) if resolved.is_relative_to(project) else file
        try:
            yaml.compose(file.read_text(encoding="utf-8"), Loader=FastLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            yield Problem(f"{shown}:{mark.line + 1 if mark else 1}", "", "", "YAML", _in_words(error))
        except (yaml.YAMLError, UnicodeDecodeError) as error:  # no text at all
            yield Problem(str(shown), "", "", "YAML", f"none: {' '.join(str(error).split())}")


def _in_words(error: yaml.MarkedYAMLError) -> str:
    """Return what the parser says as a part of a sentence: its own words need not be one."""
    said = " ".join(part for part in (error.context, error.problem or str(error)) if part)
    return f"a syntax error here or above ({' '.join(said.split())})"
