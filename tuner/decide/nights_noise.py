"""What two launches of the same thing differ by: off was run twice a night, and drifted. It bounds what is believed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.decide.nights_metrics import drift_of
from tuner.decide.nights_sample import NightSample
from tuner.measure.statistics import Z95, Estimate

#: Pairs of launches from which on the drifts themselves tell how much a pair's loads drift together; of fewer, the
#: estimate is so poor that intervals made with it miss several times as often as they may.
ENOUGH_PAIRS = 8
TPOT = "tpot_p50"
#: Logs of a factor so large that nothing is claimed within it, and that a float still holds.
BEYOND_ANY = 100.0
#: A speed-up is made of TPOTs. A share that is all or nothing cannot drift, so goodput takes at least TPOT's drift.
DRIFTS_AS = {"speedup": (TPOT,), "goodput": ("goodput", TPOT)}

#: Logs of off again over off, one a load: of two launches, whose luck all of them share.
Drifts = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Noise:
    """`launch`: standard deviation of the log of a launch's figure in one cell; None: off was not measured twice.

    It comes from so many `drifts` of off, in so many `pairs` of launches, and is as good as `degrees` independent
    ones. `common`: the correlation of a pair's drifts; None: not known, and taken as 1. `mean`: the deviation of a
    launch's mean over a pair's `loads`, from as many independent means as there are pairs.
    `largest`: the largest drift of the two nights themselves, as a share.
    """

    launch: float | None
    degrees: float
    drifts: int = 0
    pairs: int = 0
    common: float | None = None
    mean: float | None = None
    loads: int = 1
    largest: float | None = None

    def widened(self, ratio: Estimate, launches: float, comparisons: float, loads: int = 1) -> tuple[float, float]:
        """The interval with `launches` launches' luck in it (fewer where many are averaged), for a mean over `loads`
        loads, if the worst of so many comparisons is looked at.

        One of all comparisons leaves it by chance in 5 of 100 nights (Bonferroni). A quantile of Student's t for the
        launches, whose deviation is estimated from few drifts; of the normal for the requests.
        """
        from scipy.special import ndtri, stdtrit

        tail = 0.025 / max(1, comparisons)
        value = math.log(ratio.value)
        z = float(-ndtri(tail)) / Z95
        own = (math.log(ratio.low) - value) * z, (math.log(ratio.high) - value) * z
        luck = 0.0
        launch, degrees = (
            (self.launch, self.degrees) if self.mean is None or loads < self.loads else (self.mean, self.pairs)
        )
        if launches and launch is not None:
            luck = min(BEYOND_ANY, float(-stdtrit(degrees, tail)) * math.sqrt(launches) * launch)
        return math.exp(value - math.hypot(own[0], luck)), math.exp(value + math.hypot(own[1], luck))


def noise_of(nights: Sequence[NightSample], earlier: Sequence[NightSample] = (), metric: str = TPOT) -> Noise:
    """A metric's noise, from off's drifts in these nights and in earlier ones."""
    return max(
        (_noise(nights, earlier, one) for one in DRIFTS_AS.get(metric, (metric,))), key=lambda noise: noise.launch or 0
    )


def _noise(nights: Sequence[NightSample], earlier: Sequence[NightSample], metric: str) -> Noise:
    own = [drifts for night in nights for drifts in drifts_of(night, metric)]
    pairs = [*own, *(drifts for night in earlier for drifts in drifts_of(night, metric))]
    every = [drift for drifts in pairs for drift in drifts]
    if not every:
        return Noise(None, 0)
    common = _common(pairs)
    largest = math.exp(max(abs(drift) for drifts in own for drift in drifts)) - 1 if own else None
    return Noise(
        _launch_sd(every), _degrees(pairs, common), len(every), len(pairs), common,
        _launch_sd([sum(drifts) / len(drifts) for drifts in pairs]), max(map(len, pairs)), largest,
    )  # fmt: skip


def _launch_sd(drifts: Sequence[float]) -> float:
    """A drift is of two launches: its variance is twice one's."""
    return math.sqrt(float(np.mean(np.square(drifts))) / 2)


def _degrees(pairs: Sequence[Drifts], common: float | None) -> float:
    """Satterthwaite's for the mean square of m drifts a pair that correlate by rho, so that their squares do by rho^2:
    P m / (1 + (m - 1) rho^2) for P pairs; a pair of loads that always drift alike is one drift."""
    rho = 1.0 if common is None else common
    sizes = [len(drifts) for drifts in pairs]
    return float(sum(sizes) ** 2 / sum(m * (1 + (m - 1) * rho**2) for m in sizes))


def _common(pairs: Sequence[Drifts]) -> float | None:
    """Mean product of two drifts of a pair over the mean square; None where too few pairs have several loads."""
    several = [np.array(drifts) for drifts in pairs if len(drifts) > 1]
    if len(several) < ENOUGH_PAIRS:
        return None
    square = float(np.mean(np.concatenate(several) ** 2))
    products = sum(float(drifts.sum() ** 2 - (drifts**2).sum()) for drifts in several)
    mean = products / sum(len(drifts) * (len(drifts) - 1) for drifts in several)
    return min(1.0, max(0.0, mean / square)) if square else None


def drifts_of(night: NightSample, metric: str = TPOT) -> list[Drifts]:
    """How much worse off again was than off, as logs: a tuple a study, of a drift a load."""
    found: dict[str, list[float]] = defaultdict(list)
    for again in night.agains:
        first = night.off_of(again)
        drift = drift_of(metric, first, again) if first is not None else None
        if drift is not None:
            found[again.study].append(drift)
    return [tuple(drifts) for drifts in found.values()]
