"""What a model's ``config.json`` says about its KV cache: kinds of layers, and what each keeps per token or request.

Only what can be read without knowing the engine; :mod:`seatfleet.core.model.planner` turns it into blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Model types whose plan was compared with what a running vLLM logs (``docs/planner.md``).
COMPARED = frozenset({"qwen3", "qwen3_next"})
#: Types whose whole stack uses the window that ``sliding_window`` names.
_UNIFORM_WINDOW = frozenset({"mistral", "mixtral", "starcoder2", "phi3"})
_DTYPE_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}


class UnknownModelError(ValueError):
    """The configuration has something whose cache is not modelled; the message says what."""


@dataclass(frozen=True)
class Attention:
    """Attention layers that are alike. ``window`` and ``chunk`` in tokens, None for full attention."""

    layers: int
    kv_heads: int
    key_dim: int
    value_dim: int  # 0 for MLA, which keeps one latent vector
    window: int | None = None
    chunk: int | None = None
    latent: bool = False


@dataclass(frozen=True)
class GatedDeltaNet:
    """Recurrent (GDN) layers that are alike; each keeps a convolution window and a state per value head."""

    layers: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    state_dtype: str  # "auto" follows the model


@dataclass(frozen=True)
class Model:
    """The layers of a model, in the order in which vLLM meets them, and the context it was trained for."""

    model_type: str
    dtype: str
    attention: tuple[Attention, ...]
    recurrent: GatedDeltaNet | None
    mtp_layers: int
    native_context: int | None
    compared: bool


def dtype_bytes(name: str) -> int:
    """Return the bytes of one element of a torch dtype name."""
    try:
        return _DTYPE_BYTES[name.removeprefix("torch.")]
    except KeyError:
        raise UnknownModelError(f"element type {name!r} is not known") from None


def parse_config(config: Mapping[str, Any]) -> Model:
    """Return the layers of a model from its ``config.json``.

    Raises:
        UnknownModelError: something in it is not modelled, or a needed number is missing.
    """
    text = config.get("text_config")
    inner: Mapping[str, Any] = text if isinstance(text, Mapping) else config
    model_type = str(inner.get("model_type") or config.get("model_type") or "?")
    dtype = str(
        inner.get("dtype") or inner.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype") or ""
    )
    kinds = _layer_kinds(inner, model_type)
    linear = kinds.count("linear")
    return Model(
        model_type=model_type,
        dtype=(dtype or "bfloat16").removeprefix("torch."),
        attention=_attention(inner, kinds),
        recurrent=_gated_delta_net(inner, linear) if linear else None,
        mtp_layers=_optional(inner, "mtp_num_hidden_layers") or _optional(inner, "num_nextn_predict_layers") or 0,
        native_context=inner.get("max_position_embeddings"),
        compared=model_type in COMPARED,
    )


def _number(config: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    raise UnknownModelError(f"config.json has no {' or '.join(names)}")


def _optional(config: Mapping[str, Any], name: str) -> int | None:
    """Return a number, None where there is none (null and 0 are none)."""
    return _number(config, name) if config.get(name) else None


_KINDS = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "window",
    "chunked_attention": "chunk",
    "linear_attention": "linear",
}
#: Keys of caches that nothing here models.
_NOT_MODELLED = {
    "index_topk": "a sparse-attention index cache",
    "compress_ratios": "compressed attention",
    "hybrid_override_pattern": "Mamba-2 layers",
    "layers_block_type": "Mamba-2 layers",
    "mamba_d_state": "Mamba layers",
    "num_kv_shared_layers": "layers that share their KV cache",
    "attn_layer_period": "Mamba layers",
}


def _layer_kinds(config: Mapping[str, Any], model_type: str) -> list[str]:
    """Return full, window, chunk or linear for each layer."""
    for key, what in _NOT_MODELLED.items():
        if config.get(key):
            raise UnknownModelError(f"{model_type} has {what} ({key})")
    count = _number(config, "num_hidden_layers")
    types = config.get("layer_types")
    if isinstance(types, list):
        unknown = sorted({str(name) for name in types} - _KINDS.keys())
        if unknown:
            raise UnknownModelError(f"{model_type} has layers of type {', '.join(unknown)}")
        if len(types) < count:
            raise UnknownModelError(f"{model_type} has {count} layers, and layer_types names {len(types)}")
        return [_KINDS[name] for name in types[:count]]
    window = config.get("sliding_window")
    pattern = _optional(config, "sliding_window_pattern")
    interval = _optional(config, "full_attention_interval")
    if interval and "linear_num_value_heads" in config:
        return ["full" if (index + 1) % interval == 0 else "linear" for index in range(count)]
    if window and pattern:
        return ["full" if (index + 1) % pattern == 0 else "window" for index in range(count)]
    if window and config.get("use_sliding_window") is not False:
        if model_type not in _UNIFORM_WINDOW:
            raise UnknownModelError(f"{model_type} has a sliding window, but not which layers use it")
        return ["window"] * count
    return ["full"] * count


def _attention(config: Mapping[str, Any], kinds: list[str]) -> tuple[Attention, ...]:
    """Return the attention layers by kind, in the order of first appearance."""
    found = []
    for kind in dict.fromkeys(kind for kind in kinds if kind != "linear"):
        layers = kinds.count(kind)
        if config.get("kv_lora_rank"):
            latent = _number(config, "kv_lora_rank") + _number(config, "qk_rope_head_dim")
            found.append(Attention(layers, 1, latent, 0, latent=True))
            continue
        heads = _number(config, "num_attention_heads")
        dim = _optional(config, "head_dim") or max(1, _number(config, "hidden_size") // heads)
        found.append(
            Attention(
                layers,
                _optional(config, "num_key_value_heads") or heads,
                dim,
                _optional(config, "v_head_dim") or dim,
                window=_number(config, "sliding_window") if kind == "window" else None,
                chunk=_number(config, "attention_chunk_size") if kind == "chunk" else None,
            )
        )
    return tuple(found)


def _gated_delta_net(config: Mapping[str, Any], layers: int) -> GatedDeltaNet:
    return GatedDeltaNet(
        layers=layers,
        key_heads=_number(config, "linear_num_key_heads"),
        value_heads=_number(config, "linear_num_value_heads"),
        key_dim=_number(config, "linear_key_head_dim"),
        value_dim=_number(config, "linear_value_head_dim"),
        kernel=_number(config, "linear_conv_kernel_dim"),
        state_dtype=str(config.get("mamba_ssm_dtype") or "auto"),
    )
