"""The plot of draft trees: tau and TPOT over depth d, branching k and verified nodes m. Import it only to draw."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tuner.decide.evidence import Evidence
from tuner.measure.records import CellKey
from tuner.measure.statistics import Estimate
from tuner.measure.summary import CellSummary
from tuner.report.drawing import Series, bars, legend, panels, share_limits
from tuner.report.figures import cell_text
from tuner.spec.speculation import OFF, SpecConfig, Tree

#: How far points of one m are drawn apart, as a share of the largest m.
APART = 0.015


@dataclass(frozen=True, slots=True)
class _Line:
    """Trees of one draft that differ in their nodes alone, by m."""

    name: str
    depth: int
    topk: int
    specs: tuple[SpecConfig, ...]


def tree_plot(evidence: Evidence) -> Figure | None:
    """A row a cell: tau on the left, mean TPOT on the right, over the nodes m; a line a (d, k). None without a tree.

    Chains of the same drafts stand beside the trees, with m = N + 1 and k = 1; off is the dotted line.
    """
    lines = _lines(evidence)
    keys = [key for key in evidence.keys if any(_cell(evidence, s, key) for line in lines for s in line.specs)]
    if not any(line.topk > 1 for line in lines) or not keys:
        return None
    figure, grid = panels(2 * len(keys), across=2, width=5.2, height=3.2)
    most = max(nodes_of(spec) for line in lines for spec in line.specs)
    for row, key in enumerate(keys):
        _panel(grid[2 * row], evidence, lines, key, "tau", most)
        _panel(grid[2 * row + 1], evidence, lines, key, "TPOT", most)
    share_limits(grid[::2])
    legend(figure, grid)
    return figure


def nodes_of(spec: SpecConfig) -> int:
    """Nodes verified per step, the root included."""
    return spec.tree.nodes if spec.tree else spec.n + 1


def _lines(evidence: Evidence) -> list[_Line]:
    """Trees and the chains of the same drafts, one line a draft, d and k; chains are one line a draft, whatever d."""
    drawn = [spec for spec in evidence.specs() if not spec.is_off and not spec.by_load]
    arms = list(dict.fromkeys(spec.arm for spec in drawn if spec.tree))
    found: dict[tuple[object, ...], list[SpecConfig]] = {}
    for spec in (s for s in drawn if s.arm in arms):
        place = (arms.index(spec.arm), spec.tree.topk, spec.tree.depth) if spec.tree else (arms.index(spec.arm), 1, 0)
        found.setdefault(place, []).append(spec)
    lines = []
    for specs in (found[place] for place in sorted(found, key=str)):
        own = tuple(sorted(specs, key=nodes_of))
        tree = own[0].tree or Tree(own[0].n, 1, own[0].n + 1)
        shape = f"d = {tree.depth}, k = {tree.topk}" if own[0].tree else "chain (k = 1, d = m - 1)"
        name = f"{own[0].way}: {shape}" if len(arms) > 1 else shape
        lines.append(_Line(name, tree.depth, tree.topk, own))
    return lines


def _panel(axes: Axes, evidence: Evidence, lines: list[_Line], key: CellKey, what: str, most: int) -> None:
    off = _cell(evidence, OFF, key)
    plain = _figure(off, what) if off else None
    if what == "tau":
        axes.axhline(1, color="black", linewidth=0.8, linestyle=":", label="off")
    elif plain:
        axes.axhline(plain.value, color="black", linewidth=0.8, linestyle=":", label="off")
        axes.axhspan(plain.low, plain.high, color="black", alpha=0.08, lw=0)
    for row, line in enumerate(lines):
        for lossy in (False, True):
            points = list(_points(evidence, line, key, what, lossy))
            if points:
                xs = [nodes + APART * most * _beside(lines, row, nodes) for nodes, _ in points]
                bars(axes, Series(line.name, xs, [y for _, y in points], lossy), row, "-")
    axes.set(title=cell_text(key), xlabel="m, nodes verified per step (root included)")
    axes.set_ylabel("tau, tokens per verify step" if what == "tau" else "mean TPOT, ms per token")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", alpha=0.25)


def _beside(lines: list[_Line], row: int, nodes: int) -> float:
    """Place of a line among those with a point at these nodes, around 0."""
    sharing = [i for i, line in enumerate(lines) if any(nodes_of(spec) == nodes for spec in line.specs)]
    return sharing.index(row) - (len(sharing) - 1) / 2


def _points(evidence: Evidence, line: _Line, key: CellKey, what: str, lossy: bool) -> Iterator[tuple[int, Estimate]]:
    for spec in line.specs:
        one = evidence.best_trial(spec, key)
        value = _figure(one.cells[key], what) if one else None
        if one and value and (one.lossy(key) is not None) == lossy:
            yield nodes_of(spec), value


def _figure(cell: CellSummary, what: str) -> Estimate | None:
    if what == "tau":
        return cell.tau
    return cell.tpot_mean_s.scaled(1000) if cell.tpot_mean_s else None


def _cell(evidence: Evidence, spec: SpecConfig, key: CellKey) -> CellSummary | None:
    one = evidence.best_trial(spec, key)
    return one.cells[key] if one else None
