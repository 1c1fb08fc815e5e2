#!/usr/bin/env python3
"""Ask vLLM's own planning functions what pools of random layers hold, and write the answers down as test vectors.

    record_kv_vectors.py SRC VERSION [--cases N] > tests/unit/data/kv-vectors-VERSION.json

SRC is a folder that holds the package ``vllm/`` (an unzipped wheel; no GPU is needed), run with a Python that has torch
and what ``vllm.v1.core.kv_cache_utils`` imports. Nothing in vLLM is replaced: layer specifications are its own classes,
and the configuration objects carry only the fields that these functions read, with the values the engine gives them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from types import SimpleNamespace
from typing import Any

HEADS = ((1, 32), (2, 64), (4, 128), (2, 256), (8, 128))


def attention(rng: random.Random, name: str, count: int, block: int) -> dict[str, Any]:
    heads, dim = rng.choice(HEADS)
    return {"name": name, "count": count, "rule": ["full"], "block": block, "heads": heads, "dim": dim, "element": 2}


def draw(rng: random.Random) -> dict[str, Any]:
    """Return one case: kinds of layers, and the seat's numbers."""
    block = rng.choice((16, 32, 64))
    speculative = rng.choice((0, 0, 1, 2, 5, 12))
    mode = rng.choice(("none", "align"))
    kinds = [attention(rng, "attention", rng.randint(1, 40), block)]
    shape = rng.choice(("plain", "window", "chunk", "hybrid", "hybrid", "latent"))
    if shape in ("window", "chunk"):
        size = rng.choice((128, 512, 1024, 4096))
        kinds.append({**kinds[0], "name": shape, "count": rng.randint(1, 40), "rule": [shape, size]})
    elif shape == "latent":
        kinds[0].update(heads=1, dim=576, latent=True)
    elif shape == "hybrid":
        state = rng.randint(50_000, 5_000_000)
        token = 2 * kinds[0]["heads"] * kinds[0]["dim"] * 2
        raised = block * -(-state // (block * token))
        kinds[0]["block"] = max(block, raised)
        page = kinds[0]["block"] * token
        blocks = (1 if mode == "none" else 2) + speculative
        more = {"block": kinds[0]["block"], "state": state, "page": page}
        kinds.append({"name": "state", "count": rng.randint(1, 60), "rule": ["fixed", blocks], **more})
    if shape != "latent" and rng.random() < 0.5:
        same = rng.random() < 0.5
        draft = {**kinds[0], "name": "drafter", "count": rng.randint(1, 8)}
        if not same:
            heads, dim = rng.choice(HEADS)
            draft.update(heads=heads, dim=dim)
        kinds.append(draft)
    return {
        "kinds": kinds,
        "mode": mode,
        "speculative": speculative,
        "max_model_len": rng.choice((2048, 8192, 40_000, 131_072, 262_144)),
        "max_num_batched_tokens": rng.choice((2048, 8192)),
        "kv_bytes": rng.randint(1 << 30, 96 << 30),
    }


def specification(kind: dict[str, Any], case: dict[str, Any]) -> Any:
    import torch
    from vllm.v1 import kv_cache_interface as interface

    rule = kind["rule"]
    if rule[0] == "fixed":
        return interface.MambaSpec(
            block_size=kind["block"] if case["mode"] == "align" else case["max_model_len"],
            shapes=((kind["state"],),),
            dtypes=(torch.uint8,),
            page_size_padded=None if kind["page"] == kind["state"] else kind["page"],
            mamba_cache_mode=case["mode"],
            num_speculative_blocks=case["speculative"],
        )
    common = {
        "block_size": kind["block"],
        "num_kv_heads": kind["heads"],
        "head_size": kind["dim"],
        "dtype": torch.bfloat16,
    }
    if kind.get("latent"):
        return interface.MLAAttentionSpec(**common)
    if rule[0] == "window":
        return interface.SlidingWindowSpec(**common, sliding_window=rule[1])
    if rule[0] == "chunk":
        return interface.ChunkedLocalAttentionSpec(**common, attention_chunk_size=rule[1])
    return interface.FullAttentionSpec(**common)


def configuration(case: dict[str, Any], batches: int) -> SimpleNamespace:
    cache = SimpleNamespace(
        block_size=case["kinds"][0]["block"],
        enable_prefix_caching=case["mode"] == "align",
        hash_block_size=None,
        prefix_match_unit=None,
        mamba_cache_mode=case["mode"],
        num_gpu_blocks_override=None,
        cache_dtype="auto",
        prefix_cache_retention_interval=None,
    )
    try:
        from vllm.v1.kv_cache_layout import KVCacheLayout

        cache.get_resolved_kv_cache_layout = lambda: KVCacheLayout["LBHNC"]
    except ImportError:
        pass
    return SimpleNamespace(
        cache_config=cache,
        attention_config=SimpleNamespace(hisparse_config=None),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1, prefill_context_parallel_size=1),
        scheduler_config=SimpleNamespace(
            disable_hybrid_kv_cache_manager=False, max_num_batched_tokens=case["max_num_batched_tokens"]
        ),
        kv_transfer_config=None,
        speculative_config=None,
        model_config=SimpleNamespace(max_model_len=case["max_model_len"], supports_kv_cache_grouping=False),
        max_in_flight_tokens=batches * case["max_num_batched_tokens"],
    )


def answer(case: dict[str, Any], batches: int) -> dict[str, Any]:
    """Return what vLLM makes of a case, or the exception it would stop with."""
    import vllm.v1.core.kv_cache_utils as utils

    try:
        import vllm.v1.core.kv_cache_planning as planning
    except ImportError:
        planning = utils
    config = configuration(case, batches)
    layers = {
        f"{kind['name']}.{index}": specification(kind, case) for kind in case["kinds"] for index in range(kind["count"])
    }
    try:
        groups = planning.get_kv_cache_groups(config, layers)
        pool = planning.get_kv_cache_config_from_groups(config, groups, case["kv_bytes"])
    except (AssertionError, NotImplementedError, ValueError) as error:
        return {"error": type(error).__name__}
    concurrency = utils.get_max_concurrency_for_kv_cache_config(config, pool)
    return {"blocks": pool.num_blocks, "groups": len(groups), "tokens": int(concurrency * case["max_model_len"])}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("version")
    parser.add_argument("--cases", type=int, default=120)
    parser.add_argument("--seed", type=int, default=20261129)
    args = parser.parse_args()
    sys.path.insert(0, args.source)
    sys.dont_write_bytecode = True
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")
    # Two batches overlap with asynchronous scheduling, the default from 0.28 on; 0.23 does not count that.
    batches = 1 if args.version.startswith("0.23") else 2
    rng = random.Random(args.seed)
    cases = [draw(rng) for _ in range(args.cases)]
    vectors = [{**case, "expected": answer(case, batches)} for case in cases]
    print("[\n" + ",\n".join(json.dumps(vector) for vector in vectors) + "\n]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
