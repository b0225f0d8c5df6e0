"""A night over real processes and HTTP: the whole command on mock engines, with what goes wrong at night."""

from __future__ import annotations

import json
import os
import re
import signal
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from conftest import Bench
from sweep_bench import (
    EAGLE,
    cells,
    environment,
    finished_cells,
    index_equals_a_rebuild,
    nights,
    run,
    start,
    sweep_file,
    wait_until,
    write_night,
)

from tuner.decide.launch_cost import cell_seconds
from tuner.errors import UserError
from tuner.run.history import compare_asked, runs_of, tag_run
from tuner.run.history_db import open_database
from tuner.run.history_index import refresh
from tuner.run.history_runs import find_run
from tuner.run.nights import baseline_of
from tuner.run.progress import Event
from tuner.run.store import StudyStore
from tuner.run.sweep_night import _baseline_there, sweep_night
from tuner.run.sweep_open import unfinished
from tuner.run.sweep_plan import SweepPlan, plan_sweep
from tuner.run.sweep_retention import prune
from tuner.run.sweep_store import NightHeader, NightStore

#: Steps so long that what the machine's other work adds is small beside them.
SLOW = {"base_s": 0.030, "slope": 0.05, "crowding": 0.0, "prefill_s": 0.001}
LONGER = {"measure": {"requests": 16, "waves": 1, "warmup_requests": 1},
          "traffic": {"concurrency": [4, 8], "prompts": [{"set": "chat"}], "max_output_tokens": 16}}  # fmt: skip


def outcome(done: object) -> dict[str, object]:
    told = json.loads(done.stdout)  # type: ignore[attr-defined]
    assert isinstance(told, dict)
    return told


def test_a_first_night_measures_everything_reports_and_has_nothing_to_compare_with(bench: Bench) -> None:
    done = run(bench, "sweep", sweep_file(bench))
    assert done.returncode == 0, done.stderr
    assert "Nothing to compare with yet" in done.stdout
    assert "gate `verify failed`: passed" in done.stdout
    (night,) = nights(bench)
    assert len(cells(night)) == 6  # off, eagle3, off again at two loads each
    assert "a launch, " in done.stderr  # the pace of measured launches and cells
    page = (night / "report.md").read_text(encoding="utf-8")
    for part in ("## Gates", "## What changed since the baseline", "## Failures", "## Trend", "## How to reproduce"):
        assert part in page
    assert NightStore.read(night).status() == "complete"


def test_eight_percent_slower_fails_the_gate_and_an_equal_night_does_not(bench: Bench) -> None:
    file = sweep_file(bench, workload=LONGER)
    assert run(bench, "sweep", file, sim=SLOW).returncode == 0
    same = run(bench, "sweep", file, "--json", sim=SLOW)
    told = outcome(same)
    assert (same.returncode, told["state"]) == (0, "green")
    assert {change["state"] for change in told["changes"]} == {"no evidence"}  # type: ignore[attr-defined]
    # 1.5 times and not 1.08: what shares this machine with the test moves launches by several percent.
    slower = run(bench, "sweep", file, "--json", sim=SLOW | {"base_s": 0.045})
    told = outcome(slower)
    assert (slower.returncode, told["state"]) == (1, "red")
    everything = next(c for c in told["changes"] if c["setting"] == "every setting")  # type: ignore[attr-defined]
    assert everything["state"] == "regressed"
    # The failed night is no baseline: the next one is compared with the last green one.
    assert NightStore.read(nights(bench)[-1]).events()[-2]["baseline"] == nights(bench)[1].name


def test_a_draft_swapped_under_the_same_name_is_named(bench: Bench) -> None:
    file = sweep_file(bench)
    assert run(bench, "sweep", file).returncode == 0
    (bench.folder / "head" / "model.safetensors").write_bytes(
        b"\x02\x00\x00\x00\x00\x00\x00\x00{}"
    )  # an empty safetensors file
    done = run(bench, "sweep", file, "--json")
    (suspect,) = [one for one in outcome(done)["suspects"] if one["kind"] == "draft"]  # type: ignore[attr-defined]
    assert "head has other files under the same name" in suspect["text"]


def test_an_engine_that_dies_in_a_cell_is_a_failed_cell_and_lighter_ones_are_measured(bench: Bench) -> None:
    # 4 + 2 requests at concurrency 1 and temperature 0; the one at 4 breaks the engine, temperature 1 is yet to come.
    file = sweep_file(bench, workload={"sampling": {"temperatures": [0.0, 1.0]}})
    done = run(bench, "sweep", file, faults="die_at_request=9")
    (night,) = nights(bench)
    (study,) = night.glob("*/study.json")
    store = StudyStore.read(study.parent)
    failed = [event for event in store.events() if event["event"] == "cell_failed"]
    assert failed[0]["cell"] == "concurrency 4, temperature 0"
    assert any("the mock engine was told to die" in line for line in failed[0]["log_tail"])
    retry = next(trial for trial in store.trials() if trial.why.startswith("smaller retry"))
    assert "died at concurrency 4: lighter cells alone" in retry.why
    assert [cell.key.label for cell in retry.cells] == ["c1-t1"]
    assert done.returncode == 3, done.stderr  # the heavier cells were not measured: this night is no baseline
    assert "and this night is no baseline. Failed: workload-mock, off" in done.stdout
    assert "failed: workload-mock, launch 1, off" in done.stdout
    assert "the mock engine was told to die" in (night / "report.md").read_text(encoding="utf-8")


def test_an_engine_without_room_is_tried_smaller_when_planned(bench: Bench) -> None:
    # The mock has room for off alone: a way to draft is tried once smaller, and no oftener.
    python = Path(json.loads((bench.home / "engines" / "mock.json").read_text())["python"])
    text = python.read_text().replace(
        "exec", 'case "$*" in *speculative*) export MOCK_ENGINE_FAULTS=die_at_start;; esac\nexec'
    )
    python.write_text(text)
    file = sweep_file(bench, mode="planned", studies=[EAGLE | {"axes": {"n": [1, 2, 3]}}])
    done = run(bench, "sweep", file)
    (night,) = nights(bench)
    (study,) = night.glob("*/study.json")
    trials = StudyStore.read(study.parent).trials()
    tried = [(trial.spec.label, trial.why.startswith("smaller retry")) for trial in trials if not trial.spec.is_off]
    assert tried == [("eagle3 N=3", False), ("eagle3 N=2", True)]
    assert "No available memory" in trials[1].status
    assert done.returncode == 3, done.stderr


def test_off_that_cannot_be_measured_fails_its_study_and_the_next_one_runs(bench: Bench) -> None:
    broken = Path(bench.home / "engines" / "broken.json")
    entry = json.loads((bench.home / "engines" / "mock.json").read_text())
    broken.write_text(json.dumps(entry | {"name": "broken", "python": "/bin/false"}))
    studies = [
        EAGLE | {"name": "one", "engines": ["broken"]},
        EAGLE | {"name": "two", "engines": ["mock"]},
    ]
    done = run(bench, "sweep", sweep_file(bench, studies=studies))
    (night,) = nights(bench)
    assert done.returncode == 3
    assert {cell[0] for cell in cells(night)} == {"02-two-mock"}
    statuses = NightStore.read(night).study_statuses()
    assert statuses["01-one-broken"].startswith("failed: off could not be measured")
    assert statuses["02-two-mock"] == "complete"
    assert "Traceback" not in done.stderr


def test_no_cell_begins_after_the_minutes_and_off_closes_what_was_begun(bench: Bench) -> None:
    file = sweep_file(
        bench, workload={"measure": {"requests": 8, "waves": 1, "warmup_requests": 1}},
        studies=[EAGLE | {"axes": {"n": [1, 2, 3, 4, 5, 6, 7, 8]}}],
    )  # fmt: skip
    done = run(bench, "sweep", file, "--minutes", 0.25, sim=SLOW)
    (night,) = nights(bench)
    (study,) = night.glob("*/study.json")
    store = StudyStore.read(study.parent)
    trials = store.trials()
    assert done.returncode == 0, done.stderr
    assert "stopped: the minutes of the budget that are left take no further launch" in done.stdout
    assert len(trials) < 10
    if len({trial.spec for trial in trials}) > 2:
        assert trials[-1].role == "baseline-again"
    # From the journal: when the night began, when each cell was done and how long it had taken.
    began = datetime.fromisoformat(NightStore.read(night).events()[0]["at"])
    ended = [datetime.fromisoformat(event["at"]) for event in store.events() if event["event"] == "cell_done"]
    took_s = [cell_seconds(cell) for trial in trials for cell in trial.cells]
    assert max((at - began).total_seconds() - s for at, s in zip(ended, took_s, strict=True)) < 15 + 1


def test_no_two_measurements_share_a_gpu_and_the_lock_lasts_until_the_engine_is_gone(bench: Bench) -> None:
    file = sweep_file(bench)
    first = start(bench, "sweep", file, faults="ignore_sigterm")
    try:
        wait_until(lambda: finished_cells(bench) >= 1)
        for second in (("sweep", file), ("recommend", "workload.yaml"), ("verify", "workload.yaml")):
            refused = run(bench, *second)
            assert refused.returncode == 2
            assert f"GPU 0 is in use by tuner sweep night (process {first.pid})" in refused.stderr
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
    # Its engine ignores SIGTERM: the lock is free once the guard has killed it, and the next sweep waits for that.
    assert run(bench, "sweep", file, "--resume").returncode == 0
    assert len(nights(bench)) == 1


def test_an_older_or_changed_night_is_not_gone_on_with(bench: Bench) -> None:
    process = start(bench, "sweep", sweep_file(bench))
    wait_until(lambda: finished_cells(bench) >= 1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    changed = sweep_file(bench, studies=[EAGLE | {"axes": {"n": [3]}}])
    done = run(bench, "sweep", changed, "--resume")
    assert done.returncode == 0, done.stderr
    assert "beginning a new one" in done.stderr
    assert len(nights(bench)) == 2


def test_tags_baselines_and_retention(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(bench, monkeypatch, retention={"nights": 3, "records_nights": 1}, baseline="tag:released")
    reports = bench.folder / "reports"
    ids = [f"2026050{day}-020000-night" for day in range(1, 7)]
    for name in ids:
        write_night(plan, reports, name)
    tag_run(reports, "released", ids[0])
    with open_database(reports) as database:
        refresh(database, reports)
        newest = find_run(database, ids[-1])
        assert [one and one.id for one in (baseline_of(database, "tag:released", newest),
                                           baseline_of(database, "last-green", newest),
                                           baseline_of(database, f"run:{ids[2]}", newest),
                                           baseline_of(database, "tag:none", newest))] == [
            ids[0], ids[4], ids[2], None]  # fmt: skip
        told = prune(database, reports, "night", plan.sweep.retention, {ids[1]})
        refresh(database, reports)
    # The tagged night and the named one stay whole; of the others the newest three, of which one has its records.
    assert [night.name for night in nights(bench)] == [*ids[:2], *ids[3:]]
    records = [bool(list(night.glob("*/trials/*/requests-*.jsonl"))) for night in nights(bench)]
    assert records == [True, True, False, False, True]
    assert len(told) == 3
    runs, unreadable = runs_of(reports)
    assert [run.cells for run in runs] == [27] * 5  # figures outlive their records
    assert unreadable == []
    assert index_equals_a_rebuild(reports)
    compared = compare_asked(reports, "released", ids[-1], ["verify failed"])
    assert compared.gates[0].state == "not measured"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"studies": [{"workload": "absent.yaml"}]}, "absent.yaml does not exist"),
        ({"studies": [{"workload": "workload.yaml", "engines": ["nowhere"]}]}, "no engine is registered as 'nowhere'"),
        ({"studies": [{"workload": "workload.yaml", "versions": ["9.*"]}]}, "has a version 9.* (mock 0.32.0)"),
        ({"gates": ["tau falls"]}, "'tau falls' is no gate"),
    ],
)
def test_bad_input_is_one_sentence_before_any_launch(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], sentence: str
) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)):
        planned(bench, monkeypatch, **changes)


def test_a_baseline_that_is_no_run_is_said_before_any_launch(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(bench, monkeypatch, baseline="run:nowhere")
    with pytest.raises(UserError, match="no run is called nowhere"):
        sweep_night(plan.path, bench.folder / "reports", lambda _: None)
    assert nights(bench) == []


def test_a_tag_that_no_night_has_is_said_before_any_launch(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, reports, told = planned(bench, monkeypatch, baseline="tag:released"), bench.folder / "reports", list[Event]()
    write_night(plan, reports, "20260501-020000-night")
    _baseline_there(plan, reports, told.append)
    assert [event.text for event in told] == [
        "no night is tagged released yet, to compare this one with: `tuner history --tag released RUN` names one"
    ]
    tag_run(reports, "released", "20260501-020000-night")
    _baseline_there(plan, reports, told.append)
    assert len(told) == 1


def test_a_night_goes_on_with_other_minutes_and_launches_and_not_with_another_question(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = bench.folder / "reports"
    began = NightStore.create(reports, NightHeader.new(planned(bench, monkeypatch)))
    began.close()
    longer = planned(bench, monkeypatch, budget={"minutes": 50}, studies=[EAGLE | {"launches": 9}])
    found = unfinished(longer, reports)
    assert found is not None
    assert found.folder == began.folder
    other = {"engine_options": {}, "traffic": {"concurrency": [1, 2], "prompts": [{"set": "chat"}]}}
    assert unfinished(planned(bench, monkeypatch, workload=other), reports) is None


def planned(bench: Bench, monkeypatch: pytest.MonkeyPatch, **changes: object) -> SweepPlan:
    for variable, value in environment(bench).items():
        monkeypatch.setenv(variable, value)
    return plan_sweep(sweep_file(bench, **changes))


def test_kinds_and_versions_choose_among_registered_engines(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = json.loads((bench.home / "engines" / "mock.json").read_text())
    for name, version in (("new", "0.33.1"), ("newer", "0.34.0")):
        (bench.home / "engines" / f"{name}.json").write_text(json.dumps(entry | {"name": name, "version": version}))

    def engines(**study: object) -> list[str]:
        return [one.environment.name for one in planned(bench, monkeypatch, studies=[EAGLE | study]).studies]

    assert engines() == ["mock"]
    assert engines(engines=["vllm"]) == ["mock", "new", "newer"]
    assert engines(engines=["vllm"], versions=["0.3[34].*"]) == ["new", "newer"]
    assert engines(engines=["new", "mock"]) == ["new", "mock"]


def test_a_night_that_is_being_written_is_listed_as_running(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, reports = planned(bench, monkeypatch), bench.folder / "reports"
    header = replace(NightHeader.new(plan), id="20260501-020000-night", created="2026-05-01T02:00:00+00:00")
    with NightStore.create(reports, header):
        assert [run.status for run in runs_of(reports)[0]] == ["running"]
    assert [run.status for run in runs_of(reports)[0]] == ["interrupted"]
