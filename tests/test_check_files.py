"""Reading checkpoints without torch: folders, shards, the hub's cache, broken files; sizes and capacity."""

from __future__ import annotations

import contextlib
import itertools
import json
import struct
from array import array
from pathlib import Path
from typing import Any

import pytest
from pairs import Shapes, tokenizer, write_file, write_model, write_weights

from tuner.engines import engine_for, sglang_versions, vllm_versions
from tuner.engines.base import LaunchOptions
from tuner.engines.checkpoint import Checkpoint, find_folder, read_checkpoint
from tuner.engines.environments import Environment
from tuner.engines.hub_cache import hub_folder
from tuner.engines.preflight.architecture import fitting_method
from tuner.engines.preflight.asked import Demand
from tuner.engines.preflight.check import check
from tuner.engines.preflight.draft_map import map_values
from tuner.engines.preflight.kinds import kind_of, mtp_layers
from tuner.engines.preflight.known import takes_eagle3
from tuner.engines.preflight.memory import capacity_with_draft, crowding, requests_that_fit
from tuner.engines.preflight.shape import shape_of
from tuner.engines.preflight.sizes import active_parameters, kv_bytes_per_token, parameters_by_config
from tuner.engines.tokens import difference, read_tokens
from tuner.errors import UserError
from tuner.spec.speculation import METHODS, OFF, Scalar, SpecConfig

LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "torch_dtype": "bfloat16",
    "max_position_embeddings": 131072,
}  # fmt: skip
DEEPSEEK_V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168, "num_hidden_layers": 61, "kv_lora_rank": 512,
    "qk_rope_head_dim": 64, "torch_dtype": "bfloat16", "num_nextn_predict_layers": 1,
}  # fmt: skip
TWO: Shapes = {"a": ("BF16", [2, 3]), "b": ("I64", [4])}


def checkpoint(config: dict[str, Any], *tensors: str) -> Checkpoint:
    return Checkpoint("m", Path("/m"), config, dict.fromkeys(tensors))  # type: ignore[arg-type]


def read(folder: Path) -> Checkpoint:
    found = read_checkpoint(str(folder))
    assert found is not None
    return found


# --- files ----------------------------------------------------------------------------------------------------------


def test_headers_and_one_tensors_bytes(tmp_path: Path) -> None:
    write_model(tmp_path / "m", {"config": {"hidden_size": 8}})
    write_file(tmp_path / "m" / "model.safetensors", TWO, {"b": struct.pack("<4q", 7, -1, 0, 2)})
    tensors = read(tmp_path / "m").tensors
    assert {name: (t.dtype, t.shape, t.nbytes) for name, t in tensors.items()} == {
        "a": ("BF16", (2, 3), 12),  # 2 x 3 numbers of 2 bytes
        "b": ("I64", (4,), 32),
    }
    assert array("q", tensors["b"].read() or b"").tolist() == [7, -1, 0, 2]


def test_shards_are_one_model(tmp_path: Path) -> None:
    write_model(tmp_path / "m", {"config": {}})
    write_weights(tmp_path / "m", (TWO, {}), shards=2)
    found = read(tmp_path / "m")
    assert sorted(found.tensors) == ["a", "b"]
    assert found.nbytes == 44
    assert found.problems == ()


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "Git LFS pointer"),
        (b"", "is no safetensors file"),
        (b"\xff" * 64, "is no safetensors file"),
        (struct.pack("<Q", 8) + b"not json" + b"0" * 8, "header that cannot be read"),
        (struct.pack("<Q", 2) + b"[]", "header that cannot be read"),
    ],
)
def test_broken_files_are_told(tmp_path: Path, content: bytes, word: str) -> None:
    write_model(tmp_path / "m", {"config": {}})
    (tmp_path / "m" / "model.safetensors").write_bytes(content)
    problems = read(tmp_path / "m").problems
    assert len(problems) == 1
    assert word in problems[0]
    assert "model.safetensors" in problems[0]


def test_half_a_download_is_told_and_headers_alone_are_not(tmp_path: Path) -> None:
    path = tmp_path / "m" / "model.safetensors"
    write_model(tmp_path / "m", {"config": {}})
    write_file(path, TWO, {})
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert f"has {len(whole) - 1} bytes and its header tells of {len(whole)}" in read(tmp_path / "m").problems[0]
    path.write_bytes(whole[:-44])
    found = read(tmp_path / "m")
    assert found.problems == ()
    assert found.tensors["b"].read() is None


def test_an_index_that_lists_what_no_file_holds(tmp_path: Path) -> None:
    write_model(tmp_path / "m", {"config": {}})
    write_weights(tmp_path / "m", (TWO, {}), shards=2)
    index = tmp_path / "m" / "model.safetensors.index.json"
    listed = json.loads(index.read_text())
    listed["weight_map"]["c"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(listed))
    assert "lists c, which no file holds" in read(tmp_path / "m").problems[0]


def test_weights_in_other_formats_are_named(tmp_path: Path) -> None:
    write_model(tmp_path / "m", {"config": {}, "files": ["pytorch_model.bin", "medusa_lm_head.pt", "README.md"]})
    assert read(tmp_path / "m").others == ("medusa_lm_head.pt", "pytorch_model.bin")


def test_a_changed_folder_is_read_again(tmp_path: Path) -> None:
    write_model(tmp_path / "m", {"config": {"hidden_size": 8}})
    assert read(tmp_path / "m").config == {"hidden_size": 8}
    (tmp_path / "m" / "config.json").write_text(json.dumps({"hidden_size": 4096}))
    assert read(tmp_path / "m").config == {"hidden_size": 4096}


@pytest.mark.parametrize(("content", "word"), [("{", "is not JSON"), ("[]", "does not hold an object")])
def test_a_config_that_cannot_be_read(tmp_path: Path, content: str, word: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(UserError, match=word):
        read_checkpoint(str(tmp_path))


def test_the_hubs_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    repository = tmp_path / "hub" / "models--org--name"
    write_model(repository / "snapshots" / "aaa", {"config": {"hidden_size": 1}})
    assert hub_folder() == tmp_path / "hub"
    assert find_folder("org/name") == repository / "snapshots" / "aaa"  # the only one
    write_model(repository / "snapshots" / "bbb", {"config": {"hidden_size": 2}})
    assert find_folder("org/name") is None  # two, and nothing says which
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("bbb\n")
    found = read_checkpoint("org/name")
    assert found is not None
    assert found.config == {"hidden_size": 2}
    assert find_folder("org/name", "aaa") == repository / "snapshots" / "aaa"
    assert find_folder("org/name", "v2") is None
    assert read_checkpoint("org/other") is None
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "elsewhere"))
    assert find_folder("org/name") is None


def test_half_a_download_in_the_cache_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine goes on with it: nothing is known of the weights, and nothing is held against them."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--org--name" / "snapshots" / "aaa"
    snapshot.mkdir(parents=True)
    assert read_checkpoint("org/name") is None
    (snapshot / "config.json").write_text('{"hidden_size": 8}')
    write_weights(snapshot, (TWO, {}), shards=2, lost_shard=True)
    found = read_checkpoint("org/name")
    assert found is not None
    assert (found.config, found.tensors, found.problems) == ({"hidden_size": 8}, {}, ())
    assert read(snapshot).problems  # as a folder somebody names, it is broken


# --- tokens ---------------------------------------------------------------------------------------------------------


def test_tokens_of_three_formats(tmp_path: Path) -> None:
    """BPE maps token to id; Unigram lists [token, score] by id; vocab.json is the map alone."""
    formats: dict[str, tuple[str, dict[str, Any]]] = {
        "bpe": (
            "tokenizer.json",
            {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 2, "content": "<s>"}]},
        ),
        "unigram": ("tokenizer.json", {"model": {"vocab": [["a", 0.0], ["b", -1.5], ["<s>", 0.0]]}}),
        "plain": ("vocab.json", {"b": 1, "a": 0, "<s>": 2}),
    }
    for name, (file, content) in formats.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(json.dumps(content))
        tokens = read_tokens(tmp_path / name)
        assert tokens is not None
        assert tokens.by_id == {0: "a", 1: "b", 2: "<s>"}
        assert [i for i in tokens.by_id if tokens.is_special(i)] == [2]
    (tmp_path / "none").mkdir()
    assert read_tokens(tmp_path / "none") is None
    (tmp_path / "none" / "tokenizer.json").write_text("{}")
    assert read_tokens(tmp_path / "none") is None


def test_where_two_vocabularies_part(tmp_path: Path) -> None:
    for name, changed in (("a", {}), ("b", {7: "x", 9: "<|end|>"})):
        write_model(tmp_path / name, {"config": {}})
        (tmp_path / name / "tokenizer.json").write_text(json.dumps(tokenizer(10, changed)))
    ours, theirs = read_tokens(tmp_path / "a"), read_tokens(tmp_path / "b")
    assert ours is not None
    assert theirs is not None
    found = difference(ours, theirs)
    assert found.first == (7, "t7", "x")
    assert (found.ordinary, found.special) == (1, (9,))
    assert difference(ours, ours).none


# --- kinds, maps, targets -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "tensors", "kind"),
    [
        ({"architectures": ["LlamaForCausalLMEagle3"]}, (), "eagle3"),
        ({"architectures": ["Eagle3Qwen3ForCausalLM"]}, (), "eagle3"),
        ({"architectures": ["LlamaForCausalLM"]}, ("fc.weight", "midlayer.x"), "eagle3"),
        ({"architectures": ["LlamaForCausalLM"]}, ("fc.weight", "layers.0.x"), "eagle"),
        ({"architectures": ["LlamaForCausalLM"]}, (), "model"),
        ({"architectures": ["LlamaForCausalLMEagle"]}, (), "eagle"),
        ({"architectures": ["EagleDeepSeekMTPModel"]}, (), "eagle"),
        ({"architectures": ["Eagle2_5_VLForConditionalGeneration"]}, (), "model"),
        ({"speculators_model_type": "peagle"}, (), "eagle3"),
        ({"speculators_model_type": "dflash2"}, (), "dflash"),
        ({"architectures": ["DFlashDraftModel"]}, (), "dflash"),
        ({"architectures": ["Qwen3DSparkModel"]}, (), "dspark"),
        ({"medusa_num_heads": 3}, (), "medusa"),
        ({"model_type": "mlp_speculator"}, (), "mlp_speculator"),
        ({"n_predict": 3}, (), "mtp"),
        ({"draft_vocab_size": 8}, (), "eagle3"),
        ({"architectures": ["Qwen3VLForConditionalGeneration"]}, (), "model"),
        ({"hidden_size": 8}, (), None),
    ],
)
def test_kinds(config: dict[str, Any], tensors: tuple[str, ...], kind: str | None) -> None:
    assert kind_of(checkpoint(config, *tensors)) == kind


@pytest.mark.parametrize(
    ("asked", "config", "emitted"),
    [
        ("eagle", {"architectures": ["LlamaForCausalLMEagle3"]}, "eagle3"),
        ("draft_model", {"architectures": ["LlamaForCausalLMEagle3"]}, "eagle3"),
        ("eagle3", {"architectures": ["LlamaForCausalLM"]}, "eagle3"),  # by its config alone it may be a head
        ("medusa", {"architectures": ["LlamaForCausalLM"]}, "draft_model"),
        ("eagle3", {"hidden_size": 8}, "eagle3"),
        ("mtp", {"architectures": ["LlamaForCausalLMEagle3"]}, "mtp"),
        ("ngram", {"architectures": ["LlamaForCausalLMEagle3"]}, "ngram"),
        ("eagle3", {"model_type": "mlp_speculator"}, "eagle3"),
    ],
)
def test_the_method_that_is_emitted(asked: str, config: dict[str, Any], emitted: str) -> None:
    assert fitting_method(asked, checkpoint(config)) == emitted


def test_nothing_is_said_of_off(tmp_path: Path) -> None:
    """Requests that speculation would falsify are no matter without it."""
    folder = write_model(
        tmp_path / "Big-Instruct", {"config": {"architectures": ["LlamaForCausalLM"], "vision_config": {}}}
    )
    demand = Demand((0.0,), {"min_p": 0.1, "ignore_eos": True}, "completions", 9000, False, 500, 64, "regex")
    for name, version in (("vllm", "0.32.0"), ("sglang", "0.5.23")):
        engine = engine_for(Environment(name, name, version, None, None, "cpu"))
        assert check(engine, folder, OFF, LaunchOptions(128), demand) == ()


@pytest.mark.parametrize("junk", ["x", "", "[", '["x"]', '{"a": 1}', "0.9,0.5", "NaN", -1, 0.5, True], ids=repr)
def test_no_option_makes_preflight_raise(junk: Scalar) -> None:
    """Each of both engines' options, in the hands of every method: findings, a label, and a command or a refusal."""
    keys = {
        "vllm": {*vllm_versions.COMMON_KEYS, *(key for own in vllm_versions.METHOD_KEYS.values() for key in own)},
        "sglang": set(sglang_versions.OPTIONS),
    }
    demand = Demand((0.0, 1.0))
    for name, version in (("vllm", "0.32.0"), ("sglang", "0.5.23")):
        engine = engine_for(Environment(name, name, version, None, None, "gpu"))
        for key, method in itertools.product(sorted(keys[name]), ("ngram", "eagle3", "draft_model", "dspark")):
            draft = None if method == "ngram" else "org/draft"
            synthetic = (("rejection_sample_method", "synthetic"),) if key.startswith("synthetic") else ()
            spec = SpecConfig(method, n=3, draft=draft, options=((key, junk), *synthetic))
            found = check(engine, "org/target", spec, LaunchOptions(8), demand)
            assert spec.label
            with contextlib.suppress(UserError):
                engine.deploy_command("org/target", spec, LaunchOptions(8))
                continue
            assert any(finding.is_error for finding in found), (name, key, method)


@pytest.mark.parametrize("junk", ["x", 5, -1, [], ["x"], [None], {}, {"a": "b"}, None, True], ids=repr)
def test_no_entry_of_a_config_makes_preflight_raise(junk: object, tmp_path: Path) -> None:
    keys = (
        "architectures", "model_type", "hidden_size", "num_attention_heads", "vocab_size", "draft_vocab_size",
        "num_hidden_layers", "eagle_config", "dflash_config", "speculators_config", "text_config", "target_layer_ids",
        "eagle_aux_hidden_state_layer_ids", "num_aux_hidden_states", "target_hidden_size", "quantization_config",
        "max_position_embeddings", "rope_scaling", "num_nextn_predict_layers", "medusa_num_heads", "block_size",
    )  # fmt: skip
    target = write_model(tmp_path / "target", {"config": LLAMA_8B})
    whole = LLAMA_8B | {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 32000}
    for key in keys:
        draft = write_model(tmp_path / key, {"config": whole | {key: junk}})
        for name, version in (("vllm", "0.32.0"), ("sglang", "0.5.23")):
            engine = engine_for(Environment(name, name, version, None, None, "gpu"))
            for method in ("eagle3", "eagle", "draft_model", "mtp", "dflash", "medusa"):
                spec = SpecConfig(method, n=3, draft=draft)
                assert check(engine, target, spec, LaunchOptions(8), Demand((0.0, 1.0), prompt_tokens=100))
                assert fitting_method(method, read(Path(draft))) in METHODS


def test_mtp_layers_by_their_many_names() -> None:
    assert mtp_layers({"num_nextn_predict_layers": 1}) == 1
    assert mtp_layers({"text_config": {"mtp_num_hidden_layers": 2}}) == 2
    assert mtp_layers({"mtp_use_dedicated_embeddings": True, "num_nextn_predict_layers": 0}) is None
    assert mtp_layers({"mtp_loss_layers": 4, "n_predict": 3}) == 3


def test_targets_that_give_hidden_states() -> None:
    assert takes_eagle3("vllm", (0, 32, 0), "GptOssForCausalLM") is True
    assert takes_eagle3("vllm", (0, 33, 0), "GptOssForCausalLM") is True
    assert takes_eagle3("vllm", (0, 32, 0), "MixtralForCausalLM") is False
    assert takes_eagle3("vllm", (0, 33, 0), "MixtralForCausalLM") is None  # it may have come since
    assert takes_eagle3("vllm", (0, 32, 0), "MyOwnForCausalLM") is None  # Transformers' wrapper may serve it
    assert takes_eagle3("vllm", (0, 11, 0), "LlamaForCausalLM") is True
    assert takes_eagle3("sglang", (0, 5, 23), "Qwen3MoeForCausalLM") is True
    assert takes_eagle3("sglang", (0, 5, 23), "MyOwnForCausalLM") is False
    assert takes_eagle3("sglang", (0, 5, 18), "Qwen3MoeForCausalLM") is None


def test_map_values_name_the_first_fault() -> None:
    assert not list(map_values("h", [0, 1, 2], 6))  # ids 0, 2, 4
    [outside] = map_values("h", [0, 1, 4], 6)  # ids 0, 2, 6
    assert "draft token 2 to 6, outside the target's 6" in outside.message
    [twice] = map_values("h", [1, 0, 1], 6)  # ids 1, 1, 3
    assert twice.rule == "d2t.twice"
    assert "to 1" in twice.message


# --- sizes ----------------------------------------------------------------------------------------------------------


def test_kv_of_published_models() -> None:
    """Llama-3.1-8B: 2 x 32 layers x 8 heads x 128 x 2 B = 131,072 B. DeepSeek-V3: 61 x (512 + 64) x 2 B = 70,272 B."""
    assert kv_bytes_per_token(shape_of(LLAMA_8B)) == 131072
    assert kv_bytes_per_token(shape_of(DEEPSEEK_V3)) == 70272
    assert kv_bytes_per_token(shape_of({"num_hidden_layers": 2})) is None


def test_parameters_of_published_models() -> None:
    """Llama-3.1-8B has 8.03 B with its embedding of 128,256 x 4,096 = 0.525 B; norms are not counted."""
    count = parameters_by_config(shape_of(LLAMA_8B))
    assert count is not None
    assert count == pytest.approx(8.03e9 - 0.525e9, rel=1e-3)
    experts = LLAMA_8B | {"num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 14336}
    # Two experts for one MLP: one MLP more in each of the 32 layers.
    assert parameters_by_config(shape_of(experts)) == count + 32 * 3 * 4096 * 14336
    assert parameters_by_config(shape_of({"hidden_size": 8})) is None


def test_active_parameters_by_headers(tmp_path: Path) -> None:
    """8 x 4 through the output matrix and 4 through a norm; the embedding is looked up. Tied, it is multiplied too."""
    config = {"hidden_size": 4, "vocab_size": 8}
    shapes: Shapes = {
        "lm_head.weight": ("F32", [8, 4]),
        "norm.weight": ("F32", [4]),
        "embed_tokens.weight": ("F32", [8, 4]),
    }
    write_model(tmp_path / "m", {"config": config})
    write_file(tmp_path / "m" / "model.safetensors", shapes, {})
    assert active_parameters(read(tmp_path / "m")) == 36
    write_model(tmp_path / "t", {"config": config | {"tie_word_embeddings": True}})
    write_file(tmp_path / "t" / "model.safetensors", {k: v for k, v in shapes.items() if k != "lm_head.weight"}, {})
    assert active_parameters(read(tmp_path / "t")) == 36


def test_requests_that_fit_c23() -> None:
    """400,000 / 5,120 = 78.1; 300,000 / 5,120 = 58.6."""
    assert requests_that_fit(400_000, 4096, 1024) == 78
    assert requests_that_fit(300_000, 4096, 1024) == 58
    told = crowding(400_000, 300_000, 64, 4096, 1024)
    assert told is not None
    assert "78 requests fit the KV cache without speculation and 58 with it: 64 at once no longer fit" in told
    assert crowding(400_000, 300_000, 58, 4096, 1024) is None  # still fits
    assert crowding(400_000, 300_000, 79, 4096, 1024) is None  # never fitted


def test_capacity_with_a_draft() -> None:
    """1,000 tokens of 100 B, a draft of 10,000 B and 25 B a token: 90,000 / 125 = 720. Held 4 times: 60,000 / 200."""
    assert capacity_with_draft(1000, 100, 25, 10_000) == 720
    assert capacity_with_draft(1000, 100, 25, 10_000, copies=4) == 300
    assert capacity_with_draft(1000, 100, 25, 200_000) == 0
