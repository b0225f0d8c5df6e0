"""How good a draft must be: the tau, and the alpha, at which speculation pays in a cell, or pays so many times."""

from __future__ import annotations

from dataclasses import dataclass

from scipy.optimize import brentq

from tuner.measure.statistics import Estimate
from tuner.measure.summary import CellSummary

#: An alpha at a value and at both ends of its interval; None where no alpha reaches the tau that is asked for.
Alphas = tuple[float | None, float | None, float | None]


@dataclass(frozen=True, slots=True)
class BreakEven:
    """At `gain` 1 speculation costs what it brings. `alpha` is None when no alpha at this N would reach `tau`."""

    tau: float
    alpha: float | None


@dataclass(frozen=True, slots=True)
class Need:
    """What a draft must bring so that TPOT(off) / TPOT(on) = `gain` by verify steps alone. `alpha`: the same at every
    position, that gives `tau` and the ends of its interval."""

    gain: float
    tau: Estimate
    alpha: Alphas

    @property
    def reachable(self) -> bool:
        """Whether an alpha below 1 suffices: at 1 every token is accepted, which is no draft's."""
        return self.alpha[0] is not None and self.alpha[0] < 1

    def missing(self, tau: float) -> float:
        """How much of tau a draft with this one lacks."""
        return max(0.0, self.tau.value - tau)


def break_even(off: CellSummary, on: CellSummary, gain: float = 1.0) -> BreakEven | None:
    """tau needed so that TPOT(off) / TPOT(on) = gain: gain * L(b, N) / L(b, 0) (DEFINITIONS, Formulas)."""
    if off.step_s is None or on.step_s is None:
        return None
    tau = gain * on.step_s.value / off.step_s.value
    return BreakEven(tau, alpha_for(tau, on.spec.depth))


def need(cost: Estimate, n: int, gain: float = 1.0) -> Need:
    """tau = gain * L(b, n) / L(b, 0). `cost`: that ratio; `n`: the most one step can accept."""
    tau = cost.scaled(gain)
    return Need(gain, tau, (alpha_for(tau.value, n), alpha_for(tau.low, n), alpha_for(tau.high, n)))


def ceiling(cost: Estimate, n: int) -> Estimate:
    """The gain if every drafted token were accepted: (n + 1) L(b, 0) / L(b, n)."""
    return cost.inverse().scaled(n + 1)


def alpha_for(tau: float, n: int) -> float | None:
    """The i.i.d. alpha with (1 - alpha^(n+1)) / (1 - alpha) = tau; 0 when tau <= 1, None above n + 1."""
    if tau <= 1:
        return 0.0
    if tau > n + 1:
        return None
    return float(brentq(lambda alpha: sum(alpha**k for k in range(n + 1)) - tau, 0.0, 1.0))
