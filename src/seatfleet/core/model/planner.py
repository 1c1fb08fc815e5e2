"""How many tokens a KV cache of given bytes holds, the way vLLM counts: in blocks, not linearly.

``GPU KV cache size: N tokens`` is ``int(blocks / blocks_per_request(max_model_len) x max_model_len)``. Taking one
seat's 8.76 GiB / 332,721 tokens linearly to 14 GiB is 5 % off; counting blocks is exact. Read from vLLM 0.23.0 and
0.33.0 and compared with both, and with running 0.32.0 servers (``docs/planner.md``). Pure: no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ..inventory.seat import Seat
from ..units import format_gib
from .modelconfig import Attention, GatedDeltaNet, Model, UnknownModelError, dtype_bytes, parse_config

#: Oldest release of the family that pads pages which do not divide and merges like layers of model and drafter.
_PADDING_SINCE = (0, 28)


class PlanError(ValueError):
    """The layers cannot share one pool in this release: the engine would stop at start."""


def ceil_div(number: int, divisor: int) -> int:
    """Return ``number / divisor`` rounded up."""
    return -(-number // divisor)


class Rule(Protocol):
    """How many blocks of one group a request of a given length holds at most."""

    def blocks(self, length: int, block_tokens: int) -> int:
        """Return the blocks for ``length`` tokens when a block has ``block_tokens``."""


@dataclass(frozen=True)
class Full:
    """Every token stays."""

    def blocks(self, length: int, block_tokens: int) -> int:
        """Return the blocks for ``length`` tokens."""
        return ceil_div(length, block_tokens)


@dataclass(frozen=True)
class Window:
    """The last ``window`` tokens stay, and what is being computed; a window may start inside a block."""

    window: int
    in_flight: int

    def blocks(self, length: int, block_tokens: int) -> int:
        """Return the blocks for ``length`` tokens."""
        return ceil_div(min(self.window - 1 + self.in_flight, length), block_tokens) + 1


@dataclass(frozen=True)
class Chunk:
    """The current chunk stays, and what is being computed."""

    chunk: int
    in_flight: int

    def blocks(self, length: int, block_tokens: int) -> int:
        """Return the blocks for ``length`` tokens."""
        return ceil_div(min(self.chunk + self.in_flight, length), block_tokens)


@dataclass(frozen=True)
class Fixed:
    """A recurrent state: a number of blocks that does not depend on the length."""

    count: int

    def blocks(self, length: int, block_tokens: int) -> int:
        """Return the blocks; neither argument matters."""
        return self.count


@dataclass(frozen=True)
class Layers:
    """Layers alike: their rule, tokens per block, bytes per block and layer, and what must agree to be merged."""

    name: str
    count: int
    rule: Rule
    block_tokens: int
    page_bytes: int
    shape: tuple[object, ...]
    growable: bool = True  # a page follows the block size; a recurrent state's does not
    paddable: bool = True  # MLA rows cannot be padded


@dataclass(frozen=True)
class Group:
    """Layers that share one block table."""

    name: str
    layers: int
    rule: Rule
    block_tokens: int
    page_bytes: int


@dataclass(frozen=True)
class Layout:
    """How the pool is cut: every group draws blocks of ``block_bytes`` from it.

    ``confidence``: ``exact`` (this kind was compared with vLLM's own answer), ``fitted`` (numbers fitted to logs of a
    build, named in ``notes``), ``formula`` (from the source, not compared).
    """

    groups: tuple[Group, ...]
    block_bytes: int
    confidence: str
    notes: tuple[str, ...] = ()

    def blocks_per_request(self, length: int) -> int:
        """Return the blocks that one request of ``length`` tokens holds at most."""
        return sum(group.rule.blocks(length, group.block_tokens) for group in self.groups)


@dataclass(frozen=True)
class Plan:
    """What a pool holds at a context length; the fields are vLLM's own numbers."""

    kv_bytes: int
    max_model_len: int
    block_bytes: int
    blocks: int
    blocks_per_request: int
    confidence: str
    notes: tuple[str, ...] = ()

    @property
    def concurrency(self) -> float:
        """Requests of full length that fit at once."""
        return self.blocks / self.blocks_per_request

    @property
    def tokens(self) -> int:
        """The number vLLM logs as its KV cache size."""
        return int(self.concurrency * self.max_model_len)

    @property
    def fits(self) -> bool:
        """Whether vLLM starts: one request of full length must fit."""
        return self.blocks >= self.blocks_per_request

    def __str__(self) -> str:
        """Return the line for seat tables."""
        return f"{self.tokens:,} tokens, {self.concurrency:.2f} x {self.max_model_len:,} ({self.confidence})"


def plan(layout: Layout, kv_bytes: int, max_model_len: int) -> Plan:
    """Return what ``kv_bytes`` hold at ``max_model_len``."""
    return Plan(
        kv_bytes,
        max_model_len,
        layout.block_bytes,
        kv_bytes // layout.block_bytes,
        layout.blocks_per_request(max_model_len),
        layout.confidence,
        layout.notes,
    )


def largest_length(layout: Layout, kv_bytes: int, limit: int) -> int:
    """Return the longest context up to ``limit`` that vLLM would start with, 0 when none."""
    blocks = kv_bytes // layout.block_bytes
    if layout.blocks_per_request(1) > blocks:
        return 0
    low, high = 1, limit
    while low < high:  # blocks per request never fall with the length
        middle = (low + high + 1) // 2
        low, high = (middle, high) if layout.blocks_per_request(middle) <= blocks else (low, middle - 1)
    return low


def least_bytes(layout: Layout, max_model_len: int) -> int:
    """Return the smallest pool that vLLM would start with at a context length."""
    return layout.blocks_per_request(max_model_len) * layout.block_bytes


# -- from layers to groups, as vLLM's get_kv_cache_groups does


def lay_out(kinds: Sequence[Layers], *, pads: bool, confidence: str, notes: tuple[str, ...] = ()) -> Layout:
    """Group layers the way vLLM does and return the pool's layout.

    ``pads`` says whether the release pads pages that do not divide (0.28 and later, or a patched 0.23.0).

    Raises:
        PlanError: the pages cannot be made equal in this release.
    """
    if len({(type(kind.rule), kind.rule, kind.block_tokens) for kind in kinds}) == 1:
        # One kind of rule: one group, even with pages of different size.
        first = kinds[0]
        page = sum(kind.count * kind.page_bytes for kind in kinds)
        group = Group(first.name, sum(kind.count for kind in kinds), first.rule, first.block_tokens, page)
        return Layout((group,), page, confidence, notes)
    merged = _merge(_equal_pages(kinds, pads))
    smallest, largest = min(kind.count for kind in merged), max(kind.count for kind in merged)
    # 1.5: vLLM's heuristic against padding layers, which lets a drafter add a few layers to one kind.
    size = largest if largest < smallest * 1.5 else smallest
    groups = tuple(
        Group(kind.name, len(range(index, kind.count, parts)), kind.rule, kind.block_tokens, kind.page_bytes)
        for kind in merged
        for parts in (ceil_div(kind.count, size),)
        for index in range(parts)
    )
    return Layout(groups, merged[0].page_bytes * max(group.layers for group in groups), confidence, notes)


def _merge(kinds: Iterable[Layers]) -> list[Layers]:
    """Add up layers that are alike in everything that decides their blocks."""
    found: dict[object, Layers] = {}
    for kind in kinds:
        key = (kind.rule, kind.block_tokens, kind.page_bytes, kind.shape)
        old = found.get(key)
        found[key] = kind if old is None else replace(old, count=old.count + kind.count)
    return list(found.values())


def _equal_pages(kinds: Sequence[Layers], pads: bool) -> list[Layers]:
    """Raise every page to the largest: by more tokens per block where that comes out even, else by padding."""
    largest = max(kind.page_bytes for kind in kinds)
    return [kind if kind.page_bytes == largest else _grow(kind, largest, pads) for kind in kinds]


def _grow(kind: Layers, page: int, pads: bool) -> Layers:
    if kind.growable and page % kind.page_bytes == 0:
        return replace(kind, block_tokens=kind.block_tokens * (page // kind.page_bytes), page_bytes=page)
    if pads and kind.paddable:
        return replace(kind, page_bytes=page)
    raise PlanError(
        f"the page of {kind.name} ({kind.page_bytes:,} bytes) does not fit the largest ({page:,}): this release does "
        "not pad it and the engine stops at start"
    )


# -- from a model to layers


@dataclass(frozen=True)
class Engine:
    """What the seat and its release decide. ``version`` is vLLM's, as numbers."""

    version: tuple[int, ...]
    max_num_batched_tokens: int = 8192
    block_size: int | None = None
    prefix_caching: bool = True
    speculative_tokens: int = 0
    method: str | None = None
    tensor_parallel: int = 1
    kv_cache_dtype: str = "auto"
    state_dtype: str = "auto"
    cpu: bool = False
    pads_pages: bool = False  # a patch that pads, on a release that does not

    @property
    def pads(self) -> bool:
        """Whether pages that do not divide are padded."""
        return self.pads_pages or self.version >= _PADDING_SINCE

    @property
    def in_flight(self) -> int:
        """Tokens that may be scheduled and not settled: from 0.28 on two batches overlap (asynchronous scheduling)."""
        return self.max_num_batched_tokens * (2 if self.version >= _PADDING_SINCE else 1)


def parse_version(text: str) -> tuple[int, ...] | None:
    """Return the numbers of the first ``1.2`` or ``1.2.3`` in a text, None when there is none."""
    match = re.search(r"\d+\.\d+(?:\.\d+)?", text)
    return tuple(int(part) for part in match[0].split(".")) if match else None


def layout_of(model: Model, engine: Engine, drafter: Model | None = None) -> Layout:
    """Return the pool's layout for a model, with its drafter's layers when it has one.

    Raises:
        UnknownModelError: a KV cache element type that is not modelled.
        PlanError: the engine would stop at start.
    """
    default = 128 if engine.cpu else 16
    block = engine.block_size or default
    state = _state_bytes(model.recurrent, model.dtype, engine) if model.recurrent else 0
    if state:
        block = _hybrid_block(model, engine, block, state)
    attention = [*model.attention]
    if engine.method == "mtp" and attention:
        full = next((kind for kind in attention if kind.window is None and kind.chunk is None), attention[0])
        attention.append(replace(full, layers=max(1, model.mtp_layers)))
    kinds = [_attention_layers(kind, model.dtype, engine, block, "attention") for kind in attention]
    if model.recurrent:
        page = max(state, kinds[0].page_bytes) if kinds else state
        count = (2 if engine.prefix_caching else 1) + engine.speculative_tokens
        kinds.append(Layers("state", model.recurrent.layers, Fixed(count), block, page, ("state",), growable=False))
    if drafter is not None:
        kinds += [_attention_layers(kind, drafter.dtype, engine, block, "drafter") for kind in drafter.attention]
    alike = all(kind.window is None and kind.chunk is None and not kind.latent for kind in attention)
    exact = model.compared and alike and (drafter is None or drafter.compared)
    notes = () if exact else (f"{model.model_type}: this combination was not compared with a running vLLM",)
    return lay_out(kinds, pads=engine.pads, confidence="exact" if exact else "formula", notes=notes)


def _element_bytes(kind: Attention, dtype: str, cache_dtype: str) -> float:
    """Return the bytes of one cached element."""
    if cache_dtype == "auto":
        return dtype_bytes(dtype)
    if cache_dtype.startswith("fp8") or cache_dtype == "int8_per_token_head":
        return 1
    if cache_dtype == "nvfp4" and not kind.latent:
        return 0.5 + 1 / 16  # two values per byte, and one scale byte per 16 values
    return dtype_bytes(cache_dtype)


def _bytes_per_token(kind: Attention, dtype: str, engine: Engine) -> int:
    if kind.latent and engine.kv_cache_dtype == "fp8_ds_mla":
        return 656  # 512 + 64 values with their scales, a fixed layout
    heads = max(1, kind.kv_heads // engine.tensor_parallel)
    size = heads * (kind.key_dim + kind.value_dim) * _element_bytes(kind, dtype, engine.kv_cache_dtype)
    scales = 2 * heads * 4 if engine.kv_cache_dtype.endswith("_per_token_head") else 0
    return int(size) + scales


def _attention_layers(kind: Attention, dtype: str, engine: Engine, block: int, name: str) -> Layers:
    rule: Rule = Full()
    if kind.window is not None:
        rule = Window(kind.window, engine.in_flight)
    elif kind.chunk is not None:
        rule = Chunk(kind.chunk, engine.in_flight)
    shape = (kind.kv_heads, kind.key_dim, kind.value_dim, kind.latent)
    page = block * _bytes_per_token(kind, dtype, engine)
    return Layers(name, kind.layers, rule, block, page, shape, paddable=not kind.latent)


def _state_bytes(state: GatedDeltaNet, dtype: str, engine: Engine) -> int:
    """Return the bytes of one GDN layer's state; each speculative token lengthens the convolution window."""
    window = state.kernel - 1 + engine.speculative_tokens
    channels = 2 * state.key_heads * state.key_dim + state.value_heads * state.value_dim
    convolution = window * channels // engine.tensor_parallel * dtype_bytes(dtype)
    chosen = engine.state_dtype if engine.state_dtype != "auto" else state.state_dtype
    if chosen == "auto":
        chosen = "float32" if engine.cpu else dtype
    recurrent = state.value_heads // engine.tensor_parallel * state.value_dim * state.key_dim * dtype_bytes(chosen)
    return convolution + recurrent


def _hybrid_block(model: Model, engine: Engine, block: int, state: int) -> int:
    """Return the tokens per block at which an attention page is at least a recurrent state."""
    if not model.attention:
        return block
    kind = model.attention[0]
    alignment = max(block, 128) if kind.latent and engine.version >= _PADDING_SINCE else block
    raised = alignment * ceil_div(state, alignment * _bytes_per_token(kind, model.dtype, engine))
    return max(block, raised)


# -- a layout that was fitted to a build's own log lines


def fitted_layout(facts: Mapping[str, Any]) -> Layout:
    """Return a layout written down in the model catalogue.

    ``{block_bytes: 40550400, full: [1600], fixed: 9, speculative_tokens: 0, build: "..."}``: one full-attention group
    per entry of ``full``, with its tokens per block, the sum of all length-independent blocks, and the number of
    speculative tokens it was fitted with (0 when not given).

    Raises:
        UnknownModelError: a field is missing or of the wrong type.
    """
    full, fixed, size, build = (facts.get(name) for name in ("full", "fixed", "block_bytes", "build"))
    if not (isinstance(full, list) and full and all(isinstance(one, int) and one > 0 for one in full)):
        raise UnknownModelError("kv_layout.full must list the tokens per block of each full-attention group")
    if not isinstance(fixed, int) or not isinstance(size, int) or size <= 0 or not isinstance(build, str):
        raise UnknownModelError("kv_layout needs fixed, block_bytes (integers) and build (text)")
    groups = [Group(f"attention {index}", 1, Full(), tokens, size) for index, tokens in enumerate(full)]
    if fixed:
        groups.append(Group("state", 1, Fixed(fixed), max(full), size))
    return Layout(tuple(groups), size, "fitted", (f"fitted to {build}",))


# -- the answer for one seat


@dataclass(frozen=True)
class FitResult:
    """Whether a seat's context fits its KV memory.

    ``unknown`` says why nothing could be computed (then the fit is *not checked*, never passed); ``problems`` are
    (field, expected, seen); ``plan`` is there when it could be computed.
    """

    problems: tuple[tuple[str, str, str], ...] = ()
    unknown: str | None = None
    plan: Plan | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def summary(self) -> str:
        """Return one line for a seat table, empty when not checked."""
        return str(self.plan) if self.plan else ""


def engine_of(seat: Seat, version: tuple[int, ...], *, cpu: bool = False) -> Engine:
    """Return what a seat decides about its KV cache."""
    speculative = seat.speculative
    block = seat.engine.get("block-size", seat.engine.get("block_size"))
    return Engine(
        version=version,
        max_num_batched_tokens=seat.max_num_batched_tokens or 8192,
        block_size=block if isinstance(block, int) else None,
        prefix_caching=seat.prefix_caching,
        speculative_tokens=speculative.num_speculative_tokens if speculative else 0,
        method=speculative.method if speculative else None,
        tensor_parallel=seat.tensor_parallel_size,
        kv_cache_dtype=seat.kv_cache_dtype or "auto",
        state_dtype=seat.mamba_ssm_cache_dtype or "auto",
        cpu=cpu,
        # A release that does not pad cannot start such a seat without the patch that does, so the patch is assumed.
        pads_pages=True,
    )


def check_fit(
    seat: Seat,
    model_facts: Mapping[str, Any],
    release_version: str,
    *,
    drafter_facts: Mapping[str, Any] | None = None,
    cpu: bool = False,
) -> FitResult:
    """Say whether ``max_model_len`` of a seat fits ``kv_cache_memory``.

    ``model_facts`` is ``facts`` of a model in the catalogue. It, or its ``more``, has ``kv_layout`` (see
    :func:`fitted_layout`) or ``config``, what matters of the model's ``config.json``; ``drafter_facts`` likewise.
    """
    if seat.kv_cache_memory is None:
        return FitResult(unknown="the pool's size is known only after the start (gpu_memory_utilization)")
    version = parse_version(release_version)
    if version is None:
        return FitResult(unknown=f"no vLLM version in {release_version!r}")
    try:
        layout = _layout_from_facts(engine_of(seat, version, cpu=cpu), model_facts, drafter_facts)
    except UnknownModelError as error:
        return FitResult(unknown=str(error))
    except PlanError as error:
        return FitResult(problems=(("speculative", "layers whose KV pages can share a pool", str(error)),))
    return fit(layout, seat.kv_cache_memory, seat.max_model_len)


def _fact(facts: Mapping[str, Any], name: str) -> object:
    more = facts.get("more")
    return facts.get(name, more.get(name) if isinstance(more, Mapping) else None)


def _layout_from_facts(engine: Engine, model: Mapping[str, Any], drafter: Mapping[str, Any] | None) -> Layout:
    fitted, config = _fact(model, "kv_layout"), _fact(model, "config")
    if isinstance(fitted, Mapping) and fitted.get("speculative_tokens", 0) == engine.speculative_tokens:
        return fitted_layout(fitted)
    if isinstance(fitted, Mapping) and config is None:
        raise UnknownModelError(f"kv_layout was not fitted with {engine.speculative_tokens} speculative tokens")
    if not isinstance(config, Mapping):
        raise UnknownModelError("the model's facts have neither config (of config.json) nor kv_layout")
    own_drafter = engine.method in {"draft_model", "eagle", "eagle3", "dflash"}
    draft_config = _fact(drafter or {}, "config")
    if own_drafter and not isinstance(draft_config, Mapping):
        raise UnknownModelError(f"method {engine.method} adds layers, and the drafter's facts have no config")
    draft = parse_config(draft_config) if own_drafter and isinstance(draft_config, Mapping) else None
    return layout_of(parse_config(config), engine, draft)


def fit(layout: Layout, kv_bytes: int, max_model_len: int) -> FitResult:
    """Compare a pool with a context length."""
    found = plan(layout, kv_bytes, max_model_len)
    if found.fits:
        return FitResult(plan=found, notes=layout.notes)
    longest = largest_length(layout, kv_bytes, max_model_len)
    needed = least_bytes(layout, max_model_len)
    expected = (
        f"at most {longest:,} with kv_cache_memory {format_gib(kv_bytes)}, or at least {format_gib(needed)} for it"
    )
    return FitResult((("max_model_len", expected, f"{max_model_len:,} ({found.confidence})"),), plan=found)
