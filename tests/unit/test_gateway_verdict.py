"""What answers of the gateway mean. The bodies are LiteLLM 1.106.12's own, as measured."""

from __future__ import annotations

from typing import Any

import pytest

from seatfleet.core.gateway.verdict import Cell, Verdict, classify, judge, scrub, table
from seatfleet.core.gateway.versions import version_problem

DENIED = "The requested model 'gen-large' is not available for this API key, or the model name is invalid."
MISSING = (
    "Authentication Error, Invalid proxy server token passed. Received API Key = sk-...6789, Key Hash (Token) =d915."
    " Unable to find token in cache or `LiteLLM_VerificationTokenTable`"
)


def body(kind: str, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": "0"}}


@pytest.mark.parametrize(
    ("status", "answer", "kind", "refused"),
    [
        (200, {"choices": []}, "ok", False),
        (403, body("key_model_access_denied", DENIED), "key_scope", True),
        (403, body("team_model_access_denied", DENIED), "team_scope", True),
        (403, body("user_model_access_denied", DENIED), "user_scope", True),
        (401, body("token_not_found_in_db", MISSING), "key_missing", True),
        (401, body("auth_error", "Authentication Error, No api key passed in."), "unauthorized", True),
        (401, body("auth_error", "Key is blocked. Update via `/key/unblock` if you're an admin."), "key_blocked", True),
        (401, body("authentication_error", "litellm.AuthenticationError: Hosted_vllmException"), "seat_key", False),
        (401, body("expired_key", "Authentication Error - Expired Key."), "key_expired", True),
        (403, body("permission_error", "litellm.PermissionDeniedError: Model is blocked"), "alias_blocked", False),
        (400, body("invalid_request_error", "Invalid model name passed in model=ghost."), "alias_unknown", False),
        (429, body("all_deployments_in_cooldown", "No deployments available for selected model"), "cooldown", False),
        (429, body("rate_limit_error", "No deployments available for selected model, Try"), "cooldown", False),
        (429, body("throttling_error", "Rate limit exceeded"), "rate_limited", False),
        (400, body("budget_exceeded", "Budget has been exceeded!"), "budget_exceeded", False),
        (404, body("None", "litellm.NotFoundError: The model `gen-large` does not exist."), "served_name", False),
        (500, body("internal_server_error", "Cannot connect to host REDACTED:9"), "seat_down", False),
        (503, "upstream connect error", "seat_down", False),
        (400, {"detail": {"error": "Model id = nope not found"}}, "unexpected", False),
        (418, "teapot", "unexpected", False),
    ],
)  # fmt: skip
def test_classification(status: int, answer: object, kind: str, refused: bool) -> None:
    verdict = classify(status, answer)
    assert (verdict.kind, verdict.refused) == (kind, refused)


def test_no_sentence_shows_a_key() -> None:
    for status in (401, 403, 429, 500, 418):
        assert "sk-...6789" not in classify(status, body("x", MISSING)).sentence
    assert scrub("Bearer sk-abc_DEF, then") == "Bearer sk-(hidden), then"


OK = Verdict("ok", "answered")
SCOPE = Verdict("key_scope", "not in the list")
GHOST = Verdict("alias_unknown", "a ghost")


@pytest.mark.parametrize(
    ("expected", "verdict", "listed", "deployment", "routes", "outcome"),
    [
        ("allow", OK, True, "ours", {}, (True, "ok")),
        ("allow", OK, True, "theirs", {}, (False, "wrong_seat")),
        ("allow", OK, True, None, {}, (False, "wrong_seat")),
        ("allow", OK, False, "ours", {}, (False, "not_listed")),
        ("allow", SCOPE, True, None, {}, (False, "key_scope")),
        ("deny", SCOPE, False, None, {"query": SCOPE}, (True, "refused")),
        ("deny", OK, True, "ours", {}, (False, "over_granted")),
        ("deny", SCOPE, False, None, {"query": OK}, (False, "over_granted")),
        ("deny", SCOPE, False, None, {"query": GHOST}, (False, "unexpected")),
        ("deny", SCOPE, True, None, {}, (False, "listed")),
        ("deny", GHOST, False, None, {}, (False, "alias_unknown")),
    ],
)
def test_judgement(
    expected: str, verdict: Verdict, listed: bool, deployment: str | None, routes: Any, outcome: tuple[bool, str]
) -> None:
    cell = judge(
        key="k", alias="a", expected=expected, ids=["ours"], listed=listed, verdict=verdict, deployment=deployment,
        routes=routes,
    )  # fmt: skip
    assert (cell.ok, cell.verdict) == outcome


def test_the_silent_case_is_pointed_out() -> None:
    cell = judge(
        key="k", alias="a", expected="allow", ids=["ours"], listed=True, verdict=Verdict("team_scope", "the team"),
        deployment=None,
    )  # fmt: skip
    assert "/v1/models shows the alias nevertheless" in cell.sentence


def test_table_has_a_line_per_cell() -> None:
    cells = [
        Cell("infra-ops", "gen-large", "allow", True, "ok", "answered by its seat", True, "seat-1"),
        Cell("all-agents", "gen-large", "allow", False, "key_scope", "grant it", False, None, None, True),
    ]
    assert table(cells).splitlines() == [
        "KEY                ALIAS      EXPECTED  RESULT            DEPLOYMENT  WHAT IT MEANS",
        "infra-ops          gen-large  allow     ok                seat-1      answered by its seat",
        "all-agents (twin)  gen-large  allow     FAILED key_scope  -           grant it",
    ]


@pytest.mark.parametrize(
    ("version", "word"),
    [
        ("1.106.12", None),
        ("1.101.1", None),
        ("1.108.5", None),
        ("1.82.7", "compromised"),
        ("1.82.8", "compromised"),
        ("1.107.0", "compromised"),
        ("1.107.3", "compromised"),
        ("1.101.0", "GHSA"),
        ("1.87.0", "GHSA"),
        ("latest", "form"),
    ],
)
def test_versions(version: str, word: str | None) -> None:
    problem = version_problem(version)
    assert problem is None if word is None else word in str(problem)
