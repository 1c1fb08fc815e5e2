"""The project under ansible-runner, which AWX runs playbooks with: as it is, nothing is copied or changed for it."""

from __future__ import annotations

import os
from pathlib import Path

import ansible_runner
import yaml

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


def test_the_image_for_awx_is_made_from_the_lock_with_hashes() -> None:
    """The keys are those of ansible-builder's third format; which files it names, and what is installed, is ours."""
    file = PROJECT / "requirements/execution-environment.yml"
    wanted = yaml.safe_load(file.read_text())
    assert wanted.keys() == {
        "version", "images", "options", "dependencies", "additional_build_files", "additional_build_steps",
    }  # fmt: skip
    assert wanted["version"] == 3
    for entry in wanted["additional_build_files"]:
        assert (file.parent / entry["src"]).is_file()
        copied = f"_build/{entry['dest']}/{entry['src']}"
        assert any(step.startswith(f"COPY {copied} ") for step in wanted["additional_build_steps"]["append_final"])
    (install,) = [step for step in wanted["additional_build_steps"]["append_final"] if step.startswith("RUN ")]
    assert "--require-hashes" in install
    assert "--no-deps" in install
