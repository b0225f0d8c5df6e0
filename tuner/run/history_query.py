"""A run's cells from the index, as arrays to compare and as figures to show."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tuner.decide.nights_gates import Figure
from tuner.decide.nights_sample import OFF, CellSample, NightSample, StudyFacts
from tuner.measure.records import CLOSING, CellKey, Load
from tuner.run.history_db import Database
from tuner.run.history_runs import Run, find_run, last_green, list_runs

__all__ = ["Run", "figures", "find_run", "last_green", "list_runs", "night_sample"]

#: Names of host facts that explain figures; the rest is the tool's own.
HOST_FACTS = ("cpu", "cores", "cpu_quota", "memory_gib", "system", "gpus", "tuner")


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
