"""Plots of acceptance and gain. matplotlib is imported with this module: import it only to draw."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tuner.decide.evidence import Evidence
from tuner.decide.rank import Verdict
from tuner.measure.records import CellKey, Load
from tuner.report.derived import temperature_drafting_share, temperature_positions
from tuner.report.drawing import STYLES, Series, bars, legend, panels, share_limits
from tuner.spec.speculation import LOOKUP_METHODS, SpecConfig

GAIN_AXIS = {
    "tpot_p50": "speed-up: TPOT p50 of off / with it",
    "throughput": "throughput / off's",
    "goodput": "goodput / off's",
}

DRIFT_SHADE = "off's own move between its two runs"


def acceptance_plot(evidence: Evidence) -> Figure | None:
    """a_k by position, a line a configuration and temperature, all loads together; None without acceptance."""
    specs, temperatures = one_n_each(evidence), _temperatures(evidence)
    figure, (axes,) = panels(1, width=7.5, height=4.6)
    drawn = 0
    for row, spec in enumerate(specs):
        for column, temperature in enumerate(temperatures):
            found = temperature_positions(evidence, spec, temperature)
            points = [(k, a) for k, a in enumerate(found.a, 1) if a] if found else []
            if not points:
                continue
            shift = 0.06 * (row * len(temperatures) + column - (len(specs) * len(temperatures) - 1) / 2)
            share = temperature_drafting_share(evidence, spec, temperature) if spec.method in LOOKUP_METHODS else None
            drafts = f", drafts in {share:.0%} of steps" if share is not None else ""
            label = f"{spec.label}, temperature {temperature:g} (n = {points[0][1].n} prompts{drafts})"
            lossy = any(one.lossy(k) for one in evidence.tried if one.spec == spec for k in _at(evidence, temperature))
            series = Series(label, [k + shift for k, _ in points], [a for _, a in points], lossy)
            bars(axes, series, row, STYLES[column % len(STYLES)])
            drawn = max(drawn, points[-1][0])
    if not drawn:
        return None
    axes.set(
        xlabel="position k in the draft", ylabel="$a_k$: share of drafting steps that accepted\nthe first k tokens"
    )
    axes.set_xticks(range(1, drawn + 1))
    axes.set_ylim(0, None)
    axes.grid(axis="y", alpha=0.25)
    axes.legend(fontsize=8)
    return figure


def speedup_plot(verdicts: Sequence[Verdict], objective: str) -> Figure | None:
    """Gain over off by load, a panel a temperature, with a line where off and on are equal and a shade as wide as off
    moved between its two runs; None without a gain."""
    if not any(c.ratio for v in verdicts for c in v.comparisons):
        return None
    temperatures = list(dict.fromkeys(v.key.temperature for v in verdicts))
    specs = list(dict.fromkeys(c.spec for v in verdicts for c in v.comparisons if c.ratio))
    loads = list(dict.fromkeys(v.key.load for v in verdicts))
    figure, grid = panels(len(temperatures), height=3.8)
    for axes, temperature in zip(grid, temperatures, strict=True):
        for row, spec in enumerate(specs):
            shift = 0.09 * (row - (len(specs) - 1) / 2)
            for lossy in (False, True):
                series = _gains(verdicts, spec, temperature, lossy, loads, shift)
                if series.xs:
                    bars(axes, series, row, "-")
        axes.axhline(1, color="black", linewidth=1, label="1: the same as off")
        _shade_drift(axes, verdicts, loads)
        axes.set_xticks(range(len(loads)), [_load_tick(load) for load in loads])
        axes.set(title=f"temperature {temperature:g}", xlabel=_load_axis(loads), ylabel=GAIN_AXIS[objective])
        axes.set_xlim(-0.4, len(loads) - 0.6)
        axes.grid(axis="y", alpha=0.25)
    share_limits(grid)
    legend(figure, grid)
    return figure


def _shade_drift(axes: Axes, verdicts: Sequence[Verdict], loads: Sequence[Load]) -> None:
    """A gain inside the shade is no larger than what off moved by at that load, and is not believed."""
    for place, load in enumerate(loads):
        drift = next((v.drift for v in verdicts if v.key.load == load and v.drift is not None), None)
        if drift is not None:
            moved = abs(drift.value - 1)
            axes.fill_between(
                [place - 0.4, place + 0.4], 1, 1 + moved, color="black", alpha=0.1, lw=0, label=DRIFT_SHADE
            )


def _gains(
    verdicts: Sequence[Verdict], spec: SpecConfig, temperature: float, lossy: bool, loads: Sequence[Load], shift: float
) -> Series:
    found = [
        (loads.index(v.key.load) + shift, c.ratio)
        for v in verdicts
        for c in v.comparisons
        if v.key.temperature == temperature and c.spec == spec and c.ratio and (c.lossy is not None) == lossy
    ]
    return Series(f"{spec.label} ({_n_text(verdicts, spec)})", [x for x, _ in found], [y for _, y in found], lossy)


def _n_text(verdicts: Sequence[Verdict], spec: SpecConfig) -> str:
    """`n = 24`, or `n = 23 to 24` where cells differ."""
    ns = [c.ratio.n for v in verdicts for c in v.comparisons if c.spec == spec and c.ratio]
    return f"n = {min(ns)}" if len(set(ns)) == 1 else f"n = {min(ns)} to {max(ns)}"


def one_n_each(evidence: Evidence) -> tuple[SpecConfig, ...]:
    """Settings with one N each: where N moves with the load, a_k and a place on the axis of N mean nothing."""
    return tuple(spec for spec in evidence.specs() if not spec.is_off and not spec.by_load)


def _temperatures(evidence: Evidence) -> tuple[float, ...]:
    return tuple(dict.fromkeys(key.temperature for key in evidence.keys))


def _at(evidence: Evidence, temperature: float) -> tuple[CellKey, ...]:
    return tuple(key for key in evidence.keys if key.temperature == temperature)


def _load_tick(load: Load) -> str:
    return str(load.concurrency) if load.concurrency else f"{load.rate:g}/s"


def _load_axis(loads: Sequence[Load]) -> str:
    if all(load.concurrency for load in loads):
        return "concurrency, requests in flight"
    mixed = any(load.concurrency for load in loads)
    return "requests in flight, or sent per second (/s)" if mixed else "requests per second"
