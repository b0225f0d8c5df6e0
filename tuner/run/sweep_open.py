"""Opening what a night writes: a study new or gone on with, and the night that a killed sweep left."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from pathlib import Path

from tuner.run.host import HostFacts
from tuner.run.start import with_resolved
from tuner.run.store import StudyStore
from tuner.run.study_header import StudyHeader
from tuner.run.sweep_plan import PlannedStudy, SweepPlan
from tuner.run.sweep_store import INTERRUPTED, NightStore, find_nights


def open_study_of(night: NightStore, number: int, study: PlannedStudy) -> StudyStore:
    """The study's store, new or gone on with; this process writes it."""
    folder = night.study_folder(number)
    if (folder / "study.json").exists():
        return with_resolved(StudyStore.open(folder), study.question)
    header = StudyHeader.new(
        study.workload.model_dump(mode="json"), study.question.text, HostFacts.read(),
        (dataclasses.asdict(study.environment),),
    )  # fmt: skip
    _discard_unborn(folder)
    return with_resolved(StudyStore.create(folder, header), study.question)


def _discard_unborn(folder: Path) -> None:
    """A kill between a study's folder and its study.json leaves a journal and no trial: nothing was measured yet."""
    if folder.is_dir() and not any((folder / "trials").glob("*")):
        for name in ("journal.jsonl", "lock"):
            (folder / name).unlink(missing_ok=True)
        for beside in folder.glob(".study.json.*.tmp"):
            beside.unlink()
        if (folder / "trials").is_dir():
            (folder / "trials").rmdir()
        folder.rmdir()


def unfinished(plan: SweepPlan, reports: Path) -> NightStore | None:
    """The newest night of this very plan, if it did not end and is young enough to go on with; only looked at. One that
    was left behind by a newer night that ended stays as it is.
    """
    limit = datetime.now().astimezone() - timedelta(hours=plan.sweep.resume_within_hours)
    for night in reversed(find_nights(reports, plan.sweep.name)):
        if datetime.fromisoformat(night.header.created) < limit:
            return None
        if night.header.key == plan.key:
            return night if night.status() in (INTERRUPTED, "running") else None
    return None
