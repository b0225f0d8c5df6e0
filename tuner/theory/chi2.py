"""Pearson's chi-square tests with bins merged by expected count, and the power they have against a known law."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tuner.errors import UserError
from tuner.theory.markov import IntArray
from tuner.theory.rule import FloatArray
from tuner.theory.search import first_false

# Cochran's rule: below about 5 expected a bin, the statistic no longer follows its chi-square distribution.
LEAST_EXPECTED = 5.0
SIGNIFICANCE = 0.05


@dataclass(frozen=True, slots=True)
class Chi2Test:
    """`chi2` against `critical_95`; the p-value is the chance of a larger statistic when the null holds."""

    chi2: float
    df: int
    critical_95: float
    p_value: float

    @property
    def rejected(self) -> bool:
        return self.chi2 > self.critical_95


def merge_bins(expected: FloatArray, least: float = LEAST_EXPECTED) -> IntArray:
    """A bin number for each cell: large cells keep their own, the small ones share bins of at least `least`.

    Only the expected counts decide, never the observed ones, so merging cannot bend the test.
    """
    order = np.argsort(expected, kind="stable")
    bins = np.empty(len(expected), dtype=np.int64)
    number, held = 0, 0.0
    for cell in order:
        bins[cell] = number
        held += float(expected[cell])
        if held >= least:
            number, held = number + 1, 0.0
    if held > 0.0 and number > 0:
        bins[bins == number] = number - 1
    return bins


def goodness_of_fit(observed: IntArray, law: FloatArray) -> Chi2Test:
    """Counts against an exact law. A count where the law is 0 rejects outright: no merging hides the impossible."""
    expected = law * observed.sum()
    if bool(np.any(observed[law == 0.0] > 0)):
        return _result(np.inf, max(int((law > 0.0).sum()) - 1, 1))
    bins = merge_bins(expected)
    seen, due = np.bincount(bins, weights=observed), np.bincount(bins, weights=expected)
    if len(due) < 2:
        raise UserError("too few samples for a chi-square test: all cells merge into one bin; raise the steps.")
    return _result(float(((seen - due) ** 2 / due).sum()), len(due) - 1)


def two_sample(first: IntArray, second: IntArray) -> Chi2Test:
    """Are two sets of counts draws from one law? Expected counts come from both together."""
    pooled = (first + second) / (first.sum() + second.sum())
    smaller = min(int(first.sum()), int(second.sum()))
    bins = merge_bins(pooled * smaller)
    share = np.bincount(bins, weights=pooled)
    if len(share) < 2:
        raise UserError("too few samples for a chi-square test: all cells merge into one bin; raise the steps.")
    statistic = 0.0
    for counts in (first, second):
        due = share * counts.sum()
        statistic += float(((np.bincount(bins, weights=counts) - due) ** 2 / due).sum())
    return _result(statistic, len(share) - 1)


def power(truth: FloatArray, law: FloatArray, samples: int) -> float:
    """Chance that `goodness_of_fit` rejects `law` when the samples follow `truth`: noncentral chi-square tail."""
    from scipy.special import chdtri, chndtr

    bins = merge_bins(law * samples)
    due, real = np.bincount(bins, weights=law), np.bincount(bins, weights=truth)
    df = len(due) - 1
    if df < 1:
        return 0.0
    distance = samples * float(((real - due) ** 2 / due).sum())
    return float(1.0 - chndtr(chdtri(df, SIGNIFICANCE), df, distance))


def samples_needed(truth: FloatArray, law: FloatArray, wanted: float = 0.95) -> int | None:
    """How many samples give that power; None where `truth` is the law and no number would."""
    if float(np.abs(truth - law).max()) < 1e-12:
        return None
    return first_false(lambda samples: power(truth, law, samples) < wanted)


def _result(statistic: float, df: int) -> Chi2Test:
    # scipy.special holds what is needed; scipy.stats takes four times as long to import.
    from scipy.special import chdtrc, chdtri

    return Chi2Test(statistic, df, float(chdtri(df, SIGNIFICANCE)), float(chdtrc(df, statistic)))
