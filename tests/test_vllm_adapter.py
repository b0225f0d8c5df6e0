"""The vLLM adapter without an engine: literal commands by method and version, refusals, events and logs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.engines.base import LaunchOptions
from tuner.engines.environments import Environment
from tuner.engines.vllm import VllmEngine, resolved_json
from tuner.engines.vllm_limits import token_count
from tuner.engines.vllm_log import read_facts, root_cause
from tuner.engines.vllm_versions import METHOD_SPANS, parse_version, speculative_args, speculative_json
from tuner.errors import UserError
from tuner.measure.records import SpecSteps
from tuner.spec.speculation import OFF, Scalar, SpecConfig, Tree

DATA = Path(__file__).parent / "data" / "vllm-0.32"
OPTIONS = LaunchOptions(max_running_requests=8, max_model_len=4096, args=("--dtype", "bfloat16"), seed=7)


def engine(version: str = "0.32.0", device: str = "gpu", python: str | None = "/env/bin/python") -> VllmEngine:
    url = None if python else "http://127.0.0.1:8000"
    return VllmEngine(Environment("vllm", "vllm", version, python, url, device))


def of(method: str, n: int, draft: str | None = None, **options: Scalar) -> SpecConfig:
    return SpecConfig(method, n=n, draft=draft, options=tuple(options.items()))


# Commands


def test_the_measured_command_of_off_and_of_an_arm_differ_in_speculation_alone() -> None:
    off = engine().launch("/m", OFF, OPTIONS, 8001, "key")
    assert off.argv == (
        "/env/bin/python", "-m", "vllm.entrypoints.openai.api_server", "--model", "/m", "--host", "127.0.0.1",
        "--port", "8001", "--served-model-name", "target", "--max-num-seqs", "8", "--seed", "7",
        "--max-model-len", "4096", "--no-enable-prefix-caching", "--dtype", "bfloat16",
    )  # fmt: skip
    arm = engine().launch("/m", of("eagle3", 3, "/d"), OPTIONS, 8001, "key")
    assert arm.argv == (
        *off.argv,
        "--speculative-config", '{"method": "eagle3", "model": "/d", "num_speculative_tokens": 3}',
        "--per-request-spec-decode-metrics", "detailed",
    )  # fmt: skip
    assert (off.url, off.served_name) == ("http://127.0.0.1:8001", "target")


def test_the_key_is_in_the_secret_environment_alone() -> None:
    launch = engine().launch("/m", OFF, OPTIONS, 8001, "the-key")
    assert launch.secret_env == (("VLLM_API_KEY", "the-key"),)
    assert "the-key" not in " ".join(launch.argv) + str(launch.env)


def test_tensor_parallel_prefix_caching_and_environment_are_handed_on() -> None:
    options = LaunchOptions(4, tensor_parallel=2, prefix_caching=True, env=(("VLLM_LOGGING_LEVEL", "DEBUG"),))
    launch = engine(device="cpu").launch("org/model", OFF, options, 1, "k")
    assert launch.argv[-3:] == ("--tensor-parallel-size", "2", "--enable-prefix-caching")
    # A hub id may have to be fetched, so the engine is not told to stay offline.
    assert dict(launch.env) == {
        "DO_NOT_TRACK": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_NO_USAGE_STATS": "1",
    }  # fmt: skip


def test_folders_are_served_without_a_look_at_the_hub(tmp_path: Path) -> None:
    draft = of("eagle3", 1, str(tmp_path))
    assert dict(engine().launch(str(tmp_path), draft, OPTIONS, 1, "k").env)["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in dict(engine().launch(str(tmp_path), of("eagle3", 1, "org/d"), OPTIONS, 1, "k").env)


@pytest.mark.parametrize(
    ("device", "ours", "theirs", "loaded"),
    [
        ("cpu", None, None, True),
        ("cuda", None, None, False),
        ("cpu", "/their.so", None, False),
        ("cpu", None, "", False),
    ],
)
def test_a_cpu_engine_loads_intels_openmp_first_unless_something_else_is_asked_for(
    device: str, ours: str | None, theirs: str | None, loaded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    if ours is not None:
        monkeypatch.setenv("LD_PRELOAD", ours)
    for folder in ("bin", "lib"):
        (tmp_path / folder).mkdir()
    library = tmp_path / "lib" / "libiomp5.so"
    library.touch()
    environment = Environment("e", "vllm", "0.32.0", str(tmp_path / "bin" / "python"), None, device)
    options = LaunchOptions(4, env=() if theirs is None else (("LD_PRELOAD", theirs),))
    for spec in (OFF, of("ngram", 4)):
        env = dict(VllmEngine(environment).launch("/m", spec, options, 1, "k").env)
        assert env.get("LD_PRELOAD", "") == (str(library) if loaded else "")
    library.unlink()
    assert "LD_PRELOAD" not in dict(VllmEngine(environment).launch("/m", OFF, LaunchOptions(4), 1, "k").env)


@pytest.mark.parametrize(
    ("spec", "config"),
    [
        (
            of("ngram", 4),
            {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 4},
        ),
        (of("suffix", 16), {"method": "suffix", "num_speculative_tokens": 16}),
        (of("eagle", 3, "/d"), {"method": "eagle", "model": "/d", "num_speculative_tokens": 3}),
        (of("eagle3", 3, "/d"), {"method": "eagle3", "model": "/d", "num_speculative_tokens": 3}),
        (of("medusa", 2, "/d"), {"method": "medusa", "model": "/d", "num_speculative_tokens": 2}),
        (of("mtp", 1), {"method": "mtp", "num_speculative_tokens": 1}),
        (of("mtp", 2, "/d"), {"method": "mtp", "model": "/d", "num_speculative_tokens": 2}),
        (of("draft_model", 4, "/d"), {"method": "draft_model", "model": "/d", "num_speculative_tokens": 4}),
        (of("dflash", 15, "/d"), {"method": "dflash", "model": "/d", "num_speculative_tokens": 15}),
        (of("dspark", 7, "/d"), {"method": "dspark", "model": "/d", "num_speculative_tokens": 7}),
    ],
    ids=lambda value: value.method if isinstance(value, SpecConfig) else "",
)
def test_speculative_config_by_method(spec: SpecConfig, config: dict[str, object]) -> None:
    assert speculative_json(spec) == config
    assert speculative_args(spec, (0, 32, 0)) == ("--speculative-config", json.dumps(config))
    assert resolved_json(spec, "0.32.0") == json.dumps(config)


@pytest.mark.parametrize(
    ("options", "bounds"),
    [
        ({}, (2, 4)),
        ({"prompt_lookup_max": 3}, (2, 3)),
        ({"prompt_lookup_max": 1}, (1, 1)),
        ({"prompt_lookup_min": 3}, (3, 4)),
        ({"prompt_lookup_min": 6}, (6, 6)),
        ({"prompt_lookup_min": 2, "prompt_lookup_max": 9}, (2, 9)),
    ],
)
def test_ngram_always_gives_both_bounds(options: dict[str, Scalar], bounds: tuple[int, int]) -> None:
    config = speculative_json(of("ngram", 2, **options))
    assert (config["prompt_lookup_min"], config["prompt_lookup_max"]) == bounds


@given(
    most=st.none() | st.integers(1, 64), least=st.none() | st.integers(1, 64), n=st.integers(1, 128)
)  # fmt: skip
def test_ngram_bounds_are_never_crossed_by_a_default(most: int | None, least: int | None, n: int) -> None:
    given_bounds = {"prompt_lookup_max": most, "prompt_lookup_min": least}
    config = speculative_json(of("ngram", n, **{key: value for key, value in given_bounds.items() if value}))
    if not (most and least):
        assert int(str(config["prompt_lookup_min"])) <= int(str(config["prompt_lookup_max"]))
    assert config["num_speculative_tokens"] == n


def test_lists_are_lists_in_the_json() -> None:
    rows = of("eagle3", 3, "/d", num_speculative_tokens_per_batch_size="[[1, 8, 3], [9, 64, 0]]", quantization="fp8")
    config = speculative_json(rows)
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 8, 3], [9, 64, 0]]
    assert config["quantization"] == "fp8"


def test_a_tree_that_looks_like_a_list_stays_the_text_it_is() -> None:
    """vLLM 0.9.2 to 0.20 take a string of tuples, which is no JSON."""
    spec = of("eagle", 2, "/d", speculative_token_tree="[(0,), (0, 0)]")
    engine("0.20.0").check_arguments("/m", spec, OPTIONS)
    assert speculative_args(spec, (0, 20, 0)) == (
        "--speculative-config",
        '{"method": "eagle", "model": "/d", "num_speculative_tokens": 2, "speculative_token_tree": "[(0,), (0, 0)]"}',
    )


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            of("eagle3", 2, "/d", rejection_sample_method="synthetic", synthetic_acceptance_rates="0.9,0.5"),
            "synthetic_acceptance_rates is '0.9,0.5', which is no list",
        ),
        (
            of("eagle3", 1, "/d", rejection_sample_method="synthetic", synthetic_acceptance_rates=0.9),
            "synthetic_acceptance_rates is 0.9, which is no list",
        ),
        (of("ngram", 2, prompt_lookup_max="x"), "prompt_lookup_max is 'x': give a whole number"),
        (of("ngram", 2, prompt_lookup_min=2.5), "prompt_lookup_min is 2.5: give a whole number"),
    ],
)
def test_what_cannot_be_written_down_is_refused_before_a_launch(spec: SpecConfig, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        engine().check_arguments("/m", spec, OPTIONS)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("16384", 16384), ("16k", 16000), ("16K", 16384), ("25.6k", 25600), ("2m", 2_000_000), ("1M", 1_048_576)],
)
def test_token_counts_as_vllm_reads_them(text: str, tokens: int) -> None:
    assert token_count(text) == tokens


@pytest.mark.parametrize("text", ["x", "", "2.5K", "16 k", "1e3", "k"])
def test_what_vllm_reads_as_no_count(text: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        token_count(text)


def test_deploy_command_has_no_harness_flags() -> None:
    argv = engine().deploy_command("/m", of("ngram", 2), OPTIONS)
    assert argv == (
        "vllm", "serve", "/m", "--max-num-seqs", "8", "--seed", "7", "--max-model-len", "4096", "--dtype", "bfloat16",
        "--speculative-config",
        '{"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 2, "prompt_lookup_max": 4}',
    )  # fmt: skip
    on_cpu = engine(device="cpu").deploy_command("/m", OFF, OPTIONS)
    assert on_cpu[:5] == ("python", "-m", "vllm.entrypoints.openai.api_server", "--model", "/m")


def test_an_address_cannot_be_launched() -> None:
    with pytest.raises(UserError, match="already serves"):
        engine(python=None).launch("/m", OFF, OPTIONS, 1, "k")


# Versions


def test_c13_the_same_drafts_in_three_versions() -> None:
    """Flags that changed: vllm-project/vllm issues 8439 (old style) and 16258 (`prompt_lookup_max` in 0.8.3)."""
    spec = of("ngram", 5, prompt_lookup_max=4)
    assert speculative_args(spec, parse_version("0.6.3")) == (
        "--speculative-model", "[ngram]", "--num-speculative-tokens", "5",
        "--ngram-prompt-lookup-max", "4", "--ngram-prompt-lookup-min", "2",
    )  # fmt: skip
    config = '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 4}'
    for version in ("0.8.3", "0.11.0"):
        assert speculative_args(spec, parse_version(version)) == ("--speculative-config", config)


def test_c13_an_unreadable_version_is_not_guessed() -> None:
    with pytest.raises(UserError, match="vLLM version 'nightly' is not readable, so its flags are unknown"):
        engine("nightly").check_arguments("/m", of("ngram", 5), OPTIONS)


@pytest.mark.parametrize(
    ("text", "version"),
    [("0.32.0", (0, 32, 0)), ("0.8.5.post1", (0, 8, 5)), ("v0.19", (0, 19, 0)), ("0.33.1rc2+cpu", (0, 33, 1))],
)
def test_versions_are_read(text: str, version: tuple[int, ...]) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize(("version", "told"), [("0.28.1", False), ("0.29.0", True), ("0.32.0", True)])
def test_per_request_acceptance_from_029(version: str, told: bool) -> None:
    argv = engine(version).launch("/m", of("ngram", 2), OPTIONS, 1, "k").argv
    assert ("--per-request-spec-decode-metrics" in argv) == told


@pytest.mark.parametrize(
    ("version", "wanted", "flag"),
    [
        ("0.6.3", False, None),  # off unless asked for, and no flag that says so
        ("0.6.3", True, "--enable-prefix-caching"),
        ("0.8.0", False, "--no-enable-prefix-caching"),  # the V1 engine has it on
        ("0.32.0", True, "--enable-prefix-caching"),
    ],
)
def test_prefix_caching_by_version(version: str, wanted: bool, flag: str | None) -> None:
    argv = engine(version).launch("/m", OFF, LaunchOptions(1, prefix_caching=wanted), 1, "k").argv
    assert [arg for arg in argv if "prefix" in arg] == ([flag] if flag else [])


@pytest.mark.parametrize(
    ("spec", "before", "first", "gone"),
    [
        (of("eagle", 1, "/d"), "0.6.6", "0.7.0", None),
        (of("eagle3", 1, "/d"), "0.8.4", "0.8.5", None),
        (of("mtp", 1), "0.10.2", "0.11.0", None),
        (of("draft_model", 1, "/d"), "0.14.1", "0.15.0", None),
        (of("suffix", 1), "0.11.0", "0.11.1", None),
        (of("dflash", 1, "/d"), "0.18.0", "0.19.0", None),
        (of("dspark", 1, "/d"), "0.24.0", "0.25.0", None),
        (of("medusa", 1, "/d"), "0.4.3", "0.5.0", "0.33.0"),
    ],
    ids=lambda value: value.method if isinstance(value, SpecConfig) else None,
)
def test_a_method_outside_its_versions_is_refused(spec: SpecConfig, before: str, first: str, gone: str | None) -> None:
    engine(first).check_arguments("/m", spec, OPTIONS)
    since = first.removesuffix(".0").replace(".", r"\.")
    for version in filter(None, (before, gone)):
        with pytest.raises(UserError, match=rf"vLLM {version} has no method '{spec.method}': it is in {since} "):
            engine(version).check_arguments("/m", spec, OPTIONS)


def test_every_method_has_its_versions() -> None:
    assert set(METHOD_SPANS) == {
        "ngram", "suffix", "draft_model", "eagle", "eagle3", "medusa", "mtp", "dflash", "dspark",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value", "without", "with_it"),
    [
        ("disable_by_batch_size", 8, "0.17.0", "0.16.0"),
        ("speculative_token_tree", "[(0,)]", "0.21.0", "0.20.0"),
        ("parallel_drafting", True, "0.15.0", "0.16.0"),
        ("synthetic_acceptance_length", 2.0, "0.19.0", "0.20.0"),
        ("draft_sample_method", "probabilistic", "0.20.0", "0.21.0"),
        ("attention_backend", "FLASH_ATTN", "0.21.0", "0.22.0"),
        ("num_speculative_tokens_per_batch_size", "[[1, 8, 3]]", "0.23.0", "0.24.0"),
        ("use_heterogeneous_vocab", True, "0.25.0", "0.26.0"),
        ("kv_cache_dtype", "fp8", "0.25.0", "0.26.0"),
        ("disable_eagle_block_drop", True, "0.29.0", "0.30.0"),
    ],
)
def test_a_key_outside_its_versions_is_refused(key: str, value: Scalar, without: str, with_it: str) -> None:
    """An unknown key of the speculative config is fatal in vLLM: it would cost a launch."""
    spec = of("eagle3", 3, "/d", **{key: value})
    engine(with_it).check_arguments("/m", spec, OPTIONS)
    with pytest.raises(UserError, match=rf"vLLM {without} has no speculative key '{key}': it is in "):
        engine(without).check_arguments("/m", spec, OPTIONS)


@pytest.mark.parametrize(
    ("method", "key", "value", "without", "with_it"),
    [
        ("dspark", "enable_adaptive_verification", True, "0.27.0", "0.28.0"),
        ("dspark", "dspark_draft_topk", 8, "0.27.0", "0.28.0"),
        ("mtp", "index_share_for_mtp_iteration", True, "0.28.0", "0.29.0"),
        ("suffix", "suffix_decoding_max_tree_depth", 12, None, "0.11.1"),
        ("ngram", "prompt_lookup_max", 3, None, "0.6.3"),
    ],
)
def test_a_methods_own_key_outside_its_versions_is_refused(
    method: str, key: str, value: Scalar, without: str | None, with_it: str
) -> None:
    spec = of(method, 3, "/d" if method == "dspark" else None, **{key: value})
    engine(with_it).check_arguments("/m", spec, OPTIONS)
    if without:
        with pytest.raises(UserError, match=rf"vLLM {without} has no speculative key '{key}': it is in "):
            engine(without).check_arguments("/m", spec, OPTIONS)


# Refusals before a launch


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (of("eagle3", 3, "/d", prompt_lookup_max=3), "no key 'prompt_lookup_max' for eagle3: use "),
        (of("eagle3", 3, "/d", num_tokens=3), "no key 'num_tokens'"),
        (of("eagle3", 3, "/d", tensor_parallel_size=2), "write draft_tensor_parallel_size"),
        (of("eagle3", 3, "/d", draft_tensor_parallel_size=2), "draft_tensor_parallel_size 2 does not go with"),
        (of("draft_model", 3, "/d", draft_tensor_parallel_size=2), "does not go with tensor_parallel 1: use 1$"),
        (of("eagle3", 129, "/d"), "at most 128 tokens per verify step, got n = 129"),
        (SpecConfig("eagle3", draft="/d", tree=Tree(3, 4, 8)), "vLLM drafts chains only"),
    ],
)
def test_what_vllm_would_refuse_is_refused_before(spec: SpecConfig, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        engine().check_arguments("/m", spec, OPTIONS)


@pytest.mark.parametrize(
    ("target", "spec", "word"),
    [
        ("/m", of("draft_model", 3, "/runs/Eagle-exp/draft"), "eagle-"),
        ("/m", of("draft_model", 3, "org/EAGLE3-llama"), "eagle3"),
        ("/m", of("medusa", 3, "/runs/dflash/heads"), "dflash"),
        ("/m", of("mtp", 1, "/runs/dspark/mtp"), "dspark"),
        ("/runs/eagle3/model", of("mtp", 1), "eagle3"),
    ],
)
def test_a_path_from_which_vllm_takes_another_method_is_refused(target: str, spec: SpecConfig, word: str) -> None:
    with pytest.raises(UserError, match=f"holds '{word}', from which vLLM takes another method than {spec.method}"):
        engine().check_arguments(target, spec, OPTIONS)


@pytest.mark.parametrize(
    ("target", "spec"),
    [
        ("/m", of("eagle", 3, "/runs/eagle3/head")),
        ("/m", of("eagle3", 3, "/runs/eagle-exp/head")),
        ("/m", of("dflash", 3, "/runs/eagle3/head")),
        ("/runs/eagle3/model", of("ngram", 3)),
        ("/runs/eagle3/model", of("draft_model", 3, "/d")),
    ],
)
def test_methods_that_hold_their_name_may_have_any_path(target: str, spec: SpecConfig) -> None:
    engine().check_arguments(target, spec, OPTIONS)


def test_a_folder_that_holds_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no config\.json: give the folder of a saved model"):
        engine().check_arguments("/m", of("eagle3", 3, str(tmp_path)), OPTIONS)
    (tmp_path / "config.json").write_text("{}")
    engine().check_arguments("/m", of("eagle3", 3, str(tmp_path)), OPTIONS)


@pytest.mark.parametrize(
    "args",
    [
        ("--port", "1"), ("--max-num-seqs=4",), ("--max_num_seqs", "4"), ("-sc", "{}"), ("-tp", "2"), ("--seed", "3"),
        ("--speculative-config.method", "ngram"), ("--spec-tokens", "3"), ("--disable-log-stats",),
        ("--no-enable-prefix-caching",), ("--config", "more.yaml"),
    ],
    ids=lambda args: args[0],
)  # fmt: skip
def test_flags_that_are_tuners_own_are_refused_in_every_spelling(args: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match=f"engine_options.args has {args[0].split('=')[0]}"):
        engine().check_arguments("/m", OFF, LaunchOptions(1, args=args))


def test_other_flags_pass_and_values_are_no_flags() -> None:
    args = ("--gpu-memory-utilization", "0.9", "--chat-template", "--port", "--model-impl=vllm")
    engine().check_arguments("/m", OFF, LaunchOptions(1, args=(*args[:3], "tmpl", args[4])))


@pytest.mark.parametrize("method", ["ngram", "suffix", "medusa"])
def test_async_scheduling_is_refused_where_vllm_cannot(method: str) -> None:
    options = LaunchOptions(1, args=("--async-scheduling",))
    with pytest.raises(UserError, match="remove --async-scheduling"):
        engine().check_arguments("/m", of(method, 2, "/d" if method == "medusa" else None), options)
    engine().check_arguments("/m", of("eagle3", 2, "/d"), options)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ("[[2, 8, 3]]", "starts at 2: start it at 1"),
        ("[[1, 8, 3], [8, 16, 1]]", "rows rise without overlap"),
        ("[[1, 8, 3], [20, 10, 1]]", "first <= last"),
        ("[[1, 8, -1]]", "N >= 0"),
        ("[[1, 8]]", "write rows"),
        ("[[1, 8, 1.5]]", "three whole numbers"),
        ("[]", "at least one row"),
        ("1, 8, 3", "write rows"),
    ],
)
def test_a_schedule_that_vllm_would_read_too_late_is_refused(rows: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        engine().check_arguments("/m", of("eagle3", 3, "/d", num_speculative_tokens_per_batch_size=rows), OPTIONS)


def test_a_schedule_with_a_gap_and_an_end_at_zero_is_good() -> None:
    rows = of("eagle3", 3, "/d", num_speculative_tokens_per_batch_size="[[1, 8, 3], [16, 64, 0]]")
    engine().check_arguments("/m", rows, OPTIONS)
    with pytest.raises(UserError, match="vLLM stops when a schedule changes N of suffix"):
        engine().check_arguments("/m", of("suffix", 3, num_speculative_tokens_per_batch_size="[[1, 8, 3]]"), OPTIONS)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (of("dspark", 7, "/d"), "vLLM on CPU has no dspark"),
        (of("eagle3", 3, "/d", rejection_sample_method="synthetic"), "dies at the first request"),
        (of("eagle3", 3, "/d", rejection_sample_method="block"), "samples as standard"),
    ],
)
def test_what_the_cpu_build_cannot_do_is_refused_on_cpu_alone(spec: SpecConfig, sentence: str) -> None:
    engine().check_arguments("/m", spec, OPTIONS)
    with pytest.raises(UserError, match=sentence):
        engine(device="cpu").check_arguments("/m", spec, OPTIONS)


# Events


def event(**told: object) -> dict[str, object]:
    return {"choices": [], "usage": {"completion_tokens": 9}, "metrics": {"speculative_decoding": told}}


def test_acceptance_of_a_request_is_read_from_its_last_event() -> None:
    told = event(
        mean_acceptance_length=2.0, draft_acceptance_rate=0.5, acceptance_histogram=[2, 1, 1], num_spec_steps=4,
        num_accepted_draft_tokens=3, num_draft_tokens=7, num_spec_tokens=2, per_step_accepted=[0, 2, 0, 1],
        per_step_drafted=[2, 2, 1, 2],
    )  # fmt: skip
    steps = engine().read_spec_steps([{"choices": []}, told, {"choices": []}], of("ngram", 2))
    assert steps == SpecSteps((2, 1, 1), drafted=7, accepted_by_step=(0, 2, 0, 1), drafted_by_step=(2, 2, 1, 2))


def test_a_summary_has_no_steps_and_an_older_engine_says_nothing() -> None:
    summary = event(acceptance_histogram=[0, 3], num_draft_tokens=3)
    assert engine().read_spec_steps([summary], of("ngram", 1)) == SpecSteps((0, 3), drafted=3)
    assert engine().read_spec_steps([{"choices": []}, {"metrics": None}], of("ngram", 1)) is None
    assert engine().read_spec_steps([], of("ngram", 1)) is None


# Logs


CORE = "(EngineCore pid=24870) "


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (
            "(APIServer pid=5) INFO 11-30 05:29:15 [model.py:733] Resolved architecture: LlamaForCausalLM\n"
            f"{CORE}ERROR 11-30 05:30:01 [core.py:1234] EngineCore failed to start.\n"
            f"{CORE}ERROR 11-30 05:30:01 [core.py:1234] Traceback (most recent call last):\n"
            f"{CORE}ERROR 11-30 05:30:01 [core.py:1234]   File \"/x/core.py\", line 9, in run\n"
            f"{CORE}ERROR 11-30 05:30:01 [core.py:1234] ValueError: the head has 576 rows, the target 2048\n"
            "(APIServer pid=5) RuntimeError: Engine core initialization failed. See root cause above.\n",
            "ValueError: the head has 576 rows, the target 2048",
        ),
        (
            "(VllmWorker-0 pid=7) ERROR 11-30 05:30:01 [multiproc_executor.py:10] torch.OutOfMemoryError: CUDA out of "
            "memory. Tried to allocate 2.00 GiB.\n",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        ),
        (
            "(APIServer pid=5) pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
            "(APIServer pid=5)   Value error, Model architectures ['NoSuchForCausalLM'] are not supported for now. "
            "Supported architectures: dict_keys(['AfmoeForCausalLM', 'ApertusForCausalLM']) [type=value_error]\n",
            "Model architectures ['NoSuchForCausalLM'] are not supported for now.",
        ),
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig\n"
            "disable_by_batch_size\n"
            "  Unexpected keyword argument [type=unexpected_keyword_argument, input_value=3, input_type=int]\n"
            "    For further information visit https://errors.pydantic.dev/2.14/v/unexpected_keyword_argument\n",
            "SpeculativeConfig: disable_by_batch_size: Unexpected keyword argument",
        ),
        (
            "(APIServer pid=5) pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig\n"
            "(APIServer pid=5)   Value error, Model Runner V1 does not support: dspark speculative decoding "
            "[type=value_error, input_value=ArgsKwargs((), {}), input_type=ArgsKwargs]\n",
            "VllmConfig: Model Runner V1 does not support: dspark speculative decoding",
        ),
        (
            "(Worker pid=9) WARNING 11-30 05:30:01 [importing.py:5] No module named 'triton'\n"
            '(Worker pid=9) ERROR 11-30 05:30:02 [w.py:9]     raise ValueError(f"There is no module or parameter named '
            '{name!r}")\n'
            "(Worker pid=9) ERROR 11-30 05:30:02 [w.py:9] ValueError: There is no module or parameter named "
            "'midlayer' in LlamaForCausalLM\n",
            "ValueError: There is no module or parameter named 'midlayer' in LlamaForCausalLM",
        ),
        (
            "usage: api_server.py [-h] [--headless]\n"
            "api_server.py: error: unrecognized arguments: --nonsense\n",
            "api_server.py: error: unrecognized arguments: --nonsense",
        ),
        (
            f"{CORE}ERROR 11-30 05:30:01 [core.py:9] safetensors_rust.SafetensorError: Error while deserializing "
            "header: incomplete metadata, file not fully covered\n"
            f"{CORE}ERROR 11-30 05:30:01 [core.py:9] EngineCore failed to start.\n",
            "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully "
            "covered",
        ),
        ("(APIServer pid=5) RuntimeError: Engine core initialization failed. See root cause above.\n", None),
        ("INFO:     Application startup complete.\n", None),
        ("", None),
    ],
    ids=[
        "in the child", "out of memory", "architecture", "a field", "a model of fields", "not a warning nor source",
        "arguments", "weights", "only an echo", "all is well", "nothing",
    ],
)  # fmt: skip
def test_root_cause_of_a_failed_start(log: str, cause: str | None) -> None:
    assert root_cause(log) == cause


def test_a_cause_is_never_longer_than_a_sentence_may_be() -> None:
    found = root_cause("ValueError: " + "x" * 5000)
    assert found is not None
    assert len(found) == 400


def test_facts_of_a_real_start() -> None:
    log = (DATA / "eagle3-start.log").read_text(encoding="utf-8")
    facts = read_facts(log)
    assert (facts.version, facts.kv_cache_tokens, facts.runner) == ("0.32.0", 22_528, "V1")
    assert dict(facts.resolved) == {
        "dtype": "torch.float32", "enforce_eager": "True", "max_seq_len": "2048", "quantization": "None", "seed": "0",
        "speculative_config": "SpeculativeConfig(method='eagle3', model='eagle3', num_spec_tokens=3)",
        "tensor_parallel_size": "1",
    }  # fmt: skip
    # 20 lines of level WARNING from three processes say 10 things; Python's own warnings are not the engine's.
    assert log.count(" WARNING ") == 20
    assert len(facts.warnings) == 10
    assert "min_p and logit_bias parameters won't work with speculative decoding." in facts.warnings
    assert not any("Deprecat" in text for text in facts.warnings)
    assert root_cause(log) is None


def test_an_empty_log_tells_nothing() -> None:
    facts = read_facts("")
    assert (facts.version, facts.kv_cache_tokens, facts.runner, facts.resolved, facts.warnings) == (
        None, None, None, (), (),
    )  # fmt: skip


def test_gpu_lines_are_read_too() -> None:
    facts = read_facts(
        "(EngineCore pid=1) INFO 01-01 00:00:00 [kv_cache_utils.py:9] GPU KV cache size: 1,234,560 tokens, Maximum "
        "concurrency for 8,192 tokens per request: 150.70x\n(Worker pid=2) INFO Using V2 Model Runner\n"
    )
    assert facts.kv_cache_tokens == 1_234_560
    assert facts.runner == "V2"
