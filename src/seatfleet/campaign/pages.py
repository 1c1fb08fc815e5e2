"""``/metrics`` of one seat, kept verbatim, and read only when the server has booked what was asked of it."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

import httpx

from ..core.health.metrics import Page, parse
from .load import Target
from .observe import SUCCESS
from .parity import refuse_busy

#: The server books a request just after its answer; longer than this and it books somebody else's.
SETTLE_S = 5.0
_POLL_S = 0.05
_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"


class Pages:
    """One connection that is asked for pages between cells. ``text`` and ``page`` are the last reading."""

    def __init__(self, target: Target) -> None:
        # verify=False: no TLS on loopback, and a TLS context costs 40 ms
        self._http = httpx.Client(
            base_url=target.base_url, headers=target.headers, timeout=10.0, trust_env=False, verify=False
        )
        self.text = ""
        self.page = Page({})

    def __enter__(self) -> Self:
        """Return the reader itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def read(self) -> Page:
        """Read the page now.

        Raises:
            httpx.HTTPError, MetricsError: no answer, or no Prometheus text.
        """
        response = self._http.get("/metrics")
        response.raise_for_status()
        self.text, self.page = response.text, parse(response.text)
        return self.page

    def read_settled(self, requests: int) -> Page:
        """Read the page when so many more requests are booked than on the last one, or when it took long enough."""
        wanted = self.page.total_or(SUCCESS, 0.0) + requests
        deadline = time.monotonic() + SETTLE_S
        while True:
            page = self.read()
            booked = page.total_or(SUCCESS, 0.0) >= wanted and not page.total_or(_RUNNING, 0.0)
            if booked or time.monotonic() >= deadline:
                return page
            time.sleep(_POLL_S)

    def refuse_busy(self) -> None:
        """Refuse a seat that serves somebody else (rule R11).

        A busy page is read again for a while: the last request of our own probe may still be counted as running.
        """
        deadline = time.monotonic() + SETTLE_S
        while True:
            page = self.read()
            running, waiting = page.total_or(_RUNNING, 0.0), page.total_or(_WAITING, 0.0)
            if not (running or waiting) or time.monotonic() >= deadline:
                refuse_busy(running, waiting)
                return
            time.sleep(_POLL_S)
