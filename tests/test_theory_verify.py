"""The statistics: chi-square by hand and against SciPy, merging, power, false alarms, and the five broken loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from theory_support import two_hundred_seeds

from tuner.errors import UserError
from tuner.theory.broken import broken_chains
from tuner.theory.chain import ChainStep, generate, lossless
from tuner.theory.chi2 import (
    Chi2Test,
    goodness_of_fit,
    merge_bins,
    power,
    samples_needed,
    two_sample,
)
from tuner.theory.exact import chain_law, tokens_per_step, written_law
from tuner.theory.markov import joint
from tuner.theory.speedup import tokens_per_call
from tuner.theory.verify import count_texts, toy_pair, verify


def test_goodness_of_fit_by_hand() -> None:
    # expected 40, 35, 25: 100/40 + 25/35 + 25/25 = 4.2142857; df 2, where p = exp(-chi2 / 2)
    test = goodness_of_fit(np.array([50, 30, 20]), np.array([0.4, 0.35, 0.25]))
    assert test.chi2 == pytest.approx(4.2142857)
    assert test.df == 2
    assert test.critical_95 == pytest.approx(5.9914645)  # -2 ln 0.05
    assert test.p_value == pytest.approx(math.exp(-4.2142857 / 2))
    assert not test.rejected


def test_two_sample_by_hand() -> None:
    # pooled shares 1/2, 1/2; expected 50 each: 4 * 10^2 / 50 = 8; df 1
    test = two_sample(np.array([60, 40]), np.array([40, 60]))
    assert test.chi2 == pytest.approx(8.0)
    assert test.df == 1
    assert test.p_value == pytest.approx(0.00467773, rel=1e-5)
    assert test.rejected


def test_statistics_agree_with_scipy() -> None:
    first, second = np.array([310, 290, 250, 150]), np.array([640, 610, 460, 290])
    law = np.array([0.3, 0.3, 0.25, 0.15])
    ours, theirs = goodness_of_fit(first, law), stats.chisquare(first, law * 1000)
    assert (ours.chi2, ours.p_value) == pytest.approx((theirs.statistic, theirs.pvalue))
    ours = two_sample(first, second)
    table = stats.chi2_contingency(np.array([first, second]), correction=False)
    assert (ours.chi2, ours.df, ours.p_value) == pytest.approx((table.statistic, table.dof, table.pvalue))
    # and where cells are merged, power against SciPy's noncentral distribution
    truth = np.array([0.32, 0.28, 0.25, 0.15])
    distance = 500 * (0.02**2 / 0.3 + 0.02**2 / 0.3)
    expected = stats.ncx2.sf(stats.chi2.ppf(0.95, 3), 3, distance)
    assert power(truth, law, 500) == pytest.approx(expected, abs=1e-9)


def test_small_bins_are_merged_from_the_smallest_up() -> None:
    # 1 + 2 + 3 reach 5 together, 9 and 7 stand alone
    assert merge_bins(np.array([9.0, 1.0, 3.0, 7.0, 2.0])).tolist() == [2, 0, 0, 1, 0]


def test_a_last_bin_that_stays_small_joins_its_neighbour() -> None:
    # 4 + 4, 4 + 4, and the last 4 with the second pair
    assert merge_bins(np.full(5, 4.0)).tolist() == [0, 0, 1, 1, 1]
    assert merge_bins(np.array([1.0, 2.0])).tolist() == [0, 0]


@settings(deadline=None)
@given(st.lists(st.floats(0.0, 50.0), min_size=1, max_size=40))
def test_merging_keeps_every_cell_and_fills_every_bin(expected: list[float]) -> None:
    bins = merge_bins(np.array(expected))
    assert set(bins) == set(range(bins.max() + 1))
    if sum(expected) >= 5.0:
        assert np.bincount(bins, weights=expected).min() >= 5.0 - 1e-9


def test_an_impossible_text_rejects_outright() -> None:
    test = goodness_of_fit(np.array([500, 499, 1]), np.array([0.5, 0.5, 0.0]))
    assert test.rejected
    assert test.p_value == 0.0
    assert goodness_of_fit(np.array([500, 500, 0]), np.array([0.5, 0.5, 0.0])) == Chi2Test(
        0.0, 1, pytest.approx(3.8414588), 1.0
    )


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(UserError, match="raise the steps"):
        goodness_of_fit(np.array([2, 1]), np.array([0.5, 0.5]))
    with pytest.raises(UserError, match="raise the steps"):
        two_sample(np.array([2, 1]), np.array([1, 1]))


def test_power_of_no_difference_is_the_false_alarm_rate() -> None:
    law = np.array([0.4, 0.35, 0.25])
    assert power(law, law, 1000) == pytest.approx(0.05)
    assert samples_needed(law, law) is None


def test_samples_needed_is_where_the_power_reaches_95_percent() -> None:
    law, truth = np.array([0.4, 0.35, 0.25]), np.array([0.45, 0.32, 0.23])
    needed = samples_needed(truth, law)
    assert needed is not None
    assert power(truth, law, needed - 1) < 0.95 <= power(truth, law, needed)


def test_the_default_check_passes_and_every_broken_loop_is_rejected() -> None:
    result = verify()
    assert (result.steps, result.n, result.first_k) == (50_000, 3, 4)
    assert result.passed
    assert not result.against_samples.rejected
    # 256 texts of 4 tokens, the rare ones merged: fewer than 255 degrees of freedom, and far more than the marginal's 3
    assert 100 < result.against_q.df < 255
    assert result.first_token.df == 3
    assert [variant.name for variant in result.variants] == [
        "accept with min(1, p/q)",
        "resample from q, not the residual",
        "drop the bonus",
        "greedy accept at T > 0",
        "stale KV after a rollback",
    ]
    assert all(variant.rejected and variant.joint.p_value < 1e-9 for variant in result.variants)
    assert all(variant.power > 0.999999 for variant in result.variants)
    assert result.tokens_per_step == pytest.approx(result.tokens_per_step_exact, abs=0.03)


def test_only_the_joint_law_sees_a_lost_bonus_and_a_stale_cache() -> None:
    target, draft = toy_pair()
    broken = broken_chains(target, draft)
    for name in ("drop the bonus", "stale KV after a rollback"):
        law = written_law(chain_law(broken[name], 3), 4)[0]
        # The first token comes out right, exactly; a test of the marginal has no power beyond its 5 %.
        assert law.reshape(4, -1).sum(axis=1) == pytest.approx(target.rows[0], abs=1e-12)
        assert np.abs(law - joint(target, 4)[0]).max() > 0.01


def test_false_alarms_come_in_about_5_percent_of_seeds() -> None:
    """200 seeds through the same code as the command, against q and against direct samples; 2 to 9 %."""
    results = two_hundred_seeds()
    for alarms in (
        sum(result.against_q.rejected for result in results),
        sum(result.against_samples.rejected for result in results),
    ):
        assert 4 <= alarms <= 18
    assert all(variant.rejected for result in results for variant in result.variants)


def test_power_foretells_how_often_a_broken_loop_is_caught() -> None:
    """The mildest breakage at half the steps that 95 % power takes: exact power against 300 runs."""
    target, draft = toy_pair()
    rules = broken_chains(target, draft)["resample from q, not the residual"]
    law, truth = joint(target, 4)[0], written_law(chain_law(rules, 3), 4)[0]
    steps = 240
    step, start = ChainStep(rules, 3), np.zeros(steps, dtype=np.int64)
    caught = sum(
        goodness_of_fit(count_texts(generate(step, start, 4, np.random.default_rng(seed)), 4), law).rejected
        for seed in range(300)
    )
    foretold = power(truth, law, steps)
    assert 0.3 < foretold < 0.9
    # Two standard deviations of 300 runs are at most 0.058; the asymptotic law takes a little more.
    assert caught / 300 == pytest.approx(foretold, abs=0.09)


def test_seeds_repeat_and_differ() -> None:
    first, again, other = verify(1000, seed=3), verify(1000, seed=3), verify(1000, seed=4)
    assert first == again
    assert first.against_q != other.against_q


def test_the_toy_pair_is_contextual() -> None:
    """Later positions depend on earlier tokens: one alpha for all positions would misstate the tokens per step."""
    target, draft = toy_pair()
    exact = tokens_per_step(chain_law(lossless(target, draft), 3))
    assert exact.max() - exact.min() > 0.3
    assert exact.min() < float(tokens_per_call(0.9, 3)) < exact.max() + 1.0
    assert np.abs(target.rows[0] - target.rows[4]).max() > 0.1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [((0, 1, 3), "steps is 0"), ((100, 1, 0), "n is 0"), ((100, 1, 7), "n is 7"), ((3, 1, 3), "too few samples")],
)
def test_what_cannot_be_tested_is_refused(arguments: tuple[int, int, int], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        verify(*arguments)
