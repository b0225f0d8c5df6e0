"""Told rows: what the verdict and its sentence say of one setting for all cells, the unit, and rows that cannot be."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tuner.decide.told import ToldRow, believe
from tuner.decide.told_advice import advise
from tuner.errors import UserError
from tuner.measure.records import Load
from tuner.report.told_text import told_text
from tuner.run.imported import read_results


def row(method: str, n: int = 0, **told: object) -> ToldRow:
    return ToldRow(where=f"{method} {n}", method=method, n=n, **told)  # type: ignore[arg-type]


def cell(at: dict[str, object], **tpot_ms: float) -> list[ToldRow]:
    return [row(method, 0 if method == "off" else 3, tpot_ms=tpot, **at) for method, tpot in tpot_ms.items()]


def at(concurrency: int, **tpot_ms: float) -> list[ToldRow]:
    return cell({"concurrency": concurrency}, **tpot_ms)


# --- the verdict and the one setting ----------------------------------------------------------------------------------


def test_cells_that_speculate_each_with_its_own_are_mixed_where_off_is_the_one_setting() -> None:
    # Means over the cells: off sqrt(10 x 20) = 14.1, eagle3 sqrt(8 x 40) = 17.9, ngram sqrt(11 x 18) = 14.1 (198 < 200,
    # within one percent of off, and off is the cheaper).
    advice = advise([*at(1, off=10, eagle3=8, ngram=11), *at(8, off=20, eagle3=40, ngram=18)])
    assert [one.best.row.label for one in advice.cells if one.best] == ["eagle3 N=3", "ngram N=3"]
    assert (advice.verdict, advice.best) == ("mixed", "off")
    assert told_text(advice).splitlines()[0] == "It depends on the load; one setting for all of it: off."


def test_a_setting_that_loses_to_off_somewhere_is_not_turned_on_for_all() -> None:
    # eagle3: sqrt(5 x 21) = 10.2 against 14.1 of off, and slower than off at eight.
    advice = advise([*at(1, off=10, eagle3=5, ngram=8), *at(8, off=20, eagle3=21, ngram=18)])
    assert (advice.verdict, advice.best) == ("mixed", "eagle3 N=3")
    advice = advise([*at(1, off=10, eagle3=5, ngram=8), *at(8, off=20, eagle3=19, ngram=18)])
    assert (advice.verdict, advice.best) == ("on", "eagle3 N=3")
    assert told_text(advice).startswith("Turn it on: eagle3 N=3.")


def test_where_no_setting_meets_the_slo_in_all_cells_none_is_turned_on() -> None:
    told = [
        row("off", concurrency=1, tpot_ms=10.0, ttft_p95_ms=90.0),
        row("off", concurrency=8, tpot_ms=20.0, ttft_p95_ms=90.0),
        row("eagle3", 3, concurrency=1, tpot_ms=8.0, ttft_p95_ms=40.0),
        row("eagle3", 3, concurrency=8, tpot_ms=12.0, ttft_p95_ms=90.0),
        row("ngram", 3, concurrency=1, tpot_ms=9.0, ttft_p95_ms=90.0),
        row("ngram", 3, concurrency=8, tpot_ms=18.0, ttft_p95_ms=40.0),
    ]  # fmt: skip
    advice = advise(told, slo_ms={"ttft_p95_ms": 50})
    assert (advice.verdict, advice.best, advice.single) == ("mixed", None, ())
    shown = told_text(advice)
    assert shown.splitlines()[0] == "It depends on the load; there is no one setting for all of it."
    assert "- one setting for all cells: none has a figure in every cell and meets the SLO in each" in shown
    assert "none." not in shown


def test_a_setting_that_misses_the_slo_is_not_said_to_lose_least() -> None:
    told = [
        row("off", concurrency=1, tpot_ms=10.0, ttft_p95_ms=40.0),
        row("off", concurrency=8, tpot_ms=20.0, ttft_p95_ms=40.0),
        row("eagle3", 3, concurrency=1, tpot_ms=5.0, ttft_p95_ms=40.0),
        row("eagle3", 3, concurrency=8, tpot_ms=15.0, ttft_p95_ms=90.0),
    ]  # fmt: skip
    advice = advise(told, slo_ms={"ttft_p95_ms": 50})
    assert (advice.verdict, advice.best, advice.single) == ("mixed", "off", (("off", 0.5),))  # 1 - 5 / 10


def test_what_every_cell_has_for_its_best_is_the_one_setting() -> None:
    # Not told apart from off in either cell (5 percent at an error of 5), so off wins both, and is the one for both.
    told = [
        row("off", concurrency=c, tpot_ms=10.5, tpot_se_ms=0.5) for c in (1, 8)
    ] + [row("eagle3", 3, concurrency=c, tpot_ms=10.0, tpot_se_ms=0.5) for c in (1, 8)]  # fmt: skip
    advice = advise(told)
    assert (advice.verdict, advice.best, advice.ties) == ("off", "off", ("eagle3 N=3",))


def test_what_it_depends_on_is_what_differs_between_the_cells() -> None:
    told = [*cell({"temperature": 0.0}, off=10, eagle3=5), *cell({"temperature": 1.0}, off=10, eagle3=12)]
    assert told_text(advise(told)).startswith("It depends on the temperature; one setting for all of it: eagle3 N=3.")
    told = [
        *cell({"temperature": 0.0, "concurrency": 1}, off=10, eagle3=5),
        *cell({"temperature": 1.0, "concurrency": 8}, off=10, eagle3=12),
    ]
    assert told_text(advise(told)).startswith("It depends on the load and the temperature; ")


def test_undecided_names_a_best_only_where_there_is_one() -> None:
    some = advise(at(1, eagle3=5, ngram=8))
    assert told_text(some).splitlines()[0].endswith("cannot be said from these rows. Best of them: eagle3 N=3.")
    none = advise([*at(1, eagle3=5), *at(8, ngram=8)])
    assert told_text(none).splitlines()[0] == "Whether to speculate cannot be said from these rows."


# --- the unit ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objective", "figures", "reason"),
    [
        ("tpot_p50", ("tpot_ms",), None),
        ("tpot_p50", ("throughput_tok_s",), "ranked by throughput: TPOT is not in the rows"),
        ("throughput", ("throughput_tok_s", "tpot_ms"), "ranked by throughput"),
        ("throughput", ("tpot_ms",), "ranked by TPOT: throughput is not in the rows"),
        ("goodput", ("throughput_tok_s", "tpot_ms"), "ranked by TPOT: goodput is not in the rows"),
        ("goodput", ("throughput_tok_s",), "ranked by throughput: goodput is not in the rows"),
    ],
)
def test_a_ranking_by_another_figure_than_the_objective_says_so(
    objective: str, figures: tuple[str, ...], reason: str | None
) -> None:
    told = [row("off", **dict.fromkeys(figures, 10.0)), row("eagle3", 3, **dict.fromkeys(figures, 8.0))]
    said = [reason for reason in advise(told, objective=objective).reasons if "ranked" in reason]
    assert said == ([reason] if reason else [])


def test_an_objective_that_off_lacks_is_said_to_be_missing_there() -> None:
    told = [row("off", tpot_ms=10.0), row("eagle3", 3, tpot_ms=8.0, throughput_tok_s=90.0)]
    assert "ranked by TPOT: throughput is not told beside every row of off" in (
        advise(told, objective="throughput").reasons
    )


# --- rows that cannot be ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"share": 0.0}, "share 0 is impossible: it must be more than 0"),
        ({"share": -1.0}, "share -1 is impossible: it must be more than 0"),
        ({"concurrency": 0}, "concurrency 0 is impossible: it must be more than 0"),
        ({"concurrency": 2.5}, "concurrency 2.5 is not a whole number"),
        ({"rate": 0.0}, "rate 0 is impossible: it must be more than 0"),
        ({"tp": 0}, "tp 0 is impossible: it must be more than 0"),
        ({"temperature": -0.1}, "temperature -0.1 is impossible: it must be 0 or more"),
        ({"tpot_ms": math.nan}, "tpot_ms nan is no finite number"),
        ({"throughput_tok_s": math.inf}, "throughput_tok_s inf is no finite number"),
        ({"ttft_p95_ms": 0.0}, "ttft_p95_ms 0 is impossible: it must be more than 0"),
        ({"chunk_gap_p50_ms": -3.0}, "chunk_gap_p50_ms -3 is impossible: it must be more than 0"),
        ({"tpot_se_ms": -1.0}, "tpot_se_ms -1 is impossible: it must be 0 or more"),
        ({"tau": math.inf}, "tau inf is no finite number"),
        ({"a": (0.5, math.nan, 0.1)}, "a_k must be finite numbers"),
        ({"failed": math.nan}, "failed nan is no finite number"),
    ],
)
def test_a_row_whose_figure_is_none_is_refused_by_name(told: dict[str, object], reason: str) -> None:
    kept, refused = believe([row("off", tpot_ms=10.0), row("eagle3", 3, **({"tpot_ms": 8.0} | told))])
    assert [one.label for one in kept] == ["off"]
    assert [(one.what, one.reason) for one in refused] == [("eagle3 3: eagle3 N=3", reason)]


def test_a_cell_without_any_share_of_the_traffic_is_no_cell() -> None:
    told = [row("off", tpot_ms=10.0, share=0.0), row("eagle3", 3, tpot_ms=8.0, share=0.0)]
    advice = advise(told)
    assert (advice.verdict, advice.cells, len(advice.refused)) == ("undecided", (), 2)
    # A task that nobody sends decides nothing: code alone is ranked.
    mixed = [row(m, n, tpot_ms=t, share=1.0, task="code") for m, n, t in (("off", 0, 10.0), ("eagle3", 3, 8.0))]
    assert advise([*told, *mixed]).best == "eagle3 N=3"


def test_a_served_load_that_was_not_measured_is_said_beside_a_concurrency_of_0() -> None:
    told = [*at(0, off=10, eagle3=8), *at(1, off=10, eagle3=8)]
    advice = advise(told, loads=[Load(64)])
    assert [refused.what for refused in advice.refused] == ["off 0: off", "eagle3 3: eagle3 N=3"]
    assert "measured at concurrency 1: step times do not carry over to concurrency 64" in advice.reasons[0]


@pytest.mark.parametrize("name", ["n", "concurrency", "tp", "steps", "topk", "nodes"])
def test_what_is_counted_is_not_cut_to_a_whole_number(tmp_path: Path, name: str) -> None:
    path = tmp_path / "r.csv"
    path.write_text(f"method,{name},tpot_ms\noff,,10\neagle3,3.9,8\n")
    with pytest.raises(UserError) as caught:
        read_results(path)
    assert str(caught.value) == f"r.csv:3: {name} is 3.9, and must be a whole number"


def test_a_tree_without_nodes_or_steps_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text("method,steps,topk,nodes,tpot_ms\noff,,,,10\neagle3,0,4,8,8\neagle3,3,4,1,8\neagle3,3,4,8,8\n")
    kept, refused = believe(read_results(path))
    assert [one.label for one in kept] == ["off", "eagle3 tree d=3 k=4 m=8"]
    assert {one.reason for one in refused} == {"a tree needs steps of at least 1 and nodes of at least 2"}


# --- one head, one path (M17) -----------------------------------------------------------------------------------------


def test_m17_two_files_with_different_drafts_of_one_method_print_no_ratio(tmp_path: Path) -> None:
    for name, tpot_ms in (("head-a", 4.54), ("head-b", 6.57)):
        (tmp_path / f"{name}.csv").write_text(f"method,draft,n,tpot_ms\neagle3,{name},2,{tpot_ms}\n")
    shown = told_text(advise(read_results(tmp_path)))
    assert "%" not in shown.split("the one cell there is:")[1]
    assert "eagle3 (head-b) N=2: no ratio, since eagle3 was measured with different drafts and off was not" in shown
    same = told_text(advise([row("eagle3", 2, draft="a", tpot_ms=5.0), row("eagle3", 4, draft="a", tpot_ms=4.0)]))
    assert "eagle3 (a) N=2: 80.0% of the best" in same


@pytest.mark.parametrize(
    "run",
    [
        {"model_id": "m", "avg_latency": 1.2, "latencies": [1.2], "percentiles": {"50": 1.2}},
        {
            "model_id": "m", "elapsed_time": 10.0, "num_requests": 8, "total_num_tokens": 800,
            "requests_per_second": 0.8, "tokens_per_second": 80.0,
        },
        {
            "backend": "engine", "successful_requests": 8, "total_latency": 9.0, "total_input_tokens": 80,
            "total_output_tokens": 640, "request_throughput": 0.9, "input_throughput": 9.0, "output_throughput": 71.0,
            "total_throughput": 80.0,
        },
    ],
    ids=["vllm bench latency", "vllm bench throughput", "sglang offline throughput"],
)  # fmt: skip
def test_m17_a_result_measured_offline_is_not_mixed_with_served_ones(tmp_path: Path, run: dict[str, object]) -> None:
    (tmp_path / "eagle3-n3.json").write_text(json.dumps(run))
    (tmp_path / "off.csv").write_text("method,tpot_ms\noff,10\n")
    with pytest.raises(UserError) as caught:
        read_results(tmp_path)
    assert str(caught.value).startswith("eagle3-n3.json was measured offline, without a server: ")
