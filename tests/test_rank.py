"""Verdicts: off may win, ties go to the smaller N, drift bounds belief, an SLO rules out."""

from __future__ import annotations

import dataclasses
import math

import pytest
from cells import C1T0, cell, off_trial, request, spec_trial

from tuner.decide.break_even import alpha_for, break_even
from tuner.decide.evidence import gather
from tuner.decide.launch_luck import launch_luck
from tuner.decide.rank import geometric_mean, missed_slos, recommend
from tuner.measure.compare import compare
from tuner.measure.records import CellKey, Load, Trial
from tuner.measure.statistics import Estimate
from tuner.measure.summary import summarise
from tuner.spec.speculation import OFF, SpecConfig

E1, E3, E5 = (SpecConfig("eagle3", n=n, draft="head") for n in (1, 3, 5))
OFF_TPOTS = [0.100, 0.101, 0.099, 0.100, 0.102, 0.098, 0.100, 0.101]
#: Eight requests whose steps accept 1, 2 or 0: tau about 2.
TWO = [[1, 2, 0, 1], [1, 1, 1, 1], [2, 0, 1, 1], [1, 2, 1, 0], [1, 1, 0, 2], [0, 2, 1, 1], [1, 1, 2, 0], [2, 1, 0, 1]]


def test_a_clear_gain_is_advised_with_its_interval() -> None:
    trials = [off_trial(OFF_TPOTS), spec_trial(E3, 0.12, TWO)]
    (verdict,) = recommend(gather(trials, "tpot_p50")).verdicts
    assert verdict.best == E3
    assert verdict.ratio is not None
    assert verdict.ratio.value == pytest.approx(0.1 / (0.12 / 2), rel=0.02)  # 1.67x
    assert 1 < verdict.ratio.low <= verdict.ratio.value <= verdict.ratio.high
    assert verdict.ratio.n == 8


def test_s07_off_wins_when_every_setting_is_slower() -> None:
    trials = [off_trial(OFF_TPOTS), spec_trial(E1, 0.21, TWO), spec_trial(E3, 0.30, TWO, 3)]
    told = recommend(gather(trials, "tpot_p50"))
    assert told.verdicts[0].best.is_off
    assert "every setting is slower than off" in told.verdicts[0].reason
    assert told.overall.best.is_off


def test_m23_noise_is_not_a_win() -> None:
    wide = [0.06, 0.14, 0.08, 0.12, 0.07, 0.13, 0.09, 0.11]
    trials = [off_trial(wide), spec_trial(E3, 0.196, TWO)]
    (verdict,) = recommend(gather(trials, "tpot_p50")).verdicts
    assert verdict.best.is_off
    assert verdict.ties == (E3,)
    assert "no setting is better than off by more than the noise" in verdict.reason


def test_a_lossy_setting_is_not_called_no_better_than_noise() -> None:
    fast = spec_trial(E3, 0.12, TWO)
    lossy = dataclasses.replace(fast, cells=(dataclasses.replace(fast.cells[0], lossy="temperature is ignored"),))
    overall = recommend(gather([off_trial(OFF_TPOTS), lossy], "tpot_p50")).overall
    assert overall.best.is_off
    assert overall.reason == "no setting is lossless in every cell"


def test_an_slo_is_named_only_where_one_is_set() -> None:
    fast = spec_trial(E3, 0.12, TWO)
    lossy = dataclasses.replace(fast, cells=(dataclasses.replace(fast.cells[0], lossy="temperature is ignored"),))
    overall = recommend(gather([off_trial(OFF_TPOTS), lossy], "tpot_p50", {"tpot_p50_ms": 500.0})).overall
    assert overall.reason == "no setting is both lossless and within the SLO, where off is, in every cell"


def test_every_setting_is_slower_only_where_each_of_them_is() -> None:
    """The best, E1, is slower for sure; E3 scatters so much that it may be faster."""
    sure = spec_trial(E1, 0.103 * 2, [[1, 1, 1, 1]] * 8)
    wide = spec_trial(E3, 0.11 * 2, [[2, 2, 2, 2], [0, 0, 1, 0]] * 4, 3)
    (verdict,) = recommend(gather([off_trial([0.100] * 8), sure, wide], "tpot_p50")).verdicts
    assert E3 in verdict.ties
    assert verdict.reason == "no setting is better than off by more than the noise; the best is eagle3 N=1"


def test_a_request_that_failed_counts_against_goodput() -> None:
    """Off: 12 of 20 within 105 ms. The setting completes just these 12, all within it, and loses the other 8."""
    off = cell([request(i, 0.100 if i < 12 else 0.120) for i in range(20)])
    setting = cell([request(i, 0.090, error=None if i < 12 else "cut off") for i in range(20)])
    ratio = compare(off, setting, "goodput", {"tpot_p50_ms": 105})
    assert ratio is not None
    assert (ratio.value, ratio.n) == (1.0, 20)


def test_off_that_never_meets_the_objective_loses_to_a_setting_that_does() -> None:
    off = Trial(1, OFF, "e", (cell([request(i, 0.050) for i in range(32)]),))
    on = Trial(2, E3, "e", (cell([request(i, 0.025, accepted=[1, 1], n=3) for i in range(32)]),))
    told = recommend(gather([off, on], "goodput", {"tpot_p95_ms": 40}))
    (verdict,) = told.verdicts
    assert verdict.best == E3
    assert verdict.ratio is not None
    assert verdict.ratio.value == 64  # 32 of 32 over half a one of 32
    back = recommend(
        gather([Trial(1, OFF, "e", on.cells), Trial(2, E3, "e", off.cells)], "goodput", {"tpot_p95_ms": 40})
    )
    assert back.overall.best.is_off
    assert back.verdicts[0].comparisons[1].ratio == Estimate(1 / 64, 1 / 64, 1 / 64, 32)


def test_a_request_that_failed_brings_no_token_and_takes_its_time() -> None:
    off = cell([request(i, 0.1, ttft_s=0.0) for i in range(16)])  # 11 tokens in 1 s
    half = [request(i, 0.05, ttft_s=0.0, error=None if i % 2 else "timed out") for i in range(16)]  # 0.5 s
    ratio = compare(off, cell(half), "throughput", {})
    assert ratio is not None
    assert ratio.value == pytest.approx((8 * 11 / (16 * 0.5)) / (16 * 11 / 16))  # 11 tokens a second over 11


def test_a_percentile_is_missed_where_more_requests_failed_than_it_leaves_out() -> None:
    lost = [request(i, 0.05, error="timed out" if i < 4 else None) for i in range(40)]
    one = summarise(cell(lost), OFF, {})
    assert missed_slos(one, (("e2e_p95_ms", 6000.0),)) == ("e2e_p95_ms: over 6000, since so many requests failed",)
    assert missed_slos(one, (("e2e_p50_ms", 6000.0),)) == ()


def test_the_mean_over_cells_is_no_surer_than_the_prompts_they_share() -> None:
    one = Estimate(1.06, 1.06 / 1.08, 1.06 * 1.08, 32)
    mean = geometric_mean([one] * 4, 4)
    assert mean is not None
    assert (mean.value, mean.low, mean.high) == pytest.approx((one.value, one.low, one.high))


def test_over_one_cell_the_overall_gain_is_the_cells_own() -> None:
    """Its interval is not even about its value in logarithms: 0.84 / 0.74 = 1.14 and 0.87 / 0.84 = 1.04."""
    one = Estimate(0.84, 0.74, 0.87, 8)
    assert geometric_mean([one], 1) == one
    assert geometric_mean([one], 1, [0.3]) == one
    assert geometric_mean([one], 2) is None
    assert geometric_mean([None], 1) is None
    data = gather([off_trial(OFF_TPOTS), spec_trial(E3, 0.12, TWO)], "tpot_p50")
    told = recommend(data)
    assert told.overall.ratio == told.verdicts[0].ratio == data.ratio(OFF, E3, C1T0)


def test_among_ties_the_smaller_n_wins() -> None:
    steps = [[min(1, a) for a in row] + [1] for row in TWO]
    trials = [off_trial(OFF_TPOTS), spec_trial(E5, 0.100, steps, 2), spec_trial(E1, 0.1001, steps, 3)]
    told = recommend(gather(trials, "tpot_p50"))
    assert told.verdicts[0].best == E1
    assert told.verdicts[0].ties == (E5,)
    assert told.overall.best == E1


def test_a_gain_within_the_drift_of_off_is_not_believed() -> None:
    slower = [t * 1.2 for t in OFF_TPOTS]
    trials = [off_trial(OFF_TPOTS), spec_trial(E3, 0.18, TWO), off_trial(slower, 3, role="baseline-again")]
    (verdict,) = recommend(gather(trials, "tpot_p50")).verdicts  # gain 0.1 / 0.09 = 1.11, drift 1.2
    assert verdict.best.is_off
    assert "drifted" in verdict.reason
    assert verdict.drift is not None
    assert verdict.drift.value == pytest.approx(1 / 1.2, rel=0.01)


def test_the_luck_of_launches_is_a_prior_and_the_drift_of_off() -> None:
    steady = [0.1] * 8
    once = gather([off_trial(steady)], "tpot_p50")
    assert launch_luck(once) == pytest.approx(0.01)
    again = gather([off_trial(steady), off_trial([0.102] * 8, 2, role="baseline-again")], "tpot_p50")
    moved = math.log(1.02) ** 2  # three parts prior, one part what was seen
    assert launch_luck(again) == pytest.approx(math.sqrt((3 * 0.01**2 + moved) / 4))


def test_a_gain_two_launches_may_differ_by_is_not_believed() -> None:
    """All requests alike: their spread is nothing, and 1.1 % is above a tie. Another launch may show none of it."""
    steps = [[1, 1, 1, 1]] * 8
    first, again = off_trial([0.1] * 8), off_trial([0.1] * 8, 3, role="baseline-again")
    trials = [first, spec_trial(E3, 2 * 0.1 / 1.011, steps), again]
    told = recommend(gather(trials, "tpot_p50"))
    (verdict,) = told.verdicts
    assert verdict.best.is_off
    assert "no more than two launches of one setting may differ by" in verdict.reason
    # exp(ln 1.011 - 1.96 * 0.0087) = 0.994
    assert "a standard deviation of 0.9% between launches its interval begins at 0.99x" in verdict.reason
    assert told.overall.best.is_off
    trials[1] = spec_trial(E3, 2 * 0.1 / 1.05, steps)
    assert recommend(gather(trials, "tpot_p50")).verdicts[0].best == E3


def test_s14_the_slo_decides_between_settings() -> None:
    # N = 3 has the better TPOT and one chunk gap of 60 x 7 = 420 ms a request; N = 1 has 90 / 1.5 x 5 = 300 ms.
    trials = [off_trial(OFF_TPOTS), spec_trial(E3, 0.12, TWO), spec_trial(E1, 0.09, [[1, 0, 1, 0]] * 8, 3)]
    told = gather(trials, "tpot_p50", {"chunk_gap_p95_ms": 370})
    gaps_ms = {one.spec: one.cells[C1T0].percentiles_s["chunk_gap_p95"] * 1000 for one in told.tried}
    assert gaps_ms[E3] > 370 > gaps_ms[E1]
    (free,) = recommend(gather(trials, "tpot_p50")).verdicts
    (bound,) = recommend(told).verdicts
    assert free.best in (E1, E3)
    assert bound.best == E1
    missed = next(c for c in bound.comparisons if c.spec == E3)
    assert missed.missed_slos[0].startswith("chunk_gap_p95_ms")


def test_no_feasible_setting_is_said() -> None:
    trials = [off_trial(OFF_TPOTS), spec_trial(E3, 0.12, TWO)]
    (verdict,) = recommend(gather(trials, "tpot_p50", {"tpot_p50_ms": 1})).verdicts
    assert verdict.best.is_off
    assert "no setting meets the SLO" in verdict.reason


def test_where_off_misses_the_slo_a_setting_that_meets_it_is_advised_without_a_gain() -> None:
    # Off's slowest request has 102 ms a token, over 101.5; steps of 148.5 ms with 1.5 tokens make 99 ms, no clear gain.
    late = {"tpot_p99_ms": 101.5}
    trials = [off_trial(OFF_TPOTS), spec_trial(E1, 0.1485, [[1, 0]] * 8)]
    free = recommend(gather(trials, "tpot_p50"))
    assert free.verdicts[0].best.is_off
    told = recommend(gather(trials, "tpot_p50", late))
    (verdict,) = told.verdicts
    assert verdict.best == E1
    assert verdict.reason.startswith("off misses the SLO (tpot_p99_ms: 101.9 over 101.5), and this one meets it")
    assert told.overall.best == E1
    assert "off misses the SLO in some cells" in told.overall.reason
    lossy = dataclasses.replace(trials[1], cells=(dataclasses.replace(trials[1].cells[0], lossy="argmax"),))
    kept = recommend(gather([trials[0], lossy], "tpot_p50", late))
    assert kept.verdicts[0].best.is_off
    assert kept.overall.best.is_off


def test_m09_acceptance_does_not_rank_time_does() -> None:
    # ggml-org/llama.cpp#3919: A accepts all of the little it drafts and is slower; B accepts .45 and is faster.
    a, b = SpecConfig("ngram", n=1), SpecConfig("ngram", n=4)
    trials = [
        off_trial([1 / 12] * 8),
        spec_trial(a, 2 / 11, [[1, 1]] * 8, 2),
        spec_trial(b, 2.8 / 19, [[2, 2, 1, 2, 2]] * 8, 3),
    ]
    (verdict,) = recommend(gather(trials, "tpot_p50")).verdicts
    assert verdict.best == b


def test_overall_weighs_gains_against_losses_of_one_setting() -> None:
    c8 = CellKey(Load(concurrency=8), 0.0)
    trials = [
        Trial(1, off_trial(OFF_TPOTS).spec, "e", (*off_trial(OFF_TPOTS).cells, *off_trial(OFF_TPOTS, key=c8).cells)),
        Trial(2, E3, "e", (*spec_trial(E3, 0.16, TWO).cells, *spec_trial(E3, 0.30, TWO, key=c8).cells)),
    ]
    told = recommend(gather(trials, "tpot_p50"))
    assert [v.on for v in told.verdicts] == [True, False]  # 1.25x at 1, 0.67x at 8
    assert told.overall.best.is_off
    assert told.overall.regret == pytest.approx(1.25**0.5 - 1, rel=0.02)


def test_a_failed_launch_is_no_comparison() -> None:
    failed = Trial(2, E3, "e", (), status="failed: out of memory")
    (verdict,) = recommend(gather([off_trial(OFF_TPOTS), failed], "tpot_p50")).verdicts
    assert verdict.best.is_off
    assert verdict.reason == "nothing but off was measured here"


def test_a_lossy_setting_is_shown_and_never_advised() -> None:
    fast = spec_trial(E3, 0.12, TWO)
    lossy = dataclasses.replace(fast, cells=(dataclasses.replace(fast.cells[0], lossy="temperature is ignored"),))
    told = recommend(gather([off_trial(OFF_TPOTS), lossy], "tpot_p50"))
    (verdict,) = told.verdicts
    assert verdict.best.is_off
    assert verdict.reason == "no lossless setting was measured here: temperature is ignored"
    assert verdict.comparisons[1].ratio is not None  # measured and shown all the same
    assert verdict.ties == ()
    assert told.overall.best.is_off


def test_break_even_tau_and_alpha() -> None:
    evidence = gather([off_trial(OFF_TPOTS), spec_trial(E3, 0.15, TWO)], "tpot_p50")
    off, on = (one.cells[C1T0] for one in evidence.tried)
    needed = break_even(off, on)
    assert needed is not None
    assert needed.tau == pytest.approx(1.5, rel=0.01)  # 0.15 / 0.1
    assert needed.alpha == pytest.approx(alpha_for(needed.tau, 3))


def test_alpha_for_inverts_the_iid_model() -> None:
    assert alpha_for(1.75, 2) == pytest.approx(0.5)  # 1 + .5 + .25
    assert alpha_for(4.0, 3) == pytest.approx(1.0)
    assert alpha_for(1.0, 3) == 0.0
    assert alpha_for(4.1, 3) is None


def test_objective_throughput_ranks_by_tokens_over_time() -> None:
    off = Trial(1, off_trial(OFF_TPOTS).spec, "e", (cell([request(i, 0.1, ttft_s=1.0) for i in range(8)]),))
    slow_start = cell([request(i, 0.05, ttft_s=1.6, accepted=[1, 1, 1, 1, 1], n=3) for i in range(8)])
    evidence = gather([off, Trial(2, E3, "e", (slow_start,))], "throughput")
    (verdict,) = recommend(evidence).verdicts
    # 11 tokens in 1 + 1 = 2 s against 11 tokens in 1.6 + 0.5 = 2.1 s: half the TPOT, and less throughput.
    assert verdict.best.is_off
