"""A night: every study of a sweep in turn, within the minutes of its budget, resumable at any instant."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from tuner.errors import UserError
from tuner.run.journal import Journal
from tuner.run.progress import Event, Notify
from tuner.run.store import StudyStore
from tuner.run.sweep_clock import Deadline
from tuner.run.sweep_open import open_study_of, unfinished
from tuner.run.sweep_plan import PlannedStudy, SweepPlan
from tuner.run.sweep_store import COMPLETE, STUDY_BEGAN, STUDY_ENDED, NightHeader, NightStore
from tuner.run.sweep_study import Executor, NightStudy

#: Told after each study: the index over all studies is brought up to date.
Indexed = Callable[[], None]


def open_night(plan: SweepPlan, reports: Path, *, resume: bool, notify: Notify) -> NightStore:
    """A night this process writes. `resume`: the unfinished one of this very plan, if it is young enough."""
    if resume:
        found = unfinished(plan, reports)
        if found is not None:
            night = NightStore.open(found.folder)
            notify(Event("note", f"going on with {night.folder}"))
            return night
        notify(Event("note", "no unfinished night of this sweep as it is now: beginning a new one"))
    return NightStore.create(reports, NightHeader.new(plan))


async def run_night(plan: SweepPlan, night: NightStore, notify: Notify, executor: Executor, indexed: Indexed) -> str:
    """Run what is left of a night's studies; complete, `stopped: …` or `failed: …`, whichever is the worst of them.

    One after another, each with its share of the minutes, or all at once where trials find places of their own.
    `indexed` is called after each. The night itself is ended by `sweep_night`, once its verdict is in.
    """
    if plan.key != night.header.key:
        raise UserError(f"{night.folder} was begun for another sweep: begin a new night")
    done = night.study_statuses()
    end = Deadline(time.time() + plan.sweep.budget.minutes * 60 - night.spent_s())
    left = [i for i in range(len(plan.studies)) if night.study_folder(i).name not in done]
    running = _Night(plan, night, notify, executor, indexed)
    if executor.at_once > 1:
        await asyncio.gather(*(running.study(number, end) for number in left))
    else:
        for place, number in enumerate(left):
            shares = [plan.studies[i].share for i in left[place:]]
            await running.study(number, Deadline(time.time() + end.left_s * shares[0] / sum(shares)))
    return _together(night)


@dataclass(frozen=True, slots=True)
class _Night:
    plan: SweepPlan
    night: NightStore
    notify: Notify
    executor: Executor
    indexed: Indexed

    async def study(self, number: int, deadline: Deadline) -> None:
        planned, folder = self.plan.studies[number], self.night.study_folder(number).name
        total = len(self.plan.studies)
        self.night.note(STUDY_BEGAN, folder=folder)
        self.notify(Event("study", f"study {number + 1} of {total}: {planned.label}", number + 1, total))
        with open_study_of(self.night, number, planned) as store:
            status = _ended_status(store)
            if status is None:
                start_s = self._start_s(planned)
                status = await NightStudy(planned, store, self.notify, self.executor, deadline, start_s).run()
        self.night.note(STUDY_ENDED, folder=folder, status=status)
        self.notify(Event("note", f"{planned.label}: {status}"))
        self.indexed()

    def _start_s(self, planned: PlannedStudy) -> float | None:
        """Mean seconds until this engine served this target, over the night's studies; None where none was timed."""
        took = []
        for number, other in enumerate(self.plan.studies):
            if (other.environment, other.question.target) == (planned.environment, planned.question.target):
                events = Journal(self.night.study_folder(number) / "journal.jsonl").events()
                took += [float(event["ready_s"]) for event in events if event["event"] == "trial_ready"]
        return mean(took) if took else None


def _ended_status(store: StudyStore) -> str | None:
    """What a study said that ended just before its night was killed."""
    ended = [event["status"] for event in store.events() if event["event"] == "study_ended"]
    return str(ended[-1]) if ended else None


def _together(night: NightStore) -> str:
    """The worst of all studies: failed before stopped before complete."""
    statuses = list(night.study_statuses().values())
    for kind in ("failed", "stopped"):
        bad = [status for status in statuses if status.startswith(kind)]
        if bad:
            of = f" ({len(bad)} of {len(statuses)} studies)" if len(statuses) > 1 else ""
            return f"{bad[0]}{of}"
    return COMPLETE
