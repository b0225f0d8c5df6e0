"""L(N) at one load: a line through the measured step times, unless they reject it. Monotone, with its uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.measure.statistics import Array, Estimate

#: Standard deviation by which L strays from the line between two measured N, as a share of L(b, 0), one N away from
#: the nearest. Step times published with acceptance (vllm-project/vllm#20780) stray by 0.03 to 0.07.
WANDER = 0.05
#: And by this share of its rise between the two, in the middle: what saturates bends upwards (1.1 and 1.9 plain steps
#: at N = 1 and 4, vllm-project/vllm#46295), a start cost or experts that are soon all in use bend it downwards (0.12 in
#: #20780).
BEND = 0.07
#: No step time is known better than this share of itself, however narrow its interval.
FLOOR = 0.002
#: A line is rejected at this level.
REJECT_AT = 0.05


@dataclass(frozen=True, slots=True)
class StepPoint:
    """A measured L(b, n), seconds. `b`: sequences running; n = 0 is plain decoding."""

    b: float
    n: int
    step_s: Estimate

    @property
    def sd_s(self) -> float:
        return max(self.step_s.sd, FLOOR * self.step_s.value)


@dataclass(frozen=True, slots=True)
class StepLine:
    """`shape`: linear in N; start cost (a line from N = 1 on, above off); or piecewise between the measured N.

    L(n) is `weights(n)` times the measured step times: resampled step times give resampled L(n).
    """

    points: tuple[StepPoint, ...]
    shape: str

    @property
    def ns(self) -> tuple[int, ...]:
        return tuple(p.n for p in self.points)

    def weights(self, n: int) -> Array:
        """Of each measured point in L(n); beyond the largest n the last stretch goes on."""
        if self.shape == "linear":
            return _line_weights(self.points, n)
        if self.shape == "start cost" and n >= 1:
            own = [p for p in self.points if p.n >= 1]
            return np.concatenate([np.zeros(len(self.points) - len(own)), _line_weights(own, n)])
        return _piece_weights(self.points, n) @ _pooling(self.points)

    def stray_s(self, n: int) -> float:
        """Standard deviation of L(n) for what the shape leaves open, seconds: none where n was measured."""
        scale = WANDER * self.points[0].step_s.value
        low = max((m for m in self.ns if m <= n), default=None)
        high = min((m for m in self.ns if m >= n), default=None)
        if low is None or high is None:
            return scale * abs(n - (self.ns[-1] if high is None else self.ns[0]))
        if low == high:
            return 0.0
        if self.shape == "start cost" and low == 0:
            return float(scale * np.sqrt(high - n))
        share = (n - low) / (high - low)
        bend = BEND * 4 * share * (1 - share) * (self.step_s(high) - self.step_s(low))
        return float(np.hypot(scale * np.sqrt((n - low) * (high - n) / (high - low)), bend))

    def step_s(self, n: int) -> float:
        return float(self.weights(n) @ np.array([p.step_s.value for p in self.points]))

    def sd_s(self, n: int) -> float:
        """Of L(n): from the measured points and from what the shape leaves open."""
        noise = self.weights(n) * np.array([p.sd_s for p in self.points])
        return float(np.hypot(np.sqrt((noise**2).sum()), self.stray_s(n)))


def fit_line(points: Sequence[StepPoint]) -> StepLine:
    """The simplest shape the points do not reject. `points`: of one load, each n once."""
    ordered = tuple(sorted(points, key=lambda p: p.n))
    if len(ordered) < 3:
        return StepLine(ordered, "linear" if _rises(ordered) else "piecewise")
    if not _rejected(ordered):
        return StepLine(ordered, "linear")
    drafting = [p for p in ordered if p.n >= 1]
    starts = ordered[0].n == 0 and len(drafting) >= 2 and not _rejected(drafting)
    if starts and _line_at(drafting, 0) > ordered[0].step_s.value:
        return StepLine(ordered, "start cost")
    return StepLine(ordered, "piecewise")


def _line_weights(points: Sequence[StepPoint], n: int) -> Array:
    """Of the points in the weighted least-squares line at n."""
    if len(points) == 1:
        return np.ones(1)
    precision = [p.sd_s**-2 for p in points]
    total = sum(precision)
    middle = sum(w * p.n for w, p in zip(precision, points, strict=True)) / total
    spread = sum(w * (p.n - middle) ** 2 for w, p in zip(precision, points, strict=True))
    lean = (n - middle) / spread
    return np.array([w * (1 / total + lean * (p.n - middle)) for w, p in zip(precision, points, strict=True)])


def _line_at(points: Sequence[StepPoint], n: int) -> float:
    return float(_line_weights(points, n) @ np.array([p.step_s.value for p in points]))


def _rises(points: Sequence[StepPoint]) -> bool:
    return len(points) < 2 or _line_at(points, points[-1].n) >= _line_at(points, points[0].n)


def _rejected(points: Sequence[StepPoint]) -> bool:
    """Whether a rising line does not go through the points: chi-squared of the weighted residuals."""
    if not _rises(points):
        return True
    if len(points) < 3:
        return False
    from scipy.special import chdtrc

    squares = sum(((p.step_s.value - _line_at(points, p.n)) / p.sd_s) ** 2 for p in points)
    return float(chdtrc(len(points) - 2, squares)) < REJECT_AT


def _piece_weights(points: Sequence[StepPoint], n: int) -> Array:
    """Of the points in the polygon at n; beyond the ends its last stretch goes on."""
    ns = [p.n for p in points]
    weights = np.zeros(len(points))
    if n in ns or len(ns) == 1:
        weights[ns.index(n) if n in ns else 0] = 1.0
        return weights
    after = next((i for i, m in enumerate(ns) if m > n), len(ns) - 1)
    after = max(1, after)
    share = (n - ns[after - 1]) / (ns[after] - ns[after - 1])
    weights[after - 1], weights[after] = 1 - share, share
    return weights


def _pooling(points: Sequence[StepPoint]) -> Array:
    """Pool adjacent violators: the matrix that turns step times into ones that do not fall as N grows."""
    blocks: list[tuple[list[int], float, float]] = []
    for i, point in enumerate(points):
        blocks.append(([i], point.step_s.value, point.sd_s**-2))
        while len(blocks) > 1 and blocks[-2][1] > blocks[-1][1]:
            (left, mean_l, weight_l), (right, mean_r, weight_r) = blocks[-2:]
            total = weight_l + weight_r
            blocks[-2:] = [(left + right, (mean_l * weight_l + mean_r * weight_r) / total, total)]
    matrix = np.zeros((len(points), len(points)))
    for members, _, total in blocks:
        for row in members:
            for column in members:
                matrix[row, column] = points[column].sd_s ** -2 / total
    return matrix
