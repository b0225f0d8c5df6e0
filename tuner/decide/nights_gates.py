"""Gates held against a night: what failed, what passed, and what could not be told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.decide.nights import REGRESSED, Change, NightComparison, percent_worse
from tuner.spec.gate import UNITS, Gate

FAILED, PASSED, NOT_MEASURED = "failed", "passed", "not measured"


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
) -> tuple[GateResult, ...]:
    """Every gate's result. `comparison` None: there is no baseline yet."""
    return tuple(_held(gate, comparison, figures, verified) for gate in gates)


def _held(
    gate: Gate, comparison: NightComparison | None, figures: Sequence[Figure], verified: Sequence[Verified]
) -> GateResult:
    if gate.kind == "verify":
        return _verify(gate, verified)
    if gate.kind == "regress":
        return _regress(gate, comparison)
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


def _regress(gate: Gate, comparison: NightComparison | None) -> GateResult:
    """Failed where a regression is believed and is over the limit: noise alone never fails a gate."""
    if comparison is None:
        return GateResult(gate, NOT_MEASURED, ("there is no baseline to compare with yet",))
    own = [change for change in comparison.changes if change.metric == gate.metric and change.worse is not None]
    if not own:
        return GateResult(gate, NOT_MEASURED, (f"no {gate.metric} was measured on the same prompts in both nights",))
    if all(change.reason for change in own):
        return GateResult(gate, NOT_MEASURED, (own[0].reason,))
    bad = [change for change in own if change.state == REGRESSED and _over(change, gate.limit)]
    return GateResult(gate, FAILED if bad else PASSED, tuple(_said(change) for change in bad))


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
