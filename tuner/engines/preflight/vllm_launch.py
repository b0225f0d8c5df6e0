"""vLLM's own rules on the speculative config and on further arguments that are met late, or never said (0.32)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from tuner.engines.preflight.asked import Asked
from tuner.engines.preflight.finding import Finding, error, note, warning
from tuner.engines.sglang_limits import flag_number, flag_value
from tuner.engines.vllm_limits import token_count
from tuner.engines.vllm_versions import list_value

_EAGLE_FAMILY = frozenset({"eagle", "eagle3", "mtp", "dflash", "dspark"})
#: Targets whose class hands hidden states from one pipeline stage to the next.
_TAPS_OVER_STAGES = frozenset(
    {"LlamaForCausalLM", "Qwen2ForCausalLM", "MistralForCausalLM", "SarvamMLAForCausalLM", "DeepseekV4ForCausalLM",
     "MiniMaxM3SparseForCausalLM", "KimiK3ForConditionalGeneration"}
)  # fmt: skip
#: Values of rejection_sample_method, and the versions that take them (until: exclusive).
_REJECTION: dict[str, tuple[tuple[int, ...], tuple[int, ...] | None]] = {
    "strict": ((0, 18), (0, 21)),
    "probabilistic": ((0, 18), (0, 21)),
    "standard": ((0, 21), None),
    "synthetic": ((0, 19), None),
    "block": ((0, 25), None),
    "fly": ((0, 33), None),
}
#: vLLM's own number where --max-num-batched-tokens is not given, at the least (it depends on the device).
LEAST_BATCHED_TOKENS = 2048


def launch_allowed(asked: Asked) -> Iterator[Finding]:
    """Arguments that do not go with this method."""
    if not asked.on_vllm or asked.spec.is_off:
        return
    yield from _lora(asked)
    stages = flag_number(asked.options.args, "--pipeline-parallel-size", "-pp")
    yield from _stages(asked, stages)
    yield from _adaptive(asked, stages)
    args = asked.options.args
    if "--kv-sharing-fast-prefill" in args and asked.method in _EAGLE_FAMILY:
        yield error(
            "vllm.fast_prefill",
            f"--kv-sharing-fast-prefill gives wrong logits for prompts, which {asked.method} reads: remove it",
            "vllm/config/vllm.py:1942 (0.32)",
        )
    if any("lm-format-enforcer" in arg for arg in args):
        yield error(
            "vllm.grammar",
            "lm-format-enforcer takes no speculative tokens and raises at the first constrained request: use xgrammar, "
            "guidance or outlines",
            "vllm/v1/structured_output/backend_lm_format_enforcer.py:135 (0.32)",
        )
    if flag_value(args, "--logits-processors") and asked.v1_runner:
        yield error(
            "vllm.logits_processors",
            "custom logits processors are not supported under speculation on vLLM's first model runner: remove them",
            "vllm/v1/sample/logits_processor/__init__.py:45 (0.32)",
        )
    if "--enable-dbo" in args:
        yield warning(
            "vllm.dbo", "--enable-dbo is not supported with speculation on vLLM's second model runner: remove it"
        )


def _lora(asked: Asked) -> Iterator[Finding]:
    """max_num_batched_tokens >= max_num_seqs * (N + 1)."""
    if "--enable-lora" not in asked.options.args:
        return
    given = flag_value(asked.options.args, "--max-num-batched-tokens")
    needed = asked.options.max_running_requests * (asked.spec.n + 1)
    try:
        most = token_count(given) if given and given != "None" else LEAST_BATCHED_TOKENS
    except ValueError:
        yield error(
            "vllm.lora", f"--max-num-batched-tokens is {given!r}: give a whole number of tokens, such as 16384 or 16k"
        )
        return
    if most < needed:
        yield error(
            "vllm.lora",
            f"with --enable-lora vLLM needs max_num_batched_tokens >= max_running_requests * (n + 1) = {needed}, and "
            f"it is {given or f'not given ({LEAST_BATCHED_TOKENS} on some devices)'}: raise it, or lower n",
            "vllm/engine/arg_utils.py:2671 (0.32)",
        )


def _stages(asked: Asked, stages: int) -> Iterator[Finding]:
    if stages < 2 or asked.method not in ("eagle3", "dflash"):
        return
    names = asked.target.architectures if asked.target else ()
    if asked.v1_runner or (names and not set(names) & _TAPS_OVER_STAGES):
        yield error(
            "vllm.stages",
            f"{', '.join(names) or 'the target'} does not support {asked.method} with pipeline parallelism "
            f"({stages} stages): use tensor_parallel instead, or ngram",
            "vllm/v1/worker/gpu/spec_decode/eagle/eagle3_utils.py:44 (0.32)",
        )


def _adaptive(asked: Asked, stages: int) -> Iterator[Finding]:
    """What vLLM refuses beside adaptive verification, once its configuration is put together."""
    args = asked.options.args
    clashes = [flag for flag in args if flag in ("--enable-lora", "--enforce-eager")]
    clashes += ["--pipeline-parallel-size"] if stages > 1 else []
    if asked.chosen.get("enable_adaptive_verification") and clashes:
        yield error(
            "vllm.adaptive",
            f"enable_adaptive_verification does not go with {clashes[0]}: it needs full CUDA graphs, one pipeline "
            "stage and no LoRA; remove one of the two",
            "vllm/config/vllm.py:3001 (0.32)",
        )


def config_allowed(asked: Asked) -> Iterator[Finding]:
    """Values in the speculative config against the method, the version and each other."""
    if not asked.on_vllm or asked.spec.is_off:
        return
    chosen = asked.chosen
    yield from _rejection(asked, chosen)
    if chosen.get("use_heterogeneous_vocab") and asked.method != "draft_model":
        yield error("vllm.mixed_vocabulary", "use_heterogeneous_vocab works with method draft_model only: remove it")
    if chosen.get("draft_sample_method") == "probabilistic":
        yield from _probabilistic(asked, chosen)
    low, high = chosen.get("prompt_lookup_min"), chosen.get("prompt_lookup_max")
    if isinstance(low, int) and isinstance(high, int) and low > high:
        yield error("vllm.lookup", f"prompt_lookup_min {low} is above prompt_lookup_max {high}: swap them")
    if asked.method == "suffix":
        yield note("vllm.suffix", "suffix needs `pip install arctic-inference==0.1.1` in the engine's environment")


def _rejection(asked: Asked, chosen: dict[str, Any]) -> Iterator[Finding]:
    method = chosen.get("rejection_sample_method")
    span = _REJECTION.get(str(method))
    if method is not None and (
        span is None or asked.version < span[0] or (span[1] is not None and asked.version >= span[1])
    ):
        known = [name for name, (since, until) in _REJECTION.items() if since <= asked.version < (until or (99,))]
        yield error(
            "vllm.rejection",
            f"{asked.engine_text} has no rejection_sample_method '{method}': it takes {', '.join(known) or 'none'}",
        )
    if method == "block" and asked.v1_runner and asked.device != "cpu":
        yield warning(
            "vllm.block",
            "rejection_sample_method block is taken by vLLM's first model runner and behaves as standard there: what "
            "is measured is standard",
        )
    rates, length = chosen.get("synthetic_acceptance_rates"), chosen.get("synthetic_acceptance_length")
    if method == "synthetic":
        yield from _synthetic(asked.spec.n, rates, length)
    elif rates is not None or length is not None:
        yield error("vllm.synthetic", "synthetic_acceptance_* count with rejection_sample_method synthetic only")


def _synthetic(n: int, rates: Any, length: Any) -> Iterator[Finding]:
    if (rates is None) == (length is None):
        yield error(
            "vllm.synthetic", "synthetic acceptance takes exactly one of synthetic_acceptance_rates and _length"
        )
    elif length is not None and not (isinstance(length, int | float) and 1 <= length <= n + 1):
        yield error(
            "vllm.synthetic",
            f"synthetic_acceptance_length {length} is no number from 1 to n + 1 = {n + 1}: it counts the bonus token",
        )
    elif rates is not None:
        values = list_value(rates)
        shares = [value for value in values or () if isinstance(value, int | float) and 0 <= value <= 1]
        # What is no list at all is refused with the launch's arguments.
        if values is not None and not (len(shares) == len(values) == n and all(a >= b for a, b in pairwise(shares))):
            yield error(
                "vllm.synthetic",
                f"synthetic_acceptance_rates {values} must be n = {n} shares from 0 to 1 that never rise: a_k, the "
                "share of steps that accept the first k tokens",
            )


def _probabilistic(asked: Asked, chosen: dict[str, Any]) -> Iterator[Finding]:
    clash = next((key for key in ("use_local_argmax_reduction", "use_heterogeneous_vocab") if chosen.get(key)), None)
    if asked.method in ("ngram", "suffix"):
        yield error("vllm.draft_sampling", f"{asked.method} drafts are not sampled: remove draft_sample_method")
    elif clash:
        yield error("vllm.draft_sampling", f"draft_sample_method probabilistic does not go with {clash}: remove one")
