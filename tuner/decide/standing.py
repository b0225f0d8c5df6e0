"""How settings stand to each other in one cell: paired, and with the luck of a single run taken out.

Two launches of one arm accept by the same a_k, whatever the load, and their step times lie on one line. A cell alone
knows its own tau only as well as its own steps tell. So TPOT is set to the tau of all runs of the arm at that
temperature and to the fitted step time; the same prompts are resampled for every setting.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from tuner.decide.evidence import Evidence
from tuner.decide.prefix_rule import holds
from tuner.decide.step_line import StepPoint, fit_line
from tuner.measure.records import CellKey
from tuner.measure.rows import RequestRows
from tuner.measure.statistics import Array, Estimate, estimate_of, is_tie, resampling
from tuner.measure.summary import CellSummary
from tuner.spec.speculation import SpecConfig

RESAMPLES = 500


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """Logarithm of what the objective is paid in (time per token; lower is better), and its resamples."""

    cost: float
    draws: Array
    n: int

    def better_than(self, other: Standing) -> Estimate | None:
        """How many times better this one is; both of one cell, so that resamples are pairs."""
        log = estimate_of(other.cost - self.cost, other.draws - self.draws, self.n)
        return Estimate(math.exp(log.value), math.exp(log.low), math.exp(log.high), log.n) if log else None


def standings(evidence: Evidence, key: CellKey) -> dict[SpecConfig, Standing]:
    """Of every setting measured in the cell; empty where the settings share fewer than two requests."""
    cells = {spec: one.cells[key] for spec in evidence.specs() if (one := evidence.best_trial(spec, key)) is not None}
    rows = {spec: cell.rows for spec, cell in cells.items() if cell.rows is not None and len(cell.rows)}
    if not rows:
        return {}
    shared = set.intersection(*(set(own.ids) for own in rows.values()))
    ids = [one for one in next(iter(rows.values())).ids if one in shared]
    if len(ids) < 2:
        return {}
    paired = {spec: own.take(ids) for spec, own in rows.items()}
    weights = resampling(len(ids), evidence.seed, RESAMPLES)
    if evidence.objective == "tpot_p50":
        return _time_per_token(evidence, key, paired, weights)
    return (
        {spec: _throughput(own, weights) for spec, own in paired.items()} if evidence.objective == "throughput" else {}
    )


def _throughput(rows: RequestRows, weights: Array) -> Standing:
    """Time in the system a token, pooled."""
    value = math.log(rows.ended_s.sum() / rows.n_out.sum())
    return Standing(value, np.log((weights @ rows.ended_s) / (weights @ rows.n_out)), len(rows))


def _time_per_token(
    evidence: Evidence, key: CellKey, paired: Mapping[SpecConfig, RequestRows], weights: Array
) -> dict[SpecConfig, Standing]:
    """Mean logarithm of TPOT, times own tau over pooled tau, times fitted over own step time."""
    found = {}
    arms: dict[object, list[SpecConfig]] = {}
    for spec in (s for s in evidence.specs() if s.n and not s.by_load):
        arms.setdefault(spec.arm, []).append(spec)
    shared = {arm for arm, chains in arms.items() if holds(evidence, chains)}
    lines = _fitted_steps(paired, weights, shared)
    for spec, rows in paired.items():
        log_tpot = np.log(rows.tpot_s)
        value, draws = float(log_tpot.mean()), weights @ log_tpot / len(rows)
        if spec.n and not spec.by_load:
            here = _tau(rows.steps, rows.tau[:, spec.n - 1], weights)
            told = _pooled_tau(_runs(evidence, key.temperature, spec, spec.arm in shared), spec, rows)
            pooled = _tau(rows.steps, told, weights)
            value += math.log(here[0] / pooled[0])
            draws = draws + np.log(here[1] / pooled[1])
        if spec in lines:
            value += lines[spec][0]
            draws = draws + lines[spec][1]
        found[spec] = Standing(value, draws, len(rows))
    return found


def _tau(steps: Array, tau: Array, weights: Array) -> tuple[float, Array]:
    """Pooled over requests, each with its steps and its own tau: value and resamples."""
    return float(steps @ tau / steps.sum()), weights @ (steps * tau) / (weights @ steps)


def _pooled_tau(runs: Iterable[CellSummary], spec: SpecConfig, rows: RequestRows) -> Array:
    """tau(n) of each request, by prompt, position by position from all runs that tell it."""
    place = {prompt: i for i, prompt in enumerate(dict.fromkeys(prompt for _, prompt in rows.ids))}
    reached, steps = np.zeros((len(place), spec.n)), np.zeros((len(place), spec.n))
    for cell in runs:
        own = cell.rows
        assert own is not None
        keep = [i for i, (_, prompt) in enumerate(own.ids) if prompt in place]
        at = np.array([place[own.ids[i][1]] for i in keep], dtype=np.intp)
        width = min(spec.n, cell.spec.n)
        by_position = np.diff(own.tau[keep], axis=1, prepend=1.0)[:, :width] * own.steps[keep, None]
        np.add.at(reached[:, :width], at, by_position)
        np.add.at(steps[:, :width], at, own.steps[keep, None])
    tau = 1 + (reached / steps).sum(axis=1)
    return np.asarray(tau[[place[prompt] for _, prompt in rows.ids]])


def _runs(evidence: Evidence, temperature: float, spec: SpecConfig, any_n: bool) -> Iterable[CellSummary]:
    """Cells of the arm at one temperature: at any N where one N tells another, else at the same N."""
    for one in evidence.tried:
        same = one.spec == spec or (any_n and one.spec.arm == spec.arm and one.spec.n > 0)
        for key, cell in one.cells.items() if same else ():
            if key.temperature == temperature and cell.rows is not None and cell.rows.tau.shape[1] >= cell.spec.n:
                yield cell


def _fitted_steps(
    paired: Mapping[SpecConfig, RequestRows], weights: Array, shared: Set[object]
) -> dict[SpecConfig, tuple[float, Array]]:
    """log(fitted L / own L) and resamples, for every chain of the arms in `shared`."""
    found = {}
    off = [spec for spec in paired if spec.is_off]
    arms = dict.fromkeys(s.arm for s in paired if s.n and s.arm in shared)
    for arm in arms:
        specs = off + sorted((s for s in paired if s.arm == arm and s.n), key=lambda s: s.n)
        steps = [_step(paired[spec], weights) for spec in specs]
        estimates = [estimate_of(value, draws, len(weights[0])) for value, draws in steps]
        points = [StepPoint(1, s.n, e) for s, e in zip(specs, estimates, strict=True) if e is not None]
        if len(points) < len(specs):
            continue
        line = fit_line(points)
        values, draws = np.array([v for v, _ in steps]), np.stack([d for _, d in steps], axis=1)
        for i, spec in enumerate(specs):
            at = line.weights(spec.n)
            if not spec.is_off:
                found[spec] = (math.log(float(at @ values) / values[i]), np.log(draws @ at / draws[:, i]))
    return found


def _step(rows: RequestRows, weights: Array) -> tuple[float, Array]:
    return float(rows.decode_s.sum() / rows.steps.sum()), (weights @ rows.decode_s) / (weights @ rows.steps)


def tied_with(best: SpecConfig, found: Mapping[SpecConfig, Standing], among: Sequence[SpecConfig]) -> list[SpecConfig]:
    """Those of `among` that `best` is not told apart from."""
    ratios = {spec: found[best].better_than(found[spec]) for spec in among if spec != best}
    return [spec for spec, ratio in ratios.items() if ratio is None or is_tie(ratio)]
