"""What predicted requests amount to: mean TPOT, throughput, goodput, SLOs and the gain over other requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tuner.measure.rows import RequestRows
from tuner.measure.statistics import Array, Estimate, estimate_of

#: Levels of the step time at which goodput is counted; between them it is a step function anyway.
LEVELS = 21
#: Objectives of single requests that a prediction reaches; chunk gaps are not among them.
PREDICTED_FIGURES = ("ttft", "tpot", "e2e")


@dataclass(frozen=True, slots=True)
class Stretch:
    """Requests of a launch as another N would run them: TPOT `tpot_s` times `factor`, and `stall_s` for the prefills of
    other requests; `factors`: resamples of the factor. Time to the first token stays as it was: N changes decoding.
    """

    rows: RequestRows
    tpot_s: Array
    stall_s: Array
    factor: float
    factors: Array


@dataclass(frozen=True, slots=True)
class Outlook:
    """`against`: the same requests, in the same order, under what the gain is over. `weights`: the resamples."""

    stretch: Stretch
    against: RequestRows
    weights: Array

    def tpot_s(self) -> Estimate:
        value, draws = self._tpot()
        return _estimate(value, draws, len(self.against))

    def throughput(self, source: Estimate | None) -> Estimate | None:
        """Of the whole load, from what the source launch measured: proportional to tokens over time in the system."""
        if source is None:
            return None
        value, draws = self._rate()
        rows = self.stretch.rows
        there = rows.n_out.sum() / rows.ended_s.sum()
        return _estimate(value, draws, len(rows)).scaled(source.value / there)

    def goodput(self, slo_ms: Mapping[str, float]) -> Estimate | None:
        good = self._good(slo_ms)
        n = len(self.against)
        return _estimate(*good, n).as_share(n) if good else None

    def missed(self, slo_ms: Mapping[str, float]) -> tuple[str, ...]:
        """Objectives whose predicted percentile is over the limit."""
        missed = []
        for name, limit_ms in slo_ms.items():
            figure, share = name.removesuffix("_ms").rsplit("_p", 1)
            if figure in PREDICTED_FIGURES:
                seen_ms = float(np.quantile(self._figure(figure, self.stretch.factor), int(share) / 100)) * 1000
                if seen_ms > limit_ms:
                    missed.append(f"{name}: {seen_ms:.1f} over {limit_ms:g} (predicted)")
        return tuple(missed)

    def gain(self, objective: str, slo_ms: Mapping[str, float]) -> Estimate | None:
        """How many times better than `against` in the objective; None where no ratio is defined."""
        other, n = self.against, len(self.against)
        if objective == "tpot_p50":
            value, draws = self._tpot()
            return _estimate(other.tpot_s.mean() / value, self.weights @ other.tpot_s / n / draws, n)
        if objective == "throughput":
            value, draws = self._rate()
            there = self.weights @ other.n_out / (self.weights @ other.ended_s)
            return _estimate(value * other.ended_s.sum() / other.n_out.sum(), draws / there, n)
        good = self._good(slo_ms)
        if good is None:
            return None
        there = _meets(slo_ms, {"ttft": other.ttft_s, "tpot": other.tpot_s, "e2e": _e2e(other, other.tpot_s)})
        half = 0.5 / n  # none good counts as half a one, as in what is measured
        value, draws = max(good[0], half), np.maximum(good[1], half)
        return estimate_of(value / max(there.mean(), half), draws / np.maximum(self.weights @ there / n, half), n)

    def _tpot(self) -> tuple[float, Array]:
        one = self.stretch
        means = self.weights @ np.stack([one.tpot_s, one.stall_s], axis=1) / len(one.tpot_s)
        return float(one.tpot_s.mean() * one.factor + one.stall_s.mean()), means[:, 0] * one.factors + means[:, 1]

    def _rate(self) -> tuple[float, Array]:
        """Tokens over time in the system."""
        rows = self.stretch.rows
        waiting = rows.ended_s - rows.decode_s + self.stretch.stall_s * _decoded(rows)
        decoding = self.stretch.tpot_s * _decoded(rows)
        value = rows.n_out.sum() / (waiting.sum() + decoding.sum() * self.stretch.factor)
        times = self.weights @ waiting + self.weights @ decoding * self.stretch.factors
        return float(value), self.weights @ rows.n_out / times

    def _good(self, slo_ms: Mapping[str, float]) -> tuple[float, Array] | None:
        if not slo_ms or not all(name.split("_p")[0] in PREDICTED_FIGURES for name in slo_ms):
            return None
        order = np.argsort(self.stretch.factors)
        level = np.empty(len(order), dtype=np.int64)
        level[order] = np.arange(len(order)) * LEVELS // len(order)
        middles = np.quantile(self.stretch.factors, (np.arange(LEVELS) + 0.5) / LEVELS)
        good = np.stack([self._meets(slo_ms, factor) for factor in middles])
        draws = (self.weights * good[level]).sum(axis=1) / len(self.against)
        return float(self._meets(slo_ms, self.stretch.factor).mean()), draws

    def _meets(self, slo_ms: Mapping[str, float], factor: float) -> Array:
        return _meets(slo_ms, {name: self._figure(name, factor) for name in PREDICTED_FIGURES})

    def _figure(self, name: str, factor: float) -> Array:
        tpot_s = self.stretch.tpot_s * factor + self.stretch.stall_s
        rows = self.stretch.rows
        return {"ttft": rows.ttft_s, "tpot": tpot_s, "e2e": _e2e(rows, tpot_s)}[name]


def _meets(slo_ms: Mapping[str, float], figures: Mapping[str, Array]) -> Array:
    good = np.ones(len(figures["tpot"]))
    for name, limit_ms in slo_ms.items():
        good *= figures[name.split("_p")[0]] * 1000 <= limit_ms
    return good


def _decoded(rows: RequestRows) -> Array:
    """Tokens after the first chunk: what TPOT is the mean of."""
    return rows.decode_s / rows.tpot_s


def _e2e(rows: RequestRows, tpot_s: Array) -> Array:
    return rows.ttft_s + tpot_s * _decoded(rows)


def _estimate(value: float, draws: Array, n: int) -> Estimate:
    found = estimate_of(float(value), draws, n)
    assert found is not None, "a mean over two requests or more has an interval"
    return found
