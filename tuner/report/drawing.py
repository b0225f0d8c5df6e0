"""What the plots of a report share: colours that anyone can tell apart, panels, points with intervals, PNG bytes."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from tuner.measure.statistics import Estimate
from tuner.report.figures import NOT_RANKED

#: Told apart with any colour vision (Okabe and Ito, 2008); black is kept for off.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
STYLES = ("-", "--", ":", "-.")
PANEL_WIDTH, PANEL_HEIGHT, MOST_ACROSS = 4.2, 3.3, 3
#: Of legends: columns, pixels kept free beside them, inches a panel's height has room for, letters of a broken line.
MOST_COLUMNS, MARGIN, LEGEND_HEIGHT, LEAST_LETTERS = 4, 8, 0.5, 16


@dataclass(frozen=True, slots=True)
class Series:
    """Points with intervals under one name. `lossy`: of output that is not the target's: hollow, named as not ranked,
    and no line leads to them."""

    label: str
    xs: Sequence[float]
    ys: Sequence[Estimate]
    lossy: bool = False


def bars(axes: Axes, series: Series, row: int | None, style: str) -> ErrorbarContainer:
    """Points with intervals. `row`: which colour and marker; None is off's."""
    label = f"{series.label}, {NOT_RANKED}" if series.lossy else series.label
    values = [y.value for y in series.ys]
    below = [y.value - y.low for y in series.ys]
    above = [y.high - y.value for y in series.ys]
    return axes.errorbar(
        series.xs, values, yerr=[below, above], label=label, capsize=3, linewidth=0.9,
        linestyle="none" if series.lossy else style or "none", elinewidth=1.6, markersize=5,
        color="black" if row is None else colour(row), markerfacecolor="none" if series.lossy else None,
        marker="x" if row is None else MARKERS[row % len(MARKERS)],
    )  # fmt: skip


def hollow(drawn: ErrorbarContainer) -> None:
    """A second run of what is drawn already: the same colour, an empty ring."""
    drawn.lines[0].set(marker="o", markerfacecolor="none")


def colour(row: int) -> str:
    return COLOURS[row % len(COLOURS)]


def panels(
    count: int, *, across: int = MOST_ACROSS, width: float = PANEL_WIDTH, height: float = PANEL_HEIGHT
) -> tuple[Figure, tuple[Axes, ...]]:
    columns = min(count, across)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    grid = [axes for line in figure.subplots(rows, columns, squeeze=False) for axes in line]
    for unused in grid[count:]:
        unused.set_axis_off()
    return figure, tuple(grid[:count])


def share_limits(panels: Sequence[Axes]) -> None:
    """The same y axis everywhere, so that panels can be compared by eye."""
    lows, highs = zip(*(axes.get_ylim() for axes in panels), strict=True)
    for axes in panels:
        axes.set_ylim(min(lows), max(highs))


def legend(figure: Figure, panels: Iterable[Axes]) -> None:
    """One legend for all panels, below them: as many columns as the figure has room for, and a figure as much higher
    as its rows take."""
    named: dict[str, Artist] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        named |= dict(zip(labels, handles, strict=True))
    labels = sorted(named, key=lambda label: not label.startswith(("off", "1:")))
    if not labels:
        return
    handles = [named[label] for label in labels]
    widest = max(len(label) for label in labels)
    ways = [(columns, widest) for columns in range(min(MOST_COLUMNS, len(named)), 0, -1)]
    ways += [(1, length) for length in range(widest - 1, LEAST_LETTERS, -4)]
    for columns, length in ways:
        shown = [textwrap.fill(label, length) for label in labels]
        made = figure.legend(handles, shown, loc="outside lower center", ncols=columns, fontsize=8)
        box = made.get_window_extent()
        if box.width <= figure.bbox.width - MARGIN:
            break
        if (columns, length) != ways[-1]:
            made.remove()
    figure.set_figheight(figure.get_figheight() + max(0.0, box.height / figure.dpi - LEGEND_HEIGHT))


def png(figure: Figure) -> bytes:
    """Without the metadata that changes from run to run, so that the same records give the same file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120, metadata={"Software": None})
    return buffer.getvalue()
