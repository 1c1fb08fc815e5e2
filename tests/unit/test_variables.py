"""Names of inventory variables: a slip is found, what the project or an operator names otherwise is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from seatfleet.core.inventory.variables import KNOWN, meant, misspelt

PROJECT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("seat", "seats"),
        ("saets", "seats"),
        ("Seats", "seats"),
        ("model", "models"),
        ("campaign", "campaigns"),
        ("seat_profile", "seat_profiles"),
        ("seat-defaults", "seat_defaults"),
        ("fleet_hardwares", "fleet_hardware"),
        ("gateway_keynames", "gateway_key_names"),
        ("vault_litellm_masterkey", "vault_litellm_master_key"),
        ("seats", None),
        ("seat_names", None),
        ("my_models", None),
        ("ansible_user", None),
    ],
)
def test_only_a_near_miss_is_taken_for_one(name: str, expected: str | None) -> None:
    assert meant(name) == expected


def test_the_place_and_the_readers_are_kept() -> None:
    ((problem, hosts),) = misspelt([("seat", "group_vars/a.yml:2", frozenset({"h"})), ("seats", "x", frozenset())])
    assert hosts == {"h"}
    assert str(problem) == (
        "group_vars/a.yml:2: seat: expected a variable that something reads (did you mean 'seats'?), "
        "seen one that nothing does"
    )


def read(file: Path) -> dict[str, object]:
    return yaml.load(file.read_text(), Loader=yaml.BaseLoader) or {}


def test_no_name_of_the_project_is_a_near_miss_of_another() -> None:
    """Every default of a role may stand in an inventory too, and so may what its specification names."""
    names = {name for file in PROJECT.glob("group_vars/*/*.yml") for name in read(file)}
    names |= {name for file in PROJECT.glob("roles/*/defaults/*.yml") for name in read(file)}
    for file in PROJECT.glob("roles/*/meta/argument_specs.yml"):
        specs: dict[str, dict[str, dict[str, object]]] = read(file)["argument_specs"]  # type: ignore[assignment]
        names |= {name for spec in specs.values() for name in spec.get("options", {})}
    assert {name: near for name in sorted(names) if (near := meant(name))} == {}
    assert set(KNOWN) <= names
