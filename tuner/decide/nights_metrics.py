"""How much worse one cell is than another on the same prompts, metric by metric; above 1 is worse."""

from __future__ import annotations

import numpy as np

from tuner.decide.nights_sample import CellSample
from tuner.measure.statistics import (
    Array,
    Estimate,
    bootstrap,
    bootstrap_median_ratio,
    bootstrap_sums,
    floored_mean_ratio,
)

MEDIANS = ("tpot_p50", "ttft_p50")


def worse_by(
    metric: str,
    old: CellSample,
    new: CellSample,
    offs: tuple[CellSample | None, CellSample | None] = (None, None),
    seed: int = 0,
) -> Estimate | None:
    """How much worse `new` is than `old` on the same prompts; None where it is not defined. `offs`: for speedup."""
    if old.blocked or new.blocked:
        return None
    if metric == "speedup":
        return _speedup_worse(old, new, offs, seed)
    rows = paired(old, new, metric)
    if len(rows) < 2:
        return None
    if metric in MEDIANS:
        return bootstrap_median_ratio(rows[:, ::-1].tolist(), seed)
    if metric == "goodput":
        return bootstrap(rows.tolist(), floored_mean_ratio, seed)
    with np.errstate(divide="ignore", invalid="ignore"):
        return bootstrap_sums(rows.tolist(), _tau_worse if metric == "tau" else _throughput_worse, seed)[0]


def drift_of(metric: str, first: CellSample, again: CellSample) -> float | None:
    """Log of how much worse a launch was than another of the same thing; not of speedup, which takes four cells.

    Of medians it is the median of the pairs' logs: a launch's luck moves every request alike, and what moves single
    ones is in the interval of the requests already.
    """
    rows = paired(first, again, metric)
    if first.blocked or again.blocked or len(rows) < 2:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        if metric in MEDIANS:
            value = float(np.median(np.log(rows[:, 1] / rows[:, 0])))
        elif metric == "goodput":
            value = float(np.log(floored_mean_ratio(rows)))
        else:
            value = float(np.log((_tau_worse if metric == "tau" else _throughput_worse)(rows.sum(axis=0)))[0])
    return value if np.isfinite(value) else None


def paired(old: CellSample, new: CellSample, metric: str) -> Array:
    """[requests, columns]: the figures of both nights side by side, of the prompts both completed."""
    there = {one: i for i, one in enumerate(new.ids)}
    places = [(i, there[one]) for i, one in enumerate(old.ids) if one in there]
    if not places:
        return np.empty((0, 2))
    first, second = np.array(places).T
    columns = [old.columns(metric)[first], new.columns(metric)[second]]
    rows = np.concatenate(columns, axis=1)
    return np.asarray(rows[np.isfinite(rows).all(axis=1)])


def _speedup_worse(
    old: CellSample, new: CellSample, offs: tuple[CellSample | None, CellSample | None], seed: int
) -> Estimate | None:
    """Speed-up before over speed-up now: the four cells' medians on the prompts all of them completed."""
    if offs[0] is None or offs[1] is None:
        return None
    cells = (offs[0], old, offs[1], new)
    common = set(cells[0].ids).intersection(*(cell.ids for cell in cells[1:]))
    order = [one for one in old.ids if one in common]
    if len(order) < 2 or any(cell.blocked for cell in cells):
        return None
    rows = np.stack([cell.at(order).tpot_s for cell in cells], axis=1)
    rows = rows[np.isfinite(rows).all(axis=1)]
    return bootstrap(rows.tolist(), _ratio_of_medians, seed)


def _ratio_of_medians(data: Array) -> Array:
    middle = np.median(data, axis=-2)
    return np.asarray((middle[..., 0] / middle[..., 1]) / (middle[..., 2] / middle[..., 3]))


def _tau_worse(total: Array) -> Array:
    """Columns: accepted and verify steps, before and now."""
    return np.asarray((1 + total[..., :1] / total[..., 1:2]) / (1 + total[..., 2:3] / total[..., 3:4]))


def _throughput_worse(total: Array) -> Array:
    """Columns: tokens and time in the system, before and now."""
    return np.asarray((total[..., :1] / total[..., 1:2]) / (total[..., 2:3] / total[..., 3:4]))
