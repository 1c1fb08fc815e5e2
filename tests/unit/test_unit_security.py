"""What every unit may do: the scores that docs/security.md explains are those of the units as they are written."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PAGE = PROJECT / "docs/security.md"
# systemd releases weigh a setting or two differently.
BETWEEN_RELEASES = 0.3
ROW = re.compile(r"^\| `(\S+\.service)` \| (\d+\.\d) \|", re.MULTILINE)
GOLDEN = sorted((PROJECT / "tests/unit/data/generations").glob("*/vllm-seat-*.service"))


def templates() -> dict[str, str]:
    """Return every unit of the roles as text, with a word for each value: none of them changes what a unit may do."""
    texts = {
        path.name.removesuffix(".j2")
        .replace("run.", f"{path.parts[-3]}-run.")
        .replace("probe.", "probe@."): path.read_text()
        for path in sorted(PROJECT.glob("roles/*/templates/*.service.j2"))
    }
    return {
        name: re.sub(r"\{\{.*?\}\}", "x", re.sub(r"(?m)^(Exec\w+=)\{\{", r"\1/{{", text), flags=re.DOTALL)
        for name, text in texts.items()
    }


def exposure(text: str, directory: Path) -> float:
    """Return what systemd-analyze says, from 0 (shut) to 10 (open)."""
    unit = directory / "unit.service"
    unit.write_text(text)
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", said.stdout)
    assert found, said.stdout + said.stderr
    return float(found[1])


def documented() -> dict[str, float]:
    """Return the scores on the page by unit."""
    return {name: float(score) for name, score in ROW.findall(PAGE.read_text())}


def test_every_unit_is_explained() -> None:
    assert documented().keys() == {*templates(), "vllm-seat-SEAT.service"}


@pytest.mark.parametrize("name", templates())
def test_the_score_of_a_unit_is_the_documented_one(name: str, tmp_path: Path) -> None:
    assert abs(exposure(templates()[name], tmp_path) - documented()[name]) <= BETWEEN_RELEASES


@pytest.mark.parametrize("unit", GOLDEN, ids=lambda path: path.parent.name)
def test_no_seat_is_more_open_than_documented(unit: Path, tmp_path: Path) -> None:
    assert exposure(unit.read_text(), tmp_path) <= documented()["vllm-seat-SEAT.service"] + BETWEEN_RELEASES


def test_a_setting_that_is_lost_is_noticed(tmp_path: Path) -> None:
    name = "seatfleet-stub@.service"
    opened = templates()[name].replace("DynamicUser=yes\n", "").replace("CapabilityBoundingSet=\n", "")
    assert exposure(opened, tmp_path) > documented()[name] + BETWEEN_RELEASES


def test_secrets_are_looked_for_in_what_every_playbook_prints() -> None:
    """On lab hosts; here only that none is left out."""
    searched = (PROJECT / "tests/integration/test_secrets.py").read_text()
    assert [path.name for path in PROJECT.glob("playbooks/*.yml") if f"playbooks/{path.name}" not in searched] == []
