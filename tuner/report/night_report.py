"""From a night's folder to everything its report says, read from the index and the journals; no engine is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import UserError
from tuner.report.night_chart import Chart
from tuner.report.night_plots import trend_charts
from tuner.report.night_study import NightStudy, night_studies
from tuner.run.history_db import Database, open_database
from tuner.run.history_index import refresh
from tuner.run.history_query import Run, find_run, list_runs
from tuner.run.night_trend import Trend, trend_of
from tuner.run.nights import Compared, FailedLaunch, baseline_of, compare_runs, failures
from tuner.run.sweep_night import headline_of
from tuner.run.sweep_store import ASKED, INTERRUPTED, VERDICT, NightHeader, NightStore
from tuner.spec.gate import parse_gate

#: Metrics and what they are held against when a night's header names no baseline.
LAST_GREEN = "last-green"


@dataclass(frozen=True, slots=True)
class NightReport:
    """`baseline_note`: why there is no comparison; empty where there is. `state`: green, red, or empty. `options`: what
    the command was given besides the sweep. `commands`: how often it was begun or gone on with."""

    folder: Path
    header: NightHeader
    run: Run
    headline: str
    status: str
    state: str
    compared: Compared
    failures: tuple[FailedLaunch, ...]
    trend: Trend
    studies: tuple[NightStudy, ...]
    baseline_note: str = ""
    options: tuple[str, ...] = ()
    commands: int = 1

    @property
    def charts(self) -> tuple[Chart, ...]:
        return (*trend_charts(self.trend), *(chart for study in self.studies for chart in study.charts))


def night_report(folder: Path, compared: Compared | None = None) -> NightReport:
    """`compared`: what the night was compared with, where that was just worked out. UserError for no night."""
    night = NightStore.read(folder)
    reports = folder.resolve().parent
    with open_database(reports) as database:
        refresh(database, reports)
        run = next((one for one in list_runs(database, night.header.name) if one.id == folder.resolve().name), None)
        if run is None:
            raise UserError(f"the index over {reports} does not have {folder}: `tuner history --rebuild` makes it anew")
        note = ""
        if compared is None:
            before, note = _baseline(database, night, run)
            gates = [parse_gate(text) for text in night.header.sweep.get("gates", ())]
            compared = compare_runs(database, reports, before, run, gates)
        trend = trend_of(database, _until(list_runs(database, run.name), run))
    status = _status(night)
    asked = [event["options"] for event in night.events() if event["event"] == ASKED]
    return NightReport(
        folder=folder, header=night.header, run=run, status=status, state=run.state,
        headline=run.headline or headline_of(compared, status, str(night.header.sweep.get("baseline", LAST_GREEN))),
        compared=compared,
        failures=failures(folder), trend=trend, studies=night_studies(night, trend),
        baseline_note=note or ("" if compared.comparison else "There is no baseline yet."),
        options=tuple(map(str, asked[-1])) if asked else (), commands=max(1, len(asked)),
    )  # fmt: skip


def _baseline(database: Database, night: NightStore, run: Run) -> tuple[Run | None, str]:
    """What the night was compared with when it ended; if it did not end, what its sweep names."""
    verdicts = [event for event in night.events() if event["event"] == VERDICT]
    try:
        if not verdicts:
            return baseline_of(database, str(night.header.sweep.get("baseline", LAST_GREEN)), run), ""
        named = verdicts[-1].get("baseline")
        return (find_run(database, str(named)) if named else None), ""
    except UserError:
        named = verdicts[-1]["baseline"] if verdicts else night.header.sweep.get("baseline")
        return None, f"The baseline {named} is not kept any more."


def _until(runs: Sequence[Run], run: Run) -> list[Run]:
    """Nights up to this one, oldest first."""
    return [one for one in reversed(runs) if (one.created, one.id) <= (run.created, run.id)]


def _status(night: NightStore) -> str:
    """As the journal has it: this very process may hold the night's lock, and ends it once its report is there."""
    status = night.status()
    if status not in (INTERRUPTED, "running"):
        return status
    verdicts = [event for event in night.events() if event["event"] == VERDICT]
    said = verdicts[-1].get("status") if verdicts else None
    return str(said or ("unfinished" if status == "running" else status))
