"""Which setting of each way to draft a draft's quality is asked for, what its steps cost, which N asks least of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.decide.arm_surface import step_surface
from tuner.decide.break_even import alpha_for
from tuner.decide.evidence import Evidence
from tuner.decide.predict import Prediction
from tuner.decide.surface import CostSurface
from tuner.decide.verdict import Comparison, Verdict
from tuner.measure.records import CellKey
from tuner.measure.statistics import TIE_MARGIN, Z95, Estimate
from tuner.spec.candidates import Arm
from tuner.spec.speculation import SpecConfig

#: The gains a draft's quality is asked for: it pays, and it pays one and a half times.
GAINS = (1.0, 1.5)


@dataclass(frozen=True, slots=True)
class BestSetting:
    """The best N, or the best tree, of one way to draft in one cell: measured there, or else predicted."""

    key: CellKey
    spec: SpecConfig
    measured: Comparison | None
    predicted: Prediction | None


def best_settings(verdicts: Sequence[Verdict], predictions: Sequence[Prediction]) -> tuple[BestSetting, ...]:
    """By the objective's gain over off. A prediction stands only where it is above everything measured by more than a
    tie. N by load is several N at once, and output that is not the target's tells nothing of a draft: left out."""
    found = []
    for verdict in verdicts:
        measured = [c for c in verdict.comparisons if c.ratio and not (c.spec.is_off or c.spec.by_load or c.lossy)]
        known = {c.spec for c in verdict.comparisons if c.ratio}
        guesses = [p for p in predictions if p.key == verdict.key and p.gain and p.spec not in known]
        if verdict.key.load.concurrency is None:  # the surface is over requests in flight, which a rate does not tell
            guesses = []
        for way in dict.fromkeys(_way(c.spec) for c in measured):
            own = max((c for c in measured if _way(c.spec) == way), key=_measured_gain)
            guess = max((p for p in guesses if _way(p.spec) == way), key=_predicted_gain, default=None)
            if guess is not None and _predicted_gain(guess) > _measured_gain(own) * (1 + TIE_MARGIN):
                found.append(BestSetting(verdict.key, guess.spec, None, guess))
            else:
                found.append(BestSetting(verdict.key, own.spec, own, None))
    return tuple(found)


def surface_of(evidence: Evidence, spec: SpecConfig) -> CostSurface | None:
    """L(b, N) through every launched chain of the setting's way to draft."""
    ns = sorted({s.n for s in evidence.specs() if s.arm == spec.arm and s.tree is None and not s.is_off})
    return step_surface(Arm(spec.method, spec.draft, spec.options, tuple(ns)), evidence) if ns else None


def surface_cost(surface: CostSurface, b: float, n: int) -> tuple[Estimate, str] | None:
    """(L(b, n) / L(b, 0), what L(b, n) is taken from); None where the surface does not reach either. Errors of the two
    are taken as independent."""
    on, off = surface.at(b, n), surface.at(b, 0)
    if on is None or off is None:
        return None
    value = on.step_s.value / off.step_s.value
    spread = math.exp(Z95 * math.hypot(on.step_s.log_sd, off.step_s.log_sd))
    return Estimate(value, value / spread, value * spread, min(on.step_s.n, off.step_s.n)), on.basis


def least_alpha(surface: CostSurface, b: float, gain: float) -> tuple[int, float] | None:
    """(N, alpha) that asks least of a draft for this gain, over every N the surface reaches; the smaller N wins a tie.
    None where every alpha is 1 or more."""
    found = []
    for n in range(1, surface.largest_n + 1):
        cost = surface_cost(surface, b, n)
        alpha = alpha_for(gain * cost[0].value, n) if cost else None
        if alpha is not None and alpha < 1:
            found.append((n, alpha))
    return min(found, key=lambda pair: (pair[1], pair[0]), default=None)


def _way(spec: SpecConfig) -> tuple[object, bool]:
    return spec.arm, spec.tree is None


def _measured_gain(comparison: Comparison) -> float:
    return comparison.ratio.value if comparison.ratio else 0.0


def _predicted_gain(prediction: Prediction) -> float:
    return prediction.gain.value if prediction.gain else 0.0
