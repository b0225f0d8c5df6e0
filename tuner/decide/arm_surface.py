"""The cost surface of one arm from measured cells, and its tau by N: what N by load is chosen from."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tuner.decide.evidence import Evidence
from tuner.decide.prospects import cell_of
from tuner.decide.step_line import StepPoint
from tuner.decide.surface import CostSurface, fit_surface
from tuner.measure.acceptance import pool
from tuner.measure.split_rule import split_taus
from tuner.measure.statistics import Estimate
from tuner.spec.candidates import Arm
from tuner.spec.speculation import LOOKUP_METHODS, OFF


def step_surface(arm: Arm, evidence: Evidence) -> CostSurface | None:
    """L(b, N) of all temperatures together, which steps do not depend on; closed loops only."""
    steps: dict[tuple[int, int], list[Estimate]] = {}
    for key in evidence.keys:
        for spec in (OFF, *arm.chains):
            cell = cell_of(evidence, spec, key)
            if cell is not None and cell.step_s is not None and key.load.concurrency:
                steps.setdefault((key.load.concurrency, spec.n), []).append(cell.step_s)
    return fit_surface([StepPoint(b, n, _mean(own)) for (b, n), own in steps.items()])


def arm_surface(arm: Arm, evidence: Evidence) -> tuple[CostSurface, tuple[float, ...]] | None:
    """L(b, N), and tau(1..N): the geometric mean over temperatures. None where off or the arm is missing."""
    surface = step_surface(arm, evidence)
    taus = [_taus(arm, evidence, t) for t in dict.fromkeys(key.temperature for key in evidence.keys)]
    if surface is None or not all(taus):
        return None
    width = min(surface.largest_n, *(len(own) for own in taus))
    logs = [[math.log(tau) for tau in own[:width]] for own in taus]
    return surface, tuple(math.exp(sum(column) / len(logs)) for column in zip(*logs, strict=True))


def _taus(arm: Arm, evidence: Evidence, temperature: float) -> list[float]:
    """tau(1..N) from the longest chain's runs at all loads; non-drafting steps count."""
    for spec in sorted(arm.chains, key=lambda s: -s.n):
        cells = [cell_of(evidence, spec, key) for key in evidence.keys if key.temperature == temperature]
        counts = pool([cell.counts for cell in cells if cell is not None and cell.counts is not None])
        steps = counts and (counts.verify_steps or counts.drafting_steps)
        if counts and steps and spec.method in LOOKUP_METHODS:
            return split_taus(counts.reached, counts.drafting_steps, steps)
        if counts and steps:
            return [1 + sum(counts.reached[:n]) / steps for n in range(1, spec.n + 1)]
    return []


def _mean(estimates: Sequence[Estimate]) -> Estimate:
    count = len(estimates)
    value, low, high = (sum(getattr(e, name) for e in estimates) / count for name in ("value", "low", "high"))
    return Estimate(value, low, high, min(e.n for e in estimates))
