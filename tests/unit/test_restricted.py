"""What the firewall covers: what is declared, and what is current on the host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from seatfleet.core.inventory.seat import Node, Nodes
from seatfleet.core.paths import SeatPaths
from seatfleet.core.seat.generations import point
from seatfleet.core.seat.render_host import links
from seatfleet.core.seat.restricted import current_links, current_ports

PROJECT = Path(__file__).resolve().parents[2]
ROLE = PROJECT / "roles/gpu_host"
HOSTS = [{"host": name, "address": f"10.0.0.{place}", "interface": "e"} for place, name in enumerate("ab", 1)]
OLD_LINK = {"seat": "pair", "ports": [29600, 29601], "address": "10.0.0.1", "peers": ["10.0.0.2"]}
GENERATIONS = [("old", 8022, 29600), ("new", 8023, 29700)]


def seat(root: Path, name: str, generations: dict[str, dict[str, Any]], current: str | None) -> None:
    paths = SeatPaths(name, root)
    for generation, manifest in generations.items():
        paths.generation(generation).mkdir(parents=True)
        (paths.generation(generation) / "manifest.json").write_text(json.dumps({"seat": name, **manifest}))
    point(paths.current, current)


def test_what_is_current_counts_and_what_is_only_kept_does_not(tmp_path: Path) -> None:
    assert current_ports(tmp_path) == []  # a host that has nothing yet
    seat(tmp_path, "taken-back", {"old": {"port": 8022}, "new": {"port": 8023}}, "old")
    seat(tmp_path, "staged", {"new": {"port": 8031}}, None)
    seat(tmp_path, "follows", {"gen": {"port": 8040, "nodes": {"rank": 1, "port": 29500, "hosts": HOSTS}}}, "gen")
    seat(tmp_path, "damaged", {"other": {}}, "gone")
    assert current_ports(tmp_path) == [8022]
    assert [link["peers"] for link in current_links(tmp_path)] == [["10.0.0.1"]]


def test_what_is_about_to_become_current_counts_before(tmp_path: Path) -> None:
    nodes = {"rank": 0, "hosts": HOSTS}
    pair = {name: {"port": port, "nodes": {**nodes, "port": link}} for name, port, link in GENERATIONS}
    seat(tmp_path, "pair", pair, "new")
    assert current_ports(tmp_path, {"pair": "old"}) == [8022, 8023]
    assert [link["ports"][0] for link in current_links(tmp_path, {"pair": "old"})] == [29700, 29600]
    assert current_ports(tmp_path, {"pair": "new", "gone": "x"}) == [8023]


def entries(playbook: str, before: str) -> list[dict[str, Any]]:
    """Return the tasks of a playbook's last play that load the firewall before a named one."""
    tasks = yaml.safe_load((PROJECT / f"playbooks/{playbook}.yml").read_text())[-1]["tasks"]
    earlier = tasks[: [task["name"] for task in tasks].index(before)]
    roles = [(task, task.get("ansible.builtin.include_role", {})) for task in earlier]
    return [task for task, role in roles if (role.get("name"), role.get("tasks_from")) == ("gpu_host", "firewall")]


def test_a_rollback_restricts_the_port_before_anything_answers_on_it() -> None:
    (task,) = entries("rollback", "Roll back")
    given = {"seat": "s", "__rollback_foreseen": {"seats": [{"wanted": "old"}]}}
    templar = Templar(loader=DataLoader(), variables=given)
    assert templar.template(trust_as_template(task["vars"]["gpu_host_coming"])) == {"s": "old"}


@pytest.mark.parametrize(
    ("looked", "restarting", "loads"), [(False, ["s"], True), (True, ["s"], False), (False, [], False)]
)
def test_a_run_of_the_tag_seat_alone_restricts_a_new_port_first(
    looked: bool, restarting: list[str], loads: bool
) -> None:
    (task,) = entries("seats", "Roll out the seats")
    assert task["tags"] == task["ansible.builtin.include_role"]["apply"]["tags"] == ["seat"]
    given = {"__seats_restarting": restarting, **({"gpu_host_firewall_state": {"ports": []}} if looked else {})}
    assert Templar(loader=DataLoader(), variables=given).evaluate_conditional(trust_as_template(task["when"])) is loads


def test_a_link_that_is_as_declared_is_the_same_one(tmp_path: Path) -> None:
    seat(tmp_path, "pair", {"gen": {"port": 8040, "nodes": {"rank": 0, "port": 29600, "hosts": HOSTS}}}, "gen")

    class Declared:
        name, host = "pair", "a"
        nodes = Nodes(port=29600, hosts=tuple(Node(**host) for host in HOSTS))

    assert current_links(tmp_path) == links([Declared()]) == [OLD_LINK]  # type: ignore[list-item]


def table(**state: Any) -> str:
    """Return the table that the role writes for a declared port and link, and a state of the host."""
    written = yaml.safe_load((ROLE / "vars/main.yml").read_text())
    variables = {
        "gpu_host_seat_ports": [8023, 8099],
        "gpu_host_links": [OLD_LINK | {"ports": [29500, 29501], "peers": ["10.0.0.3"]}],
        "gpu_host_link_range": "32768-60999",
        "gpu_host_gateway_addresses": ["192.0.2.1"],
        "gpu_host_firewall_state": state,
        **{name: trust_as_template(written[name]) for name in ("__gpu_host_all_ports", "__gpu_host_all_links")},
    }
    text = (ROLE / "templates/firewall.nft.j2").read_text()
    rendered: str = Templar(loader=DataLoader(), variables=variables).template(trust_as_template(text))
    return rendered


@pytest.mark.parametrize(
    ("state", "ports"), [({}, "8023, 8099"), ({"ports": [8022, 8023], "links": []}, "8022, 8023, 8099")]
)
def test_ports_that_run_are_closed_too(state: dict[str, Any], ports: str) -> None:
    assert f"tcp dport != {{ {ports} }} accept" in table(**state)


def test_two_links_over_one_address_let_both_peers_in() -> None:
    """The first one must not reject what the second one would accept, or a running pair is cut."""
    rules = [line.strip() for line in table(links=[OLD_LINK]).splitlines()]
    jumps = [place for place, rule in enumerate(rules) if " jump linked_" in rule]
    rejects = [
        place for place, rule in enumerate(rules) if rule.startswith(("tcp dport {", "ip daddr")) and "reject" in rule
    ]
    assert len(jumps) == len(rejects) == 4
    assert max(jumps) < min(rejects)
    chains = rules[: rules.index("chain input {")]
    assert not any("reject" in rule for rule in chains)
    assert [rule for rule in chains if "saddr" in rule] == ["ip saddr 10.0.0.3 accept", "ip saddr 10.0.0.2 accept"]
