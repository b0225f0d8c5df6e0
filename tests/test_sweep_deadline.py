"""A night's minutes: nothing is started, measured or asked for after them, wherever it runs."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from cells import C1T0, off_trial
from conftest import Bench
from study_fixture import study_header
from sweep_bench import cells, nights, run, sweep_file

from tuner.decide.plan import Ask
from tuner.engines.environments import Environment
from tuner.measure.records import CellKey, EngineFacts, Load
from tuner.run import trial
from tuner.run.process import EngineSlow
from tuner.run.store import StudyStore
from tuner.run.sweep_clock import Deadline
from tuner.run.sweep_store import NightStore
from tuner.run.sweep_study import OUT_OF_TIME, NightStudy
from tuner.run.trial import NOT_STARTED, TrialPlan, run_trial
from tuner.spec.candidates import Arm
from tuner.spec.speculation import OFF, SpecConfig

HERE = Environment("vllm-cpu", "vllm", "0.32.0", "python", None, "cpu")
NGRAM = SpecConfig("ngram", n=2)
C4T0 = CellKey(Load(concurrency=4), 0.0)


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.s = 0.0

    def until(self, unix_s: float) -> Deadline:
        return Deadline(unix_s, lambda: self.s)


# One launch


class Served:
    """In place of an engine: it serves after `takes_s`, or is too slow."""

    clock: Clock
    takes_s = 5.0

    def __init__(self, *_: object, ready_timeout_s: float, **__: object) -> None:
        self.ready_timeout_s, self.ready_s = ready_timeout_s, self.takes_s

    async def __aenter__(self) -> Self:
        self.clock.s += min(self.takes_s, self.ready_timeout_s)
        if self.takes_s > self.ready_timeout_s:
            raise EngineSlow(f"the engine was not ready within {self.ready_timeout_s:g} s", "")
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def log_text(self) -> str:
        return ""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Cells take 10 s each; asking for the output is told in `asked`."""
    made = Clock()
    made.asked = []  # type: ignore[attr-defined]
    engine = SimpleNamespace(
        launch=lambda *_: SimpleNamespace(argv=("serve",), env=(), url="http://x", served_name="m"),
        ready_path=lambda: "/health", info_path=lambda: None, read_facts=lambda *_: EngineFacts(),
        root_cause=lambda _: None,
    )  # fmt: skip

    async def cell(*_: object) -> None:
        made.s += 10

    async def check_output(*_: object) -> None:
        made.asked.append(made.s)  # type: ignore[attr-defined]

    monkeypatch.setattr(Served, "clock", made, raising=False)
    monkeypatch.setattr(Served, "takes_s", 5.0)
    monkeypatch.setattr(trial, "EngineProcess", Served)
    monkeypatch.setattr(trial, "engine_for", lambda _: engine)
    monkeypatch.setattr(trial._Running, "_cell", cell)
    monkeypatch.setattr(trial, "check_output", check_output)
    return made


def launched(folder: Path, deadline: Deadline | None, start_s: float = 0.0, role: str = "explore") -> tuple[str, int]:
    """(status, launches in the journal) of one launch with two cells."""
    options = SimpleNamespace(port=None, ready_timeout_s=600.0)
    question: Any = SimpleNamespace(target="/m", options=lambda _: None, environments=(HERE,),
                                    workload=SimpleNamespace(engine_options=options))  # fmt: skip
    plan = TrialPlan(1, Ask(NGRAM, role, "why"), HERE, (C1T0, C4T0), deadline, start_s)
    with StudyStore.create(folder / "study", study_header()) as store:
        return asyncio.run(run_trial(question, plan, store, lambda _: None)), len(store.trials())


@pytest.mark.parametrize(
    ("deadline_s", "start_s", "status", "launches", "ended_s"),
    [
        (None, 0.0, "ok", 1, 25),
        (26, 15.0, "ok", 1, 25),
        (0, 0.0, NOT_STARTED, 0, 0),
        (14, 15.0, NOT_STARTED, 0, 0),
        (4, 0.0, "stopped: the time was up before the engine was ready", 1, 4),
        (12, 0.0, "stopped: the time was up after 1 of 2 cells", 1, 15),
        (25, 0.0, "stopped: the time was up before its output was asked for", 1, 25),
    ],
)
def test_nothing_of_a_launch_begins_after_the_minutes(
    tmp_path: Path, clock: Clock, deadline_s: float | None, start_s: float, status: str, launches: int, ended_s: float
) -> None:
    deadline = None if deadline_s is None else clock.until(deadline_s)
    assert launched(tmp_path, deadline, start_s) == (status, launches)
    assert clock.s == ended_s
    assert bool(clock.asked) == (status == "ok")  # type: ignore[attr-defined]


def test_an_engine_slower_than_its_own_limit_failed_and_was_not_stopped(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Served, "takes_s", 700.0)
    status, _ = launched(tmp_path, clock.until(3600))
    assert status.startswith("failed: the engine was not ready within 600 s")


def test_offs_last_run_has_nothing_to_ask_and_is_whole_though_the_time_is_up(tmp_path: Path, clock: Clock) -> None:
    assert launched(tmp_path, clock.until(25), role="baseline-again") == ("ok", 1)


# A study


class Queue:
    """In place of Ray: everything is handed over at once, and there is one place, where a launch takes 20 s."""

    at_once, on_this_machine, options = 256, False, ()

    def __init__(self, clock: Clock) -> None:
        self.clock, self.place, self.started_s = clock, asyncio.Lock(), []  # type: ignore[var-annotated]

    def refuse(self, studies: object) -> None: ...

    def close(self) -> None: ...

    async def run(self, _question: object, plan: TrialPlan, store: StudyStore, _notify: object) -> str:
        async with self.place:
            await asyncio.sleep(0)
            if plan.too_late:
                return NOT_STARTED
            self.started_s.append(self.clock.s)
            store.trial_started(plan.number, plan.ask.spec, "vllm-cpu", plan.ask.role, plan.ask.why, (), ())
            store.trial_ready(plan.number, 10.0, EngineFacts())
            for key in plan.keys:
                store.cell_done(plan.number, dataclasses.replace(off_trial([0.01] * 4).cells[0], key=key))
            store.trial_ended(plan.number, "ok")
            self.clock.s += 20
            return "ok"


def study(folder: Path, clock: Clock, minutes_s: float, start_s: float | None = None) -> tuple[str, list[float]]:
    arms = (Arm("ngram", None, ns=(1, 2, 3, 4, 5, 6)),)
    keys: tuple[CellKey, ...] = (C1T0,)
    budget = SimpleNamespace(launches=8)
    planned: Any = SimpleNamespace(
        question=SimpleNamespace(keys=keys, arms=arms, workload=SimpleNamespace(budget=budget), environments=(HERE,)),
        exhaustive=True, environment=HERE, workload=SimpleNamespace(budget=budget),
    )  # fmt: skip
    queue = Queue(clock)
    with StudyStore.create(folder / "study", study_header()) as store:
        status = asyncio.run(NightStudy(planned, store, lambda _: None, queue, clock.until(minutes_s), start_s).run())
    return status, queue.started_s


def test_launches_handed_over_together_are_not_started_when_the_time_is_up(tmp_path: Path) -> None:
    # Off to 20 s, then six settings at once for one place; a launch counts 10 s and its cell, off's last run as much.
    status, started_s = study(tmp_path, Clock(), 90)
    assert status == OUT_OF_TIME
    assert started_s == [0, 20, 40, 60]
    assert max(started_s) < 90


def test_with_time_for_all_of_them_the_study_is_whole(tmp_path: Path) -> None:
    status, started_s = study(tmp_path, Clock(), 600)
    assert (status, len(started_s)) == ("complete", 8)


@pytest.mark.parametrize(("start_s", "launches"), [(None, 1), (29.0, 1), (31.0, 0)])
def test_a_first_launch_is_held_against_what_a_start_took_elsewhere_tonight(
    tmp_path: Path, start_s: float | None, launches: int
) -> None:
    status, started_s = study(tmp_path, Clock(), 30, start_s)
    assert (status, len(started_s)) == (OUT_OF_TIME, launches)


def test_on_a_real_process_a_start_that_would_outlast_the_minutes_is_ended_with_them(bench: Bench) -> None:
    began_s = time.monotonic()
    done = run(bench, "sweep", sweep_file(bench), "--minutes", 0.1, faults="ready_after_s=600")
    took_s = time.monotonic() - began_s
    (night,) = nights(bench)
    assert cells(night) == []
    (study_folder,) = (path.parent for path in night.glob("*/study.json"))
    (only,) = StudyStore.read(study_folder).trials()
    assert (only.spec, only.status) == (OFF, "stopped: the time was up before the engine was ready")
    assert NightStore.read(night).status() == OUT_OF_TIME
    assert took_s < 300, "the engine's own 900 s were waited for"
    assert done.returncode == 0, done.stderr
    assert (
        "no baseline. Not measured: workload-mock, off; workload-mock, eagle3 N=2 head. The night ended" in done.stdout
    )
    again = f"tuner sweep {bench.folder / 'sweep.yaml'} --minutes 0.1"
    assert again in (night / "report.md").read_text(encoding="utf-8")
