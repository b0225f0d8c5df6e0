"""Intervals, from the stored records, of figures a cell's summary holds without one. Resampled by request or prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.decide.break_even import Alphas, break_even, need
from tuner.decide.evidence import Evidence, Tried
from tuner.measure.acceptance import AcceptanceCounts, pool, request_counts
from tuner.measure.compare import pairs
from tuner.measure.records import Cell, CellKey, RequestRecord
from tuner.measure.statistics import Array, Estimate, bootstrap, ratio_of_sums
from tuner.measure.summary import verify_steps
from tuner.spec.speculation import LOOKUP_METHODS, OFF, SpecConfig


@dataclass(frozen=True, slots=True)
class Positions:
    """Acceptance by position, from sums by request or by prompt. None: no step came that far."""

    a: tuple[Estimate | None, ...]
    alpha: tuple[Estimate | None, ...]


@dataclass(frozen=True, slots=True)
class BreakEvenPoint:
    """What a configuration must reach in a cell to pay. `alpha`: value, low, high; None where none reaches tau.

    `alpha_defined`: False for lookups, which draft in some steps only, trees and N by load: no one alpha gives tau.
    """

    spec: SpecConfig
    key: CellKey
    tau: Estimate
    alpha: Alphas
    alpha_defined: bool


def draft_acceptance_rate(cell: Cell, spec: SpecConfig, seed: int) -> Estimate | None:
    """accepted / drafted."""
    return _pooled([[c.accepted, c.drafted] for c in _counts(cell, spec) if c.drafted is not None], seed)


def drafting_share(cell: Cell, spec: SpecConfig, seed: int) -> Estimate | None:
    """Drafting steps / verify steps."""
    return _pooled([[c.drafting_steps, c.verify_steps] for c in _counts(cell, spec) if c.verify_steps], seed)


def temperature_drafting_share(evidence: Evidence, spec: SpecConfig, temperature: float) -> float | None:
    """Drafting steps / verify steps, all loads at one temperature together."""
    counts = []
    for key in (k for k in evidence.keys if k.temperature == temperature):
        one = evidence.best_trial(spec, key)
        cell = one.trial.cell(key) if one else None
        counts += _counts(cell, spec) if cell else []
    steps = sum(c.verify_steps or 0 for c in counts)
    return sum(c.drafting_steps for c in counts if c.verify_steps) / steps if steps else None


def cell_positions(cell: Cell, spec: SpecConfig, seed: int) -> Positions | None:
    return _positions(_counts(cell, spec), seed)


def temperature_positions(evidence: Evidence, spec: SpecConfig, temperature: float) -> Positions | None:
    """All loads at one temperature together. A prompt sent at several loads is one unit: its runs depend."""
    by_prompt: dict[str, list[AcceptanceCounts]] = {}
    for key in (k for k in evidence.keys if k.temperature == temperature):
        one = evidence.best_trial(spec, key)
        cell = one.trial.cell(key) if one else None
        for request in cell.completed if cell else ():
            counts = request_counts(request, spec.depth)
            if counts is not None:
                by_prompt.setdefault(request.prompt, []).append(counts)
    return _positions([total for counts in by_prompt.values() if (total := pool(counts))], evidence.seed)


def break_even_point(evidence: Evidence, on: Tried, key: CellKey) -> BreakEvenPoint | None:
    """L(b, N) / L(b, 0) with its interval from the requests both arms ran, and the alpha that gives such a tau."""
    off = evidence.best_trial(OFF, key)
    if off is None:
        return None
    point = break_even(off.cells[key], on.cells[key])
    cells = off.trial.cell(key), on.trial.cell(key)
    if point is None or cells[0] is None or cells[1] is None:
        return None
    rows = [[*_steps(b, on.spec), *_steps(a, OFF)] for a, b in pairs(cells[0], cells[1])]
    spread = bootstrap([row for row in rows if all(row)], _step_ratio, evidence.seed)
    if spread is None:
        return None
    tau = spread.scaled(point.tau / spread.value)
    return BreakEvenPoint(on.spec, key, tau, need(tau, on.spec.depth).alpha, alpha_defined(on.spec))


def alpha_defined(spec: SpecConfig) -> bool:
    """Whether one alpha gives a setting's tau."""
    return spec.method not in LOOKUP_METHODS and spec.tree is None and not spec.by_load


def _counts(cell: Cell, spec: SpecConfig) -> list[AcceptanceCounts]:
    if spec.is_off:
        return []
    return [counts for r in cell.completed if (counts := request_counts(r, spec.depth))]


def _positions(counts: Sequence[AcceptanceCounts], seed: int) -> Positions | None:
    if not sum(c.drafting_steps for c in counts):
        return None
    width = max(c.n for c in counts)
    rows = [[c.drafting_steps, *c.reached, *[0] * (width - c.n)] for c in counts]
    positions = range(1, width + 1)
    return Positions(
        tuple(_share(rows, k, 0, seed) for k in positions), tuple(_share(rows, k, k - 1, seed) for k in positions)
    )


def _share(rows: Sequence[Sequence[int]], above: int, below: int, seed: int) -> Estimate | None:
    estimate = bootstrap(rows, ratio_of_sums(above, below), seed)
    return estimate.as_share(sum(row[below] for row in rows)) if estimate else None


def _pooled(rows: Sequence[Sequence[int | None]], seed: int) -> Estimate | None:
    return bootstrap([[float(x or 0) for x in row] for row in rows], ratio_of_sums(), seed)


def _steps(request: RequestRecord, spec: SpecConfig) -> tuple[float, float]:
    """(decoding time, verify steps) of one request; zeros where it has none."""
    steps = verify_steps(request, spec)
    if not steps or len(request.chunks) < 2:
        return 0.0, 0.0
    return request.chunks[-1][0] - request.chunks[0][0], float(steps)


def _step_ratio(data: Array) -> Array:
    total = data.sum(axis=-2)
    return np.asarray(total[..., 0] / total[..., 1] / (total[..., 2] / total[..., 3]))
