"""Tables of everything that was measured: latency and throughput, acceptance, acceptance by position."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tuner.decide.evidence import Tried
from tuner.measure.records import Cell
from tuner.measure.statistics import Estimate
from tuner.measure.summary import CellSummary
from tuner.report.data import ReportInput
from tuner.report.derived import (
    Positions,
    cell_positions,
    draft_acceptance_rate,
    drafting_share,
    temperature_positions,
)
from tuner.report.figures import NOT_MEASURED, figure, ms, share
from tuner.report.tables import Table, table
from tuner.report.verdict_tables import place

CELL_COLUMNS = ("load", "temperature", "setting", "launch", "n")


def latency_table(data: ReportInput) -> Table:
    """A row a cell of a launch. Goodput is a column only where objectives were set."""
    columns = [*CELL_COLUMNS, "failed", "TPOT p50, ms", "TPOT mean, ms", "TTFT p50, ms", "throughput, tok/s"]
    with_goodput = bool(data.evidence.slo_ms)
    rows = []
    for one, summary, _ in _measured(data):
        row = [*_start(one, summary), f"{summary.failed} of {summary.requests + summary.failed}"]
        row += [ms(e, summary.requests) for e in (summary.tpot_p50_s, summary.tpot_mean_s, summary.ttft_p50_s)]
        row.append(figure(summary.throughput_tok_s, summary.requests))
        rows.append([*row, share(summary.goodput, summary.requests)] if with_goodput else row)
    return table([*columns, "goodput"] if with_goodput else columns, rows)


def acceptance_table(data: ReportInput) -> Table:
    columns = (*CELL_COLUMNS, "tau", "alpha", "draft acceptance rate", "drafting share")
    seed = data.evidence.seed
    return table(
        columns,
        (
            (
                *_start(one, summary),
                figure(summary.tau, summary.requests, 3),
                figure(_alpha(one, summary, cell), summary.requests, 3),
                share(draft_acceptance_rate(cell, one.spec, seed), summary.requests),
                share(drafting_share(cell, one.spec, seed) if _told(one, cell) else None, summary.requests),
            )
            for one, summary, cell in _measured(data)
            if not one.spec.is_off
        ),
    )


def position_table(data: ReportInput) -> Table:
    """a_k and alpha_k of each configuration and temperature, all loads together; n counts prompts."""
    rows = []
    # Where N moves with the load, loads do not add up to one a_k.
    for spec in (spec for spec in data.evidence.specs() if not spec.is_off and not spec.by_load):
        for temperature in dict.fromkeys(key.temperature for key in data.evidence.keys):
            found = temperature_positions(data.evidence, spec, temperature)
            rows += _position_rows((spec.label, f"{temperature:g}"), found)
    return _positions(("setting", "temperature"), rows)


def cell_position_table(data: ReportInput) -> Table:
    """The same for every cell by itself; n counts requests."""
    rows = []
    for one, summary, cell in _measured(data):
        if not one.spec.is_off:
            start = (*place(summary.key), one.spec.label)
            rows += _position_rows(start, cell_positions(cell, one.spec, data.evidence.seed))
    return _positions(("load", "temperature", "setting"), rows)


def _alpha(one: Tried, summary: CellSummary, cell: Cell) -> Estimate | None:
    return summary.alpha if _told(one, cell) else None


def _told(one: Tried, cell: Cell) -> bool:
    """Whether what was drafted is known step by step, or is the same in all: without it nobody knows which steps of N
    by load drafted nothing, or accepted all they had."""
    return not one.spec.by_load or all(r.spec is None or r.spec.drafted_by_step is not None for r in cell.completed)


def _measured(data: ReportInput) -> Iterator[tuple[Tried, CellSummary, Cell]]:
    for key in data.evidence.keys:
        for one in data.evidence.tried:
            cell = one.trial.cell(key)
            if key in one.cells and cell is not None:
                yield one, one.cells[key], cell


def _start(one: Tried, summary: CellSummary) -> list[str]:
    return [*place(summary.key), one.spec.label, str(one.trial.number), str(summary.requests)]


def _position_rows(start: tuple[str, ...], found: Positions | None) -> list[tuple[str, ...]]:
    if found is None:
        return [(*start, "a_k", NOT_MEASURED)]
    return [(*start, "a_k", *_row(found.a)), (*start, "alpha_k", *_row(found.alpha))]


def _row(estimates: Iterable[Estimate | None]) -> tuple[str, ...]:
    """n first, then a figure a position."""
    seen = list(estimates)
    n = next((e.n for e in seen if e), None)
    return (NOT_MEASURED if n is None else str(n), *(figure(e, n, 3) for e in seen))


def _positions(start: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    """Rows as wide as the deepest draft; a shallower one leaves its last positions empty."""
    lead = (*start, "figure", "n")
    width = max((len(row) for row in rows), default=len(lead))
    columns = (*lead, *(f"k = {k}" for k in range(1, width - len(lead) + 1)))
    return table(columns, (row + ("",) * (len(columns) - len(row)) for row in rows))
