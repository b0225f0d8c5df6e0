"""What two launches of the same thing differ by: off was run twice a night, and drifted. It bounds what is believed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.decide.nights_sample import CellSample, NightSample
from tuner.measure.statistics import Z95, Estimate


@dataclass(frozen=True, slots=True)
class Noise:
    """`launch`: standard deviation of the log of a launch's pace, from `n` drifts of off; None: none was measured.

    `largest`: the largest drift of the two nights themselves, as a share.
    """

    launch: float | None
    n: int
    largest: float | None = None

    def widened(self, ratio: Estimate, launches: float, comparisons: int) -> tuple[float, float]:
        """The interval with `launches` launches' luck in it (fewer where many are averaged), if the worst of so many
        comparisons is looked at.

        One of all comparisons leaves it by chance in 5 of 100 nights (Bonferroni). A quantile of Student's t for the
        launches, whose deviation is estimated from few drifts; of the normal for the requests.
        """
        from scipy.special import ndtri, stdtrit

        tail = 0.025 / max(1, comparisons)
        value = math.log(ratio.value)
        z = float(-ndtri(tail)) / Z95
        own = (math.log(ratio.low) - value) * z, (math.log(ratio.high) - value) * z
        luck = 0.0
        if launches and self.launch is not None:
            luck = float(-stdtrit(self.n, tail)) * math.sqrt(launches) * self.launch
        return math.exp(value - math.hypot(own[0], luck)), math.exp(value + math.hypot(own[1], luck))


def noise_of(nights: Sequence[NightSample], earlier: Sequence[float] = (), seed: int = 0) -> Noise:
    """From the drifts of these nights and of earlier ones. A drift is of two launches: its variance is twice one's."""
    own = [drift for night in nights for drift in drifts_of(night)]
    drifts = [*own, *earlier]
    if not drifts:
        return Noise(None, 0)
    launch = math.sqrt(float(np.mean(np.square(drifts))) / 2)
    return Noise(launch, len(drifts), math.exp(max(map(abs, own))) - 1 if own else None)


def drifts_of(night: NightSample) -> list[float]:
    """Logs of off again over off, one a study and load."""
    return [drift for again in night.agains if (drift := _drift(again, night)) is not None]


def _drift(again: CellSample, night: NightSample) -> float | None:
    first = night.off_of(again)
    if first is None or first.blocked or again.blocked:
        return None
    there = {one: i for i, one in enumerate(again.ids)}
    pairs = np.array(list(_tpots(first, again, there)))
    if len(pairs) < 2:
        return None
    middle = np.median(pairs, axis=0)
    return math.log(middle[1] / middle[0])


def _tpots(first: CellSample, again: CellSample, there: dict[tuple[int, str], int]) -> Iterator[tuple[float, float]]:
    for i, one in enumerate(first.ids):
        if one in there:
            pair = (float(first.tpot_s[i]), float(again.tpot_s[there[one]]))
            if all(map(math.isfinite, pair)):
                yield pair
