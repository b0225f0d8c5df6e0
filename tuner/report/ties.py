"""Settings that were not told apart, one sentence a pair with all its cells."""

from __future__ import annotations

from tuner.measure.records import CellKey
from tuner.report.data import ReportInput
from tuner.report.drift import MUCH, drifts_by_load
from tuner.report.figures import cells_text
from tuner.spec.speculation import SpecConfig


def ties(data: ReportInput) -> tuple[str, ...]:
    """One sentence a pair of settings, with the cells that do not tell them apart."""
    keys = [v.key for v in data.verdicts]
    return tuple(
        f"{best.label} is not told apart from {other.label} at {cells_text(where, keys)}."
        for (best, other), where in tied(data).items()
    )


def could_part(data: ReportInput) -> tuple[str, ...]:
    """The same as what would change the advice: more requests, unless off moved as much."""
    keys = [v.key for v in data.verdicts]
    steady = all(d is None or abs(d.value - 1) <= MUCH for _, d in drifts_by_load(data.verdicts))
    more = "more could" if steady else "more could, on a machine where off stands still"
    lines = []
    for (best, other), where in tied(data).items():
        first = "no speculation" if best.is_off else best.label
        ns = [c.ratio.n for v in data.verdicts for c in v.comparisons if c.spec == other and c.key in where and c.ratio]
        count = f"{min(ns)} requests a cell" if ns else "The requests"
        lines.append(f"{count} cannot tell {first} from {other.label} at {cells_text(where, keys)}; {more}.")
    return tuple(lines)


def tied(data: ReportInput) -> dict[tuple[SpecConfig, SpecConfig], list[CellKey]]:
    found: dict[tuple[SpecConfig, SpecConfig], list[CellKey]] = {}
    for verdict in data.verdicts:
        for other in verdict.ties:
            found.setdefault((verdict.best, other), []).append(verdict.key)
    return found
