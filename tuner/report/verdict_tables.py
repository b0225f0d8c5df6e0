"""Tables a decision is read from: verdicts, service-level objectives, break-even, predictions, drift."""

from __future__ import annotations

from tuner.decide.rank import Comparison, Verdict
from tuner.measure.records import CellKey
from tuner.measure.summary import CellSummary
from tuner.report.advice import decisive, verdict_word
from tuner.report.calibration import confirmations
from tuner.report.changes import alpha_text
from tuner.report.data import ReportInput
from tuner.report.drift import drifts_by_load
from tuner.report.figures import NOT_MEASURED, NOT_RANKED, change, figure, moved, ms, ratio
from tuner.report.step_account import StepAccount, step_account
from tuner.report.tables import Table, table
from tuner.spec.speculation import LOOKUP_METHODS, OFF, SpecConfig

RATIO_COLUMN = {"tpot_p50": "speed-up (TPOT p50)", "throughput": "throughput over off", "goodput": "goodput over off"}
#: Why there is no break-even: a step cannot be quicker than a plain one.
BELOW_1 = "below 1: not defined"
READINGS = {
    "agrees": "yes",
    "contradicts": "no: go by the measured one",
    "undefined": "no: go by the measured one",
}


def verdict_table(data: ReportInput) -> Table:
    """A row a cell: what to do, and the comparison that decides it."""
    gain = RATIO_COLUMN[data.evidence.objective]
    columns = (
        "load", "temperature", "advice", "closest rival" if verdict_word(data) == "off" else "decided by", gain,
        "TPOT p50 off, ms", "TPOT p50 with it, ms", "why",
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


def break_even_table(data: ReportInput) -> Table:
    """tau and alpha at which each setting would just pay, beside the measured ones and the measured gain. Lookups have
    no alpha to be compared; where nothing else was tried its columns are left out."""
    gain = RATIO_COLUMN[data.evidence.objective]
    tried = [c for verdict in data.verdicts for c in verdict.comparisons if not c.spec.is_off]
    with_alpha = any(c.spec.method not in LOOKUP_METHODS for c in tried)
    alphas = ("break-even alpha", "measured alpha") if with_alpha else ()
    columns = (
        "load", "temperature", "setting", "break-even tau", "measured tau", *alphas, "tau over break-even", gain,
        "both on one side of 1",
    )  # fmt: skip
    return table(columns, (_break_even_row(data, c, with_alpha) for c in tried))


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
    drifts = dict(drifts_by_load(data.verdicts))
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


def _break_even_row(data: ReportInput, compared: Comparison, with_alpha: bool) -> tuple[str, ...]:
    account, cell = step_account(data, compared), _cell(data, compared.spec, compared.key)
    defined = account is not None and account.reading != "undefined"
    alphas = (NOT_MEASURED if account is None else BELOW_1, figure(cell.alpha if cell else None, decimals=3))
    if account is not None and defined:
        alphas = (alpha_text(account.point), alphas[1])
    if compared.spec.method in LOOKUP_METHODS:
        alphas = ("", "")
    return (
        *place(compared.key),
        compared.spec.label,
        _break_even_tau(account),
        figure(cell.tau if cell else None, decimals=2),
        *(alphas if with_alpha else ()),
        NOT_MEASURED if account is None else f"{account.gain:.2f}x" if defined else BELOW_1,
        ratio(compared.ratio),
        NOT_RANKED if compared.lossy else "" if account is None else READINGS[account.reading],
    )


def _break_even_tau(account: StepAccount | None) -> str:
    if account is None:
        return NOT_MEASURED
    return BELOW_1 if account.reading == "undefined" else figure(account.point.tau, decimals=2)


def _verdict_row(data: ReportInput, verdict: Verdict) -> tuple[str, ...]:
    rests_on = decisive(verdict)
    off = _cell(data, OFF, verdict.key)
    on = _cell(data, rests_on.spec, verdict.key) if rests_on else None
    missing = NOT_RANKED if any(c.lossy for c in verdict.comparisons) else _no_rival(data, verdict)
    plain = "**none**" if verdict_word(data) == "undecided" else "**leave off**"
    return (
        *place(verdict.key),
        f"**{verdict.best.label}**" if verdict.on else plain,
        _rival(data, verdict, rests_on),
        ratio(rests_on.ratio) if rests_on else missing,
        ms(off.tpot_p50_s) if off else NOT_MEASURED,
        ms(on.tpot_p50_s) if on else missing,
        verdict.reason,
    )


def _no_rival(data: ReportInput, verdict: Verdict) -> str:
    """Settings may have been measured there that the verdict must not hold against off."""
    measured = {spec for spec in data.evidence.specs() if data.evidence.best_trial(spec, verdict.key)}
    return "not ranked" if measured - {c.spec for c in verdict.comparisons} else NOT_MEASURED


def _cell(data: ReportInput, spec: SpecConfig, key: CellKey) -> CellSummary | None:
    one = data.evidence.best_trial(spec, key)
    return one.cells[key] if one else None


def _rival(data: ReportInput, verdict: Verdict, rests_on: Comparison | None) -> str:
    """Where off is the advice nothing else decided: the setting named came closest."""
    if rests_on is None:
        return "none is lossless" if any(c.lossy for c in verdict.comparisons) else _no_rival(data, verdict)
    closest = not verdict.on and verdict_word(data) != "off"
    return f"closest rival: {rests_on.spec.label}" if closest else rests_on.spec.label


def _yes(value: bool) -> str:
    return "yes" if value else "no"
