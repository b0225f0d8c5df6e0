"""Published tables (tests/data/tables, source in each file's first line): what the ranking says of them, recomputed."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tuner.decide.told import ToldRow
from tuner.decide.told_advice import CellAdvice, advise
from tuner.measure.acceptance import AcceptanceCounts
from tuner.measure.counters import counter_delta
from tuner.measure.profile import profile_of

TABLES = Path(__file__).parent / "data" / "tables"


def table(name: str) -> list[dict[str, str]]:
    lines = [line for line in (TABLES / f"{name}.csv").read_text().splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


def row(method: str, n: int = 0, **told: float | int | str | None) -> ToldRow:
    return ToldRow(where=f"{method} {n}", method=method, n=n, **told)  # type: ignore[arg-type]


def best_and_ties(cell: CellAdvice) -> set[int]:
    assert cell.best is not None
    return {cell.best.row.n, *(c.row.n for c in cell.ties)}


def test_every_table_names_its_source() -> None:
    for path in TABLES.glob("*.csv"):
        assert path.read_text().startswith("# source: http")


@pytest.mark.parametrize(("head", "best"), [("e1", 3), ("e3", 4)])
def test_p01_two_measured_n_predict_the_others(head: str, best: int) -> None:
    """vllm-project/vllm#20780: K = 2 and 3 are measured, of the others only the acceptance length is given."""
    published = table("llama31_8b_eagle1_vs_eagle3_ksweep")
    tpots = {int(r["k"]): float(r[f"{head}_tpot_ms"]) for r in published}
    assert min(tpots, key=lambda k: tpots[k]) == best
    told = [row("off", tpot_ms=7.07, concurrency=1)]
    for r in published:
        k = int(r["k"])
        tau, tpot_ms = float(r[f"{head}_al"]), tpots[k] if k in (2, 3) else None
        told.append(row("eagle3", k, tau=tau, tpot_ms=tpot_ms, concurrency=1))
    advice = advise(told)
    (cell,) = advice.cells
    assert cell.best is not None
    chosen = cell.best.row.n
    assert tpots[chosen] <= 1.02 * min(tpots.values())
    predicted = {c.row.n: c.value for c in cell.costs if c.predicted}
    assert set(predicted) == {4, 5, 6, 7}
    assert {c.predicted for c in cell.costs if c.predicted} == {"extrapolated"}  # beyond K = 3, and said so
    errors = [abs(value / tpots[k] - 1) for k, value in predicted.items()]
    assert np.median(errors) < 0.05


def test_p01_inside_the_measured_range_every_k_is_predicted_within_five_percent() -> None:
    published = table("llama31_8b_eagle1_vs_eagle3_ksweep")
    for head in ("e1", "e3"):
        tpots = {int(r["k"]): float(r[f"{head}_tpot_ms"]) for r in published}
        told = [row("off", tpot_ms=7.07)]
        told += [
            row("eagle3", k, tau=float(r[f"{head}_al"]), tpot_ms=tpots[k] if k in (2, 7) else None)
            for r in published
            if (k := int(r["k"]))
        ]
        (cell,) = advise(told).cells
        predicted = {c.row.n: c for c in cell.costs if c.predicted}
        assert {c.predicted for c in predicted.values()} == {"between N"}
        assert all(abs(c.value / tpots[n] - 1) < 0.05 for n, c in predicted.items())
        assert cell.best is not None
        assert tpots[cell.best.row.n] <= 1.02 * min(tpots.values())


def test_p01_speedups_are_recomputed_and_not_copied() -> None:
    published = {int(r["k"]): r for r in table("llama31_8b_eagle1_vs_eagle3_ksweep")}
    ours = {k: 7.07 / float(r["e1_tpot_ms"]) for k, r in published.items()}
    theirs = {k: float(r["published_e1_over_vanilla"]) for k, r in published.items()}
    assert [round(ours[k], 3) for k in (4, 5, 6)] == [1.578, 1.501, 1.431]
    wrong = {k for k in published if abs(ours[k] / theirs[k] - 1) > 0.005}
    assert wrong == {4, 5, 6}


def test_p02_acceptance_from_published_counts() -> None:
    """vllm-project/vllm#24243: 6 tokens are drafted per step, five positions are printed."""
    for steps, drafted, accepted, tau, rate in (
        (43_221, 259_326, 63_669, 2.473, 0.2455),
        (8_914, 53_484, 12_814, 2.438, 0.2396),
        (42_227, 253_362, 61_896, 2.466, 0.2443),
    ):
        counts = AcceptanceCounts(steps, accepted, (), 0, drafted)
        assert counts.tau == pytest.approx(tau, abs=0.0006)
        assert counts.draft_acceptance_rate == pytest.approx(rate, abs=0.00006)
        assert drafted / steps == 6
    from test_counters import dump

    shares = (0.58, 0.34, 0.22, 0.15, 0.11)
    delta = counter_delta(dump(0, 0, 0, [0] * 5), dump(43_221, 259_326, 63_669, [round(43_221 * s) for s in shares]))
    assert delta.counts is not None
    assert delta.counts.n == 6
    assert delta.counts.a is not None
    assert delta.counts.a[5] == pytest.approx(0.07, abs=0.005)  # 1.473 - (.58 + .34 + .22 + .15 + .11)


STEPS = {"1_1_2": 1, "2_1_3": 2, "3_1_4": 3, "4_1_5": 4, "5_1_6": 5, "6_1_7": 6}


def by_batch(name: str) -> list[ToldRow]:
    return [
        row("eagle3", STEPS[r["config"]], throughput_tok_s=float(r[f"bs{b}"]), concurrency=b)
        for r in table(name)
        if r["config"] in STEPS
        for b in (1, 2, 4, 8, 16, 32, 64)
        if r[f"bs{b}"]
    ]


def test_p04_best_depth_by_batch_size_with_its_ties() -> None:
    """sgl-project/sglang#22246, Qwen3-235B."""
    advice = advise(by_batch("sglang_qwen3_235b_steps_by_bs"))
    found = {cell.place[0]: best_and_ties(cell) for cell in advice.cells}
    assert found == {
        1: {4, 5}, 2: {2, 3, 4, 5}, 4: {2, 3, 4, 5}, 8: {2, 4, 5}, 16: {3, 4}, 32: {3, 4}, 64: {2},
    }  # fmt: skip
    assert [cell.best.row.n for cell in advice.cells if cell.best] == [4, 2, 2, 2, 3, 3, 2]  # the smaller N of a tie
    assert advice.verdict == "undecided"  # off is not in the table
    assert any("off was not measured" in reason for reason in advice.reasons)


def test_p04_one_setting_for_mixed_load_is_the_one_that_loses_least_at_worst() -> None:
    advice = advise(by_batch("sglang_qwen3_235b_steps_by_bs"))
    losses = [(label, round(100 * loss, 1)) for label, loss in advice.single[:3]]
    assert losses == [("eagle3 N=3", 3.7), ("eagle3 N=2", 5.6), ("eagle3 N=4", 7.9)]


def test_p04b_a_missing_cell_is_no_candidate_for_mixed_load() -> None:
    """GLM-4.7: step 5 at batch 64 is missing."""
    advice = advise(by_batch("sglang_glm47_steps_by_bs"))
    assert "eagle3 N=5" not in [label for label, _ in advice.single]
    assert {cell.place[0]: cell.best.row.n for cell in advice.cells if cell.best}[64] == 3  # 4106 against 3954


def test_p06_single_stream_ties_and_eight_do_not() -> None:
    """eugr/spark-vllm-docker#343, Gemma 4 MTP: 55.6 against 54.9 tok/s alone, 210 against 303.6 at 8."""
    told = [
        row("mtp", n, throughput_tok_s=rate, throughput_se_tok_s=se, concurrency=b)
        for n, b, rate, se in ((4, 1, 55.6, 0.6), (2, 1, 54.9, 0.6), (4, 8, 210.0, 4.0), (2, 8, 303.6, 6.0))
    ]
    one, eight = advise(told).cells
    assert best_and_ties(one) == {2, 4}
    assert best_and_ties(eight) == {2}
    assert eight.costs[0].value / eight.costs[1].value == pytest.approx(1.45, abs=0.005)


def test_p07_acceptance_length_and_k_from_counts() -> None:
    one = profile_of([AcceptanceCounts(246_348, 205_916, (205_916,), 205_916, 246_348)])
    assert one is not None
    assert one.tau[0].value == pytest.approx(1.836, abs=0.0005)
    eight = AcceptanceCounts(839_040 // 8, 356_839, (), 0, 839_040)
    assert eight.drafting_steps == 104_880
    assert eight.tau == pytest.approx(4.402, abs=0.0005)


def test_p09_strix_halo_the_tie_rule_takes_two() -> None:
    """Best measured is 4 (1.27x); 2 is within one percent of it (30.9 of 31.2 tok/s)."""
    told = [
        row("off" if r["n"] == "0" else "mtp", int(r["n"]), throughput_tok_s=float(r["tok_s"]), concurrency=1)
        for r in table("strix_halo_mtp_n_sweep")
    ]
    advice = advise(told)
    assert (advice.verdict, advice.best, advice.ties) == ("on", "mtp N=2", ("mtp N=4",))
    assert advice.cells[0].gain == pytest.approx(1.256, abs=0.001)  # 30.9 / 24.6


def test_p09_acceptance_length_alone_does_not_give_the_speedup() -> None:
    rows = {(r["model"], r["method"]): r for r in table("angelslim_qwen3_eagle3")}

    def gain(model: str) -> float:
        return float(rows[model, "eagle3"]["mean_tok_s"]) / float(rows[model, "vanilla"]["mean_tok_s"])

    assert gain("Qwen3-32B") == pytest.approx(1.71, abs=0.005)
    assert gain("Qwen3-30B-A3B") == pytest.approx(1.37, abs=0.006)
    assert float(rows["Qwen3-32B", "eagle3"]["mean_al"]) < float(rows["Qwen3-30B-A3B", "eagle3"]["mean_al"])


def test_vllm_eagle1_two_tokens_beat_four() -> None:
    """vllm-project/vllm#16035: 175.49 against 165.65 tok/s, off 128.64; K = 3 is predicted between them."""
    told = [
        row("off" if r["k"] == "0" else "eagle", int(r["k"]), tau=float(r["accept_len"]),
            throughput_tok_s=float(r["tok_s"]))
        for r in table("vllm_eagle1_llama3_k2_k4")
    ]  # fmt: skip
    advice = advise(told)
    assert (advice.verdict, advice.best) == ("on", "eagle N=2")


def test_vllm_eagle1_from_one_run_at_four_the_best_measured_is_chosen() -> None:
    """Off and N = 4 are measured, of N = 2 only the acceptance length is given. L(0) = 7.77 ms, L(4) = 2.08 / 165.65 =
    12.56 ms, so L(2) = 10.17 ms and 10.17 / 1.89 = 5.38 ms a token, against 6.04 at N = 4 (measured: 5.70)."""
    rows = {int(r["k"]): r for r in table("vllm_eagle1_llama3_k2_k4")}
    told = [
        row("off" if k == 0 else "eagle", k, tau=float(r["accept_len"]),
            throughput_tok_s=float(r["tok_s"]) if k != 2 else None)
        for k, r in rows.items()
    ]  # fmt: skip
    advice = advise(told)
    assert advice.best == "eagle N=2"
    assert float(rows[2]["tok_s"]) == max(float(r["tok_s"]) for r in rows.values())
    (predicted,) = [c for c in advice.cells[0].costs if c.predicted]
    assert predicted.value == pytest.approx(1 / 185.9, rel=0.001)
    assert predicted.value * float(rows[2]["tok_s"]) == pytest.approx(1, abs=0.06)


def test_vllm_eagle1_a_deeper_draft_is_not_a_better_one() -> None:
    """vllm-project/vllm#16937: 201.69 tok/s at K = 2, 198 at 4, 169.92 at 7, off 133."""
    told = [
        row("off" if r["k"] == "0" else "eagle", int(r["k"]), throughput_tok_s=float(r["tok_s"]))
        for r in table("vllm_eagle1_k2_4_7")
    ]
    advice = advise(told)
    assert (advice.verdict, advice.best, advice.ties) == ("on", "eagle N=2", ())
    assert advice.cells[0].gain == pytest.approx(1.516, abs=0.001)


def test_two_heads_with_one_acceptance_length_and_different_speed() -> None:
    """gpt-oss-120b: at every batch size the head with the lower or equal tau is much the faster one."""
    told = []
    for r in table("gptoss120b_two_heads_by_batch"):
        b = int(r["batch"])
        told.append(row("off", throughput_tok_s=float(r["off_tok_s"]), concurrency=b))
        for head in ("dflash", "eagle3"):
            tau, rate = float(r[f"{head}_al"]), float(r[f"{head}_tok_s"])
            told.append(row(head, 3, tau=tau, throughput_tok_s=rate, concurrency=b))
    advice = advise(told)
    assert (advice.verdict, advice.best) == ("on", "eagle3 N=3")
    # 285 / 212, 1044 / 795, 2339 / 1620
    assert [round(cell.gain, 3) for cell in advice.cells if cell.gain] == [1.344, 1.313, 1.444]
    assert [c.row.method for cell in advice.cells for c in cell.costs if c.row.tau == 2.47] == ["dflash", "dflash"]


def test_the_gain_of_one_mtp_token_falls_with_the_request_rate() -> None:
    """vllm-project/vllm#12755: 1.63x at one request a second, 1.18x at two."""
    gains = []
    for r in table("deepseek_r1_mtp_qps"):
        advice = advise([row("off", tpot_ms=float(r["off_tpot_ms"])), row("mtp", 1, tpot_ms=float(r["k1_tpot_ms"]))])
        assert (advice.verdict, advice.best) == ("on", "mtp N=1")
        gains.append(advice.cells[0].gain)
    assert gains == pytest.approx([1.632, 1.180], abs=0.0005)


def test_s05_a_draft_nearly_as_big_as_the_active_part_stays_off() -> None:
    """ml-explore/mlx-lm#1132: 17B active, 9B draft; off is faster at every kind of prompt."""
    told = []
    for r in table("mlx_moe_draft_slowdown"):
        if r["prompt_type"] != "average":
            told.append(row("off", task=r["prompt_type"], throughput_tok_s=float(r["spec_off_tok_s"])))
            told.append(row("draft_model", 3, task=r["prompt_type"], throughput_tok_s=float(r["spec_on_tok_s"])))
    advice = advise(told)
    assert (advice.verdict, advice.best) == ("off", "off")


def test_t33_acceptance_does_not_move_with_load_or_gpus() -> None:
    """So tau is reused across them, and times are not (DEFINITIONS, Formulas)."""
    values = [float(value) for r in table("al_invariant_to_tp_and_concurrency") for k, value in r.items() if k != "tp"]
    assert (min(values), max(values)) == (6.29, 6.44)
    assert max(values) / min(values) < 1.025


def test_t32_acceptance_hangs_on_the_task_more_than_on_the_head() -> None:
    rows = {
        r["subset"]: [float(v) for k, v in r.items() if k != "subset"] for r in table("speculators_eagle3_by_subset")
    }
    del rows["Average"]
    heads = range(5)
    assert {min(rows, key=lambda s: rows[s][i]) for i in heads} == {"Summarization"}
    assert {max(rows, key=lambda s: rows[s][i]) for i in heads} == {"Math Reasoning"}
    between_tasks = spread([[rows[s][i] for s in rows] for i in heads])
    between_heads = spread(list(rows.values()))
    assert between_tasks > 3 * between_heads


def spread(groups: Sequence[Sequence[float]]) -> float:
    """Mean over groups of largest over smallest, minus 1."""
    return float(np.mean([max(group) / min(group) - 1 for group in groups]))
