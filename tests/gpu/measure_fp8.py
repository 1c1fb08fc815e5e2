"""One FP8 shared expert through the patched INC dispatch, against bf16: ``measure_fp8.py ROOT OUT``.

Writes OUT/fp8.json. The expert has the 122B's sizes; its three layers are stored block-wise FP8 in a small safetensors
file that declares nothing. Compared with the exact result of the same FP8 numbers (weights dequantized, activations
quantized per 128 values as the kernel does) and with plain bf16 layers of the dequantized weights.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from make_models import FP8_MAX, quantize_block
from safetensors.torch import save_file
from triton.testing import do_bench
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.model_executor.layers.quantization.inc import INCConfig
from vllm.model_executor.models.qwen2_moe import Qwen2MoeMLP

HIDDEN, INTERMEDIATE, GROUP = 3072, 1024, 128
PREFIX = "model.layers.0.mlp.shared_expert"
SHAPES = {
    "gate_proj": (INTERMEDIATE, HIDDEN),
    "up_proj": (INTERMEDIATE, HIDDEN),
    "down_proj": (HIDDEN, INTERMEDIATE),
}
FUSED = {"gate_up_proj": ["gate_proj", "up_proj"]}


class DenseModel:
    """Stands for a model config: bf16, and no to every question (``is_moe`` and the like)."""

    dtype = torch.bfloat16

    def __getattr__(self, name: str) -> bool:
        return False


def quantized_activations(x: torch.Tensor) -> torch.Tensor:
    """Return x rounded to FP8 per group of 128 values, as fp32."""
    groups = x.float().unflatten(-1, (-1, GROUP))
    scale = groups.abs().amax(-1, keepdim=True) / FP8_MAX
    return ((groups / scale).to(torch.float8_e4m3fn).float() * scale).flatten(-2)


def expert(stored: dict[str, torch.Tensor], quant: Any) -> Qwen2MoeMLP:
    """Build vLLM's layer and load the stored tensors the way a model's load_weights does."""
    layer = Qwen2MoeMLP(HIDDEN, INTERMEDIATE, "silu", quant, reduce_results=False, prefix=PREFIX)
    parameters = dict(layer.named_parameters())
    for name, tensor in stored.items():
        part, _, kind = name.removeprefix(f"{PREFIX}.").partition(".")
        if part in FUSED["gate_up_proj"]:
            target = parameters[f"gate_up_proj.{kind}"]
            target.weight_loader(target, tensor, FUSED["gate_up_proj"].index(part))
        else:
            target = parameters[f"{part}.{kind}"]
            target.weight_loader(target, tensor)
    for module in (layer.gate_up_proj, layer.down_proj):
        module.quant_method.process_weights_after_loading(module)
    return layer


def relative(one: torch.Tensor, other: torch.Tensor) -> float:
    return round(float((one.float() - other.float()).norm() / other.float().norm()), 5)


def main() -> int:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("cuda")
    config = VllmConfig()
    object.__setattr__(config, "model_config", DenseModel())
    fp8: dict[str, torch.Tensor] = {}
    plain: dict[str, torch.Tensor] = {}
    for name, shape in SHAPES.items():
        weight, scales, back = quantize_block((torch.randn(*shape) * 0.02).to(torch.bfloat16))
        fp8 |= {f"{PREFIX}.{name}.weight": weight, f"{PREFIX}.{name}.weight_scale_inv": scales.float()}
        plain[f"{PREFIX}.{name}.weight"] = back
    with set_current_vllm_config(config), tempfile.TemporaryDirectory() as folder:
        init_distributed_environment(1, 0, "tcp://127.0.0.1:29555", 0)
        initialize_model_parallel()
        save_file({name: tensor.cpu().contiguous() for name, tensor in fp8.items()}, f"{folder}/model.safetensors")
        quant = INCConfig(4, GROUP, block_name_to_quantize="nothing.here.is.int4")
        quant.maybe_update_config(folder)
        quant.packed_modules_mapping = FUSED
        patched, reference = expert(fp8, quant), expert(plain, None)
        rows = []
        for positions in (1, 13, 64):
            x = torch.randn(positions, HIDDEN)
            weights = {name.rsplit(".", 2)[-2]: tensor.float() for name, tensor in plain.items()}
            inner = quantized_activations(x)
            inner = torch.nn.functional.silu(inner @ weights["gate_proj"].T) * (inner @ weights["up_proj"].T)
            exact = quantized_activations(inner.to(torch.bfloat16)) @ weights["down_proj"].T
            rows.append(
                {
                    "positions": positions,
                    "against_exact_fp8": relative(patched(x), exact),
                    "against_bf16_layer": relative(patched(x), reference(x)),
                    "activation_rounding": relative(exact, reference(x)),
                    "fp8_ms": round(do_bench(lambda x=x: patched(x), return_mode="median"), 4),
                    "bf16_ms": round(do_bench(lambda x=x: reference(x), return_mode="median"), 4),
                }
            )
        method = type(patched.down_proj.quant_method).__name__
        taken = len(quant.fp8_layers_taken)
    report = {
        "layers_taken": taken,
        "method": method,
        "kernel": type(patched.down_proj.quant_method.fp8_linear).__name__,
    }
    report["rows"] = rows
    (Path(sys.argv[2]) / "fp8.json").write_text(json.dumps(report, indent=1))
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
