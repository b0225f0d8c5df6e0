"""Questions to the index: which runs there are, which one is meant, and a run's cells as arrays to compare."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.decide.nights_gates import Figure
from tuner.decide.nights_sample import OFF, CellSample, NightSample, StudyFacts
from tuner.errors import UserError
from tuner.measure.records import CellKey, Load
from tuner.run.history_db import Database
from tuner.run.sweep_asks import CLOSING

GREEN, RED = "green", "red"
#: Names of host facts that explain figures; the rest is the tool's own.
HOST_FACTS = ("cpu", "cores", "cpu_quota", "memory_gib", "system", "gpus", "tuner")


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
    return Run(*row[:9], tuple(str(row[9]).split()), row[10], *counted)


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
    """The newest night of a sweep that completed with no gate failed; `before`: older than that one."""
    sql = f"SELECT {_COLUMNS} FROM runs WHERE name = ? AND kind = 'night' AND state = ?"
    values: list[Any] = [name, GREEN]
    if before is not None:
        sql, values = f"{sql} AND (created < ? OR (created = ? AND id < ?))", [
            *values, before.created, before.created, before.id,
        ]  # fmt: skip
    rows = database.rows(f"{sql} ORDER BY created DESC, id DESC LIMIT 1", values)
    return _run(rows[0]) if rows else None


_CELLS = (
    "SELECT cells.id, studies.label, trials.label, trials.role, trials.draft, cells.concurrency, cells.rate, "
    "cells.temperature, cells.blocked, tpot_p50_s, ttft_p50_s, throughput_tok_s, goodput, tau FROM cells "
    "JOIN trials ON trials.id = cells.trial JOIN studies ON studies.id = trials.study WHERE studies.run = ? "
    "ORDER BY studies.folder, trials.number, cells.temperature, cells.concurrency, cells.rate"
)
_REQUESTS = (
    "SELECT requests.cell, i, prompt, tpot_s, ttft_s, ended_s, n_out, accepted, steps, good FROM requests "
    "JOIN cells ON cells.id = requests.cell JOIN trials ON trials.id = cells.trial "
    "JOIN studies ON studies.id = trials.study WHERE studies.run = ? ORDER BY requests.cell, i"
)


def night_sample(database: Database, run: Run) -> NightSample:
    """Everything of a run that comparing needs."""
    requests: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for row in database.rows(_REQUESTS, [run.id]):
        requests[row[0]].append(row[1:])
    samples = [(row[3] == CLOSING, _sample(row, requests[row[0]])) for row in database.rows(_CELLS, [run.id])]
    return NightSample(
        run.id,
        tuple(sample for again, sample in samples if not again),
        tuple(sample for again, sample in samples if again),
        dict(_facts(database, run)),
    )


def _sample(row: Sequence[Any], requests: Sequence[tuple[Any, ...]]) -> CellSample:
    columns = [np.array([one[i] for one in requests], dtype=np.float64) for i in range(2, 9)]
    tpot, ttft, ended, n_out, accepted, steps, good = columns
    return CellSample(
        study=row[1], setting=row[2], key=CellKey(Load(row[5], row[6]), row[7]),
        ids=tuple((int(one[0]), str(one[1])) for one in requests), tpot_s=tpot, ttft_s=ttft, ended_s=ended,
        n_out=n_out, accepted=accepted, steps=steps, good=good, again=row[3] == CLOSING, blocked=row[8], draft=row[4],
    )  # fmt: skip


def _facts(database: Database, run: Run) -> Iterator[tuple[str, StudyFacts]]:
    sql = "SELECT label, engine, version, question, facts FROM studies WHERE run = ?"
    for label, engine, version, question, text in database.rows(sql, [run.id]):
        told = json.loads(text)
        host = told.get("host", {})
        yield label, StudyFacts(
            engine, version, question,
            tuple((str(name), digits) for name, digits in told.get("models", [])),
            tuple((name, json.dumps(host[name])) for name in HOST_FACTS if host.get(name) not in (None, [])),
            tuple((str(name), str(value)) for name, value in told.get("resolved", [])),
            told.get("load_1m"),
        )  # fmt: skip


def figures(database: Database, run: Run) -> tuple[Figure, ...]:
    """A run's own figures, cell by cell, for absolute gates and trends; speed-up is off's median over the cell's."""
    rows = database.rows(_CELLS, [run.id])
    offs = {(r[1], r[5], r[6], r[7]): r[9] for r in reversed(rows) if r[2] == OFF and r[3] != CLOSING}
    found = []
    for row in rows:
        if row[3] == CLOSING or row[8]:
            continue
        load = Load(row[5], row[6])
        where = f"{row[1]}, {row[2]}, {load.text}, temperature {row[7]:g}"
        off = offs.get((row[1], row[5], row[6], row[7]))
        values = dict(zip(("tpot_p50", "ttft_p50", "throughput", "goodput", "tau"), row[9:14], strict=True))
        values["speedup"] = off / row[9] if off and row[9] and row[2] != OFF else None
        found += [Figure(where, metric, value) for metric, value in values.items() if value is not None]
    return tuple(found)
