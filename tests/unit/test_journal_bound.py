"""What a host keeps of its journal: the file that role gpu_host writes, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from seatfleet.core.host.journal_bound import journal_bound
from seatfleet.core.problems import ProblemsError

PROJECT = Path(__file__).resolve().parents[2]
ROLE = PROJECT / "roles/gpu_host"
FILE = "/etc/systemd/journald.conf.d/seatfleet.conf"


def text_of_the_role(**changes: Any) -> tuple[bool, str]:
    """Return whether a run with these inputs has a text for the file, and the text or what it says instead."""
    # In a process of its own: which filters this one knows depends on the tests before this.
    inputs = [f"@{ROLE}/defaults/main.yml", f"@{ROLE}/vars/main.yml", json.dumps(changes)]
    show = ["ansible", "localhost", "-m", "ansible.builtin.debug", "-a", "msg={{ __gpu_host_journal_text }}"]
    done = subprocess.run(
        [*show, "--inventory=localhost,", *(f"--extra-vars={one}" for one in inputs)],
        cwd=PROJECT, env={**os.environ, "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    if done.returncode:
        return False, done.stdout + done.stderr
    return True, str(json.loads(done.stdout.partition("=> ")[2])["msg"])


def test_the_file_of_the_defaults_and_its_directory() -> None:
    assert text_of_the_role() == (
        True,
        "# Managed by Ansible (role gpu_host).\n[Journal]\nSystemMaxUse=8G\nSystemMaxFiles=0\n",
    )
    variables = yaml.safe_load((ROLE / "vars/main.yml").read_text())
    assert variables["__gpu_host_journal_file"] == FILE
    (entry,) = [one for one in variables["__gpu_host_files"] if "__gpu_host_journal_text" in one["content"]]
    assert entry["path"] == "{{ __gpu_host_journal_file }}"


def test_everything_that_can_be_bounded() -> None:
    made, text = text_of_the_role(gpu_host_journal_keep_free="20G", gpu_host_journal_max_retention="30 days")
    assert made
    assert text.splitlines()[2:] == [
        "SystemMaxUse=8G",
        "SystemMaxFiles=0",
        "SystemKeepFree=20G",
        "MaxRetentionSec=30 days",
    ]


@pytest.mark.parametrize("nothing", ["", None])
def test_emptied_there_is_no_file(nothing: str | None) -> None:
    assert text_of_the_role(gpu_host_journal_max_use=nothing) == (True, "")


def test_without_a_size_nothing_is_said_about_sizes() -> None:
    assert journal_bound(max_retention="2weeks").splitlines()[1:] == ["[Journal]", "MaxRetentionSec=2weeks"]


@pytest.mark.parametrize("size", ["8", "0", "0G", "8 G", "8g", "8GiB", "4K", "10%", "-1G", "8G\nStorage=none"])
def test_sizes_that_journald_would_take_as_something_else(size: str) -> None:
    for name in ("max_use", "keep_free"):
        with pytest.raises(ProblemsError, match=f"gpu_host_journal_{name}: expected a size such as 8G"):
            journal_bound(**{name: size})


@pytest.mark.parametrize("time", ["30", "0", "0 days", "30d", "forever", "-1 day"])
def test_times_that_are_none(time: str) -> None:
    with pytest.raises(ProblemsError, match="gpu_host_journal_max_retention: expected a time such as 30 days"):
        journal_bound(max_retention=time)


def test_a_number_is_refused_before_anything_is_written() -> None:
    made, said = text_of_the_role(gpu_host_journal_max_use=8)
    assert not made
    assert re.search("gpu_host_journal_max_use: expected a size such as 8G .* seen '8'", said)


def test_journald_restarts_for_its_file_only() -> None:
    """Restarted, never stopped and started: only so the streams of running services stay."""
    handlers = yaml.safe_load((ROLE / "handlers/main.yml").read_text())
    (handler,) = [one for one in handlers if one["listen"] == "Journal bound changed"]
    assert handler["ansible.builtin.systemd_service"] == {"name": "systemd-journald.service", "state": "restarted"}
    for paths, restarts in (([FILE], True), (["/etc/tmpfiles.d/seatfleet.conf"], False), ([], False)):
        variables = {"__gpu_host_journal_file": FILE, "gpu_host_written": {"paths": paths}}
        templar = Templar(loader=DataLoader(), variables=variables)
        assert templar.template(trust_as_template("{{ " + handler["when"] + " }}")) is restarts
    tasks = yaml.safe_load((ROLE / "tasks/firewall.yml").read_text())
    (task,) = [one for one in tasks if "seatfleet.fleet.text_files" in one]
    assert "Journal bound changed" in task["notify"]
