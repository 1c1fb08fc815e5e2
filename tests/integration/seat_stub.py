#!/usr/bin/env python3
"""A seat without a model, for gateway tests: an OpenAI server on the standard library that tells what reached it.

GET  /v1/models   the served names, as vLLM lists them
GET  /seen        bodies of all completions so far, with the SHA-256 of the bearer token
POST /v1/...      one fixed token; 401 for another API key and 404 for an unknown model name, worded like vLLM.
                  With "stream": true as many tokens as "max_tokens" says, one each pace_s seconds
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class SeatStub(ThreadingHTTPServer):
    """One seat: the names it serves, its API key (None lets everybody in) and what it saw."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], names: Sequence[str], api_key: str | None) -> None:
        super().__init__(address, Handler)
        self.names = list(names)
        self.api_key = api_key
        self.seen: list[dict[str, Any]] = []
        self.pace_s = 0.5


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    server: SeatStub

    def log_message(self, *_: object) -> None:
        """Stay silent."""

    def _send(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _token(self) -> str:
        return (self.headers.get("authorization") or "").removeprefix("Bearer ")

    def do_GET(self) -> None:
        """Answer a question about the seat."""
        if self.path == "/seen":
            self._send(200, self.server.seen)
        else:
            self._send(200, {"object": "list", "data": [{"id": name, "object": "model"} for name in self.server.names]})

    def do_POST(self) -> None:
        """Answer a completion."""
        body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
        if self.server.api_key is not None and self._token() != self.server.api_key:
            self._send(401, {"error": "Unauthorized"})
            return
        model = body.get("model")
        if model not in self.server.names:
            message = f"The model `{model}` does not exist."
            self._send(404, {"error": {"message": message, "type": "NotFoundError", "param": "model", "code": 404}})
            return
        self.server.seen.append({"token": hashlib.sha256(self._token().encode()).hexdigest(), "body": body})
        if body.get("stream"):
            self._stream({"id": "stub", "created": 1, "model": model}, int(body.get("max_tokens") or 1))
            return
        choice = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "length"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        answer = {"id": "stub", "created": 1, "object": "chat.completion", "model": model}
        self._send(200, {**answer, "choices": [choice], "usage": usage})

    def _stream(self, base: dict[str, Any], tokens: int) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        base = {**base, "object": "chat.completion.chunk"}
        for number in range(tokens):
            delta = {"role": "assistant", "content": f"t{number} "}
            self._event(json.dumps({**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}))
            time.sleep(self.server.pace_s)
        self._event(json.dumps({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}))
        self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, text: str) -> None:
        data = f"data: {text}\n\n".encode()
        self.wfile.write(b"%x\r\n" % len(data) + data + b"\r\n")
        self.wfile.flush()


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--api-key")
    parser.add_argument("names", nargs="+")
    given = parser.parse_args()
    SeatStub((given.host, given.port), given.names, given.api_key).serve_forever()


if __name__ == "__main__":
    main()
