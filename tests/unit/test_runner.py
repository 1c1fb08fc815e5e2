"""The project under ansible-runner, which AWX runs playbooks with: as it is, nothing is copied or changed for it."""

from __future__ import annotations

import os
from pathlib import Path

import ansible_runner

PROJECT = Path(__file__).resolve().parents[2]


def run(directory: Path, **more: object) -> ansible_runner.Runner:
    return ansible_runner.run(
        private_data_dir=str(directory),
        project_dir=str(PROJECT),
        playbook="playbooks/validate.yml",
        envvars={"PATH": os.environ["PATH"], "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg")},
        quiet=True,
        **more,
    )


def test_the_example_fleet_is_validated_under_ansible_runner(tmp_path: Path) -> None:
    """Inventory, variables, roles, collection and the action plugin are all found."""
    done = run(tmp_path, inventory=str(PROJECT / "inventory/production"), extravars={"fleet_validate_deploy": False})
    assert (done.status, done.rc) == ("successful", 0), done.stdout.read()
    tasks = {event["event_data"].get("task") for event in done.events if event["event"] == "runner_on_ok"}
    assert "Check seats, releases, models and aliases of the fleet" in tasks


def test_a_refusal_comes_through(tmp_path: Path) -> None:
    """The example has placeholders, which a deploy refuses: the same message as on a terminal."""
    done = run(tmp_path, inventory=str(PROJECT / "inventory/production"))
    assert done.status == "failed"
    failed = [event["event_data"]["res"]["msg"] for event in done.events if event["event"] == "runner_on_failed"]
    assert any("nothing was changed" in message and "placeholder" in message for message in failed)
