"""What every server is asked when losslessness is tested: the same requests, in the same order, with the same seeds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.measure.lossless_greedy import TIE_16_BIT, TIE_32_BIT
from tuner.measure.records import CellKey, Load
from tuner.prompts import Prompt, load_set
from tuner.run.cell_plan import request_body, request_seed
from tuner.run.demand import CONSTRAINTS, binds
from tuner.run.question import Question
from tuner.run.verify_ask import Choice

#: Bare texts of a few tokens, since each sample costs their prefill: the first tokens after them have few likely ways
#: on, and each repeats itself, so that lookups find something to draft.
OPENERS = (
    ("colours", "red, green, red,"),
    ("animals", "the cat, the dog, the"),
    ("answers", "Yes. No. Yes."),
    ("weather", "hot, cold, hot,"),
)
#: What the openers are sampled with besides the workload's own fields; the first also sends a seed.
VARIANTS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("seeded", {}), ("plain", {}), ("top_p 0.9", {"top_p": 0.9}), ("top_k 20", {"top_k": 20}),
)  # fmt: skip
#: Fields that move log-probabilities behind the sampler's back: gaps are not told then.
REWEIGHTING = ("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "bad_words", "min_tokens")
JSON_KINDS = ("json_object", "json_schema")

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is asked. `samples`: a server and temperature; `k`: tokens a sample; `tokens`: of a greedy answer.

    `all_sampling`: also with top_p and top_k where the workload has none.
    """

    prompts: int = 32
    tokens: int = 96
    samples: int = 8192
    k: int = 5
    all_sampling: bool = True


@dataclass(frozen=True, slots=True)
class Task:
    """`greedy`, `structured`: (prompt, body); `sampled`: (prompt, body, whether seeds are sent), temperature left out.

    `concurrency`: answers in flight; `other`: those of off's second pass. `gaps`: whether to ask log-probabilities.
    """

    endpoint: str
    greedy: tuple[tuple[str, Body], ...]
    structured: tuple[tuple[str, Body], ...]
    sampled: tuple[tuple[str, Body, bool], ...]
    temperatures: tuple[float, ...]
    samples: int
    k: int
    concurrency: int
    other: int
    tolerance: float
    timeout_s: float
    seed: int
    engine: str | None
    gaps: bool = True

    @property
    def each(self) -> int:
        """Samples a prompt."""
        return -(-self.samples // len(self.sampled))


def task_of(
    question: Question, engine: str, args: Sequence[str], effort: Effort, temperatures: Sequence[float] | None = None
) -> Task:
    """The task of a workload: its own prompts, sampling fields and largest concurrency. 0 is always tested greedily;
    above it the workload's temperatures are, or 1 where it has none."""
    workload = question.workload
    plan = question.plan(CellKey(Load(concurrency=1), 0.0), {})
    unique = {prompt.id: prompt for prompt in question.prompts}.values()
    bodies = [(prompt, dict(request_body(plan, prompt))) for prompt in unique]
    base = {k: v for k, v in workload.sampling.body(0).items() if k not in ("temperature", "stop", "ignore_eos")}
    above = [t for t in workload.sampling.temperatures if t > 0] or [1.0]
    busiest = max([*workload.traffic.concurrency, 1]) if workload.traffic.concurrency else workload.running_limit
    return make_task(
        workload.traffic.endpoint,
        bodies,
        base,
        tuple(above if temperatures is None else [t for t in temperatures if t > 0]),
        effort,
        concurrency=busiest,
        limit=workload.running_limit,
        tolerance=TIE_32_BIT if _in_float32(args) else TIE_16_BIT,
        timeout_s=workload.measure.request_timeout_s,
        seed=workload.seed,
        engine=engine,
    )


def plain_task(effort: Effort, temperatures: Sequence[float], concurrency: int, seed: int, tolerance: float) -> Task:
    """The task for two addresses: the vendored chat prompts and the engine's own sampling."""
    prompts = load_set("chat") + load_set("code")
    bodies = [(p, {"messages": [{"role": r, "content": c} for r, c in p.messages]}) for p in prompts]
    above = tuple(t for t in temperatures if t > 0)
    return make_task(
        "chat", bodies, {}, above, effort, concurrency=concurrency, limit=concurrency, tolerance=tolerance,
        timeout_s=300.0, seed=seed, engine=None,
    )  # fmt: skip


def make_task(
    endpoint: str,
    bodies: Sequence[tuple[Prompt, dict[str, Any]]],
    base: Mapping[str, Any],
    temperatures: tuple[float, ...],
    effort: Effort,
    *,
    concurrency: int,
    limit: int,
    tolerance: float,
    timeout_s: float,
    seed: int,
    engine: str | None,
) -> Task:
    bound = [(p.id, body) for p, body in bodies if constraint(body)]
    free = [
        (p.id, body | {"temperature": 0.0, "max_tokens": effort.tokens}) for p, body in bodies if not constraint(body)
    ]
    variants = VARIANTS if effort.all_sampling else VARIANTS[:2] * 2
    sampled = [
        (f"{name}, {variant}", {"prompt": text, "max_tokens": effort.k, **base, **fields}, variant == "seeded")
        for (name, text), (variant, fields) in zip(OPENERS, variants, strict=True)
    ]
    other = concurrency // 2 or (2 if limit > 1 else 1)
    return Task(
        endpoint, tuple(free[: effort.prompts]), tuple(bound[: effort.prompts]), tuple(sampled), temperatures,
        effort.samples, effort.k, concurrency, other, tolerance, timeout_s, seed, engine,
        gaps=not any(body.get(field) for _, body in free for field in REWEIGHTING),
    )  # fmt: skip


def seed_of(task: Task, arm: str, prompt: str, number: int) -> int:
    """Different in every arm and request: equal seeds would make two servers' samples depend on one another."""
    return request_seed(task.seed, f"{arm}:{prompt}:{number}")


def constraint(body: Body) -> str | None:
    """The field that binds an answer to a grammar; tools do only where the model chooses to call one."""
    return next((name for name in CONSTRAINTS if name != "tools" and binds(body.get(name))), None)


def what_is_wrong(body: Body, choice: Choice) -> str | None:
    """Why an answer bound to a grammar cannot be used; None for one that ended and, where JSON was asked, parses."""
    if not choice.ended:
        return f"it did not end within {len(choice.tokens)} tokens"
    schema = _json_schema(body)
    if schema is None:
        return None
    try:
        value = json.loads(choice.text)
    except ValueError as error:
        return f"it is no JSON: {error}"
    missing = [name for name in schema.get("required") or () if not isinstance(value, dict) or name not in value]
    return f"it lacks {missing[0]!r}, which its schema requires" if missing else None


def _json_schema(body: Body) -> Mapping[str, Any] | None:
    """The schema of the answer, {} where any JSON will do; None where it is not JSON."""
    asked = body.get("response_format") or {}
    if asked.get("type") in JSON_KINDS:
        return dict((asked.get("json_schema") or {}).get("schema") or {})
    outputs = body.get("structured_outputs") or {}
    schema = body.get("guided_json") or body.get("json_schema") or outputs.get("json")
    if isinstance(schema, str):
        schema = json.loads(schema)
    if isinstance(schema, dict):
        return schema
    return {} if outputs.get("json_object") else None


def _in_float32(args: Sequence[str]) -> bool:
    joined = " ".join(args).replace("=", " ")
    return "--dtype float32" in joined or "--dtype float " in joined + " "
