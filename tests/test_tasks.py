"""Advice task by task and for their mix: shares, the loss of one setting, and how the report and JSON tell it."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import jsonschema
import pytest
from cells import C1T0, cell, request
from study_fixture import ARMS, study_header

from tuner.decide.evidence import Evidence, gather
from tuner.decide.plan import predictions
from tuner.decide.rank import recommend
from tuner.decide.tasks import advice_by_task, few_prompts, regret_over_tasks, tasks_of
from tuner.errors import UserError
from tuner.measure.records import Cell, CellKey, Load, Trial
from tuner.report.data import ReportInput
from tuner.report.page import page
from tuner.report.recommendation_json import SCHEMA_PATH, as_dict
from tuner.report.skill import skill
from tuner.run.question import cell_weights
from tuner.spec.load import load_workload
from tuner.spec.speculation import OFF, SpecConfig
from tuner.spec.workload import Workload

E2 = SpecConfig("eagle3", n=2, draft="head")
C8T0 = CellKey(Load(8), 0.0)
#: Seconds a token: off takes 50 ms on both. With N = 2 code takes 25 ms (2x) and talk 62.5 ms (0.8x). 9 requests of
#: code and 3 of talk: three quarters and one quarter of the traffic.
TPOT_S = {("code", True): 0.025, ("talk", True): 0.0625, ("code", False): 0.05, ("talk", False): 0.05}
NO_PLOTS: dict[str, bytes | None] = dict.fromkeys(("acceptance.png", "tpot.png", "speedup.png", "trees.png"))
TASKS = ("code", "code", "code", "talk")


def trial(number: int, spec: SpecConfig, keys: tuple[CellKey, ...] = (C1T0,), role: str = "explore") -> Trial:
    return Trial(number, spec, "vllm-cpu", tuple(one_cell(number, spec, key) for key in keys), role=role)


def one_cell(number: int, spec: SpecConfig, key: CellKey) -> Cell:
    requests = []
    for i in range(24):
        task = TASKS[i % 4]
        noise = 1 + 0.01 * ((3 * i + number) % 5 - 2)
        tpot_s = TPOT_S[task, not spec.is_off] * noise
        accepted = None if spec.is_off else ([2, 2, 1, 1] if task == "code" else [0, 0, 1, 0])
        made = request(i, tpot_s, accepted=accepted, n=spec.n, tokens=21)
        requests.append(dataclasses.replace(made, task=task, prompt=f"{task}/{i}"))
    return cell(requests, key)


def mixed(keys: tuple[CellKey, ...] = (C1T0,), **more: object) -> Evidence:
    trials = [trial(1, OFF, keys, "baseline"), trial(2, E2, keys), trial(3, OFF, keys, "baseline-again")]
    return gather(trials, "tpot_p50", **more)  # type: ignore[arg-type]


def test_a_task_that_one_cell_lacks_is_not_judged() -> None:
    """Six requests of talk at concurrency 1, none at 8: its verdicts would leave that load out without a word."""
    keys = (C1T0, C8T0)
    off = trial(1, OFF, keys, "baseline")
    only_code = tuple(r for r in off.cells[1].requests if r.task == "code")
    off = dataclasses.replace(off, cells=(off.cells[0], dataclasses.replace(off.cells[1], requests=only_code)))
    evidence = gather([off, trial(2, E2, keys)], "tpot_p50")
    assert tasks_of(evidence) == ("code",)
    assert few_prompts(evidence) == ("talk",)


def test_each_task_gets_its_own_advice_and_its_share() -> None:
    evidence = mixed()
    assert tasks_of(evidence) == ("code", "talk")
    code, talk = advice_by_task(evidence, E2)
    assert (code.task, code.share) == ("code", 0.75)
    assert (talk.task, talk.share) == ("talk", 0.25)
    assert (code.own.best, talk.own.best) == (E2, OFF)
    assert code.gain is not None
    assert talk.gain is not None
    assert code.gain.value == pytest.approx(2.0, rel=0.03)
    assert talk.gain.value == pytest.approx(0.8, rel=0.03)


def test_one_setting_for_the_mix_loses_what_talk_loses_to_off() -> None:
    code, talk = advice_by_task(mixed(), E2)
    assert code.regret == 0
    assert talk.regret == pytest.approx(0.25, abs=0.04)  # off is 1 / 0.8 = 1.25 times as good
    assert talk.worst_loss is not None
    assert talk.worst_loss[1] == pytest.approx(0.2, abs=0.03)  # 1 - 0.8 / 1
    both = regret_over_tasks((code, talk))
    assert both == pytest.approx(math.exp(0.25 * math.log1p(talk.regret)) - 1)  # 5.7 %
    assert regret_over_tasks(()) is None


def test_with_off_for_all_code_gives_up_its_gain() -> None:
    code, talk = advice_by_task(mixed(), OFF)
    assert code.regret == pytest.approx(1.0, rel=0.06)  # half the speed: 100 % of the mean
    assert talk.regret == 0


def test_a_cell_that_enters_no_ranking_enters_none_of_a_task() -> None:
    evidence = mixed((C1T0, C8T0))
    without = dataclasses.replace(
        evidence,
        tried=tuple(
            dataclasses.replace(one, cells={k: c for k, c in one.cells.items() if k == C1T0}) for one in evidence.tried
        ),
    )
    assert {v.key for advice in advice_by_task(without, E2) for v in advice.verdicts} == {C1T0}


# --- shares of the traffic ------------------------------------------------------------------------------------------


def workload(**changes: object) -> Workload:
    traffic = {"concurrency": [1, 8], "rates": [2.0], "load_shares": [6, 3, 1]}
    sampling = {"temperatures": [0.0, 1.0], "temperature_shares": [3, 1]}
    data = {"name": "w", "model": "m", "engine": "e", "traffic": traffic, "sampling": sampling}
    return Workload.model_validate(data | changes)


def test_a_cells_weight_is_its_loads_share_times_its_temperatures() -> None:
    found = cell_weights(workload())
    assert found[CellKey(Load(1), 0.0)] == 18
    assert found[CellKey(Load(8), 1.0)] == 3
    assert found[CellKey(Load(rate=2.0), 0.0)] == 3
    assert len(found) == 6
    assert cell_weights(workload(traffic={"concurrency": [1]}, sampling={"temperatures": [0.0]})) == {}
    only = cell_weights(workload(sampling={"temperatures": [0.0]}))
    assert only == {CellKey(Load(1), 0.0): 6, CellKey(Load(8), 0.0): 3, CellKey(Load(rate=2.0), 0.0): 1}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("traffic: {concurrency: [1, 8], load_shares: [1]}", "1 shares for 2 levels"),
        ("traffic: {concurrency: [1]}\nsampling: {temperatures: [0, 1], temperature_shares: [1]}", "1 shares for 2"),
        ("traffic: {concurrency: [1], load_shares: [0]}", "load_shares"),
    ],
)
def test_shares_fit_what_they_are_of(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(f"name: w\nmodel: m\nengine: e\n{text}\n")
    with pytest.raises(UserError, match=sentence):
        load_workload(path)


def test_shares_of_the_traffic_decide_the_one_setting() -> None:
    """Twice as fast alone, 0.8 times with eight: sqrt(1.6) = 1.26 alike; where eight is 19 of 20, 0.84."""
    slow = trial(2, E2, (C8T0,))
    slow = dataclasses.replace(slow.cells[0], requests=tuple(r for r in slow.cells[0].requests if r.task == "talk"))
    off = one_cell(1, OFF, C8T0)
    off = dataclasses.replace(off, requests=tuple(r for r in off.requests if r.task == "talk"))
    fast = dataclasses.replace(
        one_cell(2, E2, C1T0), requests=tuple(r for r in one_cell(2, E2, C1T0).requests if r.task == "code")
    )
    plain = dataclasses.replace(
        one_cell(1, OFF, C1T0), requests=tuple(r for r in one_cell(1, OFF, C1T0).requests if r.task == "code")
    )
    trials = [Trial(1, OFF, "e", (plain, off), role="baseline"), Trial(2, E2, "e", (fast, slow), role="explore")]
    alike = recommend(gather(trials, "tpot_p50")).overall
    assert alike.best == E2
    assert alike.ratio is not None
    assert alike.ratio.value == pytest.approx(math.sqrt(1.6), rel=0.03)
    heavy = recommend(gather(trials, "tpot_p50", weights={C1T0: 1, C8T0: 19})).overall
    assert heavy.best == OFF


# --- what people read -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data() -> ReportInput:
    evidence = mixed((C1T0, C8T0), weights={C1T0: 3.0, C8T0: 1.0})
    advice = recommend(evidence)
    tasks = advice_by_task(evidence, advice.overall.best)
    return ReportInput(study_header(), evidence, advice, predictions(ARMS, evidence), {}, tasks=tasks)


def test_the_report_has_a_row_a_task_and_says_where_to_route_it(data: ReportInput) -> None:
    text = page(data, NO_PLOTS)
    section = text.split("## By task")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ") and "---" not in line]
    assert [row.split(" | ")[0] for row in rows] == ["| task", "| code", "| talk"]
    assert "75%" in rows[1]
    assert "eagle3 N=2" in rows[1]
    assert "| off |" in rows[2]
    assert "eagle3 N=2 is slower than off on talk" in section
    assert "weighted by its share of the traffic" in text
    assert "By task" in skill(data)


def test_the_json_has_them_too_and_keeps_its_schema(data: ReportInput) -> None:
    told = as_dict(data)
    jsonschema.validate(told, json.loads(SCHEMA_PATH.read_text()))
    assert [task["task"] for task in told["tasks"]] == ["code", "talk"]
    assert told["tasks"][1]["best"]["label"] == "off"
    assert told["tasks"][1]["worst_loss"]["loss"] == pytest.approx(0.2, abs=0.03)
    assert told["best"]["worst_loss"]["loss"] == 0


def test_one_task_alone_makes_no_section(data: ReportInput) -> None:
    assert "## By task" not in page(dataclasses.replace(data, tasks=()), NO_PLOTS)
