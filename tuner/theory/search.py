"""Search over the whole numbers with no upper limit."""

from __future__ import annotations

from collections.abc import Callable


def first_false(holds: Callable[[int], bool]) -> int:
    """The smallest n >= 0 where `holds(n)` is False, for a predicate that once False stays False."""
    if not holds(0):
        return 0
    high = 1
    while holds(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return high
