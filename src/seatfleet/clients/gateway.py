"""Typed client of a LiteLLM proxy: deployments, virtual keys, teams, access groups and calls as a key.

Semantics are those of LiteLLM 1.106.12 with a database (docs/gateway.md). Three promises: a secret is never part of a
URL or of a message (keys are named by their SHA-256), a refused request becomes a :class:`GatewayError` with a sentence
from :mod:`seatfleet.core.gateway.verdict`, and only failed connection attempts are repeated (a request that may have
arrived is not).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import httpx

from ..core.gateway.keys import KeyState, key_hash
from ..core.gateway.state import LiveDeployment
from ..core.gateway.verdict import Verdict, classify

# A parsed JSON value; what is expected of it is checked where it is read.
Json = Any

PAGE_SIZE = 100
# What a web server answers for one behind it that is away or too slow.
_PASSED_ON = (502, 503, 504)
# Ways to name the alias in a completion; a key without a grant must be refused through each of them.
ROUTES: Mapping[str, str] = {
    "body": "/v1/chat/completions",
    "query": "/v1/chat/completions?model={alias}",
    "deployments": "/openai/deployments/{alias}/chat/completions",
    "engines": "/engines/{alias}/chat/completions",
}
# Fields that a copy of a key (rotation, short-lived twin) takes over from the original.
CARRIED = (
    "models",
    "metadata",
    "team_id",
    "user_id",
    "agent_id",
    "organization_id",
    "project_id",
    "access_group_ids",
    "object_permission_id",
    "budget_id",
    "max_budget",
    "model_max_budget",
    "budget_duration",
    "tpm_limit",
    "rpm_limit",
    "max_parallel_requests",
    "aliases",
    "permissions",
    "allowed_routes",
)


class GatewayError(RuntimeError):
    """The gateway refused or failed a request. ``kind`` is the verdict's word, ``status`` the HTTP status.

    ``seat`` is set when the gateway did its part and this seat did not.
    """

    def __init__(
        self, message: str, *, kind: str = "unexpected", status: int | None = None, seat: str | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status
        self.seat = seat

    @property
    def seats(self) -> tuple[str, ...]:
        """The seats at fault, by name."""
        return (self.seat,) if self.seat else ()

    @property
    def refused(self) -> bool:
        """Whether the gateway said no to what it was asked to change, or to who asks."""
        return self.status is not None and 400 <= self.status < 500


class ProofError(GatewayError):
    """A completion was not answered as it must be. Its status is of what stands behind the gateway."""

    @property
    def refused(self) -> bool:
        """Never: the gateway did what it was asked for."""
        return False


class GatewayErrors(GatewayError):
    """Several things failed, each for itself; the message has one line for each."""

    def __init__(self, errors: Sequence[GatewayError]) -> None:
        super().__init__("\n".join(map(str, errors)), kind="several")
        self.errors = tuple(errors)

    @property
    def seats(self) -> tuple[str, ...]:
        """The seats at fault, by name."""
        return tuple(sorted({seat for error in self.errors for seat in error.seats}))

    @property
    def refused(self) -> bool:
        """Whether any of them is a refusal."""
        return any(error.refused for error in self.errors)


class GatewayDownError(GatewayError):
    """No answer at all: not reachable, no answer in time, or only one of what stands in front of it."""

    def __init__(self, message: str) -> None:
        super().__init__(message, kind="gateway_down")


@dataclass(frozen=True)
class Answer:
    """What one completion came to. ``deployment`` is the id of the deployment that answered."""

    status: int
    verdict: Verdict
    deployment: str | None = None
    version: str | None = None
    retry_after_s: float | None = None


class Gateway:
    """One proxy, with one key.

    Args:
        url: base URL of the proxy, without ``/v1``.
        key: the admin key, or for :meth:`as_key` a virtual key.
        timeout_s: limit of one management request.
        completion_timeout_s: limit of one completion; the first one of a cold seat may take a minute.
        connect_retries: further attempts, with a growing pause, when no connection could be made.
        ca_file: certificate authority of the proxy, when the system does not know it.
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        timeout_s: float = 30.0,
        completion_timeout_s: float = 180.0,
        connect_retries: int = 3,
        ca_file: str | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._key = _sendable(key, self.url)
        self._completion_timeout_s = completion_timeout_s
        verify = httpx.create_ssl_context(verify=ca_file) if ca_file else httpx.create_ssl_context()
        try:
            self._http = httpx.Client(
                base_url=self.url,
                timeout=timeout_s,
                transport=httpx.HTTPTransport(retries=connect_retries, verify=verify),
            )
        except httpx.InvalidURL as error:
            raise GatewayError(f"gateway {self.url}: expected a URL, seen none ({error})") from error

    def __enter__(self) -> Gateway:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    @contextmanager
    def as_key(self, key: str) -> Iterator[Gateway]:
        """Yield the same proxy, called with another key; connections are shared."""
        other = object.__new__(Gateway)
        other.url, other._http, other._completion_timeout_s = self.url, self._http, self._completion_timeout_s
        other._key = _sendable(key, self.url)
        yield other

    @property
    def key_hash(self) -> str:
        """SHA-256 of the key in use."""
        return key_hash(self._key)

    # --- requests ---

    def _send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        json: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> httpx.Response:
        headers = {"authorization": f"Bearer {self._key}"}
        timeout = httpx.USE_CLIENT_DEFAULT if timeout_s is None else httpx.Timeout(timeout_s)
        try:
            response = self._http.request(method, path, params=params, json=json, headers=headers, timeout=timeout)
        except httpx.TimeoutException as error:
            raise GatewayDownError(
                f"gateway {self.url} gave no answer to {method} {path.partition('?')[0]} in time"
                f" ({type(error).__name__})"
            ) from error
        except httpx.HTTPError as error:
            raise GatewayDownError(f"gateway {self.url} is not reachable ({error})") from error
        if response.status_code in _PASSED_ON and isinstance(_body(response), str):
            # LiteLLM words its errors as JSON: a web server in front of it got nothing, and knows of no seat.
            raise GatewayDownError(
                f"gateway {self.url} is not reachable: what stands in front of it answered {method}"
                f" {path.partition('?')[0]} with {response.status_code}"
            )
        return response

    def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        json: Mapping[str, Any] | None = None,
    ) -> Json:
        response = self._send(method, path, params=params, json=json)
        body = _body(response)
        if response.is_success and isinstance(body, str):
            raise GatewayError(
                f"gateway {self.url}: {method} {path} answered {response.status_code} with no JSON: is this a LiteLLM"
                " proxy?",
                status=response.status_code,
            )
        if response.is_success:
            return body
        verdict = classify(response.status_code, body)
        raise GatewayError(
            f"gateway {self.url}: {method} {path} answered {response.status_code}: {verdict.sentence}",
            kind=verdict.kind,
            status=response.status_code,
        )

    # --- deployments ---

    def list_deployments(self) -> list[LiveDeployment]:
        """Return every deployment of the proxy, those of its config file included."""
        return [LiveDeployment.from_api(entry) for entry in self._call("GET", "/model/info")["data"]]

    def create_deployment(self, body: Mapping[str, Any]) -> str:
        """Add a deployment (``model_info.id`` set by the caller) and return its id.

        The proxy answers an id that exists with 500, and a missing id with a random one: so the id is required.
        """
        wanted = str(body["model_info"]["id"])
        seen = str(self._call("POST", "/model/new", json=body)["model_id"])
        if seen != wanted:
            raise GatewayError(f"gateway {self.url}: /model/new made deployment {seen}, expected {wanted}")
        return seen

    def delete_deployment(self, deployment: str) -> bool:
        """Delete a deployment; False when it was gone already."""
        try:
            self._call("POST", "/model/delete", json={"id": deployment})
        except GatewayError as error:
            if error.status == 400 and "not found" in str(error):
                return False
            raise
        return True

    def set_blocked(self, deployment: str, blocked: bool) -> None:
        """Block a deployment (calls get a non-retryable 403 ``permission_error``) or open it again."""
        self._call("POST", "/model/block" if blocked else "/model/unblock", json={"model_id": deployment})

    # --- keys ---

    def list_keys(self) -> list[KeyState]:
        """Return every virtual key of the proxy, each with the models of its team."""
        entries = self._raw_keys()
        # The list itself leaves team_models empty (measured on 1.106.12).
        teams = self.teams() if any(entry.get("team_id") for entry in entries) else []
        models = {team["team_id"]: team.get("models") or [] for team in teams}
        return [KeyState.from_api({**entry, "team_models": models.get(entry.get("team_id"))}) for entry in entries]

    def _raw_keys(self) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = []
        page = 1
        while True:
            params: dict[str, str | int] = {"return_full_object": "true", "size": PAGE_SIZE, "page": page}
            body = self._call("GET", "/key/list", params=params)
            entries += [entry for entry in body["keys"] if isinstance(entry, dict)]
            if page >= int(body.get("total_pages") or 1):
                return entries
            page += 1

    def key(self, hashed: str) -> KeyState | None:
        """Return one key by its SHA-256, None when the gateway has none such."""
        raw = self._raw_key(hashed)
        if raw is None:
            return None
        team = raw.get("team_id")
        info = self._call("GET", "/team/info", params={"team_id": team})["team_info"] if team else {}
        return KeyState.from_api({**raw, "team_models": info.get("models")})

    def _raw_key(self, hashed: str) -> dict[str, Any] | None:
        try:
            body = self._call("GET", "/key/info", params={"key": hashed})
        except GatewayError as error:
            if error.status == 404:
                return None
            raise
        return {**body["info"], "token": hashed}

    def create_key(
        self,
        value: str,
        alias: str,
        models: Sequence[str],
        metadata: Mapping[str, Any],
        *,
        more: Mapping[str, Any] | None = None,
    ) -> str:
        """Create a key and return its SHA-256.

        The proxy answers 200 and changes nothing when the value exists under another alias, so what it stored is read
        back.
        """
        if not models:
            raise ValueError("an empty list of models would allow every model")
        body = {**(more or {}), "key": value, "key_alias": alias, "models": list(models), "metadata": dict(metadata)}
        self._call("POST", "/key/generate", json=body)
        stored = self.key(key_hash(value))
        if stored is None or stored.alias != alias:
            seen = "nothing" if stored is None else f"key alias {stored.alias}"
            raise GatewayError(f"gateway {self.url}: key {alias} was not stored, the proxy has {seen} for its value")
        return stored.hash

    def copy_key(self, hashed: str, value: str, alias: str, *, more: Mapping[str, Any] | None = None) -> str:
        """Create a key with the scope, team and limits of another one; return its SHA-256."""
        raw = self._raw_key(hashed)
        if raw is None:
            raise GatewayError(f"gateway {self.url}: no key with hash {hashed[:12]}", kind="key_missing")
        carried = {name: raw[name] for name in CARRIED if raw.get(name) not in (None, {}, [])}
        body = {**carried, **(more or {}), "key": value, "key_alias": alias}
        self._call("POST", "/key/generate", json=body)
        return key_hash(value)

    def update_key(self, hashed: str, **fields: Json) -> None:
        """Replace the named fields of a key; lists and metadata are replaced as a whole."""
        if fields.get("models") == []:
            raise ValueError("an empty list of models would allow every model")
        self._call("POST", "/key/update", json={"key": hashed, **fields})

    def delete_keys(self, hashes: Sequence[str]) -> None:
        """Delete keys by their SHA-256; keys that are gone already are no error."""
        for hashed in hashes:
            try:
                self._call("POST", "/key/delete", json={"keys": [hashed]})
            except GatewayError as error:
                if error.status != 404:
                    raise

    # --- teams and access groups ---

    def teams(self) -> list[dict[str, Any]]:
        """Return the teams as the proxy lists them."""
        return list(self._call("GET", "/team/list"))

    def access_groups(self) -> dict[str, list[str]]:
        """Return access group -> aliases, for the groups that deployments name."""
        body = self._call("GET", "/access_group/list")
        return {group["access_group"]: list(group["model_names"]) for group in body["access_groups"]}

    def shared_groups(self) -> dict[str, tuple[str, list[str]]]:
        """Return the access groups that keys name by id: id -> (name, aliases)."""
        body = self._call("GET", "/v1/access_group")
        return {
            group["access_group_id"]: (str(group["access_group_name"]), list(group["access_model_names"]))
            for group in body
        }

    # --- as a caller ---

    def models(self) -> list[str]:
        """Return what ``/v1/models`` shows the key in use: what it may *see*, which is no proof that it may call."""
        return [str(entry["id"]) for entry in self._call("GET", "/v1/models")["data"]]

    def is_admin(self) -> bool:
        """Whether the key in use may administer the proxy; only such a key can list keys."""
        return self._send("GET", "/key/list", params={"size": 1}).status_code == 200

    def complete(self, model: str, route: str = "body", more: Mapping[str, Any] | None = None) -> Answer:
        """Ask for one token through one of :data:`ROUTES`. ``model`` is an alias, or for an admin a deployment id.

        ``more`` are further fields of the request.
        """
        question = [{"role": "user", "content": "Reply with: ok"}]
        body: dict[str, Any] = {**(more or {}), "max_tokens": 1, "messages": question}
        if route == "body":
            body["model"] = model
        path = ROUTES[route].format(alias=model)
        response = self._send("POST", path, json=body, timeout_s=self._completion_timeout_s)
        after = response.headers.get("retry-after", "")
        return Answer(
            status=response.status_code,
            verdict=classify(response.status_code, _body(response)),
            deployment=response.headers.get("x-litellm-model-id"),
            version=response.headers.get("x-litellm-version"),
            retry_after_s=float(after) if after.replace(".", "", 1).isdigit() else None,
        )

    def ready(self) -> bool:
        """Whether the proxy says that it is healthy and has its database."""
        response = self._send("GET", "/health/readiness")
        body = _body(response)
        return response.is_success and isinstance(body, Mapping) and body.get("db") == "connected"


def _sendable(key: str, url: str) -> str:
    """Return a key that can be sent; the HTTP library would quote one that cannot in its error."""
    if not key or not all("!" <= character <= "~" for character in key):
        raise GatewayError(
            f"gateway {url}: the key is empty, or has characters that no header can carry (a line break at its end?)"
        )
    return key


def _body(response: httpx.Response) -> Json:
    try:
        return response.json()
    except ValueError:
        return response.text
