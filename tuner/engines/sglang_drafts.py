"""A draft's config.json against the algorithm it is asked to serve: wrong pairs run in SGLang without an error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.errors import UserError
from tuner.spec.speculation import SpecConfig

#: Architectures that SGLang 0.5.23 loads as EAGLE-3 heads.
EAGLE3_HEADS = ("LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM")
#: Suffixes of the heads and MTP layers that SGLang's EAGLE loads under their own names (0.5.23).
EAGLE_ENDINGS = ("Eagle", "MTP", "NextN")


def read_config(model: str) -> Mapping[str, Any] | None:
    """config.json of a folder on this machine; None for a hub id, of which nothing is known before the launch."""
    folder = Path(model)
    if not folder.is_dir():
        return None
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise UserError(f"{model} has no config.json: give the folder of a saved model") from None
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}): save the model again") from None
    if not isinstance(config, dict):
        raise UserError(f"{path} does not hold an object: save the model again")
    return config


def check_draft(target: str, spec: SpecConfig, tensor_parallel: int) -> None:
    """Architecture, vocabulary and heads of target and draft, as far as their folders are on this machine."""
    own, other = read_config(target), read_config(spec.draft) if spec.draft else None
    for name, config in ((target, own), (spec.draft, other)):
        if name and config:
            _check_heads(name, config, tensor_parallel)
    if spec.method == "mtp" and not spec.draft and own and not has_mtp_layers(own):
        raise UserError(
            f"config.json of {target} tells of no MTP layers (such as num_nextn_predict_layers): use another method, "
            "or give a draft that holds them"
        )
    if spec.draft and other:
        _check_architecture(spec.draft, spec.method, other)
        if own:
            _check_vocabulary(spec, own, other)


def has_mtp_layers(config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint says that it holds multi-token-prediction layers; each family has its own key."""
    return any(
        ("mtp" in key or "nextn" in key) and isinstance(value, int) and value > 0
        for key, value in {**config, **_text(config)}.items()
    )


def _architectures(config: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(name) for name in config.get("architectures") or ("no architecture",))


def _check_architecture(draft: str, method: str, config: Mapping[str, Any]) -> None:
    if "speculators_model_type" in config:
        raise UserError(
            f"{draft} is in the speculators format, which SGLang cannot load: serve it with vLLM, or convert it to "
            f"an EAGLE-3 head ({EAGLE3_HEADS[0]})"
        )
    names = _architectures(config)
    eagle3, said = any("eagle3" in name.lower() for name in names), f"{draft} is a {', '.join(names)}"
    if method == "eagle3" and not set(EAGLE3_HEADS) & set(names):
        alike = "its tensors may fit: write that name into architectures of config.json" if eagle3 else "not this one"
        raise UserError(f"{said}, but SGLang's EAGLE3 loads {' or '.join(EAGLE3_HEADS)} only: {alike}")
    if method in ("eagle", "mtp") and eagle3:
        raise UserError(
            f"{said}, an EAGLE-3 head: with method {method} SGLang runs it without an error and accepts nothing "
            "(mean acceptance length 1.00); use method eagle3"
        )
    known = has_mtp_layers(config) or any(name.endswith(EAGLE_ENDINGS) or "Assistant" in name for name in names)
    if method == "eagle" and not known:
        raise UserError(
            f"{said}, but SGLang's EAGLE needs an EAGLE head such as LlamaForCausalLMEagle: for a whole small model "
            "use method draft_model; for a head, write that name into architectures of config.json"
        )
    if method == "draft_model" and any("eagle" in name.lower() for name in names):
        raise UserError(f"{said}, a head and not a whole model: use method {'eagle3' if eagle3 else 'eagle'}")


def _check_vocabulary(spec: SpecConfig, target: Mapping[str, Any], draft: Mapping[str, Any]) -> None:
    ours, theirs = _text(target).get("vocab_size"), _text(draft).get("vocab_size")
    if ours and theirs and ours != theirs:
        raise UserError(
            f"{spec.draft} has a vocabulary of {theirs} and the target one of {ours}: a draft needs the target's tokens"
        )
    reduced = draft.get("draft_vocab_size")
    if reduced and ours and reduced != ours and dict(spec.options).get("use_rejection_sampling"):
        raise UserError(
            f"use_rejection_sampling needs a draft of the target's whole vocabulary ({ours}); {spec.draft} drafts "
            f"{reduced} tokens: remove the option"
        )


def _check_heads(model: str, config: Mapping[str, Any], tensor_parallel: int) -> None:
    heads = _text(config).get("num_attention_heads")
    if heads and heads % tensor_parallel:
        raise UserError(
            f"{model} has {heads} attention heads, which tensor_parallel {tensor_parallel} does not divide: "
            "SGLang splits target and draft alike"
        )


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where a multimodal model keeps the numbers of its language part."""
    part = config.get("text_config")
    return part if isinstance(part, dict) else config
