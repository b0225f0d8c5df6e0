"""A cell's completed requests as arrays: what predictions resample, one row a request."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.measure.acceptance import AcceptanceCounts
from tuner.measure.clear_time import clear_time
from tuner.measure.records import RequestRecord
from tuner.measure.split_rule import split_taus
from tuner.measure.statistics import Array
from tuner.spec.speculation import LOOKUP_METHODS, SpecConfig


@dataclass(frozen=True, slots=True, eq=False)
class RequestRows:
    """One entry a completed request with a TPOT; seconds and tokens.

    `steps`: verify steps of the decoding phase; `clear_steps`, `clear_s`: of them, and of `decode_s`, what ran while no
    other request waited for its first token (`clear_time`). `tau[:, N-1]`: the request's own tau(N), all verify steps
    counted, as a prefix sum or, for lookups, by `split_rule`; no columns for off.
    """

    ids: tuple[tuple[int, str], ...]
    tasks: tuple[str, ...]
    tpot_s: Array
    decode_s: Array
    steps: Array
    n_out: Array
    ttft_s: Array
    ended_s: Array
    clear_s: Array
    clear_steps: Array
    tau: Array

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, ids: Sequence[tuple[int, str]]) -> RequestRows:
        """The rows of these requests, in this order."""
        place = {one: row for row, one in enumerate(self.ids)}
        rows = [place[one] for one in ids]
        return RequestRows(
            tuple(ids), tuple(self.tasks[row] for row in rows), self.tpot_s[rows], self.decode_s[rows],
            self.steps[rows], self.n_out[rows], self.ttft_s[rows], self.ended_s[rows], self.clear_s[rows],
            self.clear_steps[rows], self.tau[rows],
        )  # fmt: skip


def request_rows(
    done: Sequence[RequestRecord],
    told: Sequence[AcceptanceCounts | None],
    spec: SpecConfig,
    beside: Sequence[RequestRecord] = (),
) -> RequestRows:
    """Of the requests whose decoding time and verify steps are known. `told`: the counts of each of `done`; `beside`:
    all requests of the cell, whatever phase, which may have been prefilled meanwhile."""
    kept, steps, taus = [], [], []
    for request, counts in zip(done, told, strict=True):
        verify = request.n_out - 1 if spec.is_off else counts.verify_steps if counts else None
        if request.tpot_s is None or request.ttft_s is None or not verify:
            continue
        kept.append(request)
        steps.append(verify)
        taus.append(_taus(counts, verify, spec) if counts else [])
    clear = clear_time(kept, steps, beside)
    return RequestRows(
        ids=tuple((r.index, r.prompt) for r in kept),
        tasks=tuple(r.task for r in kept),
        tpot_s=np.array([r.tpot_s for r in kept], dtype=np.float64),
        decode_s=np.array([r.chunks[-1][0] - r.chunks[0][0] for r in kept], dtype=np.float64),
        steps=np.array(steps, dtype=np.float64),
        n_out=np.array([r.n_out for r in kept], dtype=np.float64),
        ttft_s=np.array([r.ttft_s for r in kept], dtype=np.float64),
        ended_s=np.array([r.ended_s for r in kept], dtype=np.float64),
        clear_s=clear[:, 0],
        clear_steps=clear[:, 1],
        tau=np.array(taus, dtype=np.float64).reshape(len(kept), -1 if kept else 0),
    )


def _taus(counts: AcceptanceCounts, verify: int, spec: SpecConfig) -> list[float]:
    if spec.method in LOOKUP_METHODS:
        return split_taus(counts.reached, counts.drafting_steps, verify)
    return [1 + total / verify for total in itertools.accumulate(counts.reached)]


def common(one: RequestRows, other: RequestRows) -> tuple[RequestRows, RequestRows]:
    """The requests both have, in the same order: rows of the two are pairs."""
    shared = [i for i in one.ids if i in set(other.ids)]
    return one.take(shared), other.take(shared)
