"""Reads results that other tools measured: CSV, `vllm bench serve` JSON, AIPerf JSON; a file, or a folder of files."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tuner.decide.told import ToldRow
from tuner.decide.told_advice import ToldAdvice, advise
from tuner.errors import UserError
from tuner.run.files import read_text
from tuner.run.imported_json import json_runs, number
from tuner.run.question import cell_weights, loads_of
from tuner.spec.load import load_workload
from tuner.spec.speculation import Tree

INTEGERS = ("n", "steps", "topk", "nodes", "concurrency", "tp")
NUMBERS = (
    "temperature", "share", "tpot_ms", "tpot_se_ms", "throughput_tok_s", "throughput_se_tok_s", "ttft_p50_ms",
    "ttft_p95_ms", "e2e_p50_ms", "chunk_gap_p50_ms", "tau", "rate", "failed",
)  # fmt: skip
TEXTS = ("method", "draft", "task")
ACCEPTANCE = re.compile(r"a_([1-9][0-9]*)")
NAMES_HELP = (
    "name each run's setting: with the keys method and n (vllm bench serve: --metadata method=eagle3 n=3), or in the "
    "name of its file or folder (eagle3-n3/profile_export_aiperf.json, off.json)"
)


def advise_from(results: Path, workload: Path | None) -> ToldAdvice:
    """`workload`: what will be served; None: as the rows are."""
    rows = read_results(results)
    if workload is None:
        return advise(rows)
    asked = load_workload(workload)
    return advise(
        rows,
        objective=asked.objective,
        slo_ms=asked.slo.limits(),
        temperatures=asked.sampling.temperatures,
        tp=asked.engine_options.tensor_parallel,
        loads=loads_of(asked),
        weights=cell_weights(asked),
        shares={item.set: item.share for item in asked.traffic.prompts},
    )


def read_results(path: Path) -> tuple[ToldRow, ...]:
    """UserError for what cannot be read, by file and line."""
    if os.path.isdir(path):
        files = _files(path)
        if not files:
            raise UserError(f"{path} holds no .csv and no .json: give a file with results")
        return tuple(row for file in files for row in read_results(file))
    text = read_text(path)
    if text.lstrip().startswith(("{", "[")):
        return tuple(_row(told, where) for where, told in json_runs(text.strip(), path))
    return _from_csv(text, path)


def _files(folder: Path) -> list[Path]:
    """Results in a folder; where it holds AIPerf's artifact folders, their exports and nothing else of them."""
    exports = sorted(folder.rglob("profile_export_aiperf.json"))
    if exports:
        return exports
    # Beside each result vLLM may write the same figures once more for PyTorch's dashboards.
    return sorted(p for p in folder.glob("*") if p.suffix in (".csv", ".json") and ".pytorch." not in p.name)


def _from_csv(text: str, path: Path) -> tuple[ToldRow, ...]:
    lines = [(i, line) for i, line in enumerate(text.splitlines(), 1) if line.strip() and not line.startswith("#")]
    if len(lines) < 2:
        raise UserError(f"{path} needs a line of column names and a line a setting")
    names = [name.strip() for name in next(csv.reader([lines[0][1]]))]
    known = {*INTEGERS, *NUMBERS, *TEXTS}
    strange = [name for name in names if name not in known and not ACCEPTANCE.fullmatch(name)]
    if strange:
        raise UserError(
            f"{path}:{lines[0][0]}: unknown column {strange[0]!r}: use {', '.join(sorted(known))}, a_1, a_2, …"
        )
    if "method" not in names:
        raise UserError(f"{path}:{lines[0][0]}: there is no column method (off, eagle3, ngram, …)")
    rows = []
    for place, line in lines[1:]:
        values = [value.strip() for value in next(csv.reader([line]))]
        if len(values) > len(names):
            raise UserError(f"{path}:{place}: {len(values)} values under {len(names)} names: correct the line")
        told = {name: value for name, value in zip(names, values, strict=False) if value}
        rows.append(_row(told, f"{path.name}:{place}"))
    return tuple(rows)


def _whole(value: float, name: str, where: str) -> int:
    if value != int(value):
        raise UserError(f"{where}: {name} is {value:g}, and must be a whole number")
    return int(value)


def _row(told: Mapping[str, Any], where: str) -> ToldRow:
    """From values by column name; texts are parsed."""

    def figures(names: Sequence[str]) -> dict[str, Any]:
        return {name: number(told[name], name, where) for name in names if told.get(name) is not None}

    whole, numbers = {name: _whole(value, name, where) for name, value in figures(INTEGERS).items()}, figures(NUMBERS)
    places = {int(m[1]): name for name in told if (m := ACCEPTANCE.fullmatch(name))}
    if sorted(places) != list(range(1, len(places) + 1)):
        raise UserError(f"{where}: a_k must be given from a_1 on without a gap")
    a = tuple(number(told[places[k]], places[k], where) for k in sorted(places))
    method = str(told.get("method") or "")
    if not method:
        raise UserError(f"{where}: the method is missing: {NAMES_HELP}")
    steps, topk = whole.pop("steps", None), whole.pop("topk", None)
    nodes = whole.pop("nodes", None)
    tree = None
    if steps is not None and method != "off":
        if topk is None or topk <= 1:
            whole.setdefault("n", steps)
        else:
            tree = Tree(steps, topk, nodes if nodes is not None else steps + 1)
    return ToldRow(
        where=where, method=method, tree=tree, draft=str(told["draft"]) if told.get("draft") else None,
        task=str(told.get("task") or "all"), a=a, **whole, **numbers,
    )  # fmt: skip
