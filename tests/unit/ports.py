"""Ports for servers that a test starts later, perhaps several times."""

from __future__ import annotations

import errno
import itertools
import os
import socket
from collections.abc import Iterator


def _candidates() -> Iterator[int]:
    """Yield ports below those that the kernel gives to whoever asks for any; processes begin at different ones."""
    first, count = 20_000, 12_000
    return (first + (os.getpid() * 97 + step) % count for step in itertools.count())


_CANDIDATES = _candidates()


def unused_port() -> int:
    """Return a port that nobody listens on, and that no other test gets meanwhile by asking for port 0."""
    for port in _CANDIDATES:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return port
    raise AssertionError("unreachable")
