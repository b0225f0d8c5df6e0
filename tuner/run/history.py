"""What `tuner history` and `tuner compare` do: bring the index up to date, ask it, mark a night.

A listing takes a moment: what computes figures is imported where it is needed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import UserError
from tuner.run.history_db import open_database
from tuner.run.history_index import rebuild, refresh
from tuner.run.history_runs import Run, find_run, list_runs
from tuner.run.journal import WriterLock
from tuner.run.sweep_store import INTERRUPTED, TAGGED, NightStore
from tuner.spec.gate import Gate, parse_gate

if TYPE_CHECKING:
    from tuner.run.nights import Compared

TAG = re.compile(r"[A-Za-z0-9._-]+")


def runs_of(
    reports: Path, name: str | None = None, limit: int | None = None, *, again: bool = False
) -> tuple[list[Run], list[str]]:
    """(runs, a sentence on everything that could not be read). `again`: the index is made anew first."""
    _there(reports)
    unreadable = rebuild(reports).unreadable if again else []
    with open_database(reports) as database:
        if not again:
            unreadable = refresh(database, reports).unreadable
        return [_as_it_is_now(reports, run) for run in list_runs(database, name, limit)], unreadable


def _as_it_is_now(reports: Path, run: Run) -> Run:
    """The index holds what journals tell; that a run without an end is being written is told by its lock alone."""
    running = run.status == INTERRUPTED and WriterLock(reports / run.folder / "lock").is_held()
    return replace(run, status="running") if running else run


def tag_run(reports: Path, tag: str, asked: str) -> None:
    """Write a tag into the journal of a night; the newest night with a tag is the one it names."""
    _there(reports)
    if not TAG.fullmatch(tag):
        raise UserError(f"{tag!r} cannot be a tag: use letters, digits, '.', '_' and '-'")
    with open_database(reports) as database:
        refresh(database, reports)
        run = find_run(database, asked)
    if run.kind != "night":
        raise UserError(f"{run.id} is a study and no night of a sweep: compare with it by its id")
    NightStore.tag(reports / run.folder, TAGGED, tag)


def compare_asked(reports: Path, before: str, after: str, gates: Sequence[str], seed: int = 0) -> Compared:
    """Two runs by whatever names them; `gates` as people type them."""
    from tuner.run.nights import compare_runs

    _there(reports)
    with open_database(reports) as database:
        refresh(database, reports)
        runs = find_run(database, before), find_run(database, after)
        return compare_runs(database, reports, *runs, [_gate(text) for text in gates], seed)


def _gate(text: str) -> Gate:
    try:
        return parse_gate(text)
    except ValueError as error:
        raise UserError(f"--gate {error}") from None


def _there(reports: Path) -> None:
    if not os.path.isdir(reports):
        raise UserError(f"{reports} does not exist: give the folder of your studies with --reports")
