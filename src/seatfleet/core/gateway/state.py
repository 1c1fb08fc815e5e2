"""What the gateway should hold for the aliases of a host's seats, and the steps from what it holds to that.

Pure: no I/O, nothing secret in what is returned. The rules come from LiteLLM 1.106.12 as measured (docs/gateway.md):

* a deployment's identity is its ``model_info.id``; ``model_name`` (the alias) is shared by all deployments behind it;
* an update merges and ignores null, so an exact state needs a second deployment and the deletion of the first;
* renaming an alias rewrites the lists of keys: never done.

Keys are the business of :mod:`seatfleet.core.gateway.keys`.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..inventory.seat import Alias, Seat

MANAGED_BY = "seatfleet"
TRIAL_PREFIX = "trial-"
# OpenAI parameters that LiteLLM takes at the top level of litellm_params; every other sampling parameter is an
# extension of vLLM and travels in extra_body.
OPENAI_SAMPLING = frozenset(
    {
        "temperature",
        "top_p",
        "presence_penalty",
        "frequency_penalty",
        "max_tokens",
        "max_completion_tokens",
        "seed",
        "stop",
    }
)
# Limits that LiteLLM keeps in litellm_params; the others are figures shown in model_info.
PARAM_LIMITS = {"rpm": "rpm", "tpm": "tpm", "max_parallel_requests": "max_parallel_requests", "timeout_s": "timeout"}
# A closed alias answers at once. By default LiteLLM repeats a 503 twice and sleeps its Retry-After each time (measured:
# 62 s for 20 s), and would put the deployment aside for as long.
AT_ONCE: Mapping[str, int] = {"num_retries": 0, "max_retries": 0, "cooldown_time": 0}
_DIGEST_ROUNDS = 10_000


def secret_digest(secret: str, salt: str | None = None) -> str:
    """Return ``salt$digest`` of a secret, to see later whether it changed.

    The gateway never gives a backend's API key back, and every key holder can read ``model_info``: so a salted
    hash (PBKDF2). The secret is 256 random bits, so 10,000 rounds (4 ms) only have to be more than none.
    """
    salt = salt if salt is not None else secrets.token_hex(8)
    digest = hashlib.pbkdf2_hmac("sha256", secret.encode(), salt.encode(), _DIGEST_ROUNDS).hex()
    return f"{salt}${digest}"


def secret_matches(secret: str, digest: object) -> bool:
    """Tell whether ``digest`` (of :func:`secret_digest`) was made from this secret; False for anything malformed."""
    if not isinstance(digest, str) or "$" not in digest:
        return False
    return hmac.compare_digest(secret_digest(secret, digest.split("$", 1)[0]), digest)


@dataclass(frozen=True)
class WantedAlias:
    """One alias of one seat, as the gateway shall serve it.

    ``served_model`` is the model name that the seat's vLLM answers to; the alias itself by default, so that no two
    aliases share LiteLLM's ``model`` string (it indexes a process-wide table of limits: one alias' limits would show up
    at, and clamp, all others). ``limits`` has the names of the seat schema.
    """

    alias: str
    host: str
    seat: str
    api_base: str
    api_key: str = field(repr=False)
    keys: tuple[str, ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    chat_template_kwargs: Mapping[str, Any] | None = None
    access_groups: tuple[str, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    served_model: str | None = None
    adopt: bool = False
    fallback: str | None = None
    # Led away from its seat, to a stub or to a fallback's seat, while the seat restarts (see plan_close).
    closed: bool = False

    @property
    def base_id(self) -> str:
        """The deployment id of the first revision; also the prefix of the later ones."""
        return f"{'closed' if self.closed else 'seat'}-{self.host}-{self.seat}-{self.alias}"

    def deployment_id(self, revision: int) -> str:
        """Return the id of a revision: the stable id, with ``@2``, ``@3`` ... after a replacement."""
        return self.base_id if revision == 1 else f"{self.base_id}@{revision}"

    def public_params(self) -> dict[str, Any]:
        """Return ``litellm_params`` without the secret."""
        params: dict[str, Any] = {
            "model": f"hosted_vllm/{self.served_model or self.alias}",
            "api_base": self.api_base,
        }
        params.update({PARAM_LIMITS[name]: value for name, value in self.limits.items() if name in PARAM_LIMITS})
        if self.closed:
            params.update(AT_ONCE)
        extra: dict[str, Any] = {}
        for name, value in self.sampling.items():
            (params if name in OPENAI_SAMPLING else extra)[name] = value
        if self.chat_template_kwargs is not None:
            extra["chat_template_kwargs"] = dict(self.chat_template_kwargs)
        if extra:
            params["extra_body"] = extra
        return params

    def shown_limits(self) -> dict[str, int]:
        """Return the limits that are figures in ``model_info`` only."""
        return {name: value for name, value in self.limits.items() if name not in PARAM_LIMITS}

    def body(self, revision: int) -> dict[str, Any]:
        """Return the body of ``/model/new``. It holds the seat's API key."""
        info: dict[str, Any] = {
            **self.shown_limits(),
            "id": self.deployment_id(revision),
            "managed_by": MANAGED_BY,
            MANAGED_BY: {
                "host": self.host,
                "seat": self.seat,
                "revision": revision,
                "limits": self.shown_limits(),
                "secret": secret_digest(self.api_key),
                **({"closed": True} if self.closed else {}),
            },
        }
        if self.access_groups:
            info["access_groups"] = sorted(self.access_groups)
        return {
            "model_name": self.alias,
            "litellm_params": {**self.public_params(), "api_key": self.api_key},
            "model_info": info,
        }

    def trial(self, revision: int) -> dict[str, Any]:
        """Return :meth:`body` under a name that no caller knows and no access group holds, to be tried out first."""
        body = self.body(revision)
        name = TRIAL_PREFIX + self.deployment_id(revision)
        info = {key: value for key, value in body["model_info"].items() if key != "access_groups"}
        return {**body, "model_name": name, "model_info": {**info, "id": name}}


@dataclass(frozen=True)
class LiveDeployment:
    """One deployment that the gateway has, from ``GET /model/info`` (which never shows its API key)."""

    id: str
    alias: str
    params: Mapping[str, Any]
    info: Mapping[str, Any]

    @classmethod
    def from_api(cls, entry: Mapping[str, Any]) -> LiveDeployment:
        """Read one entry of ``data``."""
        info = entry.get("model_info") or {}
        return cls(
            id=str(info.get("id", "")),
            alias=str(entry.get("model_name", "")),
            params=entry.get("litellm_params") or {},
            info=info,
        )

    @property
    def _marker(self) -> Mapping[str, Any]:
        marker = self.info.get(MANAGED_BY)
        return marker if isinstance(marker, Mapping) else {}

    @property
    def managed(self) -> bool:
        """Whether seatfleet made it."""
        return self.info.get("managed_by") == MANAGED_BY

    @property
    def host(self) -> str:
        """The seat's host as recorded by us, else empty."""
        return str(self._marker.get("host", ""))

    @property
    def seat(self) -> str:
        """The seat's name as recorded by us, else empty."""
        return str(self._marker.get("seat", ""))

    @property
    def revision(self) -> int:
        """The revision as recorded by us; 1 when absent."""
        revision = self._marker.get("revision")
        return revision if isinstance(revision, int) else 1

    @property
    def closed(self) -> bool:
        """Whether it stands in for a seat that restarts."""
        return bool(self._marker.get("closed"))

    @property
    def in_database(self) -> bool:
        """False for a deployment of the proxy's own config file, which the API can neither change nor delete."""
        return bool(self.info.get("db_model"))

    @property
    def blocked(self) -> bool:
        """Whether calls are answered with 403 ``permission_error``."""
        return bool(self.info.get("blocked"))

    @property
    def access_groups(self) -> tuple[str, ...]:
        """Access groups that contain this deployment."""
        return tuple(sorted(self.info.get("access_groups") or ()))

    def owner(self) -> str:
        """Say in words whose it is, for messages."""
        return f"seat {self.seat} on {self.host}" if self.managed and self.seat else "not managed by seatfleet"


Changes = Mapping[str, tuple[Any, Any]]


def differences(live: LiveDeployment, wanted: WantedAlias) -> dict[str, tuple[Any, Any]]:
    """Return field -> (live, wanted) for everything that differs, fields that must disappear included.

    LiteLLM adds switches of its own (``use_in_pass_through: false`` ...): a live False or None that is not declared is
    the same as absent. Shown token limits cannot be read back reliably (a process-wide table fills them in), so they
    are compared with our own record. A changed secret shows as its name only.
    """
    declared = wanted.public_params()
    changes: dict[str, tuple[Any, Any]] = {}
    for name in sorted({*live.params, *declared} - {"api_key"}):
        before, after = live.params.get(name), declared.get(name)
        if before != after and not (name not in declared and before in (None, False)):
            changes[name] = (before, after)
    groups = tuple(sorted(wanted.access_groups))
    if live.access_groups != groups:
        changes["access_groups"] = (list(live.access_groups), list(groups))
    marker = live._marker
    if marker.get("limits") != wanted.shown_limits():
        changes["limits"] = (marker.get("limits"), wanted.shown_limits())
    if not secret_matches(wanted.api_key, marker.get("secret")):
        changes["api_key"] = ("(another secret)", "(the seat's secret)")
    return changes


@dataclass(frozen=True)
class Step:
    """One change to make at the gateway; applied in the order of the plan.

    ``kind`` is ``create`` (new deployment), ``replace`` (new deployment, proven, then ``retire`` deleted), ``delete``,
    or ``unblock``. ``wanted`` is set for create and replace.
    """

    kind: str
    alias: str
    id: str
    why: str
    wanted: WantedAlias | None = None
    revision: int = 1
    retire: tuple[str, ...] = ()
    changes: Changes = field(default_factory=dict)

    def describe(self) -> str:
        """One line for logs and diffs, without secrets."""
        return f"{self.kind} {self.id}: {self.why}"


@dataclass(frozen=True)
class AliasPlan:
    """Steps, what stands in their way, and what an operator should know."""

    steps: tuple[Step, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    # alias -> deployment ids that may answer for it once the steps are done
    ids: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # aliases whose last deployment goes away with this plan
    dropped: tuple[str, ...] = ()


def plan_removal(live: Sequence[LiveDeployment], host: str) -> AliasPlan:
    """Return the steps that leave the seats of ``host`` to the proxy's config file: our database entries go."""
    old = [item for item in live if item.managed and item.host == host and item.in_database]
    steps = tuple(Step("delete", item.alias, item.id, "the config file serves this host's aliases") for item in old)
    left = {item.alias for item in live if item not in old}
    return AliasPlan(steps, dropped=tuple(sorted({item.alias for item in old} - left)))


def plan_aliases(
    live: Sequence[LiveDeployment], wanted: Sequence[WantedAlias], host: str, spare: Collection[str] = ()
) -> AliasPlan:
    """Return the steps that make the gateway serve exactly ``wanted`` for the seats of ``host``.

    Deployments of the seats ``spare`` stay as they are: those of a seat that is down would only be exchanged for others
    that do not answer.

    Only deployments with our marker are touched: those recorded for ``host``, and those of a wanted alias that another
    seat held before (an alias belongs to one seat, so that is a move). A foreign deployment behind a wanted alias would
    share its calls: it is a problem, unless the alias says ``adopt``.
    """
    steps: list[Step] = []
    problems: list[str] = []
    ids: dict[str, tuple[str, ...]] = {}
    handled = {item.id for item in live if item.managed and item.host == host and item.seat in spare}
    for want in sorted((want for want in wanted if want.seat not in spare), key=lambda item: item.alias):
        same = [item for item in live if item.alias == want.alias]
        blocking = [item for item in same if not item.in_database or not (item.managed or want.adopt)]
        if blocking:
            problems += [_foreign_problem(want, item) for item in blocking]
            handled |= {item.id for item in same}
            continue
        # Names with hyphens: alias next-x of seat flash has the id of alias x of seat flash-next.
        taken = {*(item.id for item in live), *(step.id for step in steps)}
        step, keep, retire = _plan_one(want, same, taken)
        handled |= {item.id for item in same}
        if step is not None:
            steps.append(step)
        if keep is not None:
            ids[want.alias] = (keep.id,)
            if keep.blocked:
                steps.append(Step("unblock", want.alias, keep.id, "blocked, but its seat is declared present"))
            steps += [Step("delete", want.alias, item.id, _left_over(want, item)) for item in retire]
        elif step is not None:
            ids[want.alias] = (step.id,)
    for item in live:
        if item.managed and item.host == host and item.id not in handled:
            if not item.in_database:
                problems.append(f"deployment {item.id} is not declared any more, but {_IN_FILE}")
                continue
            steps.append(Step("delete", item.alias, item.id, f"no seat on {host} declares alias {item.alias}"))
    gone = {step.id for step in steps if step.kind == "delete"} | {old for step in steps for old in step.retire}
    left = {item.alias for item in live if item.id not in gone} | {want.alias for want in wanted}
    dropped = {item.alias for item in live if item.id in gone} - left
    return AliasPlan(tuple(steps), tuple(problems), (), ids, tuple(sorted(dropped)))


def plan_close(live: Sequence[LiveDeployment], wanted: Sequence[WantedAlias]) -> AliasPlan:
    """Return the steps that lead aliases away from their seats; ``wanted`` are all :attr:`WantedAlias.closed`.

    Only our own deployments of the seats change. An alias that the gateway does not have is left so; one that a
    deployment of others serves too loses only ours, and is served by that one meanwhile.
    """
    steps: list[Step] = []
    ids: dict[str, tuple[str, ...]] = {}
    for want in sorted(wanted, key=lambda item: item.alias):
        same = [item for item in live if item.alias == want.alias]
        ours = [item for item in same if item.managed and (item.host, item.seat) == (want.host, want.seat)]
        if not ours:
            continue
        if any(item not in ours and not item.blocked for item in same):
            steps += [Step("delete", want.alias, item.id, "its seat restarts, another one serves") for item in ours]
            continue
        there = [item for item in ours if item.closed and item.params.get("api_base") == want.api_base]
        if there:
            ids[want.alias] = (there[0].id,)
            left = [item for item in ours if item is not there[0]]
            steps += [Step("delete", want.alias, item.id, "its seat restarts") for item in left]
            continue
        revision = _free_revision(want, {*(item.id for item in live), *(step.id for step in steps)})
        retire = tuple(item.id for item in ours)
        why = f"the seat restarts: calls go to {want.api_base}"
        step = Step("replace", want.alias, want.deployment_id(revision), why, want, revision, retire)
        steps.append(step)
        ids[want.alias] = (step.id,)
    return AliasPlan(tuple(steps), ids=ids)


def closed_alias(
    want: WantedAlias, live: Sequence[LiveDeployment], stub_url: str, seat_key: Callable[[str, str], str]
) -> WantedAlias:
    """Return where an alias leads while its seat restarts: to its fallback if that is served, else to a stub.

    ``seat_key`` gives the API key of a seat by host and name: the gateway never shows the one that it has.
    """
    bare = replace(want, limits={}, fallback=None, closed=True)
    for item in live:
        if item.alias == want.fallback and item.managed and not (item.closed or item.blocked):
            return replace(
                bare,
                api_base=str(item.params["api_base"]),
                api_key=seat_key(item.host, item.seat),
                served_model=str(item.params["model"]).partition("/")[2],
            )
    return replace(bare, api_base=stub_url, api_key="none")


def _plan_one(
    want: WantedAlias, same: Sequence[LiveDeployment], taken: Collection[str]
) -> tuple[Step | None, LiveDeployment | None, list[LiveDeployment]]:
    """Return (create or replace, the deployment to keep, others to delete) for one alias."""
    exact = [
        item
        for item in same
        if item.managed and (item.host, item.seat) == (want.host, want.seat) and not differences(item, want)
    ]
    if exact:
        keep = max(exact, key=lambda item: item.revision)
        return None, keep, [item for item in same if item.id != keep.id]
    revision = _free_revision(want, taken)
    new_id = want.deployment_id(revision)
    if not same:
        return Step("create", want.alias, new_id, f"seat {want.seat} on {want.host}", want, revision), None, []
    newest = max(same, key=lambda item: (item.managed, item.revision))
    changes = differences(newest, want)
    why = ", ".join(sorted(changes)) + " changed" if changes else "moved"
    if (newest.host, newest.seat) != (want.host, want.seat):
        why = f"taken over from {newest.id} ({newest.owner()})"
    elif newest.closed:
        why = "opened again: its seat serves"
    retire = tuple(item.id for item in same)
    return Step("replace", want.alias, new_id, why, want, revision, retire, changes), None, []


def _free_revision(want: WantedAlias, taken: Iterable[str]) -> int:
    """Return 1 when the stable id is free, else one more than the highest revision in use; ``taken`` are all ids."""
    form = re.compile(re.escape(want.base_id) + r"(?:@([0-9]+))?")
    used = [int(match[1] or 1) for one in taken if (match := form.fullmatch(one))]
    return 1 + max(used, default=0)


def _left_over(want: WantedAlias, item: LiveDeployment) -> str:
    if not item.managed:
        return "adopted: our deployment serves this alias now"
    if (item.host, item.seat) != (want.host, want.seat):
        return f"alias moved here from {item.owner()}"
    return "left behind by an interrupted replacement"


_IN_FILE = (
    "stands in our block of the proxy's config file, which the database cannot change: empty that block and restart the"
    " proxy, or go on with seat_alias_backend: config"
)


def _foreign_problem(want: WantedAlias, item: LiveDeployment) -> str:
    if item.managed:
        return f"alias {want.alias} (seat {want.seat} on {want.host}): deployment {item.id} {_IN_FILE}"
    place = "the proxy's database" if item.in_database else "the proxy's config file"
    remedy = (
        "delete it there, or write `adopt: true` at the alias to have it replaced"
        if item.in_database
        else "remove it from that file and restart the proxy"
    )
    return (
        f"alias {want.alias} (seat {want.seat} on {want.host}): deployment {item.id} in {place} is not ours and would"
        f" answer part of the calls; {remedy}"
    )


def _present(seats: Iterable[Seat]) -> list[tuple[Alias, Seat]]:
    """Return every alias with its seat, for the seats that shall be there, sorted by alias."""
    pairs = [(alias, seat) for seat in seats if seat.state == "present" for alias in seat.aliases]
    return sorted(pairs, key=lambda pair: pair[0].name)


def alias_entries(
    seats: Iterable[Seat],
    address: str,
    api_keys: Mapping[str, str],
    served: Mapping[str, Sequence[str]],
    ports: Mapping[str, int],
) -> list[dict[str, Any]]:
    """Return the aliases of a host's seats in the form of the module ``litellm_aliases``; it holds their API keys.

    ``served`` maps a seat to the names that its running process answers to, the model's own name first. An alias that
    was added since the last start is not among them; it is served under the model's own name until the next start,
    because a new alias must not cost a restart. A seat that is not in ``served`` is taken to answer to its aliases.
    ``ports`` has where a running process listens: not on the declared port after a change of it was taken back.
    """
    entries = []
    for alias, seat in _present(seats):
        names = served.get(seat.name) or [alias.name]
        entries.append(
            {
                "name": alias.name,
                "seat": seat.name,
                "api_base": f"http://{address}:{ports.get(seat.name, seat.port)}/v1",
                "api_key": api_keys[seat.name],
                "served_model": alias.name if alias.name in names else names[0],
                "sampling": dict(alias.sampling),
                "chat_template_kwargs": alias.chat_template_kwargs,
                "limits": dict(alias.limits),
                "access_groups": list(alias.access_groups),
                "keys": list(alias.keys),
                "adopt": alias.adopt,
                "fallback": alias.fallback,
            }
        )
    return entries


def name_notes(seats: Iterable[Seat], served: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a sentence for each alias that its running seat has no name for yet: one would cost a restart."""
    return [
        f"alias {alias.name}: seat {seat.name} does not answer to this name before its next start, so calls go to it as"
        f" {served[seat.name][0]}; nothing is restarted for it"
        for alias, seat in _present(seats)
        if served.get(seat.name) and alias.name not in served[seat.name]
    ]


def grant_entries(seats: Iterable[Seat]) -> list[dict[str, Any]]:
    """Return who may call which alias of a host's seats, in the form of ``litellm_keys`` and ``litellm_proof``."""
    return [
        {
            "name": alias.name,
            "seat": seat.name,
            "keys": list(alias.keys),
            "access_groups": list(alias.access_groups),
        }
        for alias, seat in _present(seats)
    ]
