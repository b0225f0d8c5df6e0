"""Whether one run of an arm tells tau of every smaller N: assumed where drafting is autoregressive, tested elsewhere.

The rule is the prefix sum, or for lookups that copies are cut into more steps (`measure/split_rule.py`). Two measured N
that disagree refuse it for any method (DEFINITIONS, Formulas).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from tuner.decide.evidence import Evidence
from tuner.measure.profile import Figure, PrefixSum
from tuner.measure.statistics import Array, bootstrap_sums
from tuner.spec.speculation import AUTOREGRESSIVE_METHODS, LOOKUP_METHODS, SpecConfig

RESAMPLES = 500


def refused(evidence: Evidence, chains: Sequence[SpecConfig]) -> PrefixSum | None:
    """The first pair of launched N whose acceptance contradicts the rule; None: no pair does, or none exists."""
    return next((pair for pair in launched_pairs(evidence, chains) if not pair.holds), None)


def holds(evidence: Evidence, chains: Sequence[SpecConfig]) -> bool:
    """`chains`: of one arm."""
    return told_by(chains, launched_pairs(evidence, chains))


def told_by(chains: Sequence[SpecConfig], pairs: Sequence[PrefixSum]) -> bool:
    """Lookups need two launched N that agree."""
    if not chains or chains[0].method not in AUTOREGRESSIVE_METHODS | LOOKUP_METHODS:
        return False
    return all(pair.holds for pair in pairs) and (bool(pairs) or chains[0].method in AUTOREGRESSIVE_METHODS)


def launched_pairs(evidence: Evidence, chains: Sequence[SpecConfig]) -> tuple[PrefixSum, ...]:
    """Neighbouring launched N at one temperature, set against each other."""
    wanted = set(chains)
    launched = sorted({one.spec for one in evidence.tried if one.spec in wanted and one.cells}, key=lambda s: s.n)
    if len(launched) < 2:
        return ()
    found = []
    for temperature in dict.fromkeys(key.temperature for key in evidence.keys):
        runs = [(spec.n, _taus(evidence, spec, temperature)) for spec in launched]
        known = [(n, taus) for n, taus in runs if taus]
        for (shorter, own), (longer, told) in itertools.pairwise(known):
            found.append(PrefixSum(shorter, longer, own[-1], told[shorter - 1]))
    return tuple(found)


def _taus(evidence: Evidence, spec: SpecConfig, temperature: float) -> list[Figure]:
    """tau(1..n) of all loads at one temperature; a prompt is one unit, however often it ran."""
    cells = [one.cells[key] for one in evidence.tried if one.spec == spec for key in one.cells]
    told = [c.rows for c in cells if c.key.temperature == temperature and c.rows and c.rows.tau.shape[1] >= spec.n]
    if not told:
        return []
    prompts = [prompt for rows in told for _, prompt in rows.ids]
    place = {prompt: i for i, prompt in enumerate(dict.fromkeys(prompts))}
    at = np.array([place[prompt] for prompt in prompts], dtype=np.intp)
    steps = np.concatenate([rows.steps for rows in told])
    taus = np.concatenate([rows.tau[:, : spec.n] for rows in told])
    # A shorter draft of a head leaves steps as they are and brings fewer tokens; a shorter copy brings the same tokens
    # in more steps.
    lookup = spec.method in LOOKUP_METHODS
    whole = (taus[:, -1:] * steps[:, None]) if lookup else steps[:, None]
    each = whole / taus if lookup else whole * taus
    sums = np.zeros((len(place), spec.n + 1))
    np.add.at(sums, at, np.column_stack([whole, each]))

    def pooled(total: Array) -> Array:
        ratio = total[..., 1:] / total[..., :1]
        return 1 / ratio if lookup else ratio

    estimates = bootstrap_sums(sums.tolist(), pooled, evidence.seed, RESAMPLES)
    return [
        Figure(e.value, e.low, e.high) if e else Figure(float(value))
        for e, value in zip(estimates, pooled(sums.sum(axis=0)), strict=True)
    ]
