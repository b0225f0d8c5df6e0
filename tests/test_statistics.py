"""Intervals: they hold the truth as often as they say, shrink with n, and never claim a spread from one request."""

from __future__ import annotations

import numpy as np
import pytest

from tuner.measure.statistics import (
    Array,
    Estimate,
    bootstrap,
    bootstrap_median_ratio,
    bootstrap_sums,
    is_tie,
    mean,
    median,
    ratio_of_sums,
    share_bounds,
    widened,
    wilson,
)


def median_ratio(data: Array) -> Array:
    """Median of the first figure over the median of the second: a paired speed-up when rows are pairs."""
    middle = np.median(data, axis=-2)
    return np.asarray(middle[..., 0] / middle[..., 1])


def test_interval_of_the_mean_covers_the_truth_about_95_times_in_100() -> None:
    rng = np.random.default_rng(7)
    covered = 0
    for study in range(400):
        sample = rng.gamma(4.0, 2.5, size=12)  # mean 10, skewed as latencies are
        estimate = bootstrap(sample[:, None], mean, seed=study, resamples=600)
        assert estimate is not None
        covered += estimate.low <= 10.0 <= estimate.high
    assert 0.91 <= covered / 400 <= 0.99


def test_interval_is_wider_for_fewer_requests() -> None:
    rng = np.random.default_rng(1)
    widths = []
    for n in (8, 32, 128):
        estimate = bootstrap(rng.normal(10, 1, size=(n, 1)), mean)
        assert estimate is not None
        assert estimate.n == n
        widths.append(estimate.high - estimate.low)
    assert widths[0] > widths[1] > widths[2]


def test_one_request_has_no_interval_and_no_figure() -> None:
    assert bootstrap([[1.0]], mean) is None
    assert bootstrap([], median) is None


def test_pooled_ratio_is_sum_over_sum() -> None:
    estimate = bootstrap([[1.0, 2.0], [9.0, 10.0]], ratio_of_sums())
    assert estimate is not None
    assert estimate.value == pytest.approx(10 / 12)  # not the mean of 0.5 and 0.9


def test_paired_median_ratio() -> None:
    estimate = bootstrap([[2.0, 1.0], [4.0, 2.0], [6.0, 3.0]], median_ratio)
    assert estimate is not None
    assert (estimate.value, estimate.low, estimate.high) == (2.0, 2.0, 2.0)  # every pair is 2


def test_the_same_seed_gives_the_same_interval() -> None:
    rows = [[float(i)] for i in range(20)]
    assert bootstrap(rows, mean, seed=3) == bootstrap(rows, mean, seed=3)
    assert bootstrap(rows, mean, seed=3) != bootstrap(rows, mean, seed=4)


@pytest.mark.parametrize(
    ("low", "value", "high", "tie"),
    [(0.98, 1.05, 1.12, True), (1.01, 1.05, 1.09, False), (1.001, 1.005, 1.008, True), (0.7, 0.8, 0.9, False)],
)
def test_m23_differences_inside_the_noise_or_under_one_percent_are_ties(
    low: float, value: float, high: float, tie: bool
) -> None:
    assert is_tie(Estimate(value, low, high, 20)) is tie


def test_the_fast_median_ratio_is_the_plain_one() -> None:
    for n in (2, 7, 32):
        rows = np.random.default_rng(n).gamma(4.0, 2.5, size=(n, 2)).tolist()
        fast, plain = bootstrap_median_ratio(rows, seed=3), bootstrap(rows, median_ratio, seed=3)
        assert fast is not None
        assert plain is not None
        assert (fast.value, fast.low, fast.high) == pytest.approx((plain.value, plain.low, plain.high))


def test_sums_of_resamples_are_the_plain_ones() -> None:
    rows = np.random.default_rng(2).gamma(4.0, 2.5, size=(9, 2)).tolist()
    fast = bootstrap_sums(rows, lambda total: total[..., :1] / total[..., 1:], seed=5)[0]
    plain = bootstrap(rows, ratio_of_sums(), seed=5)
    assert fast is not None
    assert plain is not None
    assert (fast.value, fast.low, fast.high) == pytest.approx((plain.value, plain.low, plain.high))
    assert bootstrap_sums([[1.0, 2.0]], lambda total: total[..., :1]) == [None]


def test_a_share_that_every_resample_repeats_is_not_certain() -> None:
    # Wilson, 4 of 4: (1 + z2/8 - z2/8) / (1 + z2/4), z2 = 3.8415: 1 / 1.9604 = 0.5101; nothing of 7: z2/7 / (1 + z2/7).
    assert share_bounds(1.0, 1.0, 1.0, 4) == pytest.approx((0.5101, 1.0), abs=1e-4)
    assert share_bounds(0.0, 0.0, 0.0, 7) == pytest.approx((0.0, 0.3543), abs=1e-4)
    assert share_bounds(0.5, 0.5, 0.5, 2) == pytest.approx(wilson(0.5, 2))
    assert share_bounds(0.5, 0.4, 0.6, 2) == (0.4, 0.6)  # requests that differ tell the spread themselves
    assert share_bounds(1.0, 0.2, 1.0, 400) == (0.2, 1.0)  # never narrower than the bootstrap
    assert share_bounds(1.0, 1.0, 1.0, 0) == (1.0, 1.0)


def test_the_best_of_many_comparisons_needs_a_wider_interval() -> None:
    # One-sided 2.5 % over 20 comparisons is 0.125 % each: 3.023 standard deviations where one needs 1.960.
    one = Estimate(1.1, 1.1 / 1.06, 1.1 * 1.06, 30)
    assert widened(one, 1).low == pytest.approx(one.low, rel=1e-4)
    assert widened(one, 20).low == pytest.approx(1.1 / 1.06 ** (3.0233 / 1.95996), rel=1e-4)
    assert is_tie(widened(Estimate(1.03, 1.005, 1.055, 30), 20))
    assert not is_tie(Estimate(1.03, 1.005, 1.055, 30))
