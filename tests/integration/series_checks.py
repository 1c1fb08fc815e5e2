"""Checks inside one vLLM tree, as JSON {check: error or ""}: `PYTHON series_checks.py SITE CHECK...`.

Lies beside kv_oracle.py and runs on a lab host like series_probe.py, with SITE in front. The two of the kernel also
need Triton on the path, which the lab release does without.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import traceback
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ["HF_HUB_OFFLINE"] = "1"
CONSUMER_BLACKWELL = 101_376  # bytes of shared memory a block may have on sm_120 and sm_121
LAYER = "model.layers.1.mlp.shared_expert"
FUSED = {"gate_up_proj": ["gate_proj", "up_proj"]}


def first(*names: str) -> Any:
    """Import the first module that this release has."""
    for name in names[:-1]:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return importlib.import_module(names[-1])


def raises(kind: type[Exception], call: Any, *needles: str) -> None:
    try:
        call()
    except kind as error:
        assert all(needle in str(error) for needle in needles), str(error)
        return
    raise AssertionError(f"no {kind.__name__}")


# --- prefix caching ---------------------------------------------------------------------------------------------------


def examined(scenario: str, method: str, cases: int = 20, seed: int = 7) -> dict[str, Any]:
    """Return the oracle's report of a release that starts and restores nothing wrong."""
    report: dict[str, Any] = importlib.import_module("kv_oracle").examine(scenario, method, cases, seed)
    assert report["ok"], report
    return report


def dflash_starts() -> None:
    """The engine starts with the drafter's larger page."""
    importlib.import_module("kv_oracle").plan("seed", "dflash")


def dflash_small_blocks() -> None:
    """It also starts, and restores right states, with a drafter of small blocks."""
    assert examined("block16", "dflash")["hits"] > 50


def dflash_reuse() -> None:
    """A repeated prompt is hit up to its last scheduler block (89 %; 55 % when a block is given up)."""
    assert examined("seed", "dflash")["reuse"] > 0.8


def mtp_hits() -> None:
    """Hits with MTP restore the attention blocks and states that they claim."""
    assert examined("seed", "mtp")["hits"] > 50


def short_steps() -> None:
    """With no room for a scheduler block in a step, chunks end at Mamba blocks: nothing stalls, nothing is wrong."""
    importlib.import_module("kv_oracle").BUDGET = 4480  # less is left once drafting slots are taken off
    examined("seed", "dflash", 15, 11)


def padded_page() -> None:
    """A drafter's page that does not divide the largest one is filled."""
    found = importlib.import_module("series_probe").padded_page(importlib.import_module("kv_oracle"))
    assert found == {"block": 400, "used_percent": 88.9}, found


# --- one constant, one factor ----------------------------------------------------------------------------------------


def large_tiles() -> None:
    """The FLA kernels take their large tiles where a block may have 101,376 B of shared memory."""
    assert importlib.import_module("series_probe").large_tiles()


def compile_keys() -> None:
    """4 and 12 drafted tokens have torch.compile keys of their own."""
    assert importlib.import_module("series_probe").compile_keys() == 2


# --- INC with FP8 layers ---------------------------------------------------------------------------------------------


def inc() -> Any:
    """Return INC's module with the FP8 method replaced by a record of its configuration (it needs a GPU)."""
    module = first("vllm.model_executor.layers.quantization.inc.inc", "vllm.model_executor.layers.quantization.inc")
    module.Fp8LinearMethod = lambda config: ("fp8", config.weight_block_size, config.activation_scheme)
    return module


def linear() -> Any:
    """Return a LinearBase that is nothing but one."""
    import torch

    base = importlib.import_module("vllm.model_executor.layers.linear").LinearBase

    class Linear(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)

    return Linear()


def stored(layers: dict[str, tuple[int, int]], blocks: dict[str, tuple[int, int]] | None = None) -> str:
    """Write a checkpoint with FP8 layers of the given shapes and one bf16 layer; return its folder."""
    import torch
    from safetensors.torch import save_file

    tensors = {"model.layers.9.mlp.shared_expert.gate_proj.weight": torch.zeros(8, 8, dtype=torch.bfloat16)}
    for name, (rows, columns) in layers.items():
        scales = (blocks or {}).get(name, (-(-rows // 128), -(-columns // 128)))
        tensors[f"{name}.weight"] = torch.zeros(rows, columns).to(torch.float8_e4m3fn)
        tensors[f"{name}.weight_scale_inv"] = torch.ones(*scales)
    folder = tempfile.mkdtemp()
    save_file(tensors, f"{folder}/model-00001-of-00001.safetensors")
    return folder


def config_of(folder: str) -> Any:
    quant = inc().INCConfig(4, 128, block_name_to_quantize="nothing.is.int4")
    quant.packed_modules_mapping = FUSED
    quant.maybe_update_config(folder)
    return quant


def expert(layer: str = LAYER) -> dict[str, tuple[int, int]]:
    return {f"{layer}.gate_proj": (256, 200), f"{layer}.up_proj": (256, 200), f"{layer}.down_proj": (200, 256)}


def inc_takes_over() -> None:
    """Exactly the stored layers, fused ones included, by exact name."""
    quant = config_of(stored(expert()))
    for name in ("gate_up_proj", "down_proj"):
        assert quant.get_quant_method(linear(), f"{LAYER}.{name}") == ("fp8", [128, 128], "dynamic"), name
    unquantized = importlib.import_module("vllm.model_executor.layers.linear").UnquantizedLinearMethod
    for name in (
        "model.layers.10.mlp.shared_expert.down_proj",  # "layers.1" is a part of it
        "model.layers.1.mlp.shared_expert.down_proj_extra",
        "odel.layers.1.mlp.shared_expert.down_proj",
        "model.layers.9.mlp.shared_expert.gate_up_proj",  # stored in bf16
        "down_proj",
    ):
        assert isinstance(quant.get_quant_method(linear(), name), unquantized), name
    assert len(quant.fp8_layers_taken) == 3
    quant.check_fp8_layers()


def inc_leaves_others_alone() -> None:
    """The head and layers that are no LinearBase keep INC's own answer, whatever is stored under their name."""
    import torch

    quant = config_of(stored({"lm_head": (256, 128), "model.layers.0.mlp.experts": (256, 128)}))
    head = importlib.import_module("vllm.model_executor.layers.vocab_parallel_embedding").ParallelLMHead

    class Head(head):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)

    assert quant.get_quant_method(Head(), "lm_head") != ("fp8", [128, 128], "dynamic")
    assert not quant.fp8_layers_taken


def inc_without_fp8() -> None:
    """A plain checkpoint: nothing found, nothing taken, nothing refused; but an expected number is."""
    quant = config_of(stored({}))
    assert quant.fp8_layers == {}
    quant.check_fp8_layers()
    os.environ["INC_EXPECT_FP8_LAYERS"] = "144"
    try:
        raises(ValueError, quant.check_fp8_layers, "144", "but 0 FP8 layers")
    finally:
        del os.environ["INC_EXPECT_FP8_LAYERS"]


def inc_refuses() -> None:
    """FP8 layers without a place in the model, half-stored fusions, scales that do not divide."""
    quant = config_of(stored(expert()))
    quant.get_quant_method(linear(), f"{LAYER}.gate_up_proj")
    raises(ValueError, quant.check_fp8_layers, "1 FP8 layers", f"{LAYER}.down_proj")
    half = config_of(stored({f"{LAYER}.gate_proj": (256, 128)}))
    raises(ValueError, lambda: half.get_quant_method(linear(), f"{LAYER}.gate_up_proj"), "cannot be fused")
    raises(ValueError, lambda: config_of(stored({"a": (100, 128)}, {"a": (3, 1)})), "do not divide")
    mtp = config_of(stored(expert("mtp.layers.0.mlp.shared_expert")))
    mtp.check_fp8_layers()  # the draft head's own layers are not the target's to have


def inc_block_sizes() -> None:
    """128 also where the last block is partial; other sizes where they divide; per layer, not from the first."""
    quant = config_of(stored({"a": (200, 300), "b": (256, 256), "c": (64, 64)}, {"b": (4, 4)}))
    assert quant.fp8_layers == {"a": [128, 128], "b": [64, 64], "c": [128, 128]}


def inc_renames() -> None:
    """A model's renaming of weights applies to the stored names before they are compared."""
    mapper = importlib.import_module("vllm.model_executor.models.utils").WeightsMapper
    quant = config_of(stored({"model.language_model.layers.0.mlp.shared_expert.down_proj": (128, 128)}))
    quant.apply_vllm_mapper(mapper(orig_to_new_prefix={"model.language_model.": "language_model.model."}))
    name = "language_model.model.layers.0.mlp.shared_expert.down_proj"
    assert quant.get_quant_method(linear(), name) == ("fp8", [128, 128], "dynamic")


# --- int8 head -------------------------------------------------------------------------------------------------------


def head_module() -> Any:
    return importlib.import_module("vllm.model_executor.layers.quantization.int8_lm_head")


def model(rows: int = 300, hidden: int = 64, *, bias: bool = False, tied: bool = False, method: Any = None) -> Any:
    """Return a model with an embedding and a head, made without vLLM's constructors (they want a process group)."""
    import torch

    embedding = importlib.import_module("vllm.model_executor.layers.vocab_parallel_embedding")
    torch.manual_seed(0)

    class Embedding(embedding.VocabParallelEmbedding):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)
            self.weight = torch.nn.Parameter(torch.randn(rows, hidden).to(torch.bfloat16), requires_grad=False)

    class Head(embedding.ParallelLMHead):  # type: ignore[misc, name-defined]
        def __init__(self, weight: Any) -> None:
            torch.nn.Module.__init__(self)
            self.weight = torch.nn.Parameter(weight, requires_grad=False)
            self.bias = torch.nn.Parameter(torch.zeros(rows)) if bias else None
            self.quant_method = method or embedding.UnquantizedEmbeddingMethod()

    whole = torch.nn.Module()
    whole.embed_tokens = Embedding()
    weight = whole.embed_tokens.weight.data if tied else torch.randn(rows, hidden).to(torch.bfloat16)
    whole.lm_head = Head(weight)
    return whole


def quantized(whole: Any, **environment: str) -> Any:
    os.environ.update(environment)
    try:
        head_module().quantize_lm_head(whole)
    finally:
        for name in environment:
            del os.environ[name]
    return whole.lm_head


def int8_off_by_default() -> None:
    """Without LM_HEAD_INT8 the head is what it was."""
    whole = model()
    weight, method = whole.lm_head.weight, whole.lm_head.quant_method
    for environment in ({}, {"LM_HEAD_INT8": "0"}):
        head = quantized(whole, **environment)
        assert head.weight is weight
        assert head.quant_method is method


def int8_quantizes() -> None:
    """Every weight is within half a step; both readers of a head get the new method; the bf16 weight is gone."""
    import torch

    module = head_module()
    module.ROW_CHUNK = 128  # three chunks, the last one partial
    whole = model()
    whole.lm_head.weight.data[7] = 0  # vocabulary padding
    before = whole.lm_head.weight.data.float()
    head = quantized(whole, LM_HEAD_INT8="1")
    back = head.int8_weight.float() * head.int8_scale[:, None]
    assert ((back - before).abs() <= head.int8_scale[:, None] * 0.5001).all()
    assert (back[7] == 0).all()
    assert head.weight is head.int8_weight
    assert head.weight.dtype == torch.int8
    assert head.int8_weight.abs().max() <= 127
    module.apply_int8_head = lambda x, weight, scale: (x.float() @ (weight.float() * scale[:, None]).T).to(x.dtype)
    x = torch.randn(5, 64).to(torch.bfloat16)
    processors = importlib.import_module("vllm.model_executor.layers.logits_processor")
    processor = SimpleNamespace(
        _gather_logits=lambda logits: logits, org_vocab_size=300, head_dtype=None, soft_cap=None, scale=1.0
    )
    for name in ("_apply_head", "_get_logits", "get_top_tokens"):
        if hasattr(processors.LogitsProcessor, name):
            bound = types.MethodType(getattr(processors.LogitsProcessor, name), processor)
            setattr(processor, name, bound)
    head.tp_size = 1
    head.shard_indices = SimpleNamespace(num_org_vocab_padding=0, org_vocab_start_index=0)
    processors.get_tensor_model_parallel_world_size = lambda: 1
    logits = processor._get_logits(x, head, None)
    exact = x.float() @ back.T
    assert torch.allclose(logits.float(), exact, rtol=1e-2, atol=1e-2)
    assert torch.equal(processor.get_top_tokens(head, x), logits.argmax(-1))


def int8_keeps_bf16() -> None:
    """LM_HEAD_INT8_KEEP_BF16=1 leaves the weight in place beside the int8 one."""
    whole = model()
    weight = whole.lm_head.weight
    head = quantized(whole, LM_HEAD_INT8="1", LM_HEAD_INT8_KEEP_BF16="1")
    assert head.weight is weight
    assert head.int8_weight.shape == weight.shape


def int8_accepts_inc() -> None:
    """Under INC the head's method is the unquantized linear one: fine, too."""
    unquantized = importlib.import_module("vllm.model_executor.layers.linear").UnquantizedLinearMethod
    assert quantized(model(method=unquantized()), LM_HEAD_INT8="1").int8_weight is not None


def int8_refuses() -> None:
    """Tied, biased, already quantized, absent: a seat that asks for it does not start."""
    asked = {"LM_HEAD_INT8": "1"}
    raises(ValueError, lambda: quantized(model(tied=True), **asked), "lm_head is tied")
    raises(ValueError, lambda: quantized(model(bias=True), **asked), "lm_head has a bias")
    raises(ValueError, lambda: quantized(model(method=object()), **asked), "lm_head is quantized already")
    headless = model()
    headless.lm_head = headless.embed_tokens
    raises(ValueError, lambda: quantized(headless, **asked), "no lm_head of its own")


def int8_hook() -> None:
    """The loader calls it for the served model and not for a drafter."""
    utils = importlib.import_module("vllm.model_executor.model_loader.utils")
    called: list[object] = []
    utils.quantize_lm_head = called.append
    whole = importlib.import_module("torch").nn.Module()
    for runner, count in (("draft", 0), ("generate", 1)):
        config = SimpleNamespace(
            quantization=None, dtype=None, runner_type=runner, word_embeddings_untied_by_checkpoint=False
        )
        utils.process_weights_after_loading(whole, config, importlib.import_module("torch").device("cpu"))
        assert len(called) == count, runner


def real_triton() -> Any:
    """Load the head's module with Triton's own decorators; vLLM replaces them where no GPU is."""
    import triton
    import triton.language as tl

    module = importlib.import_module("vllm.triton_utils")
    module.triton, module.tl = triton, tl
    sys.modules.pop("vllm.model_executor.layers.quantization.int8_lm_head", None)
    return head_module()


def int8_kernel() -> None:
    """Interpreted: the kernel against an exact product, for partial blocks of every dimension."""
    import torch

    module = real_triton()
    for tokens, rows, hidden in ((1, 300, 96), (13, 1000, 200), (3, 129, 64), (40, 257, 130), (5, 128, 128)):
        torch.manual_seed(0)
        weight, scale = module.quantize_rows(torch.randn(rows, hidden).to(torch.bfloat16))
        x = torch.randn(tokens, 2, hidden).to(torch.float16)[:, 0]  # rows that are not contiguous
        x[0, 0] = 30.0  # an outlier sets the step of its token only
        out = module.apply_int8_head(x, weight, scale)
        exact = x.float() @ (weight.float() * scale[:, None]).T
        assert out.shape == exact.shape
        error = float((out.float() - exact).abs().max() / exact.abs().max())
        assert error < 1e-3, (tokens, rows, hidden, error)
    assert module.apply_int8_head(x[:0], weight, scale).shape == (0, 128)


def int8_compiles() -> None:
    """For sm_90, sm_120 and sm_121 every tile compiles to int8 tensor-core code within the shared memory there is."""
    from triton import compile as compile_kernel
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module = real_triton()
    kernel = module._head_kernel
    pointers = {"parts_ptr": "*i8", "step_ptr": "*fp32", "weight_ptr": "*i8", "scale_ptr": "*fp32", "out_ptr": "*bf16"}
    numbers = dict.fromkeys(("num_tokens", "num_rows", "hidden_size", "stride_out"), "i32")
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(kernel.arg_names) if name in pointers}
    for capability in (90, 120, 121):
        for block, (rows, depth, warps, stages) in module.TILES.items():
            values = {"BLOCK_M": block, "BLOCK_N": rows, "BLOCK_K": depth, "EVEN_K": True}
            places = {(kernel.arg_names.index(name),): value for name, value in values.items()}
            signature = {**pointers, **numbers, **dict.fromkeys(values, "constexpr")}
            source = ASTSource(kernel, signature, constexprs=places, attrs=aligned)
            options = {"num_warps": warps, "num_stages": stages}
            built = compile_kernel(source, target=GPUTarget("cuda", capability, 32), options=options)
            instruction = "wgmma.mma_async" if capability == 90 else "mma.sync"
            assert f"{instruction}" in built.asm["ptx"], (capability, block)
            assert ".s8" in built.asm["ptx"], (capability, block)
            limit = CONSUMER_BLACKWELL if capability > 100 else 232_448
            assert built.metadata.shared <= limit, (capability, block, built.metadata.shared)


CHECKS = {name: check for name, check in globals().items() if isinstance(check, types.FunctionType)}


def main() -> int:
    """Run the named checks; each reports its first failure."""
    sys.dont_write_bytecode = True
    sys.path.insert(0, sys.argv[1])
    sys.path.append(str(Path(__file__).resolve().parent))
    results = {}
    for name in sys.argv[2:]:
        try:
            CHECKS[name]()
            results[name] = ""
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            results[name] = f"{type(error).__name__}: {error} at {Path(last.filename).name}:{last.lineno}"
    print(json.dumps({"checks": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
