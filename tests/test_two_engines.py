"""One workload asked of two engines: same prompts, same limits, one table with one meaning of N."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from cells import C1T0, off_trial, spec_trial
from conftest import Bench
from test_rank import E3, OFF_TPOTS, TWO

from tuner.decide.across import best_engine, duels, rows
from tuner.decide.evidence import Evidence, gather
from tuner.decide.rank import recommend
from tuner.measure.records import CellKey, Load
from tuner.run.store import StudyStore


def test_a_study_over_both_engines_has_a_page_and_a_report_each(bench: Bench) -> None:
    eagle = {"method": "eagle3", "model": "./head", "n": 3}
    workload = bench.workload(
        engine=["mock", "mock-sglang"], drafts=[eagle], traffic={"concurrency": [2], "max_output_tokens": 24}
    )
    done = bench.tuner("recommend", workload, "--json")
    assert done.returncode == 0, done.stderr
    (study,) = bench.studies()
    trials = StudyStore.read(study).trials()
    assert [(t.engine, t.spec.label) for t in trials] == [
        (engine, label) for engine in ("mock", "mock-sglang") for label in ("off", "eagle3 N=3", "off")
    ]
    commands = [" ".join(t.command) for t in trials]
    assert '"num_speculative_tokens": 3' in commands[1]
    assert "--speculative-num-steps 3" in commands[4]
    assert "--speculative-num-draft-tokens 4" in commands[4]  # SGLang counts the root: the same N
    assert "--max-num-seqs 2" in commands[0]
    assert "--max-running-requests 2" in commands[3]
    assert "launch 1: off on mock: " in done.stderr
    assert "launch 5: eagle3 N=3 on mock-sglang: " in done.stderr
    page = (study / "report.md").read_text(encoding="utf-8")
    settings = [line for line in page.splitlines() if "| eagle3 N=3 |" in line and "| 3 |" in line]
    assert len(settings) == 2  # a row an engine, both with N = 3
    for engine in ("mock", "mock-sglang"):
        assert (study / engine / "report.md").exists()
    assert json.loads(done.stdout)["best"]["config"]["n"] == 3
    assert (bench.folder / "outputs" / "launch.sh").exists()


def test_an_engine_that_never_starts_takes_nothing_of_what_the_other_measured(bench: Bench) -> None:
    python = Path(json.loads((bench.home / "engines" / "mock.json").read_text())["python"])
    python.write_text(
        python.read_text().replace("exec", 'case "$*" in *sglang*) export MOCK_ENGINE_FAULTS=die_at_start;; esac\nexec')
    )
    eagle = {"method": "eagle3", "model": "./head", "n": 3}
    workload = bench.workload(
        engine=["mock", "mock-sglang"], drafts=[eagle], traffic={"concurrency": [2], "max_output_tokens": 24}
    )
    done = bench.tuner("recommend", workload, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["best"]["config"]["n"] == 3
    assert "mock-sglang could not be measured without speculation: failed: " in done.stderr
    (study,) = bench.studies()
    page = (study / "report.md").read_text(encoding="utf-8")
    assert "The study is not complete (failed: mock-sglang could not be measured without speculation" in page
    resumed = bench.tuner("recommend", workload, "--resume", "--json")
    assert resumed.returncode == 0, resumed.stderr
    trials = StudyStore.read(study).trials()
    assert [t.engine for t in trials if t.cells] == ["mock"] * 3  # measured once


def test_the_faster_engine_wins_by_a_paired_ratio() -> None:
    slow = gather([off_trial(OFF_TPOTS), spec_trial(E3, 0.16, TWO)], "tpot_p50")
    fast = gather([off_trial(OFF_TPOTS), spec_trial(E3, 0.12, TWO)], "tpot_p50")
    evidence = {"a": slow, "b": fast}
    (duel,) = duels(evidence, {name: recommend(one) for name, one in evidence.items()})
    assert duel.ratio is not None
    assert duel.ratio.value == pytest.approx(0.16 / 0.12, rel=1e-6)
    assert best_engine([duel], ["a", "b"]) == "b"


def test_a_duel_weighs_cells_by_their_share_of_the_traffic() -> None:
    light, heavy = C1T0, CellKey(Load(concurrency=8), 0.0)
    weights = {light: 0.9, heavy: 0.1}

    def engine(light_s: float, heavy_s: float) -> Evidence:
        cells = [off_trial([tpot] * 8, number, key) for number, key, tpot in ((1, light, light_s), (2, heavy, heavy_s))]
        both = dataclasses.replace(cells[0], cells=cells[0].cells + cells[1].cells)
        return gather([both], "tpot_p50", weights=weights)

    # b is 1.2 times faster where nine of ten requests are, and 1.5 times slower at the rare load.
    evidence = {"a": engine(0.12, 0.10), "b": engine(0.10, 0.15)}
    (duel,) = duels(evidence, {name: recommend(one) for name, one in evidence.items()})
    assert duel.ratio is not None
    assert duel.ratio.value == pytest.approx(1.2**0.9 / 1.5**0.1)
    assert duel.winner == "b"


def test_an_engine_that_wins_by_less_than_its_launches_differ_wins_nothing() -> None:
    def engine(tpot_s: float, drift: float) -> Evidence:
        again = off_trial([tpot_s * drift] * 8, 2, role="baseline-again")
        return gather([off_trial([tpot_s] * 8), again], "tpot_p50")

    def winner(drift: float) -> str | None:
        evidence = {"a": engine(0.103, drift), "b": engine(0.100, 1.0)}
        (duel,) = duels(evidence, {name: recommend(one) for name, one in evidence.items()})
        assert duel.ratio is not None
        assert duel.ratio.value == pytest.approx(1.03)
        return duel.winner

    # Two launches differ by sqrt((3 x 2 x 0.005^2 + ln(drift)^2) / 4): 0.6 % without a drift, 2.5 % with one of 5 %.
    assert winner(1.0) == "b"
    assert winner(1.05) is None


def test_equal_engines_are_not_told_apart() -> None:
    same = {name: gather([off_trial(OFF_TPOTS), spec_trial(E3, 0.12, TWO)], "tpot_p50") for name in "ab"}
    (duel,) = duels(same, {name: recommend(one) for name, one in same.items()})
    assert duel.winner is None
    assert best_engine([duel], ["a", "b"]) is None


def test_a_lossy_arm_is_not_ranked_beside_lossless_ones() -> None:
    fast = spec_trial(E3, 0.06, TWO)
    lossy = dataclasses.replace(fast, cells=(dataclasses.replace(fast.cells[0], lossy="temperature is ignored"),))
    evidence = {
        "a": gather([off_trial(OFF_TPOTS), spec_trial(E3, 0.12, TWO)], "tpot_p50"),
        "b": gather([off_trial(OFF_TPOTS), lossy], "tpot_p50"),
    }
    told = rows(evidence)
    assert told[-1].lossy == "temperature is ignored"
    assert told[-1].key == C1T0
    (duel,) = duels(evidence, {name: recommend(one) for name, one in evidence.items()})
    assert duel.winner == "a"  # b is advised to run off, whatever its lossy arm reaches
