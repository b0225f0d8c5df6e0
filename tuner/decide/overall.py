"""One setting for all of the stated traffic: its gain over the mix, its worst cell, and what it loses to switching."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.decide.evidence import Evidence
from tuner.decide.launch_luck import launch_luck
from tuner.decide.verdict import Verdict, cost, mean_text
from tuner.measure.records import CellKey
from tuner.measure.statistics import Z95, Estimate, is_tie, widened
from tuner.spec.speculation import OFF, SpecConfig

#: A setting and its mean gain over off.
Scored = tuple[SpecConfig, Estimate]


@dataclass(frozen=True, slots=True)
class Overall:
    """The one setting for the stated traffic. `regret`: what it loses, on the average of the mix, to switching per
    cell; `worst`: the cell where its gain over off is least; `worst_loss`: the most it loses to a cell's own best.
    """

    best: SpecConfig
    ratio: Estimate | None
    worst: tuple[CellKey, float] | None
    regret: float | None
    reason: str
    worst_loss: tuple[CellKey, float] | None = None


def overall_of(evidence: Evidence, verdicts: Sequence[Verdict]) -> Overall:
    """The setting with the highest geometric-mean ratio over the mix, if its interval and ties allow the claim."""
    specs = list(dict.fromkeys(c.spec for v in verdicts for c in v.comparisons if not c.spec.is_off))
    scored = [(spec, score) for spec in specs if (score := mean_gain(evidence, verdicts, spec)) is not None]
    luck = launch_luck(evidence)
    safe = [(spec, score) for spec, score in scored if _safe(verdicts, spec)]
    rescuing = [(spec, score) for spec, score in safe if _rescues(verdicts, spec)]
    claims = _simplest(evidence, verdicts, rescuing or _gains(verdicts, safe, len(specs), luck), safe, luck)
    if not claims:
        reason = _why_off(evidence, verdicts, scored)
        return Overall(OFF, None, None, regret(evidence, verdicts, OFF), reason, worst_loss(verdicts, OFF))
    highest, _ = max(claims, key=lambda pair: pair[1].value)
    tied = [(s, score) for s, score in claims if s == highest or _tie(evidence, verdicts, highest, s, luck)]
    best, ratio = min(tied, key=lambda pair: cost(pair[0]))
    cells = [(v.key, c.ratio.value) for v in verdicts for c in v.comparisons if c.spec == best and c.ratio]
    worst = min(cells, key=lambda pair: pair[1])
    weighted = "weighted by its share of the traffic" if evidence.weights else "each weighted alike"
    reason = f"highest mean gain over the {len(cells)} cells, {weighted}"
    if rescuing:
        reason = f"off misses the SLO in some cells and this one meets it in all; {reason} among such"
    if best != highest:
        rule = "one N wins a tie with N by load" if highest.by_load else "the smaller N wins a tie"
        reason = f"tied with {highest.label}, which has the highest mean gain over the {len(cells)} cells, and {rule}"
    return Overall(best, ratio, worst, regret(evidence, verdicts, best), reason, worst_loss(verdicts, best))


def _gains(verdicts: Sequence[Verdict], safe: Sequence[Scored], tried: int, luck: float) -> list[Scored]:
    """Those whose gain is believed. The luck of a launch is in all its cells alike: their mean has it whole."""
    on = any(verdict.on for verdict in verdicts)
    better = [(spec, score) for spec, score in safe if score.value > 1 and not is_tie(widened(score, tried, luck))]
    return [(spec, score) for spec, score in better if on or not spec.by_load]


def _simplest(
    evidence: Evidence, verdicts: Sequence[Verdict], claims: Sequence[Scored], safe: Sequence[Scored], luck: float
) -> list[Scored]:
    """Without N by load that is not told apart from one N for which nothing is claimed: it is no better than that."""
    one_n = [spec for spec, _ in safe if not spec.by_load and spec not in dict(claims)]
    return [
        (spec, score)
        for spec, score in claims
        if not (spec.by_load and any(_tie(evidence, verdicts, spec, other, luck) for other in one_n))
    ]


def regret(evidence: Evidence, verdicts: Sequence[Verdict], spec: SpecConfig) -> float | None:
    """Weighted mean loss of one setting everywhere against each cell's own best, as a share."""
    total, losses = 0.0, 0.0
    for verdict in verdicts:
        weight = evidence.weight_of(verdict.key)
        total += weight
        losses += weight * math.log(_best_gain(verdict) / _gain(verdict, spec))
    return math.expm1(losses / total) if total else None


def worst_loss(verdicts: Sequence[Verdict], spec: SpecConfig) -> tuple[CellKey, float] | None:
    """The cell where the setting is furthest behind the cell's own best, and by what share of that."""
    losses = [(v.key, max(0.0, 1 - _gain(v, spec) / _best_gain(v))) for v in verdicts]
    return max(losses, key=lambda pair: pair[1], default=None)


def _gain(verdict: Verdict, spec: SpecConfig) -> float:
    return next((c.ratio.value for c in verdict.comparisons if c.spec == spec and c.ratio), 1.0)


def _best_gain(verdict: Verdict) -> float:
    return verdict.ratio.value if verdict.ratio else 1.0


def mean_gain(evidence: Evidence, verdicts: Sequence[Verdict], spec: SpecConfig) -> Estimate | None:
    """A setting's ratio to off over all cells; None unless all have one."""
    ratios = [next((c.ratio for c in v.comparisons if c.spec == spec), None) for v in verdicts]
    return geometric_mean(ratios, len(verdicts), [evidence.weight_of(v.key) for v in verdicts])


def _tie(evidence: Evidence, verdicts: Sequence[Verdict], best: SpecConfig, other: SpecConfig, luck: float) -> bool:
    """Between settings of one N the better one is kept on its requests alone; N by load, which costs people more, is
    not called better than one N by what may be the luck of a launch."""
    ratios = [evidence.ratio(other, best, verdict.key) for verdict in verdicts]
    mean = geometric_mean(ratios, len(verdicts), [evidence.weight_of(v.key) for v in verdicts])
    return mean is not None and is_tie(widened(mean, 1, luck if best.by_load else 0.0))


def geometric_mean(
    ratios: Sequence[Estimate | None], cells: int, weights: Sequence[float] | None = None
) -> Estimate | None:
    """Of one ratio a cell; None unless all cells have one. Every cell was sent the same prompts, so that what is due to
    them is due to them in all: errors of the logs are held to be one and the same, and add. Of one cell it is that
    cell's own."""
    if len(ratios) < cells or not ratios:
        return None
    if len(ratios) == 1:
        return ratios[0]
    shares = weights or [1.0] * len(ratios)
    logs, error, total = 0.0, 0.0, sum(shares)
    for ratio, share in zip(ratios, shares, strict=True):
        if ratio is None or ratio.low <= 0:
            return None
        logs += share * math.log(ratio.value)
        error += share * ratio.log_sd
    middle, half = logs / total, Z95 * error / total
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


def _rescues(verdicts: Sequence[Verdict], spec: SpecConfig) -> bool:
    """Whether the setting meets the SLO in every cell, and off does not."""
    own = [c.feasible for v in verdicts for c in v.comparisons if c.spec == spec]
    return all(own) and not all(c.feasible for v in verdicts for c in v.comparisons if c.spec.is_off)


def _why_off(evidence: Evidence, verdicts: Sequence[Verdict], scored: Sequence[Scored]) -> str:
    if not scored:
        return "no setting can be held against off in every cell"
    safe = [(spec, score) for spec, score in scored if _safe(verdicts, spec)]
    if not safe:
        if not evidence.slo_ms:
            return "no setting is lossless in every cell"
        return "no setting is both lossless and within the SLO, where off is, in every cell"
    spec, ratio = max(safe, key=lambda pair: pair[1].value)
    worse = all(score.high < 1 for _, score in safe)
    found = "every setting is worse; the least so" if worse else "no setting is better by more than the noise; the best"
    return f"on the mean over all cells {found} is {spec.label} at {mean_text(ratio)}"
