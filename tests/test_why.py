"""The reasons in the report: what a step emits and costs, and the launches in the words of the plan."""

from __future__ import annotations

import dataclasses

import pytest
from cells import C1T0, off_trial, spec_trial
from study_fixture import study_header

from tuner.decide.evidence import Evidence, gather
from tuner.decide.outline import left_to_try
from tuner.decide.plan import ask
from tuner.decide.rank import recommend
from tuner.report.data import ReportInput
from tuner.report.page import page
from tuner.report.why import steps, why
from tuner.spec.candidates import Arm

ARM = Arm("eagle3", "head", ns=(1, 2, 4))
#: Off 100 ms a step. N = 4 takes 260 ms and emits 1 + (0 + 1 + 3 + 4) / 4 = 3 tokens: 86.7 ms a token, 1.15 times.
#: N = 2 would take 180 ms and emit 1 + 3/4 + 2/4 = 2.25: 80 ms.
OFF = [0.1, 0.101, 0.099, 0.1, 0.1, 0.1, 0.1, 0.1]
STEPS = [[0, 1, 3, 4]] * 8
NO_PLOTS: dict[str, bytes | None] = dict.fromkeys(("acceptance.png", "tpot.png", "speedup.png", "trees.png"))


def report(evidence: Evidence, left: str | None = None) -> ReportInput:
    trials = [dataclasses.replace(one.trial, engine="vllm-cpu") for one in evidence.tried]
    told = gather(trials, "tpot_p50")
    return ReportInput(study_header(), told, recommend(told), (), {}, left_to_try=left)


@pytest.fixture(scope="module")
def measured() -> Evidence:
    first = dataclasses.replace(off_trial(OFF), why="everything is compared with off, so it is measured first")
    second = dataclasses.replace(spec_trial(ARM.at(4), 0.26, STEPS), why="eagle3 at its largest N")
    return gather([first, second, off_trial(OFF, 3, role="baseline-again")], "tpot_p50")


def test_why_sets_what_a_step_emits_against_what_it_costs(measured: Evidence) -> None:
    (line,) = why(report(measured))
    assert line.startswith(
        "concurrency 1, temperature 0: with eagle3 N=4 a step emits 3.00 tokens and takes 2.60 times as long as a plain"
    )
    assert "Measured: 1.15x" in line


def test_nothing_is_explained_where_nothing_was_compared() -> None:
    assert why(report(gather([off_trial(OFF)], "tpot_p50"))) == ()


def test_the_report_gives_the_launches_in_the_words_of_the_plan(measured: Evidence) -> None:
    first = ask((ARM,), gather([], "tpot_p50"), 5)
    assert first is not None
    told = steps(report(measured))
    assert told[0] == f"off: {first.why}"
    assert told[-1] == "Then nothing untested could win by more than a tie."
    text = page(report(measured, "eagle3 N=2: it may still win"), NO_PLOTS)
    section = text.split("## How it was decided")[1].split("\n## ")[0]
    assert "2. eagle3 N=4: eagle3 at its largest N" in section
    assert "Not launched, and it might have changed the advice: eagle3 N=2: it may still win" in section


def test_what_was_left_to_try_is_what_the_plan_would_launch_next(measured: Evidence) -> None:
    before = dataclasses.replace(measured, tried=measured.tried[:2])
    following = ask((ARM,), before, 2)
    assert following is not None
    assert not following.spec.is_off
    left = left_to_try((ARM,), measured)
    assert left == following
    assert left_to_try((Arm("eagle3", "head", ns=(4,)),), measured) is None


def test_a_failed_launch_says_why() -> None:
    failed = dataclasses.replace(
        off_trial(OFF, 2), spec=ARM.at(2), cells=(), status="failed: no memory", role="explore", why="because"
    )
    told = steps(report(gather([off_trial(OFF), failed], "tpot_p50")))
    assert told[1] == "eagle3 N=2: because (failed: no memory)"
    assert C1T0 in gather([off_trial(OFF)], "tpot_p50").keys
