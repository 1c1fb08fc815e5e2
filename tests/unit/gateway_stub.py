"""A LiteLLM proxy in memory: the routes that the client uses, with the semantics measured on 1.106.12."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from seatfleet.core.gateway.keys import key_hash
from seatfleet.core.gateway.state import TRIAL_PREFIX

MASTER = "sk-master-0123456789abcdef"
Hook = Callable[["GatewayStub", str, dict[str, Any]], Response | None]


def error(status: int, kind: str, message: str) -> Response:
    """Return an error as LiteLLM words it."""
    body = {"error": {"message": message, "type": kind, "param": None, "code": str(status)}}
    return Response(json.dumps(body), status, content_type="application/json")


def reply(body: object, **headers: str) -> Response:
    """Return a success."""
    return Response(json.dumps(body), 200, headers=headers, content_type="application/json")


class GatewayStub:
    """The state of the proxy, the requests it got, and hooks that run before a route (and may answer instead)."""

    def __init__(self, server: HTTPServer) -> None:
        self.url = server.url_for("").rstrip("/")
        self.deployments: dict[str, dict[str, Any]] = {}
        self.keys: dict[str, dict[str, Any]] = {}
        self.teams: dict[str, list[str]] = {}
        # id -> (name, aliases)
        self.groups: dict[str, tuple[str, list[str]]] = {}
        self.requests: list[str] = []
        self.hooks: list[Hook] = []
        # Deployment ids whose seat does not answer.
        self.dead: set[str] = set()
        # Deployments with this api_base lead to the stub of a closed alias.
        self.closed_url = ""
        server.expect_request(_any()).respond_with_handler(self._handle)

    def key(self, value: str, alias: str, models: list[str], **more: Any) -> str:
        """Put a key into the database."""
        entry = {"token": key_hash(value), "key_alias": alias, "models": models, "metadata": {}, **more}
        self.keys[entry["token"]] = entry
        return str(entry["token"])

    def models(self, alias: str) -> list[str]:
        """Return the list of the key with this alias."""
        return list(next(entry["models"] for entry in self.keys.values() if entry["key_alias"] == alias))

    def _handle(self, request: Request) -> Response:
        body = request.get_json(silent=True) or {}
        self.requests.append(f"{request.method} {request.path}")
        for hook in list(self.hooks):
            answer = hook(self, request.path, body)
            if answer is not None:
                return answer
        token = (request.headers.get("authorization") or "").removeprefix("Bearer ")
        caller = self.keys.get(key_hash(token))
        if token != MASTER and caller is None:
            return error(401, "token_not_found_in_db", f"Invalid proxy server token passed. Received = {token}")
        if request.path.endswith("/chat/completions"):
            return self._complete(request, body, caller)
        if request.path == "/v1/models":
            return reply(
                {"data": [{"id": name} for name in (caller or {}).get("models", []) if name != "no-default-models"]}
            )
        if token != MASTER:
            return error(403, "auth_error", "only an admin may do this")
        return self._manage(request, body)

    def _complete(self, request: Request, body: dict[str, Any], caller: dict[str, Any] | None) -> Response:
        parts = request.path.split("/")
        named = (
            parts[parts.index("deployments" if "deployments" in parts else "engines") + 1] if len(parts) > 4 else None
        )
        model = body.get("model") or request.args.get("model") or named
        if caller is not None and caller["models"] and model not in caller["models"]:
            return error(403, "key_model_access_denied", f"The requested model '{model}' is not available")
        found = [
            entry
            for identifier, entry in self.deployments.items()
            if entry["model_name"] == model or (identifier == model and caller is None)
        ]
        if not found:
            return error(400, "invalid_request_error", f"Invalid model name passed in model={model}")
        identifier = found[-1]["model_info"]["id"]
        # Tried out under a name of its own, it is as dead as under the alias.
        if identifier.removeprefix(TRIAL_PREFIX) in self.dead:
            return error(500, "internal_server_error", "Cannot connect to host REDACTED:8022")
        if found[-1]["litellm_params"].get("api_base") == self.closed_url:
            return error(503, "internal_server_error", 'Hosted_vllmException - {"error": {"type": "seat_draining"}}')
        headers = {"x-litellm-model-id": identifier, "x-litellm-version": "1.106.12"}
        return reply({"choices": []}, **headers)

    def _manage(self, request: Request, body: dict[str, Any]) -> Response:
        match request.path:
            case "/model/info":
                entries = [
                    {**entry, "litellm_params": {k: v for k, v in entry["litellm_params"].items() if k != "api_key"}}
                    for entry in self.deployments.values()
                ]
                return reply({"data": entries})
            case "/model/new":
                identifier = body["model_info"]["id"]
                if identifier in self.deployments:
                    return error(500, "auth_error", "{'error': 'Failed to add model to db.'}")
                body["model_info"] |= {"db_model": True, "blocked": False}
                self.deployments[identifier] = body
                return reply({"model_id": identifier})
            case "/model/delete":
                if self.deployments.pop(body["id"], None) is None:
                    return error(400, "auth_error", f"{{'error': 'Model with id={body['id']} not found in db'}}")
                return reply({})
            case "/model/block" | "/model/unblock":
                self.deployments[body["model_id"]]["model_info"]["blocked"] = request.path == "/model/block"
                return reply({})
            case "/access_group/list":
                return reply({"access_groups": []})
            case "/v1/access_group":
                return reply(
                    [
                        {"access_group_id": group, "access_group_name": name, "access_model_names": models}
                        for group, (name, models) in self.groups.items()
                    ]
                )
            case "/team/list":
                return reply([{"team_id": team, "models": models} for team, models in self.teams.items()])
            case "/team/info":
                return reply({"team_info": {"models": self.teams[request.args["team_id"]]}})
            case "/key/list":
                return self._list_keys(int(request.args["page"]) if "page" in request.args else 1)
            case "/key/info":
                entry = self.keys.get(request.args["key"])
                return reply({"info": entry}) if entry else error(404, "not_found_error", "Key not found in database")
            case "/key/generate":
                return self._generate(body)
            case "/key/update":
                self.keys[body["key"]].update({name: value for name, value in body.items() if name != "key"})
                return reply({})
            case "/key/delete":
                for hashed in body["keys"]:
                    if self.keys.pop(hashed, None) is None:
                        return error(404, "not_found_error", "{'error': 'No keys found'}")
                return reply({})
        return error(404, "not_found_error", f"no route {request.path}")

    def _list_keys(self, page: int) -> Response:
        entries = list(self.keys.values())
        size = 2  # small, so that the tests walk through pages
        pages = max(1, -(-len(entries) // size))
        return reply({"keys": entries[(page - 1) * size : page * size], "total_pages": pages})

    def _generate(self, body: dict[str, Any]) -> Response:
        if any(entry["key_alias"] == body["key_alias"] for entry in self.keys.values()):
            return error(400, "bad_request_error", f"Key with alias '{body['key_alias']}' already exists.")
        hashed = key_hash(body["key"])
        # An existing value: 200, and nothing changes (#20494).
        self.keys.setdefault(hashed, {"metadata": {}, **body, "key": None, "token": hashed})
        return reply({**body, "token": hashed})


def _any() -> Any:
    from re import compile as pattern

    return pattern("/.*")
