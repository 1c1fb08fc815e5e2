"""Nothing from outside: an install with the cable out, and weights from host to host."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from labrun import LAB, PROJECT, Lab

from seatfleet.core.release.releases import read_release

RELEASE = "0.32.0+cpu.1"
MODEL = "tiny-oracle"
ROOT = "/opt/vllm/cable-out"
INSTALL = """
import json, pathlib, sys
from seatfleet.core.release.installs import Host, ensure
from seatfleet.core.release.releases import examine, load_release
release = load_release(json.load(sys.stdin))
wheels = pathlib.Path("/srv/mirror/wheelhouses") / sys.argv[1]
found = ensure(Host(pathlib.Path(sys.argv[2]), "vllm"), release, wheels, every_file=False, repair=False, check=False)
print(found.before, found.changed, *examine(found.path, release, every_file=True))
"""


def test_an_install_with_the_cable_out(lab: Lab) -> None:
    catalogue = yaml.safe_load((PROJECT / "group_vars/all/releases.yml").read_text())["releases"]
    spec = read_release(PROJECT, RELEASE, catalogue[RELEASE], "x86_64", yaml.safe_load)
    tool = str(PROJECT / "lab/lab")
    lab.run(tool, "cut", "fv-ml1")
    try:
        assert lab.host("fv-ml1", "true", check=False).code != 0, "the cable is not out"
        python = "/opt/vllm/toolbox/bin/python"
        command = [tool, "exec", "fv-ml1", python, "-c", INSTALL, spec["lock_name"], ROOT]
        run = lab.run(*command, stdin=json.dumps(spec))
        assert run.output.strip().splitlines()[-1] == "absent True present []"
    finally:
        lab.run(tool, "exec", "fv-ml1", "rm", "-rf", ROOT)
        lab.run(tool, "heal", "fv-ml1")


@pytest.fixture
def address() -> str:
    """Where fv-ml1 is in the lab."""
    hosts: dict[str, dict[str, str]] = json.loads((LAB / "hosts.json").read_text())
    return hosts["fv-ml1"]["address"]


def test_a_model_is_copied_from_host_to_host(lab: Lab, address: str, tmp_path: Path) -> None:
    manifest = json.loads((PROJECT / f"files/models/{MODEL}.json").read_text())
    place = f"/srv/models/{MODEL}/{manifest['revision'][:12]}"
    lab.host("spark-1", "rm", "-rf", f"/srv/models/{MODEL}")
    arguments = ["-e", f"model={MODEL}", "-e", "from=fv-ml1", "-e", f"link={address}", "-l", "spark-1"]
    try:
        first = lab.run("ansible-playbook", "playbooks/copy-model.yml", *arguments)
        assert first.changed["spark-1"] == 1
        listing = f"/var/lib/seatfleet/copy-{MODEL}.json"
        verified = lab.host("spark-1", "/opt/vllm/toolbox/bin/seatctl", "model", "verify", place, "--manifest", listing)
        assert "all as in" in verified.output
        assert lab.run("ansible-playbook", "playbooks/copy-model.yml", *arguments).changed["spark-1"] == 0
        units = lab.host("fv-ml1", "systemctl", "list-units", "--all", "--no-legend", "seatfleet-copy-*").output
        assert units.strip() == "", "still served"
    finally:
        lab.host("spark-1", "rm", "-rf", f"/srv/models/{MODEL}")
