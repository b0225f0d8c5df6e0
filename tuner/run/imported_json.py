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
#: What `vllm bench latency`, `vllm bench throughput` and SGLang's bench_offline_throughput write, and nobody else.
OFFLINE = (
    frozenset({"avg_latency", "latencies", "percentiles"}),
    frozenset({"elapsed_time", "num_requests", "tokens_per_second"}),
    frozenset({"successful_requests", "total_latency", "input_throughput", "output_throughput"}),
)
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
            told = _vllm(run, where)
        elif "inter_token_latency" in run or "output_token_throughput" in run:
            told = _aiperf(run, where)
        elif "metadata" in run and "metrics" in run:
            raise UserError(
                f"{where} holds an aggregate of several runs: give each run's own profile_export_aiperf.json"
            )
        elif any(keys <= run.keys() for keys in OFFLINE):
            raise UserError(
                f"{where} was measured offline, without a server: such gains shrink when served, and are not compared "
                "with served ones; measure it with vllm bench serve or AIPerf"
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
        except (ValueError, RecursionError):  # ValueError: an integer of more digits than Python takes
            line = text.count("\n", 0, at) + 1
            raise UserError(
                f"{path}:{line}: what begins here has a number of thousands of digits, or lists nested hundreds deep: "
                "give the file as its tool wrote it"
            ) from None
        found += value if isinstance(value, list) else [value]
        while at < len(text) and text[at].isspace():
            at += 1
    return found


def number(value: Any, name: str, where: str) -> float:
    """A figure of any tool, also one written as text; UserError for what is no finite number."""
    try:
        told = float(value)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{where}: {name} is {value!r:.60}, and must be a number") from None
    if not math.isfinite(told):
        raise UserError(f"{where}: {name} is {value!r:.60}, and must be a finite number")
    return told


def _figure(block: Mapping[str, Any], key: str, where: str) -> float | None:
    """None where it is not told."""
    return None if block.get(key) is None else number(block[key], key, where)


def _block(value: Any, name: str, where: str) -> dict[str, Any]:
    """An object within a run, empty where it is not told."""
    if value is not None and not isinstance(value, dict):
        raise UserError(f"{where}: {name} must be an object, as its tool writes it, not {value!r:.60}")
    return value or {}


def _vllm(run: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Its ITL is the gap between chunks, not the time per token."""
    drafts, drafted = (_figure(run, f"spec_decode_{key}", where) for key in ("num_drafts", "draft_tokens"))
    completed = _figure(run, "completed", where)
    told: dict[str, Any] = _own(run)
    if "method" not in told and not drafts:
        told["method"] = "off"
    if drafts and drafts >= 1 and drafted and "n" not in told:
        told["n"] = round(drafted / drafts)
    told["concurrency"] = run.get("max_concurrency")
    rate = run.get("request_rate")
    if told["concurrency"] is None and rate not in (None, "inf"):
        told["rate"] = rate
    told["tpot_ms"] = run.get("median_tpot_ms") or run.get("mean_tpot_ms")
    told["tpot_se_ms"] = _error_of_median(_figure(run, "std_tpot_ms", where), completed)
    told |= {"throughput_tok_s": run["output_throughput"], "ttft_p50_ms": run["median_ttft_ms"]}
    told |= {"ttft_p95_ms": run.get("p95_ttft_ms"), "e2e_p50_ms": run.get("median_e2el_ms")}
    told |= {"chunk_gap_p50_ms": run.get("median_itl_ms"), "tau": run.get("spec_decode_acceptance_length")}
    told["failed"] = _share(_figure(run, "failed", where), completed)
    rates = run.get("spec_decode_per_position_acceptance_rates") or []
    if not isinstance(rates, list):
        raise UserError(f"{where}: spec_decode_per_position_acceptance_rates must be a list, not {rates!r:.60}")
    return told | {f"a_{k}": rate for k, rate in enumerate(rates, 1)}


def _aiperf(run: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Its inter-token latency is a TPOT; the gap between chunks has its own figure."""

    def figure(metric: str, statistic: str) -> float | None:
        block = _block(run.get(metric), metric, where)
        return None if block.get(statistic) is None else number(block[statistic], f"{metric}.{statistic}", where)

    def in_ms(metric: str, statistic: str) -> float | None:
        told = figure(metric, statistic)
        return None if told is None else told * MILLISECONDS.get(str(run[metric].get("unit")), 1.0)

    told: dict[str, Any] = {"method": None} | _load(run, where) | _own(run)
    told["tpot_ms"] = in_ms("inter_token_latency", "p50") or in_ms("inter_token_latency", "avg")
    completed = figure("request_count", "avg")
    count = figure("inter_token_latency", "count") or completed
    told["tpot_se_ms"] = _error_of_median(in_ms("inter_token_latency", "std"), count)
    told["throughput_tok_s"] = figure("output_token_throughput", "avg")
    told |= {"ttft_p50_ms": in_ms("time_to_first_token", "p50"), "ttft_p95_ms": in_ms("time_to_first_token", "p95")}
    told |= {"e2e_p50_ms": in_ms("request_latency", "p50"), "chunk_gap_p50_ms": in_ms("inter_chunk_latency", "p50")}
    told["failed"] = 1.0 if run.get("was_cancelled") else _share(figure("error_request_count", "avg"), completed)
    return told


def _load(run: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Concurrency or rate: of the profiling phase (AIPerf's configuration since it has phases), or of `loadgen`."""
    config = _block(run.get("input_config"), "input_config", where)
    told = config.get("phases") or []
    if not isinstance(told, dict | list):
        raise UserError(f"{where}: phases must be a list, as its tool writes it, not {told!r:.60}")
    named = told.items() if isinstance(told, dict) else [(None, phase) for phase in told]
    phases = [{"name": name} | _block(phase, "a phase", where) for name, phase in named]
    profiling = [p for p in phases if "profiling" in (p.get("name"), p.get("kind"))] or phases[-1:]
    source = profiling[0] if profiling else _block(config.get("loadgen"), "loadgen", where)
    concurrency = run.get("concurrency") or source.get("concurrency")
    rate = source.get("request_rate") or source.get("rate")
    if concurrency is None and rate:
        return {"rate": rate}
    return {"concurrency": concurrency}


def _error_of_median(spread: float | None, count: float | None) -> float | None:
    """None where the tool did not tell both."""
    return OF_MEDIAN * spread / math.sqrt(count) if spread and count and count > 0 else None


def _share(failed: float | None, completed: float | None) -> float | None:
    """None where the tool did not count."""
    total = (failed or 0) + (completed or 0)
    return failed / total if failed is not None and total else None


def _own(run: Mapping[str, Any]) -> dict[str, Any]:
    return {key: run[key] for key in OWN_KEYS if run.get(key) is not None}
