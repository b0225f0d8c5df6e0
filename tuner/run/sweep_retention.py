"""What is kept of older nights: whole folders of so many, request records of fewer; what people marked stays."""

from __future__ import annotations

import shutil
from collections.abc import Sequence, Set
from pathlib import Path

from tuner.engines.home import discard
from tuner.errors import UserError
from tuner.run.history_db import Database
from tuner.run.history_runs import GREEN, Run, list_runs
from tuner.run.sweep_store import COMPLETE, KEPT_FIGURES, NightStore
from tuner.run.sweep_summary import keep_figures
from tuner.spec.sweep import Retention


def prune(
    database: Database, reports: Path, name: str, retention: Retention, named: Set[str] = frozenset()
) -> tuple[str, ...]:
    """Drop what is over the retention of a sweep's nights; a sentence for each that was touched.

    Tagged nights, the last green one, the `named` ones and nights that did not end are never touched.
    """
    for left in reports.glob(".*.discarded-*"):  # by a prune that was killed
        shutil.rmtree(left, ignore_errors=True)  # another sweep of these reports may be at it too
    runs = [run for run in list_runs(database, name) if run.kind == "night"]
    kept = _kept_whole(runs) | named
    told = []
    for place, run in enumerate(runs):
        if run.id in kept or run.status == "interrupted" or not (reports / run.folder).is_dir():
            continue
        try:
            if retention.nights is not None and place >= retention.nights:
                discard(reports / run.folder)
                told.append(f"{run.id}: deleted, {retention.nights} nights are kept")
            elif retention.records_nights is not None and place >= retention.records_nights and _drop(reports, run):
                told.append(f"{run.id}: request records and logs deleted, its figures are kept")
        except OSError as error:  # another user's files, or one that is open on a network disk: tonight goes on
            told.append(f"{run.id}: could not be deleted ({error.strerror or error}): delete it by hand")
    return tuple(told)


def _kept_whole(runs: Sequence[Run]) -> set[str]:
    green = next((run.id for run in runs if run.state == GREEN and run.status == COMPLETE), None)
    return {run.id for run in runs if run.tags} | ({green} if green else set())


def _drop(reports: Path, run: Run) -> bool:
    """Whether anything was there to drop. The figures are on the disk before the records go."""
    try:
        night = NightStore.read(reports / run.folder)
    except UserError:
        return False
    dropped = False
    for study in night.header.studies:
        folder = night.folder / str(study["folder"])
        if (folder / "study.json").exists() and not (folder / KEPT_FIGURES).exists():
            try:
                keep_figures(folder, reports)
            except UserError:  # records that cannot be read have no figures yet: they stay, and tonight goes on
                continue
        for path in [*folder.glob("trials/*/requests-*"), *folder.glob("trials/*/counters-*"),
                     *folder.glob("trials/*/engine.log")]:  # fmt: skip
            path.unlink(missing_ok=True)
            dropped = True
    return dropped
