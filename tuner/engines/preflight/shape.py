"""The numbers of a model that decide whether two of them fit, read from config.json under its many spellings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: The first key that is there counts.
_KEYS: Mapping[str, tuple[str, ...]] = {
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads"),
    "kv_heads": ("num_key_value_heads", "n_head_kv", "num_kv_heads"),
    "head_dim": ("head_dim",),
    "intermediate": ("intermediate_size", "n_inner", "ffn_dim"),
    "vocab": ("vocab_size",),
    "positions": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    "experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "experts_per_token": ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"),
    "shared_experts": ("n_shared_experts", "num_shared_experts"),
    "expert_intermediate": ("moe_intermediate_size", "expert_ffn_hidden_size"),
    "shared_intermediate": ("shared_expert_intermediate_size",),
    "dense_layers": ("first_k_dense_replace", "num_dense_layers"),
    "kv_lora_rank": ("kv_lora_rank",),
    "rope_head_dim": ("qk_rope_head_dim",),
}
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "half": 2, "float8_e4m3fn": 1}


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """All numbers that the tensors of a Llama-like model are made of."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int


@dataclass(frozen=True, slots=True)
class Shape:
    """None: the config does not say. `tied`: the output matrix is the embedding. `biased`: attention has biases."""

    hidden: int | None = None
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    intermediate: int | None = None
    vocab: int | None = None
    positions: int | None = None
    experts: int | None = None
    experts_per_token: int | None = None
    shared_experts: int | None = None
    expert_intermediate: int | None = None
    shared_intermediate: int | None = None
    dense_layers: int | None = None
    kv_lora_rank: int | None = None
    rope_head_dim: int | None = None
    tied: bool = False
    biased: bool = False
    dtype: str | None = None

    @property
    def dtype_bytes(self) -> int:
        """Bytes of one weight; two where the config does not tell, as nearly every released model has."""
        return DTYPE_BYTES.get(self.dtype or "", 2)

    @property
    def llama(self) -> LlamaShape | None:
        """None where the config leaves one of the numbers open."""
        hidden, layers, heads, kv_heads = self.hidden, self.layers, self.heads, self.kv_heads
        if not (hidden and layers and heads and kv_heads and self.head_dim and self.intermediate):
            return None
        return LlamaShape(hidden, layers, heads, kv_heads, self.head_dim, self.intermediate)


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part with the numbers: of a multimodal model its language part, of a speculators head its decoder layer."""
    for key in ("text_config", "transformer_layer_config", "llm_config", "language_config"):
        part = config.get(key)
        if isinstance(part, dict):
            return part
    return config


def section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A part of a config that is an object of its own; empty where it has none, or something else in its place."""
    part = config.get(key)
    return part if isinstance(part, dict) else {}


def shape_of(config: Mapping[str, Any]) -> Shape:
    """Shape by the config; key-value heads and head size are filled in as the engines do where they are left out."""
    text = text_config(config)
    found = {field: _whole(text, keys) for field, keys in _KEYS.items()}
    heads, hidden = found["heads"], found["hidden"]
    found["kv_heads"] = found["kv_heads"] or heads
    if found["head_dim"] is None and heads and hidden:
        found["head_dim"] = hidden // heads
    dtype = text.get("dtype") or text.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype")
    return Shape(
        **found,
        tied=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
        biased=bool(text.get("attention_bias", config.get("attention_bias", False))),
        dtype=str(dtype).removeprefix("torch.") if dtype else None,
    )


def _whole(config: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    values = (config.get(key) for key in keys)
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool) and v >= 0), None)
