"""Every method's command, resolved by vLLM's own parser in its own environment, as far as it goes without weights.

What it does not tell: whether weights fit and a model has the interface of a method (test_real_vllm_methods launches
those); dspark needs the model runner V2 and with it a GPU, so its speculative config resolves and the engine's does
not; suffix needs arctic-inference, which the CPU environment does not have, so it resolves as if it were there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import real_vllm
from heads import eagle1_head, medusa_heads
from real_vllm import HEAD

from tuner.engines.vllm import VllmEngine
from tuner.engines.vllm_versions import COMMON_KEYS, METHOD_KEYS, METHOD_SPANS, parse_version
from tuner.spec.speculation import OFF, SpecConfig

pytestmark = [pytest.mark.real_vllm, pytest.mark.timeout(1500)]

Resolved = dict[str, Any]
SMALL = {
    "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16,
    "num_hidden_layers": 3, "vocab_size": 49152, "max_position_embeddings": 4096, "torch_dtype": "float32",
}  # fmt: skip
#: A mixture of experts with one layer for multi-token prediction, in GLM's format.
MTP = SMALL | {
    "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "num_nextn_predict_layers": 1,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1, "topk_group": 1,
}  # fmt: skip
DFLASH = SMALL | {
    "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "block_size": 8,
    "dflash_config": {"mask_token_id": 5, "target_layer_ids": [0, 1]},
}  # fmt: skip
DSPARK = SMALL | {
    "architectures": ["Qwen3DSparkModel"], "model_type": "qwen3", "block_size": 8, "markov_rank": 16,
    "mask_token_id": 5, "target_layer_ids": [0, 1],
}  # fmt: skip


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Resolved:
    """What vLLM makes of all commands, in one process: importing it is what takes long."""
    folder = tmp_path_factory.mktemp("parser")
    target = real_vllm.target()
    eagle1_head(folder / "one", target)
    medusa_heads(folder / "heads", target, heads=3)
    (folder / "twin").symlink_to(target)
    (folder / "eagle-exp").symlink_to(target)
    for name, config in (("glm", MTP), ("blocks", DFLASH), ("sparks", DSPARK)):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return real_vllm.resolve({name: command(folder, target, spec) for name, spec in specs(folder).items()})


def command(folder: Path, target: Path, spec: SpecConfig) -> tuple[str, ...]:
    """The adapter's command without the interpreter and the module."""
    engine = VllmEngine(real_vllm.environment())
    own = str(folder / "glm") if spec.method == "mtp" else str(target)
    # The hand-written target has no tokenizer; all arms take the same, which changes nothing else.
    options = real_vllm.options(running=4, args=("--tokenizer", str(target)))
    return engine.launch(own, spec, options, 8000, "key").argv[3:]


def specs(folder: Path) -> dict[str, SpecConfig]:
    def of(method: str, n: int, draft: str | None = None, **options: str | int | float | bool) -> SpecConfig:
        path = None if draft is None else str(HEAD if draft == "head" else folder / draft)
        return SpecConfig(method, n=n, draft=path, options=tuple(options.items()))

    return {
        "off": OFF,
        "ngram": of("ngram", 3),
        "ngram most": of("ngram", 5, prompt_lookup_max=3),
        "ngram least": of("ngram", 5, prompt_lookup_min=3),
        "ngram one": of("ngram", 5, prompt_lookup_max=1),
        "ngram both": of("ngram", 5, prompt_lookup_min=6, prompt_lookup_max=9),
        "eagle3": of("eagle3", 1, "head"),
        "eagle3 options": of(
            "eagle3", 5, "head", draft_tensor_parallel_size=1, draft_sample_method="probabilistic",
            disable_padded_drafter_batch=True, max_model_len=1024,
            num_speculative_tokens_per_batch_size="[[1, 2, 5], [3, 4, 0]]",
        ),
        "eagle3 synthetic": of(
            "eagle3", 2, "head", rejection_sample_method="synthetic", synthetic_acceptance_rates="[0.8, 0.5]"
        ),
        "eagle": of("eagle", 2, "one"),
        "medusa": of("medusa", 3, "heads"),
        "draft_model": of("draft_model", 4, "twin"),
        "draft_model misled": of("draft_model", 4, "eagle-exp"),
        "mtp": of("mtp", 1),
        "mtp again": of("mtp", 3),
        "suffix": of("suffix", 8, suffix_decoding_max_tree_depth=12, suffix_decoding_max_spec_factor=1.5),
        "dflash": of("dflash", 7, "blocks"),
        "dspark": of("dspark", 7, "sparks", dspark_draft_topk=4),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("ngram", {"method": "ngram", "n": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 4}),
        ("ngram most", {"method": "ngram", "n": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 3}),
        ("ngram least", {"method": "ngram", "n": 5, "prompt_lookup_min": 3, "prompt_lookup_max": 4}),
        ("ngram one", {"method": "ngram", "n": 5, "prompt_lookup_min": 1, "prompt_lookup_max": 1}),
        ("ngram both", {"method": "ngram", "n": 5, "prompt_lookup_min": 6, "prompt_lookup_max": 9}),
        ("eagle3", {"method": "eagle3", "n": 1, "architectures": ["LlamaForCausalLMEagle3"]}),
        (
            "eagle3 options",
            {
                "method": "eagle3", "n": 5, "draft_tensor_parallel_size": 1, "draft_sample_method": "probabilistic",
                "disable_padded_drafter_batch": True, "max_model_len": 1024,
                "num_speculative_tokens_per_batch_size": [[1, 2, 5], [3, 4, 0]],
            },
        ),
        ("eagle3 synthetic", {"method": "eagle3", "n": 2, "synthetic_acceptance_rates": [0.8, 0.5]}),
        ("eagle", {"method": "eagle", "n": 2, "architectures": ["EagleLlamaForCausalLM"]}),
        ("medusa", {"method": "medusa", "n": 3, "architectures": ["MedusaModel"]}),
        ("draft_model", {"method": "draft_model", "n": 4, "architectures": ["LlamaForCausalLM"]}),
        ("mtp", {"method": "mtp", "n": 1, "architectures": ["Glm4MoeMTPModel"]}),
        ("mtp again", {"method": "mtp", "n": 3, "architectures": ["Glm4MoeMTPModel"]}),
        ("dflash", {"method": "dflash", "n": 7, "parallel_drafting": True, "architectures": ["DFlashDraftModel"]}),
    ],
)  # fmt: skip
def test_a_command_resolves_to_what_was_asked(told: Resolved, name: str, fields: Resolved) -> None:
    resolved = told["commands"][name]
    assert "error" not in resolved, resolved["error"]
    check(resolved["speculative"], fields)
    assert resolved["per_request"] == "detailed"


def check(speculative: Resolved, fields: Resolved) -> None:
    wanted = {"num_speculative_tokens" if key == "n" else key: value for key, value in fields.items()}
    assert {key: speculative.get(key) for key in wanted} == wanted


def test_off_is_off_and_all_arms_have_its_limits(told: Resolved) -> None:
    off = told["commands"]["off"]
    assert off["speculative"] is None
    assert off["per_request"] == "none"
    limits = {"dtype": "torch.float32", "max_model_len": 2048, "max_num_seqs": 4, "seed": 0, "prefix_caching": False}
    for name, resolved in told["commands"].items():
        if "error" not in resolved:
            assert {key: resolved[key] for key in limits} == limits, name


def test_suffix_is_refused_without_arctic_inference_and_resolves_beside_it(told: Resolved) -> None:
    suffix = told["commands"]["suffix"]
    if "error" in suffix:
        assert "Arctic Inference is required for suffix decoding" in suffix["error"]
    check(
        suffix["speculative"],
        {
            "method": "suffix", "n": 8, "suffix_decoding_max_tree_depth": 12, "suffix_decoding_max_spec_factor": 1.5,
            "suffix_decoding_min_token_prob": 0.1,
        },
    )  # fmt: skip


def test_dspark_is_refused_on_cpu_and_its_config_resolves(told: Resolved) -> None:
    dspark = told["commands"]["dspark"]
    assert "Model Runner V1 does not support: dspark speculative decoding" in dspark["error"]
    fields = {"method": "dspark", "n": 7, "parallel_drafting": True, "architectures": ["Qwen3DSparkModel"]}
    check(dspark["speculative"], fields)
    assert dspark["speculative"]["dspark_draft_topk"] == 4


def test_a_misleading_path_does_change_the_method(told: Resolved) -> None:
    """Why the adapter refuses such a path: draft_model was asked for, by name."""
    assert told["commands"]["draft_model misled"]["speculative"]["method"] == "eagle"


def test_the_allow_list_has_the_keys_and_methods_of_this_version(told: Resolved) -> None:
    version = parse_version(real_vllm.environment().version)
    spans = [*COMMON_KEYS.items(), *(pair for keys in METHOD_KEYS.values() for pair in keys.items())]
    allowed = {key for key, span in spans if span[0] <= version and (not span[1] or version < span[1])}
    assert sorted(allowed - set(told["keys"])) == []
    # Set by the adapter itself, by vLLM, or a field that exists to be refused.
    others = {"method", "model", "num_speculative_tokens", "tensor_parallel_size", "draft_load_config"}
    others |= {f"{whose}_{part}_config" for whose in ("target", "draft") for part in ("model", "parallel")}
    assert sorted(set(told["keys"]) - allowed) == sorted(others)
    ours = {method for method, span in METHOD_SPANS.items() if span[1] is None or version < span[1]}
    assert sorted(ours - set(told["methods"])) == []
