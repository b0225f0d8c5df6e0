"""What the plots of a report share: colours that anyone can tell apart, panels, points with intervals, PNG bytes."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from tuner.measure.statistics import Estimate

#: Told apart with any colour vision (Okabe and Ito, 2008); black is kept for off.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
STYLES = ("-", "--", ":", "-.")
PANEL_WIDTH, PANEL_HEIGHT, MOST_ACROSS = 4.2, 3.3, 3


@dataclass(frozen=True, slots=True)
class Series:
    """Points with intervals under one name."""

    label: str
    xs: Sequence[float]
    ys: Sequence[Estimate]


def bars(axes: Axes, series: Series, row: int | None, style: str) -> ErrorbarContainer:
    """Points with intervals. `row`: which colour and marker; None is off's."""
    values = [y.value for y in series.ys]
    below = [y.value - y.low for y in series.ys]
    above = [y.high - y.value for y in series.ys]
    return axes.errorbar(
        series.xs, values, yerr=[below, above], label=series.label, linestyle=style or "none", capsize=3, linewidth=0.9,
        elinewidth=1.6, markersize=5, color="black" if row is None else colour(row),
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
    """One legend for all panels, below them."""
    named: dict[str, Artist] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        named |= dict(zip(labels, handles, strict=True))
    labels = sorted(named, key=lambda label: not label.startswith(("off", "1:")))
    figure.legend(
        [named[label] for label in labels], labels, loc="outside lower center", ncols=min(4, len(named)), fontsize=8
    )


def png(figure: Figure) -> bytes:
    """Without the metadata that changes from run to run, so that the same records give the same file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120, metadata={"Software": None})
    return buffer.getvalue()
