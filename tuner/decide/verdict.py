"""Which setting to use in one cell. `off` is a candidate everywhere and may win."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.decide.evidence import Evidence
from tuner.decide.launch_luck import launch_luck
from tuner.decide.standing import Standing, standings, tied_with
from tuner.measure.records import CellKey
from tuner.measure.statistics import Estimate, is_tie, widened
from tuner.measure.summary import CellSummary
from tuner.spec.speculation import OFF, SpecConfig

#: What a method adds to memory, least first; the last tie-breaker.
MEMORY_ORDER = ("off", "ngram", "suffix", "mtp", "medusa", "eagle", "eagle3", "dflash", "dspark", "draft_model")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One configuration against off in one cell. `ratio`: the gain in the objective, above 1 is better. `believed`:
    a gain that is over a tie, beyond the drift of off, and beyond what the best of all comparisons reaches by chance,
    that of its requests and that of its launch.
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
class Chance:
    """What a gain is held against: how many comparisons were made, and what two launches differ by (`launch_luck`)."""

    comparisons: int
    luck: float

    def widened(self, ratio: Estimate) -> Estimate:
        return widened(ratio, self.comparisons, self.luck)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do in one cell. `reason` leaves the figures to `comparisons`; `ties`: settings not told apart from the
    best; `drift`: off again over off."""

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


def missed_slos(cell: CellSummary, slo_ms: Sequence[tuple[str, float]]) -> tuple[str, ...]:
    """The objectives whose percentile is over its limit, or was not measured."""
    missed = []
    for name, limit_ms in slo_ms:
        seen = cell.percentiles_s.get(name.removesuffix("_ms"))
        if seen is None:
            missed.append(f"{name}: not measured")
        elif math.isinf(seen):
            missed.append(f"{name}: over {limit_ms:g}, since so many requests failed")
        elif seen * 1000 > limit_ms:
            missed.append(f"{name}: {seen * 1000:.1f} over {limit_ms:g}")
    return tuple(missed)


def verdicts_of(evidence: Evidence) -> tuple[Verdict, ...]:
    """One for every cell that off was measured in."""
    chance = Chance(comparisons_made(evidence), launch_luck(evidence))
    return tuple(_verdict(evidence, key, chance) for key in evidence.keys if evidence.baseline(key))


def _verdict(evidence: Evidence, key: CellKey, chance: Chance) -> Verdict:
    """The best setting whose gain is believed; among those it is not told apart from, the cheapest."""
    drift = evidence.drift(key.load)
    measured = [spec for spec in evidence.specs() if evidence.best_trial(spec, key)]
    comparisons = tuple(_comparison(evidence, spec, key, drift, chance) for spec in measured)
    off = next(c for c in comparisons if c.spec.is_off)
    if not any(c.feasible for c in comparisons):
        reason = f"no setting meets the SLO here (off: {'; '.join(off.missed_slos)})"
        return Verdict(key, OFF, None, reason, (), comparisons, drift)
    winners = [c for c in comparisons if may_win(c, off)]
    if not winners:
        return Verdict(
            key, OFF, None, _why_off(comparisons, drift, chance), _tied_with_off(comparisons), comparisons, drift
        )
    found = standings(evidence, key)
    specs = [c.spec for c in winners]
    known = all(spec in found for spec in specs)
    best = _best(winners, found if known else {})
    tied = tied_with(best, found, specs) if known else _tied_by_ratio(evidence, best, specs, key)
    chosen = min((c for c in winners if c.spec == best or c.spec in tied), key=lambda c: cost(c.spec))
    ties = tuple(c.spec for c in winners if c is not chosen and (c.spec == best or c.spec in tied))
    return Verdict(key, chosen.spec, chosen.ratio, _why_on(off, ties), ties, comparisons, drift)


def may_win(one: Comparison, off: Comparison) -> bool:
    """Whether a setting may be advised in a cell: its gain is believed; or off, faster or not, misses the SLO and this
    one meets it. N by load is a setting for a mix of loads: at one load it is one N, and that one is judged itself."""
    if not one.feasible or one.lossy or one.spec.is_off or one.spec.by_load or one.ratio is None:
        return False
    return one.believed or not off.feasible


def comparisons_made(evidence: Evidence) -> int:
    """Settings set against off, over all cells: the more there are, the more the best of them owes to luck."""
    return sum(1 for spec in evidence.specs() if not spec.is_off for k in evidence.keys if evidence.best_trial(spec, k))


def cost(spec: SpecConfig) -> tuple[bool, int, int, str]:
    """What wins a tie, least first: one N before N by load, then tokens drafted, then memory."""
    nodes = spec.tree.nodes - 1 if spec.tree else spec.n
    return (spec.by_load, nodes, MEMORY_ORDER.index(spec.method), spec.label)


def _comparison(
    evidence: Evidence, spec: SpecConfig, key: CellKey, drift: Estimate | None, chance: Chance
) -> Comparison:
    one = evidence.best_trial(spec, key)
    assert one is not None
    missed = missed_slos(one.cells[key], evidence.slo_ms)
    ratio = None if spec.is_off else evidence.ratio(OFF, spec, key)
    lossy = one.lossy(key)
    return Comparison(spec, key, ratio, not missed, missed, lossy is None and _believed(ratio, drift, chance), lossy)


def _believed(ratio: Estimate | None, drift: Estimate | None, chance: Chance) -> bool:
    """A gain whose whole interval, widened by chance, is above 1, over a tie and over off's drift."""
    if ratio is None or ratio.value <= 1 or is_tie(chance.widened(ratio)):
        return False
    return drift is None or ratio.value - 1 > abs(drift.value - 1)


def _best(winners: Sequence[Comparison], found: Mapping[SpecConfig, Standing]) -> SpecConfig:
    if all(c.spec in found for c in winners):
        return min((c.spec for c in winners), key=lambda spec: found[spec].cost)
    return max(winners, key=lambda c: c.ratio.value if c.ratio else 0.0).spec


def _tied_by_ratio(evidence: Evidence, best: SpecConfig, specs: Sequence[SpecConfig], key: CellKey) -> list[SpecConfig]:
    ratios = {spec: evidence.ratio(spec, best, key) for spec in specs if spec != best}
    return [spec for spec, ratio in ratios.items() if ratio is not None and is_tie(ratio)]


def _tied_with_off(comparisons: Sequence[Comparison]) -> tuple[SpecConfig, ...]:
    tried = (c for c in comparisons if c.ratio is not None and c.lossy is None and not c.spec.by_load)
    return tuple(c.spec for c in tried if c.ratio is not None and is_tie(c.ratio))


def _why_off(comparisons: Sequence[Comparison], drift: Estimate | None, chance: Chance) -> str:
    tried = [c for c in comparisons if c.ratio is not None and c.lossy is None and not c.spec.by_load]
    if not tried:
        lossy = next((c.lossy for c in comparisons if c.lossy), None)
        if lossy:
            return f"no lossless setting was measured here: {lossy}"
        others = any(not c.spec.is_off for c in comparisons)
        return "too few requests to hold a setting against off" if others else "nothing but off was measured here"
    best = max(tried, key=lambda c: c.ratio.value if c.ratio else 0.0)
    assert best.ratio is not None
    shown = best.spec.label
    if not best.feasible:
        return f"the best, {shown}, misses the SLO ({'; '.join(best.missed_slos)})"
    if all(c.ratio.high < 1 for c in tried if c.ratio):
        return f"every setting is slower than off; the least slow is {shown}"
    if best.ratio.value <= 1 or is_tie(best.ratio):
        return f"no setting is better than off by more than the noise; the best is {shown}"
    if is_tie(widened(best.ratio, chance.comparisons)):
        return f"the best, {shown}, gains no more than the luckiest of {chance.comparisons} comparisons may by chance"
    moved = abs(drift.value - 1) if drift else 0.0
    if best.ratio.value - 1 <= moved:
        return f"the best, {shown}, gains no more than off itself drifted between its two runs ({moved:.1%})"
    low = chance.widened(best.ratio).low
    return (
        f"the best, {shown}, gains no more than two launches of one setting may differ by: with a standard deviation "
        f"of {chance.luck:.1%} between launches its interval begins at {low:.2f}x"
    )


def _why_on(off: Comparison, ties: Sequence[SpecConfig]) -> str:
    reason = "its gain stands clear of chance and of what launches differ by"
    if not off.feasible:
        reason = f"off misses the SLO ({'; '.join(off.missed_slos)}), and this one meets it"
    if ties:
        reason += f"; tied with {', '.join(spec.label for spec in ties)}, and the smaller N wins a tie"
    return reason


def ratio_text(ratio: Estimate) -> str:
    """`1.31x [1.22, 1.40], n = 24`: no ratio is shown without its interval and n."""
    return f"{ratio.value:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}], n = {ratio.n}"


def mean_text(ratio: Estimate) -> str:
    """Of a mean over cells, whose n is the least of one cell's."""
    return f"{ratio_text(ratio)} a cell"
