"""Verdicts task by task: the same launches, judged on one kind of prompt at a time; what one setting for all of them
does to each."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tuner.decide.evidence import Evidence, Tried, gather
from tuner.decide.overall import Overall, mean_gain, overall_of, regret, worst_loss
from tuner.decide.verdict import Verdict, verdicts_of
from tuner.measure.records import Cell, CellKey, Trial
from tuner.measure.statistics import Estimate
from tuner.spec.speculation import SpecConfig

#: With fewer prompts of a task its interval says nothing.
LEAST_PROMPTS = 4


@dataclass(frozen=True, slots=True)
class TaskAdvice:
    """One task by itself. `share`: of the measured requests, which are mixed as the workload states; `own`: the one
    setting for all its cells; `gain`: of the setting for all traffic over off here; `regret`, `worst_loss`: what that
    setting loses to this task's own advice, on the mean of the cells and in the worst one."""

    task: str
    share: float
    verdicts: tuple[Verdict, ...]
    own: Overall
    gain: Estimate | None
    regret: float
    worst_loss: tuple[CellKey, float] | None


def tasks_of(evidence: Evidence) -> tuple[str, ...]:
    """Tasks that every measured cell of off has enough prompts of; empty where there is only one."""
    found = _least(evidence)
    enough = tuple(sorted(task for task, count in found.items() if count >= LEAST_PROMPTS))
    return enough if len(found) > 1 else ()


def few_prompts(evidence: Evidence) -> tuple[str, ...]:
    """Tasks that cannot be judged by themselves; empty where there is only one."""
    found = _least(evidence)
    return tuple(sorted(task for task, count in found.items() if count < LEAST_PROMPTS)) if len(found) > 1 else ()


def _least(evidence: Evidence) -> dict[str, int]:
    """Completed requests of each task in the cell of off that has fewest of it."""
    cells = [cell for off in evidence.baselines for key in off.cells if (cell := off.trial.cell(key)) is not None]
    counts = [Counter(request.task for request in cell.completed) for cell in cells]
    return {task: min(count[task] for count in counts) for task in dict.fromkeys(t for count in counts for t in count)}


def verdicts_by_task(evidence: Evidence) -> dict[str, tuple[Verdict, ...]]:
    """The load is the mix's, as it is served; only the requests that are judged are of one task."""
    return {task: verdicts_of(_of(evidence, task)) for task in tasks_of(evidence)}


def advice_by_task(evidence: Evidence, best: SpecConfig) -> tuple[TaskAdvice, ...]:
    """`best`: the setting for all traffic. Empty where none can be judged; the largest share comes first."""
    tasks = tasks_of(evidence)
    shares = _shares(evidence, tasks)
    found = []
    for task in tasks:
        own = _of(evidence, task)
        verdicts = verdicts_of(own)
        found.append(
            TaskAdvice(
                task, shares[task], verdicts, overall_of(own, verdicts), mean_gain(own, verdicts, best),
                max(0.0, regret(own, verdicts, best) or 0.0), worst_loss(verdicts, best),
            )
        )  # fmt: skip
    return tuple(sorted(found, key=lambda advice: -advice.share))


def regret_over_tasks(advice: Sequence[TaskAdvice]) -> float | None:
    """What one setting for everything loses to the best of each task and cell, by the tasks' shares."""
    total = sum(one.share for one in advice)
    return math.expm1(sum(one.share * math.log1p(one.regret) for one in advice) / total) if total else None


def _shares(evidence: Evidence, tasks: Sequence[str]) -> dict[str, float]:
    counts = dict.fromkeys(tasks, 0)
    everything = 0
    for off in evidence.baselines:
        for key in off.cells:
            cell = off.trial.cell(key)
            for request in cell.completed if cell else ():
                everything += 1
                if request.task in counts:
                    counts[request.task] += 1
    return {task: count / everything for task, count in counts.items()}


def _of(evidence: Evidence, task: str) -> Evidence:
    trials = [_only(one, task) for one in evidence.tried]
    return gather(trials, evidence.objective, dict(evidence.slo_ms), evidence.seed, dict(evidence.weights))


def _only(one: Tried, task: str) -> Trial:
    """Cells that enter no ranking enter none of a task's either."""
    return replace(one.trial, cells=tuple(_only_cell(cell, task) for cell in one.trial.cells if cell.key in one.cells))


def _only_cell(cell: Cell, task: str) -> Cell:
    """Counters are of the whole cell and were checked with it: they do not belong to a part."""
    kept = tuple(r for r in cell.requests if r.phase != "measured" or r.task == task)
    return replace(cell, requests=kept, counters_before=None, counters_after=None)
