"""`tuner plan` and the outline behind it; the search of settings that do not tell each other; minutes of a launch."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from cells import C1T0, off_trial, spec_trial
from typer.testing import CliRunner

from tuner.cli import app
from tuner.decide.evidence import gather, with_trial
from tuner.decide.halving import most_launches, next_setting
from tuner.decide.launch_cost import closing_seconds, launch_seconds
from tuner.decide.outline import outline
from tuner.decide.plan import ask, predictions
from tuner.decide.prefix_rule import holds, launched_pairs, refused
from tuner.decide.prospects import best_measured
from tuner.measure.records import CellKey
from tuner.spec.candidates import Arm
from tuner.spec.speculation import OFF, SpecConfig, Tree

EAGLE = Arm("eagle3", "head", ns=(1, 2, 3, 4))
NGRAM = Arm("ngram", ns=(2, 4))
OFF_TPOTS = [0.1] * 8
STEPS = [[0, 0, 1, 3]] * 8
PROFILE = Path(__file__).parent.parent / "profiles" / "smollm2-chat-cpu.yaml"


def test_before_anything_is_measured_the_certain_launches_are_listed_and_off_closes() -> None:
    asks, then = outline((NGRAM, EAGLE), gather([], "tpot_p50"), 6)
    assert [(a.spec.label, a.role) for a in asks] == [
        ("off", "baseline"), ("ngram N=4", "explore"), ("eagle3 N=4", "explore"), ("off", "baseline-again"),
    ]  # fmt: skip
    assert "up to 2 further launches" in then
    tight, then = outline((NGRAM, EAGLE), gather([], "tpot_p50"), 3)
    assert [a.spec.label for a in tight] == ["off", "ngram N=4", "off"]
    assert "no further launch" in then


def test_from_evidence_the_next_launch_comes_first() -> None:
    told = gather([off_trial(OFF_TPOTS), spec_trial(EAGLE.at(4), 0.14, STEPS)], "tpot_p50")
    asks, _ = outline((EAGLE,), told, 4)
    assert [a.spec.label for a in asks] == ["eagle3 N=3", "off"]
    done = with_trial(told, off_trial(OFF_TPOTS, 3, role="baseline-again"))
    assert outline((EAGLE,), done, 3) == (
        (),
        "nothing is left to launch: nothing untested can win by more than a tie, or the budget is used up",
    )


def test_adding_a_trial_is_gathering_them_all() -> None:
    trials = [off_trial(OFF_TPOTS), spec_trial(EAGLE.at(4), 0.14, STEPS)]
    assert with_trial(gather(trials[:1], "tpot_p50"), trials[1]) == gather(trials, "tpot_p50")


def test_minutes_are_the_start_and_the_cells_at_the_expected_pace() -> None:
    # Off: ready in 60 s; its cell ends at 0.1 + 10 x 0.1 = 1.1 s. At a gain of 2 the cell takes 0.55 s.
    off = dataclasses.replace(off_trial(OFF_TPOTS), ready_s=60.0)
    told = gather([off], "tpot_p50")
    assert launch_seconds(told, EAGLE.at(2)) == pytest.approx(61.1)
    assert launch_seconds(told, EAGLE.at(2), {C1T0: 2.0}) == pytest.approx(60.55)
    assert launch_seconds(gather([off_trial(OFF_TPOTS)], "tpot_p50"), OFF) is None  # no start was timed


def test_off_once_more_is_expected_to_take_as_long_as_its_one_temperature() -> None:
    hot = CellKey(C1T0.load, 1.0)
    cells = off_trial(OFF_TPOTS).cells + off_trial([2 * tpot for tpot in OFF_TPOTS], key=hot).cells
    evidence = gather([dataclasses.replace(off_trial(OFF_TPOTS), cells=cells, ready_s=60.0)], "tpot_p50")
    # Cells end at 0.1 + 10 x 0.1 = 1.1 s and at 0.1 + 10 x 0.2 = 2.1 s.
    assert launch_seconds(evidence, OFF) == pytest.approx(60 + 1.1 + 2.1)
    assert closing_seconds(evidence) == pytest.approx(60 + 1.1)
    certain, _ = outline((NGRAM,), evidence, 4)
    assert [(one.role, one.seconds) for one in certain][-1] == ("baseline-again", pytest.approx(60 + 1.1))


def test_two_lookup_runs_that_agree_make_it_predictable_and_two_that_do_not_refuse_it() -> None:
    lookup = Arm("ngram", ns=(1, 2, 4))
    four = spec_trial(lookup.at(4), 0.14, STEPS)
    # Of 0, 0, 1, 3 accepted at N = 4 the last four tokens take two steps at N = 2: it accepts 0, 0, 1, 2, 0.
    two = spec_trial(lookup.at(2), 0.12, [[0, 0, 1, 2, 0]] * 8, 3)
    agreeing = gather([off_trial(OFF_TPOTS), four, two], "tpot_p50")
    assert holds(agreeing, lookup.chains)
    assert [p.spec.n for p in predictions((lookup,), agreeing)] == [1, 2, 4]
    other = gather([off_trial(OFF_TPOTS), four, spec_trial(lookup.at(2), 0.12, [[2, 2, 1, 2]] * 8, 3)], "tpot_p50")
    told = refused(other, lookup.chains)
    assert told is not None
    assert "tau(2) is 2.750" in told.text  # 1 + 7/4 measured; 8 tokens in 5 steps as the run at 4 tells it
    assert predictions((lookup,), other) == ()
    asked = ask((lookup,), other, 5)
    assert asked is not None
    assert "searched around the better half" in asked.why


def test_lookup_runs_over_unlike_prompts_agree_token_by_token() -> None:
    """Half the prompts copy nine tokens a step, half copy nothing. At N = 2 nine tokens take three steps: 4 x 9 tokens
    in 4 x 3 steps, and 20 in 20, so tau(2) = 56 / 32."""
    lookup = Arm("ngram", ns=(2, 8))
    eight = spec_trial(lookup.at(8), 0.14, [[8] * 4, [0] * 20] * 4)
    two = spec_trial(lookup.at(2), 0.12, [[2, 2, 2] * 4, [0] * 20] * 4, 3)
    (pair,) = launched_pairs(gather([off_trial(OFF_TPOTS), eight, two], "tpot_p50"), lookup.chains)
    assert pair.measured.value == pytest.approx(56 / 32)
    assert pair.summed.value == pytest.approx(56 / 32)
    assert pair.holds


def test_a_lossy_setting_keeps_no_other_from_being_tried() -> None:
    fast = spec_trial(SpecConfig("ngram", n=2), 0.05, STEPS, 2)
    lossy = dataclasses.replace(fast, cells=(dataclasses.replace(fast.cells[0], lossy="it fails verification"),))
    trials = [off_trial(OFF_TPOTS), lossy, spec_trial(EAGLE.at(4), 0.14, STEPS, 3)]
    best = best_measured(gather(trials, "tpot_p50"), C1T0)
    assert best is not None
    assert best.spec == EAGLE.at(4)


def test_autoregressive_drafts_too_are_refused_when_two_runs_contradict() -> None:
    trials = [
        off_trial(OFF_TPOTS),
        spec_trial(EAGLE.at(4), 0.14, STEPS),
        spec_trial(EAGLE.at(2), 0.12, [[2] * 4] * 8, 3),
    ]
    assert predictions((EAGLE,), gather(trials, "tpot_p50")) == ()


def test_halving_goes_nearer_to_the_better_half_and_ends() -> None:
    settings = [SpecConfig("ngram", n=n) for n in range(1, 9)]
    scores = {settings[7]: 0.5}
    seen = [8]
    truth = {n: 1 - abs(n - 3) / 10 for n in range(1, 9)}  # best at N = 3
    while (following := next_setting(settings, scores)) is not None:
        seen.append(following.n)
        scores[following] = truth[following.n]
    assert len(seen) == most_launches(8) == 7  # 1 + 2 log2(8)
    assert 3 in seen[:5]


def test_trees_are_explored_at_the_largest_and_searched_nearby() -> None:
    trees = Arm("eagle3", "head", trees=(Tree(2, 2, 4), Tree(3, 4, 16), Tree(5, 4, 32)))
    first = ask((trees,), gather([off_trial(OFF_TPOTS)], "tpot_p50"), 6)
    assert first is not None
    assert first.spec.tree == Tree(5, 4, 32)


def test_the_plan_needs_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    run = CliRunner().invoke(app, ["plan", str(PROFILE), "--reports", str(tmp_path), "--launches", "5", "--json"])
    assert run.exit_code == 0, run.output
    told = json.loads(run.stdout)
    assert [one["spec"]["label"].split()[0] for one in told["launches"]] == ["off", "eagle3", "ngram", "off"]
    assert {"spec", "command", "env", "cells", "why", "minutes"} <= set(told["launches"][0])
    assert "--speculative-config" in told["launches"][1]["command"]
    assert told["launches"][1]["cells"][0] == {"concurrency": 1, "rate": None, "temperature": 0.0}
    assert told["launches"][0]["minutes_from"].endswith("not measured yet")
    assert told["removed"] == []
    assert any("is not registered here" in note for note in told["notes"])
    assert not list(tmp_path.glob("*/journal.jsonl"))


def test_the_plan_says_that_recommend_would_refuse_the_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    workload = tmp_path / "workload.yaml"
    workload.write_text(
        "name: w\nmodel: owner/model\nengine: sglang\ntraffic: {concurrency: [1]}\n"
        "drafts:\n  - method: medusa\n    model: owner/head\n    n: [2]\n"
    )
    run = CliRunner().invoke(app, ["plan", str(workload), "--reports", str(tmp_path), "--json"])
    assert run.exit_code == 0, run.output
    (refused,) = [note for note in json.loads(run.stdout)["notes"] if "refuses" in note]
    assert refused.startswith("`tuner recommend` refuses this workload: ")
    assert "SGLang has no medusa: measure it with vLLM" in refused


def test_impossible_settings_are_removed_with_their_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    workload = tmp_path / "workload.yaml"
    workload.write_text(
        "name: trees\nmodel: owner/model\nengine: sglang\ndrafts:\n  - method: ngram\n    n: [4]\n"
        "  - method: eagle3\n    model: owner/head\n    tree: {depth: [1, 3], topk: [4], nodes: [16]}\n"
        "traffic: {concurrency: [1]}\n"
    )
    run = CliRunner().invoke(app, ["plan", str(workload), "--reports", str(tmp_path), "--json"])
    assert run.exit_code == 0, run.output
    (gone,) = json.loads(run.stdout)["removed"]
    assert gone["spec"] == "eagle3 tree d=1 k=4 m=16"
    assert "cannot be filled" in gone["reason"]  # 16 - 1 > 4
    shown = CliRunner().invoke(app, ["plan", str(workload), "--reports", str(tmp_path)]).stdout
    assert "Not tried: eagle3 tree d=1 k=4 m=16" in shown
    assert "Nothing was launched." in shown
