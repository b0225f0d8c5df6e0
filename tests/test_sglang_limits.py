"""What the SGLang adapter refuses before a launch, and what it lets through. Field cases C01, C14, C17 and C18."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tuner.engines import sglang
from tuner.engines.base import LaunchOptions
from tuner.engines.environments import CPU_KERNELS, Environment
from tuner.engines.sglang import SglangEngine
from tuner.engines.sglang_commands import adaptive_table
from tuner.engines.sglang_cpu.packages import cpu_machine
from tuner.errors import UserError
from tuner.spec.speculation import OFF, SpecConfig, Tree

GPU = Environment("s", "sglang", "0.5.23", "/env/bin/python", None, "gpu")
CPU = dataclasses.replace(GPU, device="cpu", corrections=(CPU_KERNELS,))
CHAIN = SpecConfig("eagle3", 3, "org/head")
TREE = SpecConfig("eagle3", draft="org/head", tree=Tree(3, 4, 8))


def options(*args: str, **fields: Any) -> LaunchOptions:
    return LaunchOptions(max_running_requests=8, args=args, **fields)


def check(spec: SpecConfig, *args: str, env: Environment = GPU, target: str = "org/model", **fields: Any) -> None:
    SglangEngine(env).preflight(target, spec, options(*args, **fields))


def refused(spec: SpecConfig, *args: str, env: Environment = GPU, target: str = "org/model", **fields: Any) -> str:
    with pytest.raises(UserError) as caught:
        check(spec, *args, env=env, target=target, **fields)
    return str(caught.value)


def model(folder: Path, architecture: str | None = "LlamaForCausalLM", **fields: Any) -> str:
    folder.mkdir()
    config = {"architectures": [architecture], "vocab_size": 49152, "num_attention_heads": 9} | fields
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize("spec", [OFF, CHAIN, TREE, SpecConfig("ngram", 7), SpecConfig("draft_model", 3, "org/small")])
def test_ordinary_configurations_pass(spec: SpecConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang.shutil, "which", lambda name: f"/usr/bin/{name}")
    check(spec, "--mem-fraction-static", "0.8", "--attention-backend=fa3", tensor_parallel=2)


# --- methods and versions -------------------------------------------------------------------------------------------


def test_medusa_and_suffix_are_vllms() -> None:
    told = refused(SpecConfig("medusa", 3, "org/medusa"))
    assert "SGLang has no medusa" in told
    assert "vLLM (0.32 or earlier)" in told
    told = refused(SpecConfig("suffix", 16))
    assert "SGLang has no suffix: measure it with vLLM, or use one of eagle3, eagle" in told


@pytest.mark.parametrize(
    ("version", "spec", "word"),
    [
        ("0.5.11", OFF, "older than tuner knows"),
        ("0.4.6", CHAIN, "0.5.12 or later"),
        ("0.5.17", SpecConfig("dspark", 7, "org/d"), "no DSPARK"),
        ("0.5.14", SpecConfig("eagle3", 3, "h", options=(("use_rejection_sampling", True),)), "not one that"),
        ("0.5.22", SpecConfig("eagle3", 3, "h", options=(("use_block_verification", True),)), "not one that"),
        ("main", CHAIN, "not readable"),
    ],
)
def test_versions_that_lack_it(version: str, spec: SpecConfig, word: str) -> None:
    assert word in refused(spec, env=dataclasses.replace(GPU, version=version))


def test_mistyped_option_names_the_nearest() -> None:
    told = refused(SpecConfig("eagle3", 3, "h", options=(("accept_treshold_single", 1.0),)))
    assert "did you mean accept_threshold_single?" in told


def test_option_of_another_method() -> None:
    assert "ngram_match_type" in refused(SpecConfig("eagle3", 3, "h", options=(("ngram_match_type", "BFS"),)))
    assert "token_map" in refused(SpecConfig("eagle3", 3, "h", options=(("token_map", "/m.pt"),)))


def test_ngram_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang.shutil, "which", lambda _name: None)
    assert "install g++" in refused(SpecConfig("ngram", 7))


# --- arguments passed through ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [
        ("--speculative-num-steps", "3"),
        ("--speculative-eagle-topk=4",),
        ("--spec-trace-dir", "/t"),
        ("--enable-multi-layer-eagle",),
        ("--max-running-requests", "64"),
        ("--api-key", "k"),
        ("--tp", "2"),
        ("--model-path=x",),
        ("--config", "c.yaml"),
    ],
)
def test_arguments_that_would_change_an_arm(args: tuple[str, ...]) -> None:
    told = refused(OFF, *args)
    assert f"engine_options.args has {args[0].split('=')[0]}" in told


def test_values_that_look_like_nothing_of_ours_pass() -> None:
    check(OFF, "--dtype", "float32", "--served", "--chat-template=/x/--api-key")


# --- trees ----------------------------------------------------------------------------------------------------------


def test_a_tree_that_cannot_be_filled_names_the_formula() -> None:
    """Depth 3, topk 2: 1 + 2 + 2*4 = 11 nodes at most; SGLang itself fails at the first decode."""
    with pytest.raises(UserError, match=r"nodes - 1 <= topk \+ \(depth - 1\) \* topk\^2 allows at most 11"):
        SpecConfig("eagle3", draft="h", tree=Tree(3, 2, 16))


@pytest.mark.parametrize(
    ("args", "passes"),
    [
        ((), True),
        (("--page-size", "64", "--attention-backend", "trtllm_mla"), False),
        (("--page-size", "64", "--attention-backend", "flashinfer"), True),
        (("--page-size", "64", "--attention-backend", "fa3"), True),
        (("--page-size", "64", "--attention-backend", "flashmla"), False),
        (("--attention-backend", "trtllm_mla"), False),
        (("--attention-backend=trtllm_mha",), False),
        (("--decode-attention-backend", "trtllm_mha"), False),
        (("--page-size", "16", "--attention-backend", "aiter"), False),
        (("--page-size=1", "--attention-backend", "aiter"), True),
        (("--page-size", "64", "--page-size", "1", "--attention-backend", "aiter"), True),
    ],
)
def test_trees_by_backend_and_page_size(args: tuple[str, ...], passes: bool) -> None:
    """Field case C18."""
    if passes:
        check(TREE, *args)
    else:
        told = refused(TREE, *args)
        assert "topk 4 needs pages of one token, or attention backend flashinfer or fa3 or triton" in told
    check(CHAIN, *args)


def test_draft_attention_backend_counts() -> None:
    spec = SpecConfig("eagle3", draft="h", tree=Tree(3, 4, 8), options=(("draft_attention_backend", "trtllm_mha"),))
    assert "trtllm_mha works in pages of many tokens" in refused(spec)


def test_ngram_trees_in_pages_need_flashinfer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang.shutil, "which", lambda name: name)
    tree = SpecConfig("ngram", tree=Tree(7, 4, 8))
    assert "attention backend flashinfer, but" in refused(tree, "--page-size", "16", "--attention-backend", "fa3")
    check(tree, "--page-size", "16", "--attention-backend", "flashinfer")


def test_ngram_trees_have_no_limit_of_depth() -> None:
    assert "so give depth 7, not 3" in refused(SpecConfig("ngram", tree=Tree(3, 4, 8)))


def test_block_drafters_have_no_tree() -> None:
    assert "no tree" in refused(SpecConfig("dflash", draft="d", tree=Tree(3, 4, 8)))


def test_trees_on_cpu_in_pages() -> None:
    assert "intel_amx" in refused(TREE, "--page-size", "16", env=CPU)


# --- parallelism ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [("--enable-dp-attention",), ("--attn-dp-size", "2"), ("--attn-dp-size=4",)])
def test_attention_data_parallelism(args: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang.shutil, "which", lambda name: name)
    for spec in (SpecConfig("ngram", 7), SpecConfig("draft_model", 3, "org/small")):
        assert "attention data parallelism" in refused(spec, *args)
    check(CHAIN, *args)
    check(OFF, *args)


def test_pipelines() -> None:
    pp, on = ("--pp-size", "2"), (("SGLANG_ENABLE_PP_SPEC", "1"),)
    assert "does not speculate over 2 pipeline stages with eagle3" in refused(CHAIN, *pp)
    check(OFF, *pp)
    eagle = SpecConfig("eagle", 3, "org/head")
    refused(eagle, *pp)
    with pytest.raises(UserError):
        SglangEngine(GPU).preflight("org/model", CHAIN, LaunchOptions(8, args=pp, env=on))
    SglangEngine(GPU).preflight("org/model", eagle, LaunchOptions(8, args=pp, env=on))


def test_heads_that_tensor_parallel_does_not_divide(tmp_path: Path) -> None:
    target = model(tmp_path / "target", num_attention_heads=32)
    head = model(tmp_path / "head", "LlamaForCausalLMEagle3", num_attention_heads=9, draft_vocab_size=None)
    spec = SpecConfig("eagle3", 3, head)
    assert "head has 9 attention heads, which tensor_parallel 2" in refused(spec, target=target, tensor_parallel=2)
    check(spec, target=target, tensor_parallel=1)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--attn-dp-size", "x"), "--attn-dp-size in engine_options.args is 'x': give a whole number"),
        (("--pp-size=two",), "--pp-size or --pipeline-parallel-size in engine_options.args is 'two'"),
        (("--page-size", "16k"), "--page-size in engine_options.args is '16k'"),
    ],
)
def test_an_argument_that_is_no_number(args: tuple[str, ...], sentence: str) -> None:
    assert sentence in refused(TREE, *args)


def test_thresholds_and_a_simulated_length_that_are_no_numbers() -> None:
    loose = SpecConfig("eagle3", 3, "org/head", options=(("accept_threshold_acc", "half"),))
    assert refused(loose) == "accept_threshold_acc is 'half': give a number from 0 to 1"
    simulated = (("SGLANG_SIMULATE_ACC_LEN", "long"),)
    with pytest.raises(UserError, match=r"SGLANG_SIMULATE_ACC_LEN in engine_options\.env is 'long': give a number"):
        SglangEngine(GPU).preflight("org/model", CHAIN, LaunchOptions(8, env=simulated))


# --- drafts ---------------------------------------------------------------------------------------------------------


def test_eagle_with_an_eagle3_head(tmp_path: Path) -> None:
    """Field case C01: SGLang runs this without an error, at an accept length of exactly 1.00."""
    head = model(tmp_path / "head", "LlamaForCausalLMEagle3", draft_vocab_size=None)
    told = refused(SpecConfig("eagle", 3, head))
    assert "is a LlamaForCausalLMEagle3, an EAGLE-3 head" in told
    assert "use method eagle3" in told
    assert "use method eagle3" in refused(SpecConfig("mtp", 1, head))
    check(SpecConfig("eagle3", 3, head))


@pytest.mark.parametrize(
    ("method", "architecture", "word"),
    [
        ("eagle3", "Eagle3LlamaForCausalLM", "write that name into architectures"),
        ("eagle3", "LlamaForCausalLM", "loads LlamaForCausalLMEagle3 or Eagle3DeepseekV2ForCausalLM only"),
        ("eagle3", None, "only"),
        ("eagle", "LlamaForCausalLM", "use method draft_model"),
        ("draft_model", "LlamaForCausalLMEagle3", "use method eagle3"),
        ("draft_model", "LlamaForCausalLMEagle", "use method eagle"),
    ],
)
def test_wrong_architectures(tmp_path: Path, method: str, architecture: str | None, word: str) -> None:
    assert word in refused(SpecConfig(method, 3, model(tmp_path / "d", architecture)))


@pytest.mark.parametrize(
    ("method", "architecture", "fields"),
    [
        ("eagle3", "Eagle3DeepseekV2ForCausalLM", {}),
        ("eagle", "LlamaForCausalLMEagle", {}),
        ("eagle", "DeepseekV3ForCausalLMNextN", {}),
        ("eagle", "DeepseekV3ForCausalLM", {"num_nextn_predict_layers": 1}),
        ("draft_model", "LlamaForCausalLM", {}),
        ("mtp", "Qwen3NextForCausalLM", {}),
    ],
)
def test_right_architectures(tmp_path: Path, method: str, architecture: str, fields: dict[str, Any]) -> None:
    check(SpecConfig(method, 3, model(tmp_path / "d", architecture, **fields)))


def test_speculators_format_is_vllms(tmp_path: Path) -> None:
    head = model(tmp_path / "head", "Eagle3Speculator", speculators_model_type="eagle3")
    assert "speculators format, which SGLang cannot load: serve it with vLLM" in refused(SpecConfig("eagle3", 3, head))


def test_vocabularies_must_be_one(tmp_path: Path) -> None:
    target = model(tmp_path / "target")
    small = model(tmp_path / "small", vocab_size=32000)
    told = refused(SpecConfig("draft_model", 3, small), target=target)
    assert "has a vocabulary of 32000 and the target one of 49152" in told


def test_mtp_needs_layers_in_the_target(tmp_path: Path) -> None:
    plain = model(tmp_path / "plain")
    assert "tells of no MTP layers" in refused(SpecConfig("mtp", 1), target=plain)
    for key in ("num_nextn_predict_layers", "mtp_num_hidden_layers"):
        check(SpecConfig("mtp", 1), target=model(tmp_path / key, **{key: 1}))
    check(SpecConfig("mtp", 1), target=model(tmp_path / "text", text_config={"mtp_num_hidden_layers": 1}))
    check(SpecConfig("mtp", 1), target="org/deepseek")


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_drafts_without_a_config(tmp_path: Path, content: str | None) -> None:
    (tmp_path / "d").mkdir()
    if content is not None:
        (tmp_path / "d" / "config.json").write_text(content, encoding="utf-8")
    assert "config.json" in refused(SpecConfig("eagle3", 3, str(tmp_path / "d")))


def test_rejection_sampling(tmp_path: Path) -> None:
    exact = (("use_rejection_sampling", True),)
    target = model(tmp_path / "target")
    reduced = model(tmp_path / "reduced", "LlamaForCausalLMEagle3", draft_vocab_size=8192)
    whole = model(tmp_path / "whole", "LlamaForCausalLMEagle3", draft_vocab_size=49152)
    told = refused(SpecConfig("eagle3", 3, reduced, options=exact), target=target)
    assert "whole vocabulary (49152)" in told
    assert "drafts 8192 tokens" in told
    check(SpecConfig("eagle3", 3, whole, options=exact), target=target)
    assert "needs topk 1" in refused(SpecConfig("eagle3", draft=whole, tree=Tree(3, 4, 8), options=exact))
    loose = (*exact, ("accept_threshold_acc", 0.9))
    assert "takes no thresholds" in refused(SpecConfig("eagle3", 3, whole, options=loose))


# --- adaptive speculation -------------------------------------------------------------------------------------------


def adaptive(path: Path, n: int = 5, **fields: Any) -> SpecConfig:
    return SpecConfig("eagle3", n, "org/head", options=(("adaptive_config", str(path)),), **fields)


def test_adaptive_tables(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    assert "cannot read adaptive_config" in refused(adaptive(path))
    path.write_text(adaptive_table({1: 5, 8: 2, 32: 0}), encoding="utf-8")
    check(adaptive(path))
    assert "goes up to N = 5, but this configuration has n = 4" in refused(adaptive(path, n=4))
    assert "attention data parallelism" in refused(adaptive(path), "--enable-dp-attention")
    assert "adaptive_config" in refused(adaptive(path), env=dataclasses.replace(GPU, version="0.5.14"))
    tree = SpecConfig("eagle3", draft="h", tree=Tree(5, 2, 8), options=(("adaptive_config", str(path)),))
    assert "off for trees" in refused(tree)
    path.write_text("{}", encoding="utf-8")
    assert "candidate steps" in refused(adaptive(path))
    path.write_bytes(b"\xff\xfe{}")
    assert f"cannot read adaptive_config {path} (it is no text in UTF-8)" in refused(adaptive(path))


def test_only_eagle_adapts(tmp_path: Path) -> None:
    told = refused(SpecConfig("draft_model", 5, "org/s", options=(("adaptive_config", str(tmp_path)),)))
    assert "adaptive_config is not one that method draft_model takes" in told


# --- CPU ------------------------------------------------------------------------------------------------------------


def test_block_drafters_need_a_gpu() -> None:
    for method in ("dflash", "dspark"):
        assert "on GPUs only" in refused(SpecConfig(method, 7, "org/d"), env=CPU)


def test_cpu_kernels_are_refused_on_a_machine_with_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device = tmp_path / "nvidiactl"
    monkeypatch.setattr(cpu_machine, "GPU_DEVICES", (str(device),))
    check(OFF, env=CPU)
    cpu_machine.refuse_gpu()
    device.touch()
    assert "tuner engine add sglang`" in refused(OFF, env=CPU)
    with pytest.raises(RuntimeError, match="machines without a GPU"):
        cpu_machine.refuse_gpu()
    # An environment with SGLang's own CPU kernels is the user's business.
    check(OFF, env=dataclasses.replace(CPU, corrections=()))


@pytest.mark.parametrize("method", ["eagle3", "eagle", "mtp", "draft_model"])
def test_drafts_that_need_cpu_kernels_are_refused_where_there_are_none(method: str, tmp_path: Path) -> None:
    python = tmp_path / "own" / "bin" / "python"
    bare = dataclasses.replace(CPU, python=str(python), corrections=())
    spec = SpecConfig(method, 3, "org/draft")
    told = refused(spec, env=bare)
    assert told.startswith(f"engine 's' has no CPU kernels for the drafts of {method}")
    assert "`tuner engine add sglang-cpu`" in told
    check(spec, env=CPU)
    check(spec, env=GPU)
    # An address that already serves, and kernels that SGLang's own build put there.
    check(spec, env=dataclasses.replace(bare, python=None, url="http://127.0.0.1:30000"))
    packages = tmp_path / "own" / "lib" / "python3.12" / "site-packages"
    (packages / "sglang_kernel_cpu-0.4.5.dist-info").mkdir(parents=True)
    check(spec, env=bare)


def test_cpu_kernels_have_no_tensor_parallelism() -> None:
    assert "set tensor_parallel to 1" in refused(OFF, env=CPU, tensor_parallel=2)
