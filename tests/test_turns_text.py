"""Sentences on where the advice turns and on N by load, and where they stand in what people and machines read."""

from __future__ import annotations

import dataclasses

import pytest
from cells import off_trial, spec_trial
from study_fixture import study_header

from tuner.decide.evidence import gather
from tuner.decide.rank import recommend
from tuner.decide.schedule import Crossover, Stretch, scheduled
from tuner.decide.schedule_verdict import ScheduleVerdict
from tuner.decide.turns import LoadTurn
from tuner.measure.records import CellKey, Load
from tuner.measure.statistics import Estimate
from tuner.report.data import ReportInput
from tuner.report.launch_script import adaptive_table, launch_script
from tuner.report.turns_text import load_turn_text, schedule_lines, turn_lines
from tuner.spec.candidates import Arm
from tuner.spec.speculation import OFF, SpecConfig

ARM = Arm("eagle3", "head", ns=(2, 4))
E2, E4 = ARM.at(2), ARM.at(4)


@pytest.fixture(scope="module")
def data() -> ReportInput:
    off = off_trial([0.1, 0.101, 0.099, 0.1, 0.1, 0.1])
    trials = [dataclasses.replace(t, engine="vllm-cpu") for t in (off, spec_trial(E2, 0.12, [[0, 1, 2, 2]] * 6))]
    evidence = gather(trials, "tpot_p50")
    return ReportInput(study_header(), evidence, recommend(evidence), (), {})


def at(data: ReportInput, *cells: tuple[int, float, SpecConfig]) -> ReportInput:
    """The same verdict at other loads and temperatures, with other settings."""
    (verdict,) = data.verdicts
    made = tuple(dataclasses.replace(verdict, key=CellKey(Load(c), t), best=best) for c, t, best in cells)
    return dataclasses.replace(data, recommendation=dataclasses.replace(data.recommendation, verdicts=made))


@pytest.mark.parametrize(
    ("before", "after", "crossing", "text"),
    [
        (E2, OFF, Crossover(5.96, 5.1, 7.2),
         "at temperature 0 eagle3 N=2 stops paying at about 6.0 requests in flight [5.1, 7.2], by interpolation "
         "between concurrency 4 and 8"),
        (OFF, E2, Crossover(5, 4.5, 6), "at temperature 0 eagle3 N=2 begins to pay at about 5.0"),
        (E4, E2, Crossover(5, 4.5, None), "at temperature 0 eagle3 N=2 overtakes eagle3 N=4 at about 5.0 requests in "
         "flight [4.5, above the largest measured]"),
        (E2, OFF, Crossover(None, None, None),
         "at temperature 0 eagle3 N=2 stops paying between concurrency 4 and 8; no load between was measured"),
        # A crossing outside the two loads is noise of ties: only the loads are named.
        (E2, OFF, Crossover(1.0, 1.0, 3.0), "stops paying between concurrency 4 and 8; no load between was measured"),
    ],
)  # fmt: skip
def test_a_turn_by_load(before: SpecConfig, after: SpecConfig, crossing: Crossover, text: str) -> None:
    assert text in load_turn_text(LoadTurn(0.0, before, after, 4, 8, crossing))


def test_requests_above_a_temperature_are_routed_elsewhere(data: ReportInput) -> None:
    hot = at(data, (1, 0.0, E2), (1, 0.7, E2), (1, 1.0, OFF), (4, 0.0, E2), (4, 0.7, E2), (4, 1.0, OFF))
    (line,) = [line for line in turn_lines(hot) if line.startswith("Temperature")]
    assert line == (
        "Temperature: at concurrency 1 and 4 it pays up to temperature 0.7 and not from 1 on: route requests "
        "above 0.7 to a replica without speculation, or measure between the two."
    )
    always = at(data, (1, 0.0, E2), (1, 1.0, E2))
    assert "does not depend on it" in turn_lines(always)[-1]
    assert turn_lines(at(data, (1, 0.0, E2))) == ()
    (line,) = [line for line in turn_lines(at(data, (1, 0.0, OFF), (1, 1.0, E2))) if line.startswith("Temperature")]
    assert "at concurrency 1 it does not pay at temperature 0 and does at 1: no one temperature divides them" in line


def test_a_schedule_is_said_with_what_became_of_it(data: ReportInput) -> None:
    stretches = (Stretch(1, 3, 4), Stretch(4, 8, 0))
    spec = scheduled("vllm", ARM, stretches)
    won = ScheduleVerdict("eagle3", True, "it wins", spec, stretches, E2, Estimate(1.1, 1.05, 1.15, 9))
    told = dataclasses.replace(data, schedules=(won, ScheduleVerdict("ngram", False, "N = 4 is the best")))
    assert schedule_lines(told) == (
        "eagle3, N = 4 up to 3 requests running, off above: **deployed**: it wins.",
        "ngram: no N by load was tried: N = 4 is the best.",
    )


def test_sglangs_table_is_a_file_beside_the_script(data: ReportInput) -> None:
    spec = scheduled("sglang", ARM, (Stretch(1, 3, 4), Stretch(4, 8, 0)))
    overall = dataclasses.replace(data.recommendation.overall, best=spec)
    recommendation = dataclasses.replace(data.recommendation, overall=overall)
    deployed = dataclasses.replace(data, recommendation=recommendation, deploy={spec: ("python", "-m", "sglang")})
    assert adaptive_table(deployed) == '{"1": {"candidate_steps": [4]}, "4": {"candidate_steps": [0]}}'
    script = launch_script(deployed)
    assert script is not None
    assert script.index('cd "$(dirname "$0")"') < script.index("exec python -m sglang")
    assert adaptive_table(data) is None
