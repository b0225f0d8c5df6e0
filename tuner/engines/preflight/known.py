"""Facts read in the engines' source: which heads and targets their classes know. Each list has the version it is of."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from tuner.engines.preflight.asked import Version

VLLM_READ: Version = (0, 32, 0)
#: EAGLE-3 heads and EAGLE-1/2 heads in vLLM's registry, after its rewriting of names (0.32).
VLLM_EAGLE3_HEADS = frozenset(
    {
        "Eagle3LlamaForCausalLM", "Eagle3MiniMaxM2ForCausalLM", "LlamaForCausalLMEagle3", "Eagle3Qwen2_5vlForCausalLM",
        "Eagle3Qwen3vlForCausalLM", "Eagle3Qwen3ForCausalLM", "Eagle3DeepseekV2ForCausalLM",
        "Eagle3DeepseekV3ForCausalLM",
    }
)  # fmt: skip
VLLM_EAGLE_HEADS = frozenset(
    {
        "EagleCohereForCausalLM", "EagleLlamaForCausalLM", "EagleLlama4ForCausalLM", "EagleMiniCPMForCausalLM",
        "EagleMistralForCausalLM", "EagleMistralLarge3ForCausalLM", "EagleDeepSeekMTPModel",
    }
)  # fmt: skip
#: `model_type` of targets whose own MTP layers vLLM has a class for (hf_config_override, 0.32); MiMo's
#: and GLM's are recognised by architecture.
VLLM_MTP_TYPES = frozenset(
    {
        "bailing_hybrid", "deepseek_v3", "deepseek_v32", "deepseek_v4", "dots3_note", "ernie4_5_moe", "exaone4_5",
        "exaone_moe", "gemma4_assistant", "gemma4_unified_assistant", "glm5_next", "glm_moe_dsa", "hy_v3", "hy_v4",
        "inkling_mm_model", "inkling_model", "intern_s2_preview", "interns2_mobius", "kimi_k3", "longcat_flash",
        "minimax_m3_vl", "nemotron_h", "nemotron_h_puzzle", "pangu_ultra_moe", "qwen3_5", "qwen3_5_moe",
        "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "qwen4_exp", "qwen4_exp_text", "step3p5", "step3p7",
    }
)  # fmt: skip
VLLM_MTP_ARCHITECTURES = ("MiMo", "Glm4Moe", "GlmOcr", "BailingMoeV", "NemotronH_", "Step3p", "MiniMaxM3")
#: Targets that give hidden states in every version whose flags tuner knows.
LONG_SINCE = frozenset({"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})


def takes_eagle3(engine: str, version: Version, architecture: str) -> bool | None:
    """Whether a target's class gives EAGLE-3 its hidden states; None where that was not read."""
    facts = _targets()[engine]
    read = tuple(facts["version"])
    if architecture in facts["with"]:
        # Support is added and not taken away, so it holds from the version that was read on.
        return True if version >= read or architecture in LONG_SINCE else None
    refused = facts["without"] is None or architecture in facts["without"]
    # vLLM runs unlisted models through Transformers, whose wrapper gives hidden states; SGLang's does not.
    return False if refused and version == read else None


@cache
def _targets() -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((Path(__file__).with_name("eagle3_targets.json")).read_text(encoding="utf-8"))
    return facts
