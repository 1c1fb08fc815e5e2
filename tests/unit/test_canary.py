"""The canary: known answers, the seat's golden, garbage, stream against no stream."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from probe_stub import KEY, Answer, FakeHost, StubSeat, clever, manifest_for, speak, words

from seatfleet.clients import evidence
from seatfleet.clients.probe import Options, probe
from seatfleet.clients.probe.canary import compare_tokens
from seatfleet.clients.vllm import Limits, SeatClient
from seatfleet.core.health import probe_report as codes
from seatfleet.core.health.garbage import garbage
from seatfleet.core.health.probe_report import Report

# Nothing hangs here: only a loaded machine could come near them.
PATIENT = Limits(connect=30.0, get=30.0, token=30.0, request=60.0)


@pytest.fixture
def stub() -> Iterator[StubSeat]:
    seat = StubSeat()
    seat.answer = clever
    yield seat
    seat.close()


def run(
    stub: StubSeat, evidence: Path | None, level: str = "identity", *, compiler: bool = True, **changes: Any
) -> Report:
    host = FakeHost()
    host.compiler = compiler
    options = Options(ready_timeout_s=0.5, poll_s=0.05, quiet_s=0.1, settle_s=0.3, evidence=evidence)
    manifest = manifest_for(stub, **{"canary": "auto", **changes})
    with SeatClient(manifest.base_url, KEY, PATIENT) as client:
        return probe(manifest, client, host, options, level)


def statuses(report: Report) -> dict[str, str]:
    return {check.id: check.status for check in report.checks if check.id.startswith("canary")}


def on(stub: StubSeat, words_in_prompt: str, answer: Callable[[dict[str, Any]], Answer]) -> None:
    """Change the answer to one prompt only."""
    before = stub.answer
    stub.answer = lambda body: (answer if words_in_prompt in body["messages"][-1]["content"] else before)(body)


def test_a_model_that_can_answer(stub: StubSeat, tmp_path: Path) -> None:
    report = run(stub, tmp_path, "acceptance")
    assert (report.exit, report.warnings) == (codes.EXIT_READY, [])
    assert set(statuses(report).values()) == {"ok"}
    assert {
        "canary.copy",
        "canary.product",
        "canary.capital",
        "canary.golden",
        "canary.stream",
        "canary.garbage",
    } == set(statuses(report))


def test_a_test_model_that_cannot_is_held_to_its_golden_only(stub: StubSeat, tmp_path: Path) -> None:
    stub.answer = words
    first, second = (run(stub, tmp_path, "acceptance") for _ in range(2))
    assert (first.exit, second.exit) == (codes.EXIT_READY, codes.EXIT_READY)
    assert statuses(second) == {
        "canary.copy": "warn",
        "canary.golden": "ok",
        "canary.product": "warn",
        "canary.capital": "warn",
        "canary.stream": "ok",
        "canary.garbage": "not_checked",
    }


def test_answers_are_demanded_where_the_manifest_says_so(stub: StubSeat, tmp_path: Path) -> None:
    stub.answer = words
    report = run(stub, tmp_path, canary="answers")
    assert report.exit == codes.EXIT_CANARY
    assert str(report.cause).startswith("canary.copy: asked")


def test_a_model_that_once_could_answer_must_go_on_to(stub: StubSeat, tmp_path: Path) -> None:
    assert run(stub, tmp_path).exit == codes.EXIT_READY
    on(stub, "Repeat exactly", lambda body: speak("000000000000", body))
    assert run(stub, tmp_path).exit == codes.EXIT_CANARY


def test_golden_mode_asks_no_questions(stub: StubSeat, tmp_path: Path) -> None:
    report = run(stub, tmp_path, canary="golden")
    assert statuses(report) == {"canary.golden": "ok"}


def test_a_full_disk_keeps_nothing_and_says_nothing_against_the_seat(
    stub: StubSeat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(evidence, "write_atomic", full)
    report = run(stub, tmp_path, "acceptance", canary="golden")
    assert (report.exit, list(tmp_path.iterdir())) == (codes.EXIT_READY, [])
    assert "golden.json was not kept: [Errno 28]" in capsys.readouterr().err


def test_the_golden_is_kept_and_a_change_is_found(stub: StubSeat, tmp_path: Path) -> None:
    assert run(stub, tmp_path).exit == codes.EXIT_READY
    assert json.loads((tmp_path / "golden.json").read_text())["tokens"]
    on(stub, "months", lambda body: speak("January, February, Marvh, April, May, June, July", body))
    report = run(stub, tmp_path)
    assert report.exit == codes.EXIT_CANARY
    assert "token 2 of 10" in str(report.cause)


def test_a_change_without_a_clear_lead_is_legal(stub: StubSeat, tmp_path: Path) -> None:
    near = [5.0, 5.0, 0.1, 5.0, 5.0]
    on(stub, "months", lambda body: speak("a b c d e", body, gaps=near))
    assert run(stub, tmp_path).exit == codes.EXIT_READY
    on(stub, "months", lambda body: speak("a b X Y Z", body, gaps=near))
    assert run(stub, tmp_path).exit == codes.EXIT_READY


def test_another_release_gets_a_golden_of_its_own_and_says_that_it_differs(stub: StubSeat, tmp_path: Path) -> None:
    run(stub, tmp_path)
    on(stub, "months", lambda body: speak("Monday, Tuesday", body))
    report = run(stub, tmp_path, release_id="0.32.0-ffffffffffff")
    assert report.exit == codes.EXIT_READY
    assert any("answers otherwise than the one before" in warning for warning in report.warnings)
    assert run(stub, tmp_path, release_id="0.32.0-ffffffffffff").warnings == []


def test_without_a_directory_nothing_is_compared(stub: StubSeat) -> None:
    assert statuses(run(stub, None))["canary.golden"] == "not_checked"


def test_where_log_probabilities_would_kill_the_engine_none_are_asked(stub: StubSeat, tmp_path: Path) -> None:
    """A CPU engine on a host without g++ died of the probe: InductorError, InvalidCxxCompiler."""
    for _ in range(2):
        assert run(stub, tmp_path, "acceptance", compiler=False).exit == codes.EXIT_READY
    assert not any("logprobs" in body for body in stub.prompts)
    on(stub, "months", lambda body: speak("January, February, Marvh, April, May, June, July", body))
    report = run(stub, tmp_path, compiler=False)
    assert report.exit == codes.EXIT_CANARY
    assert "token 2 of 10" in str(report.cause)


def test_without_leads_only_what_two_runs_agreed_on_counts(stub: StubSeat, tmp_path: Path) -> None:
    texts = iter(["a b c d", "a b X Y"])
    on(stub, "months", lambda body: speak(next(texts), body))
    run(stub, tmp_path, compiler=False)
    on(stub, "months", lambda body: speak("a b Q", body))
    assert run(stub, tmp_path, compiler=False).exit == codes.EXIT_READY
    on(stub, "months", lambda body: speak("a Z", body))
    assert run(stub, tmp_path, compiler=False).exit == codes.EXIT_CANARY


def test_nan_log_probabilities(stub: StubSeat, tmp_path: Path) -> None:
    on(stub, "months", lambda body: speak("January, February", body, logprob=float("nan")))
    report = run(stub, tmp_path)
    assert report.exit == codes.EXIT_CANARY
    assert "NaN" in str(report.cause)


def test_garbage_in_a_longer_text(stub: StubSeat, tmp_path: Path) -> None:
    on(stub, "essay", lambda body: Answer(["!" for _ in range(body["max_tokens"])]))
    report = run(stub, tmp_path, "acceptance")
    assert report.exit == codes.EXIT_CANARY
    assert "one character 200 times in a row" in str(report.cause)


def test_a_stream_put_together_wrongly(stub: StubSeat, tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> Answer:
        made = speak("one two three", body)
        if body.get("stream"):
            made.shown = ["one ", "two "]
        return made

    on(stub, "integers from 2801", answer)
    report = run(stub, tmp_path, "acceptance")
    assert report.exit == codes.EXIT_CANARY
    assert "the same tokens, but 'one two ' streamed" in str(report.cause)


def test_two_runs_that_differ_are_a_warning(stub: StubSeat, tmp_path: Path) -> None:
    on(stub, "integers from 2801", lambda body: speak("a b" if body.get("stream") else "a c", body))
    report = run(stub, tmp_path, "acceptance")
    assert report.exit == codes.EXIT_READY
    assert statuses(report)["canary.stream"] == "warn"


@pytest.mark.parametrize(
    ("old", "leads", "new", "position"),
    [
        ([1, 2, 3], [1.0, 1.0, 1.0], [1, 2, 3], None),
        ([1, 2, 3], [1.0, 1.0, 1.0], [1, 9, 3], 1),
        ([1, 2, 3], [1.0, 0.2, 1.0], [1, 9, 9], None),
        ([1, 2, 3], [1.0, None, 1.0], [1, 9, 3], None),
        ([1, 2, 3], [], [9, 2, 3], None),
        ([], [], [1], None),
    ],
)
def test_compare_tokens(old: list[int], leads: list[float | None], new: list[int], position: int | None) -> None:
    assert compare_tokens(old, leads, new) == position


GOOD = (
    "The night train leaves at nine. Nobody speaks; a boy draws the lamps of each station on the back of his ticket. "
)
FALLING = list(range(60))


@pytest.mark.parametrize(
    ("text", "tokens", "logprobs", "words_of_it"),
    [
        (GOOD, FALLING, [-0.5] * 60, []),
        ("", [], [], ["empty text"]),
        ("  \n", [5], [], ["empty text"]),
        ("!" * 30, FALLING, [], ["one character 30 times"]),
        (GOOD, [7] * 40, [], ["one token is 40 of 40", "the same 8 tokens"]),
        (GOOD, list(range(10)) * 12, [], ["the same 8 tokens"]),
        (GOOD + "\N{REPLACEMENT CHARACTER}" * 5, FALLING, [], ["5 replacement characters"]),
        ("abc " * 200, FALLING, [], ["compresses to"]),
        (GOOD, FALLING, [-0.1, float("nan")], ["NaN"]),
        (GOOD, FALLING, [-6.0] * 60, ["mean log probability -6.0"]),
        (" " * 40 + GOOD, FALLING, [], []),
    ],
)
def test_garbage(text: str, tokens: list[int], logprobs: list[float], words_of_it: list[str]) -> None:
    found = garbage(text, tokens, logprobs)
    assert len(found) == len(words_of_it)
    for wanted, seen in zip(words_of_it, found, strict=True):
        assert wanted in seen


def test_counting_may_repeat() -> None:
    assert garbage("1, 2, " * 100, list(range(10)) * 12, repeats=True) == []
