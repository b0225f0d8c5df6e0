"""Two arms on the same requests: how many times better the second is, paired, with its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tuner.measure.records import Cell, RequestRecord
from tuner.measure.statistics import (
    Array,
    Estimate,
    bootstrap,
    bootstrap_median_ratio,
    bootstrap_sums,
    floored_mean_ratio,
    mean_ratio,
)
from tuner.measure.summary import meets_slo

Pair = tuple[RequestRecord, RequestRecord]


def pairs(first: Cell, second: Cell) -> list[Pair]:
    """Requests both arms completed, matched by their place in the sequence and their prompt."""
    return _paired(first.completed, second.completed)


def _paired(first: Sequence[RequestRecord], second: Sequence[RequestRecord]) -> list[Pair]:
    other = {(r.index, r.prompt): r for r in second}
    return [(r, other[(r.index, r.prompt)]) for r in first if (r.index, r.prompt) in other]


def compare(first: Cell, second: Cell, objective: str, slo_ms: Mapping[str, float], seed: int = 0) -> Estimate | None:
    """How many times better `second` is on the objective; None when no ratio is defined."""
    both = pairs(first, second)
    if objective == "tpot_p50":
        return tpot_ratio(both, seed, median=True)
    # A failed request brings no token and meets no objective: leaving it out would reward losing it.
    sent = _paired(first.measured, second.measured)
    if objective == "throughput":
        rows = [[*_tokens_and_time(a), *_tokens_and_time(b)] for a, b in sent]
        return bootstrap_sums(rows, _throughput_ratio, seed)[0]
    good = [[float(meets_slo(b, slo_ms)), float(meets_slo(a, slo_ms))] for a, b in sent]
    return bootstrap(good, floored_mean_ratio, seed)


def tpot_ratio(both: list[Pair], seed: int = 0, *, median: bool) -> Estimate | None:
    """TPOT of the first arm over TPOT of the second: the speed-up of the second."""
    rows = [[a.tpot_s, b.tpot_s] for a, b in both if a.tpot_s and b.tpot_s]
    return bootstrap_median_ratio(rows, seed) if median else bootstrap(rows, mean_ratio, seed)


def _tokens_and_time(request: RequestRecord) -> tuple[float, float]:
    return float(request.n_out) if request.ok else 0.0, request.ended_s


def _throughput_ratio(total: Array) -> Array:
    """Tokens over time in the system, second over first: in a closed loop proportional to throughput."""
    return np.asarray(total[..., 2:3] / total[..., 3:] / (total[..., :1] / total[..., 1:2]))
