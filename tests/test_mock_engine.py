"""The mock engine itself: other tests trust its truth, its wire formats and its ways to fail."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from mock_engine import (
    Config,
    Faults,
    MockEngine,
    Sim,
    Speculation,
    config_from,
    fake_python,
    mock_engine,
    mock_process,
)
from mock_machine import WORDS
from prometheus_client.parser import text_string_to_metric_families

VLLM_ARGV = (
    "-m", "vllm.entrypoints.openai.api_server", "--model", "/models/target", "--host", "127.0.0.1",
    "--served-model-name", "target", "--max-num-seqs", "8", "--seed", "0", "--no-enable-prefix-caching",
    "--some-new-flag", "7", "--speculative-config", '{"method":"eagle3","model":"/d","num_speculative_tokens":3}',
    "--per-request-spec-decode-metrics", "detailed",
)  # fmt: skip
SGLANG_ARGV = (
    "-m", "sglang.launch_server", "--model-path", "/models/target", "--enable-metrics", "--max-running-requests", "8",
    "--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "3", "--speculative-eagle-topk", "4",
    "--speculative-num-draft-tokens", "8",
)  # fmt: skip


def events(text: str) -> list[dict[str, Any]]:
    blocks = [block.removeprefix("data: ") for block in text.strip().split("\n\n")]
    assert blocks[-1] == "[DONE]"
    return [json.loads(block) for block in blocks[:-1]]


async def post(engine: MockEngine, path: str = "/v1/chat/completions", **fields: Any) -> str:
    body = {
        "model": engine.config.served_name, "messages": [{"role": "user", "content": "hello"}], "prompt": "hello",
        "max_tokens": 9, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True}, **fields,
    }  # fmt: skip
    async with aiohttp.ClientSession() as session, session.post(engine.url + path, json=body) as response:
        return await response.text()


def answers(config: Config, *requests: dict[str, Any]) -> tuple[list[str], MockEngine]:
    async def run() -> tuple[list[str], MockEngine]:
        async with mock_engine(config) as engine:
            return list(await asyncio.gather(*(post(engine, **request) for request in requests))), engine

    return asyncio.run(run())


def samples(text: str) -> dict[tuple[str, str], float]:
    """(series, position) -> value, read by the reference parser."""
    return {
        (sample.name, sample.labels.get("position", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_vllm_framing_with_counts_on_every_chunk() -> None:
    config = config_from(VLLM_ARGV)
    [text], engine = answers(config, {"max_tokens": 12})
    chunks, truth = events(text), engine.machine.jobs[0].truth()
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[0]["usage"]["completion_tokens"] == 0
    counts = [c["usage"]["completion_tokens"] for c in chunks[1:-1]]
    assert counts == [n for _, n in truth["sent"]]
    assert counts[-1] == 12
    assert [c["choices"][0]["finish_reason"] for c in chunks[1:-1]] == [None] * (len(counts) - 1) + ["length"]
    assert "".join(c["choices"][0]["delta"]["content"] for c in chunks[:-1]) == truth["text"]
    told = chunks[-1]["metrics"]["speculative_decoding"]
    assert chunks[-1]["choices"] == []
    assert told["per_step_accepted"] == truth["accepted"]
    assert told["per_step_drafted"] == [3] * len(truth["accepted"])
    assert told["acceptance_histogram"] == [truth["accepted"].count(j) for j in range(4)]


def test_sglang_framing_with_details_before_the_usage() -> None:
    config = config_from(SGLANG_ARGV)
    [text], engine = answers(config, {"return_spec_tokens_details": True})
    chunks, truth = events(text), engine.machine.jobs[0].truth()
    assert "usage" not in chunks[0]
    assert chunks[-3]["choices"][0]["finish_reason"] == "length"
    details = chunks[-2]["sglext"]["spec_tokens_details"]
    assert details["spec_verify_ct"] == truth["verify_steps"]
    assert details["spec_num_correct_drafts"] == sum(truth["accepted"])
    assert details["spec_num_proposed_drafts"] == 7 * truth["verify_steps"]  # 8 nodes, the root is not drafted
    assert chunks[-1]["usage"]["completion_tokens"] == 9
    [silent], _ = answers(config, {})
    assert not any("sglext" in c for c in events(silent))


def test_usage_only_where_it_was_asked_for() -> None:
    [text], _ = answers(Config(), {"stream_options": {"include_usage": True}})
    assert [("usage" in c) for c in events(text)] == [False] * (len(events(text)) - 1) + [True]
    [text], _ = answers(Config(), {"stream_options": None})
    assert not any("usage" in c for c in events(text))


def test_completions_and_answers_without_a_stream() -> None:
    [text, whole], engine = answers(
        Config(), {"path": "/v1/completions"}, {"stream": False, "logprobs": True, "top_logprobs": 3}
    )
    said = "".join(c["choices"][0]["text"] for c in events(text) if c["choices"])
    answer = json.loads(whole)
    assert said == answer["choices"][0]["message"]["content"] == engine.machine.jobs[0].truth()["text"]
    assert answer["usage"]["completion_tokens"] == 9
    assert len(answer["choices"][0]["logprobs"]["content"]) == 9
    assert len(answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 3


def test_vllm_counters_equal_the_truth() -> None:
    async def run() -> tuple[dict[tuple[str, str], float], list[dict[str, Any]]]:
        async with mock_engine(config_from(VLLM_ARGV)) as engine:
            await asyncio.gather(*(post(engine, messages=[{"role": "user", "content": f"q {i}"}]) for i in range(9)))
            async with aiohttp.ClientSession() as session:
                text = await (await session.get(engine.url + "/metrics")).text()
                return samples(text), await (await session.get(engine.url + "/_truth")).json()

    seen, truths = asyncio.run(run())
    accepted = [j for t in truths for j in t["accepted"]]
    assert seen["vllm:spec_decode_num_drafts_total", ""] == len(accepted) > 9
    assert seen["vllm:spec_decode_num_draft_tokens_total", ""] == 3 * len(accepted)
    assert seen["vllm:spec_decode_num_accepted_tokens_total", ""] == sum(accepted)
    per_position = [seen["vllm:spec_decode_num_accepted_tokens_per_pos_total", str(k)] for k in range(3)]
    assert per_position == [sum(j > k for j in accepted) for k in range(3)]
    assert seen["vllm:generation_tokens_total", ""] == 9 * 9
    assert seen["vllm:num_requests_running", ""] == 0


def test_without_speculation_there_are_no_such_counters() -> None:
    async def run() -> str:
        async with mock_engine() as engine, aiohttp.ClientSession() as session:
            await post(engine)
            return await (await session.get(engine.url + "/metrics")).text()

    assert "spec_decode" not in asyncio.run(run())


def test_acceptance_follows_the_settings_by_position_and_temperature() -> None:
    alpha = {"*": {"0": [0.8, 0.5], "1": [0.4, 0.5]}}
    config = Config(spec=Speculation("eagle3", 2, 2), sim=Sim(base_s=0.0002, prefill_s=0.0, alpha=alpha))
    many = [{"messages": [{"role": "user", "content": f"q {i}"}], "max_tokens": 150} for i in range(16)]

    def shares(temperature: float) -> tuple[float, float]:
        _, engine = answers(config, *({**r, "temperature": temperature, "ignore_eos": True} for r in many))
        accepted = [j for job in engine.machine.jobs for j in job.accepted]
        first = sum(j > 0 for j in accepted)
        return first / len(accepted), sum(j > 1 for j in accepted) / first

    # at least 16 * 150 / 3 = 800 steps: standard error of the first share at most .018, of the second at most .028
    assert shares(0.0) == (pytest.approx(0.8, abs=0.06), pytest.approx(0.5, abs=0.08))
    assert shares(1.0) == (pytest.approx(0.4, abs=0.07), pytest.approx(0.5, abs=0.11))


def test_what_a_request_accepts_does_not_depend_on_its_company() -> None:
    ask = [{"messages": [{"role": "user", "content": f"q {i}"}], "max_tokens": 30} for i in range(6)]
    config = config_from(VLLM_ARGV)
    together = {job.prompt: job.accepted for job in answers(config, *ask)[1].machine.jobs}
    alone = {job.prompt: job.accepted for r in ask for job in answers(config, r)[1].machine.jobs}
    assert together == alone


def test_greedy_text_is_the_targets_whatever_drafts_and_sampling_obeys_the_temperature() -> None:
    def words(spec: Speculation, **fields: Any) -> str:
        faults = Faults(temperature_ignored=fields.pop("ignored", False))
        return str(
            answers(Config(spec=spec, faults=faults), {"max_tokens": 40, **fields})[1].machine.jobs[0].truth()["text"]
        )

    off, eagle3 = Speculation(), Speculation("eagle3", 3, 3)
    assert words(off) == words(eagle3)
    sampled = words(eagle3, temperature=1.0, seed=5)
    assert sampled == words(off, temperature=1.0, seed=5) != words(off)
    assert words(off, temperature=1.0, seed=6) != sampled
    assert words(off, temperature=1.0, seed=5, ignored=True) == words(off)
    assert set(sampled.split()) <= set(WORDS)


def test_step_time_grows_with_n_and_with_the_batch() -> None:
    sim = Sim(base_s=0.010, per_request_s=0.001, slope=0.1, crowding=0.5)
    # base(1) = 11 ms; base(3) = 13 ms; N = 4 at b = 3: 13 * (1 + .1 * 4 * (1 + .5 * 2)) = 23.4 ms
    assert sim.step_s(1, 0) == pytest.approx(0.011)
    assert sim.step_s(3, 0) == pytest.approx(0.013)
    assert sim.step_s(3, 4) == pytest.approx(0.0234)


def test_requests_share_steps_and_wait_when_the_batch_is_full() -> None:
    config = Config(max_running=2, sim=Sim(base_s=0.005, prefill_s=0.0))
    _, engine = answers(config, *[{"messages": [{"role": "user", "content": f"q {i}"}]} for i in range(3)])
    first, second, third = (job.sent for job in engine.machine.jobs)
    assert max(first[0][0], second[0][0]) < min(first[1][0], second[1][0])  # in step
    assert third[0][0] > min(first[-1][0], second[-1][0])  # admitted once a place was free


def test_merged_steps_share_a_chunk() -> None:
    [text], engine = answers(Config(faults=Faults(merge_steps=4)), {"max_tokens": 9})
    counts = [c["usage"]["completion_tokens"] for c in events(text)[1:-1]]
    assert counts == [4, 8, 9]
    assert [n for _, n in engine.machine.jobs[0].sent] == [4, 8, 9]


def test_the_first_token_can_be_slow() -> None:
    started_s = time.perf_counter()
    _, engine = answers(Config(faults=Faults(first_token_delay_s=0.3)), {})
    assert engine.machine.jobs[0].sent[0][0] - started_s > 0.3  # a sleep is never shorter than asked


def test_the_argv_of_each_engine_is_understood() -> None:
    vllm, sglang = config_from(VLLM_ARGV), config_from(SGLANG_ARGV)
    assert (vllm.flavour, vllm.served_name, vllm.max_running) == ("vllm", "target", 8)
    assert vllm.spec == Speculation("eagle3", 3, 3)
    assert (vllm.metrics_level, vllm.prefix_caching) == ("detailed", False)
    assert (sglang.flavour, sglang.served_name, sglang.spec) == (
        "sglang",
        "/models/target",
        Speculation("eagle3", 3, 7),
    )
    # SGLang's own cap once speculation is on
    assert config_from(["-m", "sglang.launch_server", *SGLANG_ARGV[7:]]).max_running == 48
    with pytest.raises(ValueError, match="Unsupported speculative method"):
        config_from(["--speculative-config", '{"method":"eagle9","num_speculative_tokens":3}'])
    with pytest.raises(ValueError, match="requires speculative decoding"):
        config_from(["--per-request-spec-decode-metrics", "summary"])


def test_faults_and_machine_can_be_set_by_flag_and_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert config_from(["--fault", "merge_steps=3", "--fault", "no_usage"]).faults == Faults(
        merge_steps=3, no_usage=True
    )
    monkeypatch.setenv("MOCK_ENGINE_FAULTS", "die_at_request=7,ready_after_s=0.5")
    monkeypatch.setenv("MOCK_ENGINE_SIM", '{"base_s": 0.001}')
    monkeypatch.setenv("VLLM_API_KEY", "from-the-environment")
    config = config_from([])
    assert config.faults == Faults(die_at_request=7, ready_after_s=0.5)
    assert config.sim.base_s == 0.001
    assert config.api_key == "from-the-environment"


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_as_a_process_it_serves_logs_like_an_engine_and_keeps_its_key_to_itself(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with mock_process(*VLLM_ARGV, env={"VLLM_API_KEY": "very-secret"}, log=log) as (url, process):
        assert get(url + "/health")[0] == 200
        assert get(url + "/v1/models") == (401, '{"error": "Unauthorized"}')
        assert json.loads(get(url + "/version")[1]) == {"version": "0.32.0"}
        assert get(url + "/metrics")[0] == 200
        process.terminate()
        assert process.wait(timeout=20) == 0
    said = log.read_text()
    assert "GPU KV cache size: 45,120 tokens" in said
    assert "Application startup complete." in said
    assert "very-secret" not in said


def test_sglang_as_a_process_tells_its_resolved_arguments() -> None:
    with mock_process(*SGLANG_ARGV) as (url, _):
        info = json.loads(get(url + "/server_info")[1])
    assert (info["speculative_num_steps"], info["speculative_num_draft_tokens"]) == (3, 8)
    assert info["internal_states"][0]["effective_max_running_requests_per_dp"] == 8
    assert info["version"] == "0.5.23"


def test_a_failed_start_leaves_its_cause_before_the_echoes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(RuntimeError, match="exit code 1"), mock_process("--fault", "die_at_start", log=log):
        pass
    said = log.read_text()
    assert said.index("ValueError: No available memory for the cache blocks") < said.index("See root cause above")


def test_it_dies_at_the_request_it_was_told_to() -> None:
    with mock_process("--fault", "die_at_request=1") as (url, process):
        with pytest.raises(OSError):  # noqa: PT011
            urllib.request.urlopen(urllib.request.Request(url + "/v1/completions", b"{}"), timeout=10).close()
        assert process.wait(timeout=10) == 1


@pytest.mark.parametrize("argv", [("--flavour", "vllm"), SGLANG_ARGV])
def test_an_engine_that_never_gets_ready(argv: tuple[str, ...]) -> None:
    with (
        pytest.raises(RuntimeError, match="did not become ready"),
        mock_process(*argv, "--fault", "never_ready", ready_within_s=3),
    ):
        pass


def test_sigterm_can_be_ignored_and_a_grandchild_left_behind(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with mock_process("--fault", "ignore_sigterm", "--fault", "grandchild", log=log) as (url, process):
        grandchild = int(log.read_text().split("grandchild pid=")[1].split()[0])
        assert os.getpgid(grandchild) == process.pid
        process.terminate()
        time.sleep(0.3)
        assert process.poll() is None
        assert get(url + "/health")[0] == 200
        process.kill()
        process.wait(timeout=10)
        assert os.getpgid(grandchild) == process.pid  # still there: only its group can end it
        os.killpg(process.pid, signal.SIGKILL)


def test_a_fake_python_serves_engines_and_runs_everything_else(tmp_path: Path) -> None:
    python = str(fake_python(tmp_path))
    said = subprocess.run([python, "-c", "import sys; print(sys.version)"], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == sys.version
    done = subprocess.run(
        [python, "-m", "vllm.entrypoints.openai.api_server", "--fault", "die_at_start"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "No available memory" in done.stderr
