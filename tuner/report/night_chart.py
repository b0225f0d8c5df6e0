"""A chart as SVG text: points with intervals, themed by the page it is in or by itself, with every figure as a title.

Written by hand so that the picture takes its colours from CSS, has no ids to collide in one page and stays small.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, PLOT_HEIGHT, LEFT, RIGHT, TOP = 380, 230, 52, 12, 26
#: Room below the plot for ticks and the axis' name; a line of the legend.
BELOW, LEGEND_LINE = 42, 17
SHAPES = ("circle", "square", "triangle", "diamond", "down", "plus")
DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 2", "10 4")
COLOURS = 6

#: For a picture that is a file of its own; a page has the same classes in its own style.
STYLE = """
.chart{--ink:#1d232b;--soft:#59636e;--grid:#d8dee4;--c0:#1d232b;--c1:#0060a8;--c2:#b34700;--c3:#00704f;--c4:#a0307a;
--c5:#7a5a00;font:12px system-ui,sans-serif}
@media (prefers-color-scheme:dark){.chart{--ink:#e6e9ed;--soft:#a9b3bf;--grid:#3a434e;--c0:#e6e9ed;--c1:#6cb6ff;
--c2:#ff9c57;--c3:#4cc9a0;--c4:#f29ad0;--c5:#e3c04f}}
"""
RULES = """
.chart text{fill:var(--ink)} .chart .tick{fill:var(--soft);font-size:11px} .chart .name{font-weight:600}
.chart .grid{stroke:var(--grid);stroke-width:1} .chart .axis{stroke:var(--soft);stroke-width:1}
.chart .same{stroke:var(--soft);stroke-width:1;stroke-dasharray:4 3}
.chart .line{stroke-width:1.5} .chart .whisker{stroke-width:1.3}
.chart .s0{stroke:var(--c0);fill:var(--c0)} .chart .s1{stroke:var(--c1);fill:var(--c1)}
.chart .s2{stroke:var(--c2);fill:var(--c2)} .chart .s3{stroke:var(--c3);fill:var(--c3)}
.chart .s4{stroke:var(--c4);fill:var(--c4)} .chart .s5{stroke:var(--c5);fill:var(--c5)}
.chart .line,.chart .hollow{fill:none}
"""


@dataclass(frozen=True, slots=True)
class Point:
    """`text`: the figure with its interval and n, shown when pointed at. Bounds are None where none are known."""

    x: float
    y: float
    text: str
    low: float | None = None
    high: float | None = None
    x_low: float | None = None
    x_high: float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """`row`: which colour and mark, 0 is off's. `variant`: which dashes and whether marks are hollow, where one colour
    has several lines; None: as the row has it. `gaps`: places in `points` before which the line is not drawn."""

    label: str
    row: int
    points: tuple[Point, ...]
    joined: bool = True
    gaps: frozenset[int] = frozenset()
    variant: int | None = None

    @property
    def dash(self) -> str:
        return DASHES[(self.row if self.variant is None else self.variant) % len(DASHES)]

    @property
    def style(self) -> str:
        return f"s{self.row % COLOURS}"

    @property
    def mark_style(self) -> str:
        return f"{self.style} hollow" if self.variant and self.variant % 2 else self.style


@dataclass(frozen=True, slots=True)
class Chart:
    """`name`: a file's, unique on a page. `alt`: what it shows, in a sentence. `ticks`: places on the x axis with
    words; None: numbers. `same`: a line at this y; `diagonal`: a line where y equals x."""

    name: str
    title: str
    alt: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    ticks: tuple[tuple[float, str], ...] | None = None
    same: float | None = None
    diagonal: bool = False

    @property
    def file(self) -> str:
        return f"{self.name}.svg"


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def svg(chart: Chart, *, alone: bool = False) -> str:
    """The picture. `alone`: a file, with its own style; otherwise the page's style is its."""
    xs, ys = _scales(chart)
    height = TOP + PLOT_HEIGHT + BELOW + LEGEND_LINE * len(chart.lines) + 6
    named = (
        f'<title id="{chart.name}-t">{escape(chart.title)}</title><desc id="{chart.name}-d">{escape(chart.alt)}</desc>'
    )
    head = (
        f'<svg {"xmlns=" + chr(34) + "http://www.w3.org/2000/svg" + chr(34) + " " if alone else ""}class="chart" '
        f'viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="{chart.name}-t {chart.name}-d">'
    )
    style = f"<style>{STYLE}{RULES}</style>" if alone else ""
    body = [*_frame(chart, xs, ys), *(part for line in chart.lines for part in _line(line, xs, ys)), *_legend(chart)]
    return "\n".join([head + named + style, *body, "</svg>"])


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round places inside [low, high]: steps of 1, 2 or 5 times a power of ten, at most `most` of them."""
    step = 10 ** math.floor(math.log10((high - low) / most))
    while math.floor(high / step + 1e-9) - math.ceil(low / step - 1e-9) >= most:
        digit = round(step / 10 ** math.floor(math.log10(step) + 1e-9))
        step *= 2.5 if digit == 2 else 2
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _scales(chart: Chart) -> tuple[_Scale, _Scale]:
    points = [point for line in chart.lines for point in line.points]
    ys = [y for p in points for y in (p.y, p.low, p.high) if y is not None]
    xs = [x for p in points for x in (p.x, p.x_low, p.x_high) if x is not None]
    if chart.diagonal:
        xs = ys = [*xs, *ys]
    if chart.same is not None:
        ys = [*ys, chart.same]
    if chart.ticks is not None:
        xs = [*xs, *(place for place, _ in chart.ticks)]
    x_low, x_high = _padded(xs)
    y_low, y_high = _padded(ys)
    return _Scale(x_low, x_high, LEFT, WIDTH - RIGHT), _Scale(y_low, y_high, TOP + PLOT_HEIGHT, TOP)


def _padded(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    return (max(0.0, low - room) if low >= 0 else low - room), high + room


def _frame(chart: Chart, xs: _Scale, ys: _Scale) -> Iterator[str]:
    yield f'<text class="name" x="4" y="15">{escape(chart.title)}</text>'
    marks = ticks(ys.low, ys.high)
    for value, text in zip(marks, _numbers(marks), strict=True):
        y = f"{ys(value):.1f}"
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
        yield f'<text class="tick" x="{LEFT - 5}" y="{ys(value) + 4:.1f}" text-anchor="end">{text}</text>'
    bottom = TOP + PLOT_HEIGHT
    yield f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>'
    x_marks = ticks(xs.low, xs.high)
    for place, text in chart.ticks or zip(x_marks, _numbers(x_marks), strict=True):
        yield f'<text class="tick" x="{xs(place):.1f}" y="{bottom + 15}" text-anchor="middle">{escape(text)}</text>'
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield f'<text class="tick" x="{middle}" y="{bottom + 31}" text-anchor="middle">{escape(chart.x_label)}</text>'
    turn = f'transform="translate(12 {TOP + PLOT_HEIGHT / 2}) rotate(-90)"'
    yield f'<text class="tick" {turn} text-anchor="middle">{escape(chart.y_label)}</text>'
    if chart.same is not None:
        y = f"{ys(chart.same):.1f}"
        yield f'<line class="same" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
    if chart.diagonal:
        low, high = max(xs.low, ys.low), min(xs.high, ys.high)
        ends = f'x1="{xs(low):.1f}" y1="{ys(low):.1f}" x2="{xs(high):.1f}" y2="{ys(high):.1f}"'
        yield f'<line class="same" {ends}/>'


def _numbers(values: Sequence[float]) -> list[str]:
    """As many decimals as keep neighbours apart."""
    step = min((b - a for a, b in itertools.pairwise(values)), default=abs(values[0]) if values else 1.0)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) if step else 0
    return [f"{value:.{decimals}f}" for value in values]


def _line(line: Line, xs: _Scale, ys: _Scale) -> Iterator[str]:
    if line.joined:
        steps = ["M" if i == 0 or i in line.gaps else "L" for i in range(len(line.points))]
        path = " ".join(f"{s}{xs(p.x):.1f} {ys(p.y):.1f}" for s, p in zip(steps, line.points, strict=True))
        yield f'<path class="{line.style} line" stroke-dasharray="{line.dash or "none"}" d="{path}"/>'
    for point in line.points:
        x, y = xs(point.x), ys(point.y)
        parts = [f"<title>{escape(f'{line.label}: {point.text}')}</title>"]
        if point.low is not None and point.high is not None:
            parts.append(_whisker(line.style, x, x, ys(point.low), ys(point.high)))
        if point.x_low is not None and point.x_high is not None:
            parts.append(_whisker(line.style, xs(point.x_low), xs(point.x_high), y, y))
        yield f"<g>{''.join(parts)}{_mark(line, x, y)}</g>"


def _whisker(style: str, x1: float, x2: float, y1: float, y2: float) -> str:
    return f'<line class="{style} whisker" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"/>'


def _mark(line: Line, x: float, y: float) -> str:
    shape = SHAPES[line.row % len(SHAPES)]
    if shape == "circle":
        return f'<circle class="{line.mark_style}" cx="{x:.1f}" cy="{y:.1f}" r="3.4"/>'
    corners = {
        "square": "-3 -3 3 -3 3 3 -3 3", "triangle": "0 -4.2 4 3 -4 3", "diamond": "0 -4.4 4.4 0 0 4.4 -4.4 0",
        "down": "0 4.2 4 -3 -4 -3", "plus": "-1 -4 1 -4 1 -1 4 -1 4 1 1 1 1 4 -1 4 -1 1 -4 1 -4 -1 -1 -1",
    }[shape]  # fmt: skip
    return f'<polygon class="{line.mark_style}" points="{corners}" transform="translate({x:.1f} {y:.1f})"/>'


def _legend(chart: Chart) -> Iterator[str]:
    for place, line in enumerate(chart.lines):
        y = TOP + PLOT_HEIGHT + BELOW + LEGEND_LINE * place + 6
        if line.joined:
            d = f'stroke-dasharray="{line.dash or "none"}" d="M{LEFT - 10} {y} L{LEFT + 18} {y}"'
            yield f'<path class="{line.style} line" {d}/>'
        yield _mark(line, LEFT + 4, y)
        yield f'<text class="tick" x="{LEFT + 22}" y="{y + 4}">{escape(line.label)}</text>'
