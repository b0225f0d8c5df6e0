"""Our figures against those of `vllm bench serve`: `pytest -m crosscheck`.

Two differences between load tools are possible, and each is looked at where nothing else varies.
Reading: on the real engine, both time the very same answers. Its requests pass a relay that feeds our stream reader
the bytes it hands on, so the load is equal whatever the machine does (turns on one machine scattered by 8 percent).
Driving: on the mock engine, whose steps take 100 ms whatever runs, each sends its own load.

Concurrency 4, 32 tokens an answer (end-of-text ignored); TPOT is (last token - first token) / (tokens - 1), the mean
over all requests, as `vllm bench serve` prints it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import real_vllm
from aiohttp import web
from mock_engine import mock_process
from real_vllm import KEY, Traffic

from tuner.engines.vllm import VllmEngine
from tuner.measure.records import RequestRecord
from tuner.run.load import measure_cell
from tuner.run.process import EngineProcess, free_port
from tuner.run.sse import Answer, StreamReader
from tuner.run.stream import Server
from tuner.spec.speculation import OFF, SpecConfig

pytestmark = [pytest.mark.crosscheck, pytest.mark.timeout(1800)]

TRAFFIC = Traffic(concurrency=4, requests=16, tokens=32)
AGREE_WITHIN = 0.02
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


@pytest.mark.parametrize("spec", [OFF, EAGLE3], ids=["off", "eagle3"])
def test_both_read_the_same_mean_tpot_from_the_same_answers(spec: SpecConfig, tmp_path: Path) -> None:
    ours, theirs = asyncio.run(on_real_engine(spec, tmp_path))
    print(f"\n{spec.label} on vLLM, mean TPOT: ours {1000 * ours:.3f} ms, vllm bench serve {1000 * theirs:.3f} ms")
    assert theirs == pytest.approx(ours, rel=AGREE_WITHIN)


@pytest.mark.parametrize("n", [0, 3], ids=["off", "eagle3"])
def test_both_drive_the_same_load_where_step_times_are_known(n: int, tmp_path: Path) -> None:
    spec = ("--speculative-config", json.dumps({"method": "eagle3", "num_speculative_tokens": n})) if n else ()
    sim = json.dumps({"base_s": 0.1, "slope": 0.0})
    with mock_process("--flavour", "vllm", "--served-model-name", "target", "--sim", sim, *spec) as (url, _):
        server = Server(url, None, "target")
        cell = asyncio.run(measure_cell(server, TRAFFIC.plan(0.0), lambda events: None))
        with bench(server, tmp_path) as theirs:
            theirs_s = theirs()
    ours_s = statistics.mean(r.tpot_s for r in cell.completed if r.tpot_s)
    print(f"\nN = {n} on the mock engine, mean TPOT: ours {1000 * ours_s:.3f} ms, theirs {1000 * theirs_s:.3f} ms")
    assert [r.n_out for r in cell.completed] == [TRAFFIC.tokens] * TRAFFIC.requests
    assert theirs_s == pytest.approx(ours_s, rel=AGREE_WITHIN)


async def on_real_engine(spec: SpecConfig, folder: Path) -> tuple[float, float]:
    """Mean TPOT in seconds of the same requests: (by our reader, by theirs)."""
    engine = VllmEngine(real_vllm.environment())
    command = engine.launch(str(real_vllm.target()), spec, real_vllm.options(running=4), free_port(), KEY)
    ready = {"ready_path": engine.ready_path(), "ready_timeout_s": real_vllm.READY_S}
    async with EngineProcess(command, folder / "engine.log", **ready), Relay(command.url) as relay:
        with bench(Server(relay.url, KEY, command.served_name), folder) as theirs:
            await asyncio.to_thread(theirs)  # every shape once
            relay.answers.clear()
            mean_s = await asyncio.to_thread(theirs)
    # Its test of the connection and its warm-up come first.
    records = [record(answer) for answer in relay.answers[-TRAFFIC.requests :]]
    assert {r.n_out for r in records} == {TRAFFIC.tokens}
    return statistics.mean(r.tpot_s for r in records if r.tpot_s), mean_s


class Relay:
    """Hands requests on to the engine at `upstream`, byte for byte; `answers` holds what our reader made of each."""

    def __init__(self, upstream: str) -> None:
        self.upstream, self.answers = upstream, list[Answer]()

    async def __aenter__(self) -> Relay:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._hand_on)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        port = free_port()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{port}"
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._session.close()
        await self._runner.cleanup()

    async def _hand_on(self, request: web.Request) -> web.StreamResponse:
        reader = StreamReader()
        reader.sent_s = time.perf_counter()
        asked = {name: request.headers[name] for name in ("Authorization", "Content-Type") if name in request.headers}
        url = self.upstream + request.path_qs
        async with self._session.request(request.method, url, data=await request.read(), headers=asked) as told:
            answer = web.StreamResponse(status=told.status, headers={"Content-Type": told.headers["Content-Type"]})
            await answer.prepare(request)
            async for data in told.content.iter_any():
                reader.feed(time.perf_counter(), data)
                await answer.write(data)
        if request.path.endswith("/completions"):
            reader.end()
            reader.ended_s = time.perf_counter()
            self.answers.append(reader.answer())
        await answer.write_eof()
        return answer


def record(answer: Answer) -> RequestRecord:
    assert answer.error is None, answer.error
    return RequestRecord(
        index=0, prompt="", task="", phase="measured", scheduled_s=0.0, sent_s=0.0, ended_s=answer.ended_s,
        chunks=answer.chunks, n_in=answer.n_in, n_out=answer.n_out, finish=answer.finish, error=None,
    )  # fmt: skip


@contextlib.contextmanager
def bench(server: Server, folder: Path) -> Iterator[Any]:
    """Runs `vllm bench serve` at each call and returns the mean TPOT it prints, in seconds."""
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

    def run() -> float:
        process.stdin.write(json.dumps(argv) + "\n")
        process.stdin.flush()
        wait_ready()
        told = json.loads(result.read_text(encoding="utf-8"))
        assert told["output_lens"] == [TRAFFIC.tokens] * TRAFFIC.requests
        return float(told["mean_tpot_ms"]) / 1000

    try:
        wait_ready()
        yield run
    finally:
        process.stdin.close()
        process.stdout.close()
        process.kill()
        process.wait()
