"""What callers of a seat that is away get: from the stub, and through LiteLLM's callback."""

from __future__ import annotations

import asyncio
import http.client
import runpy
import socket
import struct
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from seatfleet.core.gateway.verdict import classify
from seatfleet.core.seat.stub import METRICS_PATH, REFUSED, SeatStub

CALLBACK = Path(__file__).resolve().parents[2] / "roles/gateway/files/seatfleet_retry_after.py"


@pytest.fixture
def connection() -> Iterator[http.client.HTTPConnection]:
    with SeatStub(0, 15) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
        yield client
        client.close()
        server.shutdown()


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "DELETE"])
def test_every_request_gets_the_designed_answer_on_one_connection(
    connection: http.client.HTTPConnection, method: str
) -> None:
    for body in (b"", b"x" * 200_000):
        connection.request(method, "/v1/chat/completions", body)
        answer = connection.getresponse()
        text = answer.read()
        assert (answer.status, answer.headers["Retry-After"]) == (503, "15")
        assert (method == "HEAD") == (text == b"")


def test_callers_are_counted_and_whoever_asks_for_the_count_is_none(connection: http.client.HTTPConnection) -> None:
    for path, status in (("/v1/models", 503), (METRICS_PATH, 200), ("/metrics", 503), (METRICS_PATH, 200)):
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status == status
    assert text.splitlines()[-1] == f"{REFUSED} 2"


def test_who_goes_away_or_lies_about_a_length_leaves_no_traceback(
    connection: http.client.HTTPConnection, capfd: pytest.CaptureFixture[str]
) -> None:
    request = b"POST / HTTP/1.1\r\nHost: seat\r\nContent-Length: %b\r\n\r\nx"
    with socket.create_connection((connection.host, connection.port)) as gone:
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.sendall(request % b"10")
        time.sleep(0.2)
    with socket.create_connection((connection.host, connection.port), timeout=10) as odd:
        odd.sendall(request % b"\xb2")  # a digit to str.isdigit(), and none to int()
        assert odd.recv(100).startswith(b"HTTP/1.1 503 ")
    time.sleep(0.2)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("kind", ["chunked", "too long"])
def test_who_sends_for_long_still_gets_the_answer(connection: http.client.HTTPConnection, kind: str) -> None:
    # 8 MiB are more than the buffers of a connection hold, and the pause lets the stub answer before the last is sent.
    def body() -> Iterator[bytes]:
        for _ in range(8):
            yield b"x" * (1 << 20)
            time.sleep(0.05)

    headers = {"Transfer-Encoding": "chunked"} if kind == "chunked" else {"Content-Length": str(1 << 30)}
    connection.request("POST", "/v1/chat/completions", body(), headers, encode_chunked=kind == "chunked")
    answer = connection.getresponse()
    assert b"repeat after 15 s" in answer.read()
    assert (answer.status, answer.headers["Retry-After"], answer.will_close) == (503, "15", True)


def test_the_answer_is_classified_as_draining(connection: http.client.HTTPConnection) -> None:
    connection.request("GET", "/")
    answer = connection.getresponse()
    # LiteLLM puts the whole body into the message of its own error.
    body = {"error": {"message": f"litellm.ServiceUnavailableError: {answer.read().decode()}", "type": "x"}}
    assert classify(answer.status, body).kind == "draining"
    assert classify(500, body).kind == "seat_down"


class UpstreamError(Exception):
    def __init__(self, status: int, headers: dict[str, str] | None) -> None:
        self.status_code = status
        self.litellm_response_headers = headers


@pytest.mark.parametrize(
    ("error", "headers"),
    [
        (UpstreamError(503, {"retry-after": "15", "server": "x"}), {"retry-after": "15"}),
        (UpstreamError(500, {"retry-after": "15"}), None),
        (UpstreamError(503, {}), None),
        (UpstreamError(503, None), None),
    ],
)
def test_callback(monkeypatch: pytest.MonkeyPatch, error: UpstreamError, headers: dict[str, str] | None) -> None:
    base = types.ModuleType("litellm.integrations.custom_logger")
    base.CustomLogger = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "litellm.integrations.custom_logger", base)
    handler = runpy.run_path(str(CALLBACK))["handler"]
    assert asyncio.run(handler.async_post_call_failure_hook({}, error, None)) is None
    assert getattr(error, "headers", None) == headers
