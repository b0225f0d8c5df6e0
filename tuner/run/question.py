"""A workload with everything it names found: engine, model, drafts, prompts. All of it before any launch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.engines.base import LaunchOptions
from tuner.engines.environments import Environment, find_environment
from tuner.engines.models import find_model
from tuner.errors import UserError
from tuner.measure.records import CellKey, Load
from tuner.prompts import Prompt, interleave, load_set
from tuner.run.auto_drafts import auto_drafts
from tuner.run.cell_plan import CellPlan
from tuner.run.process import port_is_busy
from tuner.spec.candidates import Arm, Removed, arm_of, named
from tuner.spec.load import resolve_path
from tuner.spec.workload import Budget, Draft, EngineExtras, Workload

WARMUP_REQUESTS = 8


@dataclass(frozen=True, slots=True)
class Question:
    """One workload, resolved. `target` and every draft are folders or hub ids an engine can be given.

    `cautions`: (engine, sentence) of what preflight warns of; reports repeat them.
    """

    workload: Workload
    text: str
    environments: tuple[Environment, ...]
    target: str
    arms: tuple[Arm, ...]
    removed: tuple[Removed, ...]
    prompts: tuple[Prompt, ...]
    cautions: tuple[tuple[str, str], ...] = ()

    @property
    def is_auto(self) -> bool:
        """Whether the drafts were chosen here and not named."""
        return self.workload.drafts == "auto"

    @property
    def keys(self) -> tuple[CellKey, ...]:
        """Every cell, by temperature, then by load from light to heavy."""
        temperatures = dict.fromkeys(self.workload.sampling.temperatures)
        return tuple(CellKey(load, t) for t in temperatures for load in sorted(loads_of(self.workload), key=_weight))

    def options(self, environment: Environment) -> LaunchOptions:
        return launch_options(self.workload, environment.name)

    def plan(self, key: CellKey, extras: dict[str, object]) -> CellPlan:
        """What a cell sends; equal in every arm but for the engine's own request fields."""
        workload = self.workload
        warmup, measured = cell_size(workload, key.load)
        return CellPlan(
            key=key,
            prompts=self.prompts,
            warmup=warmup,
            measured=measured,
            max_output_tokens=workload.traffic.max_output_tokens,
            sampling=workload.sampling.body(key.temperature),
            endpoint=workload.traffic.endpoint,
            chat_template_kwargs=workload.traffic.chat_template_kwargs,
            extras=extras,
            seed=workload.seed,
            timeout_s=workload.measure.request_timeout_s,
            # Fillers run to their end, so that the engine's counters and the records cover the same requests.
            cancel_fillers=False,
        )


def loads_of(workload: Workload) -> tuple[Load, ...]:
    """As the workload lists them, concurrency first."""
    traffic = workload.traffic
    return (*(Load(concurrency=c) for c in traffic.concurrency), *(Load(rate=r) for r in traffic.rates))


def cell_weights(workload: Workload) -> dict[CellKey, float]:
    """Shares of the stated traffic by cell, relative; empty where none were stated and all cells count alike."""
    loads, temperatures = loads_of(workload), workload.sampling.temperatures
    by_load, by_temperature = workload.traffic.load_shares, workload.sampling.temperature_shares
    if by_load is None and by_temperature is None:
        return {}
    at_load = dict(zip(loads, by_load or [1.0] * len(loads), strict=True))
    at_temperature = dict(zip(temperatures, by_temperature or [1.0] * len(temperatures), strict=True))
    return {CellKey(load, t): at_load[load] * at_temperature[t] for load in loads for t in temperatures}


def _weight(load: Load) -> tuple[bool, float]:
    """Closed loops first, each kind from light to heavy."""
    return (load.concurrency is None, load.concurrency or load.rate or 0.0)


def launch_options(workload: Workload, engine: str) -> LaunchOptions:
    """What every launch of a workload on one engine has in common."""
    chosen = workload.engine_options
    own = chosen.by_engine.get(engine, EngineExtras())
    return LaunchOptions(
        max_running_requests=workload.running_limit,
        max_model_len=chosen.max_model_len,
        tensor_parallel=chosen.tensor_parallel,
        prefix_caching=chosen.prefix_caching,
        args=(*chosen.args, *own.args),
        env=tuple(sorted((chosen.env | own.env).items())),
        seed=workload.seed,
    )


def cell_size(workload: Workload, load: Load) -> tuple[int, int]:
    """(warm-up, measured) requests of a cell. Warm-up fills every slot at least once."""
    in_flight = load.concurrency or 1
    warmup = max(in_flight, workload.measure.warmup_requests or WARMUP_REQUESTS)
    return warmup, max(workload.measure.requests, workload.measure.waves * in_flight)


def resolve(
    workload: Workload,
    path: Path,
    engine_at: Callable[[str], Environment] = find_environment,
    weights_at: Callable[[str], str] = find_model,
) -> Question:
    """Find everything the workload names; paths are relative to the folder of `path`.

    `engine_at`, `weights_at`: how names of engines and models are found; planning needs neither to be installed.
    """
    base = path.resolve().parent
    environments = tuple(engine_at(name) for name in workload.engines)
    if strangers := set(workload.engine_options.by_engine) - set(workload.engines):
        names = ", ".join(workload.engines)
        raise UserError(
            f"{path}: engine_options.by_engine has {min(strangers)}, which is not among the engines ({names})"
        )
    target = weights_at(resolve_path(base, workload.model))
    arms: list[Arm] = []
    removed: list[Removed] = []
    drafts: Sequence[Draft]
    if workload.drafts == "auto":
        found = auto_drafts(target, environments)
        drafts, removed = found.drafts, list(found.removed)
    else:
        drafts = workload.drafts
    for draft in drafts:
        model = weights_at(resolve_path(base, draft.model)) if draft.model else None
        arm, gone = arm_of(draft, model)
        if not arm.configs:
            raise UserError(f"{path}: draft '{draft.method}' has no setting left to try: {gone[0].reason}")
        arms.append(arm)
        removed += gone
    return Question(
        workload, path.read_text(encoding="utf-8"), environments, target, named(arms), tuple(removed),
        workload_prompts(workload, base),
    )  # fmt: skip


def with_budget(question: Question, minutes: float | None, launches: int | None) -> Question:
    """The same question with another budget; None keeps the workload's own. UserError where it affords nothing."""
    given = {"minutes": minutes, "launches": launches}
    for name, value in given.items():
        affords(name, value)
    budget = Budget(**question.workload.budget.model_dump() | {k: v for k, v in given.items() if v is not None})
    return replace(question, workload=question.workload.model_copy(update={"budget": budget}))


def affords(option: str, value: float | None) -> None:
    """UserError for a budget on the command line that is not above 0; a comparison with nan is never true."""
    if value is not None and not 0 < value < math.inf:
        raise UserError(f"--{option} {value:g} affords nothing: give a number above 0")


def check_engines(question: Question) -> None:
    """Engines that can be launched, on a port that is free."""
    port = question.workload.engine_options.port
    if port and port_is_busy(port):
        raise UserError(
            f"engine_options.port {port} is in use: end what listens there, or leave port out for a free one"
        )
    for environment in question.environments:
        if environment.url:
            raise UserError(
                f"engine '{environment.name}' is an address that already serves, and comparing settings needs "
                "launches: register its environment with --python, or look at it as it is with "
                f"`tuner acceptance --url {environment.url}`"
            )


def workload_prompts(workload: Workload, base: Path) -> tuple[Prompt, ...]:
    """As many prompts as the largest cell sends, mixed by share, in one order for every arm."""
    count = max(sum(cell_size(workload, load)) for load in loads_of(workload))
    shares = [(load_set(item.set, base), item.share) for item in workload.traffic.prompts]
    return interleave(shares, count, workload.seed)
