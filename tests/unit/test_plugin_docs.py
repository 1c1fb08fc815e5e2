"""``ansible-doc`` knows every plugin of the collection, and the generated page has each of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PLUGINS = PROJECT / "collections/ansible_collections/seatfleet/fleet/plugins"
FILES = {"module": "modules/*.py", "lookup": "lookup/*.py", "callback": "callback/*.py", "filter": "filter/*.yml"}


@pytest.mark.parametrize("kind", FILES)
def test_ansible_doc_knows_every_plugin(kind: str) -> None:
    names = sorted(f"seatfleet.fleet.{path.stem}" for path in PLUGINS.glob(FILES[kind]))
    command = ["ansible-doc", "--json", "--type", kind, *names]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    known = json.loads(done.stdout)
    assert sorted(known) == names
    page = (PROJECT / "docs/modules.md").read_text()
    for name, content in known.items():
        assert content["doc"]["short_description"]
        assert content["doc"]["description"]
        assert content.get("examples") or kind in ("lookup", "callback"), f"{name} has no example"
        assert f"### {name.rpartition('.')[2]}\n" in page
