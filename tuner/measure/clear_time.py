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
    if not requests:
        return np.zeros((0, 2))
    starts, ends = _waiting(beside)
    lengths = np.array([len(r.chunks) for r in requests])
    sent = np.repeat([r.sent_s for r in requests], lengths)
    times = np.fromiter((t for r in requests for t, _ in r.chunks), np.float64, len(sent)) + sent
    # Waits that began before a gap ended, less those that were over when it began: the ones that overlap it.
    waits = np.searchsorted(starts, times[1:], "left") - np.searchsorted(ends, times[:-1], "right")
    firsts = np.cumsum(lengths) - lengths
    within = np.ones(len(times), dtype=bool)  # whether a chunk ends a gap of its own request
    within[firsts] = False
    clear = within & np.concatenate([[False], waits == 0])
    gaps = np.concatenate([[0.0], np.diff(times)])
    counts = np.array(steps, dtype=np.float64)
    clear_gaps = np.add.reduceat(clear.astype(np.float64), firsts)
    rows = np.stack([np.add.reduceat(gaps * clear, firsts), counts * clear_gaps / (lengths - 1)], axis=1)
    whole = np.stack([np.add.reduceat(gaps * within, firsts), counts], axis=1)
    return rows if _enough(rows, whole) else whole


def _waiting(beside: Sequence[RequestRecord]) -> tuple[Array, Array]:
    """When each request was sent and when its first token came, both sorted."""
    spans = [(r.sent_s, r.sent_s + r.chunks[0][0]) for r in beside if r.chunks]
    sorted_spans = np.sort(np.array(spans).reshape(-1, 2), axis=0)
    return sorted_spans[:, 0], sorted_spans[:, 1]


def _enough(rows: Array, whole: Array) -> bool:
    some = min(LEAST_REQUESTS, len(whole))
    return bool(rows[:, 1].sum() >= LEAST_SHARE * whole[:, 1].sum() and np.count_nonzero(rows[:, 1]) >= some)
