"""A model hub over HTTP: what a revision holds, and its files from any byte on.

The addresses are those of the Hugging Face hub, which its mirrors and ``seatctl model serve`` answer to as well:
``/api/models/REPOSITORY/tree/REVISION`` and ``/REPOSITORY/resolve/REVISION/PATH``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import quote

import httpx

DEFAULT_URL = "https://huggingface.co"
# Long enough for a slow disk behind a mirror; a connection that says nothing for this long is tried again.
_TIMEOUT = httpx.Timeout(60, connect=10)


class HubError(RuntimeError):
    """The hub could not be asked, or refused; ``again`` says whether another try may help."""

    def __init__(self, message: str, *, again: bool) -> None:
        super().__init__(message)
        self.again = again


@dataclass(frozen=True)
class Listed:
    """One file of a revision; ``sha256`` is known for files of its large-file storage only."""

    path: str
    size: int
    sha256: str | None


class Hub:
    """One hub. A token for closed repositories is taken from ``HF_TOKEN`` and sent to the hub itself only.

    ``direct``: the other host on a link of our own, which no proxy of the environment leads to.
    """

    def __init__(
        self,
        url: str | None = None,
        environment: Mapping[str, str] = os.environ,
        transport: httpx.BaseTransport | None = None,
        *,
        direct: bool = False,
    ) -> None:
        self.url = (url or environment.get("HF_ENDPOINT") or DEFAULT_URL).rstrip("/")
        token = environment.get("HF_TOKEN")
        self._client = httpx.Client(
            base_url=self.url,
            # httpx leaves it out when a redirect leads to another host, as those for large files do.
            headers={"Authorization": f"Bearer {token}"} if token else {},
            follow_redirects=True,
            timeout=_TIMEOUT,
            transport=transport,
            trust_env=not direct,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def files(self, repository: str, revision: str) -> list[Listed]:
        """Return every file of a revision.

        Raises:
            HubError: no such repository or revision, no access, or no hub.
        """
        where: str | None = f"/api/models/{repository}/tree/{revision}?recursive=true"
        found: list[Listed] = []
        while where:
            try:
                answer = self._client.get(where)
            except httpx.HTTPError as error:
                raise HubError(f"{self.url}: {_reason(error)}", again=True) from error
            self._refuse(answer, repository, revision, "")
            for entry in answer.json():
                if entry["type"] == "file":
                    large = entry.get("lfs") or {}
                    found.append(Listed(entry["path"], int(large.get("size", entry["size"])), large.get("oid")))
            where = answer.links.get("next", {}).get("url")
        return found

    @contextmanager
    def stream(self, repository: str, revision: str, path: str, offset: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Give the byte that the answer begins with (0 when ``offset`` is not honoured) and the bytes from there on.

        Raises:
            HubError: as above; also from the iterator, when the connection breaks.
        """
        address = f"/{repository}/resolve/{revision}/{quote(path)}"
        # Compressed on the way, the bytes would not be those that were asked for.
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={offset}-"} if offset else {})
        try:
            with self._client.stream("GET", address, headers=headers) as answer:
                self._refuse(answer, repository, revision, path)
                begin = offset if answer.status_code == httpx.codes.PARTIAL_CONTENT else 0
                # As they arrive: collected into larger pieces, what came before a break would be lost.
                yield begin, answer.iter_raw()
        except httpx.HTTPError as error:
            raise HubError(f"{self.url}: {path}: {_reason(error)}", again=True) from error

    def _refuse(self, answer: httpx.Response, repository: str, revision: str, path: str) -> None:
        # Of the first answer: large files are redirected to a storage that knows no revisions.
        for one in (*answer.history, answer):
            commit = one.headers.get("X-Repo-Commit")
            if commit and commit != revision:
                message = f"{self.url}: {repository}: expected revision {revision}, seen {commit}"
                raise HubError(message, again=False)
        if answer.is_success:
            return
        code, what = answer.status_code, answer.headers.get("X-Error-Code", "")
        thing = f"{repository} at {revision}" + (f": {path}" if path else "")
        if code == httpx.codes.NOT_FOUND:
            kind = {"RevisionNotFound": "no such revision", "EntryNotFound": "no such file"}.get(what, "nothing there")
            raise HubError(f"{self.url}: {thing}: {kind} (404)", again=False)
        if code in {401, 403}:
            message = f"{self.url}: {thing}: refused ({code}). Accept its licence on the hub, and set HF_TOKEN"
            raise HubError(message, again=False)
        # 416: what was resumed is longer than the file, so it cannot be its beginning.
        again = code >= 500 or code in {408, 416, 429}
        raise HubError(f"{self.url}: {thing}: HTTP {code}", again=again)


def _reason(error: httpx.HTTPError) -> str:
    return str(error) or type(error).__name__
