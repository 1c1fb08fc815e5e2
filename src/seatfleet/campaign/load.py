"""The load client: streams from one seat on this host and writes down what arrived when. It decides nothing.

Timing: ``time.monotonic_ns``; the network is read as raw bytes that are only stamped and kept, and decoded after the
stream has ended, so that parsing costs no measured time. One connection per stream, opened before the start; all
workers of a cell start at one barrier. A measured request is never retried.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import httpx

from .prompts import Prompt

#: A seat silent for this long is hung. Above any honest wait: 8 prefills of 32k tokens queue for about 2 minutes.
SILENCE_S = 300.0
CONNECT_S = 5.0
#: Ends of an answer; "abort" and "error" are ends of something else.
COMPLETE = ("stop", "length", "tool_calls")


@dataclass(frozen=True)
class Target:
    """The seat under load. The key is sent and never recorded."""

    base_url: str
    model: str
    api_key: str | None = field(default=None, repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every request."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}


@dataclass(frozen=True)
class Request:
    """One request as measured; times in nanoseconds of this host's monotonic clock, None where it did not get so far.

    ``chunks`` holds ``(time, tokens or None, kind)`` per stream event that carried text or tokens; ``kind`` is
    reasoning, content, tool_calls, or None for tokens without text. Non-streaming requests have no chunks.
    """

    req_id: str
    prompt_id: str
    prompt_sha256: str
    cache_salt: str
    streaming: bool
    planted_delay_ns: int
    t_send_ns: int
    t_headers_ns: int | None = None
    t_first_delta_ns: int | None = None
    first_delta_kind: str | None = None
    t_last_ns: int | None = None
    chunks: tuple[tuple[int, int | None, str | None], ...] = ()
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    http_status: int | None = None
    error: str | None = None
    text_sha256: str | None = None
    tool_call_ok: bool | None = None
    expected_found: bool | None = None
    server_metrics: Mapping[str, Any] | None = None

    @property
    def ok(self) -> bool:
        """Tell whether the answer is complete: 200, ended by the server for a stated reason, tokens accounted for."""
        complete = self.finish_reason in COMPLETE and bool(self.completion_tokens)
        return self.error is None and self.http_status == 200 and complete

    def as_json(self) -> dict[str, Any]:
        """Return one line of ``requests.jsonl``."""
        return dict(vars(self))


def request_from_json(raw: Mapping[str, Any]) -> Request:
    """Read back one line of ``requests.jsonl``."""
    chunks = tuple((int(t), None if n is None else int(n), kind) for t, n, kind in raw["chunks"])
    return replace(Request(**{**raw, "chunks": ()}), chunks=chunks)


@dataclass(frozen=True)
class CellRun:
    """All requests of one cell, in the order they were sent."""

    t0_mono_ns: int
    t1_mono_ns: int
    t0_utc: str
    requests: tuple[Request, ...]


class SseSplitter:
    """Cuts a byte stream into server-sent events, wherever the network cut it into pieces."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the ``data`` of every event that this piece completes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


@dataclass
class _Answer:
    """What the events of one stream add up to."""

    chunks: list[tuple[int, int | None, str | None]] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tools: dict[int, list[str]] = field(default_factory=dict)
    first: tuple[int, str] | None = None
    finish_reason: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] | None = None
    error: str | None = None
    done: bool = False

    def event(self, t_ns: int, data: bytes) -> None:
        if data == b"[DONE]":
            self.done = True
            return
        try:
            event = json.loads(data)
        except ValueError:
            self.error = f"not JSON: {data[:80]!r}"
            return
        if event.get("error"):
            self.error = f"error in the stream: {json.dumps(event['error'])[:200]}"
        self.usage = event.get("usage") or self.usage
        self.metrics = event.get("metrics") or self.metrics
        for choice in event.get("choices") or ():
            self._choice(t_ns, choice, choice.get("delta") or choice.get("message") or {})

    def _choice(self, t_ns: int, choice: Mapping[str, Any], delta: Mapping[str, Any]) -> None:
        content = delta.get("content") or ""
        # vLLM 0.23 says reasoning_content, later releases say reasoning
        thought = delta.get("reasoning") or delta.get("reasoning_content") or ""
        calls = delta.get("tool_calls") or ()
        kind = "reasoning" if thought else "content" if content else "tool_calls" if calls else None
        self.content.append(content)
        self.reasoning.append(thought)
        for position, call in enumerate(calls):
            parts = self.tools.setdefault(call.get("index", position), ["", ""])
            function = call.get("function") or {}
            parts[0] += function.get("name") or ""
            parts[1] += function.get("arguments") or ""
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        ids = choice.get("token_ids")
        if kind or ids:  # a first event that only names the role is no token
            self.chunks.append((t_ns, None if ids is None else len(ids), kind))
        if kind and self.first is None:
            self.first = (t_ns, kind)

    @property
    def text(self) -> str:
        return "".join(self.content)

    def digest(self) -> str:
        whole = [self.text, "".join(self.reasoning), [self.tools[i] for i in sorted(self.tools)]]
        return hashlib.sha256(json.dumps(whole).encode()).hexdigest()


def tool_calls_ok(prompt: Prompt, calls: Sequence[Sequence[str]]) -> bool:
    """Tell whether every call names an offered tool, with JSON arguments that fit its parameters, and there is one."""
    offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in prompt.tools}
    for name, text in calls:
        parameters = offered.get(name)
        try:
            arguments = json.loads(text)
        except ValueError:
            return False
        if parameters is None or not isinstance(arguments, dict):
            return False
        properties = parameters["properties"]
        if not set(parameters["required"]) <= arguments.keys() or not arguments.keys() <= properties.keys():
            return False
        if any("enum" in properties[key] and value not in properties[key]["enum"] for key, value in arguments.items()):
            return False
    return bool(calls)


def body(
    target: Target,
    prompt: Prompt,
    salt: str | None,
    sampling: Mapping[str, float | int],
    *,
    streaming: bool,
    token_ids: bool,
    chat_template_kwargs: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the JSON of one chat request. Ends are natural: ``ignore_eos`` is never set."""
    content: dict[str, Any] = {
        "model": target.model,
        "messages": list(prompt.messages),
        "max_tokens": prompt.max_tokens,
        **sampling,
    }
    if salt is not None:
        content["cache_salt"] = salt
    if streaming:
        content |= {"stream": True, "stream_options": {"include_usage": True}}
    if token_ids:
        content["return_token_ids"] = True
    if prompt.tools:
        content |= {"tools": list(prompt.tools), "tool_choice": prompt.tool_choice or "auto"}
    if chat_template_kwargs:
        content["chat_template_kwargs"] = dict(chat_template_kwargs)
    return content


@dataclass(frozen=True)
class LoadClient:
    """Sends cells of requests to one seat with one sampling policy."""

    target: Target
    sampling: Mapping[str, float | int]
    chat_template_kwargs: Mapping[str, Any] | None = None
    silence_s: float = SILENCE_S

    async def cell(
        self,
        prompts: Sequence[Prompt],
        concurrency: int,
        *,
        streaming: bool = True,
        token_ids: bool = True,
        planted_delay_s: float = 0.0,
    ) -> CellRun:
        """Run the prompts in order, ``concurrency`` at a time; a worker takes the next when its answer has ended.

        ``planted_delay_s`` is a known slowness inside every measured request, the positive control of the harness.
        """
        queue = iter(prompts)
        done: list[Request] = []
        start = asyncio.Barrier(concurrency + 1)
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(self._client()) for _ in range(concurrency)]
            # open the connections before the clock starts
            await asyncio.gather(*(client.get("/health") for client in clients))

            async def worker(client: httpx.AsyncClient) -> None:
                await start.wait()
                for prompt in queue:
                    done.append(await self._send(client, prompt, streaming, token_ids, planted_delay_s))

            workers = [asyncio.create_task(worker(client)) for client in clients]
            try:
                t0_utc = datetime.now(UTC).isoformat()
                t0 = time.monotonic_ns()
                await start.wait()
                await asyncio.gather(*workers)
            finally:
                for task in workers:
                    task.cancel()
        return CellRun(t0, time.monotonic_ns(), t0_utc, tuple(sorted(done, key=lambda request: request.t_send_ns)))

    def _client(self) -> httpx.AsyncClient:
        timeout = httpx.Timeout(self.silence_s, connect=CONNECT_S)
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
        # trust_env off: no proxy of the environment between client and seat; no TLS on loopback, and a TLS context
        # costs 40 ms per client
        return httpx.AsyncClient(
            base_url=self.target.base_url,
            headers=self.target.headers,
            timeout=timeout,
            limits=limits,
            trust_env=False,
            verify=False,
        )

    async def _send(
        self, client: httpx.AsyncClient, prompt: Prompt, streaming: bool, token_ids: bool, planted_delay_s: float
    ) -> Request:
        # unseeded: a salt that repeats would find the prefix of an earlier repetition in the cache
        salt = uuid.uuid4().hex
        content = body(
            self.target,
            prompt,
            salt,
            self.sampling,
            streaming=streaming,
            token_ids=token_ids,
            chat_template_kwargs=self.chat_template_kwargs,
        )
        request = client.build_request("POST", "/v1/chat/completions", json=content)
        record = Request(
            req_id=uuid.uuid4().hex,
            prompt_id=prompt.id,
            prompt_sha256=prompt.sha256,
            cache_salt=salt,
            streaming=streaming,
            planted_delay_ns=int(planted_delay_s * 1e9),
            t_send_ns=time.monotonic_ns(),
        )
        if planted_delay_s:
            await asyncio.sleep(planted_delay_s)
        pieces: list[tuple[int, bytes]] = []
        status: int | None = None
        t_headers: int | None = None
        error: str | None = None
        try:
            response = await client.send(request, stream=True)
            t_headers, status = time.monotonic_ns(), response.status_code
            try:
                async for piece in response.aiter_raw():
                    pieces.append((time.monotonic_ns(), piece))
            finally:
                await response.aclose()
        except httpx.HTTPError as problem:
            error = f"{type(problem).__name__}: {problem}"
        record = replace(record, t_headers_ns=t_headers, http_status=status, error=error)
        if status != 200:
            detail = b"".join(piece for _, piece in pieces)[:200]
            return record if error else replace(record, error=f"HTTP {status}: {detail!r}")
        return decode_stream(record, prompt, pieces) if streaming else _decode_whole(record, prompt, pieces)


def decode_stream(record: Request, prompt: Prompt, pieces: Sequence[tuple[int, bytes]]) -> Request:
    """Complete a record from the stamped pieces of its stream."""
    answer, splitter = _Answer(), SseSplitter()
    for t_ns, piece in pieces:
        for data in splitter.feed(piece):
            answer.event(t_ns, data)
    cut = None if answer.done else "the stream ended without [DONE]"
    record = replace(record, error=record.error or answer.error or cut)
    return _complete(record, prompt, answer, answer.chunks[-1][0] if answer.chunks else None)


def _decode_whole(record: Request, prompt: Prompt, pieces: Sequence[tuple[int, bytes]]) -> Request:
    answer = _Answer()
    if pieces:
        answer.event(pieces[-1][0], b"".join(piece for _, piece in pieces))
    t_last = pieces[-1][0] if pieces else None
    answer.chunks, answer.first = [], None  # one piece says nothing about when tokens were made
    return _complete(replace(record, error=record.error or answer.error), prompt, answer, t_last)


def _complete(record: Request, prompt: Prompt, answer: _Answer, t_last: int | None) -> Request:
    details = answer.usage.get("prompt_tokens_details") or {}
    first = answer.first or (None, None)
    return replace(
        record,
        t_first_delta_ns=first[0],
        first_delta_kind=first[1],
        t_last_ns=t_last,
        chunks=tuple(answer.chunks),
        prompt_tokens=answer.usage.get("prompt_tokens"),
        completion_tokens=answer.usage.get("completion_tokens"),
        cached_tokens=details.get("cached_tokens"),
        finish_reason=answer.finish_reason,
        text_sha256=answer.digest(),
        tool_call_ok=tool_calls_ok(prompt, [answer.tools[i] for i in sorted(answer.tools)]) if prompt.tools else None,
        expected_found=None if prompt.expect_text is None else prompt.expect_text in answer.text,
        server_metrics=answer.metrics,
    )
