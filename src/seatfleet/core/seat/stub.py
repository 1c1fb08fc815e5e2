"""What answers for a seat that is away: 503 with ``Retry-After`` to every request, at once.

The alternatives are worse for callers: a blocked deployment is a 403 that clients do not repeat, a deleted one a 400,
and one whose seat is stopped a 500 after ten seconds.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ..gateway.verdict import DRAINING

#: Where Prometheus finds :data:`REFUSED`; not vLLM's own path, where a stub on a seat's port would look like the seat.
METRICS_PATH = "/stub/metrics"
REFUSED = "seatfleet_stub_refused_total"

# A body beyond this is not read, and its connection closed: nobody sends one for a good reason.
_MAX_BODY = 64 << 20
# How long such a connection is still read after the answer: closed with bytes unread it is reset, and a client that is
# still sending loses the answer (RFC 9112, 9.6).
_LINGER_S = 5
# A client that says nothing does not hold a thread for longer. More than the 120 s that LiteLLM keeps connections for:
# a call on one that is just being closed would be a 500.
_IDLE_S = 180


class SeatStub(ThreadingHTTPServer):
    """Listens on a port of all addresses. ``retry_after_s`` is what callers are told to wait."""

    daemon_threads = True
    # Agents come in bursts; the default of 5 would drop connections.
    request_queue_size = 128

    def __init__(self, port: int, retry_after_s: int) -> None:
        dual = socket.has_dualstack_ipv6()
        self.address_family = socket.AF_INET6 if dual else socket.AF_INET
        self.retry_after_s = retry_after_s
        self._refused = 0
        self._counting = threading.Lock()
        super().__init__(("::" if dual else "", port), _Handler)

    def count(self) -> None:
        """Count one caller that was told to come back."""
        with self._counting:
            self._refused += 1

    def metrics(self) -> str:
        """Return how many callers were told to come back, as Prometheus text."""
        about = f"# HELP {REFUSED} Callers that were told to come back.\n# TYPE {REFUSED} counter\n"
        return f"{about}{REFUSED} {self._refused}\n"

    def handle_error(self, request: object, client_address: object) -> None:
        """Stay silent about callers that went away, like :meth:`_Handler.log_message`; a fault of ours is told."""
        if not isinstance(sys.exc_info()[1], OSError):
            traceback.print_exc()

    def server_bind(self) -> None:
        """Bind for IPv4 and IPv6, where both are there."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_S
    server: SeatStub

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent: one line per refused request would fill the journal."""

    def do_GET(self) -> None:
        """Tell the count to who asks for it; refuse everything else."""
        if self.path != METRICS_PATH:
            self._refuse()
            return
        data = self.server.metrics().encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _refuse(self) -> None:
        read = self._skip_body()
        self.server.count()
        seconds = self.server.retry_after_s
        message = f"the seat is away for a restart; repeat after {seconds} s"
        error = {"message": message, "type": DRAINING, "param": None, "code": "503"}
        data = json.dumps({"error": error}).encode()
        self.send_response(503)
        self.send_header("Retry-After", str(seconds))
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
        if not read:
            self._linger()

    def _skip_body(self) -> bool:
        """Read what was sent, so that the connection can be used again; what has no known length ends it unread."""
        length = self.headers.get("content-length", "0")
        if "transfer-encoding" in self.headers or not length.isdecimal() or int(length) > _MAX_BODY:
            self.close_connection = True
            return False
        left = int(length)
        while left and (chunk := self.rfile.read(min(left, 1 << 16))):
            left -= len(chunk)
        return True

    def _linger(self) -> None:
        """Say that nothing more comes, and read on until the client has its answer and closes."""
        end = time.monotonic() + _LINGER_S
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            while (left := end - time.monotonic()) > 0:
                self.connection.settimeout(left)
                if not self.rfile.read1(1 << 16):
                    return

    do_POST = do_PUT = do_DELETE = do_HEAD = do_OPTIONS = do_PATCH = _refuse
