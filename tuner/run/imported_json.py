"""Results in JSON as other tools write them: `vllm bench serve --save-result` (also appended) and AIPerf's export."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tuner.errors import UserError
from tuner.spec.speculation import METHODS

#: Standard error of a median over that of the mean, for normal values: sqrt(pi / 2).
OF_MEDIAN = math.sqrt(math.pi / 2)
MILLISECONDS = {"ms": 1.0, "s": 1000.0, "sec": 1000.0, "seconds": 1000.0, "us": 0.001, "ns": 1e-6}
#: Keys by which whoever measured may have named the setting.
OWN_KEYS = ("method", "n", "steps", "topk", "nodes", "draft", "temperature", "task", "share", "tp")
_WORD = re.compile(rf"(?:^|[^a-z0-9])({'|'.join(sorted(METHODS, key=len, reverse=True))}|baseline)(?=$|[^a-z0-9])")
_NUMBERS = {
    key: re.compile(rf"(?:^|[^a-z0-9]){key}[=_-]?([0-9]+)(?=$|[^a-z0-9])") for key in ("n", "steps", "topk", "nodes")
}


def json_runs(text: str, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where, values by column name) of every run in a file."""
    runs = _objects(text, path)
    # AIPerf calls every export alike: its folder tells them apart.
    name = f"{path.parent.name}/{path.name}" if path.name.startswith("profile_export") else path.name
    for i, run in enumerate(runs, 1):
        where = name if len(runs) == 1 else f"{name}, run {i}"
        if not isinstance(run, dict):
            raise UserError(f"{where} is no result of vllm bench serve or AIPerf: they are JSON objects")
        if "output_throughput" in run and "median_ttft_ms" in run:
            told = _vllm(run)
        elif "inter_token_latency" in run or "output_token_throughput" in run:
            told = _aiperf(run)
        elif "metadata" in run and "metrics" in run:
            raise UserError(
                f"{where} holds an aggregate of several runs: give each run's own profile_export_aiperf.json"
            )
        else:
            raise UserError(f"{where} is no result of vllm bench serve or AIPerf: it has neither's figures")
        told = {key: value for key, value in told.items() if value is not None}
        yield where, told if "method" in told else named_by_path(path) | told


def named_by_path(path: Path) -> dict[str, Any]:
    """The setting from a file's or folder's name, nearest first: `off`, `eagle3-n3`, `ngram_n=4`; empty without one."""
    for part in (path.stem, path.parent.name, path.parent.parent.name):
        found = _WORD.search(part.lower().replace("draft-model", "draft_model"))
        if found:
            numbers = {key: int(m[1]) for key, pattern in _NUMBERS.items() if (m := pattern.search(part.lower()))}
            method = "off" if found[1] == "baseline" else found[1]
            return {"method": method} | ({} if method == "off" else numbers)
    return {}


def _objects(text: str, path: Path) -> list[Any]:
    """One object, a list of them, or one after the other as `--append-result` writes them."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while at < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise UserError(
                f"{path}:{error.lineno}: this is not JSON ({error.msg}): give the file as its tool wrote it"
            ) from None
        found += value if isinstance(value, list) else [value]
        while at < len(text) and text[at].isspace():
            at += 1
    return found


def _vllm(run: Mapping[str, Any]) -> dict[str, Any]:
    """Its ITL is the gap between chunks, not the time per token."""
    drafts, drafted = run.get("spec_decode_num_drafts"), run.get("spec_decode_draft_tokens")
    told: dict[str, Any] = _own(run)
    if "method" not in told and not drafts:
        told["method"] = "off"
    if drafts and drafted and "n" not in told:
        told["n"] = round(drafted / drafts)
    told["concurrency"] = run.get("max_concurrency")
    rate = run.get("request_rate")
    if told["concurrency"] is None and rate not in (None, "inf"):
        told["rate"] = rate
    told["tpot_ms"] = run.get("median_tpot_ms") or run.get("mean_tpot_ms")
    if run.get("std_tpot_ms") and run.get("completed"):
        told["tpot_se_ms"] = OF_MEDIAN * run["std_tpot_ms"] / math.sqrt(run["completed"])
    told |= {"throughput_tok_s": run["output_throughput"], "ttft_p50_ms": run["median_ttft_ms"]}
    told |= {"ttft_p95_ms": run.get("p95_ttft_ms"), "e2e_p50_ms": run.get("median_e2el_ms")}
    told |= {"chunk_gap_p50_ms": run.get("median_itl_ms"), "tau": run.get("spec_decode_acceptance_length")}
    told["failed"] = _share(run.get("failed"), run.get("completed"))
    rates = run.get("spec_decode_per_position_acceptance_rates") or []
    return told | {f"a_{k}": rate for k, rate in enumerate(rates, 1)}


def _aiperf(run: Mapping[str, Any]) -> dict[str, Any]:
    """Its inter-token latency is a TPOT; the gap between chunks has its own figure."""

    def figure(metric: str, statistic: str) -> float | None:
        told = run.get(metric)
        if not isinstance(told, dict) or told.get(statistic) is None:
            return None
        return float(told[statistic]) * MILLISECONDS.get(str(told.get("unit")), 1.0)

    told: dict[str, Any] = {"method": None} | _load(run) | _own(run)
    told["tpot_ms"] = figure("inter_token_latency", "p50") or figure("inter_token_latency", "avg")
    completed = _average(run, "request_count")
    count = (run.get("inter_token_latency") or {}).get("count") or completed
    spread = figure("inter_token_latency", "std")
    if spread and count:
        told["tpot_se_ms"] = OF_MEDIAN * spread / math.sqrt(count)
    told["throughput_tok_s"] = _average(run, "output_token_throughput")
    told |= {"ttft_p50_ms": figure("time_to_first_token", "p50"), "ttft_p95_ms": figure("time_to_first_token", "p95")}
    told |= {"e2e_p50_ms": figure("request_latency", "p50"), "chunk_gap_p50_ms": figure("inter_chunk_latency", "p50")}
    told["failed"] = 1.0 if run.get("was_cancelled") else _share(_average(run, "error_request_count"), completed)
    return told


def _load(run: Mapping[str, Any]) -> dict[str, Any]:
    """Concurrency or rate: of the profiling phase (AIPerf's configuration since it has phases), or of `loadgen`."""
    config = run.get("input_config") or {}
    phases = config.get("phases") or []
    if isinstance(phases, dict):
        phases = [{"name": name} | phase for name, phase in phases.items()]
    profiling = [p for p in phases if "profiling" in (p.get("name"), p.get("kind"))] or phases[-1:]
    source = profiling[0] if profiling else config.get("loadgen") or {}
    concurrency = run.get("concurrency") or source.get("concurrency")
    rate = source.get("request_rate") or source.get("rate")
    if concurrency is None and rate:
        return {"rate": rate}
    return {"concurrency": concurrency}


def _average(run: Mapping[str, Any], metric: str) -> float | None:
    value = (run.get(metric) or {}).get("avg")
    return float(value) if value is not None else None


def _share(failed: float | None, completed: float | None) -> float | None:
    """None where the tool did not count."""
    total = (failed or 0) + (completed or 0)
    return failed / total if failed is not None and total else None


def _own(run: Mapping[str, Any]) -> dict[str, Any]:
    return {key: run[key] for key in OWN_KEYS if run.get(key) is not None}
