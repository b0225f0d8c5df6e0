"""Search where one setting does not tell another: launches ever closer to the better half of those measured.

Successive halving over the valid space of an arm's trees (or of a lookup method whose prefix sum was refused). A
launch is the unit: its start costs more than its requests, so rungs halve distance and not the number of requests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tuner.spec.speculation import SpecConfig

Place = tuple[float, ...]


def next_setting(settings: Sequence[SpecConfig], scores: Mapping[SpecConfig, float]) -> SpecConfig | None:
    """`scores`: of the launched settings, higher is better. None once as many were tried as the rungs have."""
    rest = [spec for spec in settings if spec not in scores]
    known = [spec for spec in settings if spec in scores]
    if not rest or not known or len(known) >= most_launches(len(settings)):
        return None
    places = _places(settings)
    ranked = sorted(known, key=lambda spec: -scores[spec])
    survivors = set(ranked[: math.ceil(len(ranked) / 2)])
    near = [s for s in rest if min(known, key=lambda other: _distance(places[s], places[other])) in survivors] or rest
    radius = 0.5 ** math.floor(math.log2(len(known) + 1) - 1)
    best = places[ranked[0]]
    return min(near, key=lambda spec: (abs(_distance(places[spec], best) - radius), spec.label))


def most_launches(settings: int) -> int:
    """Two launches for every halving of the space, and the first."""
    return 1 + 2 * math.ceil(math.log2(settings)) if settings > 1 else 1


def _places(settings: Sequence[SpecConfig]) -> dict[SpecConfig, Place]:
    """Each axis in logarithms, from 0 to 1 over the settings: doubling N matters alike at 1 and at 8."""
    raw = {spec: _axes(spec) for spec in settings}
    lows = [min(column) for column in zip(*raw.values(), strict=True)]
    widths = [max(column) - low or 1.0 for column, low in zip(zip(*raw.values(), strict=True), lows, strict=True)]
    return {
        spec: tuple((value - low) / width for value, low, width in zip(axes, lows, widths, strict=True))
        for spec, axes in raw.items()
    }


def _axes(spec: SpecConfig) -> Place:
    if spec.tree:
        return (math.log(spec.tree.depth), math.log(spec.tree.topk), math.log(spec.tree.nodes))
    return (math.log(spec.n), 0.0, math.log(spec.n + 1))


def _distance(one: Place, other: Place) -> float:
    return math.dist(one, other) / math.sqrt(len(one))
