"""A night's report on the disk: `report.md` with its plots, and `report.html`, one file with everything in it."""

from __future__ import annotations

from pathlib import Path

from tuner.report.night_chart import svg
from tuner.report.night_context import night_context
from tuner.report.night_html import night_html
from tuner.report.night_report import NightReport, night_report
from tuner.report.night_rows import compared_json
from tuner.report.rendering import render
from tuner.run.files import make_folder, write_atomic
from tuner.run.sweep_night import Outcome

PLOTS = "plots"


def write_night_report(outcome: Outcome) -> None:
    """At the end of a sweep: what it was compared with is known already."""
    write_night(night_report(outcome.folder, outcome.data.compared))


def write_night(report: NightReport) -> None:
    """Plots of an earlier report that there is nothing for any more are removed."""
    folder = report.folder / PLOTS
    make_folder(folder)
    kept = set()
    for chart in report.charts:
        write_atomic(folder / chart.file, svg(chart, alone=True))
        kept.add(chart.file)
    for path in folder.glob("*.svg"):
        if path.name not in kept:
            path.unlink()
    write_atomic(report.folder / "report.html", night_html(report))
    write_atomic(report.folder / "report.md", night_markdown(report))


def rewrite(folder: Path, *, as_json: bool = False) -> str:
    """Write the report of a stored night again; what to print: its headline and where it lies, or its comparison."""
    report = night_report(folder)
    write_night(report)
    if as_json:
        return compared_json(report.compared)
    return f"{report.headline}\n\nreport: {folder / 'report.md'} and report.html"


def night_markdown(report: NightReport) -> str:
    return render("night.md.j2", night_context(report))


def night_page(outcome: Outcome) -> str:
    """`report.md` of a night that just ended."""
    return night_markdown(night_report(outcome.folder, outcome.data.compared))
