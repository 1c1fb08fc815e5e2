"""What the units may do, a deploy user that is not root, and host keys; on the converged lab."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from labrun import LAB, PROJECT, Lab

UNIT = "vllm-seat-flash-next.service"
GOLDEN = sorted((PROJECT / "tests/unit/data/generations").glob("*/*.service"))
# systemd 252: 2.0 for the lab, 2.3 where devices of cards are let through. docs/security.md explains each point.
WORST = 2.5
RULE = "Defaults:deploy !requiretty\ndeploy ALL=(root) NOPASSWD: /bin/sh\n"


def exposure(output: str) -> float:
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", output)
    assert found, output
    return float(found[1])


def test_the_unit_that_runs_is_confined(lab: Lab) -> None:
    assert exposure(lab.host("fv-ml1", "systemd-analyze", "security", "--no-pager", UNIT).output) <= WORST


@pytest.mark.parametrize("unit", GOLDEN, ids=lambda path: path.parent.name)
def test_units_of_every_class_of_host_are_confined(lab: Lab, unit: Path) -> None:
    lab.host("fv-ml1", "tee", f"/tmp/{unit.name}", stdin=unit.read_text())
    command = ("systemd-analyze", "security", "--offline=true", "--no-pager", f"/tmp/{unit.name}")
    assert exposure(lab.host("fv-ml1", *command).output) <= WORST


def test_an_open_unit_is_noticed(lab: Lab) -> None:
    lab.host("fv-ml1", "tee", "/tmp/open.service", stdin="[Service]\nExecStart=/bin/true\n")
    command = ("systemd-analyze", "security", "--offline=true", "--no-pager", "/tmp/open.service")
    assert exposure(lab.host("fv-ml1", *command).output) > WORST


@pytest.fixture
def deploy_user(lab: Lab) -> Iterator[None]:
    """A user with the lab's key and no rights."""
    lab.host("fv-ml1", "useradd", "--create-home", "--shell", "/bin/sh", "deploy")
    lab.host("fv-ml1", "cp", "-r", "/root/.ssh", "/home/deploy/.ssh")
    lab.host("fv-ml1", "chown", "-R", "deploy:", "/home/deploy/.ssh")
    yield
    lab.host("fv-ml1", "rm", "-f", "/etc/sudoers.d/seatfleet")
    lab.host("fv-ml1", "userdel", "--remove", "--force", "deploy", check=False)


def test_a_deploy_user_needs_exactly_one_rule(lab: Lab, deploy_user: None) -> None:
    lab.site("-l", "fv-ml1")
    arguments = ("-l", "fv-ml1", "-e", "ansible_user=deploy")
    refused = lab.run("ansible-playbook", "playbooks/status.yml", *arguments, check=False)
    assert refused.failed == {"fv-ml1"}
    assert re.search(r"Missing sudo password|password is required", refused.output)
    lab.host("fv-ml1", "tee", "/etc/sudoers.d/seatfleet", stdin=RULE)
    lab.host("fv-ml1", "chmod", "0440", "/etc/sudoers.d/seatfleet")
    lab.host("fv-ml1", "visudo", "-cf", "/etc/sudoers.d/seatfleet")
    assert lab.site(*arguments).changed["fv-ml1"] == 0


def test_the_documented_rule_is_the_tested_one() -> None:
    assert RULE in (PROJECT / "docs/security.md").read_text()


@pytest.mark.parametrize("known", ["nothing", "another key"])
def test_a_host_whose_key_is_not_known_is_not_talked_to(lab: Lab, known: str, tmp_path: Path) -> None:
    hosts = tmp_path / "known_hosts"
    hosts.write_text("")
    if known == "another key":
        lab.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key"))
        address = json.loads((LAB / "hosts.json").read_text())["fv-ml1"]["address"]
        hosts.write_text(f"{address} {(tmp_path / 'key.pub').read_text()}")
    options = f"-o UserKnownHostsFile={hosts} -o ControlPath=none"
    run = lab.run(
        "ansible-playbook",
        "playbooks/status.yml",
        "-l",
        "fv-ml1",
        "-e",
        f"ansible_ssh_common_args='{options}'",
        check=False,
    )
    assert run.failed == {"fv-ml1"}
    assert "Host key verification failed" in run.output
