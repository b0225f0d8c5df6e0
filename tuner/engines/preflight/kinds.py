"""What kind of draft a checkpoint is, by its config and its tensors; never by its path."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tuner.engines.checkpoint import Checkpoint
from tuner.engines.preflight.shape import shape_of, text_config

#: Kind of a head in the speculators format -> the method that serves it.
SPECULATORS: Mapping[str, str] = {
    "eagle3": "eagle3",
    "peagle": "eagle3",
    "dflash": "dflash",
    "dflash2": "dflash",
    "dspark": "dspark",
}
#: Where families keep the number of MTP layers; others have a key of their own with `mtp` or `nextn` in it.
MTP_KEYS = ("n_predict", "num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "mtp_num_layers")
#: EagleLlamaForCausalLM and LlamaForCausalLMEagle, and not the family of multimodal models that is called Eagle2_5.
_EAGLE = re.compile(r"^Eagle(?!\d)|Eagle$")
MLP_SPECULATOR = "mlp_speculator"
WHOLE_MODEL = "model"


def kind_of(checkpoint: Checkpoint) -> str | None:
    """The method a draft was made for, `model` for a whole language model; None where nothing tells."""
    config = checkpoint.config
    if "speculators_model_type" in config:
        return SPECULATORS.get(str(config["speculators_model_type"]))
    names = " ".join(checkpoint.architectures).lower()
    model_type = str(config.get("model_type", "")).lower()
    if "dflash" in names or "lilicorr" in names or "dflash_config" in config:
        return "dflash"
    if "dspark" in names:
        return "dspark"
    if "medusa" in names or model_type == "medusa" or "medusa_num_heads" in config:
        return "medusa"
    if model_type == MLP_SPECULATOR or "mlpspeculator" in names:
        return MLP_SPECULATOR
    if "eagle3" in names or "peagle" in names:
        return "eagle3"
    if any(_EAGLE.search(name) for name in checkpoint.architectures):
        return "eagle"
    return _by_tensors(checkpoint) or _by_config(config, names, model_type)


def is_speculators(config: Mapping[str, Any]) -> bool:
    return "speculators_model_type" in config


def verifier_of(config: Mapping[str, Any]) -> str | None:
    """The target that a head says it was made for; the speculators format always says so."""
    spec = config.get("speculators_config")
    verifier = spec.get("verifier") if isinstance(spec, dict) else None
    name = verifier.get("name_or_path") if isinstance(verifier, dict) else None
    return str(name) if name else None


def has_mtp_layers(config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint says that it holds multi-token-prediction layers; each family has its own key."""
    return mtp_layers(config) is not None


def mtp_layers(config: Mapping[str, Any]) -> int | None:
    """How many tokens ahead its MTP layers were trained to predict: vLLM's n_predict."""
    both = {**config, **text_config(config)}
    others = [key for key in both if key not in MTP_KEYS and ("mtp" in key or "nextn" in key)]
    for key in (*MTP_KEYS, *others):
        value = both.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def attention_inputs(checkpoint: Checkpoint) -> int | None:
    """What the first layer's q_proj reads: 2 * hidden in an EAGLE-3 head, hidden in an EAGLE-1 one."""
    for prefix in ("midlayer.", "layers.0.", "model.layers.0."):
        tensor = checkpoint.tensors.get(f"{prefix}self_attn.q_proj.weight")
        if tensor and len(tensor.shape) == 2:
            return tensor.shape[1]
    return None


def _by_tensors(checkpoint: Checkpoint) -> str | None:
    """EAGLE heads are often named as the plain model they derive from; `fc`, which joins inputs, gives them away."""
    if "fc.weight" not in checkpoint.tensors:
        return None
    hidden, reads = shape_of(checkpoint.config).hidden, attention_inputs(checkpoint)
    if any(name.startswith("midlayer.") for name in checkpoint.tensors) or (hidden and reads == 2 * hidden):
        return "eagle3"
    return "eagle"


def _by_config(config: Mapping[str, Any], names: str, model_type: str) -> str | None:
    if "eagle_config" in config or "draft_vocab_size" in config:
        return "eagle3"
    if "mtp" in names or "nextn" in names or model_type.endswith("_mtp") or "n_predict" in config:
        return "mtp"
    return WHOLE_MODEL if "for" in names and ("lm" in names or "generation" in names) else None
