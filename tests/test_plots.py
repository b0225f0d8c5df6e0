"""What the report's plots show: the measured points with their intervals, predicted lines, the line at 1."""

from __future__ import annotations

import dataclasses
import io

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.image import imread
from study_fixture import ARMS, EAGLE2, EAGLE5, NGRAM, Truth, study_evidence, study_trials

from tuner.decide.evidence import Evidence, gather
from tuner.decide.plan import predictions
from tuner.decide.rank import recommend
from tuner.measure.records import CellKey, Load
from tuner.report import drawing
from tuner.report.derived import temperature_positions
from tuner.report.drawing import png
from tuner.report.plots import acceptance_plot, speedup_plot
from tuner.report.tpot_plot import tpot_plot
from tuner.spec.speculation import OFF, SpecConfig


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return study_evidence()


def panels(figure: Figure | None) -> dict[str, Axes]:
    assert figure is not None
    return {axes.get_title(): axes for axes in figure.axes if axes.axison}


def series(axes: Axes) -> dict[str, ErrorbarContainer]:
    return {str(c.get_label()): c for c in axes.containers if isinstance(c, ErrorbarContainer)}


def points(drawn: ErrorbarContainer) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """(x, y, low and high of each interval) of a drawn series."""
    line, bars = drawn.lines[0], drawn.lines[2][0]
    spans = [float(end[1]) for segment in bars.get_segments() for end in segment]
    return np.asarray(line.get_xdata()), np.asarray(line.get_ydata()), spans


def drafting(evidence: Evidence, temperature: float) -> str:
    """Of the lookup, counted from its records: a step emits one token and what was accepted of its draft."""
    trial = next(one.trial for one in evidence.tried if one.spec == NGRAM)
    requests = [r for c in trial.cells if c.key.temperature == temperature for r in c.completed]
    told = [(sum(r.spec.histogram), r.n_out - 1 - sum(r.spec.accepted_by_step or ())) for r in requests if r.spec]
    return f"{sum(drafts for drafts, _ in told) / sum(steps for _, steps in told):.0%}"


def test_acceptance_has_a_line_for_each_setting_and_temperature(evidence: Evidence) -> None:
    (axes,) = panels(acceptance_plot(evidence)).values()
    drawn = series(axes)
    shares = {t: drafting(evidence, t) for t in (0.0, 1.0)}
    assert set(drawn) == {
        f"{spec.label}, temperature {t} (n = 24 prompts{lookup if spec == NGRAM else ''})"
        for spec in (NGRAM, EAGLE5, EAGLE2)
        for t, lookup in ((0, f", drafts in {shares[0.0]} of steps"), (1, f", drafts in {shares[1.0]} of steps"))
    }
    x, y, spans = points(drawn["eagle3 N=5, temperature 0 (n = 24 prompts)"])
    assert [round(value) for value in x] == [1, 2, 3, 4, 5]
    found = temperature_positions(evidence, EAGLE5, 0.0)
    assert found is not None
    assert list(y) == [a.value for a in found.a if a]
    assert spans == pytest.approx([end for a in found.a if a for end in (a.low, a.high)])
    assert list(y) == sorted(y, reverse=True)  # the first k tokens are accepted less often than the first k - 1
    assert axes.get_ylim()[0] == 0
    assert axes.get_xlabel()
    assert "a_k" in axes.get_ylabel()


def test_tpot_shows_off_measured_and_predicted_in_milliseconds(evidence: Evidence) -> None:
    made = predictions(ARMS, evidence)
    shown = panels(tpot_plot(evidence, made))
    assert list(shown) == [f"concurrency {c}, temperature {t}" for t in (0, 1) for c in (1, 4, 8)]
    axes, key = shown["concurrency 4, temperature 1"], CellKey(Load(4), 1.0)
    drawn = series(axes)
    assert set(drawn) == {"off, measured (and dotted line)", "ngram, measured", "eagle3, measured"}

    def mean_ms(spec: SpecConfig) -> float:
        one = evidence.best_trial(spec, key)
        assert one is not None
        mean = one.cells[key].tpot_mean_s
        assert mean is not None
        return 1000 * mean.value

    x, y, _ = points(drawn["eagle3, measured"])
    assert dict(zip(x, y, strict=True)) == pytest.approx({5: mean_ms(EAGLE5), 2: mean_ms(EAGLE2)})
    x, y, _ = points(drawn["off, measured (and dotted line)"])
    assert (x[0], y[0]) == (0, pytest.approx(mean_ms(OFF)))
    line = next(line for line in axes.lines if line.get_label() == "eagle3, predicted")
    expected = {p.spec.n: 1000 * p.tpot_s.value for p in made if p.key == key}
    assert dict(zip(line.get_xdata(), line.get_ydata(), strict=True)) == pytest.approx(expected)
    assert set(expected) == {1, 2, 3, 4, 5}
    assert "ms" in axes.get_ylabel()


def test_off_is_drawn_again_where_it_was_measured_again(evidence: Evidence) -> None:
    axes = panels(tpot_plot(evidence, ()))["concurrency 4, temperature 0"]
    x, y, _ = points(series(axes)["off again, measured last"])
    last = evidence.baselines[-1].cells[CellKey(Load(4), 0.0)].tpot_mean_s
    assert last is not None
    assert y[0] == pytest.approx(1000 * last.value)
    assert 0 < x[0] < 0.5  # beside the first, that neither hides the other


def test_a_line_that_no_launch_came_after_is_fitted(evidence: Evidence) -> None:
    first = dataclasses.replace(evidence, tried=tuple(one for one in evidence.tried if one.spec != EAGLE2))
    axes = panels(tpot_plot(first, predictions(ARMS, first)))["concurrency 4, temperature 0"]
    labels = {line.get_label() for line in axes.lines}
    assert "eagle3, fitted" in labels
    assert "eagle3, predicted" not in labels


def test_the_speedup_plot_shades_what_off_itself_moved_by() -> None:
    evidence = study_evidence(Truth(measured=4, concurrency=(1, 4), temperatures=(0.0,), drift=1.2, failed=False))
    verdicts = recommend(evidence).verdicts
    (axes,) = panels(speedup_plot(verdicts, "tpot_p50")).values()
    shades = [c for c in axes.collections if c.get_label() == "off's own move between its two runs"]
    assert len(shades) == 2
    for place, (shade, verdict) in enumerate(zip(shades, verdicts, strict=True)):
        assert verdict.drift is not None
        box = shade.get_paths()[0].get_extents()
        moved = abs(verdict.drift.value - 1)
        assert (box.x0, box.x1) == pytest.approx((place - 0.4, place + 0.4))
        assert (box.y0, box.y1) == pytest.approx((1, 1 + moved))
        assert moved == pytest.approx(1 - 1 / 1.2, abs=0.05)


def test_panels_of_one_load_share_their_axis(evidence: Evidence) -> None:
    shown = panels(tpot_plot(evidence, ()))
    assert shown["concurrency 8, temperature 0"].get_ylim() == shown["concurrency 8, temperature 1"].get_ylim()


def test_speedup_has_intervals_and_a_line_at_one(evidence: Evidence) -> None:
    shown = panels(speedup_plot(recommend(evidence).verdicts, "tpot_p50"))
    assert list(shown) == ["temperature 0", "temperature 1"]
    axes = shown["temperature 1"]
    assert any(line.get_label() == "1: the same as off" and set(line.get_ydata()) == {1} for line in axes.lines)
    x, y, spans = points(series(axes)["eagle3 N=2 (n = 24)"])
    assert [round(value) for value in x] == [0, 1, 2]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "4", "8"]
    ratios = [evidence.ratio(OFF, EAGLE2, CellKey(Load(c), 1.0)) for c in (1, 4, 8)]
    assert list(y) == [r.value for r in ratios if r]
    assert spans == pytest.approx([end for r in ratios if r for end in (r.low, r.high)])
    assert y[0] > 1 > y[2]
    assert "ngram N=4 (n = 23 to 24)" in series(axes)  # one of its requests failed


def as_lossy(evidence: Evidence, temperature: float) -> Evidence:
    """The same, with eagle3's output at one temperature not the target's."""
    trials = [
        dataclasses.replace(
            one.trial,
            cells=tuple(
                dataclasses.replace(c, lossy="argmax")
                if one.spec.method == "eagle3" and c.key.temperature == temperature
                else c
                for c in one.trial.cells
            ),
        )
        for one in evidence.tried
    ]
    return gather(trials, "tpot_p50")


def test_lossy_points_are_hollow_and_named_as_not_ranked(evidence: Evidence) -> None:
    lossy = as_lossy(evidence, 1.0)
    gains = panels(speedup_plot(recommend(lossy).verdicts, "tpot_p50"))
    drawn = series(gains["temperature 1"])
    assert "eagle3 N=2 (n = 24)" in series(gains["temperature 0"])
    assert "eagle3 N=2 (n = 24)" not in drawn
    one = drawn["eagle3 N=2 (n = 24), not ranked: lossy"].lines[0]
    assert (one.get_markerfacecolor(), one.get_linestyle()) == ("none", "None")
    full = series(gains["temperature 0"])["eagle3 N=2 (n = 24)"].lines[0]
    assert full.get_markerfacecolor() == full.get_color() == one.get_color()
    times = panels(tpot_plot(lossy, ()))
    assert set(series(times["concurrency 4, temperature 1"])) == {
        "off, measured (and dotted line)", "ngram, measured", "eagle3, measured, not ranked: lossy",
    }  # fmt: skip
    assert "eagle3, measured" in series(times["concurrency 4, temperature 0"])
    (axes,) = panels(acceptance_plot(lossy)).values()
    assert "eagle3 N=5, temperature 1 (n = 24 prompts), not ranked: lossy" in series(axes)
    assert "eagle3 N=5, temperature 0 (n = 24 prompts)" in series(axes)


def fits(figure: Figure | None) -> bool:
    assert figure is not None
    figure.draw_without_rendering()
    (drawn,) = figure.legends
    box = drawn.get_window_extent()
    return bool(0 <= box.x0 < box.x1 <= figure.bbox.width and 0 <= box.y0 < box.y1 <= figure.bbox.height)


def test_a_legend_fits_the_figure_of_one_load() -> None:
    small = study_evidence(Truth(measured=4, concurrency=(1,), failed=False))
    assert fits(tpot_plot(small, predictions(ARMS, small)))
    assert fits(speedup_plot(recommend(small).verdicts, "tpot_p50"))


@pytest.mark.parametrize(("columns", "most", "rows"), [(1, 1, 0), (3, 4, 0), (1, 1, 9)])
def test_a_legend_of_long_names_fits(columns: int, most: int, rows: int) -> None:
    """A name longer than the figure is wide is broken; many rows make the figure higher, not its panels less."""
    figure, grid = drawing.panels(columns)
    high = figure.get_figheight()
    for row in range(3 + rows):
        words = "an option of many words " * (5 if columns == 1 else 1)
        grid[0].plot([0, 1], [0, row], label=f"eagle3 (head-{row}, {words})")
    drawing.legend(figure, grid)
    assert fits(figure)
    assert len(figure.legends[0].get_texts()) == 3 + rows
    assert figure.legends[0]._ncols <= most
    assert figure.get_figheight() > high if columns == 1 else figure.get_figheight() == pytest.approx(high, abs=0.1)


def test_a_line_of_one_point_is_neither_drawn_nor_named(evidence: Evidence) -> None:
    made = [p for p in predictions(ARMS, evidence) if p.spec.n == 3]
    assert {p.spec.method for p in made} == {"eagle3"}
    figure = tpot_plot(evidence, made)
    assert figure is not None
    named = {text.get_text() for text in figure.legends[0].get_texts()}
    assert named == {
        "off, measured (and dotted line)",
        "off again, measured last",
        "ngram, measured",
        "eagle3, measured",
    }


def test_two_drafts_of_one_method_are_told_apart(evidence: Evidence) -> None:
    other = dataclasses.replace(EAGLE5, draft="/models/another-head")
    tried = [dataclasses.replace(t, trial=dataclasses.replace(t.trial, spec=other)) for t in evidence.tried[2:3]]
    both = dataclasses.replace(evidence, tried=(*evidence.tried, *tried))
    axes = panels(tpot_plot(both, ()))["concurrency 1, temperature 0"]
    assert {"eagle3 (eagle3), measured", "eagle3 (another-head), measured"} <= set(series(axes))


def test_nothing_is_drawn_of_nothing() -> None:
    only_off = gather(study_trials(Truth(measured=4))[:1], "tpot_p50")
    assert acceptance_plot(only_off) is None
    assert speedup_plot(recommend(only_off).verdicts, "tpot_p50") is None
    assert tpot_plot(gather((), "tpot_p50"), ()) is None
    off_alone = panels(tpot_plot(only_off, ()))
    assert set(series(off_alone["concurrency 1, temperature 0"])) == {"off, measured (and dotted line)"}


def test_a_png_can_be_read_and_does_not_change() -> None:
    evidence = study_evidence(Truth(measured=4, concurrency=(1,), temperatures=(0.0,), failed=False))
    figure = speedup_plot(recommend(evidence).verdicts, "tpot_p50")
    assert figure is not None
    first = png(figure)
    assert imread(io.BytesIO(first)).shape[2] == 4
    again = speedup_plot(recommend(evidence).verdicts, "tpot_p50")
    assert again is not None
    assert png(again) == first
