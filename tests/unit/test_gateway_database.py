"""The gateway's migrations: which are missing, and the script that applies them."""

from __future__ import annotations

import hashlib

import pytest

from seatfleet.core.gateway.database import Migration, begun, identifier, pending, script


def test_pending_keeps_names_with_spaces_and_the_order() -> None:
    available = ["2_add table", "10_c", "1_a"]
    assert pending(available, ["1_a"]) == ["10_c", "2_add table"]


def test_a_migration_that_was_never_finished_is_told_apart() -> None:
    assert begun(["1_a", "?2_b"]) == ["2_b"]


def test_each_migration_is_one_transaction_with_its_record() -> None:
    text = script([Migration("1_it's", "CREATE TABLE a ();\n")], "litellm")
    checksum = hashlib.sha256(b"CREATE TABLE a ();\n").hexdigest()
    begin, record, commit = (text.index(word) for word in ("BEGIN;", f"'{checksum}', now(), '1_it''s'", "COMMIT;"))
    assert text.startswith("SET ROLE litellm;\n")
    assert begin < text.index("CREATE TABLE a") < record < commit


def test_what_postgresql_forbids_in_a_transaction_stands_outside() -> None:
    text = script([Migration("1", "CREATE INDEX CONCURRENTLY i ON a (b)")], "litellm")
    assert "BEGIN;" not in text
    assert text.index("CONCURRENTLY") < text.index("INSERT INTO")


def test_a_migration_without_a_last_semicolon_does_not_swallow_its_record() -> None:
    lines = script([Migration("1", "SELECT 1 -- end")], "litellm").splitlines()
    assert lines[lines.index("SELECT 1 -- end") + 1] == ";"


@pytest.mark.parametrize("name", ["", "Litellm", "a-b", "a; drop", "1a", 'a"b'])
def test_names_that_need_quoting_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="expected a name"):
        identifier(name)
