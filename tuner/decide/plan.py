"""Which configuration to launch next (ask), from everything measured so far. No state: the history is the state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.decide.evidence import Evidence
from tuner.decide.predict import Prediction, predict
from tuner.measure.records import CellKey
from tuner.measure.statistics import TIE_MARGIN
from tuner.measure.summary import CellSummary
from tuner.spec.candidates import Arm
from tuner.spec.speculation import LOOKUP_METHODS, OFF, SpecConfig

#: A lookup method or tree further behind the best than this is not searched at other settings.
SEARCH_WITHIN = 0.25


@dataclass(frozen=True, slots=True)
class Ask:
    """The next launch. `role`: baseline, explore, confirm or baseline-again."""

    spec: SpecConfig
    role: str
    why: str


def ask(arms: Sequence[Arm], evidence: Evidence, launches_left: int) -> Ask | None:
    """The next launch, or None when the study is complete. The last launch of a budget is kept for off again."""
    launched = {one.spec for one in evidence.tried}
    offs = len(evidence.baselines)
    if launches_left < 1:
        return None
    if not offs:
        return Ask(OFF, "baseline", "everything is compared with off, so it is measured first")
    if not any(one.cells for one in evidence.baselines) or _closed(evidence):
        return None
    again = Ask(OFF, "baseline-again", "off once more: how far it drifted bounds what differences can be believed")
    if launches_left > 1:
        following = _explore(arms, launched) or _confirm(arms, evidence, launched) or _search(arms, evidence, launched)
        if following is not None:
            return following
    return again if len(launched) > 1 else None


def predictions(arms: Sequence[Arm], evidence: Evidence) -> tuple[Prediction, ...]:
    """Every chain of every arm in every cell that the formula reaches, measured ones included (for calibration)."""
    found = []
    for arm in (arm for arm in arms if arm.prefix_sum):
        for key in evidence.keys:
            off, measured = _cell(evidence, OFF, key), _measured(arm, evidence, key)
            if off is not None and measured:
                found += [p for p in (predict(off, measured, spec) for spec in arm.chains) if p is not None]
    return tuple(found)


def _closed(evidence: Evidence) -> bool:
    return evidence.tried[-1].trial.role == "baseline-again"


def _explore(arms: Sequence[Arm], launched: set[SpecConfig]) -> Ask | None:
    """Each arm once at its largest chain, or at its largest tree where it has no chain."""
    for arm in arms:
        if any(spec in launched for spec in arm.configs):
            continue
        if arm.ns:
            reason = "its a_k give tau of every smaller N" if arm.prefix_sum else "the most it can propose at once"
            return Ask(arm.at(max(arm.ns)), "explore", f"{arm.method} at its largest N: {reason}")
        if arm.trees:
            return Ask(arm.of(max(arm.trees, key=lambda t: t.nodes)), "explore", f"{arm.method} at its largest tree")
    return None


def _confirm(arms: Sequence[Arm], evidence: Evidence, launched: set[SpecConfig]) -> Ask | None:
    """The unlaunched chain predicted to win most over everything measured, if it wins by more than a tie."""
    best: tuple[float, Prediction] | None = None
    for prediction in predictions(arms, evidence):
        fastest = _fastest(evidence, prediction.key)
        if prediction.spec in launched or fastest is None:
            continue
        gain = fastest / prediction.tpot_s.value - 1
        if gain > TIE_MARGIN and (best is None or gain > best[0]):
            best = (gain, prediction)
    if best is None:
        return None
    gain, prediction = best
    where = f"{prediction.key.load.text}, temperature {prediction.key.temperature:g}"
    why = f"predicted {gain:.0%} faster than everything measured at {where}"
    return Ask(prediction.spec, "confirm", why)


def _search(arms: Sequence[Arm], evidence: Evidence, launched: set[SpecConfig]) -> Ask | None:
    """Other settings of lookup methods and trees that are not far behind: one run does not tell the next."""
    for arm in arms:
        settings = arm.chains if arm.method in LOOKUP_METHODS or not arm.prefix_sum else ()
        settings += tuple(arm.of(tree) for tree in arm.trees)
        if any(spec in launched for spec in settings) or (settings and arm.trees):
            rest = [spec for spec in settings if spec not in launched]
            if rest and _near_best(arm, evidence):
                return Ask(rest[0], "explore", f"{arm.method} is near the best, and one setting does not tell another")
    return None


def _near_best(arm: Arm, evidence: Evidence) -> bool:
    for key in evidence.keys:
        fastest = _fastest(evidence, key)
        own = [cell.tpot_mean_s.value for cell in _measured(arm, evidence, key) if cell.tpot_mean_s]
        if fastest and own and min(own) < fastest * (1 + SEARCH_WITHIN):
            return True
    return False


def _fastest(evidence: Evidence, key: CellKey) -> float | None:
    cells = [one.cells[key].tpot_mean_s for one in evidence.tried if key in one.cells]
    return min((estimate.value for estimate in cells if estimate), default=None)


def _cell(evidence: Evidence, spec: SpecConfig, key: CellKey) -> CellSummary | None:
    one = evidence.best_trial(spec, key)
    return one.cells[key] if one else None


def _measured(arm: Arm, evidence: Evidence, key: CellKey) -> list[CellSummary]:
    cells = (_cell(evidence, spec, key) for spec in arm.chains)
    return [cell for cell in cells if cell is not None]
