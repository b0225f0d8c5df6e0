"""How good a draft must be: the tau, and the alpha, at which speculation begins to pay in a cell."""

from __future__ import annotations

from dataclasses import dataclass

from scipy.optimize import brentq

from tuner.measure.summary import CellSummary


@dataclass(frozen=True, slots=True)
class BreakEven:
    """At `gain` 1 speculation costs what it brings. `alpha` is None when no alpha at this N would reach `tau`."""

    tau: float
    alpha: float | None


def break_even(off: CellSummary, on: CellSummary, gain: float = 1.0) -> BreakEven | None:
    """tau needed so that TPOT(off) / TPOT(on) = gain: gain * L(b, N) / L(b, 0) (DEFINITIONS, Formulas)."""
    if off.step_s is None or on.step_s is None:
        return None
    tau = gain * on.step_s.value / off.step_s.value
    return BreakEven(tau, alpha_for(tau, on.spec.depth))


def alpha_for(tau: float, n: int) -> float | None:
    """The i.i.d. alpha with (1 - alpha^(n+1)) / (1 - alpha) = tau; 0 when tau <= 1, None above n + 1."""
    if tau <= 1:
        return 0.0
    if tau > n + 1:
        return None
    return float(brentq(lambda alpha: sum(alpha**k for k in range(n + 1)) - tau, 0.0, 1.0))
