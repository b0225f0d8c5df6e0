"""Intervals: a bootstrap over requests, paired by request where two arms ran the same ones. Seeded, no global state."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
RESAMPLES = 2000
#: Differences under this share are ties whatever their interval (DEFINITIONS, Statistics).
TIE_MARGIN = 0.01
#: Standard deviations to either end of a 95 percent interval.
Z95 = 1.959964


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its interval and the number of requests behind it."""

    value: float
    low: float
    high: float
    n: int

    @property
    def sd(self) -> float:
        """Standard error, read back from the interval."""
        return (self.high - self.low) / (2 * Z95)

    @property
    def log_sd(self) -> float:
        """Standard error of the logarithm. The whole interval must be above 0."""
        return math.log(self.high / self.low) / (2 * Z95)

    def as_share(self, trials: float) -> Estimate:
        """The same share of so many trials, see `share_bounds`."""
        return Estimate(self.value, *share_bounds(self.value, self.low, self.high, trials), self.n)

    def scaled(self, factor: float) -> Estimate:
        return Estimate(self.value * factor, self.low * factor, self.high * factor, self.n)

    def inverse(self) -> Estimate:
        """The same ratio the other way round."""
        return Estimate(1 / self.value, 1 / self.high, 1 / self.low, self.n)


def interval(draws: Array, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Expanded percentile interval (Hesterberg 2015, arXiv 1411.5279, 4.3.3): widened for small n as Student's t is."""
    low, high = intervals(draws[None, np.isfinite(draws)], n, confidence)[0]
    return low, high


def intervals(draws: Array, n: int, confidence: float = 0.95) -> list[tuple[float, float]]:
    """`interval` of every row of finite draws [figures, resamples], in one pass."""
    tail = _tail(n, confidence)
    positions = [share * (draws.shape[1] - 1) for share in (tail, 1 - tail)]
    ends = [(int(p), min(int(p) + 1, draws.shape[1] - 1), p - int(p)) for p in positions]
    placed = np.partition(draws, sorted({i for low, high, _ in ends for i in (low, high)}), axis=1)
    # Linear between order statistics, as numpy's default.
    lows, highs = (placed[:, low] + (placed[:, high] - placed[:, low]) * share for low, high, share in ends)
    return list(zip(lows.tolist(), highs.tolist(), strict=True))


@lru_cache(maxsize=256)
def _tail(n: int, confidence: float) -> float:
    from scipy.special import ndtr, stdtrit

    tail = (1 - confidence) / 2
    return float(ndtr(np.sqrt(n / (n - 1)) * stdtrit(n - 1, tail))) if n > 1 else tail


@lru_cache(maxsize=32)
def _picks(n: int, seed: int, resamples: int) -> NDArray[np.int64]:
    picks = np.random.default_rng(seed).integers(0, n, size=(resamples, n))
    picks.setflags(write=False)
    return picks


@lru_cache(maxsize=32)
def _counts(n: int, seed: int, resamples: int) -> NDArray[np.int16]:
    flat = _picks(n, seed, resamples) + np.arange(resamples)[:, None] * n
    counts = np.bincount(flat.ravel(), minlength=resamples * n).reshape(resamples, n).astype(np.int16)
    counts.setflags(write=False)
    return counts


@lru_cache(maxsize=32)
def resampling(n: int, seed: int = 0, resamples: int = RESAMPLES) -> Array:
    """How often each resample takes each of `n` requests, [resamples, n]: the very resamples `bootstrap` draws.

    Sums over a resample are then one matrix product, and two arms with the same requests stay paired.
    """
    counts = _counts(n, seed, resamples).astype(np.float64)
    counts.setflags(write=False)
    return counts


def estimate_of(value: float, draws: Array, n: int) -> Estimate | None:
    """A figure with the interval of its resampled `draws`; None where either is undefined, or n tells no spread."""
    if n < 2 or not np.isfinite(value) or not np.isfinite(draws).any():
        return None
    return _estimate(float(value), interval(draws, n), n)


def estimates_of(values: Array, draws: Array, n: int) -> list[Estimate | None]:
    """`estimate_of` for every column of draws [resamples, figures]."""
    if n >= 2 and np.isfinite(draws).all() and np.isfinite(values).all():
        bounds = intervals(np.ascontiguousarray(draws.T), n)
        return [_estimate(value, pair, n) for value, pair in zip(values.tolist(), bounds, strict=True)]
    return [estimate_of(float(value), draws[:, i], n) for i, value in enumerate(values)]


def _estimate(value: float, bounds: tuple[float, float], n: int) -> Estimate:
    return Estimate(value, min(bounds[0], value), max(bounds[1], value), n)


def bootstrap(
    rows: Sequence[Sequence[float]], statistic: Callable[[Array], Any], seed: int = 0, resamples: int = RESAMPLES
) -> Estimate | None:
    """`statistic` of `rows` (n requests x figures) with a 95 percent interval.

    `statistic` takes an array [..., n, figures] and reduces its last two axes, so that all resamples are one call.
    None for fewer than two requests: one request has no spread to resample.
    """
    data = np.asarray(rows, dtype=np.float64)
    if len(data) < 2:
        return None
    draws = np.asarray(statistic(data[_picks(len(data), seed, resamples)]), dtype=np.float64)
    return estimate_of(float(statistic(data)), draws, len(data))


def bootstrap_sums(
    rows: Sequence[Sequence[float]], figures: Callable[[Array], Array], seed: int = 0, resamples: int = RESAMPLES
) -> list[Estimate | None]:
    """`bootstrap`, many times faster, for figures made of sums over requests: `figures` takes sums [..., columns] and
    gives [..., figures]. One estimate a figure; all None for fewer than two requests.
    """
    data = np.atleast_2d(np.asarray(rows, dtype=np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        if len(data) < 2:
            return [None] * (figures(np.ones(data.shape[1])).shape[-1] if data.shape[1] else 1)
        values, draws = figures(data.sum(axis=0)), figures(resampling(len(data), seed, resamples) @ data)
    return estimates_of(values, draws, len(data))


def bootstrap_median(values: Sequence[float], seed: int = 0) -> Estimate | None:
    """`bootstrap` of the median, many times faster."""
    data = np.asarray(values, dtype=np.float64)
    if len(data) < 2:
        return None
    return estimate_of(float(np.median(data)), _medians(data, _counts(len(data), seed, RESAMPLES)), len(data))


def bootstrap_median_ratio(rows: Sequence[Sequence[float]], seed: int = 0) -> Estimate | None:
    """Median of the first column over the median of the second: medians of resamples are found by counting."""
    data = np.asarray(rows, dtype=np.float64)
    if len(data) < 2:
        return None
    counts = _counts(len(data), seed, RESAMPLES)
    draws = _medians(data[:, 0], counts) / _medians(data[:, 1], counts)
    return estimate_of(float(np.median(data[:, 0]) / np.median(data[:, 1])), draws, len(data))


def _medians(values: Array, counts: NDArray[np.int16]) -> Array:
    """Median of every resample. `counts`: how often it holds each value."""
    order = np.argsort(values)
    ordered, n = values[order], len(values)
    below = np.cumsum(counts[:, order], axis=1, dtype=np.int16)
    high = np.count_nonzero(below < n // 2 + 1, axis=1)
    if n % 2:
        return np.asarray(ordered[high])
    low = np.count_nonzero(below < n // 2, axis=1)
    return np.asarray((ordered[low] + ordered[high]) / 2)


def ratio_of_sums(numerator: int = 0, denominator: int = 1) -> Callable[[Array], Any]:
    """Pooled ratio: the sum of one figure over the sum of another."""

    def statistic(data: Array) -> Any:
        total = data.sum(axis=-2)
        with np.errstate(divide="ignore", invalid="ignore"):
            return total[..., numerator] / total[..., denominator]

    return statistic


def mean_ratio(data: Array) -> Any:
    """Mean of the first figure over the mean of the second, paired."""
    mean = data.mean(axis=-2)
    return mean[..., 0] / mean[..., 1]


def floored_mean_ratio(data: Array) -> Any:
    """`mean_ratio` of shares. None good counts as half a one: a factor at least so large, and no infinity."""
    mean = np.maximum(data.mean(axis=-2), 0.5 / data.shape[-2])
    return mean[..., 0] / mean[..., 1]


def median(data: Array) -> Any:
    return np.median(data[..., 0], axis=-1)


def mean(data: Array) -> Any:
    return data[..., 0].mean(axis=-1)


def wilson(share: float, trials: float) -> tuple[float, float]:
    """95 percent interval of a share seen in so many independent trials (Wilson 1927)."""
    z2 = Z95**2
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z95 * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2)) / (1 + z2 / trials)
    return max(0.0, middle - half), min(1.0, middle + half)


def share_bounds(share: float, low: float, high: float, trials: float) -> tuple[float, float]:
    """The bounds a bootstrap gave a share. It cannot leave a share that every resample repeats, as 0 and 1 are: there
    they are no narrower than Wilson's over the trials."""
    if trials <= 0 or (low < high and 0 < share < 1):
        return low, high
    least, most = wilson(share, trials)
    return min(low, least), max(high, most)


def widened(ratio: Estimate, comparisons: int, luck: float = 0.0) -> Estimate:
    """The interval for the best of so many comparisons: if nothing helped, one of all would be above 1 in 2.5 studies
    of 100 (Bonferroni, one-sided), as often as a single one is. `luck`: standard deviation of the ratio's log that its
    interval does not hold."""
    from scipy.special import ndtri

    if ratio.low <= 0:
        return ratio
    z = float(-ndtri(0.025 / max(1, comparisons)))
    value = math.log(ratio.value)
    low, high = (z * math.hypot((math.log(end) - value) / Z95, luck) for end in (ratio.low, ratio.high))
    return Estimate(ratio.value, math.exp(value - low), math.exp(value + high), ratio.n)


def is_tie(ratio: Estimate) -> bool:
    """Whether a ratio of two arms claims nothing: its interval holds 1, or it is within one percent of 1."""
    return ratio.low <= 1 <= ratio.high or abs(ratio.value - 1) < TIE_MARGIN
