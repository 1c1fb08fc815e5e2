"""Why a seat failed: from journals as ``journalctl --output=json`` prints them, and from probes on record."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from seatfleet.cli import main
from seatfleet.commands import why
from seatfleet.core.report.why import Known, failed_probe, failed_start, last_ready, starts, text

RECORDED = Path(__file__).parent / "data" / "journal"
MEMORY = Known("M9", "not enough memory", "give it less", ("repository#1",))


def explain(lines: Sequence[str]) -> list[Known]:
    return [MEMORY] if any("Available memory" in line for line in lines) else []


def entries(invocation: str, messages: Sequence[str], *ended: str, at: int = 0) -> list[str]:
    """Return one start: what the process wrote, then what systemd says."""
    own = [
        {"MESSAGE": message, "_PID": "77", "_SYSTEMD_INVOCATION_ID": invocation, "__REALTIME_TIMESTAMP": str(at + i)}
        for i, message in enumerate(messages)
    ]
    systemd = [
        {"MESSAGE": message, "_PID": "1", "INVOCATION_ID": invocation, "_SYSTEMD_INVOCATION_ID": "init",
         "__REALTIME_TIMESTAMP": str(at + len(messages) + i)}
        for i, message in enumerate(ended)
    ]  # fmt: skip
    return [json.dumps(entry) for entry in (*own, *systemd)]


EXITED = "vllm-seat-a.service: Main process exited, code=exited, status=1/FAILURE"
RESULT = "vllm-seat-a.service: Failed with result 'exit-code'."
TOO_MANY = "vllm-seat-a.service: Start request repeated too quickly."
SIGKILL = "vllm-seat-a.service: Main process exited, code=killed, status=9/KILL"
STOPPED = "vllm-seat-a.service: Main process exited, code=exited, status=0/SUCCESS"


def recorded(name: str) -> list[str]:
    return (RECORDED / f"{name}.log").read_text().splitlines()


def test_the_last_failed_start_gives_the_cause_and_what_is_known() -> None:
    journal = [
        *entries("1", recorded("port"), EXITED, RESULT, at=1_000_000),
        *entries("2", recorded("kvhuge"), EXITED, RESULT, at=2_000_000_000_000_000),
        *entries("3", ["INFO serving"], at=3_000_000_000_000_000),
    ]
    found = failed_start(starts(journal), explain)
    assert found is not None
    assert found.cause is not None
    assert found.cause.startswith("ValueError: Available memory on node 0")
    assert found.known == (MEMORY,)
    assert found.ended == EXITED
    assert int(found.at) == 2_000_000_000


def test_a_start_that_systemd_refused_has_the_cause_of_the_one_before() -> None:
    journal = [
        *entries("1", recorded("badflag"), EXITED, RESULT),
        *entries("2", [], TOO_MANY, RESULT),
    ]
    found = failed_start(starts(journal), explain)
    assert found is not None
    assert found.cause == "vllm: error: unrecognized arguments: --no-such-flag"
    assert found.ended == TOO_MANY
    assert found.known == ()


def test_a_process_that_was_killed_without_a_word() -> None:
    killed = "vllm-seat-a.service: A process of this unit has been killed by the OOM killer."
    found = failed_start(starts(entries("1", ["INFO serving"], killed, RESULT)), explain)
    assert found is not None
    assert (found.cause, found.ended) == (killed, killed)
    found = failed_start(starts(entries("1", ["INFO serving"], SIGKILL, RESULT)), explain)
    assert found is not None
    assert (found.cause, found.ended) == (None, SIGKILL)
    assert "journalctl -u vllm-seat-a" in text("a", "failed", [found])


def test_a_start_without_a_word_does_not_get_an_older_ones_cause() -> None:
    journal = [*entries("1", recorded("port"), EXITED, RESULT), *entries("2", ["INFO serving"], SIGKILL, RESULT)]
    found = failed_start(starts(journal), explain)
    assert found is not None
    assert (found.cause, found.ended) == (None, SIGKILL)


def test_an_orderly_stop_is_no_failure() -> None:
    assert failed_start(starts(entries("1", ["ERROR nothing"], STOPPED)), explain) is None
    assert failed_start(starts(["", "no json", "[]"]), explain) is None
    assert "no failed start" in text("a", "active", [])


def test_bytes_of_the_journal_are_text() -> None:
    line = {"MESSAGE": list(b"ValueError: \xff no"), "_PID": "7", "_SYSTEMD_INVOCATION_ID": "1"}
    found = failed_start(starts([json.dumps(line), *entries("1", [], RESULT)]), explain)
    assert found is not None
    assert found.cause == "ValueError: \ufffd no"


def test_a_field_that_a_message_has_twice_is_text() -> None:
    (start,) = starts([json.dumps({"MESSAGE": ["ValueError: one", "two"], "INVOCATION_ID": "a", "_PID": "7"})])
    assert start.lines == ("ValueError: one two",)


def test_the_journal_is_asked_for_long_messages_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --all what is longer than 4,096 bytes comes as null: a refused parser, a dumped configuration."""
    command = tmp_path / "journalctl"
    command.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert "--all" in why._journal("vllm-seat-a.service")


def test_the_latest_failed_probe() -> None:
    reports = [
        {"at": "2026-11-29T20:00:00Z", "verdict": "CANARY", "level": "identity", "cause": "canary: 392"},
        {"at": "2026-11-29T20:01:00Z", "verdict": "NOT_READY", "level": "ready", "cause": "Available memory"},
        {"at": "2026-11-29T20:02:00Z", "verdict": "BUSY", "level": "ready", "cause": "busy"},
        {"at": "2026-11-29T20:03:00Z", "verdict": "READY", "level": "ready", "cause": None},
    ]
    found = failed_probe(reports, explain)
    assert found is not None
    assert (found.ended, found.cause) == ("level ready: NOT_READY", "Available memory")
    assert found.known == (MEMORY,)
    shown = text("a", "active", [found])
    assert "known failure M9: not enough memory\n    what to do: give it less\n    reported in repository#1" in shown
    assert failed_probe(reports[2:], explain) is None
    # Down for maintenance, the seat is not down because of that.
    assert "over: the seat was proven READY after that, last at 2026-11-29 20:03:00 UTC" in text(
        "a", "inactive", [found], last_ready(reports)
    )
    assert "over" not in text("a", "inactive", [found], last_ready([{**reports[3], "at": "2026-11-29T19:00:00Z"}]))
    assert last_ready(reports[:3]) is None


def test_the_command_reads_a_journal_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "journal.json"
    file.write_text("\n".join(entries("1", recorded("parser"), EXITED, RESULT)))
    assert main(["why", "a", "--journal", str(file)]) == 0
    assert "first cause: KeyError: 'invalid tool call parser: nope" in capsys.readouterr().out
    assert main(["why", "a", "--journal", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["failures"][0]["kind"] == "start"


def test_a_known_failure_is_named_with_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "journal.json"
    file.write_text("\n".join(entries("1", recorded("port"), EXITED, RESULT)))
    assert main(["why", "a", "--journal", str(file), "--json"]) == 0
    (failure,) = json.loads(capsys.readouterr().out)["failures"]
    assert failure["cause"].startswith("OSError: [Errno 98] Address already in use")
    assert failure["known"], "no entry of core/report/known_failures.py finds a port that is taken"
    assert failure["known"][0]["advice"]


def test_a_seat_that_is_not_here_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "no-such-seat"]) == 2
    assert "seen no-such-seat" in capsys.readouterr().err
