"""Results in the very form their tools write them: `vllm bench serve` 0.32, AIPerf before and since phases, CSV."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tuner.cli import app
from tuner.decide.told import ToldRow
from tuner.decide.told_advice import advise
from tuner.errors import UserError
from tuner.measure.records import CellKey, Load
from tuner.run.imported import read_results
from tuner.run.imported_json import named_by_path


def vllm_run(tpot_ms: float, **own: Any) -> dict[str, Any]:
    """Every key that `vllm bench serve --save-result` writes in 0.32, in its order (--metadata comes as text)."""
    metadata = {key: str(own.pop(key)) for key in ("method", "n", "temperature") if key in own}
    return {
        "date": "20261130-101500", "endpoint_type": "openai-chat", "backend": "openai-chat", "label": None,
        "model_id": "target", "tokenizer_id": "target", "num_prompts": 80, **metadata, "request_rate": "inf",
        "burstiness": 1.0, "max_concurrency": 8, "duration": 20.5, "completed": 80, "failed": 0,
        "total_input_tokens": 8000, "total_output_tokens": 6400, "request_throughput": 3.9, "request_goodput": None,
        "output_throughput": 312.2, "total_token_throughput": 702.4, "latencies": [1.0] * 80, "queue_times": [0.0] * 80,
        "max_output_tokens_per_s": 400.0, "max_concurrent_requests": 9, "rtfx": 0.0,
        "mean_ttft_ms": 61.0, "median_ttft_ms": 60.0, "std_ttft_ms": 5.0, "p99_ttft_ms": 80.0,
        "mean_tpot_ms": tpot_ms * 1.02, "median_tpot_ms": tpot_ms, "std_tpot_ms": 0.8, "p99_tpot_ms": tpot_ms * 1.4,
        "mean_itl_ms": 20.0, "median_itl_ms": 19.5, "std_itl_ms": 3.0, "p99_itl_ms": 31.0,
    } | own  # fmt: skip


DRAFTED = {
    "method": "eagle3", "spec_decode_acceptance_rate": 40.0, "spec_decode_acceptance_length": 2.2,
    "spec_decode_num_drafts": 2900, "spec_decode_draft_tokens": 8700, "spec_decode_accepted_tokens": 3480,
    "spec_decode_per_position_acceptance_rates": [0.6, 0.4, 0.2],
}  # fmt: skip


def aiperf_run(tpot_ms: float, config: dict[str, Any], **own: Any) -> dict[str, Any]:
    """The blocks of profile_export_aiperf.json (schema 1.5) that matter here; durations of records with their count."""

    def record(value: float, unit: str = "ms") -> dict[str, Any]:
        shares = {f"p{p}": value * (0.9 + p / 500) for p in (1, 5, 10, 25, 75, 90, 95, 99)}
        return {"unit": unit, "avg": value * 1.01, "min": value * 0.8, "max": value * 1.3, "p50": value, **shares,
                "std": 0.9, "count": 64, "sum": value * 64}  # fmt: skip

    return {
        "schema_version": "1.5", "aiperf_version": "0.10.0", "benchmark_id": "f4", "was_cancelled": False,
        "input_config": config, "error_summary": [], "start_time": "2026-06-13T05:11:41", "telemetry_data": {},
        "request_throughput": {"unit": "requests/sec", "avg": 1.45}, "request_latency": record(2600.0),
        "request_count": {"unit": "requests", "avg": 64.0}, "time_to_first_token": record(90.0),
        "inter_token_latency": record(tpot_ms), "inter_chunk_latency": record(21.0),
        "output_token_throughput": {"unit": "tokens/sec", "avg": 640.0 / tpot_ms},
        "output_sequence_length": record(64.0, "tokens"), "benchmark_duration": {"unit": "sec", "avg": 44.1},
    } | own  # fmt: skip


PHASES = {"models": {"items": [{"name": "m"}]}, "phases": [
    {"name": "warmup", "kind": "warmup", "concurrency": 1},
    {"name": "profiling", "kind": "profiling", "concurrency": 16},
]}  # fmt: skip
LOADGEN = {"loadgen": {"concurrency": 16, "request_rate": None}}


def save(path: Path, *runs: dict[str, Any], join: str = "\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(join.join(json.dumps(run) for run in runs))
    return path


# --- vllm bench serve -----------------------------------------------------------------------------------------------


def test_a_saved_result_of_vllm_bench_serve(tmp_path: Path) -> None:
    (row,) = read_results(save(tmp_path / "on.json", vllm_run(7.0, **DRAFTED)))
    assert (row.label, row.concurrency, row.tau, row.a) == ("eagle3 N=3", 8, 2.2, (0.6, 0.4, 0.2))
    assert (row.tpot_ms, row.throughput_tok_s, row.ttft_p50_ms) == (7.0, 312.2, 60.0)
    assert row.chunk_gap_p50_ms == 19.5  # its ITL
    assert row.tpot_se_ms == pytest.approx(1.2533 * 0.8 / 80**0.5, rel=1e-4)
    assert row.failed == 0


def test_results_appended_to_one_file_are_all_read(tmp_path: Path) -> None:
    path = save(tmp_path / "runs.json", vllm_run(12.0), vllm_run(7.0, **DRAFTED))
    off, on = read_results(path)
    assert (off.is_off, on.n) == (True, 3)
    assert off.where == "runs.json, run 1"
    advice = advise((off, on))
    assert (advice.verdict, advice.best) == ("on", "eagle3 N=3")
    # L(3) = 7 x 2.2 = 15.4 over L(0) = 12: L(2) = 14.27, and tau(2) = 1 + .6 + .4.
    assert {c.row.n: c.value for c in advice.cells[0].costs if c.predicted}[2] == pytest.approx(14.27 / 2, abs=0.01)


def test_metadata_names_the_setting_and_its_temperature(tmp_path: Path) -> None:
    told = vllm_run(7.0, **(DRAFTED | {"n": 3, "temperature": 0.7}))
    (row,) = read_results(save(tmp_path / "r.json", told))
    assert (row.n, row.temperature) == (3, 0.7)


def test_a_rate_is_a_load_of_its_own(tmp_path: Path) -> None:
    runs = [vllm_run(9.0, max_concurrency=None, request_rate=rate) for rate in (2.0, 4.0)]
    slow, fast = read_results(save(tmp_path / "rates.json", *runs))
    assert (slow.rate, fast.rate, slow.concurrency) == (2.0, 4.0, None)
    assert slow.cell != fast.cell


def test_a_run_in_which_most_requests_failed_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "runs.json", vllm_run(12.0), vllm_run(5.0, **DRAFTED, completed=30, failed=50))
    advice = advise(read_results(path))
    assert advice.verdict == "off"
    assert advice.refused[0].reason == "62% of its requests failed, or it was cancelled"


def test_the_same_figures_for_pytorchs_dashboard_are_not_read_twice(tmp_path: Path) -> None:
    save(tmp_path / "off.json", vllm_run(12.0))
    save(tmp_path / "off.pytorch.json", {"benchmark": {}, "metric": {}})
    assert len(read_results(tmp_path)) == 1


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        ({"std_tpot_ms": "x"}, "r.json: std_tpot_ms is 'x', and must be a number"),
        (
            {"spec_decode_num_drafts": float("nan")},
            "r.json: spec_decode_num_drafts is nan, and must be a finite number",
        ),
        ({"spec_decode_draft_tokens": []}, "r.json: spec_decode_draft_tokens is [], and must be a number"),
        ({"completed": {"n": 1}}, "r.json: completed is {'n': 1}, and must be a number"),
        ({"failed": "two"}, "r.json: failed is 'two', and must be a number"),
        ({"max_concurrency": [8]}, "r.json: concurrency is [8], and must be a number"),
        (
            {"spec_decode_per_position_acceptance_rates": 0.6},
            "r.json: spec_decode_per_position_acceptance_rates must be a list, not 0.6",
        ),
    ],
)
def test_a_figure_of_vllm_that_is_none_is_a_sentence(tmp_path: Path, own: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        read_results(save(tmp_path / "r.json", vllm_run(7.0, **(DRAFTED | own))))
    assert str(caught.value) == sentence


def test_a_spread_without_requests_is_no_error_of_the_median(tmp_path: Path) -> None:
    (row,) = read_results(save(tmp_path / "r.json", vllm_run(7.0, **(DRAFTED | {"completed": -1}))))
    assert row.tpot_se_ms is None


# Python converts no integer of more than 4,300 digits.
@pytest.mark.parametrize("value", ["9" * 5000, "[" * 100_000], ids=["digits", "nested"])
def test_json_that_python_does_not_take_is_a_sentence_with_its_line(tmp_path: Path, value: str) -> None:
    path = save(tmp_path / "r.json", vllm_run(12.0))
    path.write_text(path.read_text() + '\n{"completed": ' + value)
    with pytest.raises(UserError) as caught:
        read_results(path)
    assert str(caught.value) == (
        f"{path}:2: what begins here has a number of thousands of digits, or lists nested hundreds deep: give the file "
        "as its tool wrote it"
    )


# --- AIPerf ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [PHASES, LOADGEN, {"phases": {"profiling": {"concurrency": 16}}}])
def test_an_export_of_aiperf_of_either_shape(tmp_path: Path, config: dict[str, Any]) -> None:
    path = save(tmp_path / "eagle3-n3" / "profile_export_aiperf.json", aiperf_run(8.0, config))
    (row,) = read_results(path)
    assert (row.label, row.concurrency, row.tpot_ms) == ("eagle3 N=3", 16, 8.0)
    assert row.ttft_p95_ms == pytest.approx(90 * (0.9 + 95 / 500))
    assert row.chunk_gap_p50_ms == 21.0
    assert row.tpot_se_ms == pytest.approx(1.2533 * 0.9 / 8, rel=1e-4)
    assert row.where == "eagle3-n3/profile_export_aiperf.json"


def test_a_folder_of_artifact_folders_is_one_comparison(tmp_path: Path) -> None:
    for name, tpot_ms in (("off", 12.0), ("eagle3-n3", 7.0), ("ngram_n=4", 11.0)):
        save(tmp_path / name / "profile_export_aiperf.json", aiperf_run(tpot_ms, PHASES))
        save(tmp_path / name / "inputs.json", {"data": []})
    advice = advise(read_results(tmp_path))
    assert (advice.verdict, advice.best) == ("on", "eagle3 N=3")
    assert [c.row.label for c in advice.cells[0].costs] == ["eagle3 N=3", "ngram N=4", "off"]
    assert advice.cells[0].gain == pytest.approx(12 / 7)


def test_a_cancelled_run_and_one_nobody_named(tmp_path: Path) -> None:
    save(tmp_path / "eagle3-n3" / "profile_export_aiperf.json", aiperf_run(7.0, PHASES, was_cancelled=True))
    save(tmp_path / "off" / "profile_export_aiperf.json", aiperf_run(12.0, PHASES))
    assert "cancelled" in advise(read_results(tmp_path)).refused[0].reason
    save(tmp_path / "x" / "y" / "z" / "profile_export_aiperf.json", aiperf_run(7.0, PHASES))
    with pytest.raises(UserError, match=r"eagle3-n3/profile_export_aiperf\.json, off\.json"):
        read_results(tmp_path / "x")


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        ({"input_config": "16"}, "input_config must be an object, as its tool writes it, not '16'"),
        ({"input_config": {"phases": 3}}, "phases must be a list, as its tool writes it, not 3"),
        ({"input_config": {"phases": ["run"]}}, "a phase must be an object, as its tool writes it, not 'run'"),
        ({"input_config": {"loadgen": [16]}}, "loadgen must be an object, as its tool writes it, not [16]"),
        ({"request_count": 64}, "request_count must be an object, as its tool writes it, not 64"),
        ({"inter_token_latency": {"unit": "ms", "p50": "x"}}, "inter_token_latency.p50 is 'x', and must be a number"),
        ({"inter_token_latency": {"p50": 8, "count": "x"}}, "inter_token_latency.count is 'x', and must be a number"),
        (
            {"error_request_count": {"avg": float("inf")}},
            "error_request_count.avg is inf, and must be a finite number",
        ),
    ],
)
def test_a_block_of_aiperf_that_is_none_is_a_sentence(tmp_path: Path, own: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        read_results(save(tmp_path / "off" / "profile_export_aiperf.json", aiperf_run(8.0, PHASES) | own))
    assert str(caught.value) == f"off/profile_export_aiperf.json: {sentence}"


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("runs/baseline/profile_export_aiperf.json", {"method": "off"}),
        ("runs/llama-eagle3-n5-c8.json", {"method": "eagle3", "n": 5}),
        ("runs/eagle3_steps5_topk4_nodes16.json", {"method": "eagle3", "steps": 5, "topk": 4, "nodes": 16}),
        ("runs/draft-model-n4/profile_export_aiperf.json", {"method": "draft_model", "n": 4}),
        ("runs/offline-n4.json", {}),  # no word of it is a method
        ("eagle3/runs/a.json", {"method": "eagle3"}),
    ],
)
def test_settings_are_named_by_file_or_folder(path: str, told: dict[str, Any]) -> None:
    assert named_by_path(Path("/work") / path) == told


# --- what will be served --------------------------------------------------------------------------------------------


def rows(**cells: float) -> list[ToldRow]:
    """`c8_off=12`: TPOT in ms by load and setting."""
    found = []
    for name, tpot_ms in cells.items():
        load, setting = name.split("_")
        method, n = ("off", 0) if setting == "off" else ("eagle3", int(setting[1:]))
        found.append(ToldRow(name, method, n, concurrency=int(load[1:]), tpot_ms=tpot_ms))
    return found


def test_a_load_that_was_not_measured_is_no_cell_and_is_said() -> None:
    told = rows(c1_off=10.0, c1_n3=6.0, c8_off=20.0, c8_n3=21.0)
    here = advise(told, loads=[Load(1)])
    assert (here.verdict, [cell.place[0] for cell in here.cells]) == ("on", [1])
    elsewhere = advise(told, loads=[Load(64)])
    assert elsewhere.verdict == "undecided"
    assert "do not carry over to concurrency 64, which will be served" in elsewhere.reasons[0]


def test_shares_of_the_traffic_choose_the_one_setting() -> None:
    # N=3: 2 times as fast alone, 0.5 times at eight: 1 alike. Where alone is 9 of 10, 2^.9 x .5^.1 = 1.74.
    told = rows(c1_off=10.0, c1_n3=5.0, c8_off=20.0, c8_n3=40.0)
    light = advise(told, weights={CellKey(Load(1), 0.0): 9.0, CellKey(Load(8), 0.0): 1.0})
    heavy = advise(told, weights={CellKey(Load(1), 0.0): 1.0, CellKey(Load(8), 0.0): 9.0})
    assert (light.best, heavy.best) == ("eagle3 N=3", "off")
    # Against each cell's own best N=3 gives up 2^.1 - 1 = 7.2 %, and half at eight.
    assert "eagle3 N=3 for all of it gives up 7.2% on average (weighted by the stated shares) and 50.0% at most" in (
        light.reasons
    )


def test_tasks_without_a_share_take_the_workloads() -> None:
    told = [ToldRow("a", "off", tpot_ms=10.0, task=task) for task in ("chat", "code")]
    told += [ToldRow("b", "eagle3", 3, tpot_ms=tpot, task=task) for task, tpot in (("chat", 12.0), ("code", 4.0))]
    assert advise(told).best == "eagle3 N=3"  # (12 + 4) / 2 = 8
    assert advise(told, shares={"chat": 9.0, "code": 1.0}).best == "off"  # .9 x 12 + .1 x 4 = 11.2


def test_the_command_says_which_figures_nobody_measured(tmp_path: Path) -> None:
    save(tmp_path / "r" / "runs.json", vllm_run(12.0), vllm_run(7.0, **DRAFTED))
    workload = tmp_path / "w.yaml"
    workload.write_text("name: w\nmodel: m\nengine: e\ntraffic: {concurrency: [8, 32]}\n")
    argv = ["recommend", "--from", str(tmp_path / "r"), "--workload", str(workload), "--json"]
    run = CliRunner().invoke(app, argv)
    assert run.exit_code == 0, run.output
    told = json.loads(run.stdout)
    assert {"verdict", "best", "ties", "reasons", "refused", "predicted"} <= set(told)
    assert {(one["setting"], one["basis"]) for one in told["predicted"]} == {
        ("eagle3 N=1", "between N"), ("eagle3 N=2", "between N"),
    }  # fmt: skip
    assert any("concurrency 32, which will be served" in reason for reason in told["reasons"])
    shown = CliRunner().invoke(app, argv[:-1]).stdout
    assert "eagle3 N=2: " in shown
    assert "(predicted, between N)" in shown
