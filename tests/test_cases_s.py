"""Outcomes that surprise users (S cases), over evidence. S01, S05, S07, S08, S09 and S14 on published rows: see
test_imported.py and test_tables.py."""

from __future__ import annotations

import dataclasses

from cells import cell, off_trial, request, spec_trial

from tuner.decide.evidence import gather
from tuner.decide.rank import recommend
from tuner.decide.tasks import verdicts_by_task
from tuner.decide.workload_rules import died_at, evidence_findings
from tuner.measure.records import CellKey, Load, Trial
from tuner.measure.validity import check_cell
from tuner.spec.speculation import OFF, SpecConfig

E4 = SpecConfig("eagle3", n=4, draft="head")


def accepting_all(text: str) -> Trial:
    requests = [dataclasses.replace(request(i, 0.02, accepted=[4] * 10, n=4), text=text) for i in range(4)]
    return Trial(2, E4, "e", (cell(requests),))


def test_s12_all_accepted_and_junk_is_broken_and_enters_no_ranking() -> None:
    """NVIDIA/TensorRT-LLM#5146: NaN logits accept every draft, and the text is '!!!!'."""
    broken = accepting_all("!" * 40)
    rules = {finding.rule: finding.blocks for finding in check_cell(broken.cells[0], E4)}
    assert rules == {"everything-accepted": False, "broken-output": True}
    told = recommend(gather([off_trial([0.1] * 4), broken], "tpot_p50"))
    assert told.verdicts[0].best.is_off


def test_s12_all_accepted_of_a_copying_task_is_true_and_not_typical() -> None:
    """vllm-project/vllm#55605: an honest 5.00 of 5 on repeated text."""
    honest = accepting_all("The quick brown fox jumps over the lazy dog. The quick brown fox")
    rules = {finding.rule: finding.blocks for finding in check_cell(honest.cells[0], E4)}
    assert rules == {"everything-accepted": False}


def test_s03_thinking_off_is_a_workload_of_its_own() -> None:
    """z-lab/dflash#60: 1.30x with thinking, 0.26 to 0.36x without; each is judged by its own evidence."""
    head = SpecConfig("dflash", n=15, draft="head")
    thinking = gather([off_trial([0.1] * 8), spec_trial(head, 0.8, [[9] * 4] * 8)], "tpot_p50")
    without = gather([off_trial([0.1] * 8), spec_trial(head, 0.9, [[2] * 4] * 8)], "tpot_p50")
    assert recommend(thinking).verdicts[0].best == head  # 0.8 / 10 = 80 ms: 1.25x
    assert recommend(without).verdicts[0].best.is_off  # 0.9 / 3 = 300 ms: 0.33x


def test_s13_a_setting_that_dies_under_load_keeps_its_good_cells_and_is_not_advised_above() -> None:
    loads = [CellKey(Load(concurrency=c), 0.0) for c in (1, 16, 64, 96)]
    off = Trial(1, OFF, "e", tuple(off_trial([0.1] * 8, key=key).cells[0] for key in loads))
    good = tuple(spec_trial(E4, 0.15, [[2, 2, 2]] * 8, key=key).cells[0] for key in loads[:3])
    died = Trial(2, E4, "e", good, status="failed: the engine ended during the cell")
    told = gather([off, died], "tpot_p50")
    assert died_at(told, 2) == Load(concurrency=96)
    (finding,) = evidence_findings(told)
    assert finding.text.startswith("eagle3 N=4 died at concurrency 96")
    verdicts = recommend(told).verdicts
    assert [v.on for v in verdicts] == [True, True, True, False]
    assert recommend(told).overall.best.is_off  # one setting for all loads must survive all of them


def test_s13_a_launch_that_was_interrupted_and_went_on_did_not_die() -> None:
    keys = [CellKey(Load(rate=r), 0.0) for r in (2.0, 8.0)]
    off = Trial(1, OFF, "e", tuple(off_trial([0.1] * 8, key=key).cells[0] for key in keys))
    first, second = (spec_trial(E4, 0.15, [[2, 2, 2]] * 8, key=key).cells[0] for key in keys)
    cut = Trial(2, E4, "e", (first,), status="interrupted")
    assert died_at(gather([off, cut], "tpot_p50"), 2) is None
    failed = Trial(2, E4, "e", (first,), status="failed: the engine ended during the cell")
    assert died_at(gather([off, failed], "tpot_p50"), 2) == Load(rate=8.0)
    assert died_at(gather([off, failed, Trial(3, E4, "e", (second,))], "tpot_p50"), 2) is None


def test_s13_a_launch_that_never_started_did_not_die_under_load() -> None:
    told = gather([off_trial([0.1] * 8), Trial(2, E4, "e", (), status="failed: out of memory")], "tpot_p50")
    assert died_at(told, 2) is None
    assert list(evidence_findings(told)) == []


def test_s01_one_task_gains_where_another_loses() -> None:
    """The mix is judged as a whole, and each kind of prompt on its own."""
    task = ["code", "danish"] * 8

    def split(trial: Trial) -> Trial:
        (one,) = trial.cells
        requests = tuple(dataclasses.replace(r, task=task[r.index]) for r in one.requests)
        return dataclasses.replace(trial, cells=(dataclasses.replace(one, requests=requests),))

    # 150 ms a step: code accepts 2 of 3 (50 ms a token), Danish nothing (150 ms); off takes 100 ms.
    drafting = spec_trial(E4, 0.15, [[2, 2, 2], [0, 0, 0]] * 8)
    told = gather([split(off_trial([0.1] * 16)), split(drafting)], "tpot_p50")
    found = verdicts_by_task(told)
    assert {name: verdicts[0].best for name, verdicts in found.items()} == {"code": E4, "danish": OFF}
    ratio = found["code"][0].ratio
    assert ratio is not None
    assert ratio.n == 8
    assert round(ratio.value, 3) == 2.0
    assert "every setting is slower than off" in found["danish"][0].reason
    assert verdicts_by_task(gather([off_trial([0.1] * 8), spec_trial(E4, 0.15, [[2]] * 8)], "tpot_p50")) == {}
