"""A draft's architecture against the algorithm that SGLang is asked to run: wrong pairs run there without an error."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.engines.checkpoint import Checkpoint
from tuner.engines.preflight.finding import Finding, error
from tuner.engines.preflight.kinds import has_mtp_layers, is_speculators
from tuner.spec.speculation import SpecConfig

#: Architectures that SGLang 0.5.23 loads as EAGLE-3 heads.
EAGLE3_HEADS = ("LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM")
#: Suffixes of the heads and MTP layers that SGLang's EAGLE loads under their own names (0.5.23).
EAGLE_ENDINGS = ("Eagle", "MTP", "NextN")
_RULE = "method.fits"
_SILENT = "https://github.com/sgl-project/sglang/pull/21272"


def head_refusals(spec: SpecConfig, draft: Checkpoint) -> Iterator[Finding]:
    """At most one finding: what SGLang would make of this draft under this method."""
    names = draft.architectures or ("no architecture",)
    said, method = f"{draft.name} is a {', '.join(names)}", spec.method
    eagle3 = any("eagle3" in name.lower() for name in names)
    if is_speculators(draft.config):
        yield error(
            "format.speculators",
            f"{draft.name} is in the speculators format, which SGLang cannot load: serve it with vLLM, or convert it "
            f"to an EAGLE-3 head ({EAGLE3_HEADS[0]})",
        )
    elif method == "eagle3" and not set(EAGLE3_HEADS) & set(names):
        alike = "its tensors may fit: write that name into architectures of config.json" if eagle3 else "not this one"
        yield error(_RULE, f"{said}, but SGLang's EAGLE3 loads {' or '.join(EAGLE3_HEADS)} only: {alike}")
    elif method == "eagle3" and EAGLE3_HEADS[0] in names and "draft_vocab_size" not in draft.config:
        yield error(
            "head.vocabulary",
            f"config.json of {draft.name} has no draft_vocab_size, without which SGLang's {EAGLE3_HEADS[0]} ends at "
            f"its start: add draft_vocab_size: {_rows(draft)}",
            "sglang/srt/models/llama_eagle3.py:306 (0.5.23)",
        )
    elif method in ("eagle", "mtp") and eagle3:
        yield error(
            _RULE,
            f"{said}, an EAGLE-3 head: with method {method} SGLang runs it without an error and accepts nothing "
            "(mean acceptance length 1.00); use method eagle3",
            _SILENT,
        )
    elif method == "eagle" and not _is_eagle(draft):
        yield error(
            _RULE,
            f"{said}, but SGLang's EAGLE needs an EAGLE head such as LlamaForCausalLMEagle: for a whole small model "
            "use method draft_model; for a head, write that name into architectures of config.json",
        )
    elif method == "draft_model" and any("eagle" in name.lower() for name in names):
        yield error(_RULE, f"{said}, a head and not a whole model: use method {'eagle3' if eagle3 else 'eagle'}")


def _rows(draft: Checkpoint) -> str:
    """What the head was exported with; with null SGLang drafts through the target's output matrix."""
    matrix = draft.tensors.get("lm_head.weight")
    if matrix is not None and matrix.shape:
        return f"{matrix.shape[0]}, the rows of its lm_head"
    shared = "null, for the target's output matrix"
    return shared if draft.tensors else f"{shared}, or the number of rows of its own lm_head"


def _is_eagle(draft: Checkpoint) -> bool:
    named = any(name.endswith(EAGLE_ENDINGS) or "Assistant" in name for name in draft.architectures)
    return named or has_mtp_layers(draft.config)
