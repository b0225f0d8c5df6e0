"""Questions to the index about runs: which there are, and which one is meant."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tuner.errors import UserError
from tuner.run.history_db import Database
from tuner.run.sweep_store import COMPLETE

GREEN, RED = "green", "red"


@dataclass(frozen=True, slots=True)
class Run:
    """A night of a sweep, or one study of `tuner recommend`, in a listing. `state`: green, red, or empty."""

    id: str
    kind: str
    name: str
    folder: str
    created: str
    status: str
    state: str
    baseline: str
    headline: str
    tags: tuple[str, ...]
    plan: str
    engines: str = ""
    trials: int = 0
    failed: int = 0
    cells: int = 0


_COLUMNS = "runs.id, kind, name, runs.folder, runs.created, runs.status, state, baseline, headline, tags, plan"


def list_runs(database: Database, name: str | None = None, limit: int | None = None) -> list[Run]:
    """Newest first, with what each holds."""
    where, values = ("WHERE name = ?", [name]) if name else ("", [])
    most = f"LIMIT {int(limit)}" if limit else ""
    found = database.rows(f"SELECT {_COLUMNS} FROM runs {where} ORDER BY created DESC, id DESC {most}", values)
    counted = _counted(database, [row[0] for row in found])
    return [_run(row, counted.get(row[0], ("", 0, 0, 0))) for row in found]


def _run(row: Sequence[Any], counted: tuple[str, int, int, int] = ("", 0, 0, 0)) -> Run:
    run_id, kind, name, folder, created, status, state, baseline, headline, tags, plan = row
    engines, trials, failed, cells = counted
    return Run(
        run_id, kind, name, folder, created, status, state, baseline, headline, tuple(str(tags).split()), plan,
        engines, trials, failed, cells,
    )  # fmt: skip


def _counted(database: Database, runs: Sequence[str]) -> dict[str, tuple[str, int, int, int]]:
    if not runs:
        return {}
    places = ", ".join("?" * len(runs))
    engines: dict[str, dict[str, None]] = defaultdict(dict)
    for run, engine, version in database.rows(
        f"SELECT run, engine, version FROM studies WHERE run IN ({places}) ORDER BY label", runs
    ):
        engines[run][f"{engine} {version}".strip()] = None
    sql = (
        "SELECT studies.run, COUNT(DISTINCT trials.id), "
        "COUNT(DISTINCT CASE WHEN trials.status LIKE 'failed%' THEN trials.id END), COUNT(cells.id) "
        "FROM studies JOIN trials ON trials.study = studies.id LEFT JOIN cells ON cells.trial = trials.id "
        f"WHERE studies.run IN ({places}) GROUP BY studies.run"
    )
    counts = {row[0]: (int(row[1]), int(row[2]), int(row[3])) for row in database.rows(sql, runs)}
    return {run: (", ".join(engines[run]), *counts.get(run, (0, 0, 0))) for run in runs}


def find_run(database: Database, asked: str) -> Run:
    """By id, folder, tag, unique beginning of an id, or a sweep's name for its newest run. UserError otherwise."""
    asked = asked.rstrip("/").rpartition("/")[2]
    rows = database.rows(f"SELECT {_COLUMNS} FROM runs WHERE id = ?", [asked])
    if not rows:
        tagged = database.rows(f"SELECT {_COLUMNS} FROM runs WHERE tags <> '' ORDER BY created DESC")
        rows = [row for row in tagged if asked in str(row[9]).split()][:1]
    if not rows:
        rows = database.rows(f"SELECT {_COLUMNS} FROM runs WHERE name = ? ORDER BY created DESC LIMIT 1", [asked])
    if not rows:
        rows = database.rows(f"SELECT {_COLUMNS} FROM runs WHERE substr(id, 1, ?) = ?", [len(asked), asked])
    if len(rows) == 1:
        return _run(rows[0])
    if rows:
        raise UserError(f"{len(rows)} runs begin with {asked}: give more of the id (`tuner history` lists them)")
    raise UserError(f"no run is called {asked}: `tuner history` lists the ids, tags and names there are")


def last_green(database: Database, name: str, before: Run | None = None) -> Run | None:
    """The newest night of a sweep that completed, measured its whole plan and failed no gate; `before`: older than that
    one. A night that its budget stopped was once called green too."""
    sql = f"SELECT {_COLUMNS} FROM runs WHERE name = ? AND kind = 'night' AND state = ? AND status = ?"
    values: list[Any] = [name, GREEN, COMPLETE]
    if before is not None:
        sql, values = f"{sql} AND (created < ? OR (created = ? AND id < ?))", [
            *values, before.created, before.created, before.id,
        ]  # fmt: skip
    rows = database.rows(f"{sql} ORDER BY created DESC, id DESC LIMIT 1", values)
    return _run(rows[0]) if rows else None
