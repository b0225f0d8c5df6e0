"""What both faces of a night's report are filled with: sentences, tables and charts, the same in each."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from tuner.decide.nights import EVERYTHING, IMPROVED, NO_EVIDENCE, REGRESSED, Change
from tuner.decide.nights_sample import OFF
from tuner.report.figures import NOT_MEASURED, listed
from tuner.report.night_plots import TREND_AXES, trend_charts, trend_text
from tuner.report.night_report import NightReport
from tuner.report.night_rows import HEADERS, change_row, drifts_text
from tuner.report.tables import Table, table
from tuner.run.night_trend import METRICS, TPOT

#: Suspects named at the top; all of them have a place of their own.
MOST_SUSPECTS = 3
#: Nights of the trend's table; the charts have all.
MOST_TABLED = 14
#: Rows of the table of everything compared.
MOST_ROWS = 500
#: Last lines of a dead engine's log.
MOST_LOG_LINES = 20


def night_context(report: NightReport) -> dict[str, Any]:
    comparison = report.compared.comparison
    changes = comparison.changes if comparison else ()
    return {
        "report": report,
        "title": f"{report.header.name}, {report.header.created[:16].replace('T', ' ')}",
        "verdict_word": {"green": "green: no gate failed", "red": "red: a gate failed"}.get(report.state, "no verdict"),
        "in_short": list(in_short(report)),
        "facts": facts_table(report),
        "gates": gates_table(report),
        "moved": changes_table([one for one in changes if one.state in (REGRESSED, IMPROVED)]),
        "changes": changes_table(changes[:MOST_ROWS]),
        "compared_count": len(changes),
        "change_sentence": change_sentence(report),
        "missing": comparison.missing if comparison else (),
        "suspects": [f"{one.study}: {one.text}" for one in report.compared.suspects],
        "failures": report.failures,
        "most_log_lines": MOST_LOG_LINES,
        "trend_charts": trend_charts(report.trend),
        "trend": trend_table(report),
        "left_out": report.trend.left_out,
        "command": shlex.join(["tuner", "sweep", report.header.path or f"{report.header.name}.yaml", *report.options]),
        "models": models_table(report),
        "host": host_table(report),
    }


def in_short(report: NightReport) -> Iterator[str]:
    """What moved most and what may be behind it, before any table."""
    comparison = report.compared.comparison
    for state, word in ((REGRESSED, "Regressed most"), (IMPROVED, "Improved most")):
        moved = [one for one in comparison.with_state(state) if one.worse] if comparison else []
        if moved:
            overall = [one for one in moved if one.setting == EVERYTHING]
            for one in overall:
                study, _, _, metric, by, interval, n, _ = change_row(one)
                yield f"{state.capitalize()} over every setting of {study}: {metric} {by} {interval}, n = {n}."
            most = max(moved, key=lambda one: abs(math.log(one.worse.value)) if one.worse else 0.0)
            study, setting, where, metric, by, interval, n, _ = change_row(most)
            yield f"{word}: {metric} of {setting} ({study}, {where}), {by} {interval}, n = {n}."
    if comparison and not (comparison.with_state(REGRESSED) or comparison.with_state(IMPROVED)):
        yield f"None of {len(comparison.changes)} figures is believed to have moved since {comparison.before}."
    if report.compared.suspects:
        yield f"Suspects: {'; '.join(one.text for one in report.compared.suspects[:MOST_SUSPECTS])}."
    if report.failures:
        yield f"{len(report.failures)} of {report.run.trials} launches failed; causes are below."
    for study_told in report.studies:
        if study_told.advice:
            yield f"{study_told.label}: {study_told.advice}"


def facts_table(report: NightReport) -> Table:
    run = report.run
    engines = run.engines or NOT_MEASURED
    baseline = report.compared.before.id if report.compared.before else "none"
    resumed = report.commands - 1
    again = f", after being gone on with {resumed} time{'s' * (resumed > 1)}" if resumed else ""
    rows = [
        ("night", run.id), ("status", report.status + again), ("compared with", baseline), ("engines", engines),
        ("launches", f"{run.trials}, of which {run.failed or 'none'} failed"), ("measured cells", str(run.cells)),
        ("tags", " ".join(run.tags) or "none"),
    ]  # fmt: skip
    return table(("what", "value"), rows)


def gates_table(report: NightReport) -> Table:
    rows = [(f"`{one.gate.text}`", one.state, ";\n".join(one.reasons) or "-") for one in report.compared.gates]
    return table(("gate", "result", "where and by how much"), rows)


def changes_table(changes: Sequence[Change]) -> Table:
    return table(HEADERS, (change_row(change) for change in changes))


def change_sentence(report: NightReport) -> str:
    """How many figures moved, against what, and what was believed."""
    comparison = report.compared.comparison
    if comparison is None:
        return report.baseline_note
    noise = comparison.noise
    drift = (
        "what two launches differ by was not measured, so nothing is claimed of times"
        if noise.launch is None
        else f"two launches of the same thing differ by {noise.launch:.1%} a launch, {drifts_text(noise)}"
    )
    counts = [(len(comparison.with_state(state)), state) for state in (REGRESSED, IMPROVED, NO_EVIDENCE)]
    told = listed(f"{count} {state}" for count, state in counts)
    return (
        f"Against {comparison.before}, on the same prompts: {told}, of {len(comparison.changes)} figures. "
        f"Here {drift}. Intervals hold that noise and the number of comparisons."
    )


def trend_table(report: NightReport) -> Table:
    """A row a night and setting, the newest first."""
    rows = []
    states = {run.id: run.state or "no verdict" for run in report.trend.runs}
    dates = {run.id: run.created[:16].replace("T", " ") for run in report.trend.runs}
    for place in range(1, min(MOST_TABLED, len(report.trend.runs)) + 1):
        for line in report.trend.lines:
            point = line.points[-place]
            defined = (TPOT,) if line.setting == OFF else METRICS
            values = (trend_text(one, point.values.get(one)) if one in defined else "-" for one in METRICS)
            rows.append((dates[point.run], states[point.run], line.study, line.setting, *values))
    names = [f"{name}, {'ms' if factor != 1 else unit}" for name, unit, factor in TREND_AXES.values()]
    return table(("night", "state", "study", "setting", *names), rows)


def models_table(report: NightReport) -> Table:
    rows = [
        (str(study["label"]), name, digits or "not kept")
        for study in report.header.studies
        for name, digits in study.get("models", ())
    ]
    return table(("study", "target, then drafts", "fingerprint of its files"), rows)


def host_table(report: NightReport) -> Table:
    host = report.header.host
    gpus = ", ".join(f"{gpu.name} (driver {gpu.driver})" for gpu in host.gpus) or "none"
    rows = [
        ("CPU", host.cpu), ("cores", str(host.cores)), ("memory, GiB", f"{host.memory_gib:g}"), ("GPUs", gpus),
        ("system", host.system), ("tuner", host.tuner), ("Python", host.python),
        ("load average before the start", f"{host.load_1m:g}"),
    ]  # fmt: skip
    return table(("what", "value"), rows)
