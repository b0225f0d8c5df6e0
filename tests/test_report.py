"""The written report: advice in words, figures with interval and n, nothing invented, secrets kept, rebuildable."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import shutil
import statistics
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from study_fixture import (
    CORRECTION,
    EAGLE2,
    EAGLE5,
    WORKLOAD,
    Truth,
    study_evidence,
    study_report,
    study_trials,
)

from tuner.decide.evidence import Evidence, gather
from tuner.decide.rank import Comparison, Overall, Recommendation, Verdict
from tuner.measure.records import Cell, CellKey, ClientHealth, Load, RequestRecord, SpecSteps, Trial
from tuner.measure.statistics import Estimate
from tuner.measure.validity import Finding
from tuner.report import write
from tuner.report.advice import headline, leave_off, one_setting, verdict_word
from tuner.report.calibration import confirmations
from tuner.report.changes import alpha_text
from tuner.report.data import ReportInput
from tuner.report.derived import break_even_point, cell_positions, draft_acceptance_rate, drafting_share
from tuner.report.figures import NOT_MEASURED, cells_text, count, figure, listed, moved, ms, ratio, share
from tuner.report.launch_script import command_lines
from tuner.report.redact import is_secret_flag, shown_argv
from tuner.report.sureness import how_sure
from tuner.report.tables import table
from tuner.report.verdict_tables import break_even_table
from tuner.report.write import write_report
from tuner.spec.speculation import OFF, SpecConfig
from tuner.spec.workload import Workload

C1, C4, C8 = (Load(concurrency=c) for c in (1, 4, 8))
FILES = ("report.md", "acceptance.png", "tpot.png", "speedup.png")
OUTPUTS = ("skill-eagle3-tuner.md", "recommendation.json", "launch.sh")


@dataclasses.dataclass(frozen=True)
class Written:
    data: ReportInput
    folder: Path
    outputs: Path

    @property
    def report(self) -> str:
        return (self.folder / "report.md").read_text()

    @property
    def json(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.outputs / "recommendation.json").read_text())
        return loaded

    def rows(self, title: str) -> list[dict[str, str]]:
        """The first table under a heading, or after a line that begins so."""
        lines = iter(self.report.splitlines())
        next(line for line in lines if line.lstrip("# ").startswith(title))
        header = next(line for line in lines if line.startswith("| "))
        next(lines)
        rows = []
        for line in lines:
            if not line.startswith("| "):
                break
            rows.append(dict(zip(_cells(header), _cells(line), strict=True)))
        return rows


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def written(data: ReportInput, folder: Path, *, plots: bool = False) -> Written:
    """Drawing takes seconds, and only tests about the plots need them."""
    with pytest.MonkeyPatch.context() as patch:
        if not plots:
            patch.setattr(write, "draw", lambda _: dict.fromkeys(FILES[1:]))
        write_report(data, folder, folder / "outputs")
    return Written(data, folder, folder / "outputs")


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return study_evidence()


@pytest.fixture(scope="module")
def study(evidence: Evidence, tmp_path_factory: pytest.TempPathFactory) -> Written:
    data = study_report(evidence, cautions=("temperature 1 was measured under a correction",))
    return written(data, tmp_path_factory.mktemp("study"), plots=True)


def records(data: Evidence, spec: SpecConfig, key: CellKey) -> list[RequestRecord]:
    cell = next(t.trial for t in data.tried if t.spec == spec).cell(key)
    assert cell is not None
    return [r for r in cell.requests if r.phase == "measured" and r.error is None]


# --- how figures are written


def test_a_figure_has_its_interval_and_its_n() -> None:
    estimate = Estimate(0.0521, 0.0503, 0.05404, 24)
    assert ms(estimate) == "52.1 [50.3, 54.0], n = 24"
    assert ms(estimate, 24) == "52.1 [50.3, 54.0]"  # the row shows n = 24 already
    assert ms(estimate, 25) == "52.1 [50.3, 54.0], n = 24"
    assert ms(Estimate(0.00721, 0.007, 0.0074, 9)) == "7.21 [7.00, 7.40], n = 9"
    assert figure(Estimate(1234.5, 1200, 1300, 4)) == "1234 [1200, 1300], n = 4"
    assert ratio(Estimate(1.312, 1.219, 1.404, 24)) == "1.31x [1.22, 1.40], n = 24"
    assert share(Estimate(0.5, 0.25, 0.75, 8), 8) == "50.0% [25.0%, 75.0%]"
    assert moved(Estimate(0.986, 0.982, 1.001, 24)) == "-1.4% [-1.8%, +0.1%], n = 24"


def test_what_was_not_measured_is_never_a_number() -> None:
    for text in (ms(None), figure(None), ratio(None), share(None), moved(None), count(None)):
        assert text == NOT_MEASURED == "not measured"
    assert count(0) == "0"


def test_cells_are_named_in_few_words() -> None:
    every = [CellKey(load, t) for t in (0.0, 1.0) for load in (C1, C4, C8)]
    low = [key for key in every if key.load in (C1, C4)]
    assert cells_text(low, every) == "concurrency 1 and 4"
    assert cells_text([every[0], every[1], every[3]], every) == (
        "concurrency 1 and 4 (temperature 0) and concurrency 1 (temperature 1)"
    )
    assert cells_text([every[2]], every) == "concurrency 8 (temperature 0)"
    assert cells_text(every[:1], every[:3]) == "concurrency 1 (temperature 0)"
    mixed = [CellKey(C1, 0.0), CellKey(Load(rate=2.5), 0.0)]
    assert cells_text(mixed, mixed) == "concurrency 1 and 2.5 requests/s (temperature 0)"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed([]) == ""


def test_a_table_survives_what_engines_say() -> None:
    shown = table(("a", "b"), [("x | y\nz", "<class 'int'>")]).markdown
    assert shown.splitlines()[2] == r"| x \| y z | &lt;class 'int'> |"
    with pytest.raises(ValueError, match="2 columns"):
        table(("a", "b"), [("only one",)])


# --- the advice in words, from hand-made verdicts


def made(*cells: tuple[Load, float, SpecConfig, Estimate | None], drift: Estimate | None = None) -> ReportInput:
    """A report whose verdicts are given; the ratio is the advised setting's, or EAGLE2's where off is advised."""
    verdicts = []
    for load, temperature, best, gain in cells:
        key = CellKey(load, temperature)
        other = EAGLE2 if best.is_off else best
        comparisons = (
            Comparison(OFF, key, None, True, (), False),
            Comparison(other, key, gain, True, (), not best.is_off),
        )
        verdicts.append(Verdict(key, best, None if best.is_off else gain, "because", (), comparisons, drift))
    overall = Overall(OFF, None, None, None, "no single setting is better over all cells")
    return dataclasses.replace(EMPTY, recommendation=Recommendation(tuple(verdicts), overall))


EMPTY = study_report(gather(study_trials(Truth(measured=2, concurrency=(1,), temperatures=(0.0,)))[:1], "tpot_p50"))
EMPTY = dataclasses.replace(EMPTY, evidence=dataclasses.replace(EMPTY.evidence, tried=()))


def test_headline_of_a_mixed_study() -> None:
    data = made(
        (C1, 0.0, EAGLE5, Estimate(1.42, 1.35, 1.5, 24)),
        (C4, 0.0, EAGLE2, Estimate(1.2, 1.1, 1.3, 24)),
        (C8, 0.0, OFF, Estimate(0.9, 0.8, 0.95, 24)),
    )
    assert verdict_word(data) == "mixed"
    assert headline(data) == (
        "Use eagle3 N=5 at concurrency 1 (temperature 0); use eagle3 N=2 at concurrency 4 (temperature 0); leave "
        "speculation off at concurrency 8 (temperature 0). Speed-up (TPOT p50 of off over that with it): "
        "1.20x [1.10, 1.30], n = 24 (concurrency 4, temperature 0) to 1.42x [1.35, 1.50], n = 24 (concurrency 1, "
        "temperature 0)."
    )
    assert leave_off(data) == ("Leave it off at concurrency 8 (temperature 0): because.",)


def test_headline_when_off_wins_everywhere() -> None:
    data = made((C1, 0.0, OFF, Estimate(0.97, 0.9, 1.04, 24)), (C8, 0.0, OFF, Estimate(0.7, 0.6, 0.8, 24)))
    assert verdict_word(data) == "off"
    assert headline(data) == (
        "Leave speculative decoding off: in none of the 2 measured cells do tokens come faster with any setting (TPOT "
        "p50) by more than the noise. The best that was tried is eagle3 N=2 at concurrency 1, temperature 0. Speed-up "
        "(TPOT p50 of off over that with it): 0.97x [0.90, 1.04], n = 24, an interval that holds 1, which is no change."
    )


@pytest.mark.parametrize(
    ("gain", "read"),
    [
        (Estimate(0.9, 0.85, 0.95, 24), "0.90x [0.85, 0.95], n = 24, so even that one loses."),
        (
            Estimate(1.2, 1.1, 1.3, 24),
            "1.20x [1.10, 1.30], n = 24, which is not believed: chance, drift or a relaunch may give as much.",
        ),
    ],
)
def test_the_best_of_what_is_not_advised_is_read_for_the_reader(gain: Estimate, read: str) -> None:
    data = made((C1, 0.0, OFF, gain))
    assert headline(data).endswith(read)
    assert headline(data).startswith("Leave speculative decoding off: in the one cell tokens do not come faster with")


def test_headline_when_on_everywhere() -> None:
    data = made((C1, 0.0, EAGLE2, Estimate(1.3, 1.2, 1.4, 24)))
    assert verdict_word(data) == "on"
    assert headline(data) == (
        "Use eagle3 N=2 at concurrency 1 (temperature 0). Speed-up (TPOT p50 of off over that with it): 1.30x [1.20, "
        "1.40], n = 24."
    )
    assert leave_off(data) == ()


def test_off_is_no_finding_where_nothing_was_compared() -> None:
    data = made((C1, 0.0, OFF, None))
    assert verdict_word(data) == "undecided"
    assert headline(data) == "No advice can be given: because."
    assert leave_off(data) == ()
    nothing = dataclasses.replace(data, recommendation=Recommendation((), data.recommendation.overall))
    assert headline(nothing) == "No advice can be given: no cell was measured without speculation."


def test_a_flag_that_only_launches_with_speculation_carried_is_said() -> None:
    data = study_report(study_evidence())
    assert "Launches with speculation alone" not in " ".join(how_sure(data))
    more = ("--per-request-spec-decode-metrics", "detailed")
    tried = tuple(
        dataclasses.replace(
            one, trial=dataclasses.replace(one.trial, command=(*one.trial.command, *(() if one.spec.is_off else more)))
        )
        for one in data.evidence.tried
    )
    uneven = dataclasses.replace(data, evidence=dataclasses.replace(data.evidence, tried=tried))
    said = "Launches with speculation alone carried `--per-request-spec-decode-metrics detailed`: what that costs is in"
    assert any(line.startswith(said) for line in how_sure(uneven))


def test_how_sure_names_drift_status_and_what_was_not_verified() -> None:
    drift = Estimate(0.986, 0.982, 0.992, 24)
    data = made((C4, 0.0, EAGLE2, Estimate(1.2, 1.1, 1.3, 23)), drift=drift)
    stopped = dataclasses.replace(data, status="stopped: the minutes of the budget are used up")
    said = " ".join(how_sure(stopped))
    assert "It goes on from here with `tuner recommend " in said
    assert "goes on from here" not in " ".join(how_sure(dataclasses.replace(stopped, in_night=True)))
    assert "over 23 requests" in said
    assert "-1.4% [-1.8%, -0.8%], n = 24 at concurrency 4" in said
    assert "not complete (stopped: the minutes of the budget are used up)" in said
    assert "target's: not verified in this study." in said
    assert "drift is not measured" in " ".join(how_sure(made((C4, 0.0, EAGLE2, Estimate(1.2, 1.1, 1.3, 23)))))
    verified = dataclasses.replace(data, losslessness="greedy text equal in 30 of 30 prompts")
    assert how_sure(verified)[-1] == "Output still the target's: greedy text equal in 30 of 30 prompts."


# --- figures that are derived for the report, from two requests written by hand


def hand_request(index: int, n_out: int, end_s: float, spec: SpecSteps | None) -> RequestRecord:
    return RequestRecord(
        index=index, prompt=f"p/{index}", task="chat", phase="measured", scheduled_s=0, sent_s=0, ended_s=end_s,
        chunks=((1.0, 1), (end_s, n_out)), n_in=5, n_out=n_out, finish="length", spec=spec,
    )  # fmt: skip


def hand_evidence() -> Evidence:
    """Two requests in two arms. Off: 10 steps in 1 s, 20 in 2 s. eagle3 N=2: 6 steps in 0.9 s, 12 in 1.8 s."""
    key, health = CellKey(C1, 0.0), ClientHealth(0, 0, 0)
    off = (hand_request(0, 11, 2.0, None), hand_request(1, 21, 3.0, None))
    # 6 steps: 3 accept none, 2 accept one, 1 accepts both; 11 tokens = 1 + 6 + (2 + 2). Doubled, 21 = 1 + 12 + 8.
    on = (
        hand_request(0, 11, 1.9, SpecSteps((3, 2, 1), drafted=12)),
        hand_request(1, 21, 2.8, SpecSteps((6, 4, 2), drafted=24)),
    )
    trials = [
        Trial(number, spec, "vllm-cpu", (Cell(key, (0.0, 3.0), requests, health),))
        for number, (spec, requests) in enumerate(((OFF, off), (EAGLE2, on)), 1)
    ]
    return gather(trials, "tpot_p50")


def test_break_even_is_the_ratio_of_step_times() -> None:
    data = hand_evidence()
    point = break_even_point(data, data.tried[1], CellKey(C1, 0.0))
    assert point is not None
    # L(b, 0) = 3.0 s / 30 steps = 0.1; L(b, 2) = 2.7 s / 18 steps = 0.15; tau must exceed 0.15 / 0.1 = 1.5.
    assert point.tau.value == pytest.approx(1.5)
    assert point.tau.n == 2
    # 1 + alpha + alpha^2 = 1.5 -> alpha = (-1 + sqrt(1 + 2)) / 2 = 0.366.
    assert point.alpha[0] == pytest.approx((math.sqrt(3) - 1) / 2)
    assert alpha_text(point).startswith("0.366 [")


def test_break_even_table_says_how_far_above_it_tau_is() -> None:
    rows = break_even_table(study_report(hand_evidence())).rows
    # tau = 1 + 12 / 18 = 1.667; 1.667 / 1.5 = 1.11; TPOT 0.1 s over 0.09 s = 1.11 as well: the two agree.
    shown = [(row[2], row[3][:4], row[4][:4], row[7], row[8][:5], row[9]) for row in rows]
    assert shown == [("eagle3 N=2", "1.50", "1.67", "1.11x", "1.11x", "yes")]


def test_a_break_even_out_of_reach_says_so() -> None:
    data = hand_evidence()
    point = break_even_point(data, data.tried[1], CellKey(C1, 0.0))
    assert point is not None
    assert alpha_text(dataclasses.replace(point, alpha=(None, None, None))) == "none: needs tau over 3"
    assert alpha_text(dataclasses.replace(point, alpha=(0.9, 0.8, None))) == "0.900 [0.800, none], n = 2"
    assert alpha_text(dataclasses.replace(point, alpha_defined=False)).startswith("not defined")


def test_rates_and_positions_are_pooled_over_requests() -> None:
    cell = hand_evidence().tried[1].trial.cells[0]
    rate, steps = draft_acceptance_rate(cell, EAGLE2, 0), drafting_share(cell, EAGLE2, 0)
    assert rate is not None
    assert rate.value == pytest.approx(12 / 36)  # accepted 4 + 8, drafted 12 + 24
    assert rate.n == 2
    assert steps is not None
    assert steps.value == 1.0  # every step drafted
    found = cell_positions(cell, EAGLE2, 0)
    assert found is not None
    # 18 drafting steps: 9 accept the first token, 3 both. a = (9/18, 3/18); alpha_2 = 3/9.
    assert [a.value for a in found.a if a] == pytest.approx([0.5, 1 / 6])
    assert [a.value for a in found.alpha if a] == pytest.approx([0.5, 1 / 3])
    assert cell_positions(cell, OFF, 0) is None


def test_a_prediction_never_sees_the_launch_it_is_compared_with(evidence: Evidence) -> None:
    found = confirmations(evidence)
    # Only eagle3 N=2 could be predicted: N=5 came first of its arm, and ngram does not follow the formula.
    assert {c.spec for c in found} == {EAGLE2}
    assert len(found) == 6
    spoilt = []
    for one in evidence.tried:
        slower = {
            key: dataclasses.replace(cell, step_s=cell.step_s.scaled(3)) if cell.step_s else cell
            for key, cell in one.cells.items()
        }
        spoilt.append(dataclasses.replace(one, cells=slower) if one.spec == EAGLE2 else one)
    again = confirmations(dataclasses.replace(evidence, tried=tuple(spoilt)))
    assert [c.predicted_s for c in again] == [c.predicted_s for c in found]
    assert all(abs(c.error) < 0.1 for c in found)  # the truth is linear in N, as the formula supposes


# --- the report of the synthetic study


def test_everything_is_written_whole(study: Written) -> None:
    assert sorted(p.name for p in study.folder.iterdir() if p.is_file()) == sorted(FILES)
    assert sorted(p.name for p in study.outputs.iterdir()) == sorted(OUTPUTS)
    for name in FILES[1:]:
        assert (study.folder / name).read_bytes().startswith(b"\x89PNG")
        assert f"({name})" in study.report


def test_the_crossover_is_found_and_spelled_out(study: Written) -> None:
    first = next(line for line in study.report.splitlines() if line.startswith("**"))
    assert first.startswith("**Use eagle3 N=2 at concurrency 1 and 4; leave speculation off at concurrency 8. Speed-up")
    rows = {(row["load"], row["temperature"]): row["advice"] for row in study.rows("Verdict by load")}
    assert rows == {
        (f"concurrency {c}", t): "**leave off**" if c == 8 else "**eagle3 N=2**" for c in (1, 4, 8) for t in ("0", "1")
    }
    assert "## Where to leave it off\n\n- Leave it off at concurrency 8: every setting" in study.report
    assert "worse than off at concurrency 8; the worst is 0." in one_setting(study.data)


def test_figures_equal_those_recomputed_from_the_records(study: Written, evidence: Evidence) -> None:
    key = CellKey(C4, 0.0)
    off, on = records(evidence, OFF, key), records(evidence, EAGLE2, key)

    def tpot_ms(r: RequestRecord) -> float:
        return 1000 * (r.chunks[-1][0] - r.chunks[0][0]) / (r.n_out - 1)

    middle = [statistics.median(tpot_ms(r) for r in arm) for arm in (off, on)]
    row = next(
        r for r in study.rows("Verdict by load") if (r["load"], r["temperature"]) == ("concurrency 4", "0")
    )  # fmt: skip
    assert row["speed-up (TPOT p50)"].startswith(f"{middle[0] / middle[1]:.2f}x [")
    assert row["TPOT p50 off, ms"].startswith(f"{middle[0]:.1f} [")
    assert row["TPOT p50 with it, ms"].startswith(f"{middle[1]:.1f} [")
    steps = [r.spec for r in on if r.spec]
    accepted = sum(j * n for s in steps for j, n in enumerate(s.histogram))
    drafting = sum(sum(s.histogram) for s in steps)
    drafted = sum(s.drafted or 0 for s in steps)
    acceptance = next(
        r for r in study.rows("Acceptance, pooled")
        if (r["load"], r["temperature"], r["setting"]) == ("concurrency 4", "0", "eagle3 N=2")
    )  # fmt: skip
    assert acceptance["tau"].startswith(f"{1 + accepted / drafting:.3f} [")
    assert acceptance["draft acceptance rate"].startswith(f"{accepted / drafted:.1%} [")
    full = sum(s.histogram[2] for s in steps)
    assert acceptance["alpha"].startswith(f"{accepted / (accepted + drafting - full):.3f} [")


def test_every_measured_cell_has_its_row(study: Written, evidence: Evidence) -> None:
    cells = sum(len(one.cells) for one in evidence.tried)
    assert cells == 4 * 6 + 3  # four launches of six cells, off again at one temperature
    assert len(study.rows("Latency and throughput")) == cells
    assert len(study.rows("Acceptance, pooled")) == 3 * 6
    assert len(study.rows("Break-even")) == 3 * 6
    assert len(study.rows("Predicted and measured")) == 6
    assert len(study.rows("Drift")) == 3
    assert [row["status"][:6] for row in study.rows("Engine")] == ["ok", "ok", "ok", "ok", "failed", "ok"]


def test_an_estimate_never_stands_without_interval_and_n(study: Written) -> None:
    for title in ("Verdict by load", "Latency and throughput", "Acceptance, pooled", "Break-even", "Drift"):
        for row in study.rows(title):
            for column, text in row.items():
                if "[" in text and "n" not in row:
                    assert "n = " in text, (title, column, text)
                if column.endswith((", ms", "tok/s")) or column in ("tau", "alpha", "measured tau"):
                    assert re.match(r"[\d.]+ \[[\d.]+, [\d.]+\]|not measured", text), (title, column, text)
    assert not re.search(r"\b(nan|inf|None)\b", study.report)


def test_failures_cautions_and_engine_facts_are_told(study: Written) -> None:
    assert study.rows("Launches that failed") == [
        {
            "launch": "5",
            "setting": "medusa N=3",
            "cause": "failed: the engine ended before it was ready; the engine's log says: Model architectures ['X'] "
            "are unknown",
        }
    ]
    assert study.rows("Measured requests that failed")[0]["error"] == "HTTP 500: engine core died"
    failed = next(
        r["failed"] for r in study.rows("Latency")
        if (r["load"], r["temperature"], r["setting"]) == ("concurrency 8", "1", "ngram N=4")
    )  # fmt: skip
    assert failed == "1 of 24"
    assert "- temperature 1 was measured under a correction" in study.report
    assert f"corrections applied: {CORRECTION}" in study.report
    eagle = study.rows("Engine")[2]
    assert (eagle["KV capacity, tokens"], eagle["KV capacity against off"]) == ("41,344", "-8.4%")  # 41344 / 45120
    assert study.rows("Engine")[4]["KV capacity, tokens"] == NOT_MEASURED
    assert "The client kept up in every cell; worst of 27 cells: event-loop lag p99 2.1 ms" in study.report


def test_a_limited_client_is_named(evidence: Evidence, tmp_path: Path) -> None:
    first = evidence.tried[0]
    slow = dataclasses.replace(first.trial.cells[0], health=ClientHealth(0.2, 0.0, 0.1))
    trial = dataclasses.replace(first.trial, cells=(slow, *first.trial.cells[1:]))
    tried = (dataclasses.replace(first, trial=trial), *evidence.tried[1:])
    data = study_report(dataclasses.replace(evidence, tried=tried))
    report = written(data, tmp_path).report
    assert "The client was limited in 1 cells (launch 1 at concurrency 1, temperature 0)" in report


def test_a_cell_that_cannot_be_is_shown_and_enters_no_figure(evidence: Evidence, tmp_path: Path) -> None:
    key, ngram = CellKey(C8, 0.0), evidence.tried[1]
    finding = Finding("tau-range", "tau 6.000 is outside 1..5: impossible", blocks=True)
    sound = {k: cell for k, cell in ngram.cells.items() if k != key}
    blocked = dataclasses.replace(ngram, cells=sound, findings={key: (finding,)})
    tried = (evidence.tried[0], blocked, *evidence.tried[2:])
    told = written(study_report(dataclasses.replace(evidence, tried=tried)), tmp_path)
    assert told.rows("Cells with a figure that cannot be") == [
        {"launch": "2", "setting": "ngram N=4", "cell": "concurrency 8, temperature 0", "finding": finding.text}
    ]
    places = [(r["load"], r["temperature"]) for r in told.rows("Acceptance, pooled") if r["setting"] == "ngram N=4"]
    assert len(places) == 5
    assert ("concurrency 8", "0") not in places


def test_many_cautions_do_not_bury_the_verdict(study: Written, tmp_path: Path) -> None:
    many = tuple(f"caution {number}" for number in range(9))
    report = written(dataclasses.replace(study.data, cautions=many), tmp_path).report
    top, rest = report.split("## Verdict by load")
    assert "- caution 5\n- and 3 more under [Cautions and self-checks](#cautions-and-self-checks)." in top
    assert [text for text in many if f"- {text}\n" in rest] == list(many[6:])  # the rest, and nothing twice


def test_the_workload_in_the_report_asks_the_same_again(study: Written) -> None:
    block = study.report.split("```yaml\n")[1].split("```")[0]
    assert Workload.model_validate(yaml.safe_load(block)) == study.data.workload


def test_a_report_is_the_same_however_often_it_is_made(study: Written, tmp_path: Path) -> None:
    again = written(study.data, tmp_path, plots=True)
    for name in FILES:
        assert (again.folder / name).read_bytes() == (study.folder / name).read_bytes(), name
    for name in OUTPUTS:
        assert (again.outputs / name).read_bytes() == (study.outputs / name).read_bytes(), name


def test_a_new_report_leaves_no_old_plot_behind(study: Written, tmp_path: Path) -> None:
    shutil.copytree(study.folder, tmp_path, dirs_exist_ok=True)
    only_off = gather(study_trials()[:1], "tpot_p50")
    made_again = written(study_report(only_off, deploy={}), tmp_path, plots=True)
    assert not (tmp_path / "speedup.png").exists()
    assert not (tmp_path / "acceptance.png").exists()
    assert not (tmp_path / "outputs" / "launch.sh").exists()
    assert "**No advice can be given: nothing but off was measured here.**" in made_again.report
    assert "The command is not known" in made_again.report
    assert made_again.json["verdict"] == "undecided"


def test_off_everywhere_is_said_plainly(tmp_path: Path) -> None:
    truth = Truth(slope=8, concurrency=(4, 8), temperatures=(0.0,), failed=False)
    told = written(study_report(study_evidence(truth)), tmp_path)
    assert told.json["verdict"] == "off"
    assert "**Leave speculative decoding off: in none of the 2 measured cells do tokens come faster" in told.report
    assert "## Where to leave it off" not in told.report  # everywhere: the headline says so, the table why
    assert "--speculative-config" not in (told.outputs / "launch.sh").read_text()
    assert all(row["advice"] == "**leave off**" for row in told.rows("Verdict by load"))


def test_goodput_and_missed_objectives_are_shown_where_slos_are_set(tmp_path: Path) -> None:
    truth = Truth(concurrency=(4, 8), temperatures=(0.0,), failed=False)
    told = written(study_report(study_evidence(truth, "goodput", tpot_p95_ms=60.0)), tmp_path)
    off8 = next(r for r in told.rows("Latency") if (r["load"], r["setting"]) == ("concurrency 8", "off"))
    assert re.match(r"[\d.]+% \[[\d.]+%, [\d.]+%\]", off8["goodput"])
    missed = {(r["load"], r["setting"]): r["objectives missed"] for r in told.rows("Service-level objectives")}
    assert missed["concurrency 8", "off"].startswith("tpot_p95_ms: ")
    assert ("concurrency 4", "eagle3 N=2") not in missed
    assert "Service-level objectives (tpot_p95 60 ms)" in told.report


def test_objectives_that_all_settings_meet_take_one_line(tmp_path: Path) -> None:
    truth = Truth(measured=8, concurrency=(1,), temperatures=(0.0,), failed=False)
    told = written(study_report(study_evidence(truth, tpot_p50_ms=1000.0)), tmp_path)
    assert "every setting meets all of them in every cell." in told.report


def test_acceptance_that_was_not_told_is_not_measured(tmp_path: Path) -> None:
    trials = list(study_trials(Truth(concurrency=(1,), temperatures=(0.0,), failed=False)))
    cell = trials[2].cells[0]
    silent = tuple(dataclasses.replace(r, spec=None) for r in cell.requests)
    trials[2] = dataclasses.replace(trials[2], cells=(dataclasses.replace(cell, requests=silent),))
    told = written(study_report(gather(trials, "tpot_p50")), tmp_path)
    row = next(r for r in told.rows("Acceptance, pooled") if r["setting"] == "eagle3 N=5")
    assert [row[c] for c in ("tau", "alpha", "draft acceptance rate", "drafting share")] == [NOT_MEASURED] * 4
    place = next(c for c in told.json["cells"][0]["comparisons"] if c["config"]["label"] == "eagle3 N=5")
    assert place["tau"] is None
    assert place["break_even"] is None


# --- recommendation.json


def schema() -> dict[str, Any]:
    text = resources.files("tuner.report").joinpath("recommendation.schema.json").read_text()
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def test_json_keeps_to_its_schema(study: Written) -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.Draft202012Validator(schema()).validate(study.json)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("verdict",), "maybe"),
        (("cells", 0, "ratio", "n"), 1),
        (("cells", 0, "ratio", "low"), None),
        (("cells", 0, "config", "key"), "zz"),
        (("surprise",), 1),
    ],
)
def test_the_schema_refuses_what_is_wrong(study: Written, path: tuple[Any, ...], value: object) -> None:
    spoilt: Any = study.json
    place = spoilt
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema()).validate(spoilt)


def test_json_holds_what_was_decided(study: Written, evidence: Evidence) -> None:
    told = study.json
    assert told["verdict"] == "mixed"
    assert told["best"]["config"]["label"] == "eagle3 N=2"
    assert told["best"]["worst"]["cell"] == {"concurrency": 8, "rate": None, "temperature": 1.0}
    first = told["cells"][0]
    gain = evidence.ratio(OFF, EAGLE2, CellKey(C1, 0.0))
    assert gain is not None
    assert first["ratio"] == {"value": gain.value, "low": gain.low, "high": gain.high, "n": gain.n}
    assert [c["on"] for c in told["cells"]] == [True, True, False, True, True, False]
    assert told["launch"][0]["argv"] == list(study.data.deploy[EAGLE2])
    assert [launch["config"]["label"] for launch in told["launch"]] == ["eagle3 N=2", "off"]
    assert {p["config"]["label"] for p in told["predictions"]} == {"eagle3 N=2"}
    for row in told["predictions"]:
        assert row["error"] == pytest.approx(row["predicted_s"]["value"] / row["measured_s"]["value"] - 1)
    lookup = next(c for c in first["comparisons"] if c["config"]["method"] == "ngram")
    assert lookup["break_even"]["alpha"] is None  # its tau does not follow from one alpha
    assert told["failed_trials"][0]["config"]["method"] == "medusa"
    assert told["losslessness"] is None


# --- launch.sh


def stub_run(script: Path, bin_folder: Path, *more: str, **env: str) -> tuple[list[str], int]:
    """Runs the script with `python` and `vllm` that print what they were called with."""
    bin_folder.mkdir(exist_ok=True)
    for name in ("python", "vllm"):
        stub = bin_folder / name
        stub.write_text('#!/bin/sh\nprintf "%s\\0" "${0##*/}" "$@"\n')
        stub.chmod(0o755)
    path = f"{bin_folder}:{os.environ['PATH']}"
    done = subprocess.run([script, *more], env={"PATH": path, **env}, capture_output=True, text=True, check=False)
    return done.stdout.split("\0")[:-1], done.returncode


def test_launch_script_runs_the_deployed_command(study: Written, tmp_path: Path) -> None:
    script = study.outputs / "launch.sh"
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    assert os.access(script, os.X_OK)
    assert script.read_text().startswith("#!/usr/bin/env bash\n#")
    assert "\nset -euo pipefail\n" in script.read_text()
    argv, code = stub_run(script, tmp_path / "bin", "--port", "8080")
    assert code == 0
    assert argv == [*study.data.deploy[EAGLE2], "--port", "8080"]
    assert "\n  --max-num-seqs 8 \\\n" in script.read_text()  # one flag a line
    assert f"# vllm-cpu: measured with the correction {CORRECTION}" in script.read_text()


def test_launch_script_asks_for_secrets_and_exports_the_rest(study: Written, tmp_path: Path) -> None:
    argv = ("vllm", "serve", "m", "--hf-token", "hunter2", "--api-key=hunter2", "--note", 'it\'s $HOME `x`\n"y"')
    options = {"env": {"OMP_NUM_THREADS": "2 3"}, "args": ["--hf-token", "hunter2"]}
    data = study_report(study.data.evidence, WORKLOAD | {"engine_options": options}, deploy={EAGLE2: argv})
    told = written(data, tmp_path)
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert b"hunter2" not in file.read_bytes(), file
    script = told.outputs / "launch.sh"
    got, code = stub_run(script, tmp_path / "bin", HF_TOKEN="t1", API_KEY="k1")
    assert code == 0
    assert got == ["vllm", "serve", "m", "--hf-token", "t1", "--api-key=k1", *argv[-2:]]
    assert stub_run(script, tmp_path / "bin")[1] != 0  # without the variables it refuses, and names them
    assert "export OMP_NUM_THREADS='2 3'" in script.read_text()
    assert told.json["launch"][0]["argv"][4] == "$HF_TOKEN"


words = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=12)


@given(st.lists(st.one_of(words, words.map(lambda w: f"--{w}")), max_size=6))
@settings(max_examples=40, deadline=None)
def test_any_command_survives_the_shell(argv: list[str]) -> None:
    argv = [word for word in argv if not is_secret_flag(word)]
    script = f"printf '%s\\0' {command_lines(('x', *argv))}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"})
    assert done.stdout.decode("utf-8").split("\0")[:-1] == ["x", *argv]


# --- secrets


def test_what_counts_as_a_secret() -> None:
    for flag in ("--api-key", "--hf-token", "--admin-api-key", "--api-key=x", "--ssl-keyfile-password"):
        assert is_secret_flag(flag), flag
    for flag in ("--max-num-batched-tokens", "--tokenizer", "--spec-tokens", "--ssl-keyfile", "hf-token", "x"):
        assert not is_secret_flag(flag), flag
    assert shown_argv(("--hf-token", "a", "b")) == ("--hf-token", "$HF_TOKEN", "b")
    assert shown_argv(("--hf-token", "--seed", "0")) == ("--hf-token", "--seed", "0")


def test_a_secret_in_a_stored_launch_is_not_shown(evidence: Evidence, tmp_path: Path) -> None:
    first = evidence.tried[0]
    trial = dataclasses.replace(first.trial, command=(*first.trial.command, "--api-key", "hunter2"))
    tried = (dataclasses.replace(first, trial=trial), *evidence.tried[1:])
    told = written(study_report(dataclasses.replace(evidence, tried=tried)), tmp_path)
    assert "hunter2" not in told.report
    assert "--api-key '$API_KEY'" in told.report
