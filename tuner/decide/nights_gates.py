"""Gates held against a night: what failed, what passed, and what could not be told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuner.decide.nights import REGRESSED, Change, NightComparison, Unmatched, percent_worse
from tuner.decide.nights_sample import OFF
from tuner.measure.records import CellKey
from tuner.spec.gate import UNITS, Gate

FAILED, PASSED, NOT_MEASURED = "failed", "passed", "not measured"
TPOT = "tpot_p50"
#: What off has no figure of.
DRAFTS_ALONE = ("tau", "speedup")


@dataclass(frozen=True, slots=True)
class Figure:
    """A night's own figure of one cell, for absolute limits; `value` in seconds, tokens or a share."""

    where: str
    metric: str
    value: float


@dataclass(frozen=True, slots=True)
class Verified:
    """A stored result of checking that output is the target's: `ok`, and what it was about."""

    where: str
    ok: bool


@dataclass(frozen=True, slots=True)
class Unmeasured:
    """A setting of tonight's plan that was not measured as planned. `keys`: the cells it lacks; `failed`: whether a
    launch of it failed, else time or a signal cut it; `again`: off's last run; `asked`: its last launch ended well, so
    that its output was asked for.
    """

    study: str
    setting: str
    keys: tuple[CellKey, ...]
    failed: bool
    again: bool = False
    asked: bool = False

    @property
    def text(self) -> str:
        return f"{self.study}, {self.setting}{' again' if self.again else ''}"


@dataclass(frozen=True, slots=True)
class GateResult:
    """`reasons`: a sentence for each cell that failed it, or one on why it was not measured."""

    gate: Gate
    state: str
    reasons: tuple[str, ...] = ()


def hold(
    gates: Sequence[Gate],
    comparison: NightComparison | None,
    figures: Sequence[Figure],
    verified: Sequence[Verified],
    unmeasured: Sequence[Unmeasured] = (),
) -> tuple[GateResult, ...]:
    """Every gate's result. `comparison` None: there is no baseline yet. None passes over what was not measured."""
    return tuple(_held(gate, comparison, figures, verified, unmeasured) for gate in gates)


def lost(comparison: NightComparison | None, unmeasured: Sequence[Unmeasured], metric: str = TPOT) -> list[Unmatched]:
    """What the baseline measured, and tonight a launch failed that should have."""
    failed = {(one.study, one.setting, key) for one in unmeasured if one.failed and not one.again for key in one.keys}
    left = comparison.unmatched if comparison else ()
    return [one for one in left if one.metric == metric and (one.study, one.setting, one.key) in failed]


def _held(
    gate: Gate,
    comparison: NightComparison | None,
    figures: Sequence[Figure],
    verified: Sequence[Verified],
    unmeasured: Sequence[Unmeasured],
) -> GateResult:
    if gate.kind == "regress":
        return _regress(gate, comparison, unmeasured)
    first = [one for one in unmeasured if not one.again]
    if gate.kind == "verify":
        held, left = _verify(gate, verified), [one for one in first if not one.asked]
    else:
        left = [one for one in first if one.keys and not (one.setting == OFF and gate.metric in DRAFTS_ALONE)]
        held = _limit(gate, figures)
    if held.state != PASSED or not left:
        return held
    return GateResult(gate, NOT_MEASURED, tuple(f"{one.text}: not measured as planned" for one in left))


def _limit(gate: Gate, figures: Sequence[Figure]) -> GateResult:
    """Tonight's own figures held against a limit."""
    own = [figure for figure in figures if figure.metric == gate.metric]
    if not own:
        return GateResult(gate, NOT_MEASURED, (f"{gate.metric} was not measured in any cell",))
    bad = [one for one in own if (one.value > gate.limit if gate.kind == "above" else one.value < gate.limit)]
    reasons = tuple(f"{one.where}: {shown(gate.metric, one.value)}" for one in bad)
    return GateResult(gate, FAILED if bad else PASSED, reasons)


def _verify(gate: Gate, verified: Sequence[Verified]) -> GateResult:
    if not verified:
        return GateResult(gate, NOT_MEASURED, ("no losslessness check is stored with this night",))
    bad = tuple(f"{one.where}: the output is not the target's" for one in verified if not one.ok)
    return GateResult(gate, FAILED if bad else PASSED, bad)


def _regress(gate: Gate, comparison: NightComparison | None, unmeasured: Sequence[Unmeasured]) -> GateResult:
    """Failed where a regression is believed and is over the limit, or where what the baseline measured failed tonight:
    noise alone never fails a gate. Passed when nothing of the baseline is left to hold."""
    if comparison is None:
        return GateResult(gate, NOT_MEASURED, ("there is no baseline to compare with yet",))
    own = [change for change in comparison.changes if change.metric == gate.metric and change.worse is not None]
    gone = lost(comparison, unmeasured, gate.metric)
    bad = [_said(change) for change in own if change.state == REGRESSED and _over(change, gate.limit)]
    if bad or gone:
        return GateResult(gate, FAILED, (*bad, *_told(gone, comparison.before, "its launch failed")))
    if not own:
        return GateResult(gate, NOT_MEASURED, (f"no {gate.metric} was measured on the same prompts in both nights",))
    if all(change.reason for change in own):
        return GateResult(gate, NOT_MEASURED, (own[0].reason,))
    left = [one for one in comparison.unmatched if one.metric == gate.metric]
    return GateResult(gate, NOT_MEASURED if left else PASSED, tuple(_told(left, comparison.before)))


def _told(left: Sequence[Unmatched], before: str, why: str = "") -> Iterator[str]:
    """A sentence a setting on the cells that only the baseline tells of."""
    settings: dict[tuple[str, str], list[Unmatched]] = {}
    for one in left:
        settings.setdefault((one.study, one.setting), []).append(one)
    for (study, setting), cells in settings.items():
        reason = why or next((one.reason for one in cells if one.reason), "")
        many = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
        yield f"{study}, {setting}: {many} of {before} not measured tonight{f': {reason}' if reason else ''}"


def _over(change: Change, limit: float) -> bool:
    return change.worse is not None and abs(percent_worse(change.metric, change.worse.value)) > limit


def _said(change: Change) -> str:
    assert change.worse is not None
    where = f"{change.key.load.text}, temperature {change.key.temperature:g}" if change.key else "over all cells"
    low, high = sorted(percent_worse(change.metric, bound) for bound in (change.low, change.high))
    moved = percent_worse(change.metric, change.worse.value)
    return f"{change.study}, {change.setting}, {where}: {moved:+.1%} [{low:+.1%}, {high:+.1%}], n = {change.worse.n}"


def shown(metric: str, value: float) -> str:
    """A figure as people read it."""
    unit, per_one = UNITS[metric]
    digits = 3 if metric in ("tau", "speedup") else 1
    return f"{value * per_one:.{digits}f}{'x' if metric == 'speedup' else f' {unit}' if unit else ''}"


def is_red(results: Sequence[GateResult]) -> bool:
    return any(result.state == FAILED for result in results)
