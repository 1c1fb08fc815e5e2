"""The shipped inventories: variables reach every way of running Ansible, and lab and production stay apart."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PLAY = """---
- name: Read one value
  hosts: fv-ml1
  connection: local
  gather_facts: false
  tasks:
    - name: Show it
      ansible.builtin.debug:
        msg: "port={{ seats['flash-next'].port }} control={{ gateway_control_key }}"
"""
SEEN = "port=8022 control=control"


def run(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ANSIBLE_CONFIG": str(cwd / "ansible.cfg"), "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"}
    return subprocess.run(argv, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the project's inventories and variables, so that a test may add playbooks and break things."""
    for name in ("inventory", "group_vars", "tests/playbooks"):
        shutil.copytree(PROJECT / name, tmp_path / name, symlinks=True)
    shutil.copy(PROJECT / "ansible.cfg", tmp_path)
    (tmp_path / "top.yml").write_text(PLAY)
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "playbooks/inner.yml").write_text(PLAY)
    (tmp_path / "site.yml").write_text("---\n- import_playbook: playbooks/inner.yml\n")
    return tmp_path


WAYS = {
    "top-level playbook": ["ansible-playbook", "top.yml"],
    "playbook in playbooks/": ["ansible-playbook", "playbooks/inner.yml"],
    "imported playbook": ["ansible-playbook", "site.yml"],
    "ansible": ["ansible", "fv-ml1", "-c", "local", "-m", "debug", "-a", "msg=port={{ seats['flash-next'].port }}"],
    "ansible-inventory": ["ansible-inventory", "--host", "fv-ml1"],
    "playbook of molecule": ["ansible-playbook", "tests/playbooks/variables.yml"],
}


@pytest.mark.parametrize("way", WAYS)
def test_one_value_through_every_way_of_running(copy: Path, way: str) -> None:
    done = run(*WAYS[way], cwd=copy)
    assert done.returncode == 0, done.stdout + done.stderr
    if way == "ansible":
        assert "port=8022" in done.stdout
    elif way == "ansible-inventory":
        assert json.loads(done.stdout)["seats"]["flash-next"]["port"] == 8022
    elif way == "playbook of molecule":
        assert "ok=1" in done.stdout
    else:
        assert SEEN in done.stdout


def test_without_the_link_the_same_value_is_invisible(copy: Path) -> None:
    """Why the link exists; and proof that the test above can fail."""
    (copy / "inventory/production/group_vars").unlink()
    assert run(*WAYS["imported playbook"], cwd=copy).returncode != 0


def listing(inventory: str) -> dict[str, Any]:
    done = run("ansible-inventory", "-i", f"inventory/{inventory}", "--list", cwd=PROJECT)
    # Every run would repeat a warning of what is in the inventory.
    assert (done.returncode, done.stderr) == (0, "")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def members(groups: Mapping[str, Any], group: str) -> set[str]:
    content = groups.get(group, {})
    return set(content.get("hosts", [])).union(*(members(groups, child) for child in content.get("children", [])))


@pytest.fixture(scope="module")
def inventories() -> dict[str, dict[str, Any]]:
    return {name: listing(name) for name in ("production", "lab")}


def test_no_lab_host_is_in_a_leaf_group_of_production(inventories: dict[str, dict[str, Any]]) -> None:
    production, lab = inventories["production"], inventories["lab"]
    leaves = {name for name, content in production.items() if content.get("hosts")}
    assert leaves == {"fv_ml1", "spark_1", "spark_2", "gw_1"}
    assert {leaf: members(lab, leaf) for leaf in leaves} == {leaf: set() for leaf in leaves}
    assert members(lab, "production") == set()
    assert members(production, "lab") == set()


@pytest.mark.parametrize(
    ("inventory", "group", "hosts"),
    [
        ("production", "gpu_hosts", {"fv-ml1", "spark-1", "spark-2"}),
        ("production", "gb10", {"spark-1", "spark-2"}),
        ("production", "rtx_pro_6000", {"fv-ml1"}),
        ("production", "gateway", {"gw-1"}),
        ("lab", "gpu_hosts", {"fv-ml1", "spark-1"}),
        ("lab", "gateway", {"gw-1"}),
        ("lab", "gb10", set()),
        ("lab", "rtx_pro_6000", set()),
    ],
)
def test_groups(inventories: dict[str, dict[str, Any]], inventory: str, group: str, hosts: set[str]) -> None:
    assert members(inventories[inventory], group) == hosts


def test_seats_are_only_in_leaf_groups() -> None:
    """Ansible compares the priority of groups of equal depth only: seats in two places would depend on names."""
    found = {path.parent.name for path in (PROJECT / "group_vars").glob("*/*.yml") if "\nseats:" in path.read_text()}
    assert found == {"fv_ml1", "spark_1", "spark_2", "lab_fv_ml1", "lab_spark_1"}


def test_secrets_of_the_example_are_placeholders() -> None:
    values = [line for line in (PROJECT / "group_vars/production/vault.yml").read_text().splitlines() if ': "' in line]
    assert len(values) == 6
    assert all("<fill in: " in line for line in values)
