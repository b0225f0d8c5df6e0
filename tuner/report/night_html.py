"""`report.html` of a night: one file that loads nothing, for a phone as for a desk, light or dark."""

from __future__ import annotations

import re

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from tuner.decide.nights import IMPROVED, REGRESSED
from tuner.decide.nights_gates import FAILED, PASSED
from tuner.report.night_chart import RULES, STYLE, Chart, svg
from tuner.report.night_context import night_context
from tuner.report.night_report import NightReport
from tuner.report.rendering import TEMPLATES

SECTIONS = (
    ("night", "The night"), ("gates", "Gates"), ("verdicts", "Verdicts"), ("changes", "What changed"),
    ("trend", "Over the nights"), ("acceptance", "Acceptance"), ("predictions", "Predictions"),
    ("pareto", "Latency and throughput"), ("failures", "Failures"), ("reproduce", "Reproduce"), ("terms", "Terms"),
)  # fmt: skip
#: Characters from which a cell needs room to be read.
LONG = 48
_WORDS = {REGRESSED: "bad", FAILED: "bad", IMPROVED: "good", PASSED: "good"}


def night_html(report: NightReport) -> str:
    """Everything that comes from records or engines is escaped."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
    )
    environment.filters |= {"inline": inline, "state": state, "picture": picture}
    context = night_context(report) | {"sections": SECTIONS, "chart_style": Markup(STYLE + RULES)}
    return environment.get_template("night.html.j2").render(context).strip() + "\n"


def inline(text: str) -> Markup:
    """The two marks of Markdown that cells and sentences use, **bold** and `code`; a line break stays one."""
    marked = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", str(escape(text)))
    return Markup(re.sub(r"`(.+?)`", r"<code>\1</code>", marked).replace("\n", "<br>"))


def state(text: str) -> Markup:
    """The class of a cell: a verdict, whose word says the same; a figure, which stays on one line; a long text."""
    kind = _WORDS.get(text.partition(" (")[0])
    if kind is None and len(text) > LONG:
        kind = "long"
    elif kind is None and "[" in text:
        kind = "figure"
    return Markup(f' class="{kind}"') if kind else Markup()


def picture(chart: Chart) -> Markup:
    return Markup(svg(chart))
