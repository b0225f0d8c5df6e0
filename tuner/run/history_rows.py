"""From a study's folder to its rows in the index: figures of cells and requests, without intervals."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tuner.decide.launch_cost import cell_seconds
from tuner.measure.acceptance import request_counts
from tuner.measure.records import Cell, RequestRecord, Trial
from tuner.measure.summary import meets_slo, window_tokens
from tuner.measure.validity import check_cell
from tuner.run.identity import PROMPTS
from tuner.run.start import began_with
from tuner.run.store import StudyStore
from tuner.run.study_header import question_hash
from tuner.spec.speculation import SpecConfig
from tuner.spec.workload import Slo

Row = tuple[Any, ...]


@dataclass(slots=True)
class StudyRows:
    """Rows by table."""

    studies: list[Row] = field(default_factory=list)
    trials: list[Row] = field(default_factory=list)
    cells: list[Row] = field(default_factory=list)
    requests: list[Row] = field(default_factory=list)


def key_of(*parts: object) -> int:
    """63 bits that name a row by what it is, so that a rebuilt index has the same ones."""
    return int.from_bytes(hashlib.sha256("\0".join(map(str, parts)).encode()).digest()[:8]) >> 1


def study_rows(store: StudyStore, run: str, label: str, folder: str, facts: Mapping[str, Any], stamp: str) -> StudyRows:
    """`folder`: below the reports; `facts`: what the night's header knows of models."""
    header, trials = store.header, store.trials()
    study = key_of(folder)
    rows = StudyRows()
    ended = [event["status"] for event in store.events() if event["event"] == "study_ended"]
    version = next((t.facts.version for t in trials if t.facts.version), None) or _registered(header.environments)
    told = dict(facts) | {
        "host": header.host.to_dict() | {"at": "", "load_1m": None},
        "load_1m": header.host.load_1m,
        "resolved": sorted({pair for t in trials if t.spec.is_off for pair in t.facts.resolved}),
    }
    rows.studies.append(
        (study, run, label, folder, str(header.environments[0]["name"]), version, header.created,
         str(ended[-1]) if ended else "interrupted", _question(store), json.dumps(told, sort_keys=True),
         stamp)
    )  # fmt: skip
    slo_ms = Slo.model_validate(header.workload.get("slo", {})).limits()
    for trial in trials:
        _add_trial(rows, study, trial, slo_ms)
    return rows


def _question(store: StudyStore) -> str:
    """Equal for studies that ask the same, word for word where the texts of the prompts were noted."""
    return ":".join(filter(None, [question_hash(store.header.workload), began_with(store).get(PROMPTS)]))


def _registered(environments: tuple[dict[str, Any], ...]) -> str:
    return str(environments[0].get("version", ""))


def _add_trial(rows: StudyRows, study: int, trial: Trial, slo_ms: Mapping[str, float]) -> None:
    key, spec = key_of(study, trial.number), trial.spec
    rows.trials.append(
        (key, study, trial.number, label_of(spec), spec.method, spec.depth, spec.draft or "", trial.role, trial.status,
         trial.ready_s)
    )  # fmt: skip
    for cell in trial.cells:
        _add_cell(rows, key, cell, spec, slo_ms)


def label_of(spec: SpecConfig) -> str:
    """The setting as nights call it: with the draft's own name, and the options that make it another arm."""
    draft = f" {Path(spec.draft).name}" if spec.draft else ""
    options = "" if spec.by_load else "".join(f" {name}={value}" for name, value in spec.options)
    return f"{spec.label}{draft}{options}"


def _add_cell(rows: StudyRows, trial: int, cell: Cell, spec: SpecConfig, slo_ms: Mapping[str, float]) -> None:
    load, done = cell.key.load, cell.completed
    key = key_of(trial, load.concurrency, load.rate, cell.key.temperature)
    blocks = [finding.text for finding in check_cell(cell, spec) if finding.blocks]
    blocked = blocks[0] if blocks else f"lossy: {cell.lossy}" if cell.lossy else ""
    added = [_request_row(key, request, spec, slo_ms) for request in cell.measured]
    rows.requests += added
    start_s, end_s = cell.window_s
    accepted, steps = _sum(added, 7), _sum(added, 8)
    throughput = window_tokens(cell.requests, start_s, end_s) / (end_s - start_s) if end_s > start_s and done else None
    good = [meets_slo(request, slo_ms) for request in cell.measured] if slo_ms else []
    rows.cells.append(
        (key, trial, load.concurrency, load.rate, cell.key.temperature, len(done), len(cell.measured) - len(done),
         blocked, cell_seconds(cell), _median(added, 3), _median(added, 4), throughput,
         sum(good) / len(good) if good else None, 1 + accepted / steps if accepted is not None and steps else None)
    )  # fmt: skip


def _request_row(cell: int, request: RequestRecord, spec: SpecConfig, slo_ms: Mapping[str, float]) -> Row:
    """A failed request counts against goodput, and has no other figure."""
    good = int(meets_slo(request, slo_ms)) if slo_ms else None
    if not request.ok:
        return (cell, request.index, request.prompt, None, None, None, None, None, None, good)
    counts = None if spec.is_off else request_counts(request, spec.depth)
    return (
        cell, request.index, request.prompt, request.tpot_s, request.ttft_s, request.ended_s, request.n_out,
        counts.accepted if counts else None, counts.verify_steps if counts else None, good,
    )  # fmt: skip


def _median(rows: list[Row], column: int) -> float | None:
    values = [row[column] for row in rows if row[column] is not None]
    return median(values) if values else None


def _sum(rows: list[Row], column: int) -> int | None:
    values = [row[column] for row in rows if row[column] is not None]
    return sum(values) if values else None
