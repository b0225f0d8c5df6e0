"""The tensors a draft holds against those it must hold. vLLM raises on extra names and SGLang skips them; neither
notices a missing one, and the head drafts with whatever its memory held."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tuner.engines.checkpoint import Checkpoint
from tuner.engines.preflight import expected
from tuner.engines.preflight.asked import Asked
from tuner.engines.preflight.draft_map import reduced_size
from tuner.engines.preflight.expected import Dims, Expected
from tuner.engines.preflight.finding import Finding, error, note, warning
from tuner.engines.preflight.kinds import WHOLE_MODEL, attention_inputs, is_speculators, kind_of
from tuner.engines.preflight.layers import taps_read
from tuner.engines.preflight.shape import LlamaShape, section, text_config

_UNCHECKED = "vllm llama_eagle3.py:466 (0.32), sglang llama_eagle3.py (0.5.23): load_weights never says what is missing"
_PACKED = re.compile(r"\.(weight_packed|weight_scale\w*|qweight|qzeros|scales|g_idx|weight_zero_point|input_scale)$")
#: Heads whose decoder layer is Llama's, by the names of both engines. Latent attention and experts are not listed.
_LLAMA_HEADS = frozenset(
    {
        "LlamaForCausalLM", "LlamaForCausalLMEagle", "LlamaForCausalLMEagle3", "EagleLlamaForCausalLM",
        "Eagle3LlamaForCausalLM", "Eagle3MiniMaxM2ForCausalLM", "Eagle3Qwen3ForCausalLM", "Qwen2ForCausalLMEagle",
        "Eagle3Qwen2_5vlForCausalLM", "Eagle3Qwen3vlForCausalLM", "MistralForCausalLMEagle",
        "EagleMistralForCausalLM",
    }
)  # fmt: skip
#: SGLang's older names for the norms before fc.
_LEGACY = {
    "midlayer.": "layers.0.",
    "aux_norm_low.": "fc_norm.0.",
    "aux_norm_mid.": "fc_norm.1.",
    "aux_norm_high.": "fc_norm.2.",
}


def weights_are_there(asked: Asked) -> Iterator[Finding]:
    """Files that are missing or torn, of either; weights in a format whose header cannot be read."""
    for checkpoint in (asked.target, asked.draft):
        if checkpoint is None:
            continue
        for problem in checkpoint.problems:
            yield error("weights.files", problem)
        if not checkpoint.tensors and not checkpoint.problems and checkpoint is asked.draft:
            kept = f"only {', '.join(checkpoint.others)}" if checkpoint.others else "no weights"
            yield note("weights.unread", f"{checkpoint.name} holds {kept}: its tensors were not checked")


def tensors_fit(asked: Asked) -> Iterator[Finding]:
    """EAGLE-3, EAGLE-1/2 and draft models, tensor by tensor."""
    draft = asked.draft
    if draft is None or not draft.tensors or (asked.method != "draft_model" and kind_of(draft) == WHOLE_MODEL):
        return
    if any(_PACKED.search(name) for name in draft.tensors):
        yield from _quantised(draft)
        return
    wanted = _wanted(asked)
    if wanted is None:
        return
    wrong_kind = _wrong_kind(asked)
    if wrong_kind is not None:
        yield wrong_kind
        return
    held = _named(asked)
    yield from compare(asked, wanted, held)
    if asked.method == "eagle" and not asked.on_vllm and "fc.bias" not in held:
        yield warning(
            "tensors.fc_bias",
            f"{draft.name} holds no fc.bias, which SGLang's EAGLE adds all the same, as it was initialised: acceptance "
            "suffers a little; add one of zeros",
            "sglang/srt/models/llama_eagle.py (0.5.23)",
        )


def _quantised(draft: Checkpoint) -> Iterator[Finding]:
    if "quantization_config" not in draft.config:
        yield error(
            "weights.quantised",
            f"{draft.name} holds quantised tensors ({_example(draft)}) and its config.json has no quantization_config: "
            "engines would read them as plain weights; add it, or take the plain head",
        )


def _example(draft: Checkpoint) -> str:
    return next(name for name in draft.tensors if _PACKED.search(name))


def _wrong_kind(asked: Asked) -> Finding | None:
    """Rule of the first layer's inputs: H in EAGLE-1, 2 H in EAGLE-3."""
    assert asked.draft is not None
    reads, hidden = attention_inputs(asked.draft), asked.draft_shape.hidden
    if reads is None or hidden is None or asked.method not in ("eagle", "eagle3"):
        return None
    if asked.method == "eagle3" and reads == hidden:
        return error(
            "tensors.kind",
            f"q_proj of {asked.draft.name} reads {reads} values and that of an EAGLE-3 head 2 x {hidden}: it is an "
            "EAGLE-1 or EAGLE-2 head, so use method eagle",
        )
    if asked.method == "eagle" and reads == 2 * hidden:
        return error(
            "tensors.kind",
            f"q_proj of {asked.draft.name} reads {reads} values and that of an EAGLE-1 head {hidden}: it is an EAGLE-3 "
            "head, so use method eagle3",
        )
    return None


def compare(asked: Asked, wanted: Expected, held: Mapping[str, Dims]) -> Iterator[Finding]:
    """Missing, misshapen and extra tensors; one finding each kind, with the first names."""
    assert asked.draft is not None
    name, both = asked.draft.name, {**wanted.needed, **wanted.allowed}
    missing = [tensor for tensor in wanted.needed if tensor not in held]
    if missing:
        yield error(
            "tensors.missing",
            f"{name} holds no {_few(missing)}: engines load what is there without a word and draft with the rest as "
            "memory had it; export the draft again with all its tensors",
            _UNCHECKED,
        )
    for tensor in (tensor for tensor in held if tensor in both and held[tensor] != both[tensor]):
        yield error(
            "tensors.shape",
            f"{tensor} of {name} is {list(held[tensor])} and must be {list(both[tensor])} by its config.json and the "
            "target's: config and weights are of different models",
        )
    extra = [tensor for tensor in held if tensor not in both and not any(part in tensor for part in wanted.ignored)]
    if extra and asked.on_vllm:
        yield error("tensors.extra", f"{name} holds {_few(extra)}, for which vLLM has no place and ends: remove them")
    elif extra:
        yield warning("tensors.extra", f"{name} holds {_few(extra)}, which SGLang skips: was it made for this format?")


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _named(asked: Asked) -> dict[str, Dims]:
    """Shapes under the names that `expected` uses. SGLang also finds a head's names behind `model.`; vLLM does not."""
    assert asked.draft is not None
    held: dict[str, Dims] = {}
    for name, tensor in asked.draft.tensors.items():
        shown = name
        if asked.method in ("eagle", "eagle3"):
            for old, new in _LEGACY.items():
                shown = shown.replace(old, new)
            if not asked.on_vllm:
                shown = shown.removeprefix("model.")
        held[shown] = tensor.shape
    return held


def _wanted(asked: Asked) -> Expected | None:
    """None where config or target leave the shapes open, or the family is not listed."""
    draft, shape = asked.draft, asked.draft_shape.llama
    assert draft is not None
    whole = asked.target_shape.vocab or asked.draft_shape.vocab
    if asked.method == "draft_model":
        return expected.whole_model(asked.draft_shape, draft.architectures[0]) if draft.architectures else None
    listed = is_speculators(draft.config) or set(draft.architectures) <= _LLAMA_HEADS
    if shape is None or whole is None or not listed:
        return None
    if asked.method == "eagle":
        biased = asked.draft_shape.biased or "Qwen2ForCausalLMEagle" in draft.architectures
        return expected.eagle1(shape, whole, fc_bias=not asked.on_vllm, biased=biased)
    return _eagle3(asked, draft, shape, whole) if asked.method == "eagle3" else None


def _eagle3(asked: Asked, draft: Checkpoint, shape: LlamaShape, whole: int) -> Expected:
    stated = draft.config.get("target_hidden_size")
    target_hidden = asked.target_shape.hidden or (stated if isinstance(stated, int) else shape.hidden)
    taps = taps_read(draft.config)
    return expected.eagle3(
        shape,
        target_hidden=target_hidden,
        taps=taps,
        drafted=reduced_size(asked) or whole,
        whole=whole,
        own_embedding=shape.hidden != target_hidden,
        extras=_norms(draft, taps, target_hidden),
        # SGLang builds this layer without biases whatever the config says.
        biased=asked.draft_shape.biased and asked.on_vllm,
        query_normed=_is_qwen3(draft),
    )


def _is_qwen3(draft: Checkpoint) -> bool:
    return "Eagle3Qwen3ForCausalLM" in draft.architectures or text_config(draft.config).get("model_type") == "qwen3"


def _norms(draft: Checkpoint, taps: int, target_hidden: int) -> dict[str, Dims]:
    config = draft.config
    eagle = section(config, "eagle_config")
    extras: dict[str, Dims] = {}
    if eagle.get("norm_before_fc", config.get("norm_before_fc", text_config(config).get("norm_before_fc"))):
        extras["input_norm.weight"] = (taps * target_hidden,)
    if config.get("fc_norm") or config.get("use_aux_norm"):
        extras |= {f"fc_norm.{tap}.weight": (target_hidden,) for tap in range(taps)}
    return extras
