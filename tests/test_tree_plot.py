"""The plot of draft trees over depth, branching and nodes: every measured tree at its place, with its interval."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from cells import cell, off_trial, request
from matplotlib.container import ErrorbarContainer
from matplotlib.image import imread
from study_fixture import EAGLE5, study_evidence, study_header

from tuner.decide.evidence import Evidence, gather
from tuner.decide.rank import recommend
from tuner.measure.records import CellKey, Load, Trial
from tuner.report.data import ReportInput
from tuner.report.page import page
from tuner.report.tree_plot import nodes_of, tree_plot
from tuner.report.write import write_report
from tuner.spec.speculation import SpecConfig, Tree

#: (d, k, m): what the eight steps of each request accept, and the seconds a step takes. Off takes 50 ms a token.
TREES = {
    (3, 2, 4): ((0, 1, 1, 2, 0, 1, 2, 1), 0.056),  # tau 1 + 8/8 = 2.0: 28 ms a token
    (3, 2, 6): ((1, 1, 2, 2, 0, 1, 2, 1), 0.060),  # tau 1 + 10/8 = 2.25: 26.7 ms
    (3, 4, 8): ((1, 1, 2, 3, 1, 1, 2, 1), 0.070),  # tau 1 + 12/8 = 2.5: 28 ms
    (5, 4, 16): ((1, 2, 3, 4, 1, 1, 1, 1), 0.110),  # tau 1 + 14/8 = 2.75: 40 ms
}
KEYS = (CellKey(Load(1), 0.0), CellKey(Load(4), 0.0))


def drafted(spec: SpecConfig, accepted: tuple[int, ...], step_s: float, number: int) -> Trial:
    cells = []
    for place, key in enumerate(KEYS):
        tau = 1 + sum(accepted) / len(accepted)
        requests = []
        for i in range(6):
            wobble = (step_s * (1 + place)) * (1 + 0.01 * (i % 3 - 1)) / tau
            requests.append(request(i, wobble, accepted=accepted, n=spec.depth))
        cells.append(cell(requests, key))
    return Trial(number, spec, "sglang", tuple(cells), role="explore")


def trees(draft: str = "head", name: str = "") -> list[Trial]:
    made = []
    for number, (shape, (accepted, step_s)) in enumerate(TREES.items(), 2):
        spec = SpecConfig("eagle3", draft=draft, tree=Tree(*shape), name=name)
        made.append(drafted(spec, accepted, step_s, number))
    return made


def off() -> Trial:
    cells = (off_trial([0.05, 0.051, 0.049, 0.05, 0.05, 0.05], key=key).cells[0] for key in KEYS)
    return dataclasses.replace(off_trial([0.05] * 6), cells=tuple(cells))


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    chain = drafted(SpecConfig("eagle3", n=2, draft="head"), (0, 1, 1, 2, 0, 1, 1, 0), 0.054, 9)  # tau 1.75
    return gather([off(), *trees(), chain], "tpot_p50")


def drawn(evidence: Evidence) -> dict[tuple[str, str], dict[str, ErrorbarContainer]]:
    """(cell, y axis) -> series by name."""
    figure = tree_plot(evidence)
    assert figure is not None
    return {
        (axes.get_title(), axes.get_ylabel().split(",")[0]): {
            str(c.get_label()): c for c in axes.containers if isinstance(c, ErrorbarContainer)
        }
        for axes in figure.axes
    }


def test_every_tree_stands_at_its_nodes_on_the_line_of_its_depth_and_branching(evidence: Evidence) -> None:
    shown = drawn(evidence)
    assert [place for place, _ in shown][::2] == ["concurrency 1, temperature 0", "concurrency 4, temperature 0"]
    taus = shown["concurrency 1, temperature 0", "tau"]
    assert set(taus) == {"chain (k = 1, d = m - 1)", "d = 3, k = 2", "d = 3, k = 4", "d = 5, k = 4"}
    line = taus["d = 3, k = 2"].lines[0]
    assert [round(x) for x in line.get_xdata()] == [4, 6]
    assert list(line.get_ydata()) == [2.0, 2.25]
    assert list(taus["d = 5, k = 4"].lines[0].get_ydata()) == [2.75]
    chain = taus["chain (k = 1, d = m - 1)"].lines[0]
    assert (round(chain.get_xdata()[0]), chain.get_ydata()[0]) == (3, 1.75)  # N = 2 verifies 3 nodes


def test_tpot_is_in_milliseconds_and_off_is_the_dotted_line(evidence: Evidence) -> None:
    shown = drawn(evidence)
    line = shown["concurrency 1, temperature 0", "mean TPOT"]["d = 3, k = 2"].lines[0]
    assert list(line.get_ydata()) == pytest.approx([28.0, 60 / 2.25])
    twice = shown["concurrency 4, temperature 0", "mean TPOT"]["d = 3, k = 2"].lines[0]
    assert list(twice.get_ydata()) == pytest.approx([56.0, 120 / 2.25])
    spans = shown["concurrency 1, temperature 0", "mean TPOT"]["d = 3, k = 2"].lines[2][0].get_segments()
    assert spans[0][0][1] < 28.0 < spans[0][1][1]
    figure = tree_plot(evidence)
    assert figure is not None
    dotted = [line for line in figure.axes[1].lines if line.get_label() == "off"]
    assert dotted[0].get_ydata()[0] == pytest.approx(50.0)


def test_two_drafts_are_told_apart() -> None:
    both = gather([off(), *trees("a/head", "a/head"), *trees("b/head", "b/head")], "tpot_p50")
    names = set(drawn(both)["concurrency 1, temperature 0", "tau"])
    assert {"eagle3 (a/head): d = 3, k = 2", "eagle3 (b/head): d = 3, k = 2"} <= names


def test_nodes_count_the_root() -> None:
    assert nodes_of(SpecConfig("eagle3", draft="head", tree=Tree(3, 4, 16))) == 16
    assert nodes_of(SpecConfig("eagle3", draft="head", n=3)) == 4


def test_no_plot_without_a_tree() -> None:
    evidence = study_evidence()
    assert EAGLE5 in evidence.specs()
    assert tree_plot(evidence) is None


def test_the_report_shows_the_plot_of_a_study_with_trees(evidence: Evidence, tmp_path: Path) -> None:
    data = ReportInput(study_header(), evidence, recommend(evidence), (), {})
    write_report(data, tmp_path, tmp_path / "outputs")
    assert imread(tmp_path / "trees.png").shape[2] == 4
    assert "](trees.png)" in (tmp_path / "report.md").read_text()
    assert "trees.png" not in page(data, dict.fromkeys(("acceptance.png", "tpot.png", "speedup.png", "trees.png")))
