"""Seats for tests: those of the lab and of the example fleet, written as an operator writes them."""

from __future__ import annotations

from typing import Any

from seatfleet.core.inventory.schema import load_seat
from seatfleet.core.inventory.seat import Seat
from seatfleet.core.seat.render import HostClass, ModelRef, ReleaseRef
from seatfleet.core.units import GIB, MIB

UUIDS = tuple(f"GPU-{index}0000000-0000-0000-0000-000000000000" for index in range(4))
CPU = HostClass("cpu")
RTX = HostClass("cuda", device_memory=97_887 * MIB, gpu_uuids=UUIDS)
GB10 = HostClass(
    "cuda",
    device_memory=124_610 * MIB,
    gpu_uuids=(UUIDS[0],),
    environment={"CUDA_HOME": "/usr/local/cuda", "TRITON_PTXAS_PATH": "/usr/local/cuda/bin/ptxas"},
)
RELEASE = ReleaseRef("0.32.0+cpu.1", "0.32.0-0123456789ab", "/opt/vllm/releases/0.32.0-0123456789ab")
CUDA_RELEASE = ReleaseRef("0.33.0+rtx.1", "0.33.0-ba9876543210", "/opt/vllm/releases/0.33.0-ba9876543210")
SPARK_RELEASE = ReleaseRef("0.23.0+gb10.1", "0.23.0-aaaabbbbcccc", "/opt/vllm/releases/0.23.0-aaaabbbbcccc")
MEASURED = {"state": "unmeasured", "note": "nobody has compared it here"}

WRITTEN: dict[str, dict[str, Any]] = {
    "lab-oracle": {
        "model": "tiny-oracle",
        "release": "0.32.0+cpu.1",
        "gpus": [],
        "port": 8022,
        "max_model_len": 2048,
        "kv_cache_memory": "64MiB",
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 4,
        "speculative": {"method": "mtp", "num_speculative_tokens": 2},
        "prefix_caching": False,
        "enforce_eager": True,
        "env": {"VLLM_CPU_OMP_THREADS_BIND": "0"},
        "aliases": {"gen-large": {"keys": ["infra-ops", "all-agents"], "sampling": {"temperature": 1.0}}},
        "probe": {"ready_timeout_s": 600},
    },
    "lab-dense": {
        "model": "tiny-qwen3",
        "release": "0.32.0+cpu.1",
        "gpus": [],
        "port": 8031,
        "max_model_len": 2048,
        "kv_cache_memory": "64MiB",
        "speculative": {"method": "draft_model", "model": "tiny-qwen3", "num_speculative_tokens": 3},
        "enforce_eager": True,
    },
    # RTX PRO 6000: full native context, pinned KV, the n-gram table in host RAM, MTP off until it is measured.
    "rtx-flash-next": {
        "model": "qwen3.8-flash-next",
        "release": "0.33.0+rtx.1",
        "gpus": [2],
        "port": 8022,
        "max_model_len": 262144,
        "kv_cache_memory": "14GiB",
        "kv_cache_why": MEASURED,
        "max_num_batched_tokens": 8192,
        "speculative": None,
        "speculative_why": MEASURED,
        "engram": {"cpu_offload": True},
        "host_memory": "96GiB",
        "reasoning_parser": "qwen3",
        "tool_call_parser": "qwen3_coder",
        "aliases": {"gen-large": {"keys": ["infra-ops"]}},
    },
    # GB10: DFlash with its drafter on FLASH_ATTN, prefix caching on, a share of the unified memory.
    "spark-dflash": {
        "model": "qwen3.5-122b-a10b-int4",
        "release": "0.23.0+gb10.1",
        "gpus": [0],
        "port": 8031,
        "max_model_len": 262144,
        "gpu_memory_utilization": 0.85,
        "max_num_batched_tokens": 8192,
        "attention_backend": "FLASH_ATTN",
        "kv_cache_dtype": "auto",
        "speculative": {
            "method": "dflash",
            "model": "qwen3.5-122b-a10b-dflash",
            "num_speculative_tokens": 12,
            "attention_backend": "FLASH_ATTN",
        },
        "prefix_caching": True,
        "engine": {"compilation-config": {"mode": 3}, "async-scheduling": False},
        "aliases": {"gen-agent": {"keys": ["all-agents"]}, "gen-code": {"keys": ["all-agents"]}},
        "probe": {"ready_timeout_s": 3600, "acceptance": {"code": 4.5}},
    },
}


def seat(name: str, **changes: object) -> Seat:
    """Load one of the examples with changed fields."""
    written = {key: value for key, value in (WRITTEN[name] | changes).items() if value is not ...}
    return load_seat(name, "host-1", written)


def model(name: str, resident: int | None = None) -> ModelRef:
    revision = "0123456789abcdef0123456789abcdef01234567"
    return ModelRef(name, revision, f"/srv/models/{name}/{revision[:12]}", resident)


TINY = model("tiny-oracle", 1_355_040)
LARGE = model("qwen3.8-flash-next", 74 * GIB)
