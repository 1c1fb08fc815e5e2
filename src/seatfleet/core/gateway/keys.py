"""Which virtual keys may call which aliases: from what the gateway has to what the seats grant.

Pure: no I/O, and no key value leaves this module. Measured on LiteLLM 1.106.12 (docs/gateway.md):

* ``models: []`` means *every* model, so the last entry of a list is replaced by ``no-default-models``;
* deleting a deployment leaves its alias in the lists of keys (a "ghost": listed, but every call is a 400);
* ``/key/generate`` with a value that exists answers 200 and changes nothing;
* an update replaces the whole list and the whole metadata.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from .state import LiveDeployment

# What LiteLLM takes for "no model at all".
NO_MODELS = "no-default-models"
# Entries of a key's list that allow every alias of the proxy.
EVERYTHING = frozenset({"*", "all-proxy-models"})
# The key follows its team's list.
TEAM_MODELS = "all-team-models"
SPECIAL_ENTRIES = EVERYTHING | {TEAM_MODELS, NO_MODELS}
GRANTS_FIELD = "seatfleet_grants"
# Between a key alias and the start of its hash, for a value that goes on working after a rotation.
RETIRED = ".retired-"
# In the metadata of such a value: seconds that it was made for before the overlap shortened them; None for no limit.
LIFETIME_FIELD = "seatfleet_lifetime_s"
_KEY_FORM = re.compile(r"sk-[A-Za-z0-9_-]{21,}")
_DURATION = re.compile(r"(?P<number>[0-9]+)(?P<unit>[smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def key_hash(key: str) -> str:
    """Return what LiteLLM stores instead of a key: its SHA-256 in hex. Safe in URLs and messages."""
    return hashlib.sha256(key.encode()).hexdigest()


def key_form_problem(key: str) -> str | None:
    """Return why a key value is refused (a sentence without the value), or None.

    LiteLLM refuses keys without ``sk-`` or with less than 16 characters; 24 leave at least 21 random ones.
    """
    if _KEY_FORM.fullmatch(key):
        return None
    return "a key must start with sk- and go on with at least 21 letters, digits, - or _"


def duration_s(text: str) -> int:
    """Return the seconds of a duration as LiteLLM writes it: ``90s``, ``30m``, ``24h``, ``7d``.

    Raises:
        ValueError: it is of another form.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"expected a duration such as 90s, 30m, 24h or 7d, seen {text!r}")
    return int(match["number"]) * _SECONDS[match["unit"]]


def moment(text: str) -> datetime:
    """Return a point in time as the gateway writes it; without a zone it is UTC."""
    read = datetime.fromisoformat(text)
    return read if read.tzinfo else read.replace(tzinfo=UTC)


@dataclass(frozen=True)
class KeyState:
    """One virtual key as the gateway knows it: never its value, only the SHA-256 of it."""

    hash: str
    alias: str
    models: tuple[str, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    team_id: str | None = None
    team_models: tuple[str, ...] = ()
    access_group_ids: tuple[str, ...] = ()
    blocked: bool = False
    expires: str | None = None
    created: str | None = None
    spend: float = 0.0
    max_budget: float | None = None

    @classmethod
    def from_api(cls, entry: Mapping[str, Any]) -> KeyState:
        """Read one full object of ``GET /key/list``."""
        return cls(
            hash=str(entry.get("token") or ""),
            alias=str(entry.get("key_alias") or ""),
            models=tuple(entry.get("models") or ()),
            metadata=entry.get("metadata") or {},
            team_id=entry.get("team_id"),
            team_models=tuple(entry.get("team_models") or ()),
            access_group_ids=tuple(entry.get("access_group_ids") or ()),
            blocked=bool(entry.get("blocked")),
            expires=entry.get("expires"),
            created=entry.get("created_at"),
            spend=float(entry.get("spend") or 0.0),
            max_budget=entry.get("max_budget"),
        )

    @property
    def name(self) -> str:
        """The key alias, or the first half of a hash for a key without one."""
        return self.alias or f"(no alias, hash {self.hash[:12]})"

    @property
    def unrestricted(self) -> bool:
        """Whether the key's own list allows every alias: an empty list does, unless a team or access group caps it."""
        return not self.models or bool(EVERYTHING.intersection(self.models))

    def obstacle(self, now: datetime) -> str | None:
        """Return what stops every call with this key, whatever its list says: the word of a verdict, or None."""
        if self.blocked:
            return "key_blocked"
        if (left := self.left_s(now)) is not None and left <= 0:
            return "key_expired"
        if self.max_budget is not None and self.spend >= self.max_budget:
            return "budget_exceeded"
        return None

    def left_s(self, now: datetime) -> int | None:
        """Return the seconds until the key expires, None when it does not."""
        return None if self.expires is None else math.floor((moment(self.expires) - now).total_seconds())

    def lifetime_s(self) -> int | None:
        """Return how long the key lives from its creation to its expiry, None when it does not expire."""
        if self.retired:
            kept = self.metadata.get(LIFETIME_FIELD)
            return kept if isinstance(kept, int) else None
        if self.expires is None or self.created is None:
            return None
        return max(1, math.ceil((moment(self.expires) - moment(self.created)).total_seconds()))

    def retired_alias(self) -> str:
        """Return the key alias that this value has once another one took its place."""
        return self.alias if self.retired else f"{self.alias}{RETIRED}{self.hash[:8]}"

    @property
    def retired(self) -> bool:
        """Whether a rotation set this value aside."""
        return self.alias.endswith(f"{RETIRED}{self.hash[:8]}")

    @property
    def grants(self) -> dict[str, str]:
        """Alias -> ``host/seat`` that asked for it, for the entries of the list that seatfleet made."""
        grants = self.metadata.get(GRANTS_FIELD)
        return {str(name): str(seat) for name, seat in grants.items()} if isinstance(grants, Mapping) else {}


@dataclass(frozen=True)
class WantedKey:
    """One key alias and what its list must contain because of the seats of this run.

    ``grants`` maps alias -> ``host/seat``; ``via`` maps an alias to access groups that would allow it as well.
    ``models`` are entries that the key catalogue itself declares (access groups, aliases of others).
    """

    alias: str
    grants: Mapping[str, str] = field(default_factory=dict)
    via: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    models: tuple[str, ...] = ()
    value: str | None = field(default=None, repr=False)

    def listed(self) -> set[str]:
        """Return the aliases that have to stand in the key's list, as no declared access group covers them."""
        return {name for name in self.grants if not set(self.via.get(name, ())).intersection(self.models)}


@dataclass(frozen=True)
class KeyStep:
    """One change of one key. ``kind`` is ``create``, ``update`` or ``rotate``; lists are complete (they replace)."""

    kind: str
    alias: str
    hash: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    grants: Mapping[str, str]
    why: str

    def describe(self) -> str:
        """One line for logs and diffs, without secrets."""
        return f"{self.kind} key {self.alias}: {self.why}"


@dataclass(frozen=True)
class KeyPlan:
    """Steps, what stands in their way, and what an operator should know."""

    steps: tuple[KeyStep, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def edit_models(models: Sequence[str], add: Collection[str], remove: Collection[str]) -> tuple[str, ...]:
    """Return a key's list with entries added and removed, order kept; never an empty list, which would mean all."""
    kept = [name for name in models if name not in remove and name != NO_MODELS]
    kept += [name for name in sorted(add) if name not in kept]
    return tuple(kept) or (NO_MODELS,)


def wanted_for(alias: str, wanted: Iterable[WantedKey]) -> WantedKey | None:
    """Return what is declared for a key alias; a rotated key's old value keeps what the new one is granted too."""
    by_alias = {want.alias: want for want in wanted}
    if alias in by_alias:
        return by_alias[alias]
    current = by_alias.get(alias.split(RETIRED, 1)[0])
    return None if current is None else replace(current, alias=alias, value=None)


def plan_keys(
    live: Sequence[KeyState],
    wanted: Sequence[WantedKey],
    *,
    host: str,
    aliases: Collection[str],
    dropped: Collection[str] = (),
    rotate: bool = False,
    may_generate: bool = False,
    only: str | None = None,
) -> KeyPlan:
    """Return the steps that give every wanted key its aliases and take back what is no longer granted.

    Args:
        live: all keys of the gateway.
        wanted: the declared keys with the grants of this host's seats.
        host: only grants recorded for this host are taken back.
        aliases: the aliases of this host's seats. Declared keys hold exactly the declared ones of these.
        dropped: aliases that this run removed from the gateway; they are taken out of every key's list.
        rotate: a declared value that is not the gateway's replaces it, instead of being a problem.
        may_generate: a missing key without a declared value is created with a random one, instead of being a problem.
        only: plan nothing but this key alias, which is the one in ``live``.

    Lists of keys that are not declared change in two cases only: an entry that seatfleet made itself for this host, and
    an entry for an alias that this run removed.
    """
    planner = _KeyPlanner(live, host, frozenset(aliases), frozenset(dropped) - frozenset(aliases), rotate, may_generate)
    named = {want.alias for want in wanted}
    # Declared keys last: their record of grants is what a run after one that was cut off goes by.
    for key in live:
        if key.alias not in named:
            planner.other(key, wanted_for(key.alias, wanted))
    for want in sorted(wanted, key=lambda item: item.alias):
        if only in (None, want.alias):
            planner.declared(want)
    return KeyPlan(tuple(planner.steps), tuple(planner.problems), tuple(planner.notes))


class _KeyPlanner:
    """Collects the steps, problems and notes of :func:`plan_keys`."""

    def __init__(
        self,
        live: Sequence[KeyState],
        host: str,
        aliases: frozenset[str],
        gone: frozenset[str],
        rotate: bool,
        may_generate: bool,
    ) -> None:
        self.by_alias = {key.alias: key for key in live if key.alias}
        self.by_hash = {key.hash: key for key in live}
        self.host = host
        self.aliases = aliases
        self.gone = gone
        self.rotate = rotate
        self.may_generate = may_generate
        self.steps: list[KeyStep] = []
        self.problems: list[str] = []
        self.notes: list[str] = []

    def declared(self, want: WantedKey) -> None:
        """Plan one declared key."""
        form = key_form_problem(want.value) if want.value is not None else None
        if form is not None:
            self.problems.append(f"key {want.alias}: {form}; correct it in vault_litellm_keys")
            return
        key = self.by_alias.get(want.alias) or self._set_aside(want)
        if key is None:
            self._create(want)
            return
        if want.value is not None and key_hash(want.value) != key.hash:
            if not self._rotate(want, key):
                return
            key = replace(key, hash=key_hash(want.value), alias=want.alias)
        if self._scoped(want, key):
            self._edit(want, key)

    def other(self, key: KeyState, retired: WantedKey | None) -> None:
        """Plan a key that is not declared: only what we put there, and what we removed, leaves its list.

        The old value of a rotated key keeps what the new one has, and gains nothing: it is known by the form of its key
        alias only, which everybody who may make keys can choose.
        """
        kept = retired.grants if retired is not None else {}
        stale = (self._granted_here(key) | self.gone.intersection(key.models)) - set(kept)
        if retired is not None:
            stale |= self.aliases.intersection(key.models) - set(kept) - set(retired.models)
        if stale and not key.unrestricted:
            self._update(key, (), stale, {})

    def _granted_here(self, key: KeyState) -> set[str]:
        return {name for name, seat in key.grants.items() if seat.split("/", 1)[0] == self.host}

    def _set_aside(self, want: WantedKey) -> KeyState | None:
        """Return the old value of a rotation that was cut off before the new one was made.

        A key that is made anew instead would lack the team, the limits and the block of the old one.
        """
        if want.value is None:
            return None
        old = [key for key in self.by_alias.values() if key.retired and key.alias.split(RETIRED, 1)[0] == want.alias]
        return max(old, key=lambda key: key.created or "", default=None)

    def _create(self, want: WantedKey) -> None:
        if want.value is None and not self.may_generate:
            self.problems.append(
                f"key {want.alias}: the gateway has no such key and vault_litellm_keys no value for it; add the value,"
                " or name a directory for new ones in seat_alias_handout_dir"
            )
            return
        twin = self.by_hash.get(key_hash(want.value)) if want.value is not None else None
        if twin is not None:
            # /key/generate would answer 200 and change nothing.
            self.problems.append(
                f"key {want.alias}: the gateway knows its very value under the key alias {twin.name}; give each key"
                " alias a value of its own in vault_litellm_keys"
            )
            return
        digest = key_hash(want.value) if want.value is not None else ""
        models = edit_models((), {*want.models, *want.listed()}, ())
        grants = {name: seat for name, seat in want.grants.items() if name in models}
        self.steps.append(KeyStep("create", want.alias, digest, (), models, grants, f"may call {', '.join(models)}"))

    def _rotate(self, want: WantedKey, key: KeyState) -> bool:
        """Plan the exchange of a key's value; False when it is not allowed."""
        value = key_hash(want.value or "")
        if value in self.by_hash:
            self.problems.append(f"key {want.alias}: its new value already belongs to key {self.by_hash[value].name}")
            return False
        if not self.rotate:
            self.problems.append(
                f"key {want.alias}: expected the value with hash {value[:12]} (vault_litellm_keys), the gateway has"
                f" {key.hash[:12]}; put the old value back, or rotate the key with seat_alias_rotate_keys: true"
            )
            return False
        self.steps.append(
            KeyStep("rotate", want.alias, key.hash, key.models, key.models, key.grants, "a new value is declared")
        )
        return True

    def _scoped(self, want: WantedKey, key: KeyState) -> bool:
        """Tell whether the key's own list decides; else say what does."""
        if key.unrestricted:
            if want.grants:
                self.notes.append(
                    f"key {want.alias} may call every alias (its list is {list(key.models)}): left as it is; give it an"
                    " explicit list at the gateway to have it scoped"
                )
            return False
        lacking = [
            name for name in sorted(want.grants) if key.team_models and not _allows(key.team_models, name, want.via)
        ]
        if lacking:
            self.problems.append(
                f"key {want.alias}: its team {key.team_id} does not allow {', '.join(lacking)}, so every call would be"
                " a 403 team_model_access_denied; add the alias to the team's models"
            )
            return False
        return TEAM_MODELS not in key.models

    def _edit(self, want: WantedKey, key: KeyState) -> None:
        stale = (self._granted_here(key) | self.aliases.intersection(key.models)) - set(want.grants)
        stale |= self.gone.intersection(key.models)
        add = {name for name in want.listed() if not _allows(key.models, name, want.via)}
        self._update(key, add | (set(want.models) - set(key.models)), stale - set(want.models), want.grants)

    def _update(self, key: KeyState, add: Collection[str], remove: Collection[str], grants: Mapping[str, str]) -> None:
        """Add the update step, unless the list and our record of grants already are as wanted."""
        after = edit_models(key.models, add, remove)
        recorded = {name: seat for name, seat in key.grants.items() if name not in remove}
        recorded.update({name: seat for name, seat in grants.items() if name in after})
        if after == key.models and recorded == key.grants:
            return
        gained = [name for name in after if name not in key.models and name != NO_MODELS]
        lost = [name for name in key.models if name not in after and name != NO_MODELS]
        words = [f"adds {', '.join(gained)}"] * bool(gained) + [f"removes {', '.join(lost)}"] * bool(lost)
        why = "; ".join(words) or "records which seat grants what"
        self.steps.append(KeyStep("update", key.alias, key.hash, key.models, after, recorded, why))


def _allows(models: Collection[str], alias: str, via: Mapping[str, tuple[str, ...]]) -> bool:
    return (
        alias in models or bool(EVERYTHING.intersection(models)) or bool(set(via.get(alias, ())).intersection(models))
    )


def ghosts(keys: Iterable[KeyState], names: Collection[str]) -> dict[str, list[str]]:
    """Return key name -> entries that are neither an alias, an access group, a wildcard nor a special entry.

    ``names`` are all aliases and access groups that the gateway has. Such an entry is listed by ``/v1/models`` and
    answers every call with 400.
    """
    found: dict[str, list[str]] = {}
    for key in keys:
        entries = [name for name in key.models if name not in names and name not in SPECIAL_ENTRIES and "*" not in name]
        if entries:
            found[key.name] = entries
    return found


def lost_aliases(keys: Iterable[KeyState], host: str, served: Collection[str]) -> set[str]:
    """Return aliases that a key was granted for a seat of ``host`` and that nobody serves any more.

    After a run that deleted the deployment and was cut off before the lists, only this record tells of the ghost.
    """
    granted = {name for key in keys for name, seat in key.grants.items() if seat.split("/", 1)[0] == host}
    return granted - set(served)


def who_can_call(
    alias: str,
    deployments: Iterable[LiveDeployment],
    keys: Iterable[KeyState],
    shared_groups: Mapping[str, tuple[str, Collection[str]]] | None = None,
) -> list[tuple[KeyState, str]]:
    """Return the keys that may call an alias by their lists, each with the reason.

    ``shared_groups`` are LiteLLM's access groups with an id of their own: id -> (name, aliases).
    """
    through = {group: name for group, (name, models) in (shared_groups or {}).items() if alias in models}
    groups = {group for item in deployments if item.alias == alias for group in item.access_groups}
    allowed: list[tuple[KeyState, str]] = []
    for key in keys:
        reason = _reason(key, alias, groups)
        if reason is None and (shared := sorted(through[group] for group in key.access_group_ids if group in through)):
            reason = f"shared access group {', '.join(shared)}"
        if reason is None:
            continue
        if key.team_models and not (EVERYTHING | groups | {alias}).intersection(key.team_models):
            continue
        allowed.append((key, reason))
    return allowed


def _reason(key: KeyState, alias: str, groups: Collection[str]) -> str | None:
    if not key.models:
        return "follows its team" if key.team_models else "empty list: every alias"
    if EVERYTHING.intersection(key.models):
        return "every alias"
    if alias in key.models:
        return "listed" if alias not in key.grants else f"granted for {key.grants[alias]}"
    through = sorted(set(groups).intersection(key.models))
    if through:
        return f"access group {', '.join(through)}"
    return "follows its team" if TEAM_MODELS in key.models else None
