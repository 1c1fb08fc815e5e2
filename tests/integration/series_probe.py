"""What one vLLM tree does, as JSON: `PYTHON series_probe.py KV_ORACLE SITE CASES`, in a Python that has torch.

Runs on a lab host, in the release's own Python with SITE in front: vLLM's real planning, scheduler, quantization
dispatch and configuration, no GPU. It only reports; test_series.py knows what stock and patched trees must say.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

SMX12_SHARED_MEMORY = 101_376  # bytes a block may have on sm_120 and sm_121 (CUDA programming guide, table of limits)
EXPERT = "model.layers.0.mlp.shared_expert"
FP8 = (f"{EXPERT}.gate_proj", f"{EXPERT}.up_proj", f"{EXPERT}.down_proj")


def main() -> int:
    """Print the findings."""
    oracle_file, site, cases = sys.argv[1], sys.argv[2], int(sys.argv[3])
    sys.dont_write_bytecode = True
    sys.path.insert(0, site)
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    spec = importlib.util.spec_from_file_location("kv_oracle", oracle_file)
    oracle = importlib.util.module_from_spec(spec)
    sys.modules["kv_oracle"] = oracle
    spec.loader.exec_module(oracle)
    importlib.import_module("vllm.v1.core.sched.scheduler")
    found = {
        "vllm": importlib.import_module("vllm").__file__,
        "sizes": oracle.measured_again(),
        "expected_sizes": oracle.MEASURED,
        "oracle": {
            name: oracle.examine(scenario, method, cases, 7)
            for name, scenario, method in (
                ("dflash", "seed", "dflash"),
                ("dflash16", "block16", "dflash"),
                ("mtp", "seed", "mtp"),
            )
        },
        "padded_page": outcome(lambda: padded_page(oracle)),
        "compile_keys": compile_keys(),
        "large_tiles": large_tiles(),
        "inc": inc(),
    }
    print(json.dumps(found))
    return 0


def outcome(call: Callable[[], object]) -> object:
    """Return what a call returns, or the name of the exception it ends with."""
    try:
        return call()
    except Exception as error:
        return type(error).__name__


def padded_page(oracle: Any) -> dict[str, object]:
    """Return how a drafter's 16-token block of bf16 fares in a page it does not divide.

    The target has a one-byte KV cache of 1,152 B a token in blocks of 1,600: 28.1 blocks of the drafter.
    """
    torch = importlib.import_module("torch")
    spec = oracle.needed("FullAttentionSpec", oracle.INTERFACE)
    target = spec(block_size=1600, num_kv_heads=4, head_size=144, dtype=torch.uint8)
    drafter = spec(block_size=16, num_kv_heads=8, head_size=128, dtype=torch.bfloat16)
    unify = oracle.needed("unify_kv_cache_spec_page_size", oracle.PLANNING, oracle.UTILS)
    unified = unify({"target": target, "drafter": drafter})["drafter"]
    used = dataclasses.replace(unified, page_size_padded=None).page_size_bytes
    return {"block": unified.block_size, "used_percent": round(100 * used / unified.page_size_bytes, 1)}


def compile_keys() -> int:
    """Return how many different torch.compile keys 4 and 12 drafted tokens have."""
    config_class = importlib.import_module("vllm.config.speculative").SpeculativeConfig
    keys = set()
    for drafts in (4, 12):
        config = object.__new__(config_class)
        config.__dict__.update(method="mtp", num_speculative_tokens=drafts, draft_model_config=None)
        keys.add(config.compute_hash())
    return len(keys)


def large_tiles() -> bool:
    """Return whether the FLA kernels take their large tiles where a block may have 101,376 B of shared memory."""
    for package in ("vllm.model_executor.layers.fla.ops", "vllm.third_party.flash_linear_attention.ops"):
        if importlib.util.find_spec(package.rsplit(".", 1)[0]):
            utils = importlib.import_module(f"{package}.utils")
            break
    utils.get_all_max_shared_mem = lambda: [SMX12_SHARED_MEMORY]
    utils.check_shared_mem.cache_clear()
    return bool(utils.check_shared_mem())


def inc() -> dict[str, object]:
    """Return which method INC gives the layers of a small INT4 checkpoint whose shared expert is FP8 on disk."""
    config_class, linear = inc_classes()
    torch = importlib.import_module("torch")
    # As the checkpoint has it: to AutoRound these layers are simply not INT4.
    dense = {name: {"bits": 16} for name in (*FP8, f"{EXPERT}.gate_up_proj", f"{EXPERT}_gate")}
    config = config_class(weight_bits=4, group_size=128, sym=True, extra_config=dense)
    config.packed_modules_mapping = {"gate_up_proj": ["gate_proj", "up_proj"]}
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder) / "model.safetensors")
        config.maybe_update_config(folder)
    layer = object.__new__(linear)
    torch.nn.Module.__init__(layer)
    engine = MagicMock()
    engine.model_config.dtype = torch.bfloat16
    engine.kernel_config.linear_backend = "auto"
    methods: dict[str, object] = {}
    with patch("vllm.config.vllm._current_vllm_config", engine):
        for name in (f"{EXPERT}.gate_up_proj", f"{EXPERT}.down_proj", f"{EXPERT}_gate"):
            method = config.get_quant_method(layer, name)
            block = getattr(method, "weight_block_size", None)
            methods[name.removeprefix(EXPERT)] = [type(method).__name__, block]
    check = getattr(config, "check_fp8_layers", None)
    if check is not None:
        for pinned in (3, 4):
            os.environ["INC_EXPECT_FP8_LAYERS"] = str(pinned)
            methods[f"pinned to {pinned}"] = outcome(check)
    return methods


def inc_classes() -> tuple[type, type]:
    """Return INCConfig and LinearBase of this release."""
    try:
        module = importlib.import_module("vllm.model_executor.layers.quantization.inc.inc")
    except ImportError:
        module = importlib.import_module("vllm.model_executor.layers.quantization.inc")
    return module.INCConfig, importlib.import_module("vllm.model_executor.layers.linear").LinearBase


def write_checkpoint(path: Path) -> None:
    """Write a safetensors file: three FP8 layers with their block scales, one bf16 layer with a similar name."""
    header: dict[str, object] = {}
    end = 0
    shapes = [(f"{layer}.weight", "F8_E4M3", [256, 128], 1) for layer in FP8]
    shapes += [(f"{layer}.weight_scale_inv", "F32", [2, 1], 4) for layer in FP8]
    shapes.append((f"{EXPERT}_gate.weight", "BF16", [1, 128], 2))
    for name, dtype, shape, size in shapes:
        start, end = end, end + shape[0] * shape[1] * size
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(end))


if __name__ == "__main__":
    sys.exit(main())
