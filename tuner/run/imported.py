"""Reads results that other tools measured: CSV, `vllm bench serve` JSON, AIPerf JSON; a file, or a folder of files."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.decide.told import ToldRow
from tuner.decide.told_advice import ToldAdvice, advise
from tuner.errors import UserError
from tuner.run.files import read_text
from tuner.spec.load import load_workload
from tuner.spec.speculation import Tree

INTEGERS = ("n", "steps", "topk", "nodes", "concurrency", "tp")
NUMBERS = (
    "temperature", "share", "tpot_ms", "tpot_se_ms", "throughput_tok_s", "throughput_se_tok_s", "ttft_p50_ms",
    "ttft_p95_ms", "e2e_p50_ms", "chunk_gap_p50_ms", "tau",
)  # fmt: skip
TEXTS = ("method", "draft", "task")
ACCEPTANCE = re.compile(r"a_([1-9][0-9]*)")
#: Standard error of a median over that of the mean, for normal values: sqrt(pi / 2).
OF_MEDIAN = math.sqrt(math.pi / 2)
#: What AIPerf and vLLM call a setting only if they were told: `vllm bench serve --metadata method=eagle3 n=3`.
NAMES_HELP = "name each run's setting with the keys method and n (vllm bench serve: --metadata method=eagle3 n=3)"


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
    )


def read_results(path: Path) -> tuple[ToldRow, ...]:
    """UserError for what cannot be read, by file and line."""
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix in (".csv", ".json"))
        if not files:
            raise UserError(f"{path} holds no .csv and no .json: give a file with results")
        return tuple(row for file in files for row in read_results(file))
    text = read_text(path)
    if text.lstrip().startswith(("{", "[")):
        return _from_json(text, path)
    return _from_csv(text, path)


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
    for number, line in lines[1:]:
        values = [value.strip() for value in next(csv.reader([line]))]
        if len(values) > len(names):
            raise UserError(f"{path}:{number}: {len(values)} values under {len(names)} names: correct the line")
        told = {name: value for name, value in zip(names, values, strict=False) if value}
        rows.append(_row(told, f"{path.name}:{number}", path))
    return tuple(rows)


def _row(told: Mapping[str, Any], where: str, path: Path) -> ToldRow:
    """From values by column name; texts are parsed."""
    whole: dict[str, Any] = {name: int(_number(told, name, where)) for name in INTEGERS if told.get(name) is not None}
    numbers: dict[str, Any] = {name: _number(told, name, where) for name in NUMBERS if told.get(name) is not None}
    places = {int(m[1]): name for name in told if (m := ACCEPTANCE.fullmatch(name))}
    if sorted(places) != list(range(1, len(places) + 1)):
        raise UserError(f"{where}: a_k must be given from a_1 on without a gap")
    a = tuple(_number(told, places[k], where) for k in sorted(places))
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


def _number(told: Mapping[str, Any], name: str, where: str) -> float:
    try:
        value = float(told[name])
    except (TypeError, ValueError):
        raise UserError(f"{where}: {name} is {told[name]!r}, and must be a number") from None
    if not math.isfinite(value):
        raise UserError(f"{where}: {name} is {told[name]!r}, and must be a finite number")
    return value


def _from_json(text: str, path: Path) -> tuple[ToldRow, ...]:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}:{error.lineno}: this is not JSON ({error.msg}): give the file as its tool wrote it"
        ) from None
    runs = data if isinstance(data, list) else [data]
    rows = []
    for i, run in enumerate(runs, 1):
        where = path.name if len(runs) == 1 else f"{path.name}, run {i}"
        if not isinstance(run, dict):
            raise UserError(f"{where} is no result of vllm bench serve or AIPerf: they are JSON objects")
        if "output_throughput" in run and "median_ttft_ms" in run:
            rows.append(_row(_vllm(run), where, path))
        elif "inter_token_latency" in run or "output_token_throughput" in run:
            rows.append(_row(_aiperf(run), where, path))
        else:
            raise UserError(f"{where} is no result of vllm bench serve or AIPerf: it has neither's figures")
    return tuple(rows)


def _vllm(run: Mapping[str, Any]) -> dict[str, Any]:
    """`vllm bench serve --save-result`. Its ITL is the gap between chunks, not the time per token."""
    drafts, drafted = run.get("spec_decode_num_drafts"), run.get("spec_decode_draft_tokens")
    told: dict[str, Any] = _named(run)
    if "method" not in told and not drafts:
        told["method"] = "off"
    if drafts and drafted and "n" not in told:
        told["n"] = round(drafted / drafts)
    told["concurrency"] = run.get("max_concurrency")
    told["tpot_ms"] = run.get("median_tpot_ms") or run.get("mean_tpot_ms")
    if run.get("std_tpot_ms") and run.get("completed"):
        told["tpot_se_ms"] = OF_MEDIAN * run["std_tpot_ms"] / math.sqrt(run["completed"])
    told |= {"throughput_tok_s": run["output_throughput"], "ttft_p50_ms": run["median_ttft_ms"]}
    told |= {"ttft_p95_ms": run.get("p95_ttft_ms"), "e2e_p50_ms": run.get("median_e2el_ms")}
    told |= {"chunk_gap_p50_ms": run.get("median_itl_ms"), "tau": run.get("spec_decode_acceptance_length")}
    rates = run.get("spec_decode_per_position_acceptance_rates") or []
    return told | {f"a_{k}": rate for k, rate in enumerate(rates, 1)}


def _aiperf(run: Mapping[str, Any]) -> dict[str, Any]:
    """`profile_export_aiperf.json`. Its inter-token latency is a TPOT; the gap between chunks has its own figure."""

    def figure(metric: str, statistic: str) -> float | None:
        told = run.get(metric)
        if not isinstance(told, dict) or told.get(statistic) is None:
            return None
        scale = {"ms": 1.0, "s": 1000.0, "sec": 1000.0, "us": 0.001, "ns": 1e-6}.get(str(told.get("unit")), 1.0)
        return float(told[statistic]) * scale

    loadgen = (run.get("input_config") or {}).get("loadgen") or {}
    told: dict[str, Any] = {"method": None} | _named(run)
    told["concurrency"] = told.get("concurrency") or loadgen.get("concurrency")
    told["tpot_ms"] = figure("inter_token_latency", "p50") or figure("inter_token_latency", "avg")
    spread, count = figure("inter_token_latency", "std"), (run.get("request_count") or {}).get("avg")
    if spread and count:
        told["tpot_se_ms"] = OF_MEDIAN * spread / math.sqrt(count)
    told["throughput_tok_s"] = (run.get("output_token_throughput") or {}).get("avg")
    told |= {"ttft_p50_ms": figure("time_to_first_token", "p50"), "ttft_p95_ms": figure("time_to_first_token", "p95")}
    told |= {"e2e_p50_ms": figure("request_latency", "p50"), "chunk_gap_p50_ms": figure("inter_chunk_latency", "p50")}
    return told


def _named(run: Mapping[str, Any]) -> dict[str, Any]:
    """The setting's own keys, where whoever measured wrote them down."""
    keys = ("method", "n", "steps", "topk", "nodes", "draft", "temperature", "task", "share", "tp")
    return {key: run[key] for key in keys if run.get(key) is not None}
