"""Verdicts task by task: the same launches, judged on one kind of prompt at a time."""

from __future__ import annotations

from dataclasses import replace

from tuner.decide.evidence import Evidence, gather
from tuner.decide.verdict import Verdict, verdict_of
from tuner.measure.records import Cell, Trial

#: With fewer prompts of a task its interval says nothing.
LEAST_PROMPTS = 4


def tasks_of(evidence: Evidence) -> tuple[str, ...]:
    """Tasks that every measured cell of off has enough prompts of; empty where there is only one."""
    found: dict[str, int] = {}
    for off in evidence.baselines:
        for key in off.cells:
            cell = off.trial.cell(key)
            counts: dict[str, int] = {}
            for request in cell.completed if cell else ():
                counts[request.task] = counts.get(request.task, 0) + 1
            for task, count in counts.items():
                found[task] = min(found.get(task, count), count)
    enough = tuple(sorted(task for task, count in found.items() if count >= LEAST_PROMPTS))
    return enough if len(found) > 1 else ()


def verdicts_by_task(evidence: Evidence) -> dict[str, tuple[Verdict, ...]]:
    """The load is the mix's, as it is served; only the requests that are judged are of one task."""
    found = {}
    for task in tasks_of(evidence):
        trials = [_only(one.trial, task) for one in evidence.tried]
        own = gather(trials, evidence.objective, dict(evidence.slo_ms), evidence.seed, dict(evidence.weights))
        found[task] = tuple(verdict_of(own, key) for key in own.keys if own.baseline(key))
    return found


def _only(trial: Trial, task: str) -> Trial:
    return replace(trial, cells=tuple(_only_cell(cell, task) for cell in trial.cells))


def _only_cell(cell: Cell, task: str) -> Cell:
    """Counters are of the whole cell and were checked with it: they do not belong to a part."""
    kept = tuple(r for r in cell.requests if r.phase != "measured" or r.task == task)
    return replace(cell, requests=kept, counters_before=None, counters_after=None)
