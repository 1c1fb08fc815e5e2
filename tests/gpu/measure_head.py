"""int8 head at the 122B's size against bf16: accuracy and speed on one GPU: ``measure_head.py ROOT OUT``.

Writes OUT/head.json. Times are medians of CUDA-event timings with a flushed L2 cache; bytes are those that must
move: weight, scales, input and output. Copy bandwidth counts bytes read and written.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from triton.testing import do_bench
from vllm.model_executor.layers.quantization import int8_lm_head

ROWS, HIDDEN = 248_320, 3072
POSITIONS = (1, 4, 13, 16, 32, 64, 104)
VECTORS = 2048
SIGMAS = 8.0


def milliseconds(function: Callable[[], Any]) -> float:
    return float(do_bench(function, warmup=50, rep=200, return_mode="median"))


def copy_bandwidth() -> float:
    """Return bytes per second, read plus written, of a device-to-device copy of 2 GiB."""
    source = torch.empty(2**31, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / milliseconds(lambda: target.copy_(source)) * 1e3


def speed(weight: torch.Tensor, quantized: torch.Tensor, scale: torch.Tensor, copy: float) -> list[dict[str, Any]]:
    rows = []
    for positions in POSITIONS:
        x = torch.randn(positions, HIDDEN, device="cuda", dtype=torch.bfloat16)
        bf16 = milliseconds(lambda x=x: torch.nn.functional.linear(x, weight))
        int8 = milliseconds(lambda x=x: int8_lm_head.apply_int8_head(x, quantized, scale))
        moved = ROWS * HIDDEN + 4 * ROWS + 2 * positions * (HIDDEN + ROWS)
        rows.append(
            {
                "positions": positions,
                "bf16_ms": round(bf16, 4),
                "int8_ms": round(int8, 4),
                "ratio": round(bf16 / int8, 2),
                "gb_per_s": round(moved / int8 / 1e6),
                "share_of_copy": round(moved / int8 * 1e3 / copy, 3),
            }
        )
    return rows


#: Numbers of positions to try other tiles for, with the block of tokens that holds them.
SWEPT = {13: 16, 32: 32, 64: 64, 104: 128}


def sweep(quantized: torch.Tensor, scale: torch.Tensor) -> list[dict[str, Any]]:
    """Time other tile shapes (rows, depth, warps, stages) without the split; the best few per number of positions."""
    best = []
    for positions, block in SWEPT.items():
        x = torch.randn(positions, HIDDEN, device="cuda", dtype=torch.bfloat16)
        parts, step = int8_lm_head.split_rows(x, block)
        out = x.new_empty((positions, ROWS))
        values = (parts, step, quantized, scale, out, positions, ROWS, HIDDEN, ROWS)
        found = []
        for rows, depth, warps, stages in itertools.product((64, 128), (64, 128), (4, 8), (2, 3, 4)):
            tile = {"BLOCK_M": block, "BLOCK_N": rows, "BLOCK_K": depth, "EVEN_K": True}
            options = {**tile, "num_warps": warps, "num_stages": stages}

            def launch(values: tuple[Any, ...] = values, options: dict[str, Any] = options) -> None:
                int8_lm_head._head_kernel[1, -(-ROWS // options["BLOCK_N"])](*values, **options)

            try:
                time = float(do_bench(launch, warmup=5, rep=30, return_mode="median"))
            except Exception:  # more shared memory than there is
                continue
            found.append({"positions": positions, "tile": [rows, depth, warps, stages], "ms": round(time, 4)})
        best += sorted(found, key=lambda row: row["ms"])[:6]
    return best


def accuracy(weight: torch.Tensor, quantized: torch.Tensor, scale: torch.Tensor) -> dict[str, Any]:
    """Compare the argmax over random vectors, exactly (fp32) and as served (bf16 logits)."""
    torch.backends.cuda.matmul.allow_tf32 = False
    counts = dict.fromkeys(("clear", "clear_flips", "flips", "served_flips", "bf16_rounding_flips"), 0)
    predicted, worst = 0.0, 0.0
    exact_head = (quantized.float() * scale[:, None]).contiguous()
    plain_head = weight.float()
    for _ in range(VECTORS // 64):
        x = torch.randn(64, HIDDEN, device="cuda", dtype=torch.bfloat16)
        plain, exact = x.float() @ plain_head.T, x.float() @ exact_head.T
        served, bf16 = int8_lm_head.apply_int8_head(x, quantized, scale), torch.nn.functional.linear(x, weight)
        worst = max(worst, float(((served.float() - exact).abs() / exact.abs().clamp(min=1.0)).max()))
        top, index = plain.topk(64, dim=1)
        # Rounding to nearest leaves an error uniform in half a step either way: scale / sqrt(12) per weight.
        sigma = scale[index] * x.float().norm(dim=1, keepdim=True) / math.sqrt(12)
        clear = (top[:, 0] - top[:, 1]) > SIGMAS * sigma[:, 0]
        flipped = exact.argmax(1) != index[:, 0]
        noisy = top[None] + sigma[None] * torch.randn(256, *top.shape, device="cuda")
        predicted += float((noisy.argmax(2) != 0).float().mean(0).sum())
        counts["clear"] += int(clear.sum())
        counts["clear_flips"] += int((flipped & clear).sum())
        counts["flips"] += int(flipped.sum())
        counts["served_flips"] += int((served.argmax(1) != bf16.argmax(1)).sum())
        counts["bf16_rounding_flips"] += int((bf16.argmax(1) != index[:, 0]).sum())
    return {"vectors": VECTORS, **counts, "predicted_flips": round(predicted, 1), "kernel_error": worst}


def captured(quantized: torch.Tensor, scale: torch.Tensor) -> bool:
    """Replay the head from a CUDA graph and compare with a plain call."""
    x = torch.randn(13, HIDDEN, device="cuda", dtype=torch.bfloat16)
    int8_lm_head.apply_int8_head(x, quantized, scale)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = int8_lm_head.apply_int8_head(x, quantized, scale)
    x.copy_(torch.randn_like(x))
    graph.replay()
    return bool(torch.equal(out, int8_lm_head.apply_int8_head(x, quantized, scale)))


def main() -> int:
    out = Path(sys.argv[2])
    torch.manual_seed(0)
    weight = (torch.randn(ROWS, HIDDEN, device="cuda") * 0.02).to(torch.bfloat16)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    quantized, scale = int8_lm_head.quantize_rows(weight)
    peak = torch.cuda.max_memory_allocated() - before - quantized.numel() - 4 * scale.numel()
    copy = copy_bandwidth()
    report = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "shape": [ROWS, HIDDEN],
        "copy_gb_per_s": round(copy / 1e9),
        "quantize_extra_peak_mib": round(peak / 2**20),
        "speed": speed(weight, quantized, scale, copy),
        "captured": captured(quantized, scale),
        "accuracy": accuracy(weight, quantized, scale),
    }
    (out / "head.json").write_text(json.dumps(report, indent=1))
    print(json.dumps(report))
    if "--no-sweep" in sys.argv:
        return 0
    report["sweep"] = sweep(quantized, scale)
    for positions, block in SWEPT.items():
        best = next(row["tile"] for row in report["sweep"] if row["positions"] == positions)
        int8_lm_head.TILES[block] = tuple(best)
    report["speed_with_best_tiles"] = speed(weight, quantized, scale, copy)
    (out / "head.json").write_text(json.dumps(report, indent=1))
    print(json.dumps([report["sweep"], report["speed_with_best_tiles"]]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
