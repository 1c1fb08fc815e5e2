# See plugins/modules/validate_fleet.py for the documentation.
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.clients.inventory import Project
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.clients.origins import Origins, in_run
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.fleet import (
    check_fleet,
    is_fleet_variable,
    kv_fit,
)
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.problems import Problem, ProblemsError


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
        unreadable: list[Problem] = []
        hosts = {str(host): _fleet_variables(hostvars, str(host), unreadable) for host in hostvars}
        project = Path(str(hostvars[variables["inventory_hostname"]]["fleet_project_dir"]))
        origins = _origins(hostvars, hosts, project, str(variables["playbook_dir"]))
        report = check_fleet(hosts, locate=in_run(origins, hosts), files=Project(project), planner=kv_fit)
        for problem in unreadable:
            report.add(problem, [problem.subject.removeprefix("host ")])
        for problem, host in origins.duplicates():
            report.add(problem, [host])
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


def _fleet_variables(hostvars: Mapping[str, Any], host: str, unreadable: list[Problem]) -> dict[str, Any]:
    """Return the evaluated variables that the rules read; one that cannot be evaluated is a problem of its host."""
    mine = hostvars[host]
    found: dict[str, Any] = {}
    for name in mine:
        if not is_fleet_variable(str(name)):
            continue
        try:
            found[str(name)] = _plain(mine[name])
        except AnsibleError as error:
            seen = " ".join(str(error).split())
            unreadable.append(Problem(str(name), f"host {host}", str(name), "a value", seen))
    return found


def _plain(value: object) -> object:
    """Return built-in types: Ansible's own carry tags and evaluate lazily."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
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
