"""A client that goes on calling an alias while something happens to its seat, and counts what it gets by kind."""

from __future__ import annotations

import json
import threading
from collections import Counter
from types import TracebackType

import httpx

OK, DESIGNED = "answered", "503 with Retry-After"
# Between two calls of a worker; a closed alias answers in milliseconds and would be called in a busy loop.
PAUSE_S = 0.3


class Hammer:
    """Two callers, one of them streaming, from the begin to the end of a ``with`` block."""

    def __init__(self, url: str, key: str, alias: str) -> None:
        self.seen: Counter[str] = Counter()
        self.deployments: Counter[str] = Counter()
        self._url, self._alias = f"{url}/v1/chat/completions", alias
        self._headers = {"Authorization": f"Bearer {key}"}
        self._end = threading.Event()
        self._workers = [threading.Thread(target=self._work, args=(stream,)) for stream in (False, True)]

    def __enter__(self) -> Hammer:
        for worker in self._workers:
            worker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        for worker in self._workers:
            worker.join()
        # For the evidence; pytest shows it with -s or when the test fails.
        print(f"client of {self._alias}: {dict(self.seen)}, answered by {dict(self.deployments)}")

    @property
    def accidents(self) -> dict[str, int]:
        """Everything that was neither an answer nor the designed refusal."""
        return self.others_than(OK, DESIGNED)

    def others_than(self, *kinds: str) -> dict[str, int]:
        """Everything that begins with none of these."""
        return {kind: count for kind, count in self.seen.items() if not kind.startswith(kinds)}

    def _work(self, stream: bool) -> None:
        with httpx.Client(timeout=120) as client:
            while not self._end.is_set():
                try:
                    kind = self.once(client, stream)
                except httpx.HTTPError as error:
                    kind = type(error).__name__
                self.seen[kind] += 1
                self._end.wait(PAUSE_S)

    def once(self, client: httpx.Client, stream: bool) -> str:
        """Make one call and return its kind."""
        message = [{"role": "user", "content": "count to twenty"}]
        body = {"model": self._alias, "max_tokens": 24, "stream": stream, "messages": message}
        with client.stream("POST", self._url, json=body, headers=self._headers) as answer:
            text = answer.read().decode()
        if answer.status_code == 503 and answer.headers.get("retry-after", "").isdigit():
            return DESIGNED
        if answer.status_code != 200:
            return f"{answer.status_code}: {text[:200]}"
        self.deployments[answer.headers["x-litellm-model-id"]] += 1
        return _stream_verdict(text) if stream else _verdict(json.loads(text))


def _verdict(body: dict[str, object]) -> str:
    choices = body.get("choices")
    reason = choices[0].get("finish_reason") if isinstance(choices, list) and choices else None
    return OK if reason in ("length", "stop") else f"finish reason {reason}"


def _stream_verdict(text: str) -> str:
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        return "stream without an end"
    chunks = [json.loads(event) for event in events[:-1]]
    reasons = [choice.get("finish_reason") for chunk in chunks for choice in chunk.get("choices", ())]
    return OK if any(reason in ("length", "stop") for reason in reasons) else f"stream: finish reasons {set(reasons)}"
