#!/usr/bin/env python3
"""Make the lab's tiny models, which a CPU serves in seconds; standard library only, the same bytes on every machine.

    build.py OUT [NAME...]

tiny-qwen3         plain, random weights; also its own draft model, whose every token is accepted
tiny-qwen3-other   the same shape, other weights: a draft model of which nothing is accepted
tiny-oracle        hybrid (gated delta net, full attention, mixture of experts) with an MTP head; the answer is known
tiny-oracle-badmtp the same, but with a broken MTP head: nothing is accepted

The oracle: the output projection of every block is 0, so what reaches the head is the embedding, and ``lm_head`` maps
token t to ``next(t)``. ``mtp.fc = [I|0]`` makes the MTP head exact, ``[-I|0]`` makes it propose the least likely token.
The kernels run, but their result is multiplied by 0: wrong numerics of the delta net or the experts would not be seen.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensors
import tokenizer
from tensors import Tensor

HIDDEN = 64
HEAD = 32
EXPERTS = 4
EXPERT_SIZE = 32
LAYERS = ("linear_attention", "linear_attention", "linear_attention", "full_attention")
# The CPU kernels of the gated delta net refuse a head of 32 ("Unexpected head dim size"); 128 works.
LINEAR_HEAD = 128
LINEAR_KEY_HEADS = 2
LINEAR_VALUE_HEADS = 4
# The right token has a logit of 64 (the square, after the norm), the best of the 511 others 31.4 in the worst row.
EMBEDDING_LENGTH = 8.0

Model = tuple[dict[str, Any], dict[str, Tensor]]


def plain(seed: int) -> Model:
    """Return configuration and weights of a two-layer Qwen3, about 140,000 parameters."""
    config = {
        **_common("Qwen3ForCausalLM", "qwen3"),
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "layer_types": ["full_attention"] * 2,
        "max_window_layers": 28,
        "sliding_window": None,
        "use_sliding_window": False,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    }
    source = random.Random(seed)
    weights = {
        "model.embed_tokens.weight": tensors.noise((tokenizer.VOCAB, HIDDEN), source),
        "lm_head.weight": tensors.noise((tokenizer.VOCAB, HIDDEN), source),
        "model.norm.weight": tensors.filled((HIDDEN,), 1),
    }
    for number in range(2):
        layer = f"model.layers.{number}"
        weights |= _attention(f"{layer}.self_attn", source, query_rows=2 * HEAD, norm=1, output=None)
        weights |= _norms(layer, 1)
        for name, shape in (("gate", (128, HIDDEN)), ("up", (128, HIDDEN)), ("down", (HIDDEN, 128))):
            weights[f"{layer}.mlp.{name}_proj.weight"] = tensors.noise(shape, source)
    return config, weights


def oracle(exact_mtp: bool) -> Model:
    """Return configuration and weights of the hybrid oracle; norms of this architecture are stored minus 1."""
    config = {
        **_common("Qwen3NextForCausalLM", "qwen3_next"),
        "decoder_sparse_step": 1,
        "intermediate_size": 64,
        "layer_types": list(LAYERS),
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": LINEAR_HEAD,
        "linear_num_key_heads": LINEAR_KEY_HEADS,
        "linear_num_value_heads": LINEAR_VALUE_HEADS,
        "linear_value_head_dim": LINEAR_HEAD,
        "mlp_only_layers": [],
        "moe_intermediate_size": EXPERT_SIZE,
        "mtp_num_hidden_layers": 1,
        "norm_topk_prob": True,
        "num_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "num_hidden_layers": len(LAYERS),
        "num_nextn_predict_layers": 1,
        "output_router_logits": False,
        "partial_rotary_factor": 0.25,
        "rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 10000.0, "rope_type": "default"},
        "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": EXPERT_SIZE,
    }
    source = random.Random(7)
    embedding = tensors.unit_rows(tokenizer.VOCAB, HIDDEN, EMBEDDING_LENGTH, source)
    following = successors()
    preceding = {after: before for before, after in following.items()}
    weights = {
        "model.embed_tokens.weight": _matrix(embedding),
        "lm_head.weight": _matrix([embedding[preceding[token]] for token in range(tokenizer.VOCAB)]),
        "model.norm.weight": tensors.filled((HIDDEN,), 0),
    }
    for number, kind in enumerate(LAYERS):
        layer = f"model.layers.{number}"
        weights |= _delta_net(layer, source) if kind == "linear_attention" else _oracle_attention(layer, source)
        weights |= _norms(layer, 0) | _experts(f"{layer}.mlp", source)
    full = f"model.layers.{LAYERS.index('full_attention')}."
    weights |= {name.replace(full, "mtp.layers.0."): value for name, value in weights.items() if name.startswith(full)}
    for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        weights[f"mtp.{name}.weight"] = tensors.filled((HIDDEN,), 0)
    sign = 1.0 if exact_mtp else -1.0
    fusion = [[sign if row == column else 0.0 for column in range(2 * HIDDEN)] for row in range(HIDDEN)]
    weights["mtp.fc.weight"] = _matrix(fusion)
    return config, weights


def successors() -> dict[int, int]:
    """Return the oracle's next token for each: newline and the words in one cycle (readable), the others in another.

    An answer that starts after a newline, as every chat answer does, therefore never ends by itself.
    """
    ids, _ = tokenizer.vocabulary()
    words = [ids[tokenizer.NEWLINE], *(ids[tokenizer.SPACE + word] for word in tokenizer.WORDS)]
    others = [token for token in range(tokenizer.VOCAB) if token not in words]
    return {now: after for cycle in (words, others) for now, after in zip(cycle, [*cycle[1:], cycle[0]], strict=True)}


def _common(architecture: str, kind: str) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": kind,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "dtype": "bfloat16",
        "eos_token_id": tokenizer.EOS,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "initializer_range": 0.2,
        "max_position_embeddings": 8192,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "pad_token_id": tokenizer.PAD,
        "rms_norm_eps": 1e-06,
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": tokenizer.VOCAB,
    }


def _matrix(rows: list[list[float]]) -> Tensor:
    return tensors.tensor((len(rows), len(rows[0])), (value for row in rows for value in row))


def _norms(layer: str, value: float) -> dict[str, Tensor]:
    names = ("input_layernorm", "post_attention_layernorm")
    return {f"{layer}.{name}.weight": tensors.filled((HIDDEN,), value) for name in names}


def _attention(
    prefix: str, source: random.Random, query_rows: int, norm: float, output: float | None
) -> dict[str, Tensor]:
    projection = tensors.noise((HIDDEN, HIDDEN), source) if output is None else tensors.filled((HIDDEN, HIDDEN), output)
    return {
        f"{prefix}.q_proj.weight": tensors.noise((query_rows, HIDDEN), source),
        f"{prefix}.k_proj.weight": tensors.noise((HEAD, HIDDEN), source),
        f"{prefix}.v_proj.weight": tensors.noise((HEAD, HIDDEN), source),
        f"{prefix}.o_proj.weight": projection,
        f"{prefix}.q_norm.weight": tensors.filled((HEAD,), norm),
        f"{prefix}.k_norm.weight": tensors.filled((HEAD,), norm),
    }


def _oracle_attention(layer: str, source: random.Random) -> dict[str, Tensor]:
    # Twice the query rows: the second half is the output gate.
    return _attention(f"{layer}.self_attn", source, query_rows=4 * HEAD, norm=0, output=0)


def _delta_net(layer: str, source: random.Random) -> dict[str, Tensor]:
    prefix = f"{layer}.linear_attn"
    keys, values = LINEAR_KEY_HEADS * LINEAR_HEAD, LINEAR_VALUE_HEADS * LINEAR_HEAD
    return {
        f"{prefix}.A_log": tensors.tensor((LINEAR_VALUE_HEADS,), [0.5, 1.0, 1.5, 2.0]),
        f"{prefix}.dt_bias": tensors.filled((LINEAR_VALUE_HEADS,), 1),
        f"{prefix}.conv1d.weight": tensors.noise((2 * keys + values, 1, 4), source),
        f"{prefix}.in_proj_ba.weight": tensors.noise((2 * LINEAR_VALUE_HEADS, HIDDEN), source),
        f"{prefix}.in_proj_qkvz.weight": tensors.noise((2 * keys + 2 * values, HIDDEN), source),
        f"{prefix}.norm.weight": tensors.filled((LINEAR_HEAD,), 1),
        f"{prefix}.out_proj.weight": tensors.filled((HIDDEN, values), 0),
    }


def _experts(prefix: str, source: random.Random) -> dict[str, Tensor]:
    weights = {
        f"{prefix}.gate.weight": tensors.noise((EXPERTS, HIDDEN), source),
        f"{prefix}.shared_expert_gate.weight": tensors.noise((1, HIDDEN), source),
    }
    for expert in (*(f"experts.{number}" for number in range(EXPERTS)), "shared_expert"):
        weights[f"{prefix}.{expert}.gate_proj.weight"] = tensors.noise((EXPERT_SIZE, HIDDEN), source)
        weights[f"{prefix}.{expert}.up_proj.weight"] = tensors.noise((EXPERT_SIZE, HIDDEN), source)
        weights[f"{prefix}.{expert}.down_proj.weight"] = tensors.filled((HIDDEN, EXPERT_SIZE), 0)
    return weights


MODELS: dict[str, Callable[[], Model]] = {
    "tiny-qwen3": lambda: plain(1),
    "tiny-qwen3-other": lambda: plain(999),
    "tiny-oracle": lambda: oracle(exact_mtp=True),
    "tiny-oracle-badmtp": lambda: oracle(exact_mtp=False),
}


def write(directory: Path, model: Model) -> None:
    """Write a model as a hub repository has it. Modes are explicit: the service user must read every file."""
    config, weights = model
    directory.mkdir(parents=True, exist_ok=True)
    generation = {
        "bos_token_id": None,
        "do_sample": False,
        "eos_token_id": tokenizer.EOS,
        "pad_token_id": tokenizer.PAD,
    }
    texts = {
        "config.json": _json(config),
        "generation_config.json": _json(generation),
        "tokenizer.json": _json(tokenizer.tokenizer_json()),
        "tokenizer_config.json": _json(tokenizer.tokenizer_config()),
        "chat_template.jinja": tokenizer.CHAT_TEMPLATE,
    }
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8")
    tensors.write_safetensors(directory / "model.safetensors", weights)
    for path in directory.iterdir():
        path.chmod(0o644)


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    """Write the named models, by default all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", default=sorted(MODELS))
    args = parser.parse_args()
    if unknown := sorted(set(args.names) - set(MODELS)):
        parser.error(f"unknown: {' '.join(unknown)}; there are {' '.join(sorted(MODELS))}")
    for name in args.names:
        write(args.out / name, MODELS[name]())
        print(f"{args.out / name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
