"""Our load client against `vllm bench serve`, on one server in turns: `pytest -m crosscheck`, on a quiet machine.

Both send the same chat prompts at concurrency 4, 32 tokens each (end-of-text ignored), and both take TPOT as (last
token - first token) / (tokens - 1), the mean over requests. Rounds go ours, theirs, theirs, ours, so that a machine
that drifts weighs on both alike, until the mean of the rounds' ratios is known to 1 percent.

One difference is by design: `vllm bench serve` measures its drain, when less than 4 requests run; we keep the load up
until the last measured request has ended. So its mean leaves out the requests that ended last, one a slot.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import statistics
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import real_vllm
from mock_engine import Config, Sim, Speculation, mock_engine
from real_vllm import KEY, Traffic
from scipy.stats import t as student

from tuner.engines.vllm import VllmEngine
from tuner.run.load import measure_cell
from tuner.run.process import EngineProcess, free_port
from tuner.run.stream import Server
from tuner.spec.speculation import OFF, SpecConfig

pytestmark = [pytest.mark.crosscheck, pytest.mark.timeout(5400)]

TRAFFIC = Traffic(concurrency=4, requests=16, tokens=32)
AGREE_WITHIN, KNOWN_WITHIN = 0.02, 0.01
LEAST_ROUNDS, MOST_ROUNDS = 4, 24
EAGLE3 = SpecConfig("eagle3", n=3, draft=str(real_vllm.HEAD))
#: Runs one benchmark a line of standard input. The console script would want a distribution named vllm, and the CPU
#: build has another name; one process for all runs pays for its imports once.
BENCH = """
import json, sys
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
print("READY", flush=True)
for line in sys.stdin:
    main(parser.parse_args(json.loads(line)))
    print("READY", flush=True)
"""


@dataclass(frozen=True)
class Round:
    """Mean TPOT of two runs each, seconds. `with_drain`: theirs as it prints it."""

    ours: float
    theirs: float
    with_drain: float

    @property
    def shown(self) -> str:
        """In milliseconds."""
        own, other, printed = (f"{1000 * value:.2f}" for value in (self.ours, self.theirs, self.with_drain))
        return f"ours {own}, theirs {other} (printed {printed}), ratio {self.theirs / self.ours:.4f}"


@dataclass(frozen=True)
class Agreement:
    """Theirs over ours: the mean of rounds with its 95 percent interval."""

    rounds: list[Round]

    @property
    def logs(self) -> list[float]:
        return [math.log(r.theirs / r.ours) for r in self.rounds]

    @property
    def ratio(self) -> float:
        return math.exp(statistics.mean(self.logs))

    @property
    def half_width(self) -> float:
        spread = statistics.stdev(self.logs) / math.sqrt(len(self.logs))
        return float(student.ppf(0.975, len(self.logs) - 1)) * spread

    def enough(self) -> bool:
        return len(self.rounds) >= LEAST_ROUNDS and self.half_width < KNOWN_WITHIN

    def __str__(self) -> str:
        printed = math.exp(statistics.mean(math.log(r.with_drain / r.ours) for r in self.rounds))
        told = f"theirs over ours {self.ratio:.4f} +- {self.half_width:.4f} (printed, drain included: {printed:.4f})"
        return "\n  ".join(["", *(r.shown for r in self.rounds), told])


@pytest.mark.parametrize("spec", [OFF, EAGLE3], ids=["off", "eagle3"])
def test_mean_tpot_agrees_with_vllm_bench_serve(spec: SpecConfig, tmp_path: Path) -> None:
    found = asyncio.run(on_real_engine(spec, tmp_path))
    print(f"\n{spec.label} on vLLM, mean TPOT in ms: {found}")
    assert found.half_width < AGREE_WITHIN, f"the machine is too busy to tell: {found}"
    assert abs(found.ratio - 1) < AGREE_WITHIN, str(found)


@pytest.mark.parametrize("n", [0, 3], ids=["off", "eagle3"])
def test_it_agrees_where_step_times_are_known(n: int, tmp_path: Path) -> None:
    """On the mock engine, whose steps take 40 ms whatever runs: what is left is how the clients count and time."""
    found = asyncio.run(on_mock_engine(Speculation("eagle3", n, n) if n else Speculation(), tmp_path))
    print(f"\nN = {n} on the mock engine, mean TPOT in ms: {found}")
    assert abs(found.ratio - 1) < AGREE_WITHIN, str(found)


async def on_real_engine(spec: SpecConfig, folder: Path) -> Agreement:
    engine = VllmEngine(real_vllm.environment())
    command = engine.launch(str(real_vllm.target()), spec, real_vllm.options(running=4), free_port(), KEY)
    ready = {"ready_path": engine.ready_path(), "ready_timeout_s": real_vllm.READY_S}
    async with EngineProcess(command, folder / "engine.log", **ready):
        return await take_turns(Server(command.url, KEY, command.served_name), folder)


async def on_mock_engine(spec: Speculation, folder: Path) -> Agreement:
    sim = Sim(base_s=0.04, slope=0.0)
    async with mock_engine(Config(served_name="target", sim=sim, spec=spec)) as engine:
        return await take_turns(Server(engine.url, None, "target"), folder)


async def take_turns(server: Server, folder: Path) -> Agreement:
    rounds: list[Round] = []
    with bench(server, folder) as theirs:
        await ours(server)  # every shape once
        while len(rounds) < MOST_ROUNDS and not (len(rounds) >= 2 and Agreement(rounds).enough()):
            first = await ours(server)
            others = [await asyncio.to_thread(theirs), await asyncio.to_thread(theirs)]
            own = statistics.mean([first, await ours(server)])
            rounds.append(Round(own, *(statistics.mean(pair) for pair in zip(*others, strict=True))))
    return Agreement(rounds)


async def ours(server: Server) -> float:
    cell = await measure_cell(server, TRAFFIC.plan(0.0), lambda events: None)
    assert len(cell.completed) == TRAFFIC.requests
    assert {r.n_out for r in cell.completed} == {TRAFFIC.tokens}
    return statistics.mean(r.tpot_s for r in cell.completed if r.tpot_s)


@contextlib.contextmanager
def bench(server: Server, folder: Path) -> Iterator[Any]:
    """Runs `vllm bench serve` at each call: (mean TPOT without the drain, as printed), seconds."""
    prompts, result = folder / "prompts.jsonl", folder / "bench.json"
    plan = TRAFFIC.plan(0.0)
    measured = plan.prompts[plan.warmup : plan.warmup + plan.measured]
    prompts.write_text("".join(json.dumps({"prompt": p.messages[-1][1]}) + "\n" for p in measured), encoding="utf-8")
    argv = [
        "--backend", "openai-chat", "--base-url", server.url, "--endpoint", "/v1/chat/completions",
        "--model", str(real_vllm.target()), "--served-model-name", server.model,
        "--dataset-name", "custom", "--dataset-path", str(prompts), "--skip-chat-template", "--disable-shuffle",
        "--num-prompts", str(TRAFFIC.requests), "--custom-output-len", str(TRAFFIC.tokens), "--ignore-eos",
        "--extra-body", json.dumps({"max_tokens": TRAFFIC.tokens}), "--temperature", "0",
        "--max-concurrency", str(TRAFFIC.concurrency), "--num-warmups", str(TRAFFIC.concurrency), "--disable-tqdm",
        "--save-result", "--save-detailed", "--result-dir", str(folder), "--result-filename", result.name,
    ]  # fmt: skip
    with (folder / "bench.txt").open("w") as said:
        process = subprocess.Popen(
            [str(real_vllm.environment().python), "-c", BENCH], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=said, text=True, env={**os.environ, "OPENAI_API_KEY": KEY, "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None

    def wait_ready() -> None:
        assert any(line == "READY\n" for line in iter(process.stdout.readline, "")), (folder / "bench.txt").read_text()

    def run() -> tuple[float, float]:
        process.stdin.write(json.dumps(argv) + "\n")
        process.stdin.flush()
        wait_ready()
        return mean_tpot(json.loads(result.read_text(encoding="utf-8")))

    try:
        wait_ready()
        yield run
    finally:
        process.stdin.close()
        process.stdout.close()
        process.kill()
        process.wait()


def mean_tpot(result: dict[str, Any]) -> tuple[float, float]:
    """(without the drain, as printed), seconds."""
    lengths = result["output_lens"]
    assert lengths == [TRAFFIC.tokens] * TRAFFIC.requests
    ends = [
        start + ttft + sum(itl)
        for start, ttft, itl in zip(result["start_times"], result["ttfts"], result["itls"], strict=True)
    ]
    last = sorted(range(len(ends)), key=ends.__getitem__)[-TRAFFIC.concurrency :]
    tpots = [sum(itl) / (n - 1) for itl, n in zip(result["itls"], lengths, strict=True)]
    assert statistics.mean(tpots) * 1000 == pytest.approx(result["mean_tpot_ms"], rel=1e-6)
    return statistics.mean(tpot for i, tpot in enumerate(tpots) if i not in last), result["mean_tpot_ms"] / 1000
