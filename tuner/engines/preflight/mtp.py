"""Multi-token prediction: layers in the target's own files, and how far they draft. Field case C11."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.engines.checkpoint import Checkpoint
from tuner.engines.preflight.asked import Asked
from tuner.engines.preflight.finding import Finding, error, warning
from tuner.engines.preflight.kinds import has_mtp_layers, mtp_layers
from tuner.engines.preflight.known import VLLM_MTP_ARCHITECTURES, VLLM_MTP_TYPES, VLLM_READ

_C11 = "https://github.com/vllm-project/vllm/pull/12755"


def layers_are_there(asked: Asked) -> Iterator[Finding]:
    """Bundled MTP: layers by the config, and tensors for them, which re-uploads often drop."""
    target = asked.target
    if asked.method != "mtp" or asked.spec.draft or target is None:
        return
    if not has_mtp_layers(target.config):
        yield error(
            "mtp.layers",
            f"config.json of {asked.target_name} tells of no MTP layers (such as num_nextn_predict_layers): use "
            "another method, or give a draft that holds them",
        )
        return
    if asked.on_vllm and not has_class(target):
        say = error if asked.version == VLLM_READ else warning
        yield say(
            "mtp.class",
            f"{asked.target_name} tells of MTP layers and vLLM 0.32 has no class for those of model_type "
            f"{target.config['model_type']}: use another method",
            "vllm/config/speculative.py, hf_config_override (0.32)",
        )
    if not target.tensors or any(_is_mtp(name, asked.target_shape.layers) for name in target.tensors):
        return
    yield error(
        "mtp.tensors",
        f"config.json of {asked.target_name} tells of MTP layers and its files hold no tensors of any: take an upload "
        "that kept them, or use another method",
    )


def has_class(target: Checkpoint) -> bool:
    """By model_type or architecture; a config without a model_type is taken for an excerpt."""
    kind = target.config.get("model_type")
    by_name = any(name.startswith(VLLM_MTP_ARCHITECTURES) for name in target.architectures)
    return kind is None or kind in VLLM_MTP_TYPES or str(kind).endswith("mtp") or by_name


def _is_mtp(name: str, layers: int | None) -> bool:
    beyond = layers is not None and f".layers.{layers}." in f".{name}"
    return beyond or "mtp" in name or "nextn" in name or "eh_proj" in name


def predicted_ahead(asked: Asked) -> int | None:
    """Tokens the MTP layers were trained for: the draft's own, else the target's."""
    source = asked.draft or asked.target
    return mtp_layers(source.config) if source and asked.method == "mtp" else None


def mtp_length(asked: Asked) -> Iterator[Finding]:
    """N against the number of MTP layers (vLLM's n_predict)."""
    trained, n = predicted_ahead(asked), asked.spec.depth
    if trained is None or n <= trained:
        return
    if asked.on_vllm and n % trained:
        beyond = trained * (n // trained + 1)
        yield error(
            "mtp.multiple",
            f"n = {n} does not go with {trained} MTP layers: vLLM wants a multiple of {trained} beyond that; use "
            f"n <= {trained} or {beyond}",
            _C11,
        )
    else:
        layer = "the one MTP layer is" if trained == 1 else f"the {trained} MTP layers are"
        yield warning(
            "mtp.repeated",
            f"n = {n}: {layer} run several times a step, for which {'it was' if trained == 1 else 'they were'} not "
            "trained, and acceptance decays with each round",
            _C11,
        )
