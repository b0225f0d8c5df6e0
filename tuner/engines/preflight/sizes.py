"""Parameters that one token passes through, and bytes that it leaves in the KV cache: from config and headers alone."""

from __future__ import annotations

from math import prod

from tuner.engines.checkpoint import Checkpoint
from tuner.engines.preflight.shape import Shape, shape_of

KEYS_AND_VALUES = 2
MATRICES_OF_AN_MLP = 3  # gate, up, down


def kv_bytes_per_token(shape: Shape) -> int | None:
    """Over all layers and all GPUs, in the format of the weights; None where the config leaves it open."""
    if shape.layers is None:
        return None
    if shape.kv_lora_rank is not None:
        # Latent attention keeps one compressed vector a layer, and the part of the key that carries the position.
        return shape.layers * (shape.kv_lora_rank + (shape.rope_head_dim or 0)) * shape.dtype_bytes
    if not shape.kv_heads or not shape.head_dim:
        return None
    return KEYS_AND_VALUES * shape.layers * shape.kv_heads * shape.head_dim * shape.dtype_bytes


def active_parameters(checkpoint: Checkpoint) -> int | None:
    """What one token passes through: of experts only those it is sent to. The embedding, a look-up, is left out."""
    shape = shape_of(checkpoint.config)
    if shape.experts or not checkpoint.tensors:
        return parameters_by_config(shape)
    matrices = [
        t.shape for name, t in checkpoint.tensors.items() if not name.endswith(("embed_tokens.weight", "d2t", "t2d"))
    ]
    # Tied weights are stored once, under the embedding's name, and multiplied with all the same.
    tied = shape.vocab * shape.hidden if shape.tied and shape.vocab and shape.hidden else 0
    return sum(map(prod, matrices)) + tied


def parameters_by_config(s: Shape) -> int | None:
    """By the matrices of a Llama layer, of its MLP or of the experts a token is sent to, and the output matrix."""
    if not (s.hidden and s.layers and s.heads and s.kv_heads and s.head_dim and s.vocab):
        return None
    attention = s.hidden * s.head_dim * (2 * s.heads + 2 * s.kv_heads)
    dense = MATRICES_OF_AN_MLP * s.hidden * (s.intermediate or 0)
    output = s.vocab * s.hidden
    if not (s.experts and s.experts_per_token and s.expert_intermediate):
        return s.layers * (attention + dense) + output
    chosen = (s.experts_per_token + (s.shared_experts or 0)) * s.expert_intermediate + (s.shared_intermediate or 0)
    plain = s.dense_layers or 0
    sparse = MATRICES_OF_AN_MLP * s.hidden * chosen
    return s.layers * attention + plain * dense + (s.layers - plain) * sparse + output
