"""What a token costs at every told setting of one cell, the missing N predicted where the rule allows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.decide.step_line import StepPoint, fit_line
from tuner.decide.told import ToldRow
from tuner.measure.statistics import TIE_MARGIN, Z95, Estimate
from tuner.spec.speculation import AUTOREGRESSIVE_METHODS, LOOKUP_METHODS


@dataclass(frozen=True, slots=True)
class Cost:
    """Relative cost of a token (lower is better). `sd`: relative, None where no standard error was told.

    `predicted`: between N or extrapolated; None: measured.
    """

    row: ToldRow
    value: float
    sd: float | None
    predicted: str | None = None


def ratio(better: Cost, other: Cost) -> Estimate | float:
    """How many times better the first is; with an interval only where both have a standard error."""
    value = other.value / better.value
    if better.sd is None or other.sd is None:
        return value
    spread = math.exp(Z95 * math.hypot(better.sd, other.sd))
    return Estimate(value, value / spread, value * spread, 1)


def tied(better: Cost, other: Cost) -> bool:
    """Within one percent, or not told apart by their standard errors (DEFINITIONS, Statistics).

    What a prediction leaves open makes no tie: else the least known setting would win by its smaller N.
    """
    gain = ratio(better, other)
    value = gain.value if isinstance(gain, Estimate) else gain
    # A hair over the margin is the margin: published figures are rounded.
    close = abs(value - 1) < TIE_MARGIN + 1e-9
    measured = better.predicted is None and other.predicted is None
    return close or (measured and isinstance(gain, Estimate) and gain.low <= 1 <= gain.high)


def costs(rows: Sequence[ToldRow], unit: str) -> tuple[Cost, ...]:
    """Of one cell and task: measured rows as they are, the others by L(N) / tau(N)."""
    measured = _pooled([cost for row in rows if (cost := _measured(row, unit)) is not None])
    found = list(measured)
    off = next((cost for cost in measured if cost.row.is_off), None)
    for arm in dict.fromkeys((r.method, r.draft) for r in rows if r.n and not r.tree):
        own = [row for row in rows if (row.method, row.draft) == arm and row.n]
        found += _predicted(own, [c for c in measured if c.row in own], off)
    return tuple(found)


def _pooled(measured: Sequence[Cost]) -> list[Cost]:
    """Runs of one setting are one cost: their mean."""
    runs: dict[str, list[Cost]] = {}
    for cost in measured:
        runs.setdefault(cost.row.label, []).append(cost)
    found = []
    for same in runs.values():
        value = sum(cost.value for cost in same) / len(same)
        errors = [cost.sd * cost.value for cost in same if cost.sd is not None]
        sd = math.hypot(*errors) / len(same) / value if len(errors) == len(same) else None
        found.append(Cost(same[0].row, value, sd))
    return found


def mixed(by_task: Mapping[str, Sequence[Cost]], shares: Mapping[str, float]) -> tuple[Cost, ...]:
    """Costs of the traffic: tasks weighted by their share; settings that not every task has are left out."""
    total = sum(shares.values())
    labels = list(dict.fromkeys(c.row.label for own in by_task.values() for c in own))
    found = []
    for label in labels:
        parts = [(shares[task], c) for task, own in by_task.items() for c in own if c.row.label == label]
        if len(parts) < len(by_task):
            continue
        value = sum(share * c.value for share, c in parts) / total
        sds = [(share * c.value * c.sd) for share, c in parts if c.sd is not None]
        sd = math.hypot(*sds) / total / value if len(sds) == len(parts) else None
        predicted = next((c.predicted for _, c in parts if c.predicted), None)
        found.append(Cost(parts[0][1].row, value, sd, predicted))
    return tuple(found)


def _measured(row: ToldRow, unit: str) -> Cost | None:
    if unit == "tpot_ms":
        value, error = row.tpot_ms, row.tpot_se_ms
        return Cost(row, value, error / value if error is not None else None) if value is not None else None
    rate, error = row.throughput_tok_s, row.throughput_se_tok_s
    return Cost(row, 1 / rate, error / rate if error is not None else None) if rate is not None else None


def _predicted(own: Sequence[ToldRow], measured: Sequence[Cost], off: Cost | None) -> list[Cost]:
    """The arm's chains without a time: those with a tau of their own, and for autoregressive drafts every smaller N.

    None of lookups: tools count their tau over drafting steps alone, and TPOT times that is no step time.
    """
    if own[0].method in LOOKUP_METHODS:
        return []
    taus = {row.n: row.tau for row in own if row.tau is not None}
    longest = max((row for row in own if len(row.a) == row.n), key=lambda row: row.n, default=None)
    if longest is not None and longest.method in AUTOREGRESSIVE_METHODS:
        taus = {n: 1 + sum(longest.a[:n]) for n in range(1, longest.n + 1)} | taus
    points = [(0, off.value)] if off else []
    points += [(c.row.n, c.value * taus[c.row.n]) for c in measured if c.row.n in taus]
    if len(points) < 2:
        return []
    line = fit_line([StepPoint(1, n, Estimate(step, step, step, 1)) for n, step in points])
    known = {c.row.n for c in measured}
    found = []
    for n, tau in sorted(taus.items()):
        if n not in known:
            row = next((r for r in own if r.n == n), replace(own[0], n=n, where="predicted", tpot_ms=None, a=()))
            step, basis = line.step_s(n), "between N" if n <= line.ns[-1] else "extrapolated"
            found.append(Cost(replace(row, tau=tau), step / tau, line.sd_s(n) / step, basis))
    return found
