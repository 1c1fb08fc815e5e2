"""The KV planner against vLLM's own answers, the seeds' log lines, and itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seatfleet.core.inventory.seat import Seat, Speculative
from seatfleet.core.model.modelconfig import UnknownModelError, parse_config
from seatfleet.core.model.planner import (
    Chunk,
    Engine,
    Fixed,
    Full,
    Group,
    Layers,
    Layout,
    PlanError,
    Window,
    check_fit,
    engine_of,
    fitted_layout,
    largest_length,
    lay_out,
    layout_of,
    least_bytes,
    parse_version,
    plan,
)
from seatfleet.core.units import GIB, MIB

DATA = Path(__file__).parent / "data"
FLASH_NEXT = {"block_bytes": 40_550_400, "full": [1600], "fixed": 9, "build": "the seed's Flash-Next build"}


def config(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((DATA / "models" / name / "config.json").read_text())
    return loaded


# -- golden vectors of the seeds; each belongs to the build it was logged by


@pytest.mark.parametrize(
    ("kv_bytes", "length", "blocks", "per_request", "concurrency", "tokens"),
    [
        (int(8.76 * GIB), 131_072, 231, 91, 2.5385, 332_721),  # logged
        (14 * GIB, 262_144, 370, 173, 2.1387, 560_654),  # logged
        (14 * GIB, 131_072, 370, 91, 4.066, 532_930),
        (16 * GIB, 262_144, 423, 173, 2.445, 640_964),
        (18_745_235_968, 262_144, 462, 173, 2.6705, 700_060),
    ],
)
def test_flash_next(kv_bytes: int, length: int, blocks: int, per_request: int, concurrency: float, tokens: int) -> None:
    found = plan(fitted_layout(FLASH_NEXT), kv_bytes, length)
    assert (found.blocks, found.blocks_per_request, found.tokens) == (blocks, per_request, tokens)
    assert found.concurrency == pytest.approx(concurrency, abs=5e-4)
    assert found.confidence == "fitted"


@pytest.mark.parametrize(
    ("full", "fixed", "per_request", "blocks", "tokens"),
    [
        # 12 attention layers and the drafter each at 2,240 tokens a block, 3 groups of GDN layers at 1 + 12 blocks
        ([2240, 2240], 39, 157, 451, 376_518),
        ([2240, 2240], 39, 157, 511, 426_610),
        # a development build: attention at 4,480; the ratio is right, the bytes are not known
        ([4480, 2240], 39, 128, 412, 421_888),
    ],
)
def test_gb10_122b(full: list[int], fixed: int, per_request: int, blocks: int, tokens: int) -> None:
    layout = fitted_layout({"block_bytes": 1000, "full": full, "fixed": fixed, "build": "a dev build of 0.23"})
    found = plan(layout, blocks * 1000, 131_072)
    assert (found.blocks_per_request, found.tokens) == (per_request, tokens)


QWEN35_122B = {
    "model_type": "qwen3_5_moe_text",
    "dtype": "bfloat16",
    "num_hidden_layers": 48,
    "full_attention_interval": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 64,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "mamba_ssm_dtype": "float32",
}
DFLASH = {
    "model_type": "qwen3",
    "dtype": "bfloat16",
    "num_hidden_layers": 12,  # assumed: a count of 131 needs groups of 12
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}


def engine(version: tuple[int, ...] = (0, 23, 0), **changes: Any) -> Engine:
    base = {"method": "dflash", "speculative_tokens": 12, "prefix_caching": True, **changes}
    return Engine(version=version, **base)


def test_gb10_122b_from_its_configuration() -> None:
    """Block size, page and padding of the seed's log, from config.json alone."""
    layout = layout_of(parse_config(QWEN35_122B), engine(method="mtp", prefix_caching=False))
    attention, state = layout.groups[0], layout.groups[-1]
    assert (attention.block_tokens, attention.page_bytes) == (2240, 4_587_520)
    assert state.rule == Fixed(13)
    raw = 15 * (2 * 16 * 128 + 64 * 128) * 2 + 64 * 128 * 128 * 4
    assert raw == 4_562_944
    assert attention.page_bytes / raw == pytest.approx(1.0054, abs=1e-4)


def test_stock_0_23_stops_at_start_with_the_drafter_and_a_padding_build_counts_131() -> None:
    model, drafter = parse_config(QWEN35_122B), parse_config(DFLASH)
    with pytest.raises(PlanError, match="the engine stops at start"):
        layout_of(model, engine(), drafter)
    padded = layout_of(model, engine(pads_pages=True), drafter)
    assert padded.blocks_per_request(131_072) == 131
    assert sorted(group.block_tokens for group in padded.groups if isinstance(group.rule, Full)) == [2240, 4480]


# -- running servers of the lab's models: 0.32.0 on a CPU, kv-cache-memory-bytes 64M


@pytest.mark.parametrize(
    ("model", "changes", "length", "tokens"),
    [
        ("tiny-qwen3", {}, 2048, 262_144),
        ("tiny-qwen3", {"block_size": 64}, 1000, 256_000),
        ("tiny-qwen3", {"block_size": 32, "method": "draft_model", "speculative_tokens": 3}, 2048, 131_072),
        ("tiny-qwen3", {"method": "draft_model", "speculative_tokens": 3}, 2048, 131_072),
        ("tiny-oracle-qwen3next", {"prefix_caching": False}, 2048, 122_880),
        ("tiny-oracle-qwen3next", {"prefix_caching": False, "method": "mtp", "speculative_tokens": 1}, 2048, 49_152),
        ("tiny-oracle-qwen3next", {"prefix_caching": False, "method": "mtp", "speculative_tokens": 2}, 2048, 35_108),
        ("tiny-oracle-qwen3next", {"prefix_caching": False, "method": "mtp", "speculative_tokens": 3}, 2048, 27_306),
        ("tiny-oracle-qwen3next", {}, 2048, 70_217),
        ("tiny-oracle-qwen3next", {"method": "mtp", "speculative_tokens": 2}, 2048, 27_306),
        ("tiny-oracle-qwen3next", {"prefix_caching": False, "method": "mtp", "speculative_tokens": 2}, 8192, 98_304),
    ],
)
def test_what_running_servers_logged(model: str, changes: dict[str, Any], length: int, tokens: int) -> None:
    parsed = parse_config(config(model))
    drafter = parsed if changes.get("method") == "draft_model" else None
    layout = layout_of(parsed, Engine(version=(0, 32, 0), cpu=True, **changes), drafter)
    found = plan(layout, 64 * MIB, length)
    assert (found.tokens, found.confidence) == (tokens, "exact")


# -- vLLM's own planning functions over random layers (tests/tools/record_kv_vectors.py)


def as_layers(kind: dict[str, Any], case: dict[str, Any], batches: int) -> Layers:
    name, count, block = kind["name"], kind["count"], kind["block"]
    in_flight = batches * case["max_num_batched_tokens"]
    rule = {
        "full": lambda: Full(),
        "window": lambda: Window(kind["rule"][1], in_flight),
        "chunk": lambda: Chunk(kind["rule"][1], in_flight),
        "fixed": lambda: Fixed(kind["rule"][1]),
    }[kind["rule"][0]]()
    if isinstance(rule, Fixed):
        return Layers(name, count, rule, block, kind["page"], ("state",), growable=False)
    latent = bool(kind.get("latent"))
    page = block * kind["heads"] * kind["dim"] * (1 if latent else 2) * 2
    return Layers(name, count, rule, block, page, (kind["heads"], kind["dim"], latent), paddable=not latent)


@pytest.mark.parametrize("version", ["0.23.0", "0.32.0", "0.33.0"])
def test_agrees_with_vllm_over_random_layers(version: str) -> None:
    old = version.startswith("0.23")
    wrong = []
    cases = json.loads((DATA / f"kv-vectors-{version}.json").read_text())
    for case in cases:
        kinds = [as_layers(kind, case, 1 if old else 2) for kind in case["kinds"]]
        try:
            layout = lay_out(kinds, pads=not old, confidence="exact")
            found = plan(layout, case["kv_bytes"], case["max_model_len"])
            mine = {"blocks": found.blocks, "groups": len(layout.groups), "tokens": found.tokens}
        except PlanError:
            mine = {"error": case["expected"].get("error", "PlanError")}
        if mine != case["expected"]:
            wrong.append((case, mine))
    assert wrong == []
    assert len(cases) >= 120


# -- properties


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    rules = st.one_of(
        st.just(Full()),
        st.builds(Window, st.integers(1, 5000), st.integers(1, 20_000)),
        st.builds(Chunk, st.integers(1, 5000), st.integers(1, 20_000)),
        st.builds(Fixed, st.integers(1, 40)),
    )
    groups = draw(
        st.lists(
            st.builds(Group, st.just("g"), st.integers(1, 60), rules, st.integers(1, 5000), st.just(4096)),
            min_size=1,
            max_size=6,
        )
    )
    return Layout(tuple(groups), draw(st.integers(1, 1 << 28)), "formula")


@given(layouts(), st.integers(0, 1 << 38), st.integers(1, 1_000_000), st.integers(0, 1 << 30))
@settings(max_examples=200)
def test_more_bytes_never_hold_less(layout: Layout, kv_bytes: int, length: int, more: int) -> None:
    assert plan(layout, kv_bytes + more, length).tokens >= plan(layout, kv_bytes, length).tokens


@given(layouts(), st.integers(0, 1 << 38), st.integers(1, 1_000_000))
@settings(max_examples=200)
def test_the_largest_length_fits_and_the_next_does_not(layout: Layout, kv_bytes: int, limit: int) -> None:
    longest = largest_length(layout, kv_bytes, limit)
    assert 0 <= longest <= limit
    if longest:
        assert plan(layout, kv_bytes, longest).fits
    if longest < limit:
        assert not plan(layout, kv_bytes, longest + 1).fits


@given(layouts(), st.integers(1, 1_000_000))
@settings(max_examples=200)
def test_the_least_bytes_fit_and_one_less_does_not(layout: Layout, length: int) -> None:
    needed = least_bytes(layout, length)
    assert plan(layout, needed, length).fits
    assert not plan(layout, needed - 1, length).fits


@given(st.integers(1, 200), st.integers(1, 64), st.sampled_from([16, 32, 64]), st.integers(1 << 20, 1 << 36))
@settings(max_examples=100)
def test_a_plain_model_wastes_less_than_a_block(layers: int, heads: int, block: int, kv_bytes: int) -> None:
    """Concurrency times length is what the blocks hold, up to the last block of each request."""
    text = {"model_type": "qwen3", "num_hidden_layers": layers, "num_attention_heads": heads, "head_dim": 64}
    layout = layout_of(parse_config(text), Engine(version=(0, 33, 0), block_size=block))
    found = plan(layout, kv_bytes, 10 * block)
    assert found.tokens in (found.blocks * block, found.blocks * block - 1)  # -1: vLLM truncates a float


# -- what config.json says


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": None}, "no num_hidden_layers"),
        ({"layer_types": ["full_attention", "mamba"]}, "layers of type mamba"),
        ({"layer_types": ["full_attention"]}, "layer_types names 1"),
        ({"num_key_value_heads": [2, 2]}, "no num_key_value_heads"),
        ({"index_topk": 2048}, "sparse-attention"),
        ({"sliding_window": 4096, "use_sliding_window": None}, "not which layers use it"),
        ({"layers_block_type": ["mamba"]}, "Mamba-2"),
        ({"dtype": "int4"}, "element type 'int4'"),
    ],
)
def test_what_is_not_modelled_is_said(changes: dict[str, Any], words: str) -> None:
    text = {**config("tiny-qwen3"), "layer_types": None, **changes}
    with pytest.raises(UnknownModelError, match=words):
        layout_of(parse_config(text), Engine(version=(0, 33, 0)))


JSON = st.none() | st.booleans() | st.integers(-2, 70) | st.floats() | st.text(max_size=3) | st.lists(st.integers(1, 8))


@settings(max_examples=400)
@given(st.data())
def test_whatever_a_configuration_holds_is_counted_or_named(data: st.DataObject) -> None:
    good = config(data.draw(st.sampled_from(["tiny-oracle-qwen3next", "tiny-qwen3"])))
    text = good.get("text_config", good)
    for name in data.draw(st.lists(st.sampled_from(sorted(text)), max_size=3)):
        text[name] = data.draw(JSON)
    facts = {"config": good}
    found = check_fit(seat(), facts, "0.33.0")
    assert found.unknown or found.plan or found.problems
    assert found.plan is None or found.summary


@given(st.lists(st.integers(1, 4), max_size=2), st.integers(0, 2))
def test_a_fitted_layout_that_the_catalogue_takes_is_counted_or_named(full: list[int], fixed: int) -> None:
    facts = {"kv_layout": {"block_bytes": 1, "full": full, "fixed": fixed, "build": "b"}}
    found = check_fit(seat(), facts, "0.33.0")
    assert found.unknown or found.summary


def kinds_of(text: dict[str, Any]) -> list[tuple[int, int | None, int | None]]:
    return [(kind.layers, kind.window, kind.chunk) for kind in parse_config(text).attention]


BASE = {"model_type": "m", "num_hidden_layers": 6, "num_attention_heads": 4, "hidden_size": 256}


def test_kinds_of_layers() -> None:
    assert kinds_of(BASE) == [(6, None, None)]
    window = {**BASE, "sliding_window": 512}
    assert kinds_of({**window, "use_sliding_window": False}) == [(6, None, None)]
    assert kinds_of({**window, "model_type": "mistral"}) == [(6, 512, None)]
    assert kinds_of({**window, "sliding_window_pattern": 6}) == [(5, 512, None), (1, None, None)]
    assert kinds_of({"text_config": {**window, "layer_types": ["sliding_attention", "full_attention"] * 3}}) == [
        (3, 512, None),
        (3, None, None),
    ]
    chunked = {**BASE, "layer_types": ["chunked_attention"] * 5 + ["full_attention"], "attention_chunk_size": 8192}
    assert kinds_of(chunked) == [(5, None, 8192), (1, None, None)]


def test_mla() -> None:
    text = {**BASE, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    layout = layout_of(parse_config(text), Engine(version=(0, 33, 0), block_size=64))
    assert layout.block_bytes == 6 * 64 * 576 * 2
    assert layout.confidence == "formula"
    fp8 = layout_of(parse_config(text), Engine(version=(0, 33, 0), block_size=64, kv_cache_dtype="fp8_ds_mla"))
    assert fp8.block_bytes == 6 * 64 * 656


@pytest.mark.parametrize(
    ("dtype", "tensor_parallel", "per_token"),
    [
        ("auto", 1, 8 * 256 * 2),
        ("auto", 4, 2 * 256 * 2),
        ("auto", 16, 256 * 2),  # heads are copied when there are fewer than GPUs
        ("fp8", 1, 8 * 256),
        ("fp8_per_token_head", 1, 8 * 256 + 2 * 8 * 4),
        ("nvfp4", 1, 8 * (128 + 16)),
    ],
)
def test_bytes_per_token(dtype: str, tensor_parallel: int, per_token: int) -> None:
    text = {**BASE, "num_hidden_layers": 1, "num_key_value_heads": 8, "num_attention_heads": 16, "head_dim": 128}
    made = Engine(version=(0, 33, 0), kv_cache_dtype=dtype, tensor_parallel=tensor_parallel)
    assert layout_of(parse_config(text), made).block_bytes == 16 * per_token


# -- the answer for a seat


def seat(**changes: Any) -> Seat:
    base: dict[str, Any] = {
        "name": "flash-next",
        "host": "fv-ml1",
        "model": "qwen3.8-flash-next",
        "release": "0.33.0+rtx.1",
        "port": 8022,
        "max_model_len": 262_144,
        "gpus": (2,),
        "kv_cache_memory": 14 * GIB,
        "gpu_memory_utilization": None,
    }
    return Seat(**{**base, **changes})


def test_a_context_that_fits() -> None:
    found = check_fit(seat(), {"more": {"kv_layout": FLASH_NEXT}}, "0.33.0+rtx.1")
    assert (found.problems, found.unknown) == ((), None)
    assert found.summary == "560,654 tokens, 2.14 x 262,144 (fitted)"


def test_a_context_that_does_not_fit_names_what_would() -> None:
    found = check_fit(seat(kv_cache_memory=6 * GIB), {"kv_layout": FLASH_NEXT}, "0.33.0")
    ((name, expected, seen),) = found.problems
    assert (name, seen) == ("max_model_len", "262,144 (fitted)")
    # 158 blocks less 9 for the states are 149 of 1,600 tokens
    assert expected == "at most 238,400 with kv_cache_memory 6.00 GiB, or at least 6.53 GiB for it"


@pytest.mark.parametrize(
    ("changes", "facts", "version", "words"),
    [
        ({}, {}, "0.33.0", "neither config"),
        (
            {"kv_cache_memory": None, "gpu_memory_utilization": 0.9},
            {"kv_layout": FLASH_NEXT},
            "0.33.0",
            "only after the start",
        ),
        ({}, {"kv_layout": FLASH_NEXT}, "nightly", "no vLLM version"),
        ({}, {"kv_layout": {"full": [16]}}, "0.33.0", "needs fixed, block_bytes"),
        ({"speculative": Speculative("dflash", 12, "d")}, {"config": QWEN35_122B}, "0.33.0", "drafter's facts"),
        ({"speculative": Speculative("mtp", 2)}, {"kv_layout": FLASH_NEXT}, "0.33.0", "fitted with 2 speculative"),
    ],
)
def test_what_cannot_be_computed_is_not_passed(
    changes: dict[str, Any], facts: dict[str, Any], version: str, words: str
) -> None:
    found = check_fit(seat(**changes), facts, version)
    assert words in str(found.unknown)
    assert (found.problems, found.summary) == ((), "")


def test_the_seats_settings_reach_the_engine() -> None:
    made = engine_of(
        seat(
            speculative=Speculative("mtp", 2),
            prefix_caching=False,
            tensor_parallel_size=2,
            kv_cache_dtype="fp8",
            max_num_batched_tokens=4096,
            engine={"block-size": 32},
        ),
        (0, 33, 0),
    )
    assert (made.method, made.speculative_tokens, made.prefix_caching) == ("mtp", 2, False)
    assert (made.tensor_parallel, made.kv_cache_dtype, made.block_size, made.in_flight) == (2, "fp8", 32, 8192)


@pytest.mark.parametrize(("text", "numbers"), [("0.33.0+rtx.1", (0, 33, 0)), ("lab-0.32.0", (0, 32, 0)), ("x", None)])
def test_versions(text: str, numbers: tuple[int, ...] | None) -> None:
    assert parse_version(text) == numbers


def test_linear_extrapolation_would_be_wrong() -> None:
    """Why blocks are counted: the seed's own two points, 5 % off when scaled by bytes."""
    linear = 332_721 * 14 / 8.76
    assert abs(linear - 560_654) / 560_654 > 0.05
