"""The study loop: ask what to launch, run it, tell the store; within the budget, resumable at any instant."""

from __future__ import annotations

import time
from collections.abc import Sequence, Set
from dataclasses import dataclass

from tuner.decide.evidence import Evidence, gather
from tuner.decide.launch_cost import cell_seconds
from tuner.decide.plan import Ask, ask
from tuner.engines.environments import Environment
from tuner.errors import EngineError
from tuner.measure.records import BASELINE, CLOSING, CellKey, Trial
from tuner.run.gate import unasked
from tuner.run.progress import Event, Notify
from tuner.run.question import Question, cell_weights
from tuner.run.schedules import schedule_maker
from tuner.run.store import INTERRUPTED, StudyStore
from tuner.run.trial import STOPPED, TrialPlan, run_trial
from tuner.spec.speculation import OFF, SpecConfig


def evidence_of(question: Question, trials: Sequence[Trial]) -> Evidence:
    workload = question.workload
    return gather(trials, workload.objective, workload.slo.limits(), workload.seed, cell_weights(workload))


async def run_study(question: Question, store: StudyStore, notify: Notify) -> str:
    """Run until nothing is left to ask, or the budget ends; returns the study's status, which is also recorded.

    Raises EngineError when off itself could be measured on no engine: without it there is nothing to compare with.
    """
    started_s, status, reopened, lost = time.monotonic(), "complete", _reopened(store), 0
    for text in dict.fromkeys(text for _, text in question.cautions):
        notify(Event("note", text))
    for environment in question.environments:
        try:
            ended = await _run_engine(question, environment, store, notify, started_s, reopened)
        except EngineError as error:
            lost += 1
            if lost == len(question.environments):
                raise
            ended = f"failed: {error}"
            notify(Event("note", str(error)))
        status = ended if ended != "complete" else status
    store.study_ended(status)
    return status


async def _run_engine(
    question: Question, environment: Environment, store: StudyStore, notify: Notify, started_s: float,
    reopened: Set[int],
) -> str:  # fmt: skip
    clock = _Clock(started_s, question.workload.budget.minutes * 60)
    closed = any(t.number in reopened for t in store.trials() if t.engine == environment.name)
    clock.resumed([t for t in store.trials() if t.engine == environment.name])
    while True:
        trials = store.trials()
        own = [t for t in trials if t.engine == environment.name and t.number not in reopened]
        plan = _next_plan(question, environment, own, unasked(store, own), len(trials) + 1, clock)
        if plan is None or (closed and plan.ask.role == CLOSING):
            return f"{STOPPED}: the minutes of the budget are used up" if clock.cut else "complete"
        before_s, closed = time.monotonic(), False
        status = await run_trial(question, plan, store, notify)
        if len(plan.keys) == len(keys_for(question, plan.ask.role)):
            clock.took(len(plan.keys), time.monotonic() - before_s)
        else:  # the rest of one that was interrupted: a whole start for few cells is no pace
            clock.resumed([t for t in store.trials() if t.engine == environment.name])
        if status != "ok" and plan.ask.role == BASELINE and not any(trial.cells for trial in own):
            raise EngineError(f"{environment.name} could not be measured without speculation: {status}")


def _reopened(store: StudyStore) -> frozenset[int]:
    """Off's last runs of a study that ran out of minutes: resumed, it goes on behind them and is closed anew."""
    ends = [str(event["status"]) for event in store.events() if event["event"] == "study_ended"]
    if not ends or not ends[-1].startswith(STOPPED):
        return frozenset()
    return frozenset(trial.number for trial in store.trials() if trial.role == CLOSING)


@dataclass(slots=True)
class _Clock:
    """Wall-clock budget of one run of the command. `cut`: launches were left out for it."""

    started_s: float
    budget_s: float
    longest_per_cell_s: float = 0.0
    cut: bool = False

    def resumed(self, trials: Sequence[Trial]) -> None:
        """Take the pace from what an earlier run of the command measured: launches that ended well, each together with
        the parts of it that were interrupted."""
        for last in trials:
            if last.ok and last.cells:
                parts = [t for t in trials if t.spec == last.spec and t.role == last.role]
                cells = [cell for part in parts for cell in part.cells]
                ready_s = max(part.ready_s or 0.0 for part in parts)
                self.took(len(cells), ready_s + sum(map(cell_seconds, cells)))

    def took(self, cells: int, seconds: float) -> None:
        self.longest_per_cell_s = max(self.longest_per_cell_s, seconds / max(1, cells))

    def affords(self, cells: int) -> bool:
        """Whether a launch with so many cells would end in time, going by the slowest so far."""
        left_s = self.budget_s - (time.monotonic() - self.started_s)
        return left_s >= cells * self.longest_per_cell_s


def _next_plan(
    question: Question, environment: Environment, own: list[Trial], unverified: Set[SpecConfig], number: int,
    clock: _Clock,
) -> TrialPlan | None:  # fmt: skip
    """The launch that was interrupted, with the cells it lacks (none, if only its output was not verified), or off
    where all that it did was to fail; else what the planner asks for, if the clock allows."""
    if own and own[-1].status == INTERRUPTED:
        last = own[-1]
        done = {
            cell.key for trial in own if trial.spec == last.spec and trial.role == last.role for cell in trial.cells
        }
        missing = tuple(key for key in keys_for(question, last.role) if key not in done)
        if missing or last.spec in unverified:
            return TrialPlan(number, Ask(last.spec, last.role, last.why), environment, missing)
    if own and all(trial.spec.is_off and not trial.cells for trial in own):
        why = f"off once more: everything is compared with it, and it was not measured in launch {own[-1].number}"
        return TrialPlan(number, Ask(OFF, BASELINE, why), environment, question.keys)
    evidence = evidence_of(question, own)
    left = launches_left(question, own)
    make = schedule_maker(environment, question.target, question.options(environment))
    following = ask(question.arms, evidence, left, make)
    if following is None:
        return None
    again = Ask(OFF, CLOSING, "off once more, as the budget ends: how far it drifted bounds what is believed")
    if following.role not in (BASELINE, CLOSING) and not _affordable(question, following, own, clock):
        clock.cut, following = True, again
    return TrialPlan(number, following, environment, keys_for(question, following.role))


def _affordable(question: Question, following: Ask, own: Sequence[Trial], clock: _Clock) -> bool:
    """Whether the clock allows a launch. Each way to draft once is what a study is for: the first is measured whatever
    it takes, the next while there is time for it; finer settings leave time to measure off again."""
    if all(trial.spec.is_off for trial in own):
        return True
    is_new = following.role != "schedule" and following.spec.arm not in {trial.spec.arm for trial in own}
    closing = () if is_new else keys_for(question, CLOSING)
    return clock.affords(len(question.keys) + len(closing))


def launches_left(question: Question, own: Sequence[Trial]) -> int:
    """Launches of the budget an engine has left; a launch that was interrupted and went on counts once."""
    share = max(2, question.workload.budget.launches // len(question.environments))
    return share - len({(t.spec, t.role) for t in own})


def keys_for(question: Question, role: str) -> tuple[CellKey, ...]:
    """The cells of a launch. Off again needs one temperature: plain decoding takes as long at any."""
    if role != CLOSING:
        return question.keys
    first = question.keys[0].temperature
    return tuple(key for key in question.keys if key.temperature == first)
