"""One model to another host, over HTTP with ranges: fetched once from a hub, copied over the fast link.

Answers the same addresses as a hub, for exactly the files of one manifest and nothing else of the directory. No key:
the receiver compares every byte with its own manifest, and weights are no secret that this fleet keeps. Serve on the
address of the fast link only.
"""

from __future__ import annotations

import json
import re
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, ClassVar
from urllib.parse import unquote

from ..core.files import CHUNK
from ..core.model.models import Manifest

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class ModelServer(ThreadingHTTPServer):
    """Serves one directory; ``idle_s`` without a request ends :meth:`serve_until_idle`."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], directory: Path, repository: str, manifest: Manifest) -> None:
        super().__init__(address, _Handler)
        self.directory = directory
        self.repository = repository
        self.manifest = manifest
        self.touched = time.monotonic()

    @property
    def url(self) -> str:
        """Where it answers."""
        host, port = self.server_address[:2]
        name = host.decode() if isinstance(host, bytes) else host
        return f"http://{f'[{name}]' if ':' in name else name}:{port}"

    def serve_until_idle(self, idle_s: float) -> None:
        """Serve until nobody has asked for anything, or been sent anything, for that long."""
        thread = threading.Thread(target=self.serve_forever, daemon=True)
        thread.start()
        while time.monotonic() - self.touched < idle_s:
            time.sleep(min(1.0, idle_s / 5))
        self.shutdown()
        thread.join()
        # Else whoever comes late would be let in by the kernel and never answered.
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: ModelServer
    protocol_version = "HTTP/1.1"
    # A receiver that died without a word must not keep its thread for ever.
    timeout: ClassVar[float] = 60.0

    def do_GET(self) -> None:
        """Answer for a file or for the listing."""
        server = self.server
        server.touched = time.monotonic()
        revision = server.manifest.revision
        path = unquote(self.path.partition("?")[0])
        if path == f"/api/models/{server.repository}/tree/{revision}":
            self._send_listing()
            return
        prefix = f"/{server.repository}/resolve/"
        asked, _, name = path.removeprefix(prefix).partition("/")
        if not path.startswith(prefix) or asked != revision:
            code = "RevisionNotFound" if path.startswith(prefix) else "RepoNotFound"
            self._refuse(HTTPStatus.NOT_FOUND, {"X-Error-Code": code})
        elif name not in server.manifest.files:
            self._refuse(HTTPStatus.NOT_FOUND, {"X-Error-Code": "EntryNotFound"})
        else:
            self._send_file(server.directory / name)

    def _send_listing(self) -> None:
        files = self.server.manifest.files.items()
        entries = [
            {"type": "file", "path": path, "size": file.size, "lfs": {"oid": file.sha256, "size": file.size}}
            for path, file in files
        ]
        body = json.dumps(entries).encode()
        self._head(HTTPStatus.OK, len(body), {"Content-Type": "application/json"})
        self.wfile.write(body)

    def _send_file(self, file: Path) -> None:
        try:
            stream = file.open("rb")
        except OSError:
            self._refuse(HTTPStatus.NOT_FOUND, {"X-Error-Code": "EntryNotFound"})
            return
        with stream:
            size = file.stat().st_size
            match = _RANGE.fullmatch(self.headers.get("Range", ""))
            begin = int(match[1]) if match else 0
            end = min(size, int(match[2]) + 1) if match and match[2] else size
            if match and begin >= size:
                self._refuse(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, {"Content-Range": f"bytes */{size}"})
                return
            status = HTTPStatus.PARTIAL_CONTENT if match else HTTPStatus.OK
            extra = {"Content-Range": f"bytes {begin}-{end - 1}/{size}"} if match else {}
            self._head(status, end - begin, {"Accept-Ranges": "bytes", **extra})
            self._send_bytes(stream, begin, end)

    def _send_bytes(self, stream: IO[bytes], begin: int, end: int) -> None:
        stream.seek(begin)
        left = end - begin
        while left > 0 and (chunk := stream.read(min(CHUNK, left))):
            self.wfile.write(chunk)
            left -= len(chunk)
            self.server.touched = time.monotonic()

    def _refuse(self, status: HTTPStatus, headers: dict[str, str]) -> None:
        self._head(status, 0, headers)

    def _head(self, status: HTTPStatus, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.send_header("X-Repo-Commit", self.server.manifest.revision)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: a line per request of a file of 5 GB tells nobody anything."""
