"""PNG drawings of `tuner.theory` results. matplotlib is imported with this module: import it only to draw."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tuner.errors import UserError
from tuner.report.drawing import png
from tuner.run.files import write_atomic
from tuner.theory.load import LoadPoint
from tuner.theory.quality import QualityPoint
from tuner.theory.rollback import Demonstration
from tuner.theory.speedup import Optimum, Point, grid
from tuner.theory.tree_study import TreeStudy
from tuner.theory.verify import Verification

WIDE = (10.0, 4.2)
REFERENCE_ALPHAS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


def check_target(path: Path) -> None:
    """Refuse before any work is done what could not be written after it."""
    if path.suffix.lower() != ".png":
        raise UserError(f"--plot {path} is no PNG; give a path that ends in .png.")
    # os.path where pathlib would raise: over names too long, and folders this user may not look into.
    if not os.path.isdir(path.parent):
        raise UserError(f"--plot {path}: the directory {path.parent} does not exist; create it first.")
    if os.path.isdir(path):
        raise UserError(f"--plot {path} is a directory; give a file name in it.")


def save(figure: Figure, path: Path) -> None:
    check_target(path)
    write_atomic(path, png(figure))


def speedup_figure(alpha: float, cost: float, points: Sequence[Point], best: Optimum) -> Figure:
    figure, (tokens, time) = _panels(2)
    numbers = [point.n for point in points]
    for other, row in zip(REFERENCE_ALPHAS, grid(REFERENCE_ALPHAS, len(numbers))[1], strict=True):
        tokens.plot(numbers, row, color="lightgrey", linewidth=1.0)
        tokens.annotate(f"{other:g}", (numbers[-1], row[-1]), color="grey", fontsize="small")
    tokens.plot(numbers, [point.tokens_per_call for point in points], marker="o", markersize=3)
    tokens.set(title=f"alpha = {alpha:g}, others in grey", xlabel="N drafted", ylabel="tokens per call")
    time.plot(numbers, [point.relative_time for point in points], marker="o", markersize=3)
    time.axhline(1.0, color="grey", linewidth=0.8, label="plain decoding")
    if best.n is not None and best.speedup is not None and best.n > 0:
        time.plot([best.n], [1.0 / best.speedup], "r*", markersize=12, label=f"best N = {best.n}")
    time.set(title=f"alpha = {alpha:g}, c = {cost:g}", xlabel="N drafted", ylabel="time per token, relative")
    time.legend()
    for axes in (tokens, time):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def grid_figure(alphas: Sequence[float], numbers: Sequence[int], tokens: Sequence[Sequence[float]]) -> Figure:
    figure, (lines, heat) = _panels(2)
    for alpha, row in zip(alphas, tokens, strict=True):
        lines.plot(numbers, row, label=f"alpha {alpha:g}")
    lines.set(xlabel="N drafted", ylabel="tokens per call")
    lines.legend()
    image = heat.imshow(np.array(tokens), aspect="auto", origin="lower")
    heat.set_xticks(range(len(numbers)), [str(n) for n in numbers])
    heat.set_yticks(range(len(alphas)), [f"{alpha:g}" for alpha in alphas])
    heat.set(xlabel="N drafted", ylabel="alpha")
    figure.colorbar(image, ax=heat, label="tokens per call")
    return figure


def verify_figure(result: Verification) -> Figure:
    figure, (axes,) = _panels(1)
    names = ["lossless", *(variant.name for variant in result.variants)]
    tests = [result.against_q, *(variant.joint for variant in result.variants)]
    colours = ["tab:green", *["tab:red"] * len(result.variants)]
    axes.barh(names, [test.chi2 / test.critical_95 for test in tests], color=colours)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set(xscale="log", xlabel="chi2 over its critical value at 95 %")
    axes.invert_yaxis()
    return figure


def alpha_figure(points: Sequence[QualityPoint]) -> Figure:
    figure, (axes,) = _panels(1)
    exact = [point.exact for point in points]
    axes.plot([0.0, 1.0], [0.0, 1.0], color="grey", linewidth=0.8)
    axes.plot(exact, [point.measured.alpha for point in points], "o", label="alpha, measured")
    axes.plot(exact, [point.measured.acceptance_rate for point in points], "x", label="accepted / drafted")
    axes.set(xlabel="1 - TV(p, q)", ylabel="measured")
    axes.legend()
    return figure


def load_figure(points: Sequence[LoadPoint]) -> Figure:
    figure, (best, gain) = _panels(2)
    batches = [point.batch for point in points]
    best.plot(batches, [point.best_n for point in points], marker="o")
    best.set(xscale="log", xlabel="sequences running", ylabel="best N")
    gain.plot(batches, [point.speedup for point in points], marker="o")
    gain.axhline(1.0, color="grey", linewidth=0.8)
    gain.set(xscale="log", xlabel="sequences running", ylabel="speed-up at the best N")
    return figure


def tree_figure(study: TreeStudy) -> Figure:
    figure, (bars, nodes) = _panels(2)
    values = {
        "tree": study.tokens_per_call,
        "chain,\nequal nodes": study.chain_equal_nodes,
        "chain,\nequal calls": study.chain_equal_calls,
        "top-k\ndrafting": study.static_top_k,
        "dynamic": study.dynamic.tokens_per_call,
    }
    bars.bar(list(values), list(values.values()))
    bars.set(ylabel="tokens per call")
    image = nodes.imshow(study.tree.attention_mask(), cmap="Greys", aspect="equal")
    nodes.set(title="tree attention mask", xlabel="node seen", ylabel="node")
    image.set_clim(0.0, 1.0)
    return figure


def kv_figure(shown: Demonstration) -> Figure:
    panels = {"scratch, then commit": shown.scratch_commit, "truncate": shown.truncate}
    figure, axes = _panels(2, sharey=True)
    for axis, (name, settled) in zip(axes, panels.items(), strict=True):
        names = [f"sequence {i}" for i in range(len(settled))]
        kept = np.array([one.written - one.wasted for one in settled])
        wasted, copied = np.array([one.wasted for one in settled]), np.array([one.copied for one in settled])
        axis.bar(names, kept, label="written and kept", color="tab:green")
        axis.bar(names, wasted, bottom=kept, label="written and wasted", color="tab:red")
        axis.bar(names, copied, bottom=kept + wasted, label="copied", color="tab:blue", alpha=0.5)
        axis.set(title=name, ylabel="entries")
    axes[0].legend()
    return figure


def _panels(count: int, sharey: bool = False) -> tuple[Figure, tuple[Axes, ...]]:
    figure = Figure(figsize=WIDE if count > 1 else (6.5, 4.2), layout="constrained")
    return figure, tuple(figure.subplots(1, count, squeeze=False, sharey=sharey)[0])
