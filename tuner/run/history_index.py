"""Keeps the index equal to the journals: what changed on the disk is read again, what is gone is forgotten."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.errors import UserError
from tuner.run.files import writing
from tuner.run.history_db import FILE, TABLES, URL_VARIABLE, Database, open_database
from tuner.run.sweep_store import ENDED, INTERRUPTED, KEPT_FIGURES, TAGGED, VERDICT, NightStore, night_headers

if TYPE_CHECKING:
    from tuner.run.history_rows import StudyRows
    from tuner.run.store import StudyStore


@dataclass(frozen=True, slots=True)
class _Study:
    """A study on the disk; `stamp` changes whenever its journal does."""

    folder: Path
    run: str
    label: str
    stamp: str
    facts: dict[str, Any] | None = None


@dataclass(slots=True)
class Refreshed:
    """What bringing the index up to date did. `unreadable`: a sentence each, of what was left out."""

    studies: int = 0
    forgotten: int = 0
    unreadable: list[str] = field(default_factory=list)


def rebuild(reports: Path) -> Refreshed:
    """Make the index anew from the journals, whatever state it is in."""
    if not os.environ.get(URL_VARIABLE):
        for name in (FILE, f"{FILE}-wal", f"{FILE}-shm"):
            with writing(reports / name):
                (reports / name).unlink(missing_ok=True)
    with open_database(reports) as database:
        with database.changing():
            for table in TABLES:
                database.rows(f"DELETE FROM {table}")
        return refresh(database, reports)


def refresh(database: Database, reports: Path, told: Callable[[str], None] | None = None) -> Refreshed:
    """Read what changed since the last time. Each study is one transaction: a kill leaves the others as they were."""
    done = Refreshed()
    nights = {path.parent: path for path in night_headers(reports)}
    studies = list(_studies(reports, nights, done))
    known = dict(database.rows("SELECT folder, stamp FROM studies"))
    for study in studies:
        name = _below(study.folder, reports)
        if known.get(name) != study.stamp:
            _read_study(database, reports, study, done)
    there = {_below(study.folder, reports) for study in studies}
    for name in set(known) - there:
        with database.changing():
            _forget(database, name)
        done.forgotten += 1
    _refresh_runs(database, reports, nights)
    return done


def _studies(reports: Path, nights: dict[Path, Path], done: Refreshed) -> Iterator[_Study]:
    for folder in nights:
        try:
            header = NightStore.read(folder).header
        except UserError as error:
            done.unreadable.append(str(error))
            continue
        for told in header.studies:
            one = folder / str(told["folder"])
            if os.path.exists(one / "study.json"):
                yield _Study(one, folder.name, str(told["label"]), _stamp(one), {"models": told["models"]})
    for path in sorted(reports.glob("*/study.json")):
        yield _Study(path.parent, path.parent.name, "", _stamp(path.parent))


def _stamp(folder: Path) -> str:
    try:
        stat = (folder / "journal.jsonl").stat()
    except FileNotFoundError:
        return "none"
    if (folder / KEPT_FIGURES).exists():
        return f"kept:{stat.st_size}:{stat.st_mtime_ns}"
    return f"{stat.st_size}:{stat.st_mtime_ns}"


def _below(folder: Path, reports: Path) -> str:
    return folder.relative_to(reports).as_posix()


def _read_study(database: Database, reports: Path, study: _Study, done: Refreshed) -> None:
    # What reads records takes a second to import, and most of the time nothing changed.
    from tuner.run.sweep_summary import kept_rows

    name = _below(study.folder, reports)
    try:
        rows = kept_rows(study.folder, study.stamp) or _rows_of(study, name)
    except UserError as error:
        done.unreadable.append(str(error))
        return
    with database.changing():
        _forget(database, name)
        _insert(database, rows)
    done.studies += 1


def _rows_of(study: _Study, name: str) -> StudyRows:
    from tuner.run.history_rows import study_rows
    from tuner.run.store import StudyStore

    store = StudyStore.read(study.folder)
    label = study.label or store.header.name
    facts = study.facts if study.facts is not None else _facts_of(store)
    return study_rows(store, study.run, label, name, facts, study.stamp)


def _facts_of(store: StudyStore) -> dict[str, Any]:
    """Of a study that is no night's: its models as they are now, for it kept no fingerprints."""
    from tuner.run.start import Resolved

    try:
        resolved = Resolved.read(store)
    except UserError:
        return {"models": []}
    drafts = dict.fromkeys(arm.draft for arm in resolved.arms if arm.draft)
    return {"models": [[path, None] for path in (resolved.target, *drafts)]}


def _insert(database: Database, rows: StudyRows) -> None:
    for table in ("studies", "trials", "cells", "requests"):
        database.insert(table, getattr(rows, table))


def _forget(database: Database, folder: str) -> None:
    trials = "SELECT trials.id FROM trials JOIN studies ON studies.id = trials.study WHERE studies.folder = ?"
    cells = f"SELECT id FROM cells WHERE trial IN ({trials})"
    database.rows(f"DELETE FROM requests WHERE cell IN ({cells})", (folder,))
    database.rows(f"DELETE FROM cells WHERE trial IN ({trials})", (folder,))
    database.rows(f"DELETE FROM trials WHERE id IN ({trials})", (folder,))
    database.rows("DELETE FROM studies WHERE folder = ?", (folder,))


def _refresh_runs(database: Database, reports: Path, nights: dict[Path, Path]) -> None:
    known = {row[0]: row[-1] for row in database.rows("SELECT id, stamp FROM runs")}
    new: list[tuple[Any, ...]] = []
    kept: set[str] = set()
    for folder in nights:
        stamp = _stamp(folder)
        kept.add(folder.name)
        if known.get(folder.name) != stamp:
            try:
                new.append(_night_row(NightStore.read(folder), stamp))
            except UserError:
                kept.discard(folder.name)
    alone = "SELECT run, label, folder, created, status, stamp FROM studies WHERE run = folder"
    for run, label, folder, created, status, stamp in database.rows(alone):
        kept.add(run)
        if known.get(run) != stamp:
            new.append((run, "study", label, folder, created, status, "", "", "", "", "", stamp))
    gone = set(known) - kept
    if not new and not gone:
        return
    with database.changing():
        for run in gone | {row[0] for row in new}:
            database.rows("DELETE FROM runs WHERE id = ?", (run,))
        database.insert("runs", new)


def _night_row(night: NightStore, stamp: str) -> tuple[Any, ...]:
    events = night.events()
    ends = [event["status"] for event in events if event["event"] == ENDED]
    verdicts = [event for event in events if event["event"] == VERDICT]
    verdict = verdicts[-1] if verdicts else {}
    tags = dict.fromkeys(str(event["tag"]) for event in events if event["event"] == TAGGED)
    header = night.header
    return (
        night.folder.name, "night", header.name, night.folder.name, header.created, ends[-1] if ends else INTERRUPTED,
        verdict.get("state", ""), verdict.get("baseline") or "", verdict.get("headline", ""), " ".join(tags),
        header.key, stamp,
    )  # fmt: skip
