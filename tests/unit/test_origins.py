"""Which file and line a host's variable comes from, in Ansible's own order."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from seatfleet.clients.origins import Origins, group_depths, in_run

GROUPS = {
    "all": {"children": ["ungrouped", "production"]},
    "production": {"children": ["gpu_hosts"]},
    "gpu_hosts": {"children": ["gb10", "rtx"]},
    "gb10": {"children": ["spark_1"]},
    "rtx": {"hosts": ["fv-ml1"]},
    "spark_1": {"hosts": ["spark-1"]},
    "ungrouped": {"hosts": ["lonely"]},
}


def test_depths_of_groups() -> None:
    assert group_depths(GROUPS) == {
        "fv-ml1": {"all": 0, "production": 1, "gpu_hosts": 2, "rtx": 3},
        "spark-1": {"all": 0, "production": 1, "gpu_hosts": 2, "gb10": 3, "spark_1": 4},
        "lonely": {"all": 0, "ungrouped": 1},
    }


def test_a_group_with_two_parents_is_as_deep_as_its_longest_way() -> None:
    groups = {
        "all": {"children": ["lab", "gpu_hosts"]},
        "lab": {"children": ["inner"]},
        "inner": {"children": ["leaf"]},
        "gpu_hosts": {"children": ["leaf"]},
        "leaf": {"hosts": ["h"]},
    }
    assert group_depths(groups)["h"] == {"all": 0, "lab": 1, "gpu_hosts": 1, "inner": 2, "leaf": 3}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    files = {
        "group_vars/all/models.yml": "models:\n  a: {revision: x}\nseats: {}\n",
        "group_vars/all.yml": "models: {wrong: never read, because the directory exists}\n",
        "group_vars/gb10.yml": "seats:\n  from_class:\n    port: 1\nports: [1, 2]\n",
        "group_vars/spark_1/seats.yml": (
            "---\n# a comment\nseats:\n  agent:\n    port: 8031\n"
            "    gpus:\n      - 0\n      - 3\n    env: {A: x,\n      B: y}\n"
        ),
        "group_vars/spark_1/.hidden.yml": "seats: {hidden: {}}\n",
        "group_vars/spark_1/more/vault.yml": "$ANSIBLE_VAULT;1.1;AES256\n6162\n",
        "host_vars/spark-1.yml": "extra: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  6162\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def origins(project: Path) -> Origins:
    return Origins(group_depths(GROUPS), [project], project)


@pytest.mark.parametrize(
    ("path", "place"),
    [
        (("seats", "agent", "port"), "group_vars/spark_1/seats.yml:5"),
        (("seats", "agent", "gpus", "1"), "group_vars/spark_1/seats.yml:8"),
        (("seats", "agent", "env", "B"), "group_vars/spark_1/seats.yml:10"),
        # Not there: the line of what encloses it.
        (("seats", "agent", "speculative", "model"), "group_vars/spark_1/seats.yml:4"),
        # The deeper group replaced the variable as a whole.
        (("seats", "from_class"), "group_vars/spark_1/seats.yml:3"),
        (("ports", "1"), "group_vars/gb10.yml:4"),
        (("models", "a", "revision"), "group_vars/all/models.yml:2"),
        (("extra",), "host_vars/spark-1.yml:1"),
        (("unknown", "x"), "unknown"),
    ],
)
def test_file_and_line(origins: Origins, path: tuple[str, ...], place: str) -> None:
    assert origins("spark-1", path) == place


def test_order_agrees_with_ansible(project: Path) -> None:
    """The last word on precedence is Ansible's: the same files, the same winner."""
    (project / "hosts.yml").write_text(
        "all: {children: {production: {children: {gpu_hosts: {children: {gb10: {children: {spark_1: "
        "{hosts: {spark-1: {}}}}}}}}}}}\n"
    )
    (project / "group_vars/spark_1/more/vault.yml").unlink()
    argv = ["ansible-inventory", "-i", str(project / "hosts.yml"), "--list"]
    listing = json.loads(subprocess.run(argv, capture_output=True, check=True, text=True, cwd=project).stdout)
    variables = listing.pop("_meta")["hostvars"]["spark-1"]
    ours = Origins(group_depths(listing), [project], project)
    for name in ("seats", "ports", "models"):
        assert ours.value("spark-1", (name,)) == variables[name]


@pytest.mark.parametrize("winner", ["inventory", "playbook"])
def test_beside_inventory_and_playbook(tmp_path: Path, winner: str) -> None:
    """All groups beside the inventory come before any beside the playbook; `all` comes before both."""
    inventory, playbook = tmp_path / "inventory", tmp_path / "playbook"
    files = {
        inventory / "hosts.yml": "all: {children: {parent: {children: {leaf: {hosts: {h: {}}}}}}}\n",
        inventory / "group_vars/leaf.yml": "a: inventory leaf\nb: inventory leaf\n",
        playbook / "group_vars/all.yml": "a: playbook all\n",
        playbook / "group_vars/parent.yml": "b: playbook parent\n",
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    argv = ["ansible-inventory", "-i", str(inventory), "--list"]
    listing = json.loads(subprocess.run(argv, capture_output=True, check=True, text=True, cwd=playbook).stdout)
    variables = listing.pop("_meta")["hostvars"]["h"]
    name = {"inventory": "a", "playbook": "b"}[winner]
    assert variables[name].startswith(winner)
    assert Origins(group_depths(listing), [inventory, playbook], tmp_path).value("h", (name,)) == variables[name]


def test_keys_written_twice(project: Path) -> None:
    (project / "group_vars/gb10.yml").write_text("seats:\n  a: {port: 1}\n  b: {}\n  a: {port: 2}\n")
    found = list(Origins(group_depths(GROUPS), [project], project).duplicates())
    assert [(str(problem), host) for problem, host in found] == [
        ("group_vars/gb10.yml:4: seats.a: expected each key once, seen a second one; the first is on line 2", "spark-1")
    ]


def test_values_of_a_run_that_no_file_explains(origins: Origins) -> None:
    run = {"spark-1": {"seats": {"agent": {"port": 80, "gpus": [0, 3], "prt": 1}}, "ports": ["evaluated"]}}
    locate = in_run(origins, run)
    elsewhere = "seats (not in group_vars: -e, set_fact or the inventory itself)"
    assert locate("spark-1", ("seats", "agent", "port")) == elsewhere
    assert locate("spark-1", ("seats", "agent", "prt")) == elsewhere
    assert locate("spark-1", ("seats", "agent", "gpus", "1")) == "group_vars/spark_1/seats.yml:8"
    assert locate("spark-1", ("seats", "agent", "model")) == "group_vars/spark_1/seats.yml:4"


def test_a_template_in_the_file_is_where_the_value_comes_from(project: Path) -> None:
    (project / "group_vars/spark_1/seats.yml").write_text("seats:\n  agent:\n    port: '{{ base + 1 }}'\n")
    origins = Origins(group_depths(GROUPS), [project], project)
    locate = in_run(origins, {"spark-1": {"seats": {"agent": {"port": 8031}}}})
    assert locate("spark-1", ("seats", "agent", "port")) == "group_vars/spark_1/seats.yml:3"
