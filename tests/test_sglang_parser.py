"""Every command the adapter can emit, resolved by SGLang's own parser in its environment: one process, no weights."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest
import real_sglang

from tuner.engines.base import LaunchOptions
from tuner.engines.sglang import SglangEngine
from tuner.engines.sglang_commands import adaptive_table, verified_nodes
from tuner.engines.sglang_limits import flag_value
from tuner.spec.speculation import OFF, SpecConfig, Tree

pytestmark = pytest.mark.real_sglang

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 4, "vocab_size": 512,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "hidden_act": "silu", "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}  # fmt: skip
#: What SGLang resolves each method to.
RESOLVED = {"eagle3": "EAGLE3", "eagle": "EAGLE", "mtp": "EAGLE", "draft_model": "STANDALONE", "ngram": "NGRAM"}
LIMITS = LaunchOptions(max_running_requests=6, max_model_len=1024, seed=3)


@dataclasses.dataclass(frozen=True)
class Models:
    """Folders with nothing but a config.json: all that SGLang reads before it loads weights."""

    target: str
    mtp_target: str
    small: str
    eagle3: str
    eagle: str
    table: str


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    root = tmp_path_factory.mktemp("models")

    def saved(name: str, **fields: Any) -> str:
        (root / name).mkdir()
        (root / name / "config.json").write_text(json.dumps(LLAMA | fields), encoding="utf-8")
        return str(root / name)

    table = root / "table.json"
    table.write_text(adaptive_table({1: 5, 8: 2, 32: 0}), encoding="utf-8")
    one_layer: dict[str, Any] = {"num_hidden_layers": 1, "draft_vocab_size": 128}
    return Models(
        target=saved("target"),
        mtp_target=saved("mtp", num_nextn_predict_layers=1),
        small=saved("small", num_hidden_layers=2),
        eagle3=saved("head", architectures=["LlamaForCausalLMEagle3"], **one_layer),
        eagle=saved("eagle", architectures=["LlamaForCausalLMEagle"], **one_layer),
        table=str(table),
    )


def configurations(m: Models) -> Iterator[tuple[str, SpecConfig, LaunchOptions]]:
    """(target, speculation, options): chains, trees and options of every method that runs on CPU."""
    yield m.target, OFF, LIMITS
    yield m.target, OFF, dataclasses.replace(LIMITS, prefix_caching=True)
    yield m.target, OFF, dataclasses.replace(LIMITS, max_model_len=None, args=("--dtype", "float32"))
    for method, draft in (("eagle3", m.eagle3), ("eagle", m.eagle), ("draft_model", m.small)):
        for n in (1, 2, 3, 5, 8):
            yield m.target, SpecConfig(method, n, draft), LIMITS
        for tree in (Tree(2, 2, 4), Tree(3, 4, 8), Tree(5, 4, 8), Tree(4, 8, 33)):
            yield m.target, SpecConfig(method, draft=draft, tree=tree), LIMITS
    for n in (1, 3, 7, 12, 20):
        yield m.target, SpecConfig("ngram", n), LIMITS
    for tree in (Tree(7, 4, 8), Tree(11, 10, 12), Tree(15, 2, 16)):
        yield m.target, SpecConfig("ngram", tree=tree), LIMITS
    for n in (1, 3):
        yield m.mtp_target, SpecConfig("mtp", n), LIMITS
    chain = SpecConfig("eagle3", 5, m.eagle3)
    for options in (
        (("adaptive_config", m.table),),
        (("accept_threshold_single", 0.9), ("accept_threshold_acc", 0.95)),
        (("draft_window_size", 512), ("attention_mode", "decode"), ("draft_model_quantization", "unquant")),
    ):
        yield m.target, dataclasses.replace(chain, options=options), LIMITS
    lookup = (("ngram_match_type", "PROB"), ("ngram_capacity", 100000), ("ngram_min_bfs_breadth", 1))
    yield m.target, SpecConfig("ngram", 7, options=lookup), LIMITS


Answer = tuple[SpecConfig, tuple[str, ...], dict[str, Any]]


@pytest.fixture(scope="module")
def answers(models: Models) -> dict[str, Answer]:
    """What SGLang made of every command, all in one process: importing it takes longer than resolving them."""
    engine, asked = SglangEngine(real_sglang.environment()), {}
    for number, (target, spec, options) in enumerate(configurations(models)):
        engine.preflight(target, spec, options)
        asked[f"command {number}"] = (spec, engine.launch(target, spec, options, 31000, "key-of-the-server").argv[2:])
    for spec in (SpecConfig("dflash", 15, models.small), SpecConfig("dspark", 7, models.small)):
        asked[spec.method] = (spec, engine.launch(models.target, spec, LIMITS, 31000, "k").argv[2:])
    plain = engine.launch(models.target, OFF, LIMITS, 31000, "k").argv[2:]
    asked["half"] = (OFF, (*plain, "--speculative-algorithm", "EAGLE3", "--speculative-eagle-topk", "4"))
    asked["unknown"] = (OFF, (*plain, "--speculative-algorithm", "LOOKAHEAD"))
    commands = {name: argv for name, (_, argv) in asked.items()}
    out = real_sglang.run_in_environment("sglang_resolver.py", stdin=json.dumps(commands))
    found = json.loads(out.rpartition("RESOLVED ")[2])
    return {name: (spec, argv, found[name]) for name, (spec, argv) in asked.items()}


@pytest.fixture
def resolved(answers: dict[str, Answer]) -> list[Answer]:
    return [answer for name, answer in answers.items() if name.startswith("command")]


def test_at_least_thirty_different_commands_are_accepted(resolved: list[Answer]) -> None:
    assert len({argv for _, argv, _ in resolved}) == len(resolved) >= 40
    errors = [(spec.label, answer["error"]) for spec, _, answer in resolved if "error" in answer]
    assert errors == []


def test_nothing_that_was_asked_for_is_rewritten(resolved: list[Answer]) -> None:
    """Steps, topk, nodes, limits and seed are run as given, whatever the arm."""
    for spec, argv, answer in resolved:
        got = answer["resolved"]
        assert got["speculative_algorithm"] == RESOLVED.get(spec.method), spec.label
        assert got["max_running_requests"] == 6
        assert got["random_seed"] == 3
        assert got["enable_metrics"] is True
        assert (got["device"], got["page_size"], got["tp_size"]) == ("cpu", 1, 1)
        assert got["disable_radix_cache"] is ("--disable-radix-cache" in argv)
        assert got["context_length"] == (1024 if "--context-length" in argv else None)
        assert got["api_key"] is None
        if spec.is_off:
            assert got["speculative_num_draft_tokens"] is None
            continue
        topk = spec.tree.topk if spec.tree else 1
        assert got["speculative_num_draft_tokens"] == verified_nodes(spec), spec.label
        assert got["speculative_eagle_topk"] == topk
        if spec.method != "ngram":
            assert got["speculative_num_steps"] == spec.depth
        assert got["speculative_draft_model_path"] == flag_value(argv, "--speculative-draft-model-path")


def test_options_reach_the_engine(resolved: list[Answer]) -> None:
    told = {key: answer["resolved"] for spec, _, answer in resolved for key, _ in spec.options}
    assert told["adaptive_config"]["speculative_adaptive"] is True
    assert told["accept_threshold_single"]["speculative_accept_threshold_single"] == 0.9
    assert told["draft_window_size"]["speculative_draft_window_size"] == 512
    assert told["ngram_match_type"]["speculative_ngram_match_type"] == "PROB"


def test_long_ngram_drafts_get_a_deeper_index(resolved: list[Answer]) -> None:
    depth = {spec.n: answer["resolved"]["speculative_ngram_max_trie_depth"]
             for spec, _, answer in resolved if spec.method == "ngram" and spec.n}  # fmt: skip
    assert (depth[12], depth[20]) == (18, 39)


def test_what_the_parser_knows_for_gpus_only(answers: dict[str, Answer]) -> None:
    """DFLASH and DSPARK parse; their rules want the device, and that is the only complaint."""
    dflash, dspark = answers["dflash"][2], answers["dspark"][2]
    assert dflash["parsed"]["speculative_dflash_block_size"] == 16
    assert dspark["parsed"]["speculative_dspark_block_size"] == 7
    assert "not supported by CpuSRTPlatform on device 'cpu'" in dflash["error"]
    assert "only supports CUDA" in dspark["error"]


def test_what_the_adapter_keeps_people_from(answers: dict[str, Answer]) -> None:
    """Field case C14: a half-set triple is a bare assertion in SGLang. Errors are seen where there are some."""
    assert answers["half"][2]["error"].startswith("AssertionError")
    assert "LOOKAHEAD" in answers["unknown"][2]["error"]
