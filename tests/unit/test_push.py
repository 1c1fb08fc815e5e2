"""What the controller pushes to a host without a mirror: what is absent there, and with repair what is damaged."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from seatfleet.core.model import models

PROJECT = Path(__file__).resolve().parents[2]


def test_a_damaged_model_is_repaired_without_a_mirror(tmp_path: Path) -> None:
    """The role itself, on this machine."""
    files = tmp_path / "controller/models/tiny"
    files.mkdir(parents=True)
    (files / "model.safetensors").write_bytes(b"weights")
    manifest = models.measure(files, "tiny")
    (tmp_path / "tiny.json").write_text(json.dumps(manifest.to_mapping()))
    variables = {
        "model_store_names": ["tiny"],
        "model_store_catalogue": {"tiny": {"revision": manifest.revision, "manifest": "tiny.json"}},
        "model_store_project_dir": str(tmp_path),
        "model_store_mirror_dir": None,
        "model_store_local_dir": str(tmp_path / "controller"),
        "model_store_push_dir": str(tmp_path / "pushed"),
        "model_store_root": str(tmp_path / "store"),
    }
    play = {"hosts": "localhost", "connection": "local", "gather_facts": False, "vars": variables}
    role = {"ansible.builtin.import_role": {"name": str(PROJECT / "roles/model_store")}}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([{**play, "tasks": [role]}]))

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        command = ["ansible-playbook", "-i", "localhost,", str(tmp_path / "play.yml"), *more]
        environment = {**os.environ, "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg")}
        return subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)

    published = tmp_path / "store" / manifest.directory / "model.safetensors"
    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    published.write_bytes(b"weightz")
    refused = run("-e", '{"model_store_verify": true}')
    assert refused.returncode != 0
    assert "model_store_repair: true" in refused.stdout
    assert not (tmp_path / "pushed/models/tiny").exists()
    repaired = run("-e", '{"model_store_verify": true, "model_store_repair": true}')
    assert repaired.returncode == 0, repaired.stdout + repaired.stderr
    assert published.read_bytes() == b"weights"


@pytest.mark.parametrize(
    ("repair", "pushed"), [(False, ["lock-absent", "lock-half"]), (True, ["lock-absent", "lock-half", "lock-damaged"])]
)
def test_wheelhouses_that_are_pushed(repair: bool, pushed: list[str]) -> None:
    befores = {"absent": "absent", "half": "incomplete", "damaged": "damaged", "well": "present"}
    variables: dict[str, Any] = {
        "vllm_release_repair": repair,
        "__vllm_release_specs": [{"name": name, "lock_name": f"lock-{name}"} for name in befores],
        "__vllm_release_found": {"releases": {name: {"before": before} for name, before in befores.items()}},
    }
    text = yaml.safe_load((PROJECT / "roles/vllm_release/vars/main.yml").read_text())["__vllm_release_absent"]
    assert list(Templar(loader=DataLoader(), variables=variables).template(trust_as_template(text))) == pushed
