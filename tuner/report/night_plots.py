"""Charts of a night: trends over nights; acceptance, prediction and the Pareto front of each study."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tuner.decide.evidence import Evidence
from tuner.measure.records import CellKey
from tuner.measure.statistics import Estimate
from tuner.report.calibration import confirmations
from tuner.report.derived import temperature_positions
from tuner.report.figures import cell_text, figure, ms, share
from tuner.report.night_chart import Chart, Line, Point
from tuner.run.history_rows import label_of
from tuner.run.night_trend import SPEEDUP, TAU, TPOT, Trend, TrendLine, Value
from tuner.spec.gate import UNITS
from tuner.spec.speculation import SpecConfig

#: What each metric is called, and the factor from stored to shown.
TREND_AXES = {
    TPOT: ("TPOT p50", "ms per token", 1000.0),
    TAU: ("tau", "tokens per verify step", 1.0),
    SPEEDUP: ("Speed-up", "TPOT p50 of off / with it", 1.0),
}
#: Marks of neighbouring lines stand this far apart, as a share of the axis, so that their intervals can be seen.
DODGE, MOST_DODGE = 0.014, 0.12
#: A colour for each setting of a study, the same in all of its charts; settings without one are not drawn.
Rows = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Spot:
    """A setting in a cell, by latency and throughput; `front`: no other setting of this night is better in both."""

    spec: SpecConfig
    key: CellKey
    tpot_s: Estimate
    throughput_tok_s: Estimate
    front: bool


def rows_of(trend: Trend, study: str) -> Rows:
    return {line.setting: row for row, line in enumerate(one for one in trend.lines if one.study == study)}


def trend_charts(trend: Trend) -> tuple[Chart, ...]:
    """A chart a study and metric, where anything was measured."""
    found = []
    for study in dict.fromkeys(line.study for line in trend.lines):
        own = [line for line in trend.lines if line.study == study]
        found += [chart for metric in TREND_AXES if (chart := _trend_chart(trend, study, own, metric)) is not None]
    return tuple(found)


def trend_text(metric: str, value: Value | None) -> str:
    """`12.1 ms [11.9, 12.3], n = 64`."""
    if value is None:
        return "not measured"
    middle, low, high, n = value
    if low is None or high is None:
        digits = 3 if metric != TPOT else 1
        unit = UNITS[metric][0]
        return f"{middle * TREND_AXES[metric][2]:.{digits}f}{f' {unit}' if unit else ''}, interval not kept, n = {n}"
    estimate = Estimate(middle, low, high, n)
    return ms(estimate) if metric == TPOT else figure(estimate, decimals=3)


def _trend_chart(trend: Trend, study: str, lines: Sequence[TrendLine], metric: str) -> Chart | None:
    places = {run.id: place for place, run in enumerate(trend.runs)}
    states = {run.id: f"{run.id}{f' ({run.state})' if run.state else ''}" for run in trend.runs}
    drawn = []
    for row, line in enumerate(lines):
        seen = [(places[p.run], states[p.run], p.values[metric]) for p in line.points if metric in p.values]
        if seen:
            aside = _aside(row, len(lines), len(trend.runs))
            points = tuple(_trend_point(metric, place + aside, run, value) for place, run, value in seen)
            gaps = frozenset(i for i in range(1, len(seen)) if seen[i][0] - seen[i - 1][0] > 1)
            drawn.append(Line(line.setting, row, points, gaps=gaps))
    if not drawn:
        return None
    title, unit, _ = TREND_AXES[metric]
    alt = f"{title} of {study} over {len(trend.runs)} nights, {_ends(metric, drawn)}"
    return Chart(
        name=f"trend-{metric.replace('_', '-')}-{slug(study)}", title=f"{title}, {study}", alt=alt,
        x_label="night, oldest first", y_label=unit, lines=tuple(drawn), ticks=tuple(_dates(trend)),
        same=1.0 if metric == SPEEDUP else None,
    )  # fmt: skip


def _trend_point(metric: str, place: float, run: str, value: Value) -> Point:
    factor = TREND_AXES[metric][2]
    middle, low, high, _ = value
    bounds = (None if low is None else low * factor, None if high is None else high * factor)
    return Point(place, middle * factor, f"{run}: {trend_text(metric, value)}", *bounds)


def _aside(row: int, rows: int, places: int) -> float:
    return (row - (rows - 1) / 2) * min(MOST_DODGE, DODGE * max(1, places - 1))


def _ends(metric: str, lines: Sequence[Line]) -> str:
    """Where each line begins and ends, for those who do not see it."""
    told = []
    for line in lines:
        first, last = line.points[0].y, line.points[-1].y
        digits = 1 if metric == TPOT else 2
        told.append(f"{line.label} from {first:.{digits}f} to {last:.{digits}f}")
    return "; ".join(told)


def _dates(trend: Trend) -> Iterator[tuple[float, str]]:
    """At most six dates, the last night's among them."""
    last, step = len(trend.runs) - 1, max(1, -(-len(trend.runs) // 6))
    shown = [(place, run) for place, run in enumerate(trend.runs) if (last - place) % step == 0]
    days = {run.created[5:10] for _, run in shown}
    for place, run in shown:
        # Several nights of one day are told apart by the hour.
        yield float(place), run.created[5:10] if len(days) == len(shown) else run.created[11:16]


def acceptance_chart(evidence: Evidence, study: str, rows: Rows) -> Chart | None:
    """a_k by position, a line a setting and temperature."""
    lines: list[Line] = []
    deepest = max((spec.depth for spec in evidence.specs()), default=0)
    temperatures = tuple(dict.fromkeys(key.temperature for key in evidence.keys))
    for spec, row in _drawn(evidence.specs(), rows):
        for variant, temperature in enumerate(temperatures if not (spec.is_off or spec.by_load) else ()):
            found = temperature_positions(evidence, spec, temperature)
            seen = [(k, a) for k, a in enumerate(found.a, 1) if a] if found else []
            if seen:
                aside = _aside(row, len(rows), deepest)
                points = tuple(Point(k + aside, a.value, f"k = {k}, {share(a)}", a.low, a.high) for k, a in seen)
                label = f"{spec.label}, T {temperature:g} (n = {seen[0][1].n} prompts)"
                lines.append(Line(label, row, points, variant=variant if len(temperatures) > 1 else None))
    if not lines:
        return None
    told = "; ".join(f"{line.label} from {line.points[0].y:.0%} to {line.points[-1].y:.0%}" for line in lines)
    return Chart(
        name=f"acceptance-{slug(study)}", title=f"Acceptance by position, {study}",
        alt=f"Share of drafting steps that accepted the first k tokens, by k, with intervals: {told}",
        x_label="position k in the draft", y_label="share that accepted the first k", lines=tuple(lines),
        ticks=tuple((float(k), str(k)) for k in range(1, deepest + 1)),
    )  # fmt: skip


def _drawn(specs: Sequence[SpecConfig], rows: Rows) -> list[tuple[SpecConfig, int]]:
    """Settings that have a colour, in its order."""
    known = [(spec, rows[label_of(spec)]) for spec in specs if label_of(spec) in rows]
    return sorted(known, key=lambda one: one[1])


def prediction_chart(evidence: Evidence, study: str, rows: Rows) -> Chart | None:
    """Predicted over measured mean TPOT; on the line both are equal."""
    found = confirmations(evidence)
    lines = []
    for spec, row in _drawn(list(dict.fromkeys(one.spec for one in found)), rows):
        points = tuple(
            Point(
                one.measured_s.value * 1000, one.predicted_s.value * 1000,
                f"{cell_text(one.key)}: predicted {ms(one.predicted_s)}, measured {ms(one.measured_s)}",
                one.predicted_s.low * 1000, one.predicted_s.high * 1000, one.measured_s.low * 1000,
                one.measured_s.high * 1000,
            )
            for one in found if one.spec == spec
        )  # fmt: skip
        lines.append(Line(spec.label, row, points, joined=False))
    if not lines:
        return None
    worst = max(found, key=lambda one: abs(one.error))
    inside = sum(one.within for one in found)
    alt = (
        f"Predicted against measured mean TPOT of {len(found)} cells: the intervals meet in {inside}; the largest "
        f"error is {worst.error:+.1%}, {worst.spec.label} at {cell_text(worst.key)}"
    )
    return Chart(
        name=f"prediction-{slug(study)}", title=f"Predicted against measured, {study}", alt=alt,
        x_label="measured mean TPOT, ms", y_label="predicted mean TPOT, ms", lines=tuple(lines), diagonal=True,
    )  # fmt: skip


def spots(evidence: Evidence) -> tuple[Spot, ...]:
    """Every setting in every cell with both figures; the front is told temperature by temperature."""
    seen = []
    for spec in evidence.specs():
        for key in evidence.keys:
            one = evidence.best_trial(spec, key)
            cell = one.cells[key] if one else None
            if cell and cell.tpot_p50_s and cell.throughput_tok_s:
                seen.append((spec, key, cell.tpot_p50_s, cell.throughput_tok_s))
    return tuple(
        Spot(*one, front=not any(_beats(other, one) for other in seen if other[1].temperature == one[1].temperature))
        for one in seen
    )


def pareto_charts(found: Sequence[Spot], study: str, rows: Rows) -> tuple[Chart, ...]:
    """Throughput over latency, a chart a temperature, a line a setting through its loads."""
    charts = []
    for temperature in dict.fromkeys(spot.key.temperature for spot in found):
        own = [spot for spot in found if spot.key.temperature == temperature]
        lines = tuple(
            Line(spec.label, row, tuple(_spot_point(spot) for spot in own if spot.spec == spec))
            for spec, row in _drawn(list(dict.fromkeys(spot.spec for spot in own)), rows)
        )
        if not lines:
            continue
        front = "; ".join(f"{spot.spec.label} at {spot.key.load.text}" for spot in own if spot.front)
        charts.append(
            Chart(
                name=f"pareto-{slug(study)}-t{slug(f'{temperature:g}')}",
                title=f"Latency and throughput, {study}, T {temperature:g}",
                alt=f"Throughput over TPOT p50 of {len(lines)} settings; on the front: {front}",
                x_label="TPOT p50, ms (left is better)", y_label="tokens/s (up is better)", lines=lines,
            )
        )  # fmt: skip
    return tuple(charts)


def _spot_point(spot: Spot) -> Point:
    tpot, rate = spot.tpot_s.scaled(1000), spot.throughput_tok_s
    text = f"{cell_text(spot.key)}: {figure(tpot)} ms, {figure(rate)} tok/s{', on the front' if spot.front else ''}"
    return Point(tpot.value, rate.value, text, rate.low, rate.high, tpot.low, tpot.high)


def _beats(
    one: tuple[SpecConfig, CellKey, Estimate, Estimate], other: tuple[SpecConfig, CellKey, Estimate, Estimate]
) -> bool:
    """At least as good in both, and better in one."""
    (fast, slow), (more, less) = (one[2].value, other[2].value), (one[3].value, other[3].value)
    return fast <= slow and more >= less and (fast, more) != (slow, less)


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
