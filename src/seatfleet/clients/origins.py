"""Where a variable of a host was written: file and line, found in the YAML of the inventory's group_vars and host_vars.

Ansible does not tell. A later file replaces a variable as a whole, in this order: group ``all``, then the other groups
from the top of the tree down and by name, then the host, each beside the inventory before beside the playbook (the
groups of the inventory all before those of the playbook); within a group by file name. Files that are encrypted or not
YAML are passed over: Ansible itself reports those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..core.inventory.kinds import is_template
from ..core.problems import Problem

VariablePath = tuple[str, ...]
_SUFFIXES = ("", ".yml", ".yaml", ".json")


#: libyaml's parser where it is there: at 1,000 hosts composing is most of the work.
FastLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(yaml.SafeLoader):
    """Safe loader that keeps the text of tags it does not know (``!vault``, ``!unsafe``)."""


def _tagged(loader: yaml.SafeLoader, _suffix: str, node: yaml.Node) -> object:
    return loader.construct_scalar(node) if isinstance(node, yaml.ScalarNode) else None


_Loader.add_multi_constructor("!", _tagged)


@dataclass(frozen=True)
class _Place:
    """A value in a file; ``line`` is that of its key, which is where a reader looks."""

    line: int
    node: yaml.Node


class Origins:
    """Files and lines of the variables of every host.

    ``parents`` maps each host to its groups with their depth (``all`` is 0). ``roots`` are the directories that hold
    ``group_vars`` and ``host_vars``: that of the inventory, then that of the playbook. ``project`` makes paths short.
    """

    def __init__(self, parents: Mapping[str, Mapping[str, int]], roots: Sequence[Path], project: Path) -> None:
        self._project = project.resolve()
        self._files: dict[Path, dict[VariablePath, _Place]] = {}
        self._duplicates: dict[Path, list[Problem]] = {}
        self._order = {host: self._files_of(host, groups, roots) for host, groups in parents.items()}

    def __call__(self, host: str, path: VariablePath) -> str:
        """Return ``file:line`` of a variable, or of its nearest enclosing one; without a file the variable's name."""
        if (found := self._find(host, path)) is None:
            return path[0] if path else ""
        file, place = found
        return f"{self._short(file)}:{place.line}"

    def value(self, host: str, path: VariablePath) -> object:
        """Return what the file says at ``path``, None when no file says anything."""
        for file in reversed(self._order.get(host, [])):
            nodes = self._nodes(file)
            if path[:1] in nodes:
                place = nodes.get(path)
                return _construct(place.node) if place is not None else None
        return None

    def duplicates(self) -> Iterator[tuple[Problem, str]]:
        """Yield each key that is written twice, with a host that reads it: YAML silently takes the last."""
        for host, files in self._order.items():
            for file in files:
                self._nodes(file)
                for problem in self._duplicates.get(file, []):
                    yield problem, host

    def names(self) -> Iterator[tuple[str, str, frozenset[str]]]:
        """Yield each top-level name of each file with its place and the hosts that read the file."""
        readers: dict[Path, set[str]] = {}
        for host, files in self._order.items():
            for file in files:
                readers.setdefault(file, set()).add(host)
        for file, hosts in readers.items():
            for path, place in self._nodes(file).items():
                if len(path) == 1:
                    yield path[0], f"{self._short(file)}:{place.line}", frozenset(hosts)

    def _find(self, host: str, path: VariablePath) -> tuple[Path, _Place] | None:
        for file in reversed(self._order.get(host, [])):
            nodes = self._nodes(file)
            if path[:1] not in nodes:
                continue
            for length in range(len(path), 0, -1):
                if (place := nodes.get(path[:length])) is not None:
                    return file, place
        return None

    def _short(self, file: Path) -> str:
        resolved = file.resolve()
        return str(resolved.relative_to(self._project) if resolved.is_relative_to(self._project) else file)

    def _files_of(self, host: str, groups: Mapping[str, int], roots: Sequence[Path]) -> list[Path]:
        """Return the files that Ansible reads for a host, the last of which wins."""
        ordered = sorted((group for group in groups if group != "all"), key=lambda group: (groups[group], group))
        places = [
            *((root / "group_vars", "all") for root in roots),
            *((root / "group_vars", group) for root in roots for group in ordered),
            *((root / "host_vars", host) for root in roots),
        ]
        return [file for directory, name in places for file in _variable_files(directory, name)]

    def _nodes(self, file: Path) -> dict[VariablePath, _Place]:
        if file not in self._files:
            self._files[file] = dict(self._compose(file))
        return self._files[file]

    def _compose(self, file: Path) -> Iterator[tuple[VariablePath, _Place]]:
        try:
            root = yaml.compose(file.read_text(encoding="utf-8"), Loader=FastLoader)
        except (OSError, UnicodeDecodeError, yaml.YAMLError):
            return
        if isinstance(root, yaml.MappingNode):
            yield from self._walk(root, (), file)

    def _walk(self, node: yaml.Node, at: VariablePath, file: Path) -> Iterator[tuple[VariablePath, _Place]]:
        if isinstance(node, yaml.MappingNode):
            seen: dict[str, int] = {}
            for key, value in node.value:
                name, line = str(key.value), key.start_mark.line + 1
                if name in seen:
                    where = f"{self._short(file)}:{line}"
                    field = ".".join((*at, name))
                    again = f"a second one; the first is on line {seen[name]}"
                    problem = Problem(where, "", field, "each key once", again)
                    self._duplicates.setdefault(file, []).append(problem)
                seen[name] = line
                yield (*at, name), _Place(line, value)
                yield from self._walk(value, (*at, name), file)
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                yield (*at, str(index)), _Place(item.start_mark.line + 1, item)
                yield from self._walk(item, (*at, str(index)), file)


def _construct(node: yaml.Node) -> object:
    loader = _Loader("")
    try:
        return loader.construct_object(node, deep=True)
    finally:
        loader.dispose()


def _variable_files(directory: Path, name: str) -> Iterator[Path]:
    """Yield the files Ansible reads for one group or host, in its order: the first form that exists."""
    for suffix in _SUFFIXES:
        path = directory / f"{name}{suffix}"
        if path.is_dir():
            yield from _files_below(path)
            return
        if path.is_file():
            yield path
            return


def _files_below(directory: Path) -> Iterable[Path]:
    for path in sorted(directory.iterdir()):
        if path.name.startswith(".") or path.name.endswith("~"):
            continue
        if path.is_dir():
            yield from _files_below(path)
        elif path.suffix in _SUFFIXES:
            yield path


def group_depths(groups: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Return for each host its groups with their depth, from what ``ansible-inventory --list`` prints."""
    depth = {"all": 0}
    queue = ["all"]
    for group in queue:
        for child in groups.get(group, {}).get("children", []):
            if depth.get(child, -1) < depth[group] + 1:
                depth[child] = depth[group] + 1
                queue.append(child)
    ancestors: dict[str, set[str]] = {}

    def above(group: str) -> set[str]:
        if group not in ancestors:
            direct = {parent for parent, content in groups.items() if group in content.get("children", [])}
            ancestors[group] = {group}.union(*(above(parent) for parent in direct))
        return ancestors[group]

    hosts: dict[str, dict[str, int]] = {}
    for group, content in groups.items():
        for host in content.get("hosts", []):
            hosts.setdefault(host, {}).update({name: depth.get(name, 1) for name in above(group) | {"all"}})
    return hosts


def in_run(origins: Origins, hosts: Mapping[str, Mapping[str, Any]]) -> Callable[[str, VariablePath], str]:
    """Return a locator for variables of a run: a value that no file explains is not blamed on a file.

    ``hosts`` are the run's variables. A file that says something else, other than a template, was overridden.
    """

    def locate(host: str, path: VariablePath) -> str:
        written, seen = origins.value(host, path), _look_up(hosts.get(host, {}), path)
        if written == seen or is_template(written):
            return origins(host, path)
        return f"{path[0]} (not in group_vars: -e, set_fact or the inventory itself)"

    return locate


def _look_up(variables: object, path: VariablePath) -> object:
    for part in path:
        if isinstance(variables, Mapping):
            variables = variables.get(part)
        elif isinstance(variables, list) and part.isdigit() and int(part) < len(variables):
            variables = variables[int(part)]
        else:
            return None
    return variables
