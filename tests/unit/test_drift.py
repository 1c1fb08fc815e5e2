"""Drift rows from results of check mode, and their table."""

from __future__ import annotations

from typing import Any

import pytest

from seatfleet.core.report.drift import rows, table

SEAT = {"seat": "flash-next", "action": "nothing", "changed": False, "reasons": [], "repairs": []}
CLEAN: dict[str, dict[str, Any]] = {
    "release": {"changed": False, "releases": {"r": {"path": "/opt/r", "before": "present"}}, "removed": []},
    "model": {"changed": False, "models": [{"name": "m", "path": "/srv/m", "before": "present"}]},
    "staged": {"seats": [{"seat": "flash-next", "generation": "0" * 12, "created": False, "changed": False}]},
    "foreseen": {"seats": [SEAT]},
    "aliases": {"steps": []},
    "keys": {"steps": []},
}


def test_a_converged_host_has_no_rows() -> None:
    tasks = {"firewall table": {"changed": False}, "not run": {}}
    assert rows("fv-ml1", CLEAN, tasks) == []
    assert rows("fv-ml1", {}, {}) == []
    assert table([]) == "no drift"


@pytest.mark.parametrize(
    ("part", "result", "row"),
    [
        ("release", {"releases": {"r": {"path": "/opt/r", "before": "absent"}}}, ("release", "r", "/opt/r is absent")),
        ("release", {"removed": ["0.1-x"]}, ("release", "0.1-x", "no seat uses it: would be removed")),
        ("release", {"failed": True, "msg": "r: patched file differs"}, ("release", "-", "r: patched file differs")),
        ("model", {"models": [{"name": "m", "path": "/m", "before": "damaged"}]}, ("model", "m", "/m is damaged")),
        (
            "staged",
            {"seats": [{"seat": "a", "generation": "1" * 12, "created": True, "changed": True}]},
            ("seat", "a", "generation 111111111111 is not on the host"),
        ),
        (
            "staged",
            {"seats": [{"seat": "a", "generation": "1" * 12, "created": False, "changed": True}]},
            ("seat", "a", "files of generation 111111111111 differ, or there is no API key"),
        ),
        (
            "staged",
            {"unmanaged": ["old"]},
            ("seat", "old", "not in the inventory: playbooks/remove.yml removes it, or bring its entry back"),
        ),
        (
            "foreseen",
            {"seats": [{**SEAT, "changed": True, "action": "restart", "reasons": ["port: 1 -> 2"]}]},
            ("seat", "flash-next", "would restart: port: 1 -> 2"),
        ),
        (
            "foreseen",
            {"seats": [{**SEAT, "changed": True, "repairs": ["unit file vllm-seat-flash-next.service"]}]},
            ("seat", "flash-next", "unit file vllm-seat-flash-next.service"),
        ),
        ("aliases", {"steps": ["delete seat-x: no seat"]}, ("alias", "delete seat-x", "no seat")),
        ("aliases", {"failed": True, "msg": "not reachable"}, ("alias", "-", "not reachable")),
        ("keys", {"steps": ["update key infra-ops: removes x"]}, ("key", "infra-ops", "removes x")),
        ("keys", {"skipped": True}, None),
    ],
)
def test_one_difference(part: str, result: dict[str, Any], row: tuple[str, str, str] | None) -> None:
    found = rows("fv-ml1", {**CLEAN, part: result}, {})
    assert [(item.part, item.what, item.differs) for item in found] == ([row] if row else [])


def test_a_task_that_failed_is_a_difference() -> None:
    (row,) = rows("fv-ml1", CLEAN, {"host": {"failed": True, "msg": "spark-1 swaps to /swap.img"}, "stub": {}})
    assert (row.part, row.what, row.differs) == ("host", "host", "spark-1 swaps to /swap.img")


def test_tasks_and_table() -> None:
    tasks = {"toolbox": {"changed": True}, "files": {"changed": True, "paths": ["/etc/a", "/etc/b"]}}
    found = rows("fv-ml1", {"model": {"failed": True, "msg": "first\nsecond"}}, tasks)
    assert table([row.as_dict() for row in found]).splitlines() == [
        "HOST    PART   WHAT     DIFFERS",
        "fv-ml1  host   toolbox  would be changed",
        "fv-ml1  host   /etc/a   would be changed",
        "fv-ml1  host   /etc/b   would be changed",
        "fv-ml1  model  -        first",
    ]
