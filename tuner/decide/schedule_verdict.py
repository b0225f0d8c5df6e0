"""What became of N by load: measured as a whole against off and the best one setting, and deployed only if it wins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tuner.decide.evidence import Evidence
from tuner.decide.overall import Overall, geometric_mean
from tuner.decide.plan_schedule import Make, ScheduledCell, ScheduleProspect, schedule_of, schedule_prospect
from tuner.decide.schedule import Stretch, stretches_of
from tuner.decide.verdict import Verdict, mean_text
from tuner.measure.records import CellKey
from tuner.measure.statistics import Estimate, is_tie
from tuner.spec.candidates import Arm
from tuner.spec.speculation import OFF, SpecConfig


@dataclass(frozen=True, slots=True)
class ScheduleVerdict:
    """One arm's schedule. `deployed`: it is the setting advised for all traffic. `spec`: None where none was made.

    `static`: the best one setting beside it; `over_static`, `over_off`: measured gains on the weighted mean of the
    cells, None where it was not measured. `expected`: of the first, as predicted before it was launched; so `cells`.
    """

    way: str
    deployed: bool
    reason: str
    spec: SpecConfig | None = None
    stretches: tuple[Stretch, ...] = ()
    static: SpecConfig | None = None
    over_static: Estimate | None = None
    over_off: Estimate | None = None
    expected: Estimate | None = None
    cells: tuple[ScheduledCell, ...] = ()


def schedule_verdicts(
    arms: Sequence[Arm], evidence: Evidence, verdicts: Sequence[Verdict], overall: Overall, make: Make
) -> tuple[ScheduleVerdict, ...]:
    """One for every arm that was measured at all."""
    measured = {one.spec.arm for one in evidence.tried if one.cells}
    return tuple(
        _verdict(arm, evidence, verdicts, overall, make)
        for arm in arms
        if arm.ns and any(spec.arm in measured for spec in arm.chains)
    )


def _verdict(
    arm: Arm, evidence: Evidence, verdicts: Sequence[Verdict], overall: Overall, make: Make
) -> ScheduleVerdict:
    way = (arm.at(arm.ns[0])).way
    first = next((i for i, one in enumerate(evidence.tried) if schedule_of(one.spec, arm)), None)
    if first is None:
        return _not_measured(way, schedule_prospect(arm, evidence, make))
    spec = evidence.tried[first].spec
    found = schedule_prospect(arm, replace(evidence, tried=evidence.tried[:first]), make)
    expected = found if isinstance(found, ScheduleProspect) else None
    static = _best_static(evidence, verdicts)
    over_static, over_off = (_mean(evidence, [v.key for v in verdicts], other, spec) for other in (static, OFF))
    told = ScheduleVerdict(
        way, overall.best == spec, "", spec, stretches_of(spec), static, over_static, over_off,
        expected.gain if expected else None, expected.cells if expected else (),
    )  # fmt: skip
    return replace(told, reason=_reason(told, evidence.tried[first].trial.status, overall))


def _not_measured(way: str, found: ScheduleProspect | str) -> ScheduleVerdict:
    if isinstance(found, str):
        return ScheduleVerdict(way, False, found)
    gain = f"{found.gain.value - 1:+.1%} [{found.gain.low - 1:+.1%}, {found.gain.high - 1:+.1%}]"
    against = f"predicted {gain} over all loads against {found.static.label} at all of them"
    why = "the study ended before it was measured" if found.live else "too little to be worth a launch"
    return ScheduleVerdict(
        way, False, f"{against}: {why}", found.spec, found.stretches, found.static,
        expected=found.gain, cells=found.cells,
    )  # fmt: skip


def _reason(told: ScheduleVerdict, status: str, overall: Overall) -> str:
    assert told.spec is not None
    assert told.static is not None
    if told.over_static is None or told.over_off is None:
        return f"it was launched and not measured in every cell ({status})"
    against = f"measured over all cells against {told.static.label} at all of them: {mean_text(told.over_static)}"
    if not told.static.is_off:
        against += f"; against off: {mean_text(told.over_off)}"
    if told.deployed:
        return f"it wins, {against}"
    if is_tie(told.over_static):
        return f"a tie, and one N is simpler, {against}"
    if told.over_static.value < 1:
        return f"it loses, {against}"
    if not overall.best.is_off:
        return f"{against}; {overall.best.label} is advised instead: {overall.reason}"
    return (
        f"{against}; yet no N is shown to beat off at any one load, or it misses an SLO, or one N for which nothing is "
        "claimed is as good within a launch's luck, and so it is not claimed"
    )


def _best_static(evidence: Evidence, verdicts: Sequence[Verdict]) -> SpecConfig:
    """The one setting with the highest mean gain over all cells; off unless another is above 1."""
    best, highest = OFF, 1.0
    lossy = {c.spec for v in verdicts for c in v.comparisons if c.lossy}
    for spec in evidence.specs():
        if spec.is_off or spec.by_load or spec in lossy:
            continue
        mean = _mean(evidence, [v.key for v in verdicts], OFF, spec)
        if mean is not None and mean.value > highest:
            best, highest = spec, mean.value
    return best


def _mean(evidence: Evidence, keys: Sequence[CellKey], first: SpecConfig, second: SpecConfig) -> Estimate | None:
    """How many times better the second is than the first, over all cells."""
    ratios = [evidence.ratio(first, second, key) for key in keys]
    return geometric_mean(ratios, len(keys), [evidence.weight_of(key) for key in keys])
