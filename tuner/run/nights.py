"""Two runs from the index, compared: changes, suspects, gates. And a night with its trend, for reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.decide.nights import DEFAULT_METRICS, NightComparison, compare_nights
from tuner.decide.nights_gates import Figure, GateResult, Unmeasured, Verified, hold, is_red, lost
from tuner.decide.nights_sample import NightSample
from tuner.decide.nights_suspects import Suspect, suspects
from tuner.errors import UserError
from tuner.run.history_db import Database
from tuner.run.history_query import figures, night_sample
from tuner.run.history_runs import Run, find_run, last_green, list_runs
from tuner.run.journal import Journal
from tuner.run.labelled import VERIFIED
from tuner.run.night_gaps import unmeasured
from tuner.run.store import StudyStore
from tuner.run.sweep_study import CELL_FAILED
from tuner.spec.gate import Gate

#: Nights before the baseline whose drift of off tells what this machine's launches differ by.
EARLIER = 10


@dataclass(frozen=True, slots=True)
class Compared:
    """`before` None: there was nothing to compare with. `unmeasured`: what the later run planned and did not."""

    before: Run | None
    after: Run
    comparison: NightComparison | None
    suspects: tuple[Suspect, ...]
    gates: tuple[GateResult, ...]
    unmeasured: tuple[Unmeasured, ...] = ()

    @property
    def red(self) -> bool:
        return is_red(self.gates)

    @property
    def lost(self) -> tuple[str, ...]:
        """Settings that the baseline measured and that failed tonight."""
        return tuple(dict.fromkeys(f"{one.study}, {one.setting}" for one in lost(self.comparison, self.unmeasured)))

    @property
    def nothing(self) -> bool:
        """Whether no figure could be held against the baseline's."""
        return self.comparison is None or all(change.worse is None for change in self.comparison.changes)


@dataclass(frozen=True, slots=True)
class FailedLaunch:
    """`cell`: where it died, None before it served; `log_tail`: the last lines its engine wrote."""

    study: str
    launch: int
    setting: str
    cell: str | None
    cause: str
    log_tail: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NightData:
    """Everything a report of one run is made of. `trend`: the runs of this name, oldest first, with their figures."""

    compared: Compared
    figures: tuple[Figure, ...]
    failures: tuple[FailedLaunch, ...]
    trend: tuple[tuple[Run, tuple[Figure, ...]], ...]


def compare_runs(
    database: Database, reports: Path, before: Run | None, after: Run, gates: Sequence[Gate] = (), seed: int = 0
) -> Compared:
    """Tonight against the baseline, gates included."""
    own = figures(database, after)
    verified = stored_verifications(reports / after.folder)
    gaps = unmeasured(reports / after.folder)
    if before is None:
        return Compared(None, after, None, (), hold(gates, None, own, verified, gaps), gaps)
    asked = [gate.metric for gate in gates if gate.kind == "regress"]
    metrics = tuple(dict.fromkeys([*DEFAULT_METRICS, *asked]))
    old, new = night_sample(database, before), night_sample(database, after)
    comparison = compare_nights(old, new, metrics, earlier_offs(database, before, new), seed)
    held = hold(gates, comparison, own, verified, gaps)
    return Compared(before, after, comparison, suspects(old, new, comparison), held, gaps)


def earlier_offs(database: Database, before: Run, like: NightSample) -> list[NightSample]:
    """Off's runs in the nights before the baseline, as far as they asked the same of the same machine."""
    asked = {study: (facts.question, facts.host) for study, facts in like.facts.items()}
    found: list[NightSample] = []
    runs = [run for run in list_runs(database, before.name) if (run.created, run.id) < (before.created, before.id)]
    for run in runs[:EARLIER]:
        sample = night_sample(database, run)
        same = {study for study, facts in sample.facts.items() if asked.get(study) == (facts.question, facts.host)}
        agains = tuple(cell for cell in sample.agains if cell.study in same)
        found.append(NightSample(run.id, tuple(cell for cell in sample.cells if cell.is_off), agains))
    return found


def baseline_of(database: Database, asked: str, night: Run) -> Run | None:
    """`last-green`, `tag:NAME` or `run:ID` as a sweep says it; None where there is none yet."""
    kind, _, name = asked.partition(":")
    if kind == "last-green":
        return last_green(database, night.name, before=night)
    if kind == "run":
        return find_run(database, name)
    tagged = [run for run in list_runs(database, night.name) if name in run.tags and run.id != night.id]
    return tagged[0] if tagged else None


def stored_verifications(folder: Path) -> tuple[Verified, ...]:
    """Results of losslessness checks in the journals of a run; none where none was made."""
    from tuner.measure.lossless_records import verified_from_dict

    found = []
    for path in sorted({*folder.glob("journal.jsonl"), *folder.glob("*/journal.jsonl")}):
        for event in Journal(path).events():
            if event["event"] == VERIFIED:
                verified = verified_from_dict(event["verified"])
                found.append(Verified(f"{path.parent.name}, {verified.setting}", verified.ok))
    return tuple(found)


def failures(folder: Path) -> tuple[FailedLaunch, ...]:
    """Every failed launch of a run, from the journals of its studies."""
    found = []
    for path in sorted({*folder.glob("study.json"), *folder.glob("*/study.json")}):
        try:
            store = StudyStore.read(path.parent)
        except UserError:
            continue
        events = store.events()
        started = {event["number"]: event for event in events if event["event"] == "trial_started"}
        found += [_failure(store.header.name, event, started) for event in events if event["event"] == CELL_FAILED]
    return tuple(found)


def _failure(study: str, event: dict[str, Any], started: dict[int, dict[str, Any]]) -> FailedLaunch:
    from tuner.spec.speculation import SpecConfig

    number = int(event["number"])
    setting = SpecConfig.from_dict(started[number]["spec"]).label
    return FailedLaunch(study, number, setting, event["cell"], event["cause"], tuple(event["log_tail"]))


def night_data(database: Database, reports: Path, compared: Compared, nights: int = 60) -> NightData:
    """All that a report shows of a run: its comparison, figures, failures and the trend over the last `nights`."""
    after = compared.after
    runs = [run for run in list_runs(database, after.name) if (run.created, run.id) <= (after.created, after.id)]
    trend = tuple((run, figures(database, run)) for run in reversed(runs[:nights]))
    return NightData(compared, figures(database, after), failures(reports / after.folder), trend)
