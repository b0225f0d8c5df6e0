"""The cost surface L(b, N) of one arm: lines in N at the measured loads, log b between them, nothing silent beyond."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from tuner.decide.step_line import StepLine, StepPoint, fit_line
from tuner.measure.statistics import Z95, Estimate

#: Between two loads L strays from the straight line in log b by at most this share of their difference, in the middle:
#: a step that grows in proportion to b lies 0.3 of it below, at loads of 1 and 16.
BETWEEN_LOADS = 0.4


@dataclass(frozen=True, slots=True)
class StepTime:
    """L(b, n), seconds. `basis`: measured, between N, between loads, or extrapolated."""

    step_s: Estimate
    basis: str

    @property
    def sd_s(self) -> float:
        return self.step_s.sd


@dataclass(frozen=True, slots=True)
class CostSurface:
    """Decoding steps only: start-up, prefill and queueing are not in it."""

    lines: tuple[tuple[float, StepLine], ...]

    @property
    def loads(self) -> tuple[float, ...]:
        return tuple(b for b, _ in self.lines)

    @property
    def largest_n(self) -> int:
        return min(line.ns[-1] for _, line in self.lines)

    def line(self, b: float) -> StepLine | None:
        return dict(self.lines).get(b)

    def at(self, b: float, n: int, *, extrapolate: bool = False) -> StepTime | None:
        """None beyond the measured loads or N, unless `extrapolate`: then the basis says so and the interval grows."""
        low, high = self._around(b)
        outside = not self.loads[0] <= b <= self.loads[-1] or not all(
            line.ns[0] <= n <= line.ns[-1] for _, line in (low, high)
        )
        if outside and not extrapolate:
            return None
        share = 0.0 if low[0] == high[0] else math.log(b / low[0]) / math.log(high[0] / low[0])
        ends = low[1].step_s(n), high[1].step_s(n)
        value = ends[0] + (ends[1] - ends[0]) * share
        stray = BETWEEN_LOADS * abs(ends[1] - ends[0]) * 4 * abs(share * (1 - share)) / Z95
        sd = math.hypot(low[1].sd_s(n) * (1 - share), high[1].sd_s(n) * share, stray)
        units = min(p.step_s.n for p in (*low[1].points, *high[1].points))
        return StepTime(_positive(value, sd, units), self._basis(b, n, outside, low[1]))

    def sentences(self) -> tuple[str, ...]:
        """What was found about the shape at each load."""
        return tuple(f"at {b:g} running, {_shape_text(line)}" for b, line in self.lines)

    def _around(self, b: float) -> tuple[tuple[float, StepLine], tuple[float, StepLine]]:
        """The measured loads on both sides; beyond the ends the two nearest, or the only one twice."""
        for pair in self.lines:
            if pair[0] == b:
                return pair, pair
        if len(self.lines) == 1:
            return self.lines[0], self.lines[0]
        after = next((i for i, load in enumerate(self.loads) if load > b), len(self.lines) - 1)
        after = max(1, after)
        return self.lines[after - 1], self.lines[after]

    def _basis(self, b: float, n: int, outside: bool, line: StepLine) -> str:
        if outside:
            return "extrapolated"
        if b not in self.loads:
            return "between loads"
        return "measured" if n in line.ns else "between N"


def fit_surface(points: Sequence[StepPoint]) -> CostSurface | None:
    """None without a point. A load where plain decoding was not measured still has its line."""
    ordered = sorted(points, key=lambda p: (p.b, p.n))
    lines = tuple((b, fit_line(list(own))) for b, own in groupby(ordered, key=lambda p: p.b))
    return CostSurface(lines) if lines else None


def _positive(value: float, sd: float, units: int) -> Estimate:
    """An interval that cannot reach zero: normal in the logarithm."""
    spread = math.exp(Z95 * sd / value) if value > 0 else math.inf
    return Estimate(value, value / spread, value * spread, units)


def _shape_text(line: StepLine) -> str:
    measured = ", ".join(str(n) for n in line.ns)
    if line.shape == "linear":
        tested = "" if len(line.points) > 2 else " (assumed: two points cannot reject it)"
        return f"the step time is linear in N through N = {measured}{tested}"
    if line.shape == "start cost":
        extra_s = line.step_s(1) - line.points[0].step_s.value
        return f"drafting adds a start cost and then a constant per token: N = 1 takes {extra_s * 1000:.1f} ms over off"
    return f"the measured N = {measured} reject a line: the step time is interpolated between them"
