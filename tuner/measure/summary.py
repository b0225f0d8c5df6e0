"""A cell's figures with their intervals: latency, throughput, goodput, step time and acceptance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tuner.measure.acceptance import AcceptanceCounts, pool, request_counts
from tuner.measure.records import Cell, CellKey, RequestRecord, percentile
from tuner.measure.rows import RequestRows, request_rows
from tuner.measure.statistics import Array, Estimate, bootstrap, bootstrap_median, bootstrap_sums, mean
from tuner.spec.speculation import SpecConfig


@dataclass(frozen=True, slots=True)
class CellSummary:
    """Figures of one cell, seconds and tokens; None is not measured. Percentiles are over completed requests."""

    key: CellKey
    spec: SpecConfig
    requests: int
    failed: int
    tpot_p50_s: Estimate | None
    tpot_mean_s: Estimate | None
    ttft_p50_s: Estimate | None
    throughput_tok_s: Estimate | None
    goodput: Estimate | None
    step_s: Estimate | None
    counts: AcceptanceCounts | None
    tau: Estimate | None
    alpha: Estimate | None
    a: tuple[Estimate, ...] | None
    percentiles_s: Mapping[str, float]
    client_limited: bool
    rows: RequestRows | None = field(default=None, compare=False, repr=False)


def summarise(cell: Cell, spec: SpecConfig, slo_ms: Mapping[str, float], seed: int = 0) -> CellSummary:
    """All figures of a cell. `slo_ms`: objectives by name (`ttft_p95_ms`), from which goodput is counted."""
    done = cell.completed
    told = [None if spec.is_off else request_counts(r, spec.depth) for r in done]
    counts = pool([c for c in told if c is not None])
    tau, alpha, a = _acceptance([c for c in told if c is not None], seed)
    rows = request_rows(done, told, spec, cell.requests)
    tpots = [r.tpot_s for r in done if r.tpot_s is not None]
    ttfts = [r.ttft_s for r in done if r.ttft_s is not None]
    return CellSummary(
        key=cell.key,
        spec=spec,
        requests=len(done),
        failed=len(cell.measured) - len(done),
        tpot_p50_s=bootstrap_median(tpots, seed),
        tpot_mean_s=bootstrap_sums([[t, 1.0] for t in tpots], _first_over_second, seed)[0],
        ttft_p50_s=bootstrap_median(ttfts, seed),
        throughput_tok_s=_throughput(cell, seed),
        goodput=_goodput(cell.measured, slo_ms, seed),
        step_s=_step_time(rows, seed),
        counts=counts,
        tau=tau,
        alpha=alpha,
        a=a,
        percentiles_s=_percentiles(done, len(cell.measured) - len(done)),
        client_limited=cell.health.limited,
        rows=rows,
    )


def window_tokens(requests: Sequence[RequestRecord], start_s: float, end_s: float) -> float:
    """Output tokens that arrived inside the window, every phase; counts are interpolated between chunk arrivals."""
    total = 0.0
    for request in requests:
        if not request.chunks:
            continue
        first_s, last_s = (request.sent_s + request.chunks[i][0] for i in (0, -1))
        if start_s < first_s and last_s <= end_s:
            total += request.chunks[-1][1]
            continue
        times = np.array([0.0, *(t for t, _ in request.chunks)]) + request.sent_s
        tokens = np.array([0.0, *(float(n) for _, n in request.chunks)])
        # Nothing arrives between sending and the first chunk: the first tokens count at their arrival.
        times[0] = times[1]
        total += float(np.interp(end_s, times, tokens, left=0.0) - np.interp(start_s, times, tokens, left=0.0))
    return total


def verify_steps(request: RequestRecord, spec: SpecConfig) -> int | None:
    """Verify steps of the decoding phase: one a token without speculation."""
    if spec.is_off:
        return max(0, request.n_out - 1)
    counts = request_counts(request, spec.depth)
    return counts.verify_steps if counts else None


def meets_slo(request: RequestRecord, slo_ms: Mapping[str, float]) -> bool:
    """Whether one request keeps every limit; a failed request, or an undefined figure, does not."""
    if not request.ok:
        return False
    gaps = list(request.chunk_gaps_s)
    for name, limit_ms in slo_ms.items():
        figure, share = name.removesuffix("_ms").rsplit("_p", 1)
        seen = {"ttft": request.ttft_s, "tpot": request.tpot_s, "e2e": request.e2e_s}.get(figure)
        if figure == "chunk_gap":
            seen = percentile(gaps, int(share) / 100) if gaps else None
        if seen is None or seen * 1000 > limit_ms:
            return False
    return True


def _throughput(cell: Cell, seed: int) -> Estimate | None:
    """Tokens in the window over its length; the interval from resampling requests' tokens and times in the system.

    In a closed loop the slots are always busy, so throughput is proportional to tokens over time in the system.
    """
    start, end = cell.window_s
    rows = [[float(r.n_out), r.ended_s] for r in cell.completed if r.ended_s > 0]
    (spread,) = bootstrap_sums(rows, _first_over_second, seed)
    if spread is None or end <= start:
        return None
    return spread.scaled(window_tokens(cell.requests, start, end) / (end - start) / spread.value)


def _goodput(measured: Sequence[RequestRecord], slo_ms: Mapping[str, float], seed: int) -> Estimate | None:
    if not slo_ms:
        return None
    share = bootstrap([[float(meets_slo(r, slo_ms))] for r in measured], mean, seed)
    return share.as_share(len(measured)) if share else None


def _step_time(rows: RequestRows, seed: int) -> Estimate | None:
    """L: time of verify steps that shared the engine with no prefill, over their number, pooled."""
    pairs = np.stack([rows.clear_s, rows.clear_steps], axis=1).tolist()
    return bootstrap_sums(pairs, _first_over_second, seed)[0] if pairs else None


def _first_over_second(total: Array) -> Array:
    return np.asarray(total[..., :1] / total[..., 1:2])


def _acceptance(
    counts: Sequence[AcceptanceCounts], seed: int
) -> tuple[Estimate | None, Estimate | None, tuple[Estimate, ...] | None]:
    """tau, alpha and a_1..a_N with intervals from one resampling of requests."""
    if len(counts) < 2 or not sum(c.drafting_steps for c in counts):
        return None, None, None
    width = max(c.n for c in counts)
    rows = [
        [c.drafting_steps, c.accepted, c.drafting_steps - c.full, c.verify_steps or c.drafting_steps]
        + [c.reached[k] if k < c.n else 0 for k in range(width)]
        for c in counts
    ]

    tau, alpha, *by_position = bootstrap_sums(rows, _acceptance_figures, seed)
    steps, accepted, rejected = (sum(row[i] for row in rows) for i in range(3))
    told = tuple(a.as_share(steps) for a in by_position if a is not None)
    return tau, alpha.as_share(accepted + rejected) if alpha else None, told


def _acceptance_figures(total: Array) -> Array:
    """[..., tau, alpha, a_1..a_N] from sums of steps, accepted, rejections, verify steps and steps that reached k."""
    steps, accepted, rejected, verify = (total[..., i] for i in range(4))
    pooled = [1 + accepted / verify, accepted / (accepted + rejected)]
    return np.stack([*pooled, *(total[..., k] / steps for k in range(4, total.shape[-1]))], axis=-1)


def _percentiles(done: Sequence[RequestRecord], failed: int) -> dict[str, float]:
    """Of what an objective bounds: a request that failed was never there in time."""
    figures = {
        "ttft": [r.ttft_s for r in done if r.ttft_s is not None],
        "tpot": [r.tpot_s for r in done if r.tpot_s is not None],
        "e2e": [r.e2e_s for r in done if r.e2e_s is not None],
        "chunk_gap": [gap for r in done for gap in r.chunk_gaps_s],
    }
    shares = (50, 95, 99)
    never = [math.inf] * failed
    return {
        f"{name}_p{s}": percentile([*values, *never], s / 100)
        for name, values in figures.items()
        if values
        for s in shares
    }
