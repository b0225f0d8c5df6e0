"""The target as training reads it: its config, and single tensors of its weights."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open

#: Names of the embedding, of the final norm and of the output matrix, which is the embedding where they are tied.
EMBEDDING, LAST_NORM, OUTPUT = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


class Target:
    """`config` is config.json as it is; sizes are those of a Llama-like model."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.config = json.loads((self.folder / "config.json").read_text(encoding="utf-8"))
        self.hidden = int(self.config["hidden_size"])
        self.vocabulary = int(self.config["vocab_size"])
        self.layers = int(self.config["num_hidden_layers"])
        self.heads = int(self.config["num_attention_heads"])
        self.kv_heads = int(self.config.get("num_key_value_heads") or self.heads)
        self.head_dim = int(self.config.get("head_dim") or self.hidden // self.heads)
        self.intermediate = int(self.config["intermediate_size"])
        self.eps = float(self.config.get("rms_norm_eps", 1e-6))
        rotary = self.config.get("rope_parameters") or {}
        self.theta = float(rotary.get("rope_theta") or self.config.get("rope_theta") or 10000.0)
        scaled = (rotary.get("rope_type") or (self.config.get("rope_scaling") or {}).get("rope_type") or "default") != (
            "default"
        )
        if scaled:
            raise ValueError("targets whose rotary positions are scaled are not trained for; take one without scaling")

    def width(self, taps: Sequence[int]) -> int:
        """Of what is kept of a place: the tapped states and the last one."""
        return (len(taps) + 1) * self.hidden

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor in float32."""
        for path in sorted(self.folder.glob("*.safetensors")):
            with safe_open(str(path), "pt") as file:
                if name in file.keys():  # noqa: SIM118, not a mapping
                    return file.get_tensor(name).float()
        if name == OUTPUT:
            return self.tensor(EMBEDDING)
        raise ValueError(f"no file in {self.folder} holds {name}")

    @property
    def usual_taps(self) -> tuple[int, int, int]:
        """The states that both engines read where a head lists none: after 2 layers, half of them, all but 3."""
        return 2, self.layers // 2, self.layers - 3


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
