"""SGLang's rules on further arguments and options beside a draft (0.5.23)."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.engines.preflight.asked import Asked
from tuner.engines.preflight.finding import Finding, error
from tuner.engines.sglang_commands import is_adaptive
from tuner.engines.sglang_limits import flag_value

_WITH_LORA = frozenset({"ngram", "eagle", "eagle3", "mtp", "dflash", "dspark"})


def adapters_allowed(asked: Asked) -> Iterator[Finding]:
    """LoRA under speculation."""
    args = asked.options.args
    if asked.on_vllm or asked.spec.is_off or not ("--enable-lora" in args or flag_value(args, "--lora-paths")):
        return
    if asked.method not in _WITH_LORA:
        yield error("sglang.lora", f"SGLang serves no LoRA beside {asked.method} drafts: use eagle, eagle3 or ngram")
    elif is_adaptive(asked.spec):
        yield error("sglang.lora", "SGLang does not adapt N beside LoRA: remove adaptive_config")


def whole_vocabulary(asked: Asked) -> Iterator[Finding]:
    """Rejection sampling needs draft probabilities over the target's tokens, which a reduced head does not give."""
    draft, ours = asked.draft, asked.target_shape.vocab
    if asked.on_vllm or draft is None or not asked.chosen.get("use_rejection_sampling"):
        return
    reduced = draft.config.get("draft_vocab_size")
    if reduced and ours and reduced != ours:
        yield error(
            "sglang.rejection",
            f"use_rejection_sampling needs a draft of the target's whole vocabulary ({ours}); {draft.name} drafts "
            f"{reduced} tokens: remove the option",
        )


def block_verification(asked: Asked) -> Iterator[Finding]:
    if not asked.on_vllm and asked.chosen.get("use_block_verification") and asked.device == "cpu":
        yield error("sglang.block", "use_block_verification needs CUDA or ROCm: remove it")
