"""Draft heads with random weights for a small Llama target, written as safetensors with numpy alone (no torch).

They draft noise: what they show is that a command is accepted, that its weights load and that drafts are counted.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Weights = Mapping[str, NDArray[np.float32]]


def write_safetensors(path: Path, tensors: Weights) -> None:
    """Format: length of the header (u64, little-endian), the header as JSON, then the tensors, 8-byte aligned."""
    header: dict[str, Any] = {}
    offset = 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, offset + tensor.nbytes]}
        offset += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor, dtype="<f4").tobytes())


def eagle1_head(folder: Path, target: Path, seed: int = 0) -> Path:
    """One decoder layer without input norm, fed by `fc` from [embedding, hidden state]; the target lends the rest."""
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    layer, draw = "layers.0", _Draw(seed)
    _save(
        folder,
        _like(config) | {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1},
        {
            "fc.weight": draw(hidden, 2 * hidden),
            f"{layer}.self_attn.q_proj.weight": draw(queries, hidden),
            f"{layer}.self_attn.k_proj.weight": draw(keys, hidden),
            f"{layer}.self_attn.v_proj.weight": draw(keys, hidden),
            f"{layer}.self_attn.o_proj.weight": draw(hidden, queries),
            f"{layer}.mlp.gate_proj.weight": draw(inner, hidden),
            f"{layer}.mlp.up_proj.weight": draw(inner, hidden),
            f"{layer}.mlp.down_proj.weight": draw(hidden, inner),
            f"{layer}.post_attention_layernorm.weight": np.ones(hidden, dtype=np.float32),
        },
    )
    return folder


def medusa_heads(folder: Path, target: Path, heads: int, seed: int = 0) -> Path:
    """`heads` residual blocks over the whole vocabulary, under one shared output matrix."""
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    hidden, vocabulary, draw = config["hidden_size"], config["vocab_size"], _Draw(seed)
    medusa = {
        "architectures": ["MedusaModel"], "model_type": "medusa", "hidden_size": hidden, "vocab_size": vocabulary,
        "medusa_num_heads": heads, "medusa_num_layers": 1, "original_lm_head": True, "torch_dtype": "float32",
    }  # fmt: skip
    blocks = {f"blocks.{head}.layers.0.weight": draw(hidden, hidden) for head in range(heads)}
    _save(folder, medusa, blocks | {"lm_head.weight": draw(vocabulary, hidden)})
    return folder


class _Draw:
    """Normal weights of standard deviation 0.02, as models are initialised."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def __call__(self, *shape: int) -> NDArray[np.float32]:
        return self._rng.standard_normal(shape, dtype=np.float32) * np.float32(0.02)


def _like(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a head has in common with its target."""
    names = (
        "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
        "rms_norm_eps", "hidden_act", "max_position_embeddings", "bos_token_id", "eos_token_id",
    )  # fmt: skip
    return {name: config[name] for name in names} | {"tie_word_embeddings": False, "torch_dtype": "float32"}


def _save(folder: Path, config: Mapping[str, Any], tensors: Weights) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    write_safetensors(folder / "model.safetensors", tensors)
