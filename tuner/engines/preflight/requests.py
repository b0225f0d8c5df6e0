"""What requests ask, against what speculation allows or falsifies. Cases C19, C22, M11, M16, M22 and sampling."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tuner.engines.preflight.asked import Asked
from tuner.engines.preflight.finding import Finding, error, note, warning
from tuner.spec.speculation import LOOKUP_METHODS

#: vLLM answers 400 to these under speculation from 0.17 on; up to 0.13 such requests ran without it, silently.
REFUSES_FROM, SILENT_UNTIL, SILENT_FROM = (0, 17), (0, 14), (0, 10)
_REFUSED = ("min_p", "logit_bias")
_SILENT = ("min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logprobs")
_INSTRUCT = re.compile(r"instruct|chat|[-_]it\b", re.IGNORECASE)
_SOURCE = "vllm/sampling_params.py, _validate_spec_decode (0.32)"
_M11 = "https://github.com/vllm-project/vllm/issues/33497"
_M22 = "https://github.com/SemiAnalysisAI/InferenceX/pull/1737"


def sampling_allowed(asked: Asked) -> Iterator[Finding]:
    """Request fields that vLLM refuses under speculation, or for whose sake it switched speculation off."""
    if not asked.on_vllm or asked.spec.is_off:
        return
    given = {key for key, value in asked.demand.sampling.items() if value not in (None, _NEUTRAL.get(key))}
    refused, silent = sorted(given & {*_REFUSED}), sorted(given & {*_SILENT})
    if refused and asked.version >= REFUSES_FROM:
        yield error(
            "sampling.refused",
            f"the workload sends {refused[0]}, and {asked.engine_text} answers every such request with HTTP 400 under "
            "speculation: leave it out, or leave speculation off",
            _SOURCE,
        )
    elif refused and asked.version >= SILENT_UNTIL:
        yield warning(
            "sampling.refused",
            f"the workload sends {refused[0]}: vLLM 0.17 and later refuse it under speculation, 0.10 to 0.13 ran such "
            f"requests without; what {asked.engine_text} does was not looked up",
        )
    elif silent and SILENT_FROM <= asked.version < SILENT_UNTIL:
        yield warning(
            "sampling.silent",
            f"the workload sends {silent[0]}, and {asked.engine_text} runs such requests without speculation and "
            "without a word: leave it out, or use 0.15 or later",
        )


_NEUTRAL = {"min_p": 0, "presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1, "logit_bias": {}}


def top_k_with_lookups(asked: Asked) -> Iterator[Finding]:
    """Lookups draft nothing in some steps, and there vLLM's first model runner takes the largest k of no rows."""
    top_k, top_p = (asked.demand.sampling.get(field) for field in ("top_k", "top_p"))
    if not asked.on_vllm or not asked.v1_runner or asked.method not in LOOKUP_METHODS:
        return
    if top_k and top_k > 0 and top_p in (None, 1) and any(asked.demand.temperatures):
        yield warning(
            "sampling.top_k",
            f"the workload sends top_k {top_k} without top_p, and {asked.engine_text} was seen to die of that above "
            f"temperature 0 in a verify step in which {asked.method} drafted nothing: leave top_k out, or draft with "
            "something else",
            "vllm/v1/sample/ops/topk_topp_sampler.py, apply_top_k_only (0.32)",
        )


def answers_are_real(asked: Asked) -> Iterator[Finding]:
    """M11: past the end that the model itself would have set, it writes what no user asked for."""
    if asked.demand.sampling.get("ignore_eos") and not asked.spec.is_off and not _synthetic(asked):
        yield error(
            "workload.ignore_eos",
            "ignore_eos forces answers beyond their end, and no alpha or N measured there is your traffic's: remove it "
            "and use real prompts (such as MT-Bench, GSM8K or HumanEval); forced lengths are good for latency at a "
            "forced acceptance only (vLLM: rejection_sample_method synthetic)",
            _M11,
        )


def _synthetic(asked: Asked) -> bool:
    simulated = dict(asked.options.env).get("SGLANG_SIMULATE_ACC_LEN")
    return asked.chosen.get("rejection_sample_method") == "synthetic" or bool(simulated)


def temperature_counts(asked: Asked) -> Iterator[Finding]:
    """M16: greedy figures do not hold for sampled traffic."""
    if asked.demand.temperatures and not any(asked.demand.temperatures) and not asked.spec.is_off:
        yield note(
            "workload.greedy",
            "only temperature 0 is asked: acceptance falls as temperature rises, so this result does not carry over to "
            "sampled traffic; list the temperature you serve at",
            "https://github.com/vllm-project/vllm/pull/16899",
        )


def template_is_used(asked: Asked) -> Iterator[Finding]:
    """M22: an instruction-tuned target that gets bare text."""
    if asked.demand.endpoint != "completions" or asked.spec.is_off:
        return
    named = _INSTRUCT.search(asked.target_name.rstrip("/").rpartition("/")[2])
    if named or _has_template(asked):
        yield warning(
            "workload.template",
            f"{asked.target_name} is tuned for conversation and traffic.endpoint completions sends it bare text: "
            "drafts are trained on the chat template, without which acceptance can collapse; use endpoint chat",
            _M22,
        )


def _has_template(asked: Asked) -> bool:
    return asked.target is not None and (asked.target.folder / "chat_template.jinja").is_file()


def images(asked: Asked) -> Iterator[Finding]:
    """C22: what drafts see of a picture."""
    target = asked.target
    if target is None or asked.spec.is_off:
        return
    parts = [
        key for key in ("vision_config", "audio_config", "vision_tower", "mm_vision_tower") if key in target.config
    ]
    if not parts:
        return
    sees = {
        "eagle3": "the head sees pictures only through the target's hidden states",
        "eagle": "the head sees pictures only through the target's hidden states",
        "mtp": "MTP layers see pictures only through the target's hidden states",
        "draft_model": "the draft model sees the text alone, unless it is multimodal itself",
    }.get(asked.method, "this draft sees no pictures, the text alone")
    yield warning(
        "target.multimodal",
        f"{asked.target_name} is multimodal ({parts[0]}): {sees}; measure with pictures if you serve them, at rising "
        "concurrency, for engines have died there under load",
        "https://github.com/sgl-project/SpecForge/issues/310",
    )


def constrained(asked: Asked) -> Iterator[Finding]:
    """C19: answers bound to a grammar, which have stopped or killed speculating engines."""
    if asked.demand.constrained and not asked.spec.is_off:
        yield warning(
            "workload.constrained",
            f"requests carry {asked.demand.constrained}: constrained answers have crashed and stalled speculating "
            "engines, so try a few at once first, and count a setting only if its answers parse and end",
            "https://github.com/vllm-project/vllm/issues/11484",
        )
