"""Two nights on the same prompts: what regressed, what improved, and where there is no evidence of either."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tuner.decide.nights_metrics import worse_by
from tuner.decide.nights_noise import TPOT, Noise, noise_of
from tuner.decide.nights_sample import CellSample, NightSample, Place
from tuner.measure.records import CellKey
from tuner.measure.statistics import TIE_MARGIN, Estimate
from tuner.spec.gate import LOWER_IS_BETTER

#: The row over every setting of a study.
EVERYTHING = "every setting"
REGRESSED, IMPROVED, NO_EVIDENCE = "regressed", "improved", "no evidence"
#: What is always compared; gates may ask for more.
DEFAULT_METRICS = ("tpot_p50", "tau")
#: Launches whose luck enters a change: a setting's own, and off's, which every setting of a study is held against. Of
#: tau none, since acceptance does not hang on how fast a machine is. How much luck, off's drifts in that metric tell.
LAUNCHES: Mapping[str, tuple[int, int]] = {"tau": (0, 0), "speedup": (2, 2)}
#: So many chances to err has a row with launches' luck in it for one of a row without: Student's t of few degrees grows
#: much faster with the number of comparisons than the normal's quantile does.
LUCK_WEIGHT = 4


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of one setting, tonight over the baseline. `key` None: over all its cells; setting `EVERYTHING`: over
    all settings of the study, `averaged` of them. `loads`: how many it is a mean over.

    `worse`: how much worse, as a factor (1.08 is 8 percent worse, whichever way the metric points), with the interval
    of the paired prompts alone. `low`, `high`: the same widened by the noise between launches and by the number of
    comparisons; the state is decided on them.
    """

    study: str
    setting: str
    key: CellKey | None
    metric: str
    worse: Estimate | None
    low: float
    high: float
    state: str
    reason: str = ""
    averaged: int = 1
    loads: int = 1


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A figure of the baseline that tonight has none to compare with. `reason`: empty where its cell is not there."""

    study: str
    setting: str
    key: CellKey
    metric: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NightComparison:
    """`noise`: of TPOT; `noises`: of each metric compared. `missing`: (study, setting) pairs that only one of the
    nights measured, with a sentence each. `unmatched`: what the baseline measured and no change tells of.
    """

    before: str
    after: str
    changes: tuple[Change, ...]
    noise: Noise
    missing: tuple[str, ...] = ()
    noises: Mapping[str, Noise] = field(default_factory=dict)
    unmatched: tuple[Unmatched, ...] = ()

    def with_state(self, state: str) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.state == state)


def compare_nights(
    before: NightSample,
    after: NightSample,
    metrics: Sequence[str] = DEFAULT_METRICS,
    earlier: Sequence[NightSample] = (),
    seed: int = 0,
) -> NightComparison:
    """Every setting and cell that both nights measured. `earlier`: nights before, of which off's drifts count."""
    noises = {metric: noise_of((before, after), earlier, metric) for metric in dict.fromkeys((*metrics, TPOT))}
    there = after.by_place()
    shared = [(cell, there[cell.place]) for cell in before.cells if cell.place in there]
    changes: list[Change] = []
    for metric in metrics:
        changes += _of_metric(metric, shared, before, after, seed)
    judged = tuple(_judged(change, noises[change.metric], _comparisons(change, changes)) for change in changes)
    left = tuple(one for metric in metrics for one in _unmatched(metric, before, after, changes))
    return NightComparison(before.run, after.run, judged, noises[TPOT], tuple(_missing(before, after)), noises, left)


def _of_metric(
    metric: str,
    shared: Sequence[tuple[CellSample, CellSample]],
    before: NightSample,
    after: NightSample,
    seed: int,
) -> list[Change]:
    """Each setting's cells, with one row over all of them first where there are several."""
    found: dict[tuple[str, str], list[Change]] = {}
    for old, new in shared:
        if not _applies(metric, old):
            continue
        offs = (before.off_of(old), after.off_of(new))
        worse = worse_by(metric, old, new, offs, seed)
        reason = "" if worse else _why_none(old, new, metric)
        change = Change(old.study, old.setting, old.key, metric, worse, math.nan, math.nan, NO_EVIDENCE, reason)
        found.setdefault((old.study, old.setting), []).append(change)
    rows: list[Change] = []
    for study in dict.fromkeys(study for study, _ in found):
        settings = {setting: cells for (one, setting), cells in found.items() if one == study}
        means = {setting: _mean([one.worse for one in cells]) for setting, cells in settings.items()}
        known = [mean for mean in means.values() if mean is not None]
        if len(known) > 1:
            loads = min(_loads(settings[setting]) for setting, mean in means.items() if mean is not None)
            rows.append(_row(study, EVERYTHING, metric, _mean(known), loads, len(known)))
        for setting, cells in settings.items():
            if len(cells) > 1 and means[setting] is not None:
                rows.append(_row(study, setting, metric, means[setting], _loads(cells)))
            rows += cells
    return rows


def _row(
    study: str, setting: str, metric: str, worse: Estimate | None, loads: int, averaged: int = 1
) -> Change:  # fmt: skip
    return Change(
        study, setting, None, metric, worse, math.nan, math.nan, NO_EVIDENCE, averaged=averaged, loads=loads
    )  # fmt: skip


def _loads(cells: Sequence[Change]) -> int:
    return len({one.key.load for one in cells if one.key is not None})


def _comparisons(change: Change, changes: Sequence[Change]) -> float:
    """How many chances to err a row shares: half of them for the rows over everything, half for all others, so that
    a slowdown of everything is not lost among the many cells it is seen in; by weight, see LUCK_WEIGHT."""
    alike = [one for one in changes if (one.setting == EVERYTHING) == (change.setting == EVERYTHING)]
    halves = 2 if len(alike) < len(changes) else 1
    return halves * sum(_weight(one) for one in alike if one.worse is not None) / _weight(change)


def _weight(change: Change) -> int:
    return LUCK_WEIGHT if any(_launches(change.metric)) else 1


def _launches(metric: str) -> tuple[int, int]:
    return LAUNCHES.get(metric, (2, 0))


def _applies(metric: str, cell: CellSample) -> bool:
    return not (cell.is_off and metric in ("tau", "speedup"))


def _why_none(old: CellSample, new: CellSample, metric: str) -> str:
    for cell, night in ((old, "the baseline"), (new, "tonight")):
        if cell.blocked:
            return f"not compared: in {night} {cell.blocked}"
    return f"{metric} not measured on the same prompts in both nights"


def _unmatched(metric: str, before: NightSample, after: NightSample, changes: Sequence[Change]) -> Iterator[Unmatched]:
    own, there = before.by_place(), after.by_place()
    told = {(one.study, one.setting, one.key) for one in changes if one.metric == metric and one.worse is not None}
    for place in dict.fromkeys(cell.place for cell in before.cells):
        old = own[place]
        if place not in told and _applies(metric, old) and _has(metric, old):
            reason = _why_none(old, there[place], metric) if place in there else ""
            yield Unmatched(old.study, old.setting, old.key, metric, reason)


def _has(metric: str, cell: CellSample) -> bool:
    """Whether a cell has the metric; speed-up is made of times per token."""
    columns = cell.columns(TPOT if metric == "speedup" else metric)
    return not cell.blocked and bool(np.isfinite(columns).all(axis=1).any())


def _mean(ratios: Sequence[Estimate | None]) -> Estimate | None:
    """Geometric mean over a setting's cells, which hold independent requests: variances of the logs add."""
    known = [one for one in ratios if one is not None and one.low > 0]
    if len(known) < len(ratios) or not known:
        return None
    middle = sum(math.log(one.value) for one in known) / len(known)
    half = math.sqrt(sum((math.log(one.high / one.low) / 2) ** 2 for one in known)) / len(known)
    return Estimate(math.exp(middle), math.exp(middle - half), math.exp(middle + half), min(one.n for one in known))


def _judged(change: Change, noise: Noise, comparisons: float) -> Change:
    """The interval with the noise between launches in it, for the worst of so many comparisons; and its state."""
    worse = change.worse
    if worse is None or worse.low <= 0:
        return change
    own, shared = _launches(change.metric)
    launches = own / change.averaged + shared  # the mean over settings evens out their own alone
    low, high = noise.widened(worse, launches, comparisons, change.loads)
    state, reason = NO_EVIDENCE, ""
    if launches and noise.launch is None:
        reason = "off was measured once a night: what two launches differ by is not known"
    elif low > 1 and worse.value > 1 + TIE_MARGIN:
        state = REGRESSED
    elif high < 1 and worse.value < 1 - TIE_MARGIN:
        state = IMPROVED
    return replace(change, low=low, high=high, state=state, reason=reason or change.reason)


def percent_worse(metric: str, worse: float) -> float:
    """The change of the metric itself, as a share: TPOT 1.08 times is +0.08, throughput 1.25 times worse is -0.2."""
    return worse - 1 if metric in LOWER_IS_BETTER else 1 / worse - 1


def _missing(before: NightSample, after: NightSample) -> list[str]:
    def settings(night: NightSample) -> dict[tuple[str, str], None]:
        return dict.fromkeys((cell.study, cell.setting) for cell in night.cells)

    old, new = settings(before), settings(after)
    told = [f"{study}, {setting}: in {before.run} alone" for study, setting in old if (study, setting) not in new]
    told += [f"{study}, {setting}: in {after.run} alone" for study, setting in new if (study, setting) not in old]
    places: set[Place] = {cell.place for cell in before.cells} ^ {cell.place for cell in after.cells}
    cells = sorted({(p[0], p[1]) for p in places if (p[0], p[1]) in old and (p[0], p[1]) in new})
    return told + [f"{study}, {setting}: some of its cells in one night alone" for study, setting in cells]
