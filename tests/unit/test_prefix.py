"""Warm prefix, tool calls, prompt lengths, and the look that generates nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from probe_stub import KEY, Answer, FakeHost, StubSeat, clever, manifest_for, speak, words

from seatfleet.clients.probe import Options, probe
from seatfleet.clients.probe.prefix import expected_hits
from seatfleet.clients.vllm import Limits, SeatClient
from seatfleet.core.health import probe_report as codes
from seatfleet.core.health.probe_report import Report
from seatfleet.core.seat.manifest import Manifest

# Nothing hangs here: only a loaded machine could come near them.
PATIENT = Limits(connect=30.0, get=30.0, token=30.0, request=60.0)


@pytest.fixture
def stub() -> Iterator[StubSeat]:
    seat = StubSeat()
    seat.answer = clever
    seat.max_model_len = 8192
    seat.rates = None
    seat.cache_config["enable_prefix_caching"] = "True"
    yield seat
    seat.close()


def manifest(stub: StubSeat, **changes: Any) -> Manifest:
    base = {"max_model_len": 8192, "prefix_caching": True, "speculative": None, "declared": {}, "acceptance": None}
    return manifest_for(stub, **{**base, **changes})


def run(stub: StubSeat, level: str = "prefix", host: FakeHost | None = None, **changes: Any) -> Report:
    wanted = manifest(stub, **changes)
    options = Options(ready_timeout_s=0.5, poll_s=0.05, quiet_s=0.1, settle_s=0.3)
    with SeatClient(wanted.base_url, KEY, PATIENT) as client:
        return probe(wanted, client, host or FakeHost(), options, level)


def check(report: Report, name: str) -> tuple[str, object]:
    return next((one.status, one.observed) for one in report.checks if one.id == name)


def test_a_warm_prefix(stub: StubSeat) -> None:
    stub.ttft = lambda warm: 0.0 if warm else 0.2
    report = run(stub)
    assert report.exit == codes.EXIT_READY
    status, hits = check(report, "prefix.hits")
    assert status == "ok"
    assert isinstance(hits, int)
    assert hits >= 4096 - 16
    # How fast the warm one was is a matter of the machine; the cold one cannot have been faster.
    assert report.ttft_s["cold"] >= 0.2
    assert report.ttft_s["ratio"] == pytest.approx(report.ttft_s["cold"] / report.ttft_s["warm"], rel=0.2)


@pytest.mark.parametrize("hybrid", [False, True])
def test_no_hits(stub: StubSeat, hybrid: bool) -> None:
    stub.drop_hits = True
    if hybrid:
        stub.cache_config["mamba_cache_mode"] = "align"
    report = run(stub)
    assert report.exit == codes.EXIT_PREFIX
    assert "0 of" in str(report.cause)
    assert ("hybrid model: the release lacks" in str(report.cause)) == hybrid


def test_a_poisoned_cache_gives_another_answer(stub: StubSeat) -> None:
    """A hit that restores less state than it claims: fluent, status 200, wrong."""
    stub.warm_answer = lambda body: speak("The harbour was closed that year and nobody came " * 20, body)
    report = run(stub)
    assert report.exit == codes.EXIT_PREFIX
    assert "twice: the cache restores another state" in str(report.cause)


def test_a_difference_that_does_not_come_back_is_a_warning(stub: StubSeat) -> None:
    def once(body: dict[str, Any]) -> Answer:
        stub.warm_answer = None
        return speak("Something else", body)

    stub.warm_answer = once
    report = run(stub)
    assert report.exit == codes.EXIT_READY
    assert any("differed once" in warning for warning in report.warnings)


def test_without_a_clear_lead_another_answer_is_legal(stub: StubSeat) -> None:
    near = [0.05] * 200
    stub.answer = lambda body: Answer(clever(body).pieces, "stop", gaps=near)
    stub.warm_answer = lambda body: speak("Something else entirely", body, gaps=near)
    assert run(stub).exit == codes.EXIT_READY


def test_caching_that_was_to_be_off(stub: StubSeat) -> None:
    report = run(stub, prefix_caching=False)
    assert report.exit == codes.EXIT_PREFIX
    assert "but the seat has prefix_caching: false" in str(report.cause)
    stub.cache_config["enable_prefix_caching"] = "False"
    assert run(stub, prefix_caching=False).exit == codes.EXIT_READY


def test_a_context_shorter_than_a_block_is_not_checked(stub: StubSeat) -> None:
    stub.cache_config["effective_attention_block_size"] = "9000"
    assert check(run(stub), "prefix")[0] == "not_checked"


def test_others_on_the_seat_make_hits_uncountable(stub: StubSeat) -> None:
    def somebody_else(_: int) -> None:
        stub.counts[0]["queries"] += 500

    stub.after_generation = somebody_else
    assert check(run(stub), "prefix.hits")[0] == "not_checked"


@pytest.mark.parametrize(
    ("tokens", "block", "method", "hits"),
    [
        (716, 32, None, 704),
        (716, 32, "draft_model", 704),
        (704, 32, None, 672),
        (716, 32, "mtp", 672),
        (30, 32, None, 0),
    ],
)
def test_expected_hits(tokens: int, block: int, method: str | None, hits: int) -> None:
    """704 of 716 with blocks of 32 is what a real server gave, with and without a draft model."""
    assert expected_hits(tokens, block, method) == hits


TOOLS = {"tool-call-parser": "hermes"}


def test_tool_calls(stub: StubSeat) -> None:
    assert check(run(stub, declared=TOOLS), "tool_call") == ("ok", 2)
    assert check(run(stub), "tool_call")[0] == "not_checked"


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        ([], "no tool call"),
        ([("get_weather", "")], "arguments are not JSON: ''"),
        ([("get_weather", "{}")], "arguments without a city"),
        ([("get_weather", '{"city": ""}')], "arguments without a city"),
        ([("get_weather", '{"city": ')], "arguments are not JSON"),
        ([("get_time", '{"city": "Paris"}')], "a call of 'get_time'"),
    ],
)
def test_broken_tool_calls(stub: StubSeat, calls: list[tuple[str, str]], words: str) -> None:
    stub.answer = lambda body: Answer(["x "], "stop", tool_calls=calls) if body.get("tools") else clever(body)
    report = run(stub, declared=TOOLS)
    assert report.exit == codes.EXIT_TOOLCALL
    assert words in str(report.cause)


def test_a_tool_call_that_breaks_only_when_streamed(stub: StubSeat) -> None:
    def answer(body: dict[str, Any]) -> Answer:
        if body.get("tools"):
            arguments = "" if body.get("stream") else '{"city": "Paris"}'
            return Answer([], "tool_calls", tool_calls=[("get_weather", arguments)])
        return clever(body)

    stub.answer = answer
    report = run(stub, declared=TOOLS)
    assert report.exit == codes.EXIT_TOOLCALL
    assert "attempt 1, streamed" in str(report.cause)


def test_prompt_lengths(stub: StubSeat) -> None:
    status, lengths = check(run(stub), "prompt_lengths")
    assert status == "ok"
    assert isinstance(lengths, list)
    assert len(lengths) == 3
    assert 1500 < lengths[-1] < 2500


def recalling(forgets_at: int) -> Callable[[dict[str, Any]], Answer]:
    """Answer with the code words of a prompt, up to a length."""

    def answer(body: dict[str, Any]) -> Answer:
        text = body["messages"][-1]["content"]
        found = re.findall(r"A code word is (\w+)\.", text) if len(text.split()) < forgets_at else []
        return speak(", ".join(found), body) if found else words(body)

    return answer


@pytest.mark.parametrize(
    ("forgets_at", "status", "seen"),
    [(10**9, "ok", [3, 3, 3]), (30_000, "fail", [3, 3, 0]), (1, "not_checked", None)],
)
def test_code_words_are_read_at_every_length(
    stub: StubSeat, forgets_at: int, status: str, seen: list[int] | None
) -> None:
    stub.max_model_len = 80_000
    stub.cache_config["kv_cache_size_tokens"] = "200000"
    stub.answer = recalling(forgets_at)
    report = run(stub, max_model_len=80_000)
    assert check(report, "code_words") == (status, seen)
    assert check(report, "prompt_lengths")[1][-1] > 65_000  # type: ignore[index]
    if status == "fail":
        assert report.exit == codes.EXIT_CANARY
        assert "but 0 of 3 at 65,5" in str(report.cause)


def test_a_crash_at_a_longer_prompt(stub: StubSeat) -> None:
    def crash(_: int) -> None:
        if len(stub.prompts[-1]["messages"][0]["content"]) > 8000:
            stub.stream_error = "illegal memory access"

    stub.before_generation = crash
    report = run(stub)
    assert report.exit == codes.EXIT_NOT_READY
    assert "illegal memory access" in str(report.cause)


# -- passive


def test_passive_generates_nothing(stub: StubSeat) -> None:
    report = run(stub, "passive")
    assert (report.exit, stub.generations) == (codes.EXIT_READY, 0)
    assert report.vllm_version == "0.32.0"


def test_passive_finds_a_hung_engine_by_its_counters(stub: StubSeat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seatfleet.clients.probe.passive._PROGRESS_LIMIT_S", 0.1)
    stub.running = 2
    report = run(stub, "passive")
    assert report.exit == codes.EXIT_NOT_READY
    assert "2 requests are running and no counter moved" in str(report.cause)


def test_passive_leaves_a_working_engine_alone(stub: StubSeat) -> None:
    stub.running = 2

    def move(text: str) -> str:
        stub.counts[0]["iterations"] += 1
        return text

    stub.metrics_text = move
    assert run(stub, "passive").exit == codes.EXIT_READY


@pytest.mark.parametrize(
    ("what", "words"),
    [("unit", "failed"), ("owner", "nobody listens"), ("dead", "503"), ("model", "serves ['other']")],
)
def test_passive_findings(stub: StubSeat, what: str, words: str) -> None:
    host = FakeHost()
    if what == "unit":
        host.change(active="failed", sub="failed")
    elif what == "owner":
        host.owners = []
    elif what == "dead":
        stub.fail["/health"] = (503, "")
    else:
        stub.names = ["other"]
    report = run(stub, "passive", host)
    assert report.exit in (codes.EXIT_NOT_READY, codes.EXIT_IDENTITY)
    assert words in str(report.cause)


# -- what the planner says


def test_lengths_come_from_the_planner(stub: StubSeat) -> None:
    """The engine names the block of one kind of layers; a hit ends where the blocks of all kinds do."""
    stub.max_model_len = 20_000
    stub.cache_config["kv_cache_size_tokens"] = "200000"
    report = run(stub, max_model_len=20_000)
    status, planned = check(report, "prefix.planned")
    assert status == "ok"
    assert isinstance(planned, int)
    assert planned % 16 == 0
    assert planned > 16
    documents = [body for body in stub.prompts if "Summarize this" in body["messages"][-1]["content"]]
    assert max(map(stub.count, documents)) > 2 * planned
    (found,) = (one for one in report.checks if one.id == "prefix.hits")
    assert int(str(found.expected).removeprefix(">= ")) % planned == 0


def test_a_model_that_is_not_planned_is_said(stub: StubSeat) -> None:
    assert check(run(stub, model_path=None), "prefix.planned")[0] == "not_checked"


# -- the budget of heavy levels


def test_a_spent_budget_refuses_heavy_levels_of_this_start_only(stub: StubSeat, tmp_path: Path) -> None:
    def again() -> Report:
        wanted = manifest(stub)
        options = Options(ready_timeout_s=0.5, poll_s=0.05, quiet_s=0.1, settle_s=0.3, evidence=tmp_path)
        with SeatClient(wanted.base_url, KEY, PATIENT) as client:
            return probe(wanted, client, FakeHost(), options, "prefix")

    assert again().exit == codes.EXIT_READY
    file = tmp_path / "budget.json"
    (first,) = json.loads(file.read_text())["runs"]
    assert first["tokens"] > 5_000
    file.write_text(json.dumps({"runs": [{**first, "tokens": 300_000}]}))
    before = stub.generations
    report = again()
    assert (report.exit, str(report.cause)[:7]) == (codes.EXIT_BUSY, "budget:")
    assert stub.generations - before < 5  # READY and canary only
    file.write_text(json.dumps({"runs": [{**first, "tokens": 300_000, "at": first["at"] - 3700}]}))
    assert again().exit == codes.EXIT_READY
    file.write_text(json.dumps({"runs": [{**first, "tokens": 300_000}]}))
    stub.start_time += 60
    assert again().exit == codes.EXIT_READY
