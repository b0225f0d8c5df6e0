"""Several engines asked the same question: each one's advice against the others', on the same prompts and limits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.decide.evidence import Evidence
from tuner.decide.launch_luck import launch_luck
from tuner.decide.rank import Recommendation, geometric_mean
from tuner.measure.compare import compare
from tuner.measure.records import Cell, CellKey
from tuner.measure.statistics import Estimate, is_tie, widened
from tuner.measure.summary import CellSummary
from tuner.spec.speculation import SpecConfig


@dataclass(frozen=True, slots=True)
class Row:
    """One setting of one engine in one cell. `ratio`: how many times better than the first engine's off there."""

    key: CellKey
    engine: str
    spec: SpecConfig
    cell: CellSummary
    ratio: Estimate | None
    lossy: str | None


@dataclass(frozen=True, slots=True)
class Duel:
    """Each engine at its own overall advice: how many times better `second` is than `first`, over all common
    cells, each weighted by its share of the traffic; its interval holds the spread of their requests alone.
    `luck`: standard deviation of the log of what launching both once more may move it by.
    """

    first: str
    second: str
    ratio: Estimate | None
    luck: float = 0.0

    @property
    def claim(self) -> Estimate | None:
        """The ratio as it may be told: with the luck of both engines' launches in its interval."""
        return widened(self.ratio, 1, self.luck) if self.ratio else None

    @property
    def winner(self) -> str | None:
        """None where the two are not told apart, by their requests or by more than the luck of their launches."""
        claim = self.claim
        if claim is None or is_tie(claim):
            return None
        return self.second if claim.value > 1 else self.first


def rows(evidence: Mapping[str, Evidence]) -> tuple[Row, ...]:
    """Every measured setting of every engine, cell by cell; lossy ones last in their cell and without a rank."""
    engines = list(evidence)
    keys = dict.fromkeys(key for one in evidence.values() for key in one.keys)
    found = []
    for key in keys:
        base = _cell(evidence[engines[0]], SpecConfig(), key)
        for engine in engines:
            for spec in evidence[engine].specs():
                if (one := evidence[engine].best_trial(spec, key)) is None:
                    continue
                cell = _cell(evidence[engine], spec, key)
                ratio = _ratio(evidence[engine], base, cell)
                found.append(Row(key, engine, spec, one.cells[key], ratio, cell.lossy if cell else None))
    return tuple(sorted(found, key=lambda row: (list(keys).index(row.key), row.lossy is not None)))


def duels(evidence: Mapping[str, Evidence], advice: Mapping[str, Recommendation]) -> tuple[Duel, ...]:
    """Every pair of engines, each at the one setting it is advised to run (a lossy one is never advised)."""
    engines = list(evidence)
    pairs = [(a, b) for i, a in enumerate(engines) for b in engines[i + 1 :]]
    luck = {engine: launch_luck(evidence[engine]) for engine in engines}
    # Either engine's launch may be off by all that two of its launches differ by, and known from one pair each: both
    # count whole.
    return tuple(
        Duel(a, b, _duel(evidence[a], evidence[b], advice[a], advice[b]), math.hypot(luck[a], luck[b]))
        for a, b in pairs
    )


def best_engine(duelled: Sequence[Duel], engines: Sequence[str]) -> str | None:
    """The engine that beats every other; None where that is not told."""
    for engine in engines:
        own = [duel for duel in duelled if engine in (duel.first, duel.second)]
        if own and all(duel.winner == engine for duel in own):
            return engine
    return None


def _duel(first: Evidence, second: Evidence, one: Recommendation, other: Recommendation) -> Estimate | None:
    ratios, weights = [], []
    for key in first.keys:
        a, b = _cell(first, one.overall.best, key), _cell(second, other.overall.best, key)
        if a is not None and b is not None:
            ratios.append(_ratio(first, a, b))
            weights.append(first.weight_of(key))
    return geometric_mean(ratios, len(ratios), weights)


def _cell(evidence: Evidence, spec: SpecConfig, key: CellKey) -> Cell | None:
    one = evidence.best_trial(spec, key)
    return one.trial.cell(key) if one else None


def _ratio(evidence: Evidence, first: Cell | None, second: Cell | None) -> Estimate | None:
    if first is None or second is None:
        return None
    return compare(first, second, evidence.objective, dict(evidence.slo_ms), evidence.seed)
