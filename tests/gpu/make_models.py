"""Fabricate the models of the GPU proof in OUT, from fixed seeds: ``make_models.py OUT``.

Targets have the KV geometry of Qwen3.5-122B-A10B (GDN 16 k heads, 64 v heads, 128/128, conv 4; full attention 2 x 256)
in 4 small layers, so that the engine makes blocks of 2,240 tokens and a drafter page of twice the target's.

target-random   random weights: the recurrent state matters, so a wrong restored one shows in the logprobs
target-fp8      the same with its shared experts in block-wise FP8, declared nowhere (an AutoRound hybrid checkpoint)
target-fp8-ref  the same with those experts dequantized to bf16
target-large    no weights: the 122B's head (248,320 x 3,072) on four small layers, to be filled with dummies
target-copy     every block writes zero and the head is the embedding: it repeats its last token
target-chat     the same for chats, with a mask token that says nothing: a drafter then proposes what its context holds
                most often, a blank at first, the repeated token after as many tokens as the prompt has blanks. So
                acceptance depends on the text, as with real models, and can be told in advance
drafter-good    reads the repeated token from its own KV of the context: uniform attention, value = target hidden state.
                It is right only while at least 60 % of the context's drafter KV holds that token, so a hit that
                restores wrong or missing drafter KV ends its acceptance
drafter-broken  the same with a negated final norm
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

HIDDEN, VOCABULARY, LAYERS = 128, 1024, 4
DRAFTER_HEADS, DRAFTER_HEAD = 8, 128
MASK_TOKEN = 2
CONTEXT_SHARE = 0.6  # of the drafter's context that must hold the repeated token
EMBEDDING_NORM = 8.0
BLOCK = 128
FP8_MAX = 448.0

TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 64,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 128,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 262144,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "eos_token_id": 1,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    "initializer_range": 0.3,
    "dtype": "bfloat16",
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
}
VISION = {
    "depth": 1,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_heads": 2,
    "out_hidden_size": HIDDEN,
    "num_position_embeddings": 64,
}
INC = {
    "quant_method": "auto-round",
    "bits": 4,
    "group_size": 128,
    "sym": True,
    "packing_format": "auto_round:auto_gptq",
    "block_name_to_quantize": "nothing.here.is.int4",
}
DRAFTER = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "hidden_size": HIDDEN,
    "num_hidden_layers": 1,
    "num_attention_heads": DRAFTER_HEADS,
    "num_key_value_heads": DRAFTER_HEADS,
    "head_dim": DRAFTER_HEAD,
    "intermediate_size": 256,
    "vocab_size": VOCABULARY,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000000.0,
    "max_position_embeddings": 262144,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "block_size": 16,
    "num_target_layers": LAYERS,
    "dflash_config": {"mask_token_id": MASK_TOKEN, "target_layer_ids": [0, 1, 2]},
    "eos_token_id": 1,
    "pad_token_id": 0,
}
# Ends with what is repeated: a character that no text of a campaign holds more often than blanks.
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
Weights = dict[str, torch.Tensor]


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Return a byte tokenizer padded with made-up tokens; prompts are given as ids anyway."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["<pad>", "<eos>", "<mask>", *alphabet]
    words += [f"<w{number}>" for number in range(VOCABULARY - len(words))]
    raw = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<eos>", pad_token="<pad>", model_max_length=262144
    )


def random_target(folder: Path) -> None:
    """Write target-random."""
    config = transformers.Qwen3_5MoeConfig(
        text_config=TEXT,
        vision_config=VISION,
        tie_word_embeddings=False,
        image_token_id=1000,
        video_token_id=1001,
        vision_start_token_id=1002,
        vision_end_token_id=1003,
    )
    torch.manual_seed(0)
    model = transformers.Qwen3_5MoeForConditionalGeneration(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)


def variant(source: Path, folder: Path, weights: Weights, **config: object) -> None:
    """Write a copy of ``source`` with other weights and further config entries."""
    shutil.copytree(source, folder)
    (folder / "config.json").write_text(json.dumps(json.loads((source / "config.json").read_text()) | config))
    plain = {name: tensor.contiguous().clone() for name, tensor in weights.items()}
    save_file(plain, folder / "model.safetensors", metadata={"format": "pt"})


def quantize_block(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (FP8 weight, inverse scales per 128 x 128 block, the weight dequantized)."""
    rows, columns = (-(-size // BLOCK) for size in weight.shape)
    fp8 = torch.empty_like(weight, dtype=torch.float8_e4m3fn)
    scales = torch.empty(rows, columns)
    back = torch.empty_like(weight, dtype=torch.float32)
    for row in range(rows):
        for column in range(columns):
            part = (slice(row * BLOCK, (row + 1) * BLOCK), slice(column * BLOCK, (column + 1) * BLOCK))
            block = weight[part].float()
            scales[row, column] = block.abs().max() / FP8_MAX
            fp8[part] = (block / scales[row, column]).to(torch.float8_e4m3fn)
            back[part] = fp8[part].float() * scales[row, column]
    return fp8, scales, back.to(torch.bfloat16)


def fp8_twins(base: Path, out: Path) -> None:
    """Write target-fp8 and target-fp8-ref."""
    quantized = load_file(base / "model.safetensors")
    reference = dict(quantized)
    for name in [n for n in quantized if ".shared_expert." in n and n.endswith("_proj.weight")]:
        quantized[name], scales, reference[name] = quantize_block(quantized[name])
        quantized[name.removesuffix("weight") + "weight_scale_inv"] = scales
    variant(base, out / "target-fp8", quantized, quantization_config=INC)
    variant(base, out / "target-fp8-ref", reference)


def copying_targets(base: Path, out: Path) -> None:
    """Write target-copy and target-chat."""
    weights = load_file(base / "model.safetensors")
    generator = torch.Generator().manual_seed(1)
    directions = torch.nn.functional.normalize(torch.randn(VOCABULARY, HIDDEN, generator=generator), dim=1)
    zeroed = ("o_proj.weight", "out_proj.weight", "down_proj.weight", "experts.down_proj")
    for name, tensor in weights.items():
        if name.endswith(zeroed) and "visual" not in name:
            weights[name] = torch.zeros_like(tensor)
        elif name.endswith("embed_tokens.weight"):
            weights[name] = (directions * EMBEDDING_NORM).to(torch.bfloat16)
        elif name == "lm_head.weight":
            weights[name] = directions.to(torch.bfloat16)
    variant(base, out / "target-copy", weights)
    for name in [name for name in weights if name.endswith("embed_tokens.weight")]:
        weights[name] = weights[name].clone()
        weights[name][MASK_TOKEN] = 0
    variant(base, out / "target-chat", weights)
    (out / "target-chat/chat_template.jinja").write_text(CHAT_TEMPLATE)


def drafter(folder: Path, sign: float) -> None:
    """Write a drafter; ``sign`` -1 negates its final norm."""
    width = DRAFTER_HEADS * DRAFTER_HEAD
    identity, ones = torch.eye(HIDDEN), torch.ones(HIDDEN)
    first_head = torch.zeros(width, HIDDEN)
    first_head[:HIDDEN] = identity
    # The mask token's own embedding speaks for itself with EMBEDDING_NORM; a context that holds the repeated token in
    # a share f of its positions answers with gain * f * sqrt(HIDDEN).
    gain = EMBEDDING_NORM / (HIDDEN**0.5 * CONTEXT_SHARE)
    layer = "layers.0."
    weights = {
        "fc.weight": torch.cat([identity, torch.zeros(HIDDEN, 2 * HIDDEN)], dim=1),
        "hidden_norm.weight": ones,
        "norm.weight": sign * ones,
        layer + "input_layernorm.weight": ones,
        layer + "post_attention_layernorm.weight": ones,
        layer + "self_attn.q_proj.weight": torch.zeros(width, HIDDEN),
        layer + "self_attn.k_proj.weight": first_head,
        layer + "self_attn.v_proj.weight": first_head,
        layer + "self_attn.o_proj.weight": gain * first_head.T,
        layer + "self_attn.q_norm.weight": torch.ones(DRAFTER_HEAD),
        layer + "self_attn.k_norm.weight": torch.ones(DRAFTER_HEAD),
        layer + "mlp.gate_proj.weight": torch.zeros(256, HIDDEN),
        layer + "mlp.up_proj.weight": torch.zeros(256, HIDDEN),
        layer + "mlp.down_proj.weight": torch.zeros(HIDDEN, 256),
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(DRAFTER))
    plain = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in weights.items()}
    save_file(plain, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer().save_pretrained(folder)


def large_target(base: Path, out: Path) -> None:
    """Write target-large: no weights, only the head's real size (vLLM fills it with dummies)."""
    folder = out / "target-large"
    shutil.copytree(base, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((base / "config.json").read_text())
    config["text_config"] |= {"vocab_size": 248_320, "hidden_size": 3072}
    config["vision_config"] |= {"out_hidden_size": 3072}
    (folder / "config.json").write_text(json.dumps(config))


def main() -> int:
    """Write everything below OUT."""
    out = Path(sys.argv[1])
    base = out / "target-random"
    random_target(base)
    fp8_twins(base, out)
    copying_targets(base, out)
    large_target(base, out)
    drafter(out / "drafter-good", 1.0)
    drafter(out / "drafter-broken", -1.0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
