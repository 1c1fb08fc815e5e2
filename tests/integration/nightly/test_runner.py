"""``site.yml`` under ansible-runner, which AWX runs playbooks with, on the lab hosts that the chain deployed."""

from __future__ import annotations

import os
from pathlib import Path

import ansible_runner
from labrun import Lab


def test_site_under_ansible_runner(lab: Lab, tmp_path: Path) -> None:
    lab.site()
    done = ansible_runner.run(
        private_data_dir=str(tmp_path),
        project_dir=str(lab.project),
        inventory=lab.environment["ANSIBLE_INVENTORY"],
        playbook="site.yml",
        envvars={
            "PATH": os.environ["PATH"],
            "ANSIBLE_CONFIG": lab.environment["ANSIBLE_CONFIG"],
            "SEATFLEET_LAB": lab.environment["SEATFLEET_LAB"],
        },
        quiet=True,
    )
    assert (done.status, done.rc) == ("successful", 0), done.stdout.read()
    assert done.stats["changed"] == {}, done.stats
    assert {"fv-ml1", "spark-1", "gw-1"} <= set(done.stats["ok"])
    tasks = {event["event_data"].get("task") for event in done.events if event["event"] == "runner_on_ok"}
    assert "roll_out | Roll out the seats that need it" in tasks
