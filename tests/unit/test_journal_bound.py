"""What a host keeps of its journal: the file that role gpu_host writes, and what it refuses."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleError
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import init_plugin_loader
from ansible.template import Templar, trust_as_template

from seatfleet.core.host.journal_bound import journal_bound
from seatfleet.core.problems import ProblemsError

PROJECT = Path(__file__).resolve().parents[2]
ROLE = PROJECT / "roles/gpu_host"
FILE = "/etc/systemd/journald.conf.d/seatfleet.conf"


def trusted(value: Any) -> Any:
    return trust_as_template(value) if isinstance(value, str) else value


@pytest.fixture(autouse=True, scope="module")
def _filters() -> None:
    with warnings.catch_warnings():
        # another test of this run may have done it
        warnings.simplefilter("ignore")
        init_plugin_loader([str(PROJECT / "collections")])


def of_the_role(name: str, **changes: Any) -> Any:
    """Return a variable of the role as a run with these inputs sees it."""
    files = (ROLE / "defaults/main.yml", ROLE / "vars/main.yml")
    variables = {key: trusted(value) for file in files for key, value in yaml.safe_load(file.read_text()).items()}
    loader = DataLoader()
    loader.set_basedir(str(ROLE))
    variables |= {"role_path": str(ROLE), **changes}
    variables["__gpu_host_files"] = [
        {key: trusted(value) for key, value in entry.items()} for entry in variables["__gpu_host_files"]
    ]
    return Templar(loader=loader, variables=variables).template(variables[name])


def test_the_file_of_the_defaults_and_its_directory() -> None:
    assert of_the_role("__gpu_host_journal_text") == (
        "# Managed by Ansible (role gpu_host).\n[Journal]\nSystemMaxUse=8G\nSystemMaxFiles=0\n"
    )
    assert FILE in [entry["path"] for entry in of_the_role("__gpu_host_files")]


def test_everything_that_can_be_bounded() -> None:
    text = of_the_role(
        "__gpu_host_journal_text", gpu_host_journal_keep_free="20G", gpu_host_journal_max_retention="30 days"
    )
    assert text.splitlines()[2:] == [
        "SystemMaxUse=8G",
        "SystemMaxFiles=0",
        "SystemKeepFree=20G",
        "MaxRetentionSec=30 days",
    ]


@pytest.mark.parametrize("nothing", ["", None])
def test_emptied_there_is_no_file(nothing: str | None) -> None:
    assert of_the_role("__gpu_host_journal_text", gpu_host_journal_max_use=nothing) == ""


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
    with pytest.raises(AnsibleError, match=r"gpu_host_journal_max_use: expected a size such as 8G .* seen '8'"):
        of_the_role("__gpu_host_journal_text", gpu_host_journal_max_use=8)


def test_journald_restarts_for_its_file_only() -> None:
    """Restarted, never stopped and started: only so the streams of running services stay."""
    handlers = yaml.safe_load((ROLE / "handlers/main.yml").read_text())
    (handler,) = [one for one in handlers if one["listen"] == "Journal bound changed"]
    assert handler["ansible.builtin.systemd_service"] == {"name": "systemd-journald.service", "state": "restarted"}
    for paths, restarts in (([FILE], True), (["/etc/tmpfiles.d/seatfleet.conf"], False), ([], False)):
        variables = {"__gpu_host_journal_file": FILE, "gpu_host_written": {"paths": paths}}
        templar = Templar(loader=DataLoader(), variables=variables)
        assert templar.template(trusted("{{ " + handler["when"] + " }}")) is restarts
    (task,) = [
        one for one in yaml.safe_load((ROLE / "tasks/main.yml").read_text()) if "seatfleet.fleet.text_files" in one
    ]
    assert "Journal bound changed" in task["notify"]
