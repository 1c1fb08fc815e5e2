"""Carry out what :mod:`seatfleet.core.gateway.state` and :mod:`seatfleet.core.gateway.keys` plan, and prove it.

Order and safety: a deployment is replaced by a second one that was proven under a name that no caller knows, and is
proven again before the first is deleted; key lists are read, changed and written under a lock on this controller, and
read again after a settling time, because another controller may have written a list that it had read before ours.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..core.gateway.keys import (
    GRANTS_FIELD,
    LIFETIME_FIELD,
    NO_MODELS,
    KeyPlan,
    KeyState,
    KeyStep,
    WantedKey,
    duration_s,
    ghosts,
    lost_aliases,
    plan_keys,
)
from ..core.gateway.state import (
    MANAGED_BY,
    AliasPlan,
    LiveDeployment,
    Step,
    WantedAlias,
    closed_alias,
    plan_aliases,
    plan_close,
    plan_removal,
)
from ..core.gateway.verdict import SEAT_FAULTS, STOPPED, Cell, Verdict, judge
from ..core.gateway.versions import version_problem
from .gateway import ROUTES, Answer, Gateway, GatewayDownError, GatewayError, GatewayErrors, ProofError
from .gateway_lock import LockTimeoutError, gateway_lock

__all__ = [
    "Gateway",
    "GatewayDownError",
    "GatewayError",
    "KeyOptions",
    "LockTimeoutError",
    "Proof",
    "ProofAlias",
    "close_alias",
    "prove",
    "sync_aliases",
    "sync_keys",
]

# Longest read-to-write time of a key list that another controller may need; measured 25-60 ms on an idle proxy, so 2 s
# covers a slow one. A list is final when it is unchanged this long after our last write.
SETTLE_S = 2.0
MAX_ROUNDS = 8
# LiteLLM puts a failed deployment aside for 5 s; a proof that follows a restart has to outlast that.
COOLDOWN_LIMIT_S = 22.0
# With several workers, a deployment made through one reaches the others within 30 s (proxy_config_reload_interval).
SPREAD_S = 35.0
# Status of a call that ended without an answer of the seat.
NO_ANSWER = 504
TWIN_PREFIX = "seatfleet-proof-"
TWIN_LIFE = "10m"


@dataclass(frozen=True)
class AliasResult:
    """What :func:`sync_aliases` did. ``before`` and ``after`` are for the diff and hold no secret."""

    plan: AliasPlan
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)

    @property
    def changed(self) -> bool:
        """Whether the gateway was (or would be) changed."""
        return bool(self.plan.steps)


def sync_aliases(
    gateway: Gateway,
    wanted: Sequence[WantedAlias],
    host: str,
    *,
    spare: Collection[str] = (),
    in_file: bool = False,
    check: bool = False,
) -> AliasResult:
    """Make the gateway serve exactly these aliases for the seats of ``host``, but for those of the seats ``spare``.

    With ``in_file`` the proxy's config file serves them, and only what the database still has of them is deleted.

    Raises:
        GatewayError: a problem of the plan (then nothing was changed), or steps that failed; the others were done. A
            new deployment whose seat does not answer is deleted again, and the old one stays. An alias that was to go
            is still served.
        GatewayDownError: the gateway went; nothing was tried after that.
    """
    with gateway_lock(gateway.url):
        live = gateway.list_deployments()
        plan = plan_removal(live, host) if in_file else plan_aliases(live, wanted, host, spare)
        if plan.problems:
            raise GatewayError("; ".join(plan.problems), kind="plan")
        errors: list[GatewayError] = []
        result = _carry_out(gateway, plan, live, check, errors)
        for alias in () if check else plan.dropped:
            with _kept(errors):
                _prove_gone(gateway, alias)
        _raise_all(errors)
    return result


def close_alias(
    gateway: Gateway,
    want: WantedAlias,
    stub_url: str,
    seat_key: Callable[[str, str], str],
    *,
    check: bool = False,
) -> AliasResult:
    """Lead an alias away from its seat, to the fallback or else to the stub, until :func:`sync_aliases` opens it.

    A fallback that is served and does not answer is none: the stub stands in for it, and a note of the plan says so.

    Raises:
        GatewayError: the stub does not answer as it should, or a change failed; the alias still leads to its seat.
    """
    with gateway_lock(gateway.url):
        live = gateway.list_deployments()
        stand_in = closed_alias(want, live, stub_url, seat_key)
        try:
            return _close(gateway, live, stand_in, check)
        except ProofError as error:
            if stand_in.api_base == stub_url:
                raise
            live = gateway.list_deployments()
            stand_in = closed_alias(replace(want, fallback=None), live, stub_url, seat_key)
            result = _close(gateway, live, stand_in, check)
            note = (
                f"its fallback {want.fallback} does not answer, so callers get 503 with Retry-After meanwhile: {error}"
            )
            return replace(result, plan=replace(result.plan, notes=(f"alias {want.alias}: {note}",)))


def _close(gateway: Gateway, live: Sequence[LiveDeployment], stand_in: WantedAlias, check: bool) -> AliasResult:
    plan = plan_close(live, [stand_in])
    errors: list[GatewayError] = []
    result = _carry_out(gateway, plan, live, check, errors)
    _raise_all(errors)
    return result


@contextmanager
def _kept(errors: list[GatewayError]) -> Iterator[None]:
    """Keep an error for later, so that what follows is done nevertheless; a gateway that is down ends everything."""
    try:
        yield
    except GatewayDownError:
        raise
    except GatewayError as error:
        errors.append(error)


def _raise_all(errors: Sequence[GatewayError]) -> None:
    if errors:
        raise errors[0] if len(errors) == 1 else GatewayErrors(errors)


def _carry_out(
    gateway: Gateway, plan: AliasPlan, live: Sequence[LiveDeployment], check: bool, errors: list[GatewayError]
) -> AliasResult:
    """Do every step; one that fails is added to ``errors``, since a seat that is dead must not keep others closed."""
    shown = {step.id for step in plan.steps} | {old for step in plan.steps for old in step.retire}
    before = {
        item.id: _shown(item.alias, item.params, item.access_groups, item.blocked) for item in live if item.id in shown
    }
    after = {key: dict(value) for key, value in before.items()}
    for step in plan.steps:
        if not check:
            with _kept(errors):
                _apply_unless_silent(gateway, step, errors)
        _predict(after, step)
    return AliasResult(plan, before, after)


def _apply_unless_silent(gateway: Gateway, step: Step, errors: Sequence[GatewayError]) -> None:
    """Apply a step, but for one that would wait minutes, under the lock, for a seat that was silent just now."""
    seat = step.wanted.seat if step.wanted is not None else None
    if seat is not None and any(seat in error.seats and error.status == NO_ANSWER for error in errors):
        raise ProofError(
            f"alias {step.alias}: left as it is, since seat {seat} gave no answer under another one",
            kind="seat_down",
            status=NO_ANSWER,
            seat=seat,
        )
    _apply(gateway, step)


def _prove_gone(gateway: Gateway, alias: str) -> None:
    """See that nobody is answered under an alias any more, not even the admin key.

    A proxy that has no deployment at all words its 400 differently, so that the status decides.
    """
    answer = _patiently(lambda: gateway.complete(alias), ("ok", "draining"), SPREAD_S)
    if answer.status not in (400, 404):
        by = f" by {answer.deployment}" if answer.deployment else ""
        raise ProofError(
            f"alias {alias} was removed and is still answered{by}: {answer.verdict.sentence}. Look for a wildcard or a"
            " fallback in the proxy's settings",
            kind="still_served",
            status=answer.status,
        )


def _apply(gateway: Gateway, step: Step) -> None:
    if step.kind == "delete":
        gateway.delete_deployment(step.id)
    elif step.kind == "unblock":
        gateway.set_blocked(step.id, False)
    elif step.wanted is not None:
        _try_out(gateway, step, step.wanted)
        made = gateway.create_deployment(step.wanted.body(step.revision))
        try:
            _prove_deployment(gateway, step, made)
        except GatewayError:
            with suppress(GatewayError):
                gateway.delete_deployment(step.id)
            raise
        for old in step.retire:
            gateway.delete_deployment(old)


def _try_out(gateway: Gateway, step: Step, wanted: WantedAlias) -> None:
    """See a new deployment answer under a name of its own: under the alias callers would be led to it at once.

    What a killed controller leaves of it goes here, or as an alias that its host does not declare.
    """
    body = wanted.trial(step.revision)
    gateway.delete_deployment(body["model_info"]["id"])
    trial = gateway.create_deployment(body)
    try:
        _prove_deployment(gateway, step, trial)
    finally:
        with suppress(GatewayError):
            gateway.delete_deployment(trial)


def _prove_deployment(gateway: Gateway, step: Step, made: str) -> None:
    """Call the new deployment by its id, which an admin key may do: no other deployment can answer instead."""
    answer = _patiently(lambda: _call_by_id(gateway, made), ("cooldown", "alias_unknown"), SPREAD_S)
    old = " The old deployment stays." if step.retire else ""
    if step.wanted is not None and step.wanted.closed and answer.verdict.kind == "draining":
        return
    if answer.verdict.kind != "ok":
        to_blame = step.wanted is not None and not step.wanted.closed and answer.verdict.kind in SEAT_FAULTS
        raise ProofError(
            f"alias {step.alias}: its new deployment {step.id} does not answer, so it was taken back.{old}"
            f" Cause: {answer.verdict.sentence}",
            kind=answer.verdict.kind,
            status=answer.status,
            seat=step.wanted.seat if step.wanted is not None and to_blame else None,
        )
    if answer.deployment != made:
        raise ProofError(f"alias {step.alias}: {answer.deployment} answered for {made}.{old}", kind="wrong_seat")


def _call_by_id(gateway: Gateway, identifier: str) -> Answer:
    """Call a deployment; no answer from a gateway that is well otherwise is its seat's silence, and an answer too."""
    try:
        return gateway.complete(identifier)
    except GatewayDownError as error:
        with suppress(GatewayDownError):
            if gateway.ready():
                return Answer(
                    NO_ANSWER, Verdict("seat_down", f"no answer from the seat ({error}), and the gateway is well")
                )
        raise


def _patiently(ask: Callable[[], Answer], kinds: Collection[str], limit_s: float) -> Answer:
    """Ask again while the answer is one that passes by itself, at most ``limit_s``."""
    end = time.monotonic() + limit_s
    while True:
        answer = ask()
        pause = answer.retry_after_s or 2.0
        if answer.verdict.kind not in kinds or time.monotonic() + pause > end:
            return answer
        time.sleep(pause)


def _shown(alias: str, params: Mapping[str, Any], groups: Sequence[str], blocked: bool) -> dict[str, Any]:
    """Return a deployment as the diff shows it."""
    visible = {name: value for name, value in params.items() if name != "api_key" and value not in (None, False)}
    shown: dict[str, Any] = {"alias": alias, **{name: visible[name] for name in sorted(visible)}}
    if groups:
        shown["access_groups"] = list(groups)
    if blocked:
        shown["blocked"] = True
    return shown


def _predict(after: dict[str, Any], step: Step) -> None:
    """Change the picture of the gateway as the step changes the gateway."""
    if step.kind == "unblock":
        after[step.id].pop("blocked", None)
    for gone in (step.id, *step.retire) if step.kind == "delete" else step.retire:
        after.pop(gone, None)
    if step.wanted is not None:
        shown = _shown(step.alias, step.wanted.public_params(), sorted(step.wanted.access_groups), False)
        if "api_key" in step.changes:
            shown["api_key"] = "(changed)"
        after[step.id] = shown


# --- keys -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeyOptions:
    """How :func:`sync_keys` treats values.

    ``overlap`` is how long a rotated key's old value goes on working (LiteLLM's form: ``24h``, ``30m``).
    ``handout`` is the directory, 0700, where values made here are written, 0600 each.
    """

    rotate: bool = False
    overlap: str = "24h"
    handout: Path | None = None
    settle_s: float = SETTLE_S


@dataclass(frozen=True)
class KeyResult:
    """What :func:`sync_keys` did: every step of every round; lists before and after, by key alias."""

    steps: tuple[KeyStep, ...] = ()
    notes: tuple[str, ...] = ()
    before: Mapping[str, Sequence[str]] = field(default_factory=dict)
    after: Mapping[str, Sequence[str]] = field(default_factory=dict)
    ghosts: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def changed(self) -> bool:
        """Whether the gateway was (or would be) changed."""
        return bool(self.steps)


def sync_keys(
    gateway: Gateway,
    wanted: Sequence[WantedKey],
    host: str,
    aliases: Collection[str],
    *,
    dropped: Collection[str] = (),
    options: KeyOptions | None = None,
    check: bool = False,
) -> KeyResult:
    """Give every wanted key its aliases, and take back what ``host`` no longer grants.

    Writers on this controller queue at a lock. A writer on another controller may overwrite a list that we changed
    between its read and its write; so after a write the lists are read again once the settling time is over, and
    repaired until they stay as wanted.

    Raises:
        GatewayError: a problem of the plan (then nothing was changed by that round), or lists that never settle.
    """
    options = options or KeyOptions()
    try:
        duration_s(options.overlap)
    except ValueError as error:
        raise GatewayError(f"seat_alias_rotation_overlap: {error}", kind="plan") from None
    steps: list[KeyStep] = []
    with gateway_lock(gateway.url):
        wrote_at: float | None = None
        served = {item.alias for item in gateway.list_deployments()}
        for _ in range(MAX_ROUNDS):
            live = gateway.list_keys()
            dropped = {*dropped, *lost_aliases(live, host, {*served, *aliases})}
            plan = _plan_keys(live, wanted, host, aliases, dropped, options)
            if plan.steps:
                steps += plan.steps
                if check:
                    break
                for step in plan.steps:
                    _apply_key(gateway, step, wanted, host, aliases, dropped, options)
                wrote_at = time.monotonic()
            elif wrote_at is None or time.monotonic() - wrote_at >= options.settle_s:
                break
            if wrote_at is not None:
                time.sleep(max(0.0, wrote_at + options.settle_s - time.monotonic()) + random.uniform(0.0, 0.3))
        else:
            raise GatewayError(
                f"key lists at {gateway.url} do not stay as written after {MAX_ROUNDS} rounds: another program edits"
                " them; find it and run again",
                kind="contested",
            )
        names = set(gateway.access_groups()) | served | set(aliases)
        leftover = ghosts(gateway.list_keys(), names)
    before: dict[str, Sequence[str]] = {}
    after: dict[str, Sequence[str]] = {}
    for step in steps:
        before.setdefault(step.alias, list(step.before))
        after[step.alias] = list(step.after)
    return KeyResult(tuple(steps), plan.notes, before, after, leftover)


def _plan_keys(
    live: Sequence[KeyState],
    wanted: Sequence[WantedKey],
    host: str,
    aliases: Collection[str],
    dropped: Collection[str],
    options: KeyOptions,
    only: str | None = None,
) -> KeyPlan:
    plan = plan_keys(
        live,
        wanted,
        host=host,
        aliases=aliases,
        dropped=dropped,
        rotate=options.rotate,
        may_generate=options.handout is not None,
        only=only,
    )
    if plan.problems:
        raise GatewayError("; ".join(plan.problems), kind="plan")
    return plan


def _apply_key(
    gateway: Gateway,
    step: KeyStep,
    wanted: Sequence[WantedKey],
    host: str,
    aliases: Collection[str],
    dropped: Collection[str],
    options: KeyOptions,
) -> None:
    want = next((item for item in wanted if item.alias == step.alias), None)
    if step.kind == "create":
        _create_key(gateway, step, want.value if want else None, options)
    elif step.kind == "rotate":
        _rotate_key(gateway, step, (want.value if want else None) or "", options)
    else:
        # Planned again on a fresh read of this one key: keeps the time from read to write at one round trip.
        fresh = gateway.key(step.hash)
        if fresh is None:
            return
        for again in _plan_keys([fresh], wanted, host, aliases, dropped, options, only=step.alias).steps:
            metadata = {**fresh.metadata, GRANTS_FIELD: dict(again.grants)}
            gateway.update_key(again.hash, models=list(again.after), metadata=metadata)


def _create_key(gateway: Gateway, step: KeyStep, value: str | None, options: KeyOptions) -> None:
    metadata = {"managed_by": MANAGED_BY, GRANTS_FIELD: dict(step.grants)}
    if value is not None:
        gateway.create_key(value, step.alias, step.after, metadata)
        return
    if options.handout is None:
        raise GatewayError(f"key {step.alias}: no value and no directory to hand a new one out", kind="plan")
    value = f"sk-{secrets.token_urlsafe(32)}"
    with _handed_out(options.handout, step.alias, value):
        gateway.create_key(value, step.alias, step.after, metadata)


@contextmanager
def _handed_out(directory: Path, alias: str, value: str) -> Iterator[None]:
    """Write a new value to its file before the key is made, so that it cannot be lost; removed when the key is not."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / f"{alias}.key"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(value + "\n")
    try:
        yield
    except BaseException:
        path.unlink()
        raise


def _rotate_key(gateway: Gateway, step: KeyStep, value: str, options: KeyOptions) -> None:
    """Give the alias to a new value; the old one goes on under another alias until the overlap is over.

    The overlap never lengthens the old value's life. The new value lives as long as the old one was made for, has its
    spend, and is blocked when the old one is: a rotation opens nothing that somebody closed.
    """
    now = datetime.now(UTC)
    old = gateway.key(step.hash)
    if old is None:
        raise GatewayError(f"key {step.alias}: gone while it was rotated; run again", kind="contested")
    left, lifetime, alias = old.left_s(now), old.lifetime_s(), old.alias
    plain = {name: value for name, value in old.metadata.items() if name != LIFETIME_FIELD}
    shorten = {"duration": options.overlap} if left is None or left > duration_s(options.overlap) else {}
    more: dict[str, Any] = {"spend": old.spend, "metadata": plain}
    more |= {"blocked": True} if old.blocked else {}
    more |= {"duration": f"{lifetime}s"} if lifetime is not None else {}
    if not old.retired:
        metadata = {**plain, LIFETIME_FIELD: lifetime}
        gateway.update_key(step.hash, key_alias=old.retired_alias(), metadata=metadata, **shorten)
    try:
        gateway.copy_key(step.hash, value, step.alias, more=more)
    except GatewayError:
        before = {"duration": "-1" if left is None else f"{left}s"} if shorten else {}
        if not old.retired:
            gateway.update_key(step.hash, key_alias=alias, metadata=plain, **before)
        raise


# --- proof ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProofAlias:
    """An alias to prove: the deployment ids of its seat, and the key aliases that may call it."""

    name: str
    ids: tuple[str, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Proof:
    """The matrix, and the version of the proxy that answered."""

    cells: tuple[Cell, ...] = ()
    problems: tuple[str, ...] = ()
    version: str | None = None

    @property
    def failed(self) -> list[Cell]:
        """Cells that did not come out as they must."""
        return [cell for cell in self.cells if not cell.ok]


def prove(
    gateway: Gateway,
    aliases: Sequence[ProofAlias],
    values: Mapping[str, str],
    *,
    control: str | None = None,
) -> Proof:
    """Call every alias with every key that is declared for one of them, and with a key that must be refused.

    Args:
        gateway: the proxy, with its admin key.
        aliases: what to prove.
        values: key alias -> value, for the keys whose value we hold. A declared key without one is proven by a twin
            with the same list, team and limits that lives for ten minutes at most.
        control: key alias in ``values`` that must be refused everywhere; None makes a short-lived key for this.
    """
    live = {key.alias: key for key in gateway.list_keys() if key.alias}
    _sweep(gateway, live.values())
    cells: list[Cell] = []
    version: str | None = None
    names = sorted({*values, *(key for alias in aliases for key in alias.keys)} - {control})
    for name in names:
        with _callable(gateway, name, values.get(name), live.get(name)) as (caller, twin):
            if caller is None:
                cells += [_missing(name, alias) for alias in aliases if name in alias.keys]
                continue
            prover = _Prover(caller, name, twin)
            made = [prover.cell(alias, "allow" if name in alias.keys else "deny") for alias in aliases]
            cells += [_of_original(cell, live[name]) for cell in made] if twin else made
            version = prover.version or version
    with _control(gateway, control, values) as (label, caller):
        prover = _Prover(caller, label, False)
        cells += [prover.cell(alias, "deny") for alias in aliases]
    problems = _poke(gateway, aliases)
    if version and (problem := version_problem(version)):
        problems.append(problem)
    return Proof(tuple(cells), tuple(problems), version)


def _of_original(cell: Cell, original: KeyState) -> Cell:
    """Correct what a twin cannot show: it is neither blocked nor expired, and has spent nothing."""
    stopped = original.obstacle(datetime.now(UTC))
    if cell.expected == "deny" or not cell.ok or stopped is None:
        return cell
    return replace(cell, ok=False, verdict=stopped, sentence=STOPPED[stopped])


def _poke(gateway: Gateway, aliases: Sequence[ProofAlias]) -> list[str]:
    """Send each alias the opposite of its template switches and return what that changed for later callers.

    Before LiteLLM #29620 one such request rewrote the alias in the proxy's memory, for everybody until a restart.
    """
    names = {identifier: alias.name for alias in aliases for identifier in alias.ids}
    before = _memory(gateway, names)
    for identifier, params in before.items():
        switches = (params.get("extra_body") or {}).get("chat_template_kwargs") or {}
        opposite = {name: not value for name, value in switches.items() if isinstance(value, bool)}
        if opposite:
            gateway.complete(identifier, more={"chat_template_kwargs": opposite})
    after = _memory(gateway, names)
    return [
        f"alias {names[identifier]}: one request changed {', '.join(changed)} of deployment {identifier} in the proxy's"
        " memory, for every caller; restart the proxy and update LiteLLM"
        for identifier in before.keys() & after.keys()
        if (changed := sorted(_changed(before[identifier], after[identifier])))
    ]


def _memory(gateway: Gateway, names: Collection[str]) -> dict[str, Mapping[str, Any]]:
    return {item.id: item.params for item in gateway.list_deployments() if item.id in names}


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> set[str]:
    return {name for name in {*before, *after} if before.get(name) != after.get(name)}


class _Prover:
    """Proves aliases with one key."""

    def __init__(self, caller: Gateway, name: str, twin: bool) -> None:
        self.caller = caller
        self.name = name
        self.twin = twin
        self.version: str | None = None
        self.admin = caller.is_admin()
        try:
            self.visible: list[str] = caller.models()
        except GatewayError:
            self.visible = []

    def cell(self, alias: ProofAlias, expected: str) -> Cell:
        """Prove one alias."""
        if self.admin:
            return self._admin_cell(alias, expected)
        passing = ("cooldown",) if expected == "deny" else ("cooldown", "alias_unknown")
        answer = _patiently(lambda: self.caller.complete(alias.name), passing, COOLDOWN_LIMIT_S)
        self.version = answer.version or self.version
        routes: dict[str, Verdict] = {}
        if expected == "deny" and answer.verdict.refused:
            routes = {route: self.caller.complete(alias.name, route).verdict for route in ROUTES if route != "body"}
            routes |= {f"id {name}": self.caller.complete(name).verdict for name in alias.ids}
        return judge(
            key=self.name,
            alias=alias.name,
            expected=expected,
            ids=alias.ids,
            listed=alias.name in self.visible,
            verdict=answer.verdict,
            deployment=answer.deployment,
            routes=routes,
            twin=self.twin,
        )

    def _admin_cell(self, alias: ProofAlias, expected: str) -> Cell:
        answer = self.caller.complete(alias.name)
        self.version = answer.version or self.version
        ok = answer.verdict.kind == "ok" and answer.deployment in alias.ids
        sentence = "admin: unrestricted (its 200 proves no allowlist)" if ok else answer.verdict.sentence
        return Cell(
            self.name,
            alias.name,
            expected,
            ok,
            "admin" if ok else answer.verdict.kind,
            sentence,
            alias.name in self.visible,
            answer.deployment,
        )


def _missing(name: str, alias: ProofAlias) -> Cell:
    return Cell(name, alias.name, "allow", False, "key_missing", "the gateway has no such key: declare and register it")


@contextmanager
def _callable(
    gateway: Gateway, name: str, value: str | None, state: KeyState | None
) -> Iterator[tuple[Gateway | None, bool]]:
    """Yield the proxy called as this key, and whether a twin stands in for it."""
    if value is not None:
        with gateway.as_key(value) as caller:
            yield caller, False
    elif state is None:
        yield None, False
    else:
        value = f"sk-{secrets.token_urlsafe(32)}"
        more = {"duration": TWIN_LIFE, "metadata": {"managed_by": MANAGED_BY, "purpose": "proof"}}
        hashed = gateway.copy_key(state.hash, value, f"{TWIN_PREFIX}{secrets.token_hex(6)}", more=more)
        try:
            with gateway.as_key(value) as caller:
                yield caller, True
        finally:
            gateway.delete_keys([hashed])


@contextmanager
def _control(gateway: Gateway, control: str | None, values: Mapping[str, str]) -> Iterator[tuple[str, Gateway]]:
    """Yield a key that must be refused, with its name."""
    if control is not None:
        with gateway.as_key(values[control]) as caller:
            yield control, caller
        return
    value = f"sk-{secrets.token_urlsafe(32)}"
    metadata = {"managed_by": MANAGED_BY, "purpose": "proof"}
    alias = f"{TWIN_PREFIX}{secrets.token_hex(6)}"
    hashed = gateway.create_key(value, alias, [NO_MODELS], metadata, more={"duration": TWIN_LIFE})
    try:
        with gateway.as_key(value) as caller:
            yield "(control)", caller
    finally:
        gateway.delete_keys([hashed])


def _sweep(gateway: Gateway, keys: Collection[KeyState]) -> None:
    """Delete expired proof keys of runs that were killed."""
    now = datetime.now(UTC)
    gateway.delete_keys([key.hash for key in keys if key.alias.startswith(TWIN_PREFIX) and (key.left_s(now) or 0) < 0])
