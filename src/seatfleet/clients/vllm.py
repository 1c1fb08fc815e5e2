"""HTTP client of one seat: vLLM's OpenAI-compatible server, present from 0.23 to 0.33 unless noted.

Every failure is a :class:`SeatError` with a :class:`Kind`, so that callers can tell a wrong key from a hung engine.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Any, Self

import httpx

from ..core.health.metrics import MetricsError, Page, parse


class Kind(Enum):
    """Why a request failed."""

    REFUSED = "connection refused"
    CONNECT_TIMEOUT = "no connection in time"
    TIMEOUT = "no answer in time"
    UNAUTHORIZED = "401: key missing or wrong"
    FORBIDDEN = "403: key known, not allowed"
    NOT_FOUND = "404: no such model or path"
    BAD_REQUEST = "request refused"
    TOO_MANY = "429: too many requests"
    UNAVAILABLE = "503: not available"
    SERVER_ERROR = "server error"
    CUT = "answer cut off"
    NOT_JSON = "answer is not JSON"
    MALFORMED = "answer lacks required fields"


#: Worth another attempt: the server is not there yet, or asked to come back.
TRANSIENT = frozenset({Kind.REFUSED, Kind.CONNECT_TIMEOUT, Kind.UNAVAILABLE, Kind.TOO_MANY})
_BY_STATUS = {
    401: Kind.UNAUTHORIZED,
    403: Kind.FORBIDDEN,
    404: Kind.NOT_FOUND,
    429: Kind.TOO_MANY,
    503: Kind.UNAVAILABLE,
}


class SeatError(Exception):
    """A request to a seat failed. ``status`` is the HTTP status when there was one."""

    def __init__(self, kind: Kind, what: str, detail: str = "", status: int | None = None) -> None:
        self.kind = kind
        self.what = what
        self.detail = detail
        self.status = status
        super().__init__(f"{what}: {kind.value}" + (f" ({detail})" if detail else ""))


@dataclass(frozen=True)
class Limits:
    """Time limits in seconds. ``token`` bounds the wait for the first token and between two chunks."""

    connect: float = 2.0
    get: float = 5.0
    token: float = 60.0
    request: float = 120.0


@dataclass(frozen=True)
class ModelCard:
    """One entry of ``/v1/models``."""

    id: str
    max_model_len: int | None
    root: str | None


@dataclass(frozen=True)
class Chunk:
    """One piece of a stream: seconds since the request was sent, and tokens in it where the server says so."""

    at_s: float
    tokens: int | None


@dataclass(frozen=True)
class Completion:
    """One chat answer, streamed or not."""

    model: str
    text: str
    reasoning: str
    tool_calls: tuple[tuple[str, str], ...]  # (name, arguments as sent)
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    token_ids: tuple[int, ...]
    logprobs: tuple[tuple[float, float | None], ...]  # chosen token, and its distance to the runner-up, in nats
    ttft_s: float | None = None
    total_s: float = 0.0
    chunks: tuple[Chunk, ...] = ()


@dataclass
class _Draft:
    """A completion being put together from chunks."""

    model: str = ""
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tools: dict[int, list[str]] = field(default_factory=dict)
    finish_reason: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[tuple[float, float | None]] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    ttft_s: float | None = None

    def add(self, event: Mapping[str, Any], at_s: float) -> None:
        self.model = event.get("model") or self.model
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices") or ():
            self.choice(choice, choice.get("delta") or choice.get("message") or {}, at_s)

    def choice(self, choice: Mapping[str, Any], message: Mapping[str, Any], at_s: float) -> None:
        content = message.get("content") or ""
        # 0.23 says reasoning_content, later releases reasoning
        thought = message.get("reasoning") or message.get("reasoning_content") or ""
        tools = message.get("tool_calls") or ()
        self.text.append(content)
        self.reasoning.append(thought)
        for position, tool in enumerate(tools):
            call = self.tools.setdefault(tool.get("index", position), ["", ""])
            function = tool.get("function") or {}
            call[0] += function.get("name") or ""
            call[1] += function.get("arguments") or ""
        ids = choice.get("token_ids")
        self.token_ids += ids or ()
        self.logprobs += _logprobs(choice.get("logprobs"))
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        if content or thought or tools or ids:  # the first chunk carries only the role: no token yet
            if self.ttft_s is None:
                self.ttft_s = at_s
            self.chunks.append(Chunk(at_s, len(ids) if ids is not None else None))

    def completion(self, total_s: float) -> Completion:
        details = self.usage.get("prompt_tokens_details") or {}
        return Completion(
            model=self.model,
            text="".join(self.text),
            reasoning="".join(self.reasoning),
            tool_calls=tuple((name, arguments) for _, (name, arguments) in sorted(self.tools.items())),
            finish_reason=self.finish_reason,
            prompt_tokens=self.usage.get("prompt_tokens") or 0,
            completion_tokens=self.usage.get("completion_tokens") or 0,
            cached_tokens=details.get("cached_tokens"),
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            ttft_s=self.ttft_s,
            total_s=total_s,
            chunks=tuple(self.chunks),
        )


def _logprobs(block: Mapping[str, Any] | None) -> Iterator[tuple[float, float | None]]:
    for entry in (block or {}).get("content") or ():
        chosen = entry.get("logprob")
        others = sorted((top["logprob"] for top in entry.get("top_logprobs") or ()), reverse=True)
        gap = others[0] - others[1] if len(others) > 1 else None
        yield (float("nan") if chosen is None else float(chosen)), gap


class SeatClient:
    """Talks to one seat. Close it, or use it as a context manager.

    Raises:
        SeatError: ``base_url`` is no URL.
    """

    def __init__(self, base_url: str, api_key: str | None, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        #: Prompt and answer tokens of every answer so far.
        self.spent = 0
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # verify=False: building a TLS context costs 40 ms CPU and a seat is plain HTTP on the host itself;
        # trust_env=False: an http_proxy of the environment must not see requests to the seat.
        try:
            self._http = httpx.Client(
                base_url=base_url, headers=headers, verify=base_url.startswith("https:"), trust_env=False
            )
        except httpx.InvalidURL as error:
            raise SeatError(Kind.BAD_REQUEST, base_url, f"no URL: {error}") from error

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def health(self) -> None:
        """Ask ``/health``: 503 only when the engine is known to be dead; a hung engine still answers 200."""
        self._get("/health")

    def models(self) -> list[ModelCard]:
        """Return the served names."""
        answer = self._json("GET /v1/models", self._get("/v1/models"))
        try:
            return [ModelCard(card["id"], card.get("max_model_len"), card.get("root")) for card in answer["data"]]
        except (KeyError, TypeError, AttributeError) as error:
            raise SeatError(Kind.MALFORMED, "GET /v1/models", f"no list of models with ids: {error!r}") from error

    def version(self) -> str:
        """Return vLLM's version."""
        answer = self._json("GET /version", self._get("/version"))
        return str(answer.get("version")) if isinstance(answer, dict) else "?"

    def metrics(self) -> Page:
        """Return the parsed ``/metrics`` page."""
        response = self._get("/metrics")
        try:
            return parse(response.text)
        except MetricsError as error:
            raise SeatError(Kind.MALFORMED, "GET /metrics", str(error)) from error

    def tokenize(self, model: str, messages: Sequence[Mapping[str, Any]]) -> tuple[int, int | None]:
        """Return the prompt tokens of a chat and the context length the server would hold it against."""
        response = self._send("POST", "/tokenize", {"model": model, "messages": list(messages)}, self.limits.get)
        answer = self._json("POST /tokenize", response)
        try:
            return int(answer["count"]), answer.get("max_model_len")
        except (KeyError, TypeError, ValueError) as error:
            raise SeatError(Kind.MALFORMED, "POST /tokenize", "no count") from error

    def chat(self, body: Mapping[str, Any]) -> Completion:
        """Send one chat request and wait for the whole answer."""
        began = time.monotonic()
        response = self._send("POST", "/v1/chat/completions", body, self.limits.request)
        what = "POST /v1/chat/completions"
        answer = self._json(what, response)
        if not isinstance(answer, dict) or not answer.get("choices"):
            raise SeatError(Kind.MALFORMED, what, "no choices")
        draft = _Draft()
        elapsed = time.monotonic() - began
        with _reading(what):
            draft.add(answer, elapsed)
            draft.ttft_s, draft.chunks = None, []
            return self._counted(draft.completion(elapsed))

    def stream(self, body: Mapping[str, Any]) -> Completion:
        """Send one chat request and read the answer as a stream.

        Raises:
            SeatError: also when the stream ends without a finish reason, or takes longer than ``limits.request``.
        """
        what = "POST /v1/chat/completions (stream)"
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        draft = _Draft()
        began = time.monotonic()
        timeout = httpx.Timeout(self.limits.token, connect=self.limits.connect)
        try:
            with self._http.stream("POST", "/v1/chat/completions", json=body, timeout=timeout) as response:
                if response.status_code != 200:
                    response.read()
                    raise _status_error(what, response)
                # A comment line keeps the connection from timing out, and is no token: the limit holds for every line.
                for event in _events(what, self._in_time(what, response.iter_lines(), began)):
                    with _reading(what):
                        draft.add(event, time.monotonic() - began)
        except httpx.HTTPError as error:
            raise _transport_error(what, error, streaming=True, tokens=draft.chunks != []) from error
        if draft.finish_reason is None:
            raise SeatError(
                Kind.CUT, what, f"the stream ended after {len(draft.chunks)} chunks without a finish reason"
            )
        with _reading(what):
            return self._counted(draft.completion(time.monotonic() - began))

    def _in_time(self, what: str, lines: Iterable[str], began: float) -> Iterator[str]:
        for line in lines:
            passed = time.monotonic() - began
            if passed > self.limits.request:
                raise SeatError(Kind.TIMEOUT, what, f"not finished after {passed:.0f} s")
            yield line

    def _counted(self, completion: Completion) -> Completion:
        self.spent += completion.prompt_tokens + completion.completion_tokens
        return completion

    def _get(self, path: str) -> httpx.Response:
        return self._send("GET", path, None, self.limits.get)

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None, limit: float) -> httpx.Response:
        what = f"{method} {path}"
        timeout = httpx.Timeout(limit, connect=self.limits.connect)
        try:
            response = self._http.request(method, path, json=body, timeout=timeout)
        except httpx.HTTPError as error:
            raise _transport_error(what, error) from error
        if response.status_code != 200:
            raise _status_error(what, response)
        return response

    @staticmethod
    def _json(what: str, response: httpx.Response) -> Any:  # noqa: ANN401
        try:
            return response.json()
        except ValueError as error:
            raise SeatError(Kind.NOT_JSON, what, repr(response.text[:120])) from error


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Make a :class:`SeatError` of a field that is of another type than OpenAI's API says."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise SeatError(Kind.MALFORMED, what, f"a field of another form: {error!r}") from error


def _events(what: str, lines: Iterator[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON objects of a server-sent event stream; vLLM reports a dead engine inside it with status 200."""
    for line in lines:
        if not line.startswith("data:"):
            continue
        payload = line[5:].strip()
        if payload == "[DONE]":
            return
        try:
            event = json.loads(payload)
        except ValueError as error:
            raise SeatError(Kind.NOT_JSON, what, repr(payload[:120])) from error
        if not isinstance(event, dict):
            raise SeatError(Kind.MALFORMED, what, repr(payload[:120]))
        if "error" in event:
            raise SeatError(Kind.SERVER_ERROR, what, str(event["error"])[:300])
        yield event


def _transport_error(what: str, error: httpx.HTTPError, *, streaming: bool = False, tokens: bool = False) -> SeatError:
    if isinstance(error, httpx.ConnectTimeout):
        return SeatError(Kind.CONNECT_TIMEOUT, what)
    if isinstance(error, httpx.ConnectError):
        return SeatError(Kind.REFUSED, what, str(error))
    if isinstance(error, httpx.LocalProtocolError):  # its text quotes the header, which may be the API key
        return SeatError(Kind.BAD_REQUEST, what, "it cannot be sent: a line break in the API key?")
    if isinstance(error, httpx.TimeoutException):
        return SeatError(Kind.TIMEOUT, what, "mid-stream" if tokens else "")
    if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError | httpx.WriteError):
        return SeatError(Kind.CUT, what, str(error) or type(error).__name__)
    return SeatError(Kind.CUT if streaming else Kind.SERVER_ERROR, what, f"{type(error).__name__}: {error}")


def _status_error(what: str, response: httpx.Response) -> SeatError:
    status = response.status_code
    kind = _BY_STATUS.get(status, Kind.SERVER_ERROR if status >= 500 else Kind.BAD_REQUEST)
    try:
        answer = response.json()
        error = answer.get("error", answer) if isinstance(answer, dict) else answer
        detail = error.get("message", error) if isinstance(error, dict) else error
    except ValueError:
        detail = response.text
    return SeatError(kind, what, f"HTTP {status}: {str(detail)[:300]}", status)
