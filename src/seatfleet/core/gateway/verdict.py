"""What an answer of the gateway means: a verdict, a sentence that says what to fix, and the proof table.

LiteLLM's ``error.type`` names the cause; the status alone does not (403 is a key's scope, a team's scope or a blocked
deployment). Bodies as measured on 1.106.12; see docs/gateway.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..tables import aligned

_SECRET = re.compile(r"sk-[^\s\"',]+")
SCOPES = {
    "key_model_access_denied": ("key_scope", "the key's list does not allow this alias: grant it at the seat's alias"),
    "team_model_access_denied": ("team_scope", "the key's team does not allow this alias: add it to the team's models"),
    "user_model_access_denied": ("user_scope", "the key's user does not allow this alias"),
    "org_model_access_denied": ("organization_scope", "the key's organization does not allow this alias"),
    "project_model_access_denied": ("project_scope", "the key's project does not allow this alias"),
    "customer_model_access_denied": ("customer_scope", "the end user of the call may not use this alias"),
    "agent_model_access_denied": ("agent_scope", "the key's agent does not allow this alias"),
}
# What stops a key in every call, whatever its list says.
STOPPED = {
    "key_expired": "the key has expired: give it a new expiry, or rotate it",
    "key_blocked": "the key is blocked: unblock it at the gateway",
    "budget_exceeded": "a budget is used up: raise it, or wait for its reset",
}
# How the stub of a closed alias names its error (seatfleet.stub); LiteLLM carries it inside its own message.
DRAINING = "seat_draining"
# What a deployment's seat is to blame for when the gateway itself answers: another generation may be without it.
# "unexpected" is an error of the seat's own that has no name here, such as a missing chat template.
SEAT_FAULTS = frozenset({"seat_down", "seat_key", "served_name", "cooldown", "unexpected"})
REFUSED = frozenset(
    {"key_missing", "key_blocked", "key_expired", "unauthorized"} | {name for name, _ in SCOPES.values()}
)


def scrub(text: str, limit: int = 300) -> str:
    """Return text of a response without anything that looks like a key, shortened for a message."""
    return " ".join(_SECRET.sub("sk-(hidden)", text).split())[:limit]


@dataclass(frozen=True)
class Verdict:
    """``kind`` is a stable word for programs, ``sentence`` tells an operator what to fix."""

    kind: str
    sentence: str

    @property
    def refused(self) -> bool:
        """Whether the gateway refused because of who asks, which is what a negative control must see."""
        return self.kind in REFUSED


def classify(status: int, body: object) -> Verdict:
    """Return the verdict on one response; ``body`` is the parsed JSON, or the text when it was none."""
    kind, message = _error(body)
    if 200 <= status < 300:
        return Verdict("ok", "answered")
    if kind in SCOPES:
        return Verdict(*SCOPES[kind])
    if status in (401, 403) and "litellm.authenticationerror" in message.lower():
        return Verdict(
            "seat_key", "the seat refused the gateway's API key: run the seat's play, it registers the new one"
        )
    if status == 401:
        if kind in ("token_not_found_in_db", "token_not_found"):
            return Verdict("key_missing", "the gateway does not know this key: register it, or correct the vault")
        if kind == "expired_key" or "expired" in message.lower():
            return _stopped("key_expired")
        if "blocked" in message.lower():
            return _stopped("key_blocked")
        return Verdict("unauthorized", f"the gateway refused the key: {scrub(message)}")
    if kind == "permission_error" and "blocked" in message.lower():
        return Verdict("alias_blocked", "the deployment is blocked (/model/block): unblock it, or run the seat's play")
    if "budget" in kind or "budget" in message.lower():
        return _stopped("budget_exceeded")
    if kind == "all_deployments_in_cooldown" or message.startswith("No deployments available"):
        return Verdict("cooldown", "the seat failed a moment ago and is in cooldown: repeat after the cooldown")
    if status == 429:
        return Verdict("rate_limited", f"a rate limit was hit: {scrub(message)}")
    if status == 400 and "invalid model name" in message.lower():
        return Verdict("alias_unknown", "the gateway has no such alias (a ghost in the key's list): register the seat")
    if "does not exist" in message.lower() and status in (400, 404, 500):
        return Verdict("served_name", f"the seat runs, but does not serve this model name: {scrub(message)}")
    if status == 503 and DRAINING in message:
        return Verdict("draining", "the alias is closed while its seat restarts: repeat after Retry-After seconds")
    if status >= 500:
        return Verdict("seat_down", f"the gateway cannot get an answer from the seat: {scrub(message)}")
    return Verdict("unexpected", f"status {status}, type {kind or 'none'}: {scrub(message)}")


def _stopped(kind: str) -> Verdict:
    return Verdict(kind, STOPPED[kind])


def _error(body: object) -> tuple[str, str]:
    """Return (type, message) of an error body; LiteLLM has the forms ``error``, ``detail`` and plain text."""
    if not isinstance(body, Mapping):
        return "", str(body)
    error: Any = body.get("error", body.get("detail", body))
    if isinstance(error, Mapping):
        return str(error.get("type") or ""), str(error.get("message") or error.get("error") or error)
    return "", str(error)


@dataclass(frozen=True)
class Cell:
    """One proven pair of key and alias. ``expected`` is ``allow`` or ``deny``; ``ok`` says whether it came out so."""

    key: str
    alias: str
    expected: str
    ok: bool
    verdict: str
    sentence: str
    listed: bool | None = None
    deployment: str | None = None
    routes: Mapping[str, str] | None = None
    twin: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form for the evidence."""
        return asdict(self)


def judge(
    *,
    key: str,
    alias: str,
    expected: str,
    ids: Sequence[str],
    listed: bool,
    verdict: Verdict,
    deployment: str | None,
    routes: Mapping[str, Verdict] | None = None,
    twin: bool = False,
) -> Cell:
    """Turn what was seen for one key and alias into a cell.

    Args:
        key: key alias.
        alias: alias that was called.
        expected: ``allow`` or ``deny``.
        ids: deployment ids that belong to the alias' seat.
        listed: whether ``/v1/models`` of the key shows the alias.
        verdict: of the one-token completion.
        deployment: header ``x-litellm-model-id`` of that completion.
        routes: of the other ways in (``?model=``, ``/openai/deployments/...``), for keys that must be refused.
        twin: whether a short-lived twin of the key was used, as its value is not ours.
    """
    ways = {name: seen.kind for name, seen in (routes or {}).items()}

    def cell(ok: bool, kind: str, sentence: str) -> Cell:
        return Cell(key, alias, expected, ok, kind, sentence, listed, deployment, ways or None, twin)

    if expected == "deny":
        open_ways = [name for name, seen in (routes or {}).items() if not seen.refused]
        if verdict.kind == "ok" or "ok" in ways.values():
            return cell(
                False, "over_granted", "may call this alias although no seat grants it: take it out of its list"
            )
        if not verdict.refused:
            return cell(False, verdict.kind, f"expected 401 or 403, seen: {verdict.sentence}")
        if open_ways:
            return cell(False, "unexpected", f"not refused as expected through {', '.join(open_ways)}")
        if listed:
            return cell(False, "listed", "is refused, yet /v1/models shows it this alias")
        return cell(True, "refused", "refused as it must be")
    if verdict.kind != "ok":
        hint = " (/v1/models shows the alias nevertheless)" if listed and verdict.refused else ""
        return cell(False, verdict.kind, verdict.sentence + hint)
    if deployment not in ids:
        return cell(
            False,
            "wrong_seat",
            f"answered by {deployment or 'an unnamed deployment'}, expected {' or '.join(ids) or 'one of our own'}:"
            " another deployment or a fallback serves this alias",
        )
    if not listed:
        return cell(False, "not_listed", "answers, but /v1/models of the key does not show the alias")
    return cell(True, "ok", "answered by its seat")


def faulty_aliases(cells: Iterable[Cell]) -> list[str]:
    """Return the aliases that a key should have been answered under and was not, because of the seat behind them."""
    failed = (cell for cell in cells if not cell.ok and cell.expected == "allow")
    return sorted({cell.alias for cell in failed if cell.verdict in SEAT_FAULTS})


def table(cells: Sequence[Cell]) -> str:
    """Return the cells as an aligned text table, in their order."""
    if not cells:
        return "no aliases here, nothing to prove"
    rows = [("KEY", "ALIAS", "EXPECTED", "RESULT", "DEPLOYMENT", "WHAT IT MEANS")]
    rows += [
        (
            cell.key + (" (twin)" if cell.twin else ""),
            cell.alias,
            cell.expected,
            ("ok" if cell.ok else "FAILED") + f" {cell.verdict}" * (cell.verdict not in ("ok",)),
            cell.deployment or "-",
            cell.sentence,
        )
        for cell in cells
    ]
    return "\n".join(aligned(rows))
