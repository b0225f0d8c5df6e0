"""What an unlaunched setting may still bring: its gain over the best measured, cell by cell, and its chance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.special import ndtr

from tuner.decide.evidence import Evidence
from tuner.decide.predict import Prediction, Terms, predict_chains, predict_gains
from tuner.decide.prefix_rule import launched_pairs, told_by
from tuner.measure.records import CellKey
from tuner.measure.statistics import TIE_MARGIN, Estimate
from tuner.measure.summary import CellSummary
from tuner.spec.candidates import Arm
from tuner.spec.speculation import OFF, SpecConfig

#: A setting with a smaller chance to win by more than a tie, in every cell, is not launched.
LEAST_CHANCE = 0.1
#: What an untested prefix sum of a lookup method is trusted with, standard deviation of TPOT as a share: enough to
#: choose a launch by, never to report a figure.
UNTESTED_STRAY = 0.1


@dataclass(frozen=True, slots=True)
class Prospect:
    """`gains`: over the best measured in each cell. `expected`: the mean over cells of what it may add to the best, in
    logarithms; a loss adds nothing. `told`: its tau follows from a launch of another N, and is no guess."""

    spec: SpecConfig
    gains: tuple[tuple[CellKey, Estimate], ...]
    expected: float
    chance: float
    told: bool

    @property
    def live(self) -> bool:
        return self.chance >= LEAST_CHANCE

    @property
    def best(self) -> tuple[CellKey, Estimate]:
        """Where it promises most."""
        return max(self.gains, key=lambda pair: pair[1].value)


def prospects(arm: Arm, evidence: Evidence) -> tuple[Prospect, ...]:
    """Of every chain of the arm that was not launched, where its prefix sum was not refused."""
    launched = {one.spec for one in evidence.tried}
    open_specs = [spec for spec in arm.chains if spec not in launched]
    if not open_specs or not any(spec in launched for spec in arm.chains):
        return ()
    pairs = launched_pairs(evidence, arm.chains)
    if not all(pair.holds for pair in pairs):
        return ()
    told = told_by(arm.chains, pairs)
    gains: dict[SpecConfig, list[tuple[CellKey, Estimate]]] = {}
    for key in evidence.keys:
        incumbent = best_measured(evidence, key)
        off, measured = _measured(arm, evidence, key)
        if incumbent is None or off is None or not measured:
            continue
        found = predict_gains(off, measured, open_specs, _terms(evidence, told), incumbent)
        safe = feasible(evidence, incumbent)
        for spec, (gain, missed) in found.items():
            if not (missed and safe):
                gains.setdefault(spec, []).append((key, gain))
    weights = evidence.weight_of
    total = sum(weights(key) for key in evidence.keys)
    return tuple(
        _prospect(spec, tuple(found), {k: weights(k) / total for k, _ in found}, told) for spec, found in gains.items()
    )


def chain_predictions(
    arm: Arm, evidence: Evidence, key: CellKey, specs: Sequence[SpecConfig], told: bool = True
) -> tuple[Prediction, ...]:
    """Of one arm's chains in one cell, from off and every N of the arm that was measured there. `told`: as
    `Prospect` has it."""
    off, measured = _measured(arm, evidence, key)
    if off is None or not measured:
        return ()
    return predict_chains(off, measured, specs, _terms(evidence, told))


def _measured(arm: Arm, evidence: Evidence, key: CellKey) -> tuple[CellSummary | None, list[CellSummary]]:
    """Off's cell and the arm's chains'."""
    chains = [c for spec in arm.chains if (c := cell_of(evidence, spec, key)) is not None]
    return cell_of(evidence, OFF, key), chains


def _terms(evidence: Evidence, told: bool) -> Terms:
    stray = 0.0 if told else UNTESTED_STRAY
    return Terms(evidence.objective, dict(evidence.slo_ms), evidence.seed, stray)


def best_measured(evidence: Evidence, key: CellKey) -> CellSummary | None:
    """The best measured lossless cell by the objective's plain value, among those that keep the SLO if any does."""
    cells = [one.cells[key] for one in evidence.tried if key in one.cells and not one.lossy(key)]
    scored = [(score, c) for c in cells if (score := objective_score(evidence.objective, c)) is not None]
    kept = [pair for pair in scored if feasible(evidence, pair[1])] or scored
    return max(kept, key=lambda pair: pair[0])[1] if kept else None


def times_shorter(evidence: Evidence, prospect: Prospect) -> dict[CellKey, float]:
    """By how much requests are expected to be shorter than off's: the best measured one's are, times the gain over it.
    More goodput does not tell how long a request takes: then as the best measured one's."""
    found = {}
    for key, gain in prospect.gains:
        off, best = cell_of(evidence, OFF, key), best_measured(evidence, key)
        if off and off.tpot_mean_s and best and best.tpot_mean_s:
            over_best = 1.0 if evidence.objective == "goodput" else gain.value
            found[key] = off.tpot_mean_s.value / best.tpot_mean_s.value * over_best
    return found


def objective_score(objective: str, cell: CellSummary) -> float | None:
    """Higher is better; mean TPOT stands for its median, being steadier."""
    if objective == "tpot_p50":
        return 1 / cell.tpot_mean_s.value if cell.tpot_mean_s else None
    estimate = cell.throughput_tok_s if objective == "throughput" else cell.goodput
    return estimate.value if estimate else None


def feasible(evidence: Evidence, cell: CellSummary) -> bool:
    limits: Mapping[str, float] = dict(evidence.slo_ms)
    seen = cell.percentiles_s
    return all(seen.get(name.removesuffix("_ms"), math.inf) * 1000 <= limit for name, limit in limits.items())


def cell_of(evidence: Evidence, spec: SpecConfig, key: CellKey) -> CellSummary | None:
    one = evidence.best_trial(spec, key)
    return one.cells[key] if one else None


def _prospect(
    spec: SpecConfig, gains: tuple[tuple[CellKey, Estimate], ...], weights: Mapping[CellKey, float], told: bool
) -> Prospect:
    expected, chance = 0.0, 0.0
    for key, gain in gains:
        middle = math.log(gain.value)
        sd = max(gain.log_sd if gain.low > 0 else 1.0, 1e-9)
        density = math.exp(-((middle / sd) ** 2) / 2) / math.sqrt(2 * math.pi)
        expected += weights[key] * (middle * float(ndtr(middle / sd)) + sd * density)
        chance = max(chance, float(ndtr((middle - math.log1p(TIE_MARGIN)) / sd)))
    return Prospect(spec, gains, expected, chance, told)
