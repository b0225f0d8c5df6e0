"""The plot of TPOT against N. matplotlib is imported with this module: import it only to draw."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tuner.decide.evidence import Evidence
from tuner.decide.predict import Prediction
from tuner.measure.records import CellKey
from tuner.measure.statistics import Estimate
from tuner.report.calibration import confirmations
from tuner.report.drawing import MOST_ACROSS, Series, bars, colour, hollow, legend, panels, share_limits
from tuner.report.plots import one_n_each
from tuner.spec.speculation import OFF, SpecConfig


def tpot_plot(evidence: Evidence, predictions: Sequence[Prediction]) -> Figure | None:
    """Mean TPOT against N: measured points and the formula's lines, which are predicted where a launch came after the
    prediction and fitted where none did; a panel a load and temperature."""
    keys = [key for key in evidence.keys if evidence.baseline(key)]
    if not keys:
        return None
    figure, grid = panels(len(keys), across=_across(keys))
    arms = _arm_names((*one_n_each(evidence), *(p.spec for p in predictions)))
    foretold = {c.spec.arm for c in confirmations(evidence)} if predictions else set()
    titles = {arm: f"{name}, {'predicted' if arm in foretold else 'fitted'}" for arm, name in arms.items()}
    for axes, key in zip(grid, keys, strict=True):
        _tpot_panel(axes, evidence, [p for p in predictions if p.key == key], key, arms, titles)
    for load in dict.fromkeys(key.load for key in keys):
        share_limits([axes for axes, key in zip(grid, keys, strict=True) if key.load == load])
    legend(figure, grid)
    return figure


def _tpot_panel(
    axes: Axes, evidence: Evidence, predictions: Sequence[Prediction], key: CellKey, arms: Mapping[object, str],
    titles: Mapping[object, str],
) -> None:  # fmt: skip
    off = evidence.best_trial(OFF, key)
    plain = off.cells[key].tpot_mean_s if off else None
    if plain:
        axes.axhline(plain.value * 1000, color="black", linewidth=0.8, linestyle=":")
        bars(axes, Series("off, measured (and dotted line)", [0], [plain.scaled(1000)]), None, "")
    again = [one.cells[key].tpot_mean_s for one in evidence.baselines if key in one.cells][1:]
    if again and (last := again[-1]):
        hollow(bars(axes, Series("off again, measured last", [0.12], [last.scaled(1000)]), None, ""))
    for row, (arm, name) in enumerate(arms.items()):
        line = sorted((p for p in predictions if p.spec.arm == arm), key=lambda p: p.spec.n)
        if len(line) > 1:
            _band(axes, line, titles[arm], row)
        for lossy in (False, True):
            seen = _measured(evidence, arm, key, lossy)
            if seen:
                bars(axes, Series(f"{name}, measured", [n for n, _ in seen], [t for _, t in seen], lossy), row, "")
    axes.set(title=f"{key.load.text}, temperature {key.temperature:g}", xlabel="N, tokens drafted per verify step")
    axes.set_ylabel("mean TPOT, ms per token")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", alpha=0.25)


def _measured(evidence: Evidence, arm: object, key: CellKey, lossy: bool) -> list[tuple[int, Estimate]]:
    """(N, mean TPOT in ms) of an arm's chains in a cell, the lossy ones or the others."""
    found = []
    for spec in one_n_each(evidence):
        one = evidence.best_trial(spec, key)
        tpot_s = one.cells[key].tpot_mean_s if one else None
        if one and spec.arm == arm and spec.n and tpot_s and (one.lossy(key) is not None) == lossy:
            found.append((spec.n, tpot_s.scaled(1000)))
    return found


def _band(axes: Axes, line: Sequence[Prediction], label: str, row: int) -> None:
    shade, ns = colour(row), [p.spec.n for p in line]
    axes.plot(ns, [p.tpot_s.value * 1000 for p in line], "--", color=shade, label=label)
    low, high = [p.tpot_s.low * 1000 for p in line], [p.tpot_s.high * 1000 for p in line]
    axes.fill_between(ns, low, high, color=shade, alpha=0.15, lw=0)


def _arm_names(specs: Iterable[SpecConfig]) -> dict[object, str]:
    """The method, and the draft's own name where two arms share a method."""
    arms = list(dict.fromkeys(spec.arm for spec in specs))
    methods = [method for method, _, _ in arms]
    names: dict[object, str] = {}
    for place, (method, draft, options) in enumerate(arms):
        told = [PurePath(draft).name] if draft else []
        told += [f"{name}={value}" for name, value in options]
        names[arms[place]] = method if methods.count(method) == 1 else f"{method} ({', '.join(told)})"
    return names


def _across(keys: Sequence[CellKey]) -> int:
    """One row of panels a temperature where the loads fit side by side."""
    loads = len({key.load for key in keys})
    return loads if loads <= MOST_ACROSS + 1 else MOST_ACROSS
