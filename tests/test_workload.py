"""`workload.yaml`: what it means, and that every mistake is one sentence with file, line, key and remedy."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tuner.errors import UserError
from tuner.spec.draft import Method
from tuner.spec.json_schema import schema_of, workload_schema_text
from tuner.spec.load import load_workload, parse_workload, resolve_path
from tuner.spec.speculation import METHODS
from tuner.spec.workload import Draft, Sampling, Slo, Traffic, TreeAxes, Workload

ROOT = Path(__file__).resolve().parents[1]
LEAST = "name: x\nmodel: m\nengine: e\ntraffic: {concurrency: [1]}\n"
SCHEMA = schema_of(Workload)


def refusals(text: str, tmp_path: Path) -> list[str]:
    """The problems of a file `w.yaml`, each without the folder."""
    with pytest.raises(UserError) as caught:
        parse_workload(text, tmp_path / "w.yaml")
    lines = str(caught.value).replace(f"{tmp_path}/", "").split("\n  ")
    return lines if len(lines) == 1 else lines[1:]


def refusal(text: str, tmp_path: Path) -> str:
    (only,) = refusals(text, tmp_path)
    return only


# What a file means


def test_every_key_arrives(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"turns": ["Hello?"]}\n')
    (tmp_path / "w.yaml").write_text(
        """
name: all-keys
description: everything
model: org/target
engine: [vllm, sglang]
drafts:
  - {method: ngram, n: 3}
  - method: eagle3
    model: org/head
    n: [1, 2]
    tree: {depth: [3], topk: [2], nodes: [8]}
    options: {draft_tensor_parallel_size: 1, quantization: fp8, ratio: 0.5, flag: true}
traffic:
  concurrency: [1, 8]
  rates: [0.5, 2]
  prompts: [{set: chat, share: 3}, {set: mine.jsonl}]
  max_output_tokens: 64
  endpoint: chat
  chat_template_kwargs: {enable_thinking: false}
sampling: {temperatures: [0, 0.7], top_p: 0.9, top_k: -1, stop: ["###"]}
slo: {ttft_p95_ms: 300, tpot_p95_ms: 30.5}
objective: goodput
budget: {launches: 5, minutes: 12.5}
measure: {requests: 10, waves: 2, warmup_requests: 4, request_timeout_s: 60}
engine_options:
  args: [--dtype, bfloat16]
  env: {NCCL_DEBUG: WARN}
  max_running_requests: 16
  max_model_len: 2048
  tensor_parallel: 2
  prefix_caching: true
  port: 8123
  ready_timeout_s: 30
seed: 7
"""
    )
    workload = load_workload(tmp_path / "w.yaml")

    assert workload.engines == ("vllm", "sglang")
    assert workload.drafts == [
        Draft(method="ngram", n=3),
        Draft(
            method="eagle3",
            model="org/head",
            n=[1, 2],
            tree=TreeAxes(depth=[3], topk=[2], nodes=[8]),
            options={"draft_tensor_parallel_size": 1, "quantization": "fp8", "ratio": 0.5, "flag": True},
        ),
    ]
    assert workload.traffic.rates == [0.5, 2.0]
    assert [(p.set, p.share) for p in workload.traffic.prompts] == [("chat", 3.0), ("mine.jsonl", 1.0)]
    assert workload.sampling.body(0.7) == {"temperature": 0.7, "top_p": 0.9, "top_k": -1, "stop": ["###"]}
    assert workload.slo.limits() == {"ttft_p95_ms": 300.0, "tpot_p95_ms": 30.5}
    assert (workload.budget.launches, workload.budget.minutes) == (5, 12.5)
    assert workload.engine_options.env == {"NCCL_DEBUG": "WARN"}
    assert (workload.running_limit, workload.seed) == (16, 7)


def test_what_is_left_out(tmp_path: Path) -> None:
    workload = parse_workload(LEAST, tmp_path / "w.yaml")

    assert workload.drafts == "auto"
    assert workload.engines == ("e",)
    assert workload.traffic.prompts[0].set == "chat"
    assert workload.sampling.body(0.0) == {"temperature": 0.0}
    assert workload.slo.limits() == {}
    assert workload.engine_options.port is None


@pytest.mark.parametrize(
    ("traffic", "explicit", "limit"),
    [
        (Traffic(concurrency=[4, 32]), None, 32),
        (Traffic(rates=[1.0]), None, 64),
        (Traffic(concurrency=[128], rates=[1.0]), None, 128),
        (Traffic(concurrency=[8]), 4, 4),
    ],
)
def test_the_running_limit(traffic: Traffic, explicit: int | None, limit: int) -> None:
    options = {"max_running_requests": explicit}
    workload = Workload.model_validate(
        {"name": "x", "model": "m", "engine": "e", "traffic": traffic, "engine_options": options}
    )
    assert workload.running_limit == limit


def test_ignore_eos_is_sent_only_when_asked_for() -> None:
    assert "ignore_eos" not in Sampling().body(1.0)
    assert Sampling(ignore_eos=True).body(1.0) == {"temperature": 1.0, "ignore_eos": True}


def test_a_workload_does_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Slo().ttft_p50_ms = 3.0  # type: ignore[misc]


def test_the_methods_are_those_that_can_be_launched() -> None:
    assert Method.__args__ == METHODS[1:]  # type: ignore[attr-defined]


# Mistakes in keys and values


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        # keys
        ("trafic: 1", "w.yaml:5: trafic is not a key: did you mean traffic?"),
        ("slos: {}", "w.yaml:5: slos is not a key: did you mean slo?"),
        ("concurrency: [1]", "w.yaml:5: concurrency is not a key: did you mean traffic.concurrency?"),
        ("sampling: {temperature: 0}", "w.yaml:5: sampling.temperature is not a key: did you mean temperatures?"),
        ("slo: {ttft_p95: 3}", "w.yaml:5: slo.ttft_p95 is not a key: did you mean ttft_p95_ms (milliseconds)?"),
        ("budget: {minute: 3}", "w.yaml:5: budget.minute is not a key: did you mean minutes?"),
        ("budget: {xyz: 3}", "w.yaml:5: budget.xyz is not a key: use launches, minutes"),
        (
            "sampling: {max_tokens: 3}",
            "w.yaml:5: sampling.max_tokens is not a key: did you mean traffic.max_output_tokens?",
        ),
        (
            "drafts: [{method: ngram, num_speculative_tokens: 3}]",
            "w.yaml:5: drafts[0].num_speculative_tokens is not a key: did you mean n?",
        ),
        (
            "engine_options: {tensor_parallel_size: 8}",
            "w.yaml:5: engine_options.tensor_parallel_size is not a key: did you mean tensor_parallel?",
        ),
        # words
        (
            "objective: tpot",
            "w.yaml:5: objective must be one of tpot_p50, throughput, goodput, not the text 'tpot': "
            "did you mean tpot_p50?",
        ),
        (
            "drafts: [{method: eagel3, model: a/b}]",
            "w.yaml:5: drafts[0].method must be one of ngram, suffix, draft_model, eagle, eagle3, medusa, mtp, dflash, "
            "dspark, not the text 'eagel3': did you mean eagle3?",
        ),
        ("drafts: [{n: 3}]", "w.yaml:5: drafts[0].method is missing: add it (one of ngram, suffix, draft_model, eagle, "
         "eagle3, medusa, mtp, dflash, dspark)"),
        # `off`, `no` and `yes` are text, as YAML 1.2 has it, and true and false are what is meant
        ("drafts: [{method: off}]", "w.yaml:5: drafts[0].method: off is always measured, first and last: "
         "remove this draft"),
        (
            "engine_options: {prefix_caching: off}",
            "w.yaml:5: engine_options.prefix_caching must be true or false, not the text 'off': write false",
        ),
        ("seed: yes", "w.yaml:5: seed must be a whole number, not the text 'yes'"),
        # numbers
        (
            "traffic2: 0\nseed: '3'",
            "w.yaml:6: seed must be a whole number, not the text '3': write 3 without quotes",
        ),
        ("seed: 1.5", "w.yaml:5: seed must be a whole number, not 1.5"),
        ("seed: true", "w.yaml:5: seed must be a whole number, not true"),
        ("seed:", "w.yaml:5: seed must be a whole number, not an empty value"),
        ("drafts: [{method: ngram, n: [1, 0]}]", "w.yaml:5: drafts[0].n[1] must be a whole number above 0, not 0"),
        (
            "drafts: [{method: ngram, n: four}]",
            "w.yaml:5: drafts[0].n must be a whole number above 0 or a list of one or more whole numbers above 0, "
            "not the text 'four'",
        ),
        ("sampling: {temperatures: [0, 3]}", "w.yaml:5: sampling.temperatures[1] must be a number from 0 to 2, not 3"),
        ("sampling: {top_p: 0}", "w.yaml:5: sampling.top_p must be a number above 0, at most 1, not 0"),
        ("sampling: {top_k: -2}", "w.yaml:5: sampling.top_k must be a whole number of at least -1, not -2"),
        ("budget: {minutes: .inf}", "w.yaml:5: budget.minutes must be a number of minutes above 0, not inf"),
        ("budget: {launches: 08}", "w.yaml:5: budget.launches must be a whole number above 0, not the text '08': "
         "write the bare number, such as 300"),
        (
            "budget: {minutes: 1_000}",
            "w.yaml:5: budget.minutes must be a number of minutes above 0, not the text '1_000': "
            "write the bare number, such as 300",
        ),
        (
            "slo: {tpot_p95_ms: 30ms}",
            "w.yaml:5: slo.tpot_p95_ms must be a number of milliseconds above 0, not the text '30ms': "
            "write the bare number, such as 300",
        ),
        (
            "measure: {request_timeout_s: 5 min}",
            "w.yaml:5: measure.request_timeout_s must be a number of seconds above 0, not the text '5 min': "
            "write the bare number, such as 300",
        ),
        # lists and mappings
        (
            "sampling: {temperatures: 0.7}",
            "w.yaml:5: sampling.temperatures must be a list of one or more numbers from 0 to 2, not 0.7: write [0.7]",
        ),
        (
            "drafts: all",
            "w.yaml:5: drafts must be auto or a list of one or more mappings with the keys method, model, n, tree, "
            "options, not the text 'all'",
        ),
        (
            "drafts: {method: ngram}",
            "w.yaml:5: drafts must be auto or a list of one or more mappings with the keys method, model, n, tree, "
            "options, not a mapping: begin each item with a dash",
        ),
        (
            "budget:",
            "w.yaml:5: budget must be a mapping with the keys launches, minutes, not an empty value",
        ),
        ("sampling: {stop: [1e3]}", 'w.yaml:5: sampling.stop[0] must be text, not 1000.0: write "1e3", in quotes'),
        (
            "engine_options: {args: [--max-num-batched-tokens, 4096]}",
            'w.yaml:5: engine_options.args[1] must be text, not 4096: write "4096", in quotes',
        ),
        (
            "drafts: [{method: ngram, options: {a: [1]}}]",
            "w.yaml:5: drafts[0].options.a must be text, a number or true or false, not a list",
        ),
        # keys that do not go together
        (
            "drafts: [{method: eagle3, n: 3}]",
            "w.yaml:5: drafts[0].model: method eagle3 needs it: give the folder or hub id of its weights",
        ),
        (
            "drafts: [{method: ngram, model: a/b}]",
            "w.yaml:5: drafts[0].model: method ngram drafts from the text alone: remove model",
        ),
        (
            "drafts: [{method: medusa, model: a/b, tree: {depth: [1], topk: [1], nodes: [2]}}]",
            "w.yaml:5: drafts[0].tree: method medusa drafts no tree (draft_model, eagle, eagle3, mtp do): "
            "remove tree and give n",
        ),
        (
            "drafts: [{method: ngram, options: {num_speculative_tokens: 3}}]",
            "w.yaml:5: drafts[0].options: num_speculative_tokens is set by the draft's own key n: move it there",
        ),
        (
            "objective: goodput",
            "w.yaml:5: objective: goodput counts requests that meet the slo: give at least one slo",
        ),
        (
            "engine_options: {max_model_len: 256}",
            "w.yaml:5: engine_options: max_model_len 256 leaves no room for a prompt beside traffic.max_output_tokens "
            "256: raise the one or lower the other",
        ),
        ("sampling: {temperatures: [1, 0, 1]}", "w.yaml:5: sampling.temperatures: 1.0 stands there twice: remove one"),
        (
            "engine_options: {env: {HF_TOKEN: x}}",
            "w.yaml:5: engine_options.env: HF_TOKEN looks like a secret, and a workload is stored with its reports: "
            "export it in the shell, from which the engine inherits it",
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(line: str, sentence: str, tmp_path: Path) -> None:
    if line.startswith("traffic2"):
        assert refusals(LEAST + line + "\n", tmp_path)[-1] == sentence
    else:
        assert refusal(LEAST + line + "\n", tmp_path) == sentence


@pytest.mark.parametrize(
    ("traffic", "sentence"),
    [
        ("{}", "w.yaml:1: traffic: give concurrency (requests in flight) or rates (requests per second), or both"),
        (
            "{concurrency: 4}",
            "w.yaml:1: traffic.concurrency must be a list of whole numbers above 0, not 4: write [4]",
        ),
        ("{concurency: [4]}", "w.yaml:1: traffic.concurency is not a key: did you mean concurrency?"),
        ("{qps: [4]}", "w.yaml:1: traffic.qps is not a key: did you mean rates (requests per second)?"),
        ("{concurrency: [4, 8, 4]}", "w.yaml:1: traffic.concurrency: 4 stands there twice: remove one"),
        (
            "{rates: [0]}",
            "w.yaml:1: traffic.rates[0] must be a number of requests per second above 0, not 0",
        ),
        (
            "{concurrency: [1], prompts: [{set: chat}, {set: chat}]}",
            "w.yaml:1: traffic.prompts: chat stands there twice: remove one",
        ),
        (
            "{concurrency: [1], endpoint: completions, chat_template_kwargs: {enable_thinking: false}}",
            "w.yaml:1: traffic.chat_template_kwargs: endpoint completions applies no chat template: remove them, or "
            "use chat",
        ),
        (
            "{concurrency: [1], prompts: [{set: caht}]}",
            "w.yaml:1: traffic.prompts[0].set: there is no prompt set 'caht' (did you mean 'chat'?); the sets are "
            "chat, chinese, code, creative, json, long_form, maths, multilingual, persian, rewrite, and a file of your "
            "own is given by its path",
        ),
    ],
)
def test_a_mistake_in_the_traffic(traffic: str, sentence: str, tmp_path: Path) -> None:
    assert refusal(f"traffic: {traffic}\nname: x\nmodel: m\nengine: e\n", tmp_path) == sentence


@pytest.mark.parametrize(
    ("engine", "sentence"),
    [
        ("[]", "w.yaml:1: engine must be text or a list of one or more texts, not a list with nothing in it"),
        ("''", "w.yaml:1: engine must be text or a list of one or more texts, not an empty text"),
        ("[vllm, 3]", 'w.yaml:1: engine[1] must be text, not 3: write "3", in quotes'),
        ("[a, b, a]", "w.yaml:1: engine: a stands there twice: remove one"),
    ],
)
def test_a_mistake_in_the_engine(engine: str, sentence: str, tmp_path: Path) -> None:
    text = f"engine: {engine}\nname: x\nmodel: m\ntraffic: {{concurrency: [1]}}\n"
    assert refusal(text, tmp_path) == sentence


def test_throughput_at_a_rate_is_what_is_sent(tmp_path: Path) -> None:
    asked = LEAST.replace("concurrency: [1]", "rates: [2]") + "objective: throughput\n"
    assert refusal(asked, tmp_path) == (
        "w.yaml:5: objective: throughput at traffic.rates is the rate that is sent, whatever the setting: choose "
        "tpot_p50 or goodput, or give traffic.concurrency alone"
    )


def test_all_problems_are_shown_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text("name: My X\nengine: e\ntraffic:\n  concurency: [1]\n  rates: [-1]\nsed: 3\n")

    with pytest.raises(UserError) as caught:
        load_workload(path)

    assert str(caught.value) == "\n  ".join(
        [
            f"{path} has 5 problems:",
            f"{path}:1: name must be text (lower-case letters, digits, '.', '_' and '-', at most 64; it names the "
            "study's folder), not the text 'My X'",
            f"{path}:1: model is missing: add it (the target: a name from `tuner model list`, a folder, or a hub id)",
            f"{path}:4: traffic.concurency is not a key: did you mean concurrency?",
            f"{path}:5: traffic.rates[0] must be a number of requests per second above 0, not -1",
            f"{path}:6: sed is not a key: did you mean seed?",
        ]
    )


def test_everything_named_that_is_not_there_is_shown_before_any_launch(tmp_path: Path) -> None:
    text = LEAST.replace("model: m", "model: ./target") + (
        "drafts:\n- method: ngram\n- method: eagle3\n  model: ../head\n- {method: draft_model, model: a b}\n"
    )
    with pytest.raises(UserError) as caught:
        parse_workload(text, tmp_path / "w.yaml")

    remedy = "correct the path, or put the weights there"
    assert str(caught.value).split("\n  ")[1:] == [
        f"{tmp_path}/w.yaml:2: model: ./target does not exist (looked for {tmp_path}/target): {remedy}",
        f"{tmp_path}/w.yaml:8: drafts[1].model: ../head does not exist (looked for {tmp_path.parent}/head): {remedy}",
        f"{tmp_path}/w.yaml:9: drafts[2].model: a b is no file or model folder in {tmp_path}, and neither a registered "
        "name nor a hub id such as org/name: correct it, or begin a path with ./ or /",
    ]


def test_keys_brought_by_a_merge_are_found_where_they_stand(tmp_path: Path) -> None:
    text = LEAST + "drafts:\n- &base {method: ngram, nn: 3}\n- <<: *base\n  method: ngrm\n"
    first, second, third = refusals(text, tmp_path)

    assert first == "w.yaml:6: drafts[0].nn is not a key: did you mean n?"
    assert second == "w.yaml:6: drafts[1].nn is not a key: did you mean n?"
    assert third.startswith("w.yaml:8: drafts[1].method must be one of ")


# Files that are no workload at all


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "w.yaml is empty: `tuner init` writes a workload to start from"),
        ("# only this\n", "w.yaml is empty: `tuner init` writes a workload to start from"),
        ("- a\n", "w.yaml:1: this is a list: write lines of `key: value`"),
        ("\nhello\n", "w.yaml:2: this is one text: write lines of `key: value`"),
        ("name: a\nmodel: m\nname: b\n", "w.yaml:3: the key name stands on line 1 already: keep one of them"),
        ("a:\n  b: 1\n  b: 2\n", "w.yaml:3: the key b stands on line 2 already: keep one of them"),
        ("1: x\n", "w.yaml:1: a key must be text: put it in quotes"),
        ("a: {{x}}\n", "w.yaml:1: a key must be text: put it in quotes"),
        ("name: a\ntraffic:\n\tconcurrency: [1]\n", "w.yaml:3:1: there is a tab: YAML is indented with spaces"),
        (
            "name: a: b\n",
            "w.yaml:1:8: this is not valid YAML (mapping values are not allowed here): check the indentation, and put "
            "a text that holds ': ' in quotes",
        ),
        (
            "a:\n    b: 1\n  c: 2\n",
            "w.yaml:3:3: this is not valid YAML (expected <block end>, but found '<block mapping start>'): check the "
            "indentation of this line and the ones above",
        ),
        (
            "name: *x\n",
            "w.yaml:1:7: this is not valid YAML (found undefined alias 'x'): correct it; texts with special characters "
            "go in quotes",
        ),
        ("name: a\x01\n", "w.yaml:1: there is a control character (code 1): remove it"),
    ],
)
def test_a_file_that_is_not_a_mapping(text: str, sentence: str, tmp_path: Path) -> None:
    assert refusal(text, tmp_path) == sentence


def test_code_in_a_yaml_tag_is_not_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    sentence = refusal(f"name: !!python/object/apply:os.mkdir ['{ran}']\n", tmp_path)

    assert "could not determine a constructor" in sentence
    assert not ran.exists()


def test_aliases_that_multiply_are_not_followed(tmp_path: Path) -> None:
    # Ten aliases a level, twelve levels: 10^12 texts, were they written out.
    lines = ["a0: &a0 x"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 13)]
    assert refusals(LEAST + "\n".join(lines) + "\n", tmp_path)[-1] == (
        "w.yaml:17: a12 is not a key: use " + ", ".join(Workload.model_fields)
    )


@pytest.mark.parametrize("text", ["[" * 1000, "engine: &a [*a]\n", "traffic: &a {prompts: [*a]}\n"])
def test_nesting_without_end_is_refused(text: str, tmp_path: Path) -> None:
    assert refusals(text, tmp_path)


def test_paths_that_are_no_text_file(tmp_path: Path) -> None:
    (tmp_path / "chat.yaml").write_text(LEAST)
    (tmp_path / "latin.yaml").write_bytes(b"name: x\ndescription: caf\xe9\n")
    with (tmp_path / "weights.bin").open("wb") as file:
        file.truncate(2 << 20)

    def sentence(name: str) -> str:
        with pytest.raises(UserError) as caught:
            load_workload(tmp_path / name)
        return str(caught.value).replace(f"{tmp_path}/", "")

    assert sentence("") == f"{tmp_path} is a folder: give the file in it"
    assert sentence("chta.yaml") == "chta.yaml does not exist: did you mean chat.yaml?"
    assert sentence("chat") == "chat does not exist: did you mean chat.yaml?"
    assert sentence("other") == "other does not exist: give the path of a YAML file"
    assert sentence("gone/other.yaml") == "gone/other.yaml does not exist: give the path of a YAML file"
    assert sentence("chat.yaml/other") == "chat.yaml/other cannot be read (Not a directory)"
    assert sentence("latin.yaml") == "latin.yaml:2: this is not UTF-8 text: save the file as UTF-8"
    assert sentence("weights.bin") == "weights.bin has 2,097,152 bytes: that is not a file written by hand"


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_bytes(b"\xef\xbb\xbf" + LEAST.replace("\n", "\r\n").encode())
    assert load_workload(tmp_path / "w.yaml").name == "x"


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("off", "off"), ("no", "no"), ("Yes", "Yes"), ("2026-01-01", "2026-01-01"), ("12:30", "12:30"), ("1_0", "1_0"),
        ("0x10", "0x10"), ("010", "010"), ("1.2.3", "1.2.3"), ("-", None), (".", "."), ("v1", "v1"),
    ],
)  # fmt: skip
def test_only_yaml_1_2_scalars_are_other_than_text(typed: str, value: str | None, tmp_path: Path) -> None:
    text = LEAST + f"description: {typed}\n"
    if value is None:
        assert refusals(text, tmp_path)
    else:
        assert parse_workload(text, tmp_path / "w.yaml").description == value


@pytest.mark.parametrize(("typed", "value"), [("1e1", 10.0), ("1.", 1.0), (".5", 0.5), ("+2.5E-1", 0.25), ("3", 3.0)])
def test_numbers_as_people_write_them(typed: str, value: float, tmp_path: Path) -> None:
    assert parse_workload(LEAST + f"budget: {{minutes: {typed}}}\n", tmp_path / "w.yaml").budget.minutes == value


# Paths, names and hub ids


def test_a_path_a_name_and_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tmp_path / "work"
    (base / "head").mkdir(parents=True)
    (base / "model").mkdir()
    (base / "model" / "config.json").write_text("{}")
    (base / "org" / "name").mkdir(parents=True)
    (base / "org" / "name" / "config.json").write_text("{}")
    (base / "small.gguf").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path))

    assert resolve_path(base, "./head") == f"{base}/head"
    assert resolve_path(base, "../work/head") == f"{base}/head"
    assert resolve_path(base, str(base / "head")) == f"{base}/head"
    assert resolve_path(base, "~/work/head") == f"{base}/head"
    assert resolve_path(base, ".") == str(base)
    assert resolve_path(base, "model") == f"{base}/model"
    assert resolve_path(base, "small.gguf") == f"{base}/small.gguf"
    assert resolve_path(base, "org/name") == f"{base}/org/name"
    assert resolve_path(base, "org/other.Name-1") == "org/other.Name-1"
    # A folder alone is not a checkpoint: the name may be a registered model's.
    assert resolve_path(base, "head") == "head"


def test_a_relative_base_gives_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "head").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve_path(Path("."), "./head") == f"{os.getcwd()}/head"


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("./gone", "./gone does not exist (looked for "),
        ("/gone/away", "/gone/away does not exist (looked for /gone/away)"),
        ("~/gone", "~/gone does not exist"),
        ("~nobody-here/gone", "~nobody-here/gone does not exist"),
        ("a/b/c", "a/b/c is no file or model folder in "),
        ("two words", "begin a path with ./ or /"),
        ("org/", "neither a registered name nor a hub id such as org/name"),
        ("", "neither a registered name"),
        ("https://huggingface.co/org/name", "is an address: give a folder, a registered name or a hub id"),
        ("./a\0b", "does not exist"),
        ("./" + "x" * 5000, "does not exist"),
    ],
)
def test_what_no_model_can_be_called(value: str, part: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        resolve_path(tmp_path, value)
    assert part in str(caught.value)


# The schema says what the models say


def test_the_schema_file_is_the_models() -> None:
    assert (ROOT / "schema" / "workload.schema.json").read_text(encoding="utf-8") == workload_schema_text(), (
        "run `tuner schema --output schema/workload.schema.json`"
    )


def test_the_schema_is_valid_and_explains_itself() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    described = {"presence_penalty", "frequency_penalty"} | {name for name in Slo.model_fields if "p50" not in name}
    for definition in [SCHEMA, *SCHEMA["$defs"].values()]:
        assert definition["description"]
        for key, node in definition["properties"].items():
            assert "description" in node or "$ref" in json.dumps(node) or key in described, key


VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def accepted(data: Any) -> tuple[bool, bool]:
    """(by the schema, by the model)"""
    by_schema = VALIDATOR.is_valid(data)
    try:
        Workload.model_validate(data)
    except ValidationError:
        return by_schema, False
    return by_schema, True


def least(**more: Any) -> dict[str, Any]:
    return {"name": "x", "model": "m", "engine": "e", "traffic": {"concurrency": [1]}, **more}


@pytest.mark.parametrize(
    "data",
    [
        least(traffic={}),
        least(traffic={"concurrency": []}),
        least(traffic={"concurrency": [1, 1]}),
        least(traffic={"concurrency": [1], "endpoint": "completions", "chat_template_kwargs": {"a": 1}}),
        least(objective="goodput"),
        least(objective="goodput", slo={}),
        least(engine=[]),
        least(engine=["a", "a"]),
        least(name="X"),
        least(drafts=[]),
        least(drafts=[{"method": "off"}]),
        least(drafts=[{"method": "eagle3"}]),
        least(drafts=[{"method": "eagle3", "model": None}]),
        least(drafts=[{"method": "suffix", "model": "a/b"}]),
        least(drafts=[{"method": "ngram", "n": []}]),
        least(drafts=[{"method": "dflash", "model": "a", "tree": {"depth": [1], "topk": [2], "nodes": [2]}}]),
        least(drafts=[{"method": "eagle", "model": "a", "tree": {"depth": [1], "topk": [2], "nodes": [1]}}]),
        least(budget={"launches": 0}),
        least(sampling={"temperatures": [2.5]}),
        least(engine_options={"port": 0}),
        least(unknown=1),
        {"name": "x"},
    ],
)
def test_schema_and_model_refuse_the_same(data: dict[str, Any]) -> None:
    assert accepted(data) == (False, False)


@pytest.mark.parametrize(
    "data",
    [
        least(),
        least(traffic={"rates": [0.5]}),
        least(traffic={"concurrency": [], "rates": [1]}),
        least(objective="goodput", slo={"ttft_p95_ms": 1}),
        least(drafts="auto"),
        least(drafts=[{"method": "mtp"}, {"method": "mtp", "model": "a/b"}, {"method": "ngram", "model": None}]),
        least(engine=["a", "b"], seed=-1, description="é"),
    ],
)
def test_schema_and_model_accept_the_same(data: dict[str, Any]) -> None:
    assert accepted(data) == (True, True)


FULL: dict[str, Any] = least(
    drafts=[{"method": "eagle3", "model": "a/b", "n": [1], "tree": {"depth": [3], "topk": [2], "nodes": [8]}}],
    sampling={"temperatures": [0, 1], "top_p": 0.9, "stop": ["x"]},
    slo={"ttft_p95_ms": 3},
    engine_options={"args": ["a"], "env": {"A": "b"}, "port": 3},
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False)
    | st.sampled_from(["", "x", "1", "off"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["method", "a", "n"]), inner, max_size=2)
    ),
    max_leaves=4,
)


def places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place, *(p for step, child in steps for p in places(child, (*place, step)))]


def replaced(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return new
    copy = value.copy()
    copy[place[0]] = replaced(value[place[0]], place[1:], new)
    return copy


def parses(text: str, folder: Path) -> bool:
    """Whether nothing is amiss; a model or a prompt set that is named may not be there."""
    try:
        parse_workload(text, folder / "w.yaml")
    except UserError:
        return False
    return True


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(place=st.sampled_from(places(FULL)[1:]), new=JSON)
def test_any_wrong_value_is_a_sentence_and_the_schema_never_stricter(
    place: tuple[Any, ...], new: Any, tmp_path: Path
) -> None:
    data = replaced(FULL, place, new)
    by_schema, by_model = accepted(data)
    assert by_schema or not by_model
    text = yaml.safe_dump(data)
    if by_model and parses(text, tmp_path):
        return
    with pytest.raises(UserError) as caught:
        parse_workload(text, tmp_path / "w.yaml")
    assert str(caught.value).startswith(f"{tmp_path}/w.yaml")
    assert not any(words in str(caught.value) for words in ("Input should", "something else"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(text=st.text(alphabet=st.sampled_from("nae: -[]{}\n\t'\"#&*!|>%@`,?\x00é\u2028<1.~"), max_size=60))
def test_any_text_is_refused_in_a_sentence(text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        parse_workload(text, tmp_path / "w.yaml")
    assert str(caught.value).startswith(f"{tmp_path}/w.yaml")
