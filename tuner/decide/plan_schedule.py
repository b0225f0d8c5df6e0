"""Whether N by load may beat any one N over the stated traffic: the schedule to measure, with what it is expected
to bring. Time per token comes from the cost surface; what single cells gain from the predictions of each N."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from scipy.special import ndtr

from tuner.decide.arm_surface import arm_surface
from tuner.decide.evidence import Evidence
from tuner.decide.overall import geometric_mean
from tuner.decide.predict import Prediction
from tuner.decide.prefix_rule import holds
from tuner.decide.prospects import LEAST_CHANCE, cell_of, chain_predictions
from tuner.decide.schedule import Stretch, schedule, stretches_text, surface_cost
from tuner.errors import UserError
from tuner.measure.records import CellKey
from tuner.measure.statistics import TIE_MARGIN, Estimate
from tuner.spec.candidates import Arm
from tuner.spec.speculation import OFF, SCHEDULES, SpecConfig

#: Loads at which the surface is asked: every one up to this many, above it evenly in log b.
MOST_LOADS = 128

#: How an engine is told to follow stretches; UserError where it cannot.
Make = Callable[[Arm, Sequence[Stretch]], SpecConfig]


@dataclass(frozen=True, slots=True)
class ScheduledCell:
    """What a schedule is expected to do in one cell, where it drafts `n`: as that N at all loads does there. `gain`:
    over off, in the objective."""

    key: CellKey
    n: int
    gain: Estimate
    tpot_s: Estimate | None
    throughput_tok_s: Estimate | None = None
    goodput: Estimate | None = None


@dataclass(frozen=True, slots=True)
class ScheduleProspect:
    """`static`: the best one setting for all cells; `gain`: over it, on the weighted mean of the cells."""

    spec: SpecConfig
    stretches: tuple[Stretch, ...]
    cells: tuple[ScheduledCell, ...]
    static: SpecConfig
    gain: Estimate

    @property
    def chance(self) -> float:
        """To be better than the best one setting by more than a tie, if switching cost nothing."""
        sd = max(self.gain.log_sd, 1e-9)
        return float(ndtr((math.log(self.gain.value) - math.log1p(TIE_MARGIN)) / sd))

    @property
    def live(self) -> bool:
        return self.chance >= LEAST_CHANCE


def schedule_prospect(arm: Arm, evidence: Evidence, make: Make) -> ScheduleProspect | str:
    """The schedule of one arm, or in words why there is none to measure."""
    keys = [key for key in evidence.keys if key.load.concurrency]
    loads = sorted({key.load.concurrency or 0 for key in keys})
    if len(loads) < 2:
        return "N by load needs two levels of concurrency or more"
    if (reason := _unfit(arm, evidence, keys)) is not None:
        return reason
    found = arm_surface(arm, evidence)
    gains = {key: _gains(arm, evidence, key) for key in keys}
    ns = sorted(set.intersection(*(set(own) for own in gains.values())))
    if found is None or len(ns) < 2:
        return f"{arm.method} has no step time and acceptance at every load"
    surface, taus = found
    stretches = schedule(_loads(loads[0], loads[-1]), ns, surface_cost(surface, taus))
    if len(stretches) == 1:
        best = f"N = {stretches[0].n}" if stretches[0].n else "off"
        where = f"at every load from {loads[0]} to {loads[-1]}"
        return f"{best} is by the fitted step times the best of {arm.method}, or tied with it, {where}"
    try:
        spec = make(arm, stretches)
    except UserError as error:
        return str(error)
    return _prospect(arm, evidence, spec, stretches, gains)


def schedules_to_measure(arms: Sequence[Arm], evidence: Evidence, make: Make) -> list[tuple[ScheduleProspect, str]]:
    """Schedules that may win and were not launched, with why; the most promising first."""
    launched = [one.spec for one in evidence.tried]
    found = []
    for arm in arms:
        if not any(schedule_of(spec, arm) for spec in launched):
            prospect = schedule_prospect(arm, evidence, make)
            if isinstance(prospect, ScheduleProspect) and prospect.live:
                found.append(prospect)
    found.sort(key=lambda prospect: -prospect.gain.value)
    return [(prospect, _why(prospect)) for prospect in found]


def _why(prospect: ScheduleProspect) -> str:
    gain = prospect.gain
    return (
        f"{stretches_text(prospect.stretches)}: predicted {gain.value - 1:+.1%} [{gain.low - 1:+.1%}, "
        f"{gain.high - 1:+.1%}] over all loads against {prospect.static.label} at all of them; switching costs too, "
        "so it is measured as a whole"
    )


def schedule_of(spec: SpecConfig, arm: Arm) -> bool:
    """Whether a setting is this arm with N by load."""
    same = (spec.method, spec.draft) == (arm.method, arm.draft)
    return spec.by_load and same and set(arm.options) < set(spec.options)


def _unfit(arm: Arm, evidence: Evidence, keys: Sequence[CellKey]) -> str | None:
    if any(key in SCHEDULES for key, _ in arm.options):
        return f"{arm.method} has N by load already"
    if not holds(evidence, arm.chains):
        return f"one N of {arm.method} does not tell another, so that none can be chosen by load"
    for spec in arm.chains:
        for key in keys:
            one = evidence.best_trial(spec, key)
            cell = one.trial.cell(key) if one else None
            if cell is not None and cell.lossy:
                return f"{arm.method} is lossy here: {cell.lossy}"
    return None


def _gains(arm: Arm, evidence: Evidence, key: CellKey) -> dict[int, Prediction | None]:
    """By N; None is off."""
    made = chain_predictions(arm, evidence, key, arm.chains)
    return {0: None} | {p.spec.n: p for p in made if p.gain is not None} if made else {}


def _prospect(
    arm: Arm, evidence: Evidence, spec: SpecConfig, stretches: tuple[Stretch, ...],
    gains: Mapping[CellKey, Mapping[int, Prediction | None]],
) -> ScheduleProspect | str:  # fmt: skip
    cells = []
    for key, by_n in gains.items():
        n = next((s.n for s in stretches if s.start <= (key.load.concurrency or 0) <= s.end), stretches[-1].n)
        cells.append(ScheduledCell(key, n, _gain(by_n[n]), *_figures(evidence, key, by_n[n])))
    static, own = _best_static(arm, evidence, gains)
    ratios = [_same(cell.gain) if static == _at(arm, cell.n) else _over(cell.gain, own[cell.key]) for cell in cells]
    mean = geometric_mean(ratios, len(ratios), [evidence.weight_of(cell.key) for cell in cells])
    if mean is None:
        return f"what {arm.method} gains has no interval"
    mean = replace(mean, n=max(cell.gain.n for cell in cells))
    return ScheduleProspect(spec, stretches, tuple(cells), static, mean)


def _best_static(
    arm: Arm, evidence: Evidence, gains: Mapping[CellKey, Mapping[int, Prediction | None]]
) -> tuple[SpecConfig, dict[CellKey, Estimate]]:
    """The one setting, of this arm as predicted or of others as measured, with the highest mean gain over off."""
    shared = set.intersection(*(set(own) for own in gains.values()))
    candidates = {_at(arm, n): {key: _gain(own[n]) for key, own in gains.items()} for n in shared}
    for spec in evidence.specs():
        ratios = {key: evidence.ratio(OFF, spec, key) for key in gains}
        known = {key: ratio for key, ratio in ratios.items() if ratio is not None}
        if spec not in candidates and not spec.by_load and len(known) == len(gains) and not _lossy(evidence, spec):
            candidates[spec] = known
    weight = evidence.weight_of
    best = max(candidates, key=lambda spec: sum(weight(k) * math.log(g.value) for k, g in candidates[spec].items()))
    return best, candidates[best]


def _at(arm: Arm, n: int) -> SpecConfig:
    return arm.at(n) if n else OFF


def _lossy(evidence: Evidence, spec: SpecConfig) -> bool:
    return any(cell.lossy for one in evidence.tried if one.spec == spec for cell in one.trial.cells)


def _gain(prediction: Prediction | None) -> Estimate:
    if prediction is None:
        return Estimate(1, 1, 1, 0)
    assert prediction.gain is not None
    return prediction.gain


def _figures(
    evidence: Evidence, key: CellKey, prediction: Prediction | None
) -> tuple[Estimate | None, Estimate | None, Estimate | None]:
    """(mean TPOT, throughput, goodput), predicted; off's as measured."""
    if prediction is not None:
        return prediction.tpot_s, prediction.throughput_tok_s, prediction.goodput
    off = cell_of(evidence, OFF, key)
    return (off.tpot_mean_s, off.throughput_tok_s, off.goodput) if off else (None, None, None)


def _same(gain: Estimate) -> Estimate:
    return Estimate(1, 1, 1, gain.n)


def _over(first: Estimate, second: Estimate) -> Estimate:
    """Ratio of two gains over the same off, as if they were independent: too wide rather than too narrow."""
    spread = math.hypot(*(math.log(g.high / g.low) / 2 for g in (first, second)))
    value = first.value / second.value
    return Estimate(value, value * math.exp(-spread), value * math.exp(spread), max(first.n, second.n))


def _loads(low: int, high: int) -> list[int]:
    if high - low < MOST_LOADS:
        return list(range(low, high + 1))
    steps = MOST_LOADS - 1
    return sorted({round(low * (high / low) ** (i / steps)) for i in range(MOST_LOADS)})
