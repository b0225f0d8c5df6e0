"""`tuner sweep` from its file to its verdict: lock, run, index, compare, hold the gates, let go of what is too old."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.decide.nights import IMPROVED, REGRESSED
from tuner.decide.nights_gates import FAILED
from tuner.errors import Interrupted, UserError
from tuner.run.device_lock import holding_engines
from tuner.run.history_db import open_database
from tuner.run.history_index import refresh
from tuner.run.history_runs import GREEN, RED, find_run, list_runs
from tuner.run.nights import Compared, NightData, baseline_of, compare_runs, night_data
from tuner.run.progress import Event, Notify
from tuner.run.question import affords
from tuner.run.sweep import open_night, run_night
from tuner.run.sweep_plan import SweepPlan, plan_sweep
from tuner.run.sweep_retention import prune
from tuner.run.sweep_store import ASKED, COMPLETE, ENDED, VERDICT, NightStore
from tuner.run.sweep_study import Executor, Local

#: Settings that a headline names of those that were not measured; the report has all.
MOST_NAMED = 5
#: Where nights are kept unless --reports names another folder.
REPORTS = Path("reports")


@dataclass(frozen=True, slots=True)
class Outcome:
    """A night that ended. `status`: complete, or why not. `state`: red where a gate failed, or a setting that the
    baseline measured; green, so that it may be a baseline, where all that was planned was measured; else empty.
    """

    folder: Path
    status: str
    state: str
    headline: str
    data: NightData
    let_go: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """1: worse than it was. 3: something could not be measured, and nothing tells whether it is worse."""
        if self.state == RED:
            return 1
        failed = any(one.failed for one in self.data.compared.unmeasured)
        return 3 if failed or self.status.startswith("failed") else 0


#: Writes the report of a night that is about to end.
Report = Callable[[Outcome], None]


def sweep_night(
    file: Path,
    reports: Path,
    notify: Notify,
    *,
    resume: bool = False,
    minutes: float | None = None,
    executor: Executor | None = None,
    report: Report = lambda _: None,
) -> Outcome:
    """Run a night to its end, `report` included. Interrupted when a signal ends it: what is on the disk can be gone on
    with.
    """
    plan = _with_minutes(plan_sweep(file), minutes)
    _baseline_there(plan, reports, notify)
    where = executor or Local()
    own = [(study.environment, study.options) for study in plan.studies] if where.on_this_machine else []
    with contextlib.closing(where):
        where.refuse(plan.studies)
        with (
            holding_engines(own, f"tuner sweep {plan.sweep.name}"),
            open_night(plan, reports, resume=resume, notify=notify) as night,
        ):
            options = ("--minutes", f"{minutes:g}") if minutes is not None else ()
            own_reports = ("--reports", str(reports)) if reports != REPORTS else ()
            night.note(ASKED, options=[*options, *where.options, *own_reports])
            try:
                status = asyncio.run(run_night(plan, night, notify, where, lambda: _index(reports, notify)))
                return finish(plan, night, reports, status, report)
            except KeyboardInterrupt:
                told = f"interrupted; {night.folder} keeps every finished cell: go on with --resume"
                raise Interrupted(told) from None


def _with_minutes(plan: SweepPlan, minutes: float | None) -> SweepPlan:
    """The same night with another budget; what is compared does not hang on it."""
    if minutes is None:
        return plan
    affords("minutes", minutes)
    budget = plan.sweep.budget.model_copy(update={"minutes": minutes})
    return SweepPlan(plan.sweep.model_copy(update={"budget": budget}), plan.path, plan.text, plan.studies)


def _index(reports: Path, notify: Notify) -> None:
    """The index can be made again from the journals: that it cannot be written now ends no night."""
    try:
        with open_database(reports) as database:
            refresh(database, reports)
    except UserError as error:
        notify(Event("note", str(error)))


def _baseline_there(plan: SweepPlan, reports: Path, notify: Notify) -> None:
    """UserError where the run that the sweep names is none: not after a night that nothing can be compared with. A tag
    may be given while the night runs, so that none has it yet is only said.
    """
    kind, _, name = plan.sweep.baseline.partition(":")
    if kind not in ("run", "tag"):
        return
    with open_database(reports) as database:
        refresh(database, reports)
        if kind == "run":
            find_run(database, name)
        elif not any(name in run.tags for run in list_runs(database, plan.sweep.name)):
            notify(Event("note", f"no night is tagged {name} yet, to compare this one with: {_tagging(name)}"))


def _tagging(tag: str) -> str:
    return f"`tuner history --tag {tag} RUN` names one"


def finish(plan: SweepPlan, night: NightStore, reports: Path, status: str, report: Report = lambda _: None) -> Outcome:
    """Compare with the baseline, hold the gates, write both into the night's journal, report it, end it. A night whose
    report was not written has not ended: --resume makes up for it.
    """
    with open_database(reports) as database:
        refresh(database, reports)
        run = find_run(database, night.folder.name)
        before = baseline_of(database, plan.sweep.baseline, run)
        compared = compare_runs(database, reports, before, run, plan.sweep.parsed_gates)
        state = state_of(compared, status)
        headline = headline_of(compared, status, plan.sweep.baseline)
        gates = [{"gate": g.gate.text, "state": g.state, "reasons": list(g.reasons)} for g in compared.gates]
        told = {"state": state, "baseline": before.id if before else None, "headline": headline, "gates": gates}
        night.note(VERDICT, status=status, **told)
        refresh(database, reports)
        outcome = Outcome(night.folder, status, state, headline, night_data(database, reports, compared))
        report(outcome)
        night.note(ENDED, status=status)
        refresh(database, reports)
        named = {before.id} if before and plan.sweep.baseline.startswith("run:") else set()
        let_go = prune(database, reports, plan.sweep.name, plan.sweep.retention, named)
        refresh(database, reports)
    return replace(outcome, let_go=let_go)


def state_of(compared: Compared, status: str) -> str:
    """A night that stopped early, or lacks a setting or a cell of its plan, is no baseline though no gate failed."""
    if compared.red or compared.lost:
        return RED
    return GREEN if status == COMPLETE and not compared.unmeasured else ""


def headline_of(compared: Compared, status: str, baseline: str = "") -> str:
    """The night in one sentence. `baseline`: as its sweep says it."""
    ended = _gaps_text(compared) + ("" if status == COMPLETE else f" The night ended early ({status}).")
    failed = [gate.gate.text for gate in compared.gates if gate.state == FAILED]
    if failed:
        return f"{len(failed)} of {len(compared.gates)} gates failed: {'; '.join(failed)}.{ended}"
    if compared.lost and compared.before is not None:
        many = "1 setting" if len(compared.lost) == 1 else f"{len(compared.lost)} settings"
        return f"{many} that {compared.before.id} measured could not be measured tonight.{ended}"
    kind, _, tag = baseline.partition(":")
    if compared.before is None and kind == "tag":
        return f"No night is tagged {tag}: {_tagging(tag)} to compare with.{ended}"
    if compared.comparison is None or compared.before is None:
        whole = state_of(compared, status) == GREEN
        told = ": this night can be the first baseline" if whole else ", and this night is no baseline"
        return f"Nothing to compare with yet{told}.{ended}"
    if compared.nothing:
        return f"Nothing could be compared with {compared.before.id}: no figure was measured in both nights.{ended}"
    counts = [(len(compared.comparison.with_state(state)), state) for state in (REGRESSED, IMPROVED)]
    moved = ", ".join(f"{count} figures {state}" for count, state in counts if count)
    return f"{moved or 'No evidence of any change'} against {compared.before.id}.{ended}"


def _gaps_text(compared: Compared) -> str:
    """The settings that failed, and those that were not measured for another reason."""
    text = ""
    for word, failed in (("Failed", True), ("Not measured", False)):
        names = list(dict.fromkeys(one.text for one in compared.unmeasured if one.failed == failed))
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        text += f" {word}: {'; '.join(names[:MOST_NAMED])}{more}." if names else ""
    return text
