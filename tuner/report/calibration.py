"""What was predicted before a launch beside what the launch then measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tuner.decide.evidence import Evidence
from tuner.decide.plan import predictions
from tuner.decide.predict import Prediction
from tuner.measure.records import CellKey
from tuner.measure.statistics import Estimate
from tuner.spec.candidates import Arm
from tuner.spec.speculation import SpecConfig


@dataclass(frozen=True, slots=True)
class Confirmation:
    """`error`: (predicted - measured) / measured. `within`: the two intervals have a point in common."""

    spec: SpecConfig
    key: CellKey
    predicted_s: Estimate
    measured_s: Estimate

    @property
    def error(self) -> float:
        return self.predicted_s.value / self.measured_s.value - 1

    @property
    def within(self) -> bool:
        return self.predicted_s.low <= self.measured_s.high and self.measured_s.low <= self.predicted_s.high


def confirmations(evidence: Evidence) -> tuple[Confirmation, ...]:
    """Every chain that could be predicted when it was first launched, from the trials before that launch alone.

    A prediction that has seen its own launch would agree with it by construction, so each is made again from what the
    study knew then.
    """
    found = []
    for spec in (spec for spec in evidence.specs() if not spec.is_off):
        first = next(place for place, one in enumerate(evidence.tried) if one.spec == spec)
        arm = Arm(spec.method, spec.draft, spec.options, ns=_ns(evidence, spec), name=spec.name)
        before = predictions((arm,), replace(evidence, tried=evidence.tried[:first]))
        found += [c for p in before if p.spec == spec and (c := _confirmed(evidence, p)) is not None]
    return tuple(found)


def worst_error(found: Sequence[Confirmation]) -> Confirmation | None:
    return max(found, key=lambda c: abs(c.error), default=None)


def _ns(evidence: Evidence, spec: SpecConfig) -> tuple[int, ...]:
    """Every N the arm was launched at."""
    return tuple(sorted({one.spec.n for one in evidence.tried if one.spec.arm == spec.arm and one.spec.n}))


def _confirmed(evidence: Evidence, prediction: Prediction) -> Confirmation | None:
    one = evidence.best_trial(prediction.spec, prediction.key)
    measured_s = one.cells[prediction.key].tpot_mean_s if one else None
    return Confirmation(prediction.spec, prediction.key, prediction.tpot_s, measured_s) if measured_s else None
