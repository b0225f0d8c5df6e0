"""Verify steps that shared the engine with no prefill: what L(b, N) is measured on.

A request that waits for its first token is queued or prefilled; with chunked prefill, steps that run meanwhile hold
parts of it. Their time belongs to the load and its prompts, and not to verifying N tokens of b sequences.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tuner.measure.records import RequestRecord
from tuner.measure.statistics import Array

#: Below this share of verify steps without a prefill beside them, and below so many requests that have any, L is taken
#: from all steps: it then holds prefills.
LEAST_SHARE, LEAST_REQUESTS = 0.05, 4


def clear_time(requests: Sequence[RequestRecord], steps: Sequence[int], beside: Sequence[RequestRecord]) -> Array:
    """[requests, 2]: seconds and verify steps of the decoding phase between chunks that no prefill of another request
    overlaps. A request's steps are spread evenly over its chunks, one each where an engine streams every step."""
    starts, ends = _waiting(beside)
    rows = np.zeros((len(requests), 2))
    for i, (request, count) in enumerate(zip(requests, steps, strict=True)):
        times = np.array([t for t, _ in request.chunks]) + request.sent_s
        # Waits that began before a gap ended, less those that were over when it began: the ones that overlap it.
        waits = np.searchsorted(starts, times[1:], "left") - np.searchsorted(ends, times[:-1], "right")
        clear = waits == 0
        rows[i] = np.diff(times)[clear].sum(), count * clear.mean()
    whole = np.array([[r.chunks[-1][0] - r.chunks[0][0], count] for r, count in zip(requests, steps, strict=True)])
    return rows if _enough(rows, whole) else whole.reshape(-1, 2)


def _waiting(beside: Sequence[RequestRecord]) -> tuple[Array, Array]:
    """When each request was sent and when its first token came, both sorted."""
    spans = [(r.sent_s, r.sent_s + r.chunks[0][0]) for r in beside if r.chunks]
    sorted_spans = np.sort(np.array(spans).reshape(-1, 2), axis=0)
    return sorted_spans[:, 0], sorted_spans[:, 1]


def _enough(rows: Array, whole: Array) -> bool:
    if not len(whole):
        return True
    some = min(LEAST_REQUESTS, len(whole))
    return bool(rows[:, 1].sum() >= LEAST_SHARE * whole[:, 1].sum() and np.count_nonzero(rows[:, 1]) >= some)
