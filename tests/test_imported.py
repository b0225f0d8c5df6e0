"""Results measured elsewhere: reading them, refusing what cannot be, and the field cases they decide."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tuner.cli import app
from tuner.decide.told import ToldRow, believe, with_bonus
from tuner.decide.told_advice import advise
from tuner.errors import UserError
from tuner.run.imported import read_results


def row(method: str, n: int = 0, **told: object) -> ToldRow:
    return ToldRow(where=f"{method} {n}", method=method, n=n, **told)  # type: ignore[arg-type]


def written(tmp_path: Path, text: str, name: str = "results.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_csv_any_columns_that_suffice(tmp_path: Path) -> None:
    path = written(tmp_path, "# from somewhere\nmethod,n,steps,topk,nodes,tpot_ms,a_1,a_2\noff,,,,,10,,\n"
                             "eagle3,2,,,,6.5,0.7,0.5\neagle3,,3,1,4,6.4,,\neagle3,,3,4,16,7,,\n")  # fmt: skip
    off, chain, steps, tree = read_results(path)
    assert (off.label, off.tpot_ms, off.where) == ("off", 10.0, "results.csv:3")
    assert (chain.label, chain.a) == ("eagle3 N=2", (0.7, 0.5))
    assert steps.label == "eagle3 N=3"  # topk 1 is a chain, whatever nodes says
    assert tree.label == "eagle3 tree d=3 k=4 m=16"
    assert tree.most_tau == 4  # min(3 + 1, 16)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("method,speed\noff,1\n", "results.csv:1: unknown column 'speed'"),
        ("n,tpot_ms\n1,2\n", "no column method"),
        ("method,tpot_ms\noff,fast\n", "results.csv:2: tpot_ms is 'fast'"),
        ("method,tpot_ms\noff,nan\n", "must be a finite number"),
        ("method,tpot_ms\noff,1,2\n", "3 values under 2 names"),
        ("method,n,a_2\neagle3,2,.5\n", "from a_1 on without a gap"),
        ("method,tpot_ms\n", "a line a setting"),
        ("method,tpot_ms\n,3\n", "the method is missing"),
        ("{", "not JSON"),
        ('{"x": 1}', "neither's figures"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        read_results(written(tmp_path, text))
    assert sentence in str(caught.value)


def test_vllm_bench_serve(tmp_path: Path) -> None:
    base = {"max_concurrency": 4, "completed": 100, "output_throughput": 100.0, "median_ttft_ms": 40.0}
    off = base | {"median_tpot_ms": 10.0, "std_tpot_ms": 2.0, "median_itl_ms": 9.9}
    on = base | {
        "median_tpot_ms": 6.0, "std_tpot_ms": 2.0, "median_itl_ms": 13.0, "method": "eagle3",
        "spec_decode_num_drafts": 100, "spec_decode_draft_tokens": 300, "spec_decode_acceptance_length": 2.2,
        "spec_decode_per_position_acceptance_rates": [0.6, 0.4, 0.2],
    }  # fmt: skip
    plain, drafted = read_results(written(tmp_path, json.dumps([off, on]), "runs.json"))
    assert plain.is_off
    assert plain.tpot_se_ms == pytest.approx(1.2533 * 2 / 10, rel=1e-4)
    assert (drafted.label, drafted.tau, drafted.a) == ("eagle3 N=3", 2.2, (0.6, 0.4, 0.2))
    assert drafted.chunk_gap_p50_ms == 13.0  # vLLM's ITL is the gap between chunks
    advice = advise((plain, drafted))
    assert (advice.verdict, advice.best) == ("on", "eagle3 N=3")
    assert advice.cells[0].gain == pytest.approx(10 / 6)


def test_a_drafting_run_whose_method_nobody_named_is_asked_for(tmp_path: Path) -> None:
    run = {"output_throughput": 1.0, "median_ttft_ms": 1.0, "spec_decode_num_drafts": 5, "spec_decode_draft_tokens": 15}
    with pytest.raises(UserError, match="--metadata method=eagle3"):
        read_results(written(tmp_path, json.dumps(run), "run.json"))


def test_aiperf_and_a_folder_of_files(tmp_path: Path) -> None:
    def run(tpot_ms: float, **named: object) -> str:
        return json.dumps(named | {
            "inter_token_latency": {"unit": "ms", "avg": tpot_ms * 1.1, "p50": tpot_ms, "std": 1.0},
            "time_to_first_token": {"unit": "s", "p50": 0.05, "p95": 0.08},
            "output_token_throughput": {"unit": "tokens/sec", "avg": 127.6},
            "request_count": {"unit": "requests", "avg": 64.0},
            "input_config": {"loadgen": {"concurrency": 1}},
        })  # fmt: skip

    written(tmp_path, run(8.17, method="off"), "a.json")
    written(tmp_path, run(5.0, method="draft_model", n=4), "b.json")
    off, on = read_results(tmp_path)
    assert (off.tpot_ms, off.ttft_p50_ms, off.ttft_p95_ms, off.concurrency) == (8.17, 50.0, 80.0, 1)
    assert off.tpot_se_ms == pytest.approx(1.2533 / 8, rel=1e-4)
    assert on.label == "draft_model N=4"


def test_m04_impossible_acceptance_lengths_are_refused() -> None:
    told = [row("eagle3", 5, tau=6.6, tpot_ms=5.0), row("eagle3", 5, tau=5.6, tpot_ms=5.0)]
    kept, refused = believe(told)
    assert [r.tau for r in kept] == [5.6]
    assert refused[0].reason == "tau 6.6 is outside 1..6"
    (_, without) = believe([row("eagle3", 3, tau=0.9)])
    assert "without the bonus token" in without[0].reason
    assert with_bonus(0.9, bonus_included=False) == pytest.approx(1.9)


def test_m06_growing_rates_are_not_marginal() -> None:
    _, refused = believe([row("eagle3", 3, a=(0.527, 0.557, 0.609))])
    assert "conditional" in refused[0].reason
    _, refused = believe([row("eagle3", 2, a=(0.7, 0.5), tau=1.9)])
    assert "contradict" in refused[0].reason  # 1 + .7 + .5 = 2.2


def test_m23_differences_inside_the_noise_are_ties_and_larger_ones_are_not() -> None:
    """vllm-project/vllm#29845: 6618 +- 150 against 6658 +- 190; 5637 +- 55 against 5890 +- 40 is real."""
    noise = [
        row("off", throughput_tok_s=5000, throughput_se_tok_s=50),
        row("eagle3", 2, throughput_tok_s=6618, throughput_se_tok_s=150),
        row("eagle3", 3, throughput_tok_s=6658, throughput_se_tok_s=190),
    ]
    advice = advise(noise, objective="throughput")
    assert (advice.best, advice.ties) == ("eagle3 N=2", ("eagle3 N=3",))
    real = [
        row("off", throughput_tok_s=5637, throughput_se_tok_s=55),
        row("eagle3", 10, throughput_tok_s=5890, throughput_se_tok_s=40),
    ]
    advice = advise(real, objective="throughput")
    assert (advice.verdict, advice.best, advice.ties) == ("on", "eagle3 N=10", ())
    assert advice.cells[0].gain == pytest.approx(1.045, abs=0.0005)


def test_m16_greedy_figures_do_not_carry_over_to_a_sampled_workload() -> None:
    greedy = [row("off", temperature=0.0, tpot_ms=13.0), row("eagle3", 4, temperature=0.0, tpot_ms=10.0, tau=2.19)]
    sampled = [row("off", temperature=1.0, tpot_ms=9.5), row("eagle3", 4, temperature=1.0, tpot_ms=10.0, tau=1.55)]
    only_greedy = advise(greedy, temperatures=[1.0])
    assert only_greedy.verdict == "undecided"
    assert only_greedy.best is None
    assert "temperature 0 only: that does not carry over to 1" in only_greedy.reasons[0]
    at_one = advise(greedy + sampled, temperatures=[1.0])
    assert (at_one.verdict, at_one.best) == ("off", "off")
    both = advise(greedy + sampled, temperatures=[0.0, 1.0])
    assert both.verdict == "mixed"
    assert dict(both.single)["eagle3 N=4"] == pytest.approx(0.05)  # 1 - 9.5 / 10


def test_s01_a_language_the_drafter_never_saw() -> None:
    """z-lab/dflash#163: +39 % in English code, -40 % in Danish, tok/s 28.7 and 12; 70 % of the traffic is Danish."""
    told = [
        row("off", task="english", share=0.3, tpot_ms=1000 * 1.39 / 28.7),
        row("off", task="danish", share=0.7, tpot_ms=1000 * 0.6 / 12),
        row("dflash", 7, task="english", share=0.3, tpot_ms=1000 / 28.7),
        row("dflash", 7, task="danish", share=0.7, tpot_ms=1000 / 12),
    ]
    advice = advise(told)
    # dflash: .3 x 34.8 + .7 x 83.3 = 68.8 ms; off: .3 x 48.4 + .7 x 50 = 49.5 ms.
    assert (advice.verdict, advice.best) == ("off", "off")
    assert "for english alone dflash N=7; for danish alone off" in advice.reasons[0]


def test_s01_positions_that_are_never_accepted_are_a_reason_for_a_smaller_n() -> None:
    """z-lab/dflash#163: in Danish positions 5 to 7 are at 0.000 (tau 1.4, so the first four add up to 0.4)."""
    told = [
        row("off", task="english", tpot_ms=48.4), row("dflash", 7, task="english", tpot_ms=34.8),
        row("off", task="danish", tpot_ms=50.0),
        row("dflash", 7, task="danish", tpot_ms=83.3, a=(0.2, 0.12, 0.06, 0.02, 0.0, 0.0, 0.0)),
        row("dflash", 5, task="danish", tpot_ms=80.0, a=(0.2, 0.12, 0.06, 0.02, 0.004)),
        row("dflash", 4, task="danish", tpot_ms=70.0, a=(0.2, 0.12, 0.06, 0.02)),
        row("eagle", 2, task="danish", tpot_ms=90.0, a=(0.0, 0.0)),
        row("mtp", 3, task="danish", tpot_ms=90.0, a=(0.1, 0.0)),  # of three positions two are told: nothing is said
    ]  # fmt: skip
    tails = [reason for reason in advise(told).reasons if "never accepted" in reason]
    assert tails == [
        "tokens 5 to 7 of a draft by dflash N=7 are never accepted for danish: try N=4",
        "token 5 of a draft by dflash N=5 is never accepted for danish: try N=4",
        "tokens 1 to 2 of a draft by eagle N=2 are never accepted for danish: leave it off",
    ]


def test_s07_off_is_always_a_candidate() -> None:
    told = [row("off", throughput_tok_s=100)]
    told += [row("draft_model", n, throughput_tok_s=rate) for n, rate in ((1, 96), (3, 84), (5, 70))]
    advice = advise(told)
    assert (advice.verdict, advice.best) == ("off", "off")
    assert "0.96x with draft_model N=1" in advice.reasons[0]


def test_s08_rows_of_one_gpu_do_not_decide_for_four() -> None:
    """sgl-project/sglang#6949: TP1 30 against 21 tok/s, TP4 59 against 61."""
    told = [
        row("off", tp=1, throughput_tok_s=21), row("eagle", 4, tp=1, throughput_tok_s=30),
        row("off", tp=4, throughput_tok_s=61), row("eagle", 4, tp=4, throughput_tok_s=59),
    ]  # fmt: skip
    assert advise(told, tp=4).verdict == "off"
    assert advise(told, tp=1).verdict == "on"
    assert advise(told[:2], tp=4).verdict == "undecided"


def test_s09_s14_the_objective_and_the_slo_decide() -> None:
    """vllm-project/vllm#48892 at concurrency 64: MTP8 has the better TPOT and gaps of 160 ms."""
    told = [
        row("off", tpot_ms=60.0, ttft_p50_ms=350.0, chunk_gap_p50_ms=60.0),
        row("mtp", 1, tpot_ms=37.18, ttft_p50_ms=363.58, chunk_gap_p50_ms=22.40, throughput_tok_s=1646.15),
        row("mtp", 8, tpot_ms=27.48, ttft_p50_ms=426.77, chunk_gap_p50_ms=159.60, throughput_tok_s=2148.42),
    ]
    assert advise(told).best == "mtp N=8"
    bound = advise(told, slo_ms={"chunk_gap_p50_ms": 100})
    assert bound.best == "mtp N=1"
    assert "mtp N=8 misses the SLO (chunk_gap_p50_ms: 159.6 over 100)" in bound.reasons[0]
    first = [row("off", tpot_ms=9.0, ttft_p95_ms=14.55), row("eagle", 2, tpot_ms=7.0, ttft_p95_ms=18.77)]
    assert advise(first, slo_ms={"ttft_p95_ms": 17}).verdict == "off"


def test_c26_p_min_is_part_of_the_setting() -> None:
    """ggml-org/llama.cpp#10664: p_min .2, .4, .6 give 31.44, 35.40, 32.24 tok/s, off 22.18."""
    told = [row("off", throughput_tok_s=22.18)]
    told += [row("draft_model", 16, draft=f"p_min {p}", throughput_tok_s=r) for p, r in
             ((0.2, 31.44), (0.4, 35.40), (0.6, 32.24))]  # fmt: skip
    advice = advise(told)
    assert advice.best == "draft_model (p_min 0.4) N=16"
    assert advice.cells[0].gain == pytest.approx(1.596, abs=0.001)


def test_c26_a_sweep_of_p_min_in_a_file_and_a_drafter_that_never_stops_loses(tmp_path: Path) -> None:
    """The same three, out of a file, beside one that drafts 64 tokens at p_min 0 and is slower than off."""
    path = written(tmp_path, "method,n,draft,throughput_tok_s,tau\noff,,,22.18,\ndraft_model,16,p_min 0.2,31.44,\n"
                             "draft_model,16,p_min 0.4,35.40,\ndraft_model,16,p_min 0.6,32.24,\n"
                             "draft_model,64,p_min 0,12.1,5.364\n", "sweep.csv")  # fmt: skip
    run = CliRunner().invoke(app, ["recommend", "--from", str(path), "--json"])
    assert run.exit_code == 0, run.output
    told = json.loads(run.stdout)
    assert (told["verdict"], told["best"]) == ("on", "draft_model (p_min 0.4) N=16")
    assert told["cells"][0]["speedup"] == pytest.approx(35.40 / 22.18)
    never = written(tmp_path, "method,n,draft,throughput_tok_s\noff,,,22.18\ndraft_model,64,p_min 0,12.1\n")
    assert json.loads(CliRunner().invoke(app, ["recommend", "--from", str(never), "--json"]).stdout)["verdict"] == "off"


def test_missing_n_are_predicted_from_the_longest_run_and_named() -> None:
    # L(0) = 10, L(4) = 10 x .8 x 2.5 = 20 ms: L(2) = 15, tau(2) = 2.1: 7.14 ms; L(1) = 12.5 / 1.7 = 7.35.
    told = [row("off", tpot_ms=10.0), row("eagle3", 4, tpot_ms=8.0, a=(0.7, 0.4, 0.3, 0.1))]
    advice = advise(told)
    values = {c.row.n: (round(c.value, 2), c.predicted) for c in advice.cells[0].costs}
    assert values[1] == (7.35, "between N")
    assert values[2] == (7.14, "between N")
    assert values[4] == (8.0, None)
    assert advice.best == "eagle3 N=2"
    assert any("measure it before you rely on it" in reason for reason in advice.reasons)
    lookup = [row("off", tpot_ms=10.0), row("ngram", 4, tpot_ms=8.0, a=(0.7, 0.4, 0.3, 0.1))]
    assert [c.row.n for c in advise(lookup).cells[0].costs] == [0, 4]  # a lookup's N is not told by another


def test_the_command(tmp_path: Path) -> None:
    path = written(tmp_path, "method,n,tau,tpot_ms\noff,,,7.07\neagle3,3,2.79,4.09\neagle3,5,7.5,4\n")
    run = CliRunner().invoke(app, ["recommend", "--from", str(path), "--json"])
    assert run.exit_code == 0, run.output
    told = json.loads(run.stdout)
    assert (told["verdict"], told["best"], told["ties"]) == ("on", "eagle3 N=3", [])
    assert told["refused"] == [{"row": "results.csv:4: eagle3 N=5", "reason": "tau 7.5 is outside 1..6"}]
    assert told["cells"][0]["speedup"] == pytest.approx(7.07 / 4.09)
    assert "1.73x off" in " ".join(told["reasons"])
    shown = CliRunner().invoke(app, ["recommend", "--from", str(path)])
    assert shown.stdout.startswith("Turn it on: eagle3 N=3.")


def test_runs_of_one_setting_are_one_cost() -> None:
    """DEFINITIONS asks for off first and last; added up, two runs of off would cost 20.2 ms and lose to 12."""
    slower = advise([row("off", tpot_ms=10.0), row("off", tpot_ms=10.2), row("eagle3", 3, tpot_ms=12.0)])
    assert slower.verdict == "off"
    faster = advise([row("off", tpot_ms=10.0), row("eagle3", 3, tpot_ms=6.0), row("eagle3", 3, tpot_ms=6.2)])
    assert faster.verdict == "on"
    assert [cost.value for cost in faster.cells[0].costs if cost.row.n == 3] == [pytest.approx(6.1)]
