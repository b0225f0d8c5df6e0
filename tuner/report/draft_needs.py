"""How good a draft must be, from a study: the tau and alpha that pay in each cell, beside what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tuner.decide.break_even import Need, alpha_for, ceiling, need
from tuner.decide.draft_need import GAINS, BestSetting, best_settings, least_alpha, surface_cost, surface_of
from tuner.decide.surface import CostSurface
from tuner.measure.records import CellKey
from tuner.measure.statistics import Estimate
from tuner.report.data import ReportInput
from tuner.report.derived import alpha_defined
from tuner.report.step_account import Reading, step_account
from tuner.spec.speculation import LOOKUP_METHODS, SpecConfig

#: unsure: the intervals do not tell. untold: step times do not come to what was measured, or are quicker than plain
#: ones. short: a better draft could, at some N. beyond: none can at any N the step times reach.
Standing = Literal["reached", "unsure", "short", "beyond", "untold"]


@dataclass(frozen=True, slots=True)
class DraftNeed:
    """One way to draft in one cell, at its best setting. `cost`: L(b, N) / L(b, 0), from requests that ran both where
    `basis` is measured, else from the fitted surface. `tau`: measured; `predicted_tau`: where the setting was not
    launched. `most`: the gain if every drafted token were accepted; None for lookups, whose steps cost more as more of
    them draft. `least`: of `needs`, in their order, the N that asks least of a draft with its alpha; None where no N
    can, or one alpha does not give tau."""

    key: CellKey
    spec: SpecConfig
    cost: Estimate
    basis: str
    reading: Reading
    tau: Estimate | None
    predicted_tau: float | None
    needs: tuple[Need, ...]
    most: Estimate | None
    least: tuple[tuple[int, float] | None, ...]

    @property
    def alpha_defined(self) -> bool:
        return alpha_defined(self.spec)

    @property
    def tau_value(self) -> float:
        known = self.tau.value if self.tau else self.predicted_tau
        assert known is not None
        return known

    @property
    def own_alpha(self) -> float | None:
        """The alpha that gives the draft's own tau."""
        return alpha_for(self.tau_value, self.spec.depth) if self.alpha_defined else None

    def standing(self, gain: float) -> Standing:
        """Where the draft is, going by verify steps."""
        if self.reading != "agrees":
            return "untold"
        at = [one.gain for one in self.needs].index(gain)
        asked = self.needs[at]
        if not asked.reachable and not self.least[at]:
            return "beyond"
        if self.unsure(asked):
            return "unsure"
        return "short" if asked.missing(self.tau_value) else "reached"

    def unsure(self, asked: Need) -> bool:
        """Whether the tau there is and the tau that is asked for have intervals that meet."""
        low, high = (self.tau.low, self.tau.high) if self.tau else (self.tau_value, self.tau_value)
        return low <= asked.tau.high and asked.tau.low <= high


def draft_needs(data: ReportInput) -> tuple[DraftNeed, ...]:
    """A row a cell and way to draft, wherever L(b, N) and L(b, 0) are measured, or the fitted surface reaches them."""
    found = []
    for setting in best_settings(data.verdicts, data.predictions):
        surface = surface_of(data.evidence, setting.spec)
        told = _measured(data, setting, surface) if setting.measured else _predicted(setting, surface)
        found += [told] if told else []
    return tuple(found)


def _measured(data: ReportInput, setting: BestSetting, surface: CostSurface | None) -> DraftNeed | None:
    account = step_account(data, setting.measured) if setting.measured else None
    if account is None:
        return None
    return _need(setting, account.point.tau, "measured", account.reading, account.tau, None, surface)


def _predicted(setting: BestSetting, surface: CostSurface | None) -> DraftNeed | None:
    b, told = setting.key.load.concurrency, setting.predicted
    cost = surface_cost(surface, b, setting.spec.n) if surface and b else None
    if cost is None or told is None:
        return None
    reading: Reading = "undefined" if cost[0].value < 1 else "agrees"
    return _need(setting, cost[0], cost[1], reading, None, told.tau, surface)


def _need(
    setting: BestSetting, cost: Estimate, basis: str, reading: Reading,
    tau: Estimate | None, predicted_tau: float | None, surface: CostSurface | None,
) -> DraftNeed:  # fmt: skip
    spec = setting.spec
    needs = tuple(need(cost, spec.depth, gain) for gain in GAINS)
    return DraftNeed(
        key=setting.key,
        spec=spec,
        cost=cost,
        basis=basis,
        reading=reading,
        tau=tau,
        predicted_tau=predicted_tau,
        needs=needs,
        most=None if spec.method in LOOKUP_METHODS else ceiling(cost, spec.depth),
        least=tuple(_least(setting, asked, surface) for asked in needs),
    )


def _least(setting: BestSetting, asked: Need, surface: CostSurface | None) -> tuple[int, float] | None:
    """The setting's own N by its own step times, and every other by the fitted surface's."""
    b, alpha = setting.key.load.concurrency, asked.alpha[0]
    if not alpha_defined(setting.spec):
        return None
    own = [(setting.spec.n, alpha)] if alpha is not None and asked.reachable else []
    other = least_alpha(surface, b, asked.gain) if surface and b else None
    found = [*own, *([other] if other and other[0] != setting.spec.n else [])]
    return min(found, key=lambda pair: pair[1], default=None)
