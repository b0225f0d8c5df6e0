"""TPOT at an N that was not launched: step time linear in N, tau a prefix sum of a_k (DEFINITIONS, Formulas)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tuner.measure.acceptance import tau_at
from tuner.measure.records import CellKey
from tuner.measure.statistics import Estimate
from tuner.measure.summary import CellSummary
from tuner.spec.speculation import SpecConfig


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted mean TPOT (seconds) of a chain in one cell."""

    spec: SpecConfig
    key: CellKey
    tpot_s: Estimate
    tau: float
    step_s: float


def predict(off: CellSummary, measured: list[CellSummary], spec: SpecConfig) -> Prediction | None:
    """TPOT(b, N) = L(b, N) / tau(N), scaled by what the longest measured chain shows beside its own formula.

    `measured`: cells of the same arm, load and temperature. L goes through off (N = 0) and every measured N, linear
    between them; N beyond the largest measured is refused (None), as is an arm whose step time or a_k is unknown.
    The scale covers what the formula leaves out (the last step's cut); it is 1 when outputs are long.
    """
    chains = sorted((c for c in measured if c.step_s and c.a and c.counts), key=lambda c: c.spec.n)
    if off.step_s is None or not chains or not 0 < spec.n <= chains[-1].spec.n:
        return None
    longest = chains[-1]
    if longest.step_s is None or longest.a is None or longest.tpot_mean_s is None or longest.tau is None:
        return None
    points = [(0, off.step_s.value), *((c.spec.n, c.step_s.value) for c in chains if c.step_s)]
    step_s = float(np.interp(spec.n, [n for n, _ in points], [step for _, step in points]))
    tau = tau_at([a.value for a in longest.a], spec.n)
    scale = longest.tpot_mean_s.value / (longest.step_s.value / tau_at([a.value for a in longest.a], longest.spec.n))
    spread = math.hypot(_half_width(off.step_s), _half_width(longest.step_s), _half_width(longest.tau))
    value = step_s / tau * scale
    estimate = Estimate(value, value * (1 - spread), value * (1 + spread), longest.requests)
    return Prediction(spec, off.key, estimate, tau, step_s)


def _half_width(estimate: Estimate) -> float:
    """Half the interval as a share of the value."""
    return (estimate.high - estimate.low) / 2 / estimate.value
