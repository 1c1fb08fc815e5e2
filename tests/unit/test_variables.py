"""Names of inventory variables: a slip is found, what the project or an operator names otherwise is left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from seatfleet.core.inventory.variables import KNOWN, ROLE_SECRETS, meant, missing_secrets, misspelt, role_defaults

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


GPU = {"group_names": ["gpu_hosts"], "seats": {"a": {}}, "vault_litellm_keys": {}, "vault_seat_api_key_secret": "s"}


def secrets(**changes: Any) -> list[str]:
    variables = {name: value for name, value in {**GPU, **changes}.items() if value is not None}
    return [
        f"{secret}: {problem}" for secret, problem in missing_secrets("h", variables, lambda _, path: f"{path[0]}!")
    ]


def test_a_secret_that_a_variable_names_and_that_is_not_there() -> None:
    assert secrets(gateway_admin_key="{{ vault_litellm_key }}") == [
        "vault_litellm_key: gateway_admin_key!: gateway_admin_key: expected the variable vault_litellm_key, which it "
        "is made of, to be there (did you mean 'vault_litellm_keys'?), seen no variable of that name"
    ]


@pytest.mark.parametrize(
    "value",
    [
        "{{ vault_seat_api_key_secret }}",
        "{{ vault_x | default('') }}",
        "{{ vault_x if vault_x is defined else '' }}",
        "{{ lookup('file', 'vault_x.txt') }}",
        "vault_x",
        None,
    ],
)
def test_what_is_there_or_may_be_missing_or_is_no_variable(value: str | None) -> None:
    assert secrets(gateway_admin_key=value) == []


def test_what_a_role_makes_of_a_secret_that_is_not_there() -> None:
    (text, alias) = secrets(vault_seat_api_key_secret=None)
    assert text.startswith(
        "vault_seat_api_key_secret: roles/seat/defaults/main.yml: seat_api_key_secret: expected the variable vault_"
    )
    assert "roles/seat_alias/defaults/main.yml: seat_alias_seat_key_secret" in alias
    assert secrets(vault_seat_api_key_secret=None, seat_api_key_secret="s", seat_alias_seat_key_secret="s") == []
    assert secrets(vault_seat_api_key_secret=None, seats={}) == []
    assert len(secrets(group_names=["gateway"])) == 2


def test_the_roles_make_their_variables_of_these_secrets() -> None:
    for _, name, secret in ROLE_SECRETS:
        assert read(PROJECT / role_defaults(name))[name] == f"{{{{ {secret} }}}}"
    found = {
        name
        for file in PROJECT.glob("roles/*/defaults/main.yml")
        for name, value in read(file).items()
        if isinstance(value, str) and "vault_" in value
    }
    assert found == {name for _, name, _ in ROLE_SECRETS}
