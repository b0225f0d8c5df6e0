"""Tables a decision is read from: verdicts, service-level objectives, break-even, predictions, drift."""

from __future__ import annotations

from collections.abc import Collection

from tuner.decide.rank import Verdict
from tuner.measure.records import CellKey
from tuner.measure.summary import CellSummary
from tuner.report.advice import decisive, drifts_by_load
from tuner.report.calibration import confirmations
from tuner.report.changes import alpha_text
from tuner.report.data import ReportInput
from tuner.report.derived import break_even_point
from tuner.report.figures import NOT_MEASURED, change, figure, moved, ms, ratio
from tuner.report.tables import Table, table
from tuner.spec.speculation import OFF, SpecConfig

RATIO_COLUMN = {"tpot_p50": "speed-up (TPOT p50)", "throughput": "throughput over off", "goodput": "goodput over off"}


def verdict_table(data: ReportInput) -> Table:
    """A row a cell: what to do, and the comparison that decides it."""
    gain = RATIO_COLUMN[data.evidence.objective]
    columns = (
        "load", "temperature", "advice", "decided by", gain, "TPOT p50 off, ms", "TPOT p50 with it, ms", "why",
    )  # fmt: skip
    return table(columns, (_verdict_row(data, verdict) for verdict in data.verdicts))


def slo_table(data: ReportInput) -> Table:
    """A row a cell and configuration with a percentile over its limit."""
    rows = []
    for missing in (c for verdict in data.verdicts for c in verdict.comparisons if c.missed_slos):
        cell = _cell(data, missing.spec, missing.key)
        n = str(cell.requests) if cell else NOT_MEASURED
        rows.append((*place(missing.key), missing.spec.label, n, "; ".join(missing.missed_slos)))
    return table(("load", "temperature", "setting", "n", "objectives missed"), rows)


def break_even_table(data: ReportInput, among: Collection[SpecConfig] | None = None) -> Table:
    """tau and alpha at which each configuration would just pay, beside the measured ones. `among`: None is all."""
    columns = (
        "load", "temperature", "setting", "break-even tau", "measured tau", "break-even alpha", "measured alpha",
        "tau over break-even",
    )  # fmt: skip
    rows = []
    for key in data.evidence.keys:
        for spec in data.evidence.specs() if among is None else among:
            one = None if spec.is_off else data.evidence.best_trial(spec, key)
            point = break_even_point(data.evidence, one, key) if one else None
            if one is None or point is None:
                continue
            cell = one.cells[key]
            over = change(cell.tau.value / point.tau.value - 1) if cell.tau else NOT_MEASURED
            taus = (figure(point.tau, decimals=3), figure(cell.tau, decimals=3))
            rows.append(
                (*place(key), spec.label, *taus, alpha_text(point), figure(cell.alpha, decimals=3), over)
            )  # fmt: skip
    return table(columns, rows)


def prediction_table(data: ReportInput) -> Table:
    """Mean TPOT as predicted before a launch beside what it measured."""
    columns = ("load", "temperature", "setting", "predicted, ms", "measured, ms", "error", "intervals overlap")
    return table(
        columns,
        (
            (*place(c.key), c.spec.label, ms(c.predicted_s), ms(c.measured_s), change(c.error), _yes(c.within))
            for c in confirmations(data.evidence)
        ),
    )


def drift_table(data: ReportInput) -> Table:
    """Off at the start and at the end, wherever it was measured twice."""
    drifts = dict(drifts_by_load(data))
    rows = []
    for key in data.evidence.keys:
        runs = [one.cells[key] for one in data.evidence.baselines if key in one.cells]
        if len(runs) > 1:
            shown = (ms(run.tpot_p50_s) for run in (runs[0], runs[-1]))
            rows.append((*place(key), *shown, moved(drifts.get(key.load))))
    columns = ("load", "temperature", "off, TPOT p50 ms", "off again, TPOT p50 ms", "change (above 0: better)")
    return table(columns, rows)


def place(key: CellKey) -> tuple[str, str]:
    return key.load.text, f"{key.temperature:g}"


def _verdict_row(data: ReportInput, verdict: Verdict) -> tuple[str, ...]:
    rests_on = decisive(verdict)
    off = _cell(data, OFF, verdict.key)
    on = _cell(data, rests_on.spec, verdict.key) if rests_on else None
    return (
        *place(verdict.key),
        f"**{verdict.best.label}**" if verdict.on else "**leave off**",
        rests_on.spec.label if rests_on else NOT_MEASURED,
        ratio(rests_on.ratio) if rests_on else NOT_MEASURED,
        ms(off.tpot_p50_s) if off else NOT_MEASURED,
        ms(on.tpot_p50_s) if on else NOT_MEASURED,
        verdict.reason,
    )


def _cell(data: ReportInput, spec: SpecConfig, key: CellKey) -> CellSummary | None:
    one = data.evidence.best_trial(spec, key)
    return one.cells[key] if one else None


def _yes(value: bool) -> str:
    return "yes" if value else "no"
