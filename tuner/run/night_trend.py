"""TPOT, tau and speed-up of a night's settings over the nights before it, with intervals, from the index alone."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.decide.nights_sample import OFF
from tuner.measure.records import CLOSING, CellKey, Load
from tuner.measure.statistics import Array, Estimate, bootstrap_median, bootstrap_median_ratio, bootstrap_sums
from tuner.run.history_db import Database
from tuner.run.history_query import Run

TPOT, TAU, SPEEDUP = "tpot_p50", "tau", "speedup"
METRICS = (TPOT, TAU, SPEEDUP)
#: Lines of one study: more cannot be told apart. Off and the fastest are shown.
MOST_SETTINGS = 6
#: Cells whose intervals are worked out for one report; nights are left out from the oldest on, but never under WEEK.
MOST_CELLS, MOST_NIGHTS, WEEK = 1500, 60, 7
#: Values in one IN (...): SQLite's oldest limit is 999.
MOST_VALUES = 500

Value = tuple[float, float | None, float | None, int]


@dataclass(frozen=True, slots=True)
class TrendPoint:
    """One setting in one night: geometric means over the cells that tonight has too, `n` the requests behind them.

    A metric that is missing was not measured in all of those cells; an interval is missing (`low`, `high` None) where
    the night's request records were let go. tau and speed-up of off are not defined.
    """

    run: str
    values: dict[str, Value]


@dataclass(frozen=True, slots=True)
class TrendLine:
    study: str
    setting: str
    cells: int
    points: tuple[TrendPoint, ...]


@dataclass(frozen=True, slots=True)
class Trend:
    """`runs`: oldest first, tonight last. `left_out`: settings by study that are not drawn."""

    runs: tuple[Run, ...]
    lines: tuple[TrendLine, ...]
    left_out: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class _Cell:
    """`tpot_s` by request where the records are there. `sums`: accepted and verify steps, a row a request."""

    requests: int
    tpot_p50_s: float | None
    tau: float | None
    ids: tuple[tuple[int, str], ...]
    tpot_s: Array
    sums: Array


_Place = tuple[str, str, CellKey]


def trend_of(database: Database, runs: Sequence[Run]) -> Trend:
    """`runs`: nights of one sweep, oldest first; the last one says which settings and cells are looked at."""
    tonight = _listed(database, runs[-1])
    chosen, left_out = _chosen(tonight)
    per_night = max(1, sum(place[:2] in chosen for place in tonight))
    shown = runs[-max(WEEK, min(MOST_NIGHTS, MOST_CELLS // per_night)) :]
    asked = _questions(database, [run.id for run in shown])
    points: dict[tuple[str, str], list[TrendPoint]] = defaultdict(list)
    for run in shown:
        comparable = {study for study, _ in chosen if asked[run.id, study] == asked[runs[-1].id, study]}
        cells = _read(database, run, [place for place in tonight if place[:2] in chosen and place[0] in comparable])
        for one in chosen:
            keys = [place[2] for place in tonight if place[:2] == one]
            values = {metric: value for metric in METRICS if (value := _over(metric, one, keys, cells)) is not None}
            points[one].append(TrendPoint(run.id, values))
    lines = tuple(
        TrendLine(
            study, setting, sum(place[:2] == (study, setting) for place in tonight), tuple(points[study, setting])
        )
        for study, setting in chosen
    )
    return Trend(tuple(shown), lines, left_out)


_CELLS = (
    "SELECT cells.id, studies.label, trials.label, concurrency, rate, temperature, requests, tpot_p50_s, tau "
    "FROM cells JOIN trials ON trials.id = cells.trial JOIN studies ON studies.id = trials.study "
    f"WHERE studies.run = ? AND role <> '{CLOSING}' AND blocked = '' ORDER BY studies.folder, trials.number"
)


def _listed(database: Database, run: Run) -> dict[_Place, tuple[Any, ...]]:
    """Sound cells of a run by place: the first measurement of each."""
    found: dict[_Place, tuple[Any, ...]] = {}
    for row in database.rows(_CELLS, [run.id]):
        found.setdefault((row[1], row[2], CellKey(Load(row[3], row[4]), row[5])), row)
    return found


def _chosen(tonight: dict[_Place, tuple[Any, ...]]) -> tuple[list[tuple[str, str]], tuple[tuple[str, int], ...]]:
    """(study, setting) pairs to draw, off first and then the fastest; and how many of each study are not."""
    logs: dict[tuple[str, str], list[float]] = defaultdict(list)
    for (study, setting, _), row in tonight.items():
        if row[7]:
            logs[study, setting].append(math.log(row[7]))
    chosen: list[tuple[str, str]] = []
    left_out = []
    for study in dict.fromkeys(study for study, _ in logs):
        own = [one for one in logs if one[0] == study]
        own.sort(key=lambda one: (one[1] != OFF, sum(logs[one]) / len(logs[one])))
        chosen += own[:MOST_SETTINGS]
        if own[MOST_SETTINGS:]:
            left_out.append((study, len(own) - MOST_SETTINGS))
    return chosen, tuple(left_out)


def _questions(database: Database, runs: Sequence[str]) -> dict[tuple[str, str], str]:
    """What each study of each run asked; a study that is not there asked nothing."""
    found: dict[tuple[str, str], str] = defaultdict(str)
    for part in _parts(runs):
        places = ", ".join("?" * len(part))
        for run, label, question in database.rows(
            f"SELECT run, label, question FROM studies WHERE run IN ({places})", part
        ):
            found[run, label] = question
    return found


def _read(database: Database, run: Run, places: Sequence[_Place]) -> dict[_Place, _Cell]:
    listed = _listed(database, run)
    wanted = {place: listed[place] for place in places if place in listed}
    requests: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for part in _parts([row[0] for row in wanted.values()]):
        sql = "SELECT cell, i, prompt, tpot_s, accepted, steps FROM requests WHERE cell IN ({}) ORDER BY cell, i"
        for row in database.rows(sql.format(", ".join("?" * len(part))), part):
            requests[row[0]].append(row[1:])
    return {place: _cell(row, requests[row[0]]) for place, row in wanted.items()}


def _parts(values: Iterable[Any]) -> list[list[Any]]:
    listed = list(values)
    return [listed[i : i + MOST_VALUES] for i in range(0, len(listed), MOST_VALUES)]


def _cell(row: Sequence[Any], requests: Sequence[tuple[Any, ...]]) -> _Cell:
    columns = np.array([one[2:5] for one in requests], dtype=np.float64).reshape(-1, 3)
    ids = tuple((int(one[0]), str(one[1])) for one in requests)
    return _Cell(row[6], row[7], row[8], ids, columns[:, 0], columns[:, 1:])


def _over(metric: str, one: tuple[str, str], keys: Sequence[CellKey], cells: dict[_Place, _Cell]) -> Value | None:
    """A metric over all of a setting's cells; None where one of them lacks it."""
    study, setting = one
    if setting == OFF and metric != TPOT:
        return None
    values = []
    for key in keys:
        cell, off = cells.get((study, setting, key)), cells.get((study, OFF, key))
        value = None if cell is None else _FIGURES[metric](cell, off)
        if value is None:
            return None
        values.append(value)
    return _mean(values) if values else None


def _mean(values: Sequence[Value]) -> Value:
    """Geometric, over cells that hold independent requests: variances of the logs add. n is the sum."""
    middle = sum(math.log(value[0]) for value in values) / len(values)
    n = sum(value[3] for value in values)
    bounds = [(low, high) for _, low, high, _ in values if low and high]
    if len(bounds) < len(values):
        return math.exp(middle), None, None, n
    below = math.sqrt(sum(math.log(v[0] / low) ** 2 for v, (low, _) in zip(values, bounds, strict=True))) / len(values)
    above = math.sqrt(sum(math.log(high / v[0]) ** 2 for v, (_, high) in zip(values, bounds, strict=True)))
    return math.exp(middle), math.exp(middle - below), math.exp(middle + above / len(values)), n


def _tpot(cell: _Cell, off: _Cell | None) -> Value | None:
    seen = cell.tpot_s[np.isfinite(cell.tpot_s)]
    return _known(bootstrap_median(seen.tolist())) or _kept(cell.tpot_p50_s, cell.requests)


def _tau(cell: _Cell, off: _Cell | None) -> Value | None:
    told = cell.sums[np.isfinite(cell.sums).all(axis=1)]
    (estimate,) = bootstrap_sums(told.tolist(), _tau_of_sums) if len(told) > 1 else (None,)
    return _known(estimate) or _kept(cell.tau, cell.requests)


def _tau_of_sums(total: Array) -> Array:
    return np.asarray(1 + total[..., :1] / total[..., 1:])


def _speedup(cell: _Cell, off: _Cell | None) -> Value | None:
    """TPOT(off) / TPOT(it) on the prompts both completed."""
    if off is None:
        return None
    there = {one: i for i, one in enumerate(cell.ids)}
    rows = np.array(
        [(off.tpot_s[i], cell.tpot_s[there[one]]) for i, one in enumerate(off.ids) if one in there], dtype=np.float64
    ).reshape(-1, 2)
    rows = rows[np.isfinite(rows).all(axis=1)]
    if found := _known(bootstrap_median_ratio(rows.tolist())):
        return found
    kept = off.tpot_p50_s / cell.tpot_p50_s if off.tpot_p50_s and cell.tpot_p50_s else None
    return _kept(kept, min(off.requests, cell.requests))


_FIGURES: dict[str, Callable[[_Cell, _Cell | None], Value | None]] = {TPOT: _tpot, TAU: _tau, SPEEDUP: _speedup}


def _known(estimate: Estimate | None) -> Value | None:
    return (estimate.value, estimate.low, estimate.high, estimate.n) if estimate else None


def _kept(value: float | None, n: int) -> Value | None:
    """A figure that outlived its records."""
    return (value, None, None, n) if value else None
