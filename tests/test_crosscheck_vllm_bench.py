"""Our load client against `vllm bench serve`, on one real server in turns: `pytest -m crosscheck`, on a quiet machine.

Both send the same chat prompts at concurrency 4, 32 tokens each (end-of-text ignored), and both take TPOT as (last
token - first token) / (tokens - 1). The rounds go ours, theirs, theirs, ours, so that a machine which warms up or is
shared weighs on both alike. `vllm bench serve` measures its ramp and drain too; equal lengths keep both short.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import real_vllm
from real_vllm import KEY, Traffic

from tuner.engines.vllm import VllmEngine
from tuner.run.load import measure_cell
from tuner.run.process import EngineProcess, free_port
from tuner.run.stream import Server
from tuner.spec.speculation import OFF, SpecConfig

pytestmark = [pytest.mark.crosscheck, pytest.mark.timeout(3600)]

TRAFFIC = Traffic(concurrency=4, requests=24, tokens=32)
AGREE_WITHIN = 0.02
ROUNDS = 3
#: The console script wants a distribution named vllm; the CPU build has another name.
BENCH = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


@dataclass(frozen=True)
class Round:
    """Mean TPOT in one round, seconds."""

    ours: tuple[float, float]
    theirs: tuple[float, float]

    @property
    def ratio(self) -> float:
        return statistics.mean(self.theirs) / statistics.mean(self.ours)


@pytest.mark.parametrize("spec", [OFF, SpecConfig("eagle3", n=3, draft=str(real_vllm.HEAD))], ids=["off", "eagle3"])
def test_mean_tpot_agrees_with_vllm_bench_serve(spec: SpecConfig, tmp_path: Path) -> None:
    rounds = asyncio.run(take_turns(spec, tmp_path))
    ratio = statistics.median(r.ratio for r in rounds)
    shown = [f"ours {ms(r.ours)}, theirs {ms(r.theirs)}, theirs over ours {r.ratio:.4f}" for r in rounds]
    print(f"\n{spec.label}, mean TPOT in ms:", *shown, f"median {ratio:.4f}", sep="\n  ")
    assert abs(ratio - 1) < AGREE_WITHIN, "\n".join(shown)


def ms(pair: tuple[float, float]) -> str:
    return " and ".join(f"{1000 * value:.2f}" for value in pair)


async def take_turns(spec: SpecConfig, folder: Path) -> list[Round]:
    engine, target = VllmEngine(real_vllm.environment()), str(real_vllm.target())
    command = engine.launch(target, spec, real_vllm.options(running=4), free_port(), KEY)
    server = Server(command.url, KEY, command.served_name)
    prompts = folder / "prompts.jsonl"
    plan = TRAFFIC.plan(0.0)
    measured = plan.prompts[plan.warmup : plan.warmup + plan.measured]
    prompts.write_text("".join(json.dumps({"prompt": p.messages[-1][1]}) + "\n" for p in measured), encoding="utf-8")

    async def ours() -> float:
        cell = await measure_cell(server, plan, lambda events: engine.read_spec_steps(events, spec))
        assert len(cell.completed) == TRAFFIC.requests
        assert {r.n_out for r in cell.completed} == {TRAFFIC.tokens}
        return statistics.mean(r.tpot_s for r in cell.completed if r.tpot_s)

    async def theirs() -> float:
        return await asyncio.to_thread(bench_serve, server, prompts, folder)

    process = EngineProcess(
        command, folder / "engine.log", ready_path=engine.ready_path(), ready_timeout_s=real_vllm.READY_S
    )
    rounds = []
    async with process:
        await ours()  # every shape once
        for _ in range(ROUNDS):
            first, second, third, last = await ours(), await theirs(), await theirs(), await ours()
            rounds.append(Round((first, last), (second, third)))
    return rounds


def bench_serve(server: Server, prompts: Path, folder: Path) -> float:
    """Mean TPOT of one run of `vllm bench serve`, seconds."""
    target = str(real_vllm.target())
    argv = [
        str(real_vllm.environment().python), "-c", BENCH, "--backend", "openai-chat", "--base-url", server.url,
        "--endpoint", "/v1/chat/completions", "--model", target, "--served-model-name", server.model,
        "--dataset-name", "custom", "--dataset-path", str(prompts), "--skip-chat-template", "--disable-shuffle",
        "--num-prompts", str(TRAFFIC.requests), "--custom-output-len", str(TRAFFIC.tokens), "--ignore-eos",
        "--temperature", "0", "--max-concurrency", str(TRAFFIC.concurrency), "--num-warmups", str(TRAFFIC.concurrency),
        "--disable-tqdm", "--save-result", "--result-dir", str(folder), "--result-filename", "bench.json",
    ]  # fmt: skip
    env = {**os.environ, "OPENAI_API_KEY": KEY, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads((folder / "bench.json").read_text(encoding="utf-8"))
    assert (result["completed"], result["total_output_tokens"]) == (
        TRAFFIC.requests, TRAFFIC.requests * TRAFFIC.tokens,
    )  # fmt: skip
    return float(result["mean_tpot_ms"]) / 1000
