"""What a verb says when it is typed wrongly: its own sentence, before any host is contacted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("headroom.yml -l fv-ml1", "Give -e seat=NAME"),
        ("campaign.yml -l fv-ml1", "Give -e seat=NAME and -e campaign=NAME"),
        ("campaign.yml -l fv-ml1 -e seat=flash-next", "one host that has this seat; these have it: fv-ml1"),
        ("copy-model.yml -l spark-2", "Give -e model=NAME"),
        ("copy-model.yml -l spark-2 -e model=none -e from=spark-1 -e link=10.0.0.1", "the catalogue has qwen"),
        ("probe.yml -l fv-ml1 -e seat=flash-nxt", "declares flash-nxt; they have flash-next"),
        ("rollback.yml -l fv-ml1", "Give -e seat=NAME, a seat that one of these hosts declares: fv-ml1"),
        ("adopt.yml -l fv-ml1", "Give -e seat=NAME -l HOST"),
        ("remove.yml -e seat=flash-next", "Name the host too: -e seat=flash-next -l HOST"),
        ("stop.yml", "Give -l HOST"),
        ("stop.yml -l fv-ml1 -e seat=flash-nxt", "one of its seats: flash-next"),
    ],
)
def test_a_verb_says_what_is_missing(typed: str, said: str) -> None:
    program = Path(sys.executable).with_name("ansible-playbook")
    name, *options = typed.split()
    # A host that is asked anything fails at the address, and not with the sentence.
    done = subprocess.run(
        [program, f"playbooks/{name}", *options, "-e", "ansible_host=127.0.0.1", "-e", "ansible_port=1"],
        cwd=PROJECT,
        env={**os.environ, "ANSIBLE_INVENTORY": "inventory/production", "ANSIBLE_FORCE_COLOR": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert said in " ".join((done.stdout + done.stderr).split())
