"""One study of a night: launch what is asked for until nothing is, or the time is up; failures are rows, not ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tuner.errors import EngineError, UserError
from tuner.measure.records import BASELINE, CLOSING, CellKey, Trial
from tuner.run.gate import unasked
from tuner.run.progress import Event, Notify
from tuner.run.question import Question
from tuner.run.store import INTERRUPTED, StudyStore
from tuner.run.sweep_asks import AGAIN, LOST, Next, closing, following, missing
from tuner.run.sweep_clock import Deadline, Pace, pace_of
from tuner.run.sweep_plan import PlannedStudy
from tuner.run.sweep_store import COMPLETE
from tuner.run.trial import STOPPED, TrialPlan, run_trial

CELL_FAILED = "cell_failed"
TAIL_LINES = 50
OUT_OF_TIME = f"{STOPPED}: the minutes of the budget that are left take no further launch"


class Executor(Protocol):
    """Runs a trial somewhere and writes the store in this process. `at_once`: trials it may be given together;
    `on_this_machine`: whether they use this machine's devices, which are then locked. `options`: of the command line.
    """

    at_once: int
    on_this_machine: bool
    options: tuple[str, ...]

    def refuse(self, studies: Sequence[PlannedStudy]) -> None:
        """UserError, before any launch, for what can never run there."""

    async def run(self, question: Question, plan: TrialPlan, store: StudyStore, notify: Notify) -> str: ...

    def close(self) -> None: ...


class Local:
    """On this machine, one after another."""

    at_once = 1
    on_this_machine = True
    options: tuple[str, ...] = ()

    def refuse(self, studies: Sequence[PlannedStudy]) -> None:
        """Preflight looked at all of it."""

    async def run(self, question: Question, plan: TrialPlan, store: StudyStore, notify: Notify) -> str:
        return await run_trial(question, plan, store, notify)

    def close(self) -> None:
        """Nothing is held between trials."""


@dataclass(frozen=True, slots=True)
class NightStudy:
    """A study while it runs. `start_s`: how long the engine and target took to serve in an earlier study of tonight."""

    planned: PlannedStudy
    store: StudyStore
    notify: Notify
    executor: Executor
    deadline: Deadline
    start_s: float | None = None

    async def run(self) -> str:
        """Its status: complete, `stopped: …` when time was up, `failed: …` when off could not be measured."""
        question = self.planned.question
        status = COMPLETE
        while True:
            own = self.store.trials()
            note_failures(self.store, question, own)
            pace = pace_of(own)
            if why := _hopeless(own):
                status = f"failed: off could not be measured: {why}"
                break
            left = following(question, own, exhaustive=self.planned.exhaustive, unverified=unasked(self.store, own))
            batch = left[: self.executor.at_once]
            affordable = tuple(one for one in batch if self._affords(one, own, pace))
            if batch and not affordable:
                status = OUT_OF_TIME
                last = closing(question, own)
                affordable = (last,) if last is not None and self._affords(last, own, pace) else ()
            if not affordable:
                break
            self._tell_pace(own, pace)
            await self._launch(affordable, own, pace)
            if status != COMPLETE:
                note_failures(self.store, question, self.store.trials())
                break
        if status == COMPLETE and any(trial.status.startswith(STOPPED) for trial in self.store.trials()):
            status = OUT_OF_TIME
        self.store.study_ended(status)
        return status

    def _affords(self, one: Next, own: Sequence[Trial], pace: Pace) -> bool:
        """Whether a launch gives a cell in time, off's last run kept room for."""
        left_s = self.deadline.left_s - self._reserve_s(one, own, pace)
        return left_s > 0 and left_s >= self._start_s(pace)

    def _start_s(self, pace: Pace) -> float:
        """Seconds until a launch has its first cell; of the first one those that a start took elsewhere tonight, if any
        was timed.
        """
        return (self.start_s or 0.0) if pace.launch_s is None else pace.launch_of(1)

    def _reserve_s(self, one: Next, own: Sequence[Trial], pace: Pace) -> float:
        """Seconds that are kept for off once more, after a launch that is not itself that one."""
        if one.ask.role in (BASELINE, CLOSING) or any(trial.role == CLOSING for trial in own):
            return 0.0
        question = self.planned.question
        return pace.launch_of(len([key for key in question.keys if key.temperature == question.keys[0].temperature]))

    async def _launch(self, batch: Sequence[Next], own: Sequence[Trial], pace: Pace) -> None:
        number = self.store.next_number
        plans = [
            TrialPlan(
                number + i, one.ask, self.planned.environment, one.keys,
                self.deadline.earlier(self._reserve_s(one, own, pace)), self._start_s(pace),
            )
            for i, one in enumerate(batch)
        ]  # fmt: skip
        await asyncio.gather(*(self._run(plan) for plan in plans))

    async def _run(self, plan: TrialPlan) -> None:
        """What would end a study that somebody watches is a failed launch here: a port taken, an engine that stays."""
        try:
            await self.executor.run(self.planned.question, plan, self.store, self.notify)
        except (EngineError, UserError) as error:
            if not self.store.was_started(plan.number):
                raise
            self.store.trial_ended(plan.number, f"failed: {error}")

    def _tell_pace(self, own: Sequence[Trial], pace: Pace) -> None:
        if pace.launch_s is None:
            return
        launches = self._launches_to_come(own)
        expected_s = launches * pace.launch_of(len(self.planned.question.keys))
        most = "about" if self.planned.exhaustive else "at most"
        text = f"{most} {min(expected_s, max(0.0, self.deadline.left_s)) / 60:.1f} min for this study ({pace.text})"
        self.notify(Event("eta", text, expected_s))

    def _launches_to_come(self, own: Sequence[Trial]) -> int:
        budget = self.planned.workload.budget.launches
        done = {(trial.spec, trial.role) for trial in own if trial.status != INTERRUPTED}
        return max(1, budget - len(done))


def _hopeless(own: Sequence[Trial]) -> str | None:
    """Why nothing can be compared: every launch of off ended without a cell, and none is left to finish."""
    offs = [trial for trial in own if trial.role == BASELINE]
    if not offs or any(trial.cells for trial in offs) or not offs[-1].status.startswith("failed"):
        return None
    if offs[-1].status.startswith(LOST) and not offs[-1].why.startswith(AGAIN):
        return None
    return offs[-1].status.removeprefix("failed: ")


def note_failures(store: StudyStore, question: Question, own: Sequence[Trial]) -> None:
    """Journal every failed launch once more by the cell it failed in, with the last lines of its engine's log."""
    told = {event["number"] for event in store.events() if event["event"] == CELL_FAILED}
    for trial in own:
        if not trial.status.startswith("failed") or trial.number in told:
            continue
        before = [one for one in own if one.number <= trial.number]
        keys = missing(question, before, trial.spec, trial.role) if trial.ready_s is not None else ()
        store.note(
            CELL_FAILED, number=trial.number, cell=_where(keys[0]) if keys else None,
            cause=trial.status.removeprefix("failed: "), log_tail=_tail(store.log_path(trial.number)),
        )  # fmt: skip


def _where(key: CellKey) -> str:
    return f"{key.load.text}, temperature {key.temperature:g}"


def _tail(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
    except OSError:
        return []
