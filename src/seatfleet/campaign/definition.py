"""The definition of a campaign: what an operator writes, checked, all problems at once.

A definition names one seat, the *studied keys* (names of vLLM options, or ``env:NAME``), the arms (values of those keys
and of nothing else) and, before any number is seen, the family of comparisons that decides.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..core.problems import Problem, ProblemsError
from ..core.units import parse_size

Mode = Literal["screen", "palindrome", "confirm"]
MODES: tuple[Mode, ...] = ("screen", "palindrome", "confirm")
COMPILE_CACHE = ("persist", "fresh")
SHAPES = ("prose", "code", "count", "tool", "longctx")
PRIMARY_METRICS = ("aggregate_output_tok_s", "steady_output_tok_s", "decode_only_tok_s", "ttft_ms", "tpot_ms")
SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "repetition_penalty")
#: Options that say *what* is served and where. Two values of these are two seats, not two arms.
IDENTITY_KEYS = ("model", "revision", "tokenizer", "served-model-name", "host", "port", "api-key", "config")
#: Never recorded.
SECRET_ENV = ("VLLM_API_KEY",)
#: One private root per arm by design, so not part of the comparison; each boot records its own.
CACHE_ENV = (
    "VLLM_CACHE_ROOT",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "FLASHINFER_WORKSPACE_BASE",
    "FLASHINFER_CUBIN_DIR",
)
#: Fields that decide how long to wait and nothing that is measured: they may change while a campaign is under way.
PATIENCE = ("ready_timeout_s",)
#: A fabricated acceptance says nothing about the drafter (``config/speculative.py`` of vLLM 0.33 has both).
SYNTHETIC = re.compile(r"synthetic_acceptance_\w+")

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")
_STUDIED = re.compile(r"[a-z][a-z0-9-]*|env:[A-Z][A-Z0-9_]*")


@dataclass(frozen=True)
class Arm:
    """One configuration. ``values`` maps every studied key to its value; None means the option is absent."""

    id: str
    values: Mapping[str, Any]

    @property
    def draft_tokens(self) -> int:
        """Draft tokens per step, 0 without speculation."""
        speculative = self.values.get("speculative-config")
        return int(speculative.get("num_speculative_tokens", 0)) if isinstance(speculative, Mapping) else 0

    @property
    def method(self) -> str | None:
        """Speculation method (``mtp``, ``dflash`` ...), None without speculation."""
        speculative = self.values.get("speculative-config")
        return str(speculative["method"]) if isinstance(speculative, Mapping) and "method" in speculative else None


@dataclass(frozen=True)
class ShapeUse:
    """A prompt shape as this campaign uses it; None keeps what the shape file says.

    ``tokens`` is the prompt size of ``longctx`` (a generated document), refused for the others.
    """

    name: str
    max_tokens: int | None = None
    tokens: int | None = None
    concurrency: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Contrast:
    """A weighted sum of arm means of ln(metric), weights summing to zero: ``{k1: 1, off: -1}``."""

    id: str
    weights: Mapping[str, float]


@dataclass(frozen=True)
class Primary:
    """The declared family: this metric in these cells, every contrast. Everything else is exploratory."""

    metric: str
    shapes: tuple[str, ...]
    concurrency: tuple[int, ...]


@dataclass(frozen=True)
class KvPin:
    """Step 0: lower the KV pin by ``step`` until the heaviest arm serves with ``margin`` of GPU memory free (bytes)."""

    minimum: int
    step: int
    margin: int


@dataclass(frozen=True)
class AmortizationArms:
    """Four arms that isolate a dense lever with and without speculation."""

    off: str
    off_lever: str
    spec: str
    spec_lever: str


@dataclass(frozen=True)
class ModelFacts:
    """What the report needs to say how verification multiplies expert reads and host fetches."""

    experts: int
    active_experts: int
    host_table: bool = False


@dataclass(frozen=True)
class Shadow:
    """Run on idle GPUs and another port; production stays up."""

    gpus: tuple[int | str, ...]
    port: int


@dataclass(frozen=True)
class Definition:
    """A checked campaign definition; :func:`load_definition` makes it."""

    name: str
    seat: str
    question: str
    studied_keys: tuple[str, ...]
    arms: tuple[Arm, ...]
    control: str
    contrasts: tuple[Contrast, ...]
    shapes: tuple[ShapeUse, ...]
    primary: Primary
    mode: Mode = "palindrome"
    concurrency: tuple[int, ...] = (1, 4, 8)
    reps: int = 3
    requests: int | None = None
    margin: float = 0.03
    sampling: Mapping[str, float | int] = field(default_factory=dict)
    sampling_policy: str = "greedy"
    chat_template_kwargs: Mapping[str, Any] | None = None
    compile_cache: str = "persist"
    warmup_boots: bool = True
    positive_controls: tuple[str, ...] = ()
    planted_delay: float | None = 0.1
    end_to_end: bool = False
    bands: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    kv_pin: KvPin | None = None
    shadow: Shadow | None = None
    idle_s: float = 60.0
    ready_timeout_s: float = 1800.0
    synthetic: bool = False
    amortization: AmortizationArms | None = None
    model_facts: ModelFacts | None = None

    def arm(self, name: str) -> Arm:
        """Return the arm of that id.

        Raises:
            KeyError: no such arm.
        """
        for arm in self.arms:
            if arm.id == name:
                return arm
        raise KeyError(name)

    @property
    def arm_ids(self) -> tuple[str, ...]:
        """Ids of all arms, in the order written."""
        return tuple(arm.id for arm in self.arms)

    @property
    def studied_arms(self) -> tuple[str, ...]:
        """Ids of the arms that are compared with the control, positive controls included."""
        return tuple(name for name in self.arm_ids if name != self.control)

    def requests_of(self, shape: str, concurrency: int) -> int:
        """Return the requests of one cell: enough for three waves, fewer where a prompt costs seconds."""
        if self.requests is not None:
            return max(self.requests, concurrency)
        return max(2 * concurrency, 4) if shape == "longctx" else max(3 * concurrency, 12)

    def cells(self) -> tuple[tuple[str, int], ...]:
        """All (shape, concurrency) cells of one repetition, in canonical order."""
        return tuple((use.name, c) for use in self.shapes for c in (use.concurrency or self.concurrency))


class _Reader:
    """Reads one mapping, collecting problems; every getter returns something usable so that reading goes on."""

    def __init__(self, raw: Mapping[str, Any], where: str, subject: str) -> None:
        self.raw, self.where, self.subject = raw, where, subject
        self.problems: list[Problem] = []
        self.known: set[str] = set()

    def problem(self, name: str, expected: str, seen: object) -> None:
        text = seen if isinstance(seen, str) and " " in seen else repr(seen)
        self.problems.append(Problem(self.where, self.subject, name, expected, text))

    def get(self, name: str, default: object = None) -> Any:  # noqa: ANN401 - as YAML gave it, checked by the caller
        self.known.add(name)
        return self.raw.get(name, default)

    def text(self, name: str) -> str:
        value = self.get(name)
        if not isinstance(value, str) or not value.strip():
            self.problem(name, "a text", "nothing" if value is None else value)
            return ""
        return value

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        value = self.get(name, default)
        if value not in choices:
            self.problem(name, "one of " + ", ".join(choices), value)
            return default
        return str(value)

    def boolean(self, name: str, default: bool) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            self.problem(name, "true or false", value)
            return default
        return value

    def number(self, name: str, default: float, low: float, high: float, *, integer: bool = False) -> float:
        value = self.get(name, default)
        numeric = isinstance(value, int if integer else (int, float)) and not isinstance(value, bool)
        if not numeric or not low <= value <= high:
            unit = "an integer" if integer else "a number"
            self.problem(name, f"{unit} from {low:g} to {high:g}", value)
            return default
        return float(value)

    def names(self, name: str, default: Sequence[str], allowed: Sequence[str] | None = None) -> tuple[str, ...]:
        value = self.get(name, default)
        if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(v, str) for v in value):
            self.problem(name, "a list of names", value)
            return tuple(default)
        for item in value:
            if allowed is not None and item not in allowed:
                self.problem(name, "names out of " + ", ".join(allowed), item)
        if len(set(value)) != len(value):
            self.problem(name, "each name once", value)
        return tuple(value)

    def counts(self, name: str, default: Sequence[int]) -> tuple[int, ...]:
        value = self.get(name, list(default))
        if (
            not isinstance(value, Sequence)
            or not value
            or not all(isinstance(v, int) and not isinstance(v, bool) and v > 0 for v in value)
            or sorted(set(value)) != list(value)
        ):
            self.problem(name, "a rising list of positive integers, for example [1, 4, 8]", value)
            return tuple(default)
        return tuple(value)

    def size(self, name: str) -> int:
        value = self.get(name)
        try:
            return parse_size(value)
        except ValueError as error:
            expected = str(error).removeprefix("expected ").partition(", seen")[0]
            self.problem(name, expected, "nothing" if value is None else value)
            return 0

    def mapping(self, name: str) -> Mapping[Any, Any]:
        value = self.get(name, {})
        if not isinstance(value, Mapping):
            self.problem(name, "a mapping", value)
            return {}
        return value

    def nested(self, name: str, raw: object) -> _Reader | None:
        if not isinstance(raw, Mapping):
            self.problem(name, "a mapping", raw)
            return None
        reader = _Reader(raw, self.where, self.subject)
        reader.problems = self.problems
        return reader

    def unknown(self, prefix: str = "") -> None:
        for key in self.raw:
            if key not in self.known:
                self.problem(f"{prefix}{key}", "a known field: " + ", ".join(sorted(self.known)), "this one")


def load_definition(raw: object, *, name: str, where: str) -> Definition:
    """Return the typed definition of campaign ``name``; ``where`` is the file the messages point to.

    Raises:
        ProblemsError: with every problem found.
    """
    subject = f"campaign {name}"
    if not isinstance(raw, Mapping):
        raise ProblemsError([Problem(where, subject, "", "a mapping", repr(raw))])
    reader = _Reader(raw, where, subject)
    if not _NAME.fullmatch(name):
        reader.problem("name", f"a name of the form {_NAME.pattern}", name)
    studied = _read_studied_keys(reader)
    arms = _read_arms(reader, studied)
    ids = [arm.id for arm in arms]
    control = str(reader.get("control", "off"))
    if control not in ids:
        reader.problem("control", "the id of an arm (a figure from elsewhere is no control)", control)
    positive = reader.names("positive_controls", (), [i for i in ids if i != control])
    concurrency = reader.counts("concurrency", (1, 4, 8))
    shapes = _read_shapes(reader, concurrency)
    sampling, policy = _read_sampling(reader)
    compared = [i for i in ids if i != control and i not in positive]
    if control in ids and not compared:
        reader.problem("arms", "at least one arm beside the control and the positive controls", ids)
    definition = Definition(
        name=name,
        seat=reader.text("seat"),
        question=reader.text("question"),
        studied_keys=studied,
        arms=arms,
        control=control,
        contrasts=_read_contrasts(reader, ids, control, compared),
        shapes=shapes,
        primary=_read_primary(reader, shapes, concurrency),
        mode=_mode(reader),
        concurrency=concurrency,
        reps=int(reader.number("reps", 3, 1, 20, integer=True)),
        requests=_optional_int(reader, "requests", 1, 1000),
        margin=reader.number("margin", 0.03, 0.001, 0.5),
        sampling=sampling,
        sampling_policy=policy,
        chat_template_kwargs=reader.mapping("chat_template_kwargs") or None,
        compile_cache=reader.choice("compile_cache", COMPILE_CACHE, "persist"),
        warmup_boots=reader.boolean("warmup_boots", True),
        positive_controls=positive,
        planted_delay=_planted_delay(reader),
        end_to_end=reader.boolean("end_to_end", False),
        bands=_read_bands(reader, ids),
        kv_pin=_read_kv_pin(reader),
        shadow=_read_shadow(reader),
        idle_s=reader.number("idle_s", 60.0, 0.0, 3600.0),
        ready_timeout_s=reader.number("ready_timeout_s", 1800.0, 10.0, 14400.0),
        synthetic=reader.boolean("synthetic", False),
        amortization=_read_amortization(reader, ids),
        model_facts=_read_model_facts(reader),
    )
    _check_synthetic(reader, definition)
    _check_overrides(reader, definition)
    reader.unknown()
    if reader.problems:
        raise ProblemsError(reader.problems)
    return definition


def _mode(reader: _Reader) -> Mode:
    chosen = reader.choice("mode", MODES, "palindrome")
    return next(mode for mode in MODES if mode == chosen)


def _optional_int(reader: _Reader, name: str, low: int, high: int) -> int | None:
    return None if reader.get(name) is None else int(reader.number(name, low, low, high, integer=True))


def _planted_delay(reader: _Reader) -> float | None:
    if reader.get("planted_delay", 0.1) is None:
        return None
    return reader.number("planted_delay", 0.1, 0.02, 1.0)


def _read_studied_keys(reader: _Reader) -> tuple[str, ...]:
    keys = reader.names("studied_keys", ())
    if not keys:
        reader.problem("studied_keys", "at least one vLLM option (without dashes in front) or env:NAME", "none")
    for key in keys:
        if not _STUDIED.fullmatch(key):
            reader.problem("studied_keys", "an option as in vLLM's config file, for example speculative-config", key)
        if key in IDENTITY_KEYS:
            reader.problem("studied_keys", "a setting; two values of this one are two seats, not two arms", key)
        if key.startswith("no-"):
            reader.problem("studied_keys", f"{key.removeprefix('no-')}, with false in an arm for --{key}", key)
        if key.removeprefix("env:") in (*SECRET_ENV, *CACHE_ENV):
            reader.problem("studied_keys", "a setting; secrets and cache roots are each arm's own anyway", key)
    return keys


def _read_arms(reader: _Reader, studied: Sequence[str]) -> tuple[Arm, ...]:
    arms: list[Arm] = []
    for key, values in reader.mapping("arms").items():
        if isinstance(key, bool):
            reader.problem("arms", "arm ids in quotes: YAML reads a bare off as false and a bare on as true", key)
            key = "on" if key else "off"
        if not isinstance(key, str) or not _NAME.fullmatch(key):
            reader.problem("arms", f"an id of the form {_NAME.pattern}", key)
            continue
        if values is None:
            values = {}
        if not isinstance(values, Mapping):
            reader.problem(f"arms.{key}", "a mapping of studied keys", values)
            continue
        if not _drafts_or_none(values.get("speculative-config")):
            reader.problem(
                f"arms.{key}.speculative-config",
                "a mapping with method and num_speculative_tokens (at least 1), or nothing where nothing is drafted",
                values["speculative-config"],
            )
            continue
        for foreign in (name for name in values if name not in studied):
            reader.problem(f"arms.{key}.{foreign}", "studied keys only, so that nothing else differs", "this key")
        arms.append(Arm(key, {name: values.get(name) for name in studied}))
    for index, arm in enumerate(arms):
        twin = next((other.id for other in arms[:index] if other.values == arm.values), None)
        if twin is not None:
            reader.problem(f"arms.{arm.id}", "a configuration of its own", f"the values of arm {twin}")
    return tuple(arms)


def _drafts_or_none(value: object) -> bool:
    """Tell whether it can be said how many drafts an arm makes: every rule on acceptance needs that number."""
    if value is None:
        return True
    drafts = value.get("num_speculative_tokens") if isinstance(value, Mapping) else None
    whole = isinstance(drafts, int) and not isinstance(drafts, bool) and drafts > 0
    return whole and isinstance(value, Mapping) and isinstance(value.get("method"), str)


def _read_shapes(reader: _Reader, concurrency: Sequence[int]) -> tuple[ShapeUse, ...]:
    raw = reader.get("shapes", ["prose", "code", "count"])
    entries: dict[Any, Any] = {}
    if isinstance(raw, Mapping):
        entries = dict(raw)
    elif isinstance(raw, Sequence) and not isinstance(raw, str) and raw:
        entries = {name: {} for name in raw}
    else:
        reader.problem("shapes", "a list of shapes, or a mapping from shape to its settings", raw)
    uses: list[ShapeUse] = []
    for name, settings in entries.items():
        if name not in SHAPES:
            reader.problem("shapes", "shapes out of " + ", ".join(SHAPES), name)
            continue
        inner = reader.nested(f"shapes.{name}", settings or {})
        if inner is None:
            continue
        tokens = _optional_int(inner, "tokens", 256, 1_000_000)
        if tokens is not None and name != "longctx":
            reader.problem(f"shapes.{name}.tokens", "a prompt size for longctx only (the others are frozen)", tokens)
        own = inner.counts("concurrency", concurrency) if inner.get("concurrency") is not None else None
        uses.append(ShapeUse(str(name), _optional_int(inner, "max_tokens", 8, 8192), tokens, own))
        inner.unknown(f"shapes.{name}.")
    return tuple(uses)


def _read_sampling(reader: _Reader) -> tuple[dict[str, float | int], str]:
    raw = reader.get("sampling", "greedy")
    if raw == "greedy":
        return {"temperature": 0.0}, "greedy"
    if not isinstance(raw, Mapping) or not raw:
        reader.problem("sampling", "greedy, or a mapping of " + ", ".join(SAMPLING_KEYS), raw)
        return {}, "greedy"
    for key, value in raw.items():
        if key == "ignore_eos":
            reader.problem("sampling.ignore_eos", "natural ends: forced length biases acceptance", value)
        elif key not in SAMPLING_KEYS:
            reader.problem(f"sampling.{key}", "a key out of " + ", ".join(SAMPLING_KEYS), "this one")
        elif not _finite(value):
            reader.problem(f"sampling.{key}", "a number", value)
    return dict(raw), "seat"


def _finite(value: object) -> bool:
    """Tell numbers from everything else; YAML has .nan and .inf, which compare with nothing."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _read_contrasts(reader: _Reader, ids: Sequence[str], control: str, compared: Sequence[str]) -> tuple[Contrast, ...]:
    raw = reader.mapping("contrasts")
    if not raw:
        return tuple(Contrast(f"{name}-vs-{control}", {name: 1.0, control: -1.0}) for name in compared)
    contrasts: list[Contrast] = []
    for key, weights in raw.items():
        if not isinstance(weights, Mapping) or not all(_finite(w) for w in weights.values()):
            reader.problem(f"contrasts.{key}", "a mapping from arm to weight", weights)
            continue
        for arm in (name for name in weights if name not in (control, *compared)):
            reader.problem(f"contrasts.{key}", "arms of this campaign that are not broken on purpose", arm)
        if abs(sum(weights.values())) > 1e-9 or not any(weights.values()):
            reader.problem(f"contrasts.{key}", "weights that sum to zero", dict(weights))
        contrasts.append(Contrast(str(key), {str(name): float(w) for name, w in weights.items()}))
    return tuple(contrasts)


def _read_primary(reader: _Reader, shapes: Sequence[ShapeUse], concurrency: Sequence[int]) -> Primary:
    names = [use.name for use in shapes]
    ends = (concurrency[0], concurrency[-1]) if len(concurrency) > 1 else tuple(concurrency)
    inner = reader.nested("primary", reader.get("primary", {}))
    if inner is None:
        return Primary(PRIMARY_METRICS[0], tuple(names[:1]), ends)
    metric = inner.choice("metric", PRIMARY_METRICS, PRIMARY_METRICS[0])
    chosen = inner.names("shapes", names[:1], names)
    levels = inner.counts("concurrency", ends)
    measured = {(use.name, c) for use in shapes for c in (use.concurrency or concurrency)}
    for cell in ((shape, c) for shape in chosen for c in levels if shape in names):
        if cell not in measured:
            reader.problem("primary", "cells that are measured", f"shape {cell[0]} at concurrency {cell[1]}")
    inner.unknown("primary.")
    return Primary(metric, chosen, levels)


def _read_bands(reader: _Reader, ids: Sequence[str]) -> dict[str, dict[str, float]]:
    bands: dict[str, dict[str, float]] = {}
    for arm, levels in reader.mapping("bands").items():
        if arm not in ids:
            reader.problem("bands", "arms of this campaign", arm)
        elif not isinstance(levels, Mapping):
            reader.problem(f"bands.{arm}", "a mapping from shape to least acceptance length", levels)
        else:
            for shape, least in levels.items():
                if shape not in SHAPES or not _finite(least) or least < 1:
                    reader.problem(f"bands.{arm}.{shape}", "a shape and an acceptance length of at least 1", least)
                else:
                    bands.setdefault(str(arm), {})[str(shape)] = float(least)
    return bands


def _read_kv_pin(reader: _Reader) -> KvPin | None:
    raw = reader.get("kv_pin")
    inner = reader.nested("kv_pin", raw) if raw is not None else None
    if inner is None:
        return None
    pin = KvPin(inner.size("minimum"), inner.size("step"), inner.size("margin"))
    inner.unknown("kv_pin.")
    return pin


def _read_shadow(reader: _Reader) -> Shadow | None:
    raw = reader.get("shadow")
    inner = reader.nested("shadow", raw) if raw is not None else None
    if inner is None:
        return None
    gpus = inner.get("gpus")
    if not isinstance(gpus, Sequence) or isinstance(gpus, str) or not gpus or not all(_is_gpu(gpu) for gpu in gpus):
        reader.problem("shadow.gpus", "a list of GPU indices or UUIDs", gpus)
        gpus = ()
    port = int(inner.number("port", 1024, 1024, 65535, integer=True))
    if inner.get("port") is None:
        reader.problem("shadow.port", "a free port of the host", "nothing")
    inner.unknown("shadow.")
    return Shadow(tuple(gpus), port)


def _read_amortization(reader: _Reader, ids: Sequence[str]) -> AmortizationArms | None:
    raw = reader.get("amortization")
    inner = reader.nested("amortization", raw) if raw is not None else None
    if inner is None:
        return None
    arms = {name: inner.choice(name, ids, "") for name in ("off", "off_lever", "spec", "spec_lever")}
    inner.unknown("amortization.")
    return AmortizationArms(**arms)


def _read_model_facts(reader: _Reader) -> ModelFacts | None:
    raw = reader.get("model_facts")
    inner = reader.nested("model_facts", raw) if raw is not None else None
    if inner is None:
        return None
    experts = int(inner.number("experts", 1, 1, 100_000, integer=True))
    facts = ModelFacts(
        experts,
        int(inner.number("active_experts", 1, 1, experts, integer=True)),
        inner.boolean("host_table", False),
    )
    inner.unknown("model_facts.")
    return facts


def _is_gpu(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)


def synthetic_settings(value: object) -> Iterable[str]:
    """Yield the names of settings inside ``value`` that make vLLM fabricate its acceptance."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            name = str(key).replace("-", "_")
            if SYNTHETIC.fullmatch(name) or (name == "rejection_sample_method" and inner == "synthetic"):
                yield str(key)
            yield from synthetic_settings(inner)


def _check_overrides(reader: _Reader, definition: Definition) -> None:
    """Refuse to study what a campaign sets alike in all arms: the value of an arm, or its absence, would win.

    A shadow arm without CUDA_VISIBLE_DEVICES would take the cards of production.
    """
    set_alike = {
        "shadow": (definition.shadow, ("env:CUDA_VISIBLE_DEVICES",)),
        "kv_pin": (definition.kv_pin, ("kv-cache-memory-bytes", "kv-cache-memory")),
    }
    for name, (used, keys) in set_alike.items():
        for key in (key for key in keys if used is not None and key in definition.studied_keys):
            reader.problem("studied_keys", f"keys that {name} does not set in every arm", key)


def changed_fields(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the fields in which two written definitions differ; such a campaign would measure two things as one."""
    return sorted(key for key in {*old, *new} - {*PATIENCE} if old.get(key) != new.get(key))


def _check_synthetic(reader: _Reader, definition: Definition) -> None:
    if definition.synthetic:
        return
    for arm in definition.arms:
        for key in synthetic_settings(arm.values):
            expected = "real acceptance (or synthetic: true, and then no claim about acceptance)"
            reader.problem(f"arms.{arm.id}", expected, key)
