"""Advice from told rows: per cell and for all of them, with ties, worst-case loss and what the rows cannot tell."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tuner.decide.told import Place, Refused, ToldRow, believe, one_unit, unit_reasons
from tuner.decide.told_costs import Cost, costs, mixed, tied
from tuner.decide.told_scope import Served, carries_over
from tuner.decide.verdict import MEMORY_ORDER
from tuner.measure.records import CellKey, Load
from tuner.measure.statistics import TIE_MARGIN


@dataclass(frozen=True, slots=True)
class CellAdvice:
    """`gain`: over off, None where off was not told. `best` is the cheapest of `ties` and itself."""

    place: Place
    best: Cost | None
    ties: tuple[Cost, ...]
    gain: float | None
    costs: tuple[Cost, ...]
    missed: tuple[tuple[str, str], ...]
    by_task: tuple[tuple[str, Cost], ...] = ()

    def feasible(self) -> dict[str, Cost]:
        """By label: what meets the SLO here."""
        late = {label for label, _ in self.missed}
        return {cost.row.label: cost for cost in self.costs if cost.row.label not in late}


@dataclass(frozen=True, slots=True)
class ToldAdvice:
    """`verdict`: on, off, mixed, or undecided; on and off hold for `best`, the one setting for all cells, in each cell.
    `single`: (label, worst loss to a cell's own best), least loss first."""

    verdict: str
    best: str | None
    ties: tuple[str, ...]
    reasons: tuple[str, ...]
    refused: tuple[Refused, ...]
    cells: tuple[CellAdvice, ...]
    single: tuple[tuple[str, float], ...]


def advise(
    told: Sequence[ToldRow],
    *,
    objective: str = "tpot_p50",
    slo_ms: Mapping[str, float] | None = None,
    temperatures: Sequence[float] | None = None,
    tp: int | None = None,
    loads: Sequence[Load] | None = None,
    weights: Mapping[CellKey, float] | None = None,
    shares: Mapping[str, float] | None = None,
) -> ToldAdvice:
    """What will be served: as `Served` has it, None where nobody said; rows of other cells do not carry over."""
    rows, refused = believe(told)
    served = Served(temperatures, tp, loads, weights or {}, shares or {})
    rows, reasons = carries_over(rows, served)
    if not rows:
        return ToldAdvice("undecided", None, (), (*reasons, "no row is left to advise from"), refused, (), ())
    unit = one_unit(rows, objective)
    cells = tuple(_cell(place, rows, unit, slo_ms or {}) for place in dict.fromkeys(row.cell for row in rows))
    single = worst_losses(cells)
    reasons += (*_reasons(cells), *unit_reasons(rows, unit, objective), *_dead_tails(rows))
    best, ties = _overall(cells, single, served)
    if len(cells) > 1:
        reasons += tuple(_one_for_all(cells, single, best, served))
    return ToldAdvice(_verdict(cells, best), best, ties, reasons, refused, cells, single)


def worst_losses(cells: Sequence[CellAdvice]) -> tuple[tuple[str, float], ...]:
    """Of every setting that all cells have and that meets the SLO in each: the most throughput it loses to a cell's own
    best, least first."""
    tables = _feasible_values(cells)
    labels = [label for label in tables[0] if all(label in table for table in tables)] if tables else []
    losses = [(label, max(1 - min(table.values()) / table[label] for table in tables)) for label in labels]
    return tuple(sorted(losses, key=lambda pair: pair[1]))


def _feasible_values(cells: Sequence[CellAdvice]) -> list[dict[str, float]]:
    return [{label: cost.value for label, cost in cell.feasible().items()} for cell in cells]


def _cell(place: Place, rows: Sequence[ToldRow], unit: str, slo_ms: Mapping[str, float]) -> CellAdvice:
    own = [row for row in rows if row.cell == place]
    by_task = {task: costs([r for r in own if r.task == task], unit) for task in dict.fromkeys(r.task for r in own)}
    told = {r.task: r.share for r in own if r.share is not None}
    every = mixed(by_task, {task: told.get(task, 1.0 if not told else 0.0) for task in by_task})
    missed = tuple(
        (c.row.label, m) for c in every for m in _missed(c, [r for r in own if r.label == c.row.label], slo_ms)
    )
    late = {label for label, _ in missed}
    fit = [c for c in every if c.row.label not in late]
    if not fit:
        return CellAdvice(place, None, (), None, every, missed)
    fastest = min(fit, key=lambda c: c.value)
    ties = [c for c in fit if c is fastest or tied(fastest, c)]
    best = min(ties, key=_preference)
    off = next((c for c in every if c.row.is_off), None)
    gain = off.value / best.value if off else None
    alone = tuple((task, min(own, key=lambda c: c.value)) for task, own in by_task.items() if own)
    tied_too = tuple(c for c in ties if c is not best)
    return CellAdvice(place, best, tied_too, gain, every, missed, alone if len(alone) > 1 else ())


def _preference(cost: Cost) -> tuple[int, int, str]:
    method = cost.row.method
    return (cost.row.drafted, MEMORY_ORDER.index(method) if method in MEMORY_ORDER else 99, cost.row.label)


def _missed(cost: Cost, rows: Sequence[ToldRow], slo_ms: Mapping[str, float]) -> list[str]:
    missed = []
    for name, limit in slo_ms.items():
        field = "tpot_ms" if name == "tpot_p50_ms" else name
        seen = [value for row in rows if (value := getattr(row, field, None)) is not None]
        if not seen:
            missed.append(f"{name}: not measured")
        elif max(seen) > limit:
            missed.append(f"{name}: {max(seen):g} over {limit:g}")
    return missed


def _overall(
    cells: Sequence[CellAdvice], single: Sequence[tuple[str, float]], served: Served
) -> tuple[str | None, tuple[str, ...]]:
    """What every cell has for its best; else the setting with the least geometric-mean cost over the traffic, ties
    resolved to the cheapest."""
    if len(cells) == 1:
        best = cells[0].best
        return (best.row.label if best else None), tuple(c.row.label for c in cells[0].ties)
    labels = [label for label, _ in single]
    if not labels:
        return None, ()
    tables = [cell.feasible() for cell in cells]
    weights = [served.weight(cell.place) for cell in cells]
    means = {label: _mean_log([table[label].value for table in tables], weights) for label in labels}
    fastest = min(means, key=lambda label: means[label])
    close = [label for label in labels if means[label] - means[fastest] < math.log1p(TIE_MARGIN)]
    own = {cell.best.row.label for cell in cells if cell.best}
    best_label = own.pop() if len(own) == 1 else min(close, key=lambda label: _preference(tables[0][label]))
    return best_label, tuple(label for label in close if label != best_label)


def _one_for_all(
    cells: Sequence[CellAdvice], single: Sequence[tuple[str, float]], best: str | None, served: Served
) -> list[str]:
    """What the one setting gives up, on the traffic's average and at most; and the one that gives up least at most."""
    if not single:
        slo = " and meets the SLO in each" if any(cell.missed for cell in cells) else ""
        return [f"one setting for all cells: none has a figure in every cell{slo}"]
    said = [f"one setting for all cells: {single[0][0]} loses at most {single[0][1]:.1%} to a cell's own best"]
    tables = _feasible_values(cells)
    if best is not None:
        losses = [table[best] / min(table.values()) for table in tables]
        mean = math.expm1(_mean_log(losses, [served.weight(cell.place) for cell in cells]))
        how = "weighted by the stated shares" if served.weights else "each cell weighted alike"
        said.append(
            f"{best} for all of it gives up {mean:.1%} on average ({how}) and {1 - 1 / max(losses):.1%} at most"
        )
    return said


def _mean_log(values: Sequence[float], weights: Sequence[float]) -> float:
    total = math.fsum(weights)
    return math.fsum(w * math.log(v) for w, v in zip(weights, values, strict=True)) / total if total else 0.0


def _verdict(cells: Sequence[CellAdvice], best: str | None) -> str:
    """On only where the one setting for all cells is worse than off in none of them."""
    if any(cell.gain is None or cell.best is None for cell in cells):
        return "undecided"
    on = [not cell.best.row.is_off for cell in cells if cell.best]
    if not any(on):
        return "off"
    if not all(on) or (len(cells) > 1 and (best in (None, "off") or _loses(cells, best))):
        return "mixed"
    return "on"


def _loses(cells: Sequence[CellAdvice], label: str | None) -> bool:
    """Whether the setting is worse than off in a cell, and not tied with it."""
    tables = [cell.feasible() for cell in cells]
    pairs = [(table["off"], table[label]) for table in tables if label in table and "off" in table]
    return any(off.value < cost.value and not tied(off, cost) for off, cost in pairs)


def place_text(place: Place) -> str:
    concurrency, temperature, tp, rate = place
    said: list[tuple[object, Callable[[], str]]] = [
        (concurrency, lambda: f"concurrency {concurrency}"),
        (rate, lambda: f"{rate:g} requests/s"),
        (temperature, lambda: f"temperature {temperature:g}"),
        (tp, lambda: f"TP {tp}"),
    ]
    return ", ".join(text() for value, text in said if value is not None) or "the one cell there is"


def _dead_tails(rows: Sequence[ToldRow]) -> Iterator[str]:
    """Positions whose tokens are drafted and verified for nothing."""
    several = len({row.cell for row in rows}) > 1
    for row in rows:
        last = row.last_accepted
        if last is not None and last < row.n:
            tail, verb = (f"token {row.n}", "is") if last + 1 == row.n else (f"tokens {last + 1} to {row.n}", "are")
            task = f" for {row.task}" if row.task != "all" else ""
            where = f" at {place_text(row.cell)}" if several else ""
            smaller = f"try N={last}" if last else "leave it off"
            yield f"{tail} of a draft by {row.label} {verb} never accepted{task}{where}: {smaller}"


def _reasons(cells: Sequence[CellAdvice]) -> list[str]:
    reasons = []
    for cell in cells:
        where = place_text(cell.place)
        reasons += [f"at {where}, {label} misses the SLO ({text})" for label, text in cell.missed]
        if cell.best is None:
            reasons.append(f"at {where} no setting meets the SLO")
            continue
        said = f"at {where}, {cell.best.row.label}"
        if cell.best.row.is_off:
            rest = [c for c in cell.costs if not c.row.is_off]
            next_best = min(rest, key=lambda c: c.value, default=None)
            ratio = f", {cell.best.value / next_best.value:.2f}x with {next_best.row.label}" if next_best else ""
            said += f" is best{ratio}"
        elif cell.gain is not None:
            said += f" is {cell.gain:.2f}x off"
        else:
            said += " is best; off was not measured, so whether to speculate at all cannot be said"
        if cell.ties:
            said += f"; tied with {', '.join(c.row.label for c in cell.ties)}, and the smaller N wins a tie"
        for task, alone in cell.by_task:
            said += f"; for {task} alone {alone.row.label}"
        if cell.best.predicted:
            said += f" (predicted, {cell.best.predicted}: measure it before you rely on it)"
        reasons.append(said)
    if all(c.sd is None for cell in cells for c in cell.costs if c.predicted is None):
        reasons.append("no standard error was told: only differences under 1 percent are taken for ties")
    return reasons
