"""The SGLang adapter: commands word for word, what a stream and a log of a real 0.5.23 say, and what is lossy."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.engines import engine_for
from tuner.engines.base import LaunchOptions
from tuner.engines.environments import CPU_KERNELS, Environment
from tuner.engines.sglang import START, SglangEngine
from tuner.engines.sglang_commands import adaptive_table, candidate_steps, speculative_args, verified_nodes
from tuner.errors import UserError
from tuner.measure.counters import counter_delta
from tuner.measure.records import SpecSteps
from tuner.spec.speculation import OFF, SpecConfig, Tree

DATA = Path(__file__).parent / "data" / "sglang-0.5.23"
GPU = Environment("s", "sglang", "0.5.23", "/env/bin/python", None, "gpu")
CPU = dataclasses.replace(GPU, device="cpu", corrections=(CPU_KERNELS,))
LIMITS = LaunchOptions(max_running_requests=16, max_model_len=4096)
CHAIN = SpecConfig("eagle3", 3, "/models/head")
TREE = SpecConfig("eagle3", draft="/models/head", tree=Tree(3, 4, 8))
NGRAM = SpecConfig("ngram", 7)


def at(version: str) -> SglangEngine:
    return SglangEngine(dataclasses.replace(GPU, version=version))


def text(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


def events(name: str) -> list[dict[str, Any]]:
    lines = text(name).splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


def info(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(text(name))
    return loaded


# --- commands -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (OFF, ""),
        (
            CHAIN,
            "--speculative-algorithm EAGLE3 --speculative-draft-model-path /models/head "
            "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4",
        ),
        (
            TREE,
            "--speculative-algorithm EAGLE3 --speculative-draft-model-path /models/head "
            "--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8",
        ),
        (
            SpecConfig("eagle", 2, "/models/head"),
            "--speculative-algorithm EAGLE --speculative-draft-model-path /models/head "
            "--speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3",
        ),
        (
            SpecConfig("mtp", 1),
            "--speculative-algorithm NEXTN --speculative-draft-model-path /models/target "
            "--speculative-num-steps 1 --speculative-eagle-topk 1 --speculative-num-draft-tokens 2",
        ),
        (
            SpecConfig("draft_model", 4, "/models/small"),
            "--speculative-algorithm STANDALONE --speculative-draft-model-path /models/small "
            "--speculative-num-steps 4 --speculative-eagle-topk 1 --speculative-num-draft-tokens 5",
        ),
        (
            NGRAM,
            "--speculative-algorithm NGRAM --speculative-num-draft-tokens 8 --speculative-ngram-max-bfs-breadth 1",
        ),
        (
            SpecConfig("ngram", tree=Tree(7, 4, 8)),
            "--speculative-algorithm NGRAM --speculative-num-draft-tokens 8 --speculative-ngram-max-bfs-breadth 4",
        ),
        # 21 nodes do not fit into SGLang's 18 levels: 21 + 18 leave as much to match as there is at 8.
        (
            SpecConfig("ngram", 20),
            "--speculative-algorithm NGRAM --speculative-num-draft-tokens 21 --speculative-ngram-max-bfs-breadth 1 "
            "--speculative-ngram-max-trie-depth 39",
        ),
        # A DFLASH block counts the root: 15 drafted tokens are a block of 16. DSpark's gamma does not.
        (
            SpecConfig("dflash", 15, "/models/head"),
            "--speculative-algorithm DFLASH --speculative-draft-model-path /models/head "
            "--speculative-dflash-block-size 16",
        ),
        (
            SpecConfig("dspark", 7, "/models/head"),
            "--speculative-algorithm DSPARK --speculative-draft-model-path /models/head "
            "--speculative-dspark-block-size 7",
        ),
        (
            SpecConfig(
                "eagle3",
                3,
                "/models/head",
                options=(("adaptive_config", "/t.json"), ("use_rejection_sampling", True), ("draft_window_size", 512)),
            ),
            "--speculative-algorithm EAGLE3 --speculative-draft-model-path /models/head "
            "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 "
            "--speculative-adaptive --speculative-adaptive-config /t.json --speculative-draft-window-size 512 "
            "--speculative-use-rejection-sampling",
        ),
        (
            SpecConfig("ngram", 7, options=(("ngram_match_type", "PROB"), ("accept_threshold_acc", 0.9))),
            "--speculative-algorithm NGRAM --speculative-num-draft-tokens 8 --speculative-ngram-max-bfs-breadth 1 "
            "--speculative-accept-threshold-acc 0.9 --speculative-ngram-match-type PROB",
        ),
    ],
)
def test_speculative_arguments(spec: SpecConfig, words: str) -> None:
    assert " ".join(speculative_args(spec, "/models/target")) == words


def test_switches_that_are_off_are_left_out() -> None:
    spec = SpecConfig("eagle3", 3, "/models/head", options=(("use_rejection_sampling", False),))
    assert speculative_args(spec, "t") == speculative_args(CHAIN, "t")


def test_measured_command_on_a_gpu() -> None:
    launch = SglangEngine(GPU).launch("/models/target", CHAIN, LIMITS, 31000, "key-of-the-server")
    assert launch.argv[:2] == ("/env/bin/python", str(START))
    assert " ".join(launch.argv[2:]) == (
        "--model-path /models/target --host 127.0.0.1 --port 31000 --served-model-name target "
        "--max-running-requests 16 --context-length 4096 --random-seed 0 --enable-metrics --log-level-http warning "
        "--disable-radix-cache --speculative-algorithm EAGLE3 --speculative-draft-model-path /models/head "
        "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
    )
    assert launch.secret_env == (("SGLANG_API_KEY", "key-of-the-server"),)
    assert "key-of-the-server" not in " ".join((*launch.argv, *map(str, launch.env)))
    assert launch.env == ()
    assert (launch.url, launch.served_name) == ("http://127.0.0.1:31000", "target")
    assert START.is_file()


def test_on_cpu_memory_is_bounded_and_the_cpu_path_is_taken() -> None:
    launch = SglangEngine(CPU).launch("/models/target", OFF, LIMITS, 31000, "k")
    # 16 requests of 4,096 tokens: 65,536.
    assert " ".join(launch.argv).count("--device cpu --max-total-tokens 65536 --disable-cuda-graph") == 1
    assert dict(launch.env) == {
        "SGLANG_CPU_OMP_THREADS_BIND": "0",
        "SGLANG_USE_CPU_ENGINE": "1",
        "TORCHDYNAMO_DISABLE": "1",
    }
    small = SglangEngine(CPU).launch("/models/target", OFF, LaunchOptions(max_running_requests=1), 31000, "k")
    assert "--max-total-tokens 8192" in " ".join(small.argv)
    own = LaunchOptions(max_running_requests=1, args=("--max-total-tokens", "4096"))
    assert " ".join(SglangEngine(CPU).launch("/m", OFF, own, 1, "k").argv).count("--max-total-tokens") == 1


def test_models_on_this_machine_are_not_looked_up_on_the_hub(tmp_path: Path) -> None:
    for local, expected in ((str(tmp_path), "1"), ("org/model", None)):
        launch = SglangEngine(GPU).launch(local, OFF, LIMITS, 1, "k")
        assert dict(launch.env).get("HF_HUB_OFFLINE") == expected


def test_options_of_the_workload_come_last_and_reach_the_engine() -> None:
    options = dataclasses.replace(
        LIMITS, args=("--dtype", "float32"), env=(("SGLANG_CPU_OMP_THREADS_BIND", "0,1"),), tensor_parallel=2,
        prefix_caching=True, seed=7,
    )  # fmt: skip
    launch = SglangEngine(CPU).launch("/models/target", CHAIN, options, 1, "k")
    words = " ".join(launch.argv)
    assert "--tp-size 2" in words
    assert "--random-seed 7" in words
    assert "--disable-radix-cache" not in words
    assert words.index("--dtype float32") < words.index("--speculative-algorithm")
    assert dict(launch.env)["SGLANG_CPU_OMP_THREADS_BIND"] == "0,1"


@pytest.mark.parametrize("spec", [OFF, CHAIN, TREE, NGRAM], ids=lambda spec: spec.label)
def test_every_arm_has_the_same_limits(spec: SpecConfig) -> None:
    """Field case C17: with speculation on and nothing said, SGLang admits 48 requests where it took thousands."""
    measured = SglangEngine(GPU).launch("/models/target", spec, LIMITS, 1, "k").argv
    deployed = SglangEngine(GPU).deploy_command("/models/target", spec, LIMITS)
    for argv in (measured, deployed):
        assert argv[argv.index("--max-running-requests") + 1] == "16"
        assert argv[argv.index("--context-length") + 1] == "4096"


def test_deployed_command_has_no_harness_flags() -> None:
    assert " ".join(SglangEngine(GPU).deploy_command("org/model", TREE, LIMITS)) == (
        "python -m sglang.launch_server --model-path org/model --max-running-requests 16 --context-length 4096 "
        "--speculative-algorithm EAGLE3 --speculative-draft-model-path /models/head "
        "--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8"
    )


def test_chains_of_equal_length_give_one_command() -> None:
    """Field case C14: at topk 1 SGLang rewrites the third knob to steps + 1, so 5, 8, 16 and 24 nodes are one cell."""
    specs = {SpecConfig("eagle3", draft="/h", tree=Tree(4, 1, nodes)) for nodes in (2, 3, 4, 5)}
    assert specs == {SpecConfig("eagle3", 4, "/h")}
    assert verified_nodes(next(iter(specs))) == 5


def test_an_address_is_not_launched() -> None:
    served = dataclasses.replace(GPU, python=None, url="http://127.0.0.1:30000", version="unknown")
    with pytest.raises(UserError, match="already serves"):
        SglangEngine(served).launch("t", OFF, LIMITS, 1, "k")
    assert SglangEngine(served).ready_path() == "/ready"


def test_the_registry_knows_sglang() -> None:
    assert isinstance(engine_for(GPU), SglangEngine)


# --- versions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "path", "told"),
    [
        ("0.5.12", "/health", False),
        ("0.5.18", "/health", False),
        ("0.5.19", "/health", True),
        ("0.5.20", "/ready", True),
        ("0.5.23.post1", "/ready", True),
        ("0.6.0", "/ready", True),
    ],
)
def test_endpoints_by_version(version: str, path: str, told: bool) -> None:
    """`return_spec_tokens_details` came with 0.5.19, GET /ready with 0.5.20 (read in the wheels)."""
    engine = at(version)
    assert engine.ready_path() == path
    assert engine.request_extras(CHAIN) == ({"return_spec_tokens_details": True} if told else {})
    env = dict(engine.launch("t", CHAIN, LIMITS, 1, "k").env)
    assert env.get("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION") == ("0" if path == "/health" else None)
    told_without = "tells no acceptance by request" in " ".join(engine.read_facts("").warnings)
    assert told_without is not told


def test_off_asks_for_no_details() -> None:
    assert at("0.5.23").request_extras(OFF) == {}
    assert at("0.5.23").info_path() == "/server_info"


# --- acceptance -----------------------------------------------------------------------------------------------------


def test_acceptance_of_a_chain() -> None:
    """0 to 3 drafted tokens accepted in 7, 12, 4 and 1 of 24 steps: 12 + 2*4 + 3*1 = 23 accepted of 24*3 = 72."""
    steps = SglangEngine(CPU).read_spec_steps(events("stream-chain.txt"), CHAIN)
    assert steps == SpecSteps(histogram=(7, 12, 4, 1), drafted=72, verify_steps=24)
    assert steps is not None
    assert steps.accepted == 23
    assert 1 + steps.accepted / steps.drafting_steps == pytest.approx(1.958333, abs=1e-6)


def test_acceptance_of_a_tree() -> None:
    """6, 7, 5, 3 of 21 steps: 7 + 10 + 9 = 26 accepted; 8 nodes are 7 drafted tokens a step, 147 in all."""
    steps = SglangEngine(CPU).read_spec_steps(events("stream-tree.txt"), TREE)
    assert steps == SpecSteps(histogram=(6, 7, 5, 3), drafted=147, verify_steps=21)
    assert steps is not None
    assert steps.accepted == 26


def test_acceptance_of_ngrams() -> None:
    """The histogram ends with the longest match, 3 of 7, and is padded; 287 "proposed" counts padding as drafts."""
    steps = SglangEngine(CPU).read_spec_steps(events("stream-ngram.txt"), NGRAM)
    assert steps == SpecSteps(histogram=(38, 1, 1, 1, 0, 0, 0, 0), drafted=None, verify_steps=41)


def test_no_details_are_no_acceptance() -> None:
    assert SglangEngine(CPU).read_spec_steps(events("stream-off.txt"), CHAIN) is None
    assert SglangEngine(CPU).read_spec_steps([], CHAIN) is None
    assert (
        SglangEngine(CPU).read_spec_steps([{"sglext": None}, {"sglext": {"spec_tokens_details": None}}], CHAIN) is None
    )


def test_older_names_are_read() -> None:
    """0.5.10 to 0.5.20 told some figures under other names."""
    told = {"spec_accept_histogram": [1, 2], "spec_proposed_drafts": 9, "spec_verify_ct": 3}
    steps = at("0.5.19").read_spec_steps([{"sglext": {"spec_tokens_details": told}}], CHAIN)
    assert steps == SpecSteps(histogram=(1, 2, 0, 0), drafted=9, verify_steps=3)


def test_a_moving_n_leaves_drafted_and_steps_unknown() -> None:
    """Under adaptive speculation SGLang multiplies the steps by the N it started with, and counts steps of N = 0."""
    spec = SpecConfig("eagle3", 3, "/h", options=(("adaptive_config", "/t.json"),))
    told = {"spec_correct_drafts_histogram": [1, 2], "spec_num_proposed_drafts": 9, "spec_verify_ct": 3}
    steps = at("0.5.23").read_spec_steps([{"sglext": {"spec_tokens_details": told}}], spec)
    assert steps == SpecSteps(histogram=(1, 2, 0, 0), drafted=None, verify_steps=None)


def test_logged_accept_rate_is_not_alpha() -> None:
    """Field case M05: accept lengths 2.17, 1.95, 1.57 at 3 steps mean .390, .317, .190 accepted of the drafted, where
    older SGLang logged .54, .49, .39 (length / nodes). What is read are counts, which give the first."""
    for length, logged, share in ((2.17, 0.54, 0.390), (1.95, 0.49, 0.317), (1.57, 0.39, 0.190)):
        assert length / 4 == pytest.approx(logged, abs=0.01)
        # 100 steps: (length - 1) * 100 accepted, one at a time.
        accepted = round((length - 1) * 100)
        histogram = [100 - accepted // 2 - accepted % 2, accepted % 2, accepted // 2]
        told = {"spec_correct_drafts_histogram": histogram, "spec_num_proposed_drafts": 300, "spec_verify_ct": 100,
                "spec_accept_rate": logged}  # fmt: skip
        steps = at("0.5.23").read_spec_steps([{"sglext": {"spec_tokens_details": told}}], CHAIN)
        assert steps is not None
        assert steps.drafted == 300
        assert steps.accepted / 300 == pytest.approx(share, abs=0.001)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=4))
def test_padding_changes_no_count(histogram: list[int]) -> None:
    told = {"spec_correct_drafts_histogram": histogram, "spec_verify_ct": sum(histogram)}
    steps = at("0.5.23").read_spec_steps([{"sglext": {"spec_tokens_details": told}}], CHAIN)
    assert steps is not None
    assert len(steps.histogram) == 4
    assert steps.drafting_steps == sum(histogram)
    assert steps.accepted == sum(j * count for j, count in enumerate(histogram))
    assert steps.drafted is None


# --- facts ----------------------------------------------------------------------------------------------------------


def test_facts_from_the_log_alone() -> None:
    facts = SglangEngine(CPU).read_facts(text("log-tree.txt"))
    assert facts.version == "0.5.23"
    assert facts.kv_cache_tokens == 8192
    assert facts.runner == "CPU kernels in plain PyTorch"
    resolved = dict(facts.resolved)
    assert resolved["speculative_algorithm"] == "EAGLE3"
    assert (resolved["speculative_num_steps"], resolved["speculative_eagle_topk"]) == ("3", "4")
    assert (resolved["speculative_num_draft_tokens"], resolved["max_running_requests"]) == ("8", "4")
    assert (resolved["attention_backend"], resolved["page_size"], resolved["device"]) == ("intel_amx", "1", "cpu")
    assert "quantization" not in resolved
    assert len(facts.warnings) == 1
    assert "overlap" in facts.warnings[0]


def test_facts_from_the_log_equal_those_from_the_server() -> None:
    engine, log = SglangEngine(CPU), text("log-tree.txt")
    assert engine.read_facts(log, info("server_info-tree.json")) == engine.read_facts(log)


def test_facts_without_speculation() -> None:
    facts = SglangEngine(CPU).read_facts(text("log-off.txt"))
    assert "speculative_algorithm" not in dict(facts.resolved)
    assert facts.warnings == ()
    assert facts.kv_cache_tokens == 8192


def test_rewritten_values_are_told() -> None:
    """Steps 3, topk 1 and 6 nodes were asked for; SGLang runs 4 nodes."""
    facts = SglangEngine(CPU).read_facts(text("log-rewritten.txt"), info("server_info-rewritten.json"))
    assert "SGLang was asked for --speculative-num-draft-tokens 6 and runs with 4" in facts.warnings
    assert dict(facts.resolved)["speculative_num_draft_tokens"] == "4"


def test_admission_below_what_was_asked_is_told() -> None:
    """Field case C17: memory, or SGLang's own 48, can admit fewer requests than were asked for."""
    log = (
        'tuner: SGLang 0.5.23 is asked for ["--max-running-requests", "128", "--speculative-algorithm", "EAGLE3"]\n'
        "[2026-01-01 00:00:00] server_args={'max_running_requests': 128, 'speculative_algorithm': 'EAGLE3'}\n"
        "[2026-01-01 00:00:09] max_total_num_tokens=9000, chunked_prefill_size=4096, max_running_requests=48, "
        "context_len=2048\n"
    )
    facts = SglangEngine(GPU).read_facts(log)
    assert facts.warnings == ("SGLang was asked for --max-running-requests 128 and runs with 48",)
    assert dict(facts.resolved)["max_running_requests"] == "48"


def test_an_address_that_caps_itself_is_told() -> None:
    log = "Max running requests is reset to 48 for speculative decoding. You can override this by explicitly setting"
    (warning,) = SglangEngine(GPU).read_facts(log).warnings
    assert warning.startswith("SGLang admits 48 requests at once")


def test_facts_of_a_served_address_come_from_the_server_alone() -> None:
    facts = SglangEngine(GPU).read_facts("", info("server_info-rewritten.json"))
    assert (facts.version, facts.kv_cache_tokens, facts.runner) == ("0.5.23", 8192, None)
    assert "SGLang was asked for --speculative-num-draft-tokens 6 and runs with 4" in facts.warnings


def test_nextn_is_another_name_for_eagle_and_no_rewriting() -> None:
    log = (
        'tuner: SGLang 0.5.23 is asked for ["--speculative-algorithm", "NEXTN"]\n'
        "server_args={'speculative_algorithm': 'EAGLE'}\n"
    )
    assert SglangEngine(GPU).read_facts(log).warnings == ()


def test_arguments_as_older_versions_print_them() -> None:
    log = "server_args=ServerArgs(model_path='m', dtype='auto', max_running_requests=48, page_size=1)"
    resolved = dict(at("0.5.19").read_facts(log).resolved)
    assert resolved == {"dtype": "auto", "max_running_requests": "48", "page_size": "1"}


def test_facts_hold_no_key() -> None:
    log = "server_args={'api_key': 'key-of-the-server', 'dtype': 'auto'}"
    facts = SglangEngine(GPU).read_facts(log, {"api_key": "key-of-the-server", "dtype": "auto"})
    assert "key-of-the-server" not in repr(facts)


# --- why a start failed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("fail-flag.txt", "error: unrecognized arguments: --no-such-flag"),
        ("fail-no-weights.txt", "RuntimeError: Cannot find any model weights with `/models/noweights`"),
        ("fail-architecture.txt", "ValueError: Cannot find model module. 'NoSuchModel' is not a registered model"),
        ("fail-port.txt", "address already in use"),
        ("fail-no-message.txt", "NotImplementedError in init_cuda_graph_state, base_attn_backend.py line 258"),
        ("fail-memory.txt", "ValueError: Loaded weights leave no GPU memory for the KV cache"),
    ],
)
def test_root_cause_of_real_failures(name: str, cause: str) -> None:
    told = SglangEngine(CPU).root_cause(text(name))
    assert told is not None
    assert cause in told
    assert "\n" not in told
    assert not told.startswith("[")


def test_the_childs_exception_is_the_cause_and_not_its_echo() -> None:
    log = (
        "[2026-01-01 00:00:00] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "scheduler.py", line 1, in run\n'
        "    raise RuntimeError('shapes')\n"
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (1x64 and 96x32)\n\n"
        "[2026-01-01 00:00:01] Received sigquit from a child process. It usually means the child failed.\n"
        "RuntimeError: Rank 0 scheduler died during initialization (exit code: -3).\n"
    )
    assert SglangEngine(GPU).root_cause(log) == (
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (1x64 and 96x32)"
    )


def test_a_crash_under_load_names_its_cause() -> None:
    """Field case S13: the engine dies after it has served; the figures before stay, and the log says why."""
    log = text("log-tree.txt") + (
        "[2026-01-01 00:10:00] Decode batch, #running-req: 12, #token: 9000, gen throughput (token/s): 90.1\n"
        "[2026-01-01 00:10:01] Scheduler hit an exception: Traceback (most recent call last):\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
        "[2026-01-01 00:10:02] SIGQUIT received. signum=None, frame=None. It usually means one child failed.\n"
    )
    assert (
        SglangEngine(GPU).root_cause(log) == "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    )


@pytest.mark.parametrize("name", ["log-off.txt", "log-tree.txt", "log-ngram.txt", "log-rewritten.txt"])
def test_a_sound_log_names_no_cause(name: str) -> None:
    assert SglangEngine(CPU).root_cause(text(name)) is None


# --- schedules ------------------------------------------------------------------------------------------------------


def test_table_of_n_by_batch_size() -> None:
    table = adaptive_table({32: 0, 1: 5, 8: 2})
    assert json.loads(table) == {
        "1": {"candidate_steps": [5]},
        "8": {"candidate_steps": [2]},
        "32": {"candidate_steps": [0]},
    }
    assert list(json.loads(table)) == ["1", "8", "32"]
    assert candidate_steps(table) == (0, 2, 5)


@pytest.mark.parametrize("n_by_batch", [{}, {0: 3}, {1: -1}, {1: 0, 8: 0}])
def test_impossible_tables(n_by_batch: dict[int, int]) -> None:
    with pytest.raises(UserError):
        adaptive_table(n_by_batch)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"1": [3]}', '{"1": {"candidate_steps": []}}', '{"1": {"candidate_steps": [-1]}}']
)
def test_unreadable_tables(text: str) -> None:
    with pytest.raises(UserError, match="candidate steps"):
        candidate_steps(text)


@given(st.dictionaries(st.integers(1, 256), st.integers(0, 16), min_size=1).filter(lambda t: any(t.values())))
def test_a_table_holds_the_n_it_was_made_of(n_by_batch: dict[int, int]) -> None:
    table = adaptive_table(n_by_batch)
    assert candidate_steps(table) == tuple(sorted(set(n_by_batch.values())))
    assert {int(key): row["candidate_steps"] for key, row in json.loads(table).items()} == {
        size: [n] for size, n in n_by_batch.items()
    }


# --- lossy arms -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "spec", "temperature", "sampling", "env", "word"),
    [
        ("cpu", CHAIN, 0.8, {}, (), "argmax"),
        ("cpu", NGRAM, 1.0, {}, (), "argmax"),
        ("xpu", TREE, 0.8, {}, (), "argmax"),
        ("rocm", CHAIN, 0.8, {}, (), "argmax"),
        ("gpu", SpecConfig("eagle3", 3, "/h", options=(("accept_threshold_single", 0.5),)), 0.8, {}, (), "threshold"),
        ("gpu", SpecConfig("eagle3", 3, "/h", options=(("accept_threshold_acc", 0.5),)), 0.8, {}, (), "threshold"),
        ("gpu", CHAIN, 0.8, {"min_p": 0.1}, (), "min_p"),
        ("gpu", CHAIN, 0.8, {"presence_penalty": 0.5}, (), "presence"),
        ("gpu", CHAIN, 0.0, {"frequency_penalty": 0.5}, (), "frequency"),
        ("gpu", CHAIN, 0.0, {"repetition_penalty": 1.1}, (), "repetition"),
        ("gpu", CHAIN, 0.0, {}, (("SGLANG_SIMULATE_ACC_LEN", "2.5"),), "junk"),
        ("gpu", NGRAM, 0.5, {}, (("SGLANG_NGRAM_FORCE_GREEDY_VERIFY", "true"),), "argmax"),
    ],
)
def test_lossy_arms_are_named(
    device: str, spec: SpecConfig, temperature: float, sampling: dict[str, float], env: Any, word: str
) -> None:
    engine = SglangEngine(dataclasses.replace(GPU, device=device))
    told = engine.lossy(spec, dataclasses.replace(LIMITS, env=env), temperature, sampling)
    assert told is not None
    assert word in told


@pytest.mark.parametrize(
    ("device", "spec", "temperature", "sampling"),
    [
        ("cpu", OFF, 1.0, {"min_p": 0.1, "repetition_penalty": 1.2}),
        ("cpu", CHAIN, 0.0, {}),
        ("cpu", CHAIN, 0.0, {"min_p": 0.1}),
        ("gpu", TREE, 1.0, {"top_p": 0.9, "presence_penalty": 0, "repetition_penalty": 1.0, "min_p": None}),
        ("gpu", SpecConfig("eagle3", 3, "/h", options=(("accept_threshold_acc", 0.5),)), 0.0, {}),
        ("rocm", SpecConfig("eagle3", 3, "/h", options=(("use_rejection_sampling", True),)), 0.8, {}),
        # SGLang turns rejection sampling on by itself for EAGLE chains on ROCm.
        ("rocm", SpecConfig("eagle", 3, "/h"), 0.8, {}),
    ],
)
def test_lossless_arms_are_not_accused(
    device: str, spec: SpecConfig, temperature: float, sampling: dict[str, Any]
) -> None:
    engine = SglangEngine(dataclasses.replace(GPU, device=device))
    assert engine.lossy(spec, LIMITS, temperature, sampling) is None


# --- counters -------------------------------------------------------------------------------------------------------


def test_the_servers_counters_are_a_cross_check() -> None:
    """Since the start: 8 + 112 tokens of 1 + 4 requests in 52 verify steps. One token each is prefill's: 115 / 52."""
    delta = counter_delta("", text("metrics-tree.txt"))
    assert delta.drafts == 52
    assert delta.tau_only == pytest.approx(2.211538, abs=1e-6)


def test_counters_without_speculation_say_so() -> None:
    delta = counter_delta("", text("metrics-off.txt"))
    assert (delta.counts, delta.tau_only) == (None, None)
    assert len(delta.reasons) == 1
