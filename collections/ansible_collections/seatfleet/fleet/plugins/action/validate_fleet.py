# See plugins/modules/validate_fleet.py for the documentation.
from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.clients.origins import Origins, in_run
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.clients.project_files import ProjectFiles
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.inventory.fleet import (
    check_fleet,
    is_fleet_variable,
    kv_fit,
)
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.inventory.kinds import is_template
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.inventory.variables import (
    missing_secrets,
    misspelt,
)
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.problems import Problem, ProblemsError

# Stands for what cannot be evaluated: the rules take it for a template and leave it alone; it is reported here.
UNREADABLE = "{{ not readable }}"


class ActionModule(ActionBase):
    """Collect the run's variables of all hosts and hand them to the rules."""

    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset({"deploy"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        _, arguments = self.validate_argument_spec({"deploy": {"type": "bool", "default": True}})
        variables = task_vars or {}
        hostvars = variables["hostvars"]
        readers = [self._read(hostvars, str(host)) for host in hostvars]
        hosts = {reader.host: reader.variables for reader in readers}
        project = Path(str(hostvars[variables["inventory_hostname"]]["fleet_project_dir"]))
        origins = _origins(hostvars, hosts, project, str(variables["playbook_dir"]))
        locate = in_run(origins, hosts)
        report = check_fleet(hosts, locate=locate, files=ProjectFiles(project), planner=kv_fit)
        for reader in readers:
            for path, seen in reader.failed.items():
                problem = Problem(locate(reader.host, path), f"host {reader.host}", ".".join(path), "a value", seen)
                report.add(problem, [reader.host])
        for problem, host in origins.duplicates():
            report.add(problem, [host])
        for problem, affected in misspelt(origins.names()):
            report.add(problem, affected)
        for reader in readers:
            for _, problem in missing_secrets(reader.host, reader.raw, locate):
                report.add(problem, [reader.host])
        play = [str(host) for host in variables["ansible_play_hosts_all"]]
        result["warnings"] = [f"on a host outside this play: {problem}" for problem in report.elsewhere(play)]
        try:
            report.raise_for(play, deploy=arguments["deploy"])
        except ProblemsError as error:
            return {**result, "failed": True, "msg": str(error), "problems": [str(item) for item in error.problems]}
        seats = [seat for (host, _), seat in sorted(report.seats.items()) if host in play]
        return {
            **result,
            "changed": False,
            "seats": [
                {"host": s.host, "seat": s.name, "model": s.model, "release": s.release, "port": s.port} for s in seats
            ],
            "not_checked": [str(item) for item, scope in sorted(report.not_checked.items()) if scope & set(play)],
        }

    def _read(self, hostvars: Any, host: str) -> _Reader:  # noqa: ANN401 - Ansible's own class, which has no public name
        raw = hostvars.raw_get(host)
        return _Reader(host, raw, self._templar.copy_with_new_env(available_variables=raw).template)


class _Reader:
    """Evaluates variables of one host; what cannot be evaluated is kept with its path instead of ending the run."""

    def __init__(self, host: str, raw: Mapping[str, Any], evaluate: Callable[[object], object]) -> None:
        self.host, self.raw, self._evaluate = host, raw, evaluate
        self.failed: dict[tuple[str, ...], str] = {}
        self.variables = {
            str(name): self._plain(value, (str(name),)) for name, value in raw.items() if is_fleet_variable(str(name))
        }

    def _plain(self, value: object, at: tuple[str, ...], evaluated: bool = False) -> object:
        """Return built-in types without Ansible's tags; an encrypted value stays as it is and is never looked at."""
        if isinstance(value, Mapping):
            return {str(key): self._plain(item, (*at, str(key)), evaluated) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._plain(item, (*at, str(index)), evaluated) for index, item in enumerate(value)]
        if is_template(value) and not evaluated:
            try:
                return self._plain(self._evaluate(value), at, evaluated=True)
            except AnsibleError as error:
                self.failed[at] = " ".join(str(error).split())
                return UNREADABLE
        for kind in (bool, int, float, str):
            if isinstance(value, kind):
                return kind(value)
        return value


def _origins(hostvars: Mapping[str, Any], hosts: Mapping[str, Any], project: Path, playbook_dir: str) -> Origins:
    """Return where variables were written. Ansible exposes the depth of groups only on its inventory object."""
    inventory = getattr(hostvars, "_inventory", None)
    if inventory is None:
        return Origins({}, [], project)
    groups = {host: {group.name: group.depth for group in inventory.get_host(host).get_groups()} for host in hosts}
    sources = (Path(str(source)) for source in inventory._sources or ())
    roots = [source if source.is_dir() else source.parent for source in sources]
    return Origins(groups, [*roots, Path(playbook_dir)], project)
