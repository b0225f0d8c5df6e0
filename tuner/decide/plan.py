"""Which configuration to launch next (ask), from everything measured so far. No state: the history is the state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from tuner.decide.evidence import Evidence
from tuner.decide.halving import next_setting
from tuner.decide.launch_cost import closing_seconds, launch_seconds
from tuner.decide.plan_schedule import Make, schedules_to_measure
from tuner.decide.predict import Prediction
from tuner.decide.prefix_rule import holds, refused
from tuner.decide.prospects import (
    Prospect,
    best_measured,
    cell_of,
    chain_predictions,
    objective_score,
    prospects,
    times_shorter,
)
from tuner.measure.records import BASELINE, CLOSING, CellKey
from tuner.measure.statistics import TIE_MARGIN
from tuner.spec.candidates import Arm
from tuner.spec.speculation import LOOKUP_METHODS, OFF, SpecConfig

#: A tree, or a lookup method whose prefix sum was refused, is searched no further this far behind the best.
SEARCH_WITHIN = 0.25
#: What the objective's gain is called.
BETTER = {"tpot_p50": "faster", "throughput": "more throughput", "goodput": "more goodput"}


@dataclass(frozen=True, slots=True)
class Ask:
    """The next launch. `role`: baseline, explore, confirm, schedule or baseline-again. `seconds`: expected, None: none
    was timed yet."""

    spec: SpecConfig
    role: str
    why: str
    seconds: float | None = None


def ask(arms: Sequence[Arm], evidence: Evidence, launches_left: int, make: Make | None = None) -> Ask | None:
    """The next launch, or None when the study is complete. The last launch of a budget is kept for off again.

    `make`: how the engine is told N by load; None: it is not tried.
    """
    launched = {one.spec for one in evidence.tried}
    offs = len(evidence.baselines)
    if launches_left < 1:
        return None
    if not offs:
        return Ask(OFF, BASELINE, "everything is compared with off, so it is measured first")
    if not any(one.cells for one in evidence.baselines) or _closed(evidence):
        return None
    why = "off once more: how far it drifted bounds what differences can be believed"
    again = Ask(OFF, CLOSING, why, closing_seconds(evidence))
    if launches_left > 1:
        following = (
            next(explorations(arms, evidence, launched), None)
            or _confirm(arms, evidence)
            or _search(arms, evidence, launched)
            or (_by_load(arms, evidence, make) if make else None)
        )
        if following is not None:
            return following
    return again if len(launched) > 1 else None


def predictions(arms: Sequence[Arm], evidence: Evidence) -> tuple[Prediction, ...]:
    """Every chain of every arm in every cell that the formula reaches, measured ones included (for calibration).

    Arms whose tau does not follow from one run are left out, by method or because two of their runs disagree.
    """
    found: list[Prediction] = []
    for arm in (arm for arm in arms if holds(evidence, arm.chains)):
        for key in evidence.keys:
            found += chain_predictions(arm, evidence, key, arm.chains)
    return tuple(found)


def _closed(evidence: Evidence) -> bool:
    return evidence.tried[-1].trial.role == CLOSING


def explorations(arms: Sequence[Arm], evidence: Evidence, launched: Set[SpecConfig]) -> Iterator[Ask]:
    """Each arm once at its largest chain, then once at its largest tree: a chain does not tell what a tree accepts."""
    for arm in arms:
        if arm.ns and not any(spec in launched for spec in arm.chains):
            reason = "its a_k give tau of every smaller N" if arm.prefix_sum else "the most it can propose at once"
            spec = arm.at(max(arm.ns))
            yield Ask(spec, "explore", f"{arm.method} at its largest N: {reason}", launch_seconds(evidence, spec))
    for arm in arms:
        trees = [arm.of(tree) for tree in sorted(arm.trees, key=lambda t: t.nodes)]
        if trees and not any(spec in launched for spec in trees):
            why = f"{arm.method} at its largest tree" + (": a chain does not tell what it accepts" if arm.ns else "")
            yield Ask(trees[-1], "explore", why, launch_seconds(evidence, trees[-1]))


def _confirm(arms: Sequence[Arm], evidence: Evidence) -> Ask | None:
    """The unlaunched chain that is expected to add most per second of launch, if any can win by more than a tie."""
    best: tuple[float, Ask] | None = None
    for arm in arms:
        for prospect in prospects(arm, evidence):
            if not prospect.live:
                continue
            seconds = launch_seconds(evidence, prospect.spec, times_shorter(evidence, prospect))
            worth = prospect.expected / (seconds or 1.0)
            if best is None or worth > best[0]:
                role = "confirm" if prospect.told else "explore"
                best = (worth, Ask(prospect.spec, role, _why(prospect, evidence), seconds))
    return best[1] if best else None


def _why(prospect: Prospect, evidence: Evidence) -> str:
    key, gain = prospect.best
    better, place = BETTER[evidence.objective], f"at {where(key)}"
    said = "predicted" if prospect.told else f"guessed ({_untold(prospect.spec.method)})"
    bounds = f"[{gain.low - 1:+.0%}, {gain.high - 1:+.0%}]"
    if gain.value > 1 + TIE_MARGIN:
        return f"{said} {gain.value - 1:.0%} {better} than everything measured {place} {bounds}"
    beside = f"{gain.value - 1:+.0%} beside the best measured {place} {bounds}, above 0 being {better}"
    return f"{said} {beside}: it may still win"


def _untold(method: str) -> str:
    until = " until two agree" if method in LOOKUP_METHODS else ""
    return f"one N of {method} does not tell another{until}"


def _search(arms: Sequence[Arm], evidence: Evidence, launched: set[SpecConfig]) -> Ask | None:
    """Trees, and lookup methods whose prefix sum was refused: one run does not tell the next."""
    for arm in arms:
        told = refused(evidence, arm.chains)
        settings = tuple(arm.of(tree) for tree in arm.trees) + (arm.chains if told or arm.trees else ())
        if not any(spec in launched for spec in settings) or not _near_best(arm, evidence):
            continue
        scores = {spec: _score(evidence, spec) for spec in settings if spec in launched}
        following = next_setting(settings, scores)
        if following is not None:
            why = (
                f"{arm.method} is near the best, and one setting does not tell another: searched around the better half"
            )
            return Ask(following, "explore", why, launch_seconds(evidence, following))
    return None


def _by_load(arms: Sequence[Arm], evidence: Evidence, make: Make) -> Ask | None:
    """N by the number of running requests, where it may beat any one N: measured as a whole, for a switch costs too."""
    for prospect, why in schedules_to_measure(arms, evidence, make):
        gains = {cell.key: cell.gain.value for cell in prospect.cells}
        return Ask(prospect.spec, "schedule", why, launch_seconds(evidence, prospect.spec, gains))
    return None


def _score(evidence: Evidence, spec: SpecConfig) -> float:
    """Mean over cells of the share of the best measured it reaches; 0 where it failed."""
    shares = []
    for key in evidence.keys:
        best, own = best_measured(evidence, key), cell_of(evidence, spec, key)
        top = objective_score(evidence.objective, best) if best else None
        mine = objective_score(evidence.objective, own) if own else None
        shares.append(mine / top if mine is not None and top else 0.0)
    return sum(shares) / len(shares) if shares else 0.0


def _near_best(arm: Arm, evidence: Evidence) -> bool:
    for key in evidence.keys:
        best = best_measured(evidence, key)
        top = objective_score(evidence.objective, best) if best else None
        cells = [cell_of(evidence, spec, key) for spec in arm.configs]
        own = [s for c in cells if c is not None and (s := objective_score(evidence.objective, c)) is not None]
        if top is not None and own and max(own) * (1 + SEARCH_WITHIN) > top:
            return True
    return False


def where(key: CellKey) -> str:
    return f"{key.load.text}, temperature {key.temperature:g}"
