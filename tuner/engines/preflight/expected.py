"""Which tensors a head or a small model must hold, with their shapes: what neither engine checks by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tuner.engines.preflight.shape import LlamaShape, Shape

Dims = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Expected:
    """`needed` must be there, `allowed` may be; the shape of either must be right. `ignored`: parts of names."""

    needed: Mapping[str, Dims]
    allowed: Mapping[str, Dims] = field(default_factory=dict)
    ignored: tuple[str, ...] = ("rotary_emb.inv_freq",)


def attention(prefix: str, shape: LlamaShape, reads: int) -> dict[str, Dims]:
    """Four matrices of one layer; `reads` is what queries, keys and values are made from."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return {
        f"{prefix}self_attn.q_proj.weight": (queries, reads),
        f"{prefix}self_attn.k_proj.weight": (keys, reads),
        f"{prefix}self_attn.v_proj.weight": (keys, reads),
        f"{prefix}self_attn.o_proj.weight": (shape.hidden, queries),
    }


def attention_biases(prefix: str, shape: LlamaShape) -> dict[str, Dims]:
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sizes = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
    return {f"{prefix}self_attn.{name}.bias": (size,) for name, size in sizes.items()}


def query_norms(prefix: str, shape: LlamaShape) -> dict[str, Dims]:
    """Qwen3 norms queries and keys a head."""
    return {f"{prefix}self_attn.{name}.weight": (shape.head_dim,) for name in ("q_norm", "k_norm")}


def mlp(prefix: str, shape: LlamaShape) -> dict[str, Dims]:
    wide, back = (shape.intermediate, shape.hidden), (shape.hidden, shape.intermediate)
    return {
        f"{prefix}mlp.gate_proj.weight": wide,
        f"{prefix}mlp.up_proj.weight": wide,
        f"{prefix}mlp.down_proj.weight": back,
    }


def eagle3(
    shape: LlamaShape,
    *,
    target_hidden: int,
    taps: int,
    drafted: int,
    whole: int,
    own_embedding: bool,
    extras: Mapping[str, Dims],
    biased: bool = False,
    query_normed: bool = False,
) -> Expected:
    """EAGLE-3: `fc` joins `taps` hidden states of the target; the first layer reads embedding and state together.

    `drafted`, `whole`: draft and target vocabulary. `own_embedding`: the target's cannot be shared, for its width is
    another. `extras`: norms the config asks for. `query_normed`: as Qwen3 has them. Names as in `layers.0.`.
    """
    needed: dict[str, Dims] = {**extras, "norm.weight": (shape.hidden,)}
    if taps:
        needed["fc.weight"] = (shape.hidden, taps * target_hidden)
    allowed: dict[str, Dims] = {"t2d": (whole,), "d2t": (drafted,)}
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    for layer in range(shape.layers):
        prefix = f"layers.{layer}."
        needed |= attention(prefix, shape, (2 if layer == 0 else 1) * shape.hidden) | mlp(prefix, shape)
        own = {f"{prefix}{norm}.weight": (shape.hidden,) for norm in norms}
        # Behind the first layer vLLM reads input_layernorm and SGLang hidden_norm; a head may hold either.
        (needed if layer == 0 else allowed).update(own)
        needed |= (attention_biases(prefix, shape) if biased else {}) | (
            query_norms(prefix, shape) if query_normed else {}
        )
    shared = drafted == whole and shape.hidden == target_hidden
    (allowed if shared else needed)["lm_head.weight"] = (drafted, shape.hidden)
    (needed if own_embedding else allowed)["embed_tokens.weight"] = (whole, shape.hidden)
    return Expected(needed, allowed, ignored=("rotary_emb.inv_freq", "mask_hidden"))


def eagle1(shape: LlamaShape, whole: int, fc_bias: bool, biased: bool = False) -> Expected:
    """EAGLE-1 and EAGLE-2: `fc` joins embedding and hidden state, and the first layer has no norm before it.

    `fc_bias`: whether the engine has a place for one.
    """
    needed: dict[str, Dims] = {"fc.weight": (shape.hidden, 2 * shape.hidden)}
    allowed: dict[str, Dims] = {"fc.bias": (shape.hidden,)} if fc_bias else {}
    for layer in range(shape.layers):
        prefix = f"layers.{layer}."
        needed |= attention(prefix, shape, shape.hidden) | mlp(prefix, shape)
        needed[f"{prefix}post_attention_layernorm.weight"] = (shape.hidden,)
        if layer:
            needed[f"{prefix}input_layernorm.weight"] = (shape.hidden,)
        needed |= attention_biases(prefix, shape) if biased else {}
    for name in ("embed_tokens.weight", "lm_head.weight"):
        allowed[name] = (whole, shape.hidden)
    return Expected(needed, allowed)


def whole_model(model: Shape, architecture: str) -> Expected | None:
    """A Llama-like language model; None for families whose tensors are not listed here."""
    shape = model.llama
    if architecture not in LISTED_FAMILIES or shape is None or model.vocab is None:
        return None
    matrix = (model.vocab, shape.hidden)
    needed: dict[str, Dims] = {"model.embed_tokens.weight": matrix, "model.norm.weight": (shape.hidden,)}
    allowed: dict[str, Dims] = {}
    (allowed if model.tied else needed)["lm_head.weight"] = matrix
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        needed |= attention(prefix, shape, shape.hidden) | mlp(prefix, shape)
        needed |= {f"{prefix}{n}.weight": (shape.hidden,) for n in ("input_layernorm", "post_attention_layernorm")}
        if architecture == "Qwen2ForCausalLM" or model.biased:
            needed |= attention_biases(prefix, shape)
        if architecture == "Qwen3ForCausalLM":
            needed |= query_norms(prefix, shape)
    return Expected(needed, allowed)


LISTED_FAMILIES = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
