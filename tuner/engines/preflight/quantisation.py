"""Which quantisation a draft gets beside a quantised target, and mixed number formats. Field case C24."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tuner.engines.preflight.asked import Asked
from tuner.engines.preflight.finding import Finding, note, warning

#: Drafts that read the target's hidden states, which quantisation moves.
_READS_STATES = frozenset({"eagle", "eagle3", "medusa", "mtp", "dflash", "dspark"})
_FLOATS = frozenset({"F16", "BF16", "F32", "F64"})
_C24 = "https://github.com/sgl-project/sglang/issues/4351"


def method_of_quantisation(config: Mapping[str, Any]) -> str | None:
    found = config.get("quantization_config")
    if isinstance(found, str):
        return found
    if not isinstance(found, dict):
        return None
    return str(found.get("quant_method") or found.get("quant_algo") or "of an unnamed kind")


def draft_gets(asked: Asked) -> Iterator[Finding]:
    """What the draft is quantised to, and what that may cost."""
    ours = method_of_quantisation(asked.target.config) if asked.target else None
    if ours is None or asked.draft is None:
        return
    theirs = method_of_quantisation(asked.draft.config)
    key = "quantization" if asked.on_vllm else "draft_model_quantization"
    explicit = asked.chosen.get(key)
    if explicit is not None:
        yield note("quantisation.draft", f"the target is quantised ({ours}) and the draft is loaded as {explicit}")
    elif theirs is None and not asked.on_vllm:
        yield warning(
            "quantisation.inherited",
            f"the target is quantised ({ours}) and {asked.draft.name} is not: SGLang gives the draft the target's "
            "quantisation where that was passed as --quantization; set the draft's option draft_model_quantization: "
            "unquant to load it as it is",
            _C24,
        )
    else:
        yield note(
            "quantisation.draft",
            f"the target is quantised ({ours}); {asked.draft.name} is loaded {f'as {theirs}' if theirs else 'plain'}",
        )
    if asked.method in _READS_STATES:
        yield warning(
            "quantisation.states",
            f"{asked.draft.name} reads hidden states, and the target's come out of {ours} quantisation: an alpha "
            "measured on the plain model does not carry over; only one measured on this very target counts",
            "https://github.com/vllm-project/vllm/pull/26590",
        )


def one_format(asked: Asked) -> Iterator[Finding]:
    """Matrices of a draft in several float formats."""
    if asked.draft is None:
        return
    found = {t.dtype for t in asked.draft.tensors.values() if len(t.shape) == 2 and t.dtype in _FLOATS}
    if len(found) > 1:
        yield warning(
            "weights.formats",
            f"{asked.draft.name} mixes {' and '.join(sorted(found))} in its matrices: engines load all of it as the "
            "target's format; save it in one",
        )
