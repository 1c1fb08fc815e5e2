from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import pytest
from campaign_fake import MODEL, Behaviour, FakeVllm
from hypothesis import given
from hypothesis import strategies as st

from seatfleet.campaign.load import (
    CellRun,
    LoadClient,
    Request,
    SseSplitter,
    Target,
    body,
    decode_stream,
    request_from_json,
    tool_calls_ok,
)
from seatfleet.campaign.prompts import Prompt, load_frozen

PROMPTS = [Prompt(f"p{i}", ({"role": "user", "content": f"number {i}"},), 9) for i in range(12)]


def cell(behaviour: Behaviour, concurrency: int = 1, prompts: list[Prompt] = PROMPTS, **options: object) -> CellRun:
    with FakeVllm(behaviour) as fake:
        client = LoadClient(Target(fake.url, MODEL, behaviour.api_key), {"temperature": 0.0}, silence_s=60)
        run = asyncio.run(client.cell(prompts, concurrency, **options))
        cell.seen = fake.seen
        return run


def test_a_stream_becomes_a_complete_record():
    run = cell(Behaviour(k=2, accepted=(2,)))
    assert len(run.requests) == 12 and all(request.ok for request in run.requests)
    one = run.requests[0]
    assert (one.completion_tokens, one.finish_reason, one.first_delta_kind) == (9, "length", "content")
    assert [tokens for _, tokens, _ in one.chunks] == [1, 3, 3, 2]
    assert one.t_send_ns < one.t_headers_ns <= one.t_first_delta_ns < one.t_last_ns <= run.t1_mono_ns
    assert one.t_first_delta_ns == one.chunks[0][0] and one.t_last_ns == one.chunks[-1][0]
    assert request_from_json(json.loads(json.dumps(one.as_json()))) == one


def test_every_request_has_its_own_salt_and_the_same_tokens_in_every_run():
    first, second = cell(Behaviour()), cell(Behaviour())
    salts = [request.cache_salt for run in (first, second) for request in run.requests]
    assert len(set(salts)) == 24
    assert [r.prompt_sha256 for r in first.requests] == [r.prompt_sha256 for r in second.requests]
    assert {request["cache_salt"] for request in cell.seen} == set(salts[12:])


def test_a_request_says_what_the_policy_says_and_never_ignores_the_end():
    cell(Behaviour(), token_ids=False)
    sent = cell.seen[0]
    assert sent["temperature"] == 0.0 and sent["stream_options"] == {"include_usage": True}
    assert "ignore_eos" not in sent and "min_tokens" not in sent and "return_token_ids" not in sent
    tool = load_frozen("tool").prompts[0]
    content = body(
        Target("http://x", "m"), tool, "s", {"temperature": 1.0}, streaming=False, token_ids=True,
        chat_template_kwargs={"enable_thinking": False},
    )  # fmt: skip
    assert content["tool_choice"] == "auto" and len(content["tools"]) == 6 and "stream" not in content
    assert content["chat_template_kwargs"] == {"enable_thinking": False} and content["return_token_ids"]


def test_the_first_delta_of_any_kind_is_the_first_token():
    run = cell(Behaviour(reasoning=True))
    assert all(request.first_delta_kind == "reasoning" for request in run.requests)
    assert all(request.t_first_delta_ns == request.chunks[0][0] for request in run.requests)


def test_workers_start_together_and_run_at_once():
    run = cell(Behaviour(ttft_s=0.5), concurrency=6)
    first_six = [request.t_send_ns for request in run.requests[:6]]
    # No clock decides here: the last of them was sent before anybody had an answer.
    assert max(first_six) < min(request.t_last_ns for request in run.requests)


def test_concurrency_is_a_limit():
    run = cell(Behaviour(), concurrency=3)
    events = sorted([(r.t_send_ns, 1) for r in run.requests] + [(r.t_last_ns, -1) for r in run.requests])
    level = peak = 0
    for _, change in events:
        level += change
        peak = max(peak, level)
    assert peak == 3


def test_a_planted_delay_is_inside_the_measured_time():
    plain, late = cell(Behaviour()), cell(Behaviour(), planted_delay_s=0.03)
    assert all(r.t_headers_ns - r.t_send_ns >= 0.03e9 for r in late.requests)
    assert late.requests[0].planted_delay_ns == 30_000_000 and plain.requests[0].planted_delay_ns == 0


def test_an_answer_that_is_not_streamed_has_no_chunks_but_all_totals():
    run = cell(Behaviour(), streaming=False)
    one = run.requests[0]
    assert one.ok and one.chunks == () and one.t_first_delta_ns is None and one.t_last_ns > one.t_send_ns
    assert one.completion_tokens == 9


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        (Behaviour(status=500), "HTTP 500"),
        (Behaviour(cut_after=3), "peer closed connection"),
        (Behaviour(error_event=True), "error in the stream"),
        (Behaviour(finish_reason=""), None),
        (Behaviour(finish_reason="abort"), None),
    ],
)
def test_a_failed_request_is_recorded_and_not_repeated(behaviour: Behaviour, message: str | None):
    run = cell(behaviour, prompts=PROMPTS[:2])
    assert len(run.requests) == 2 == len(cell.seen)
    assert not any(request.ok for request in run.requests)
    if message:
        assert message in run.requests[0].error


def test_the_key_is_sent_and_never_recorded():
    run = cell(Behaviour(api_key="sk-very-secret"), prompts=PROMPTS[:1])
    assert run.requests[0].ok and cell.seen[0]["authorization"] == "Bearer sk-very-secret"
    assert "very-secret" not in json.dumps([r.as_json() for r in run.requests]) + repr(Target("u", "m", "very-secret"))


def test_a_silent_seat_is_an_error_not_a_wait_for_ever():
    with FakeVllm(Behaviour(ttft_s=60.0)) as fake:
        client = LoadClient(Target(fake.url, MODEL), {}, silence_s=0.2)
        run = asyncio.run(client.cell(PROMPTS[:1], 1))
    assert "ReadTimeout" in run.requests[0].error and not run.requests[0].ok


EVENTS = [
    {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
    {"choices": [{"delta": {"content": "Grüße"}, "token_ids": [1, 2]}]},
    {"choices": [{"delta": {"content": ""}, "token_ids": [3]}]},
    {"choices": [{"delta": {}, "finish_reason": "stop", "token_ids": []}]},
    {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}},
]
STREAM = (
    b"".join(b"data: " + json.dumps(e, ensure_ascii=False).encode() + b"\r\n\r\n" for e in EVENTS) + b"data: [DONE]\n\n"
)
EMPTY = Request("r", "p", "s", "salt", True, 0, 0, http_status=200)


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_where_the_network_cuts_the_stream_does_not_matter(cuts: list[int]):
    ends = [0, *sorted(cuts), len(STREAM)]
    pieces = [(t, STREAM[a:b]) for t, (a, b) in enumerate(pairwise(ends))]
    record = decode_stream(EMPTY, PROMPTS[0], pieces)
    assert record.error is None and record.finish_reason == "stop" and record.completion_tokens == 3
    assert [(tokens, kind) for _, tokens, kind in record.chunks] == [(2, "content"), (1, None)]
    assert record.text_sha256 == decode_stream(EMPTY, PROMPTS[0], [(0, STREAM)]).text_sha256


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (STREAM.replace(b"data: [DONE]", b": ping"), "ended without"),
        (STREAM.replace(b'{"choices": [],', b"{oops"), "not JSON"),
        (b"", "ended without"),
    ],
)
def test_a_damaged_stream_is_an_error(stream: bytes, message: str):
    assert message in decode_stream(EMPTY, PROMPTS[0], [(0, stream)] if stream else []).error


def test_the_splitter_ignores_what_is_not_data():
    assert list(SseSplitter().feed(b": comment\nevent: x\ndata: 1\n\ndata:2\nda")) == [b"1", b"2"]


GOOD = {"host": "fv-ml1", "seat": "flash-next", "level": "ready"}


@pytest.mark.parametrize(
    ("calls", "ok"),
    [
        ([("probe_seat", json.dumps(GOOD))], True),
        ([("probe_seat", json.dumps(GOOD))] * 2, True),
        ([], False),
        ([("probe_seat", "{")], False),
        ([("probe_seat", "[]")], False),
        ([("probe_seat", json.dumps({**GOOD, "host": "elsewhere"}))], False),
        ([("probe_seat", json.dumps({**GOOD, "extra": 1}))], False),
        ([("probe_seat", json.dumps({"host": "fv-ml1"}))], False),
        ([("rm_rf", "{}")], False),
        ([("probe_seat", json.dumps(GOOD)), ("probe_seat", "")], False),
    ],
)
def test_tool_calls_are_checked_against_what_was_offered(calls: list[tuple[str, str]], ok: bool):
    assert tool_calls_ok(load_frozen("tool").prompts[0], calls) is ok


def test_tool_calls_of_a_stream_are_put_together():
    name, text = "probe_seat", json.dumps(GOOD)
    parts = [
        {"index": 0, "function": {"name": name, "arguments": text[:5]}},
        {"index": 0, "function": {"arguments": text[5:]}},
    ]
    events = [{"choices": [{"delta": {"tool_calls": [part]}}]} for part in parts]
    stream = b"".join(b"data: " + json.dumps(e).encode() + b"\n\n" for e in events) + b"data: [DONE]\n\n"
    record = decode_stream(EMPTY, load_frozen("tool").prompts[0], [(7, stream)])
    assert record.tool_call_ok is True and record.first_delta_kind == "tool_calls"
