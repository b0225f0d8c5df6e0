"""How often a losslessness test may cry wolf, how that is spent over its looks, and what it would have caught."""

from __future__ import annotations

import math
from collections.abc import Sequence

#: Chance that one run of the checks accuses a sound engine, over all its settings, temperatures, prompts and looks.
ALPHA = 0.01
#: Of it, the share of a first glance that only finds what is obvious; the rest is the whole test's.
GLANCE_SHARE = 0.1
#: The shift that reports state the power for, and the power they state a shift for.
SHIFT, POWER = 0.05, 0.9
#: A test that would not even have caught this shift with probability POWER has tested nothing.
LARGEST_UNSEEN = 0.5


def spent(fraction: float, alpha: float = ALPHA) -> float:
    """Error spent once `fraction` of the samples is in: Lan and DeMets' (1983) function of O'Brien-Fleming's shape.

    2 - 2 Phi(z(1 - alpha/2) / sqrt(fraction)): next to nothing early, so that the last look keeps nearly all of it.
    """
    from scipy.special import ndtr, ndtri

    if fraction <= 0:
        return 0.0
    return float(2 * ndtr(-ndtri(1 - alpha / 2) / math.sqrt(min(1.0, fraction))))


def levels(fractions: Sequence[float], alpha: float = ALPHA) -> tuple[float, ...]:
    """The level of every look: what is newly spent at it. They add up to `alpha`, so the union bound holds."""
    totals = [spent(fraction, alpha) for fraction in fractions]
    return tuple(b - a for a, b in zip([0.0, *totals[:-1]], totals, strict=True))


def noncentrality(shift: float, first: int, second: int) -> float:
    """The least noncentrality of a two-sample chi-square test under a total-variation shift.

    It is n1 n2 / (n1 + n2) * sum (p - q)^2 / m with sum |p - q| = 2 shift; by Cauchy-Schwarz the sum is at least
    4 shift^2, for any bins. So the power below holds for every shift of that size that the bins can see.
    """
    return 4 * shift**2 * first * second / (first + second) if first and second else 0.0


def power(shift: float, first: int, second: int, df: int, level: float) -> float:
    """Chance of rejecting at `level` when every prompt's law is shifted by `shift`: `first`, `second` samples in all,
    with `df` degrees of freedom over all prompts."""
    if df < 1 or not first or not second:
        return 0.0
    from scipy.special import chdtri, chndtr

    return float(1 - chndtr(chdtri(df, level), df, noncentrality(shift, first, second)))


def caught(first: int, second: int, df: int, level: float, wanted: float = POWER) -> float | None:
    """The smallest total-variation shift that is caught with probability `wanted`; None where none up to 1 is."""
    if power(1.0, first, second, df, level) < wanted:
        return None
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle, first, second, df, level) >= wanted else (middle, high)
    return high
