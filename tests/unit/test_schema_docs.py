"""The generated JSON Schema and tables: current, valid, and of one mind with the loader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from seatfleet.cli import main
from seatfleet.core.inventory.catalogue import MODEL
from seatfleet.core.inventory.schema import read_seat
from seatfleet.core.inventory.schema_docs import fill_tables, json_schema, markdown_table

PROJECT = Path(__file__).resolve().parents[2]
COMMITTED = PROJECT / "docs/seat.schema.json"
SEATS = """
seats:
  a:
    model: m
    release: r
    gpus: [0]
    port: 8022
    max_model_len: 4096
    kv_cache_memory: 14GiB
    speculative: null
    speculative_why: {state: unmeasured, note: n}
"""


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_committed_schema_is_current() -> None:
    assert main(["schema", "--check", str(COMMITTED)]) == 0


def test_a_stale_schema_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stale = tmp_path / "seat.schema.json"
    assert main(["schema", "--check", str(stale)]) == 1
    stale.write_text(COMMITTED.read_text().replace("8022", "").replace("1024", "1"))
    assert main(["schema", "--check", str(stale)]) == 1
    assert "out of date, run `make docs`" in capsys.readouterr().err


def test_the_verb_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json_schema()


def test_the_manual_has_the_current_tables() -> None:
    manual = (PROJECT / "docs/seats.md").read_text()
    assert manual.count("<!-- table: ") == 4
    assert fill_tables(manual) == manual


def test_a_stale_table_is_written_anew() -> None:
    text = "before\n<!-- table: model -->\n| old |\n<!-- end -->\nafter\n"
    filled = fill_tables(text)
    assert "| old |" not in filled
    assert filled.startswith("before\n<!-- table: model -->\n| field |")
    assert filled.endswith("<!-- end -->\nafter\n")
    assert fill_tables(filled) == filled


def test_nested_fields_have_rows_of_their_own() -> None:
    table = markdown_table(MODEL)
    assert "| `facts.hybrid` | true or false, without quotes | `false` |" in table
    assert "| `patch_needs[].patches` |" in table


FILES = [path for path in sorted((PROJECT / "group_vars").glob("*/*.yml")) if "vault" not in path.name]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_shipped_files_pass_in_an_editor(validator: Any, path: Path) -> None:
    content = yaml.safe_load(path.read_text()) or {}
    placeholders = {name: entry for name, entry in content.get("models", {}).items() if "<fill" in str(entry)}
    for name in placeholders:
        del content["models"][name]
    assert [error.message for error in validator.iter_errors(content)] == []


def test_a_file_with_seats_says_where_its_schema_is() -> None:
    for path in FILES:
        if "\nseats:" in path.read_text():
            (line,) = [line for line in path.read_text().splitlines() if "yaml-language-server" in line]
            assert (path.parent / line.partition("$schema=")[2]).resolve() == COMMITTED


@pytest.mark.parametrize(
    "change",
    [
        "max_model_lenght: 4",
        "port: '8022'",
        "port: 80",
        "kv_cache_memory: 14GB",
        "prefix_caching: 'true'",
        "speculative: {method: mpt, num_speculative_tokens: 2}",
        "gpus: [GPU-1]",
        "gpus: [0, 0]",
        "engine: {no-x: true}",
        "engine: {a_b: true}",
        "env: {A_B: 1}",
        "aliases: {a: {}}",
        "aliases: {a/b: {keys: [k]}}",
        "probe: {acceptance: {poem: 2}}",
        "state: gone",
        "model: null",
    ],
)
def test_an_editor_marks_what_the_loader_refuses(validator: Any, change: str) -> None:
    content = yaml.safe_load(SEATS)
    assert list(validator.iter_errors(content)) == []
    content["seats"]["a"].update(yaml.safe_load(change))
    assert read_seat("a", "h", content["seats"]["a"]).findings.wrong
    assert list(validator.iter_errors(content))


def test_what_may_come_from_a_profile_is_not_required(validator: Any) -> None:
    def errors(text: str) -> list[Any]:
        return list(validator.iter_errors(yaml.safe_load(text)))

    assert errors("seats: {a: {profile: dflash, port: 8031, speculative: {num_speculative_tokens: 4}}}") == []
    assert errors("seats: {a: {port: 8031}}")
    assert errors("seat_defaults: {port: 8031}") == []
