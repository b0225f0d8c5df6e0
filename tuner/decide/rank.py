"""Which setting to use in each cell, and which one for all of them. `off` is a candidate everywhere and may win."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.decide.evidence import Evidence
from tuner.measure.records import CellKey
from tuner.measure.statistics import Estimate, is_tie
from tuner.measure.summary import CellSummary
from tuner.spec.speculation import OFF, SpecConfig

#: What a method adds to memory, least first; the last tie-breaker.
MEMORY_ORDER = ("off", "ngram", "suffix", "mtp", "medusa", "eagle", "eagle3", "dflash", "dspark", "draft_model")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One configuration against off in one cell. `ratio`: the gain in the objective, above 1 is better.

    `lossy`: why its output is not the target's; such a setting is shown and never advised.
    """

    spec: SpecConfig
    key: CellKey
    ratio: Estimate | None
    feasible: bool
    missed_slos: tuple[str, ...]
    believed: bool
    lossy: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do in one cell. `ties`: settings not told apart from the best; `drift`: off again over off."""

    key: CellKey
    best: SpecConfig
    ratio: Estimate | None
    reason: str
    ties: tuple[SpecConfig, ...]
    comparisons: tuple[Comparison, ...]
    drift: Estimate | None

    @property
    def on(self) -> bool:
        return not self.best.is_off


@dataclass(frozen=True, slots=True)
class Overall:
    """The one setting for the stated traffic, cells weighted alike. `regret`: what it loses to switching per cell."""

    best: SpecConfig
    ratio: Estimate | None
    worst: tuple[CellKey, float] | None
    regret: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class Recommendation:
    verdicts: tuple[Verdict, ...]
    overall: Overall


def recommend(evidence: Evidence) -> Recommendation:
    """A verdict for every cell that off was measured in, and one for all of them."""
    verdicts = tuple(_verdict(evidence, key) for key in evidence.keys if evidence.baseline(key))
    return Recommendation(verdicts, _overall(evidence, verdicts))


def missed_slos(cell: CellSummary, slo_ms: Sequence[tuple[str, float]]) -> tuple[str, ...]:
    """The objectives whose percentile is over its limit, or was not measured."""
    missed = []
    for name, limit_ms in slo_ms:
        seen = cell.percentiles_s.get(name.removesuffix("_ms"))
        if seen is None:
            missed.append(f"{name}: not measured")
        elif seen * 1000 > limit_ms:
            missed.append(f"{name}: {seen * 1000:.1f} over {limit_ms:g}")
    return tuple(missed)


def _verdict(evidence: Evidence, key: CellKey) -> Verdict:
    drift = evidence.drift(key.load)
    comparisons = tuple(
        _comparison(evidence, spec, key, drift) for spec in evidence.specs() if evidence.best_trial(spec, key)
    )
    off = next(c for c in comparisons if c.spec.is_off)
    feasible = [c for c in comparisons if c.feasible]
    if not feasible:
        reason = f"no setting meets the SLO here (off: {'; '.join(off.missed_slos)})"
        return Verdict(key, OFF, None, reason, (), comparisons, drift)
    winners = [c for c in feasible if c.believed and c.ratio is not None]
    if not winners:
        return Verdict(key, OFF, None, _why_off(comparisons, drift), _tied_with_off(comparisons), comparisons, drift)
    best = max(winners, key=lambda c: c.ratio.value if c.ratio else 0.0)
    tied = [c for c in winners if c is best or _tie(evidence, best.spec, c.spec, key)]
    chosen = min(tied, key=lambda c: _cost(c.spec))
    ties = tuple(c.spec for c in tied if c is not chosen)
    return Verdict(key, chosen.spec, chosen.ratio, _why_on(chosen, ties), ties, comparisons, drift)


def _comparison(evidence: Evidence, spec: SpecConfig, key: CellKey, drift: Estimate | None) -> Comparison:
    one = evidence.best_trial(spec, key)
    assert one is not None
    missed = missed_slos(one.cells[key], evidence.slo_ms)
    ratio = None if spec.is_off else evidence.ratio(OFF, spec, key)
    cell = one.trial.cell(key)
    lossy = cell.lossy if cell else None
    return Comparison(spec, key, ratio, not missed, missed, lossy is None and _believed(ratio, drift), lossy)


def _believed(ratio: Estimate | None, drift: Estimate | None) -> bool:
    """A gain is believed when its whole interval is above 1, it is over a tie, and it exceeds the off runs' drift."""
    if ratio is None or is_tie(ratio) or ratio.value <= 1:
        return False
    return drift is None or ratio.value - 1 > abs(drift.value - 1)


def _tie(evidence: Evidence, best: SpecConfig, other: SpecConfig, key: CellKey) -> bool:
    ratio = evidence.ratio(other, best, key)
    return ratio is not None and is_tie(ratio)


def _cost(spec: SpecConfig) -> tuple[int, int, str]:
    nodes = spec.tree.nodes - 1 if spec.tree else spec.n
    return (nodes, MEMORY_ORDER.index(spec.method), spec.label)


def _tied_with_off(comparisons: Sequence[Comparison]) -> tuple[SpecConfig, ...]:
    return tuple(c.spec for c in comparisons if c.ratio is not None and c.lossy is None and is_tie(c.ratio))


def _why_off(comparisons: Sequence[Comparison], drift: Estimate | None) -> str:
    tried = [c for c in comparisons if c.ratio is not None and c.lossy is None]
    if not tried:
        lossy = next((c.lossy for c in comparisons if c.lossy), None)
        return f"no lossless setting was measured here: {lossy}" if lossy else "nothing but off was measured here"
    best = max(tried, key=lambda c: c.ratio.value if c.ratio else 0.0)
    assert best.ratio is not None
    shown = f"{best.spec.label} at {ratio_text(best.ratio)}"
    if not best.feasible:
        return f"the best, {shown}, misses the SLO ({'; '.join(best.missed_slos)})"
    if best.ratio.high < 1:
        return f"every setting is slower than off; the least slow is {shown}"
    if is_tie(best.ratio):
        return f"no setting is told apart from off; the best is {shown}"
    moved = f"{abs(drift.value - 1):.1%}" if drift else "an unknown amount"
    return f"the best, {shown}, gains no more than off itself drifted between its two runs ({moved})"


def _why_on(chosen: Comparison, ties: Sequence[SpecConfig]) -> str:
    assert chosen.ratio is not None
    reason = f"{chosen.spec.label} against off: {ratio_text(chosen.ratio)}"
    if ties:
        reason += f"; tied with {', '.join(spec.label for spec in ties)}, and the smaller N wins a tie"
    return reason


def _overall(evidence: Evidence, verdicts: Sequence[Verdict]) -> Overall:
    """The setting with the highest geometric-mean ratio over all cells, if its interval and ties allow the claim."""
    specs = dict.fromkeys(c.spec for v in verdicts for c in v.comparisons if not c.spec.is_off)
    scored = [(spec, score) for spec in specs if (score := _mean_ratio(verdicts, spec)) is not None]
    claims = [
        (spec, score) for spec, score in scored if not is_tie(score) and score.value > 1 and _safe(verdicts, spec)
    ]
    if not claims:
        return Overall(OFF, None, None, _regret(verdicts, OFF), _why_overall_off(scored))
    highest, _ = max(claims, key=lambda pair: pair[1].value)
    tied = [
        (spec, score) for spec, score in claims if spec == highest or _tie_overall(evidence, verdicts, highest, spec)
    ]
    best, ratio = min(tied, key=lambda pair: _cost(pair[0]))
    cells = [(v.key, c.ratio.value) for v in verdicts for c in v.comparisons if c.spec == best and c.ratio]
    worst = min(cells, key=lambda pair: pair[1])
    reason = f"highest mean gain over the {len(cells)} cells, each weighted alike"
    if best != highest:
        reason = (
            f"tied with {highest.label}, which has the highest mean gain over the {len(cells)} cells; smaller N wins"
        )
    return Overall(best, ratio, worst, _regret(verdicts, best), reason)


def _mean_ratio(verdicts: Sequence[Verdict], spec: SpecConfig) -> Estimate | None:
    """A setting's ratio to off over all cells."""
    return geometric_mean([c.ratio for v in verdicts for c in v.comparisons if c.spec == spec], len(verdicts))


def _tie_overall(evidence: Evidence, verdicts: Sequence[Verdict], best: SpecConfig, other: SpecConfig) -> bool:
    mean = geometric_mean([evidence.ratio(other, best, verdict.key) for verdict in verdicts], len(verdicts))
    return mean is not None and is_tie(mean)


def geometric_mean(ratios: Sequence[Estimate | None], cells: int) -> Estimate | None:
    """Of one ratio a cell; None unless all cells have one. Cells are independent runs: variances of the logs add."""
    if len(ratios) < cells or not ratios:
        return None
    logs, variance = 0.0, 0.0
    for ratio in ratios:
        if ratio is None or ratio.low <= 0:
            return None
        logs += math.log(ratio.value)
        variance += (math.log(ratio.high / ratio.low) / (2 * 1.96)) ** 2
    middle, half = logs / len(ratios), 1.96 * math.sqrt(variance) / len(ratios)
    n = min(ratio.n for ratio in ratios if ratio)
    return Estimate(math.exp(middle), math.exp(middle - half), math.exp(middle + half), n)


def _safe(verdicts: Sequence[Verdict], spec: SpecConfig) -> bool:
    """Whether the setting meets the SLO wherever off does, and is lossless everywhere."""
    for verdict in verdicts:
        if any(c.lossy for c in verdict.comparisons if c.spec == spec):
            return False
        off_ok = any(c.feasible for c in verdict.comparisons if c.spec.is_off)
        if off_ok and any(not c.feasible for c in verdict.comparisons if c.spec == spec):
            return False
    return True


def _regret(verdicts: Sequence[Verdict], spec: SpecConfig) -> float | None:
    """Mean loss of one setting everywhere against each cell's own best, as a share."""
    losses = []
    for verdict in verdicts:
        own = next((c.ratio.value for c in verdict.comparisons if c.spec == spec and c.ratio), 1.0)
        best = verdict.ratio.value if verdict.ratio else 1.0
        losses.append(math.log(best / own))
    return math.expm1(sum(losses) / len(losses)) if losses else None


def _why_overall_off(scored: Sequence[tuple[SpecConfig, Estimate]]) -> str:
    if not scored:
        return "no setting was measured in every cell beside off"
    spec, ratio = max(scored, key=lambda pair: pair[1].value)
    return f"no single setting is better over all cells; the best is {spec.label} at {ratio_text(ratio)}"


def ratio_text(ratio: Estimate) -> str:
    """`1.31x [1.22, 1.40], n = 24`: no ratio is shown without its interval and n."""
    return f"{ratio.value:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}], n = {ratio.n}"
