"""What a night's report says of one of its studies: tables and charts from its own records, or why there are none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tuner.engines.environments import Environment, as_stored
from tuner.errors import TunerError
from tuner.report import measured_tables, verdict_tables
from tuner.report.advice import headline
from tuner.report.build import report_input
from tuner.report.data import ReportInput
from tuner.report.figures import figure, ms
from tuner.report.night_chart import Chart
from tuner.report.night_plots import (
    Rows,
    Spot,
    acceptance_chart,
    pareto_charts,
    prediction_chart,
    rows_of,
    spots,
)
from tuner.report.tables import Table, table
from tuner.run.night_trend import Trend
from tuner.run.store import StudyStore
from tuner.run.sweep_store import NightStore
from tuner.run.sweep_summary import KEPT_FIGURES

#: Cells whose verdicts a night's report works out: more take minutes, and each study has a report of its own.
MOST_CELLS = 200


@dataclass(frozen=True, slots=True)
class NightStudy:
    """`why_not`: why there is nothing but the name; empty where there is."""

    label: str
    folder: str
    engine: str
    status: str
    why_not: str = ""
    advice: str = ""
    losslessness: str = ""
    cautions: tuple[str, ...] = ()
    verdicts: Table | None = None
    cells: Table | None = None
    acceptance: Table | None = None
    positions: Table | None = None
    predictions: Table | None = None
    pareto: Table | None = None
    charts: tuple[Chart, ...] = ()

    def charts_of(self, kind: str) -> tuple[Chart, ...]:
        return tuple(chart for chart in self.charts if chart.name.startswith(kind))


def night_studies(night: NightStore, trend: Trend) -> tuple[NightStudy, ...]:
    """Every planned study, one in memory at a time."""
    statuses, found, cells = night.study_statuses(), [], 0
    for told in night.header.studies:
        folder = night.folder / str(told["folder"])
        status = statuses.get(folder.name, "not finished" if (folder / "study.json").exists() else "not begun")
        engine = f"{told.get('engine', '')} {told.get('version', '')}".strip()
        start = (str(told["label"]), folder.name, engine, status)
        reason = _why_not(folder, cells)
        if reason:
            found.append(NightStudy(*start, why_not=reason))
            continue
        try:
            data = _read(folder)
        except TunerError as error:
            found.append(NightStudy(*start, why_not=str(error)))
            continue
        except (ValueError, KeyError, TypeError) as error:
            # One study that was written by another version must not take the others' report away.
            told_by = str(error).splitlines()[0] if str(error) else type(error).__name__
            found.append(NightStudy(*start, why_not=f"{folder / 'study.json'} does not describe a study ({told_by})"))
            continue
        cells += _measured_cells(folder)
        found.append(_told(start, data, rows_of(trend, start[0])))
    return tuple(found)


def _why_not(folder: Path, cells: int) -> str:
    if not (folder / "study.json").exists():
        return "the night ended before this study began"
    if (folder / KEPT_FIGURES).exists():
        return "its request records were let go; its figures are in the comparison and in the trend"
    own = _measured_cells(folder)
    if cells + own > MOST_CELLS:
        return f"{own} cells are too many for this page: `tuner report {folder}` writes the report of the study itself"
    return ""


def _measured_cells(folder: Path) -> int:
    return sum(1 for _ in folder.glob("trials/*/requests-*"))


def _read(folder: Path) -> ReportInput:
    store = StudyStore.read(folder)
    stored = store.header.environments[0]
    environment = Environment(**{name: as_stored(value) for name, value in stored.items()})
    return report_input(store, environment, [t for t in store.trials() if t.engine == environment.name])


def _told(start: tuple[str, str, str, str], data: ReportInput, rows: Rows) -> NightStudy:
    found = spots(data.evidence)
    return NightStudy(
        *start,
        advice=headline(data),
        losslessness=data.losslessness or "Whether output is still the target's own was not measured.",
        cautions=data.cautions,
        verdicts=verdict_tables.verdict_table(data),
        cells=measured_tables.latency_table(data),
        acceptance=measured_tables.acceptance_table(data),
        positions=measured_tables.position_table(data),
        predictions=verdict_tables.prediction_table(data),
        pareto=_pareto_table(found),
        charts=tuple(_charts(data, found, start[0], rows)),
    )


def _charts(data: ReportInput, found: tuple[Spot, ...], label: str, rows: Rows) -> Iterator[Chart]:
    for chart in (acceptance_chart(data.evidence, label, rows), prediction_chart(data.evidence, label, rows)):
        if chart is not None:
            yield chart
    yield from pareto_charts(found, label, rows)


def _pareto_table(found: tuple[Spot, ...]) -> Table:
    columns = ("setting", "load", "temperature", "TPOT p50, ms", "throughput, tok/s", "on the front")
    rows = (
        (one.spec.label, one.key.load.text, f"{one.key.temperature:g}", ms(one.tpot_s), figure(one.throughput_tok_s),
         "yes" if one.front else "no")
        for one in found
    )  # fmt: skip
    return table(columns, rows)
