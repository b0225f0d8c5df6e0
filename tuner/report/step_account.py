"""Whether step times explain a measured gain: tau over break-even, beside what the requests themselves took.

L(b, N) is taken between chunks beside which no request waits for its first token, so tau over break-even is the gain
of verify steps alone. Where it and the measured gain point to different sides, the measured one is what users get.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tuner.decide.rank import Comparison
from tuner.measure.statistics import TIE_MARGIN, Estimate
from tuner.report.data import ReportInput
from tuner.report.derived import BreakEvenPoint, break_even_point

Reading = Literal["agrees", "contradicts", "undefined"]


@dataclass(frozen=True, slots=True)
class StepAccount:
    """`gain`: tau over break-even. `reading`: against the measured gain; undefined where a verify step was measured
    quicker than a plain one, which none can be: noise, or off's drift."""

    point: BreakEvenPoint
    tau: Estimate
    gain: float
    reading: Reading


def step_account(data: ReportInput, compared: Comparison) -> StepAccount | None:
    """None where acceptance or step times were not told."""
    one = data.evidence.best_trial(compared.spec, compared.key)
    point = break_even_point(data.evidence, one, compared.key) if one else None
    tau = one.cells[compared.key].tau if one else None
    if point is None or tau is None:
        return None
    gain = tau.value / point.tau.value
    return StepAccount(point, tau, gain, _reading(data, compared, point, gain))


def explains(account: StepAccount, compared: Comparison) -> bool:
    """Whether the sum comes to what was measured and decided: above 1 for a gain that is believed, below for a loss."""
    if account.reading != "agrees" or compared.ratio is None:
        return False
    return account.gain > 1 if compared.believed else account.gain < 1 and compared.ratio.value < 1


def _reading(data: ReportInput, compared: Comparison, point: BreakEvenPoint, gain: float) -> Reading:
    if point.tau.value < 1:
        return "undefined"
    # Goodput counts requests within limits: it may stand still whatever a token costs.
    if compared.ratio is None or data.evidence.objective == "goodput":
        return "agrees"
    measured = compared.ratio.value
    apart = (gain >= 1) != (measured >= 1) and abs(gain / measured - 1) >= TIE_MARGIN
    return "contradicts" if apart else "agrees"
