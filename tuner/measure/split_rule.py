"""tau of a text lookup at a smaller N, from a run at a larger one: a long copy is cut into more drafting steps.

A lookup goes on where a step that accepted everything ended, for the context still matches. So a step that accepted j
tokens becomes ceil((j + 1) / (N + 1)) steps, all of which draft. The prefix sum, which is right for drafts that propose
in every step, would give those tokens to steps that draft nothing. Like it, this is tested by a second N before any
figure is made of it (`decide/prefix_rule.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def split_taus(reached: Sequence[int], drafting_steps: int, verify_steps: int) -> list[float]:
    """tau(1..n) of one request. `reached[k-1]`: drafting steps that accepted at least k of n tokens."""
    n = len(reached)
    edges = (drafting_steps, *reached, 0)
    histogram = [edges[j] - edges[j + 1] for j in range(n + 1)]
    tokens = verify_steps + sum(reached)
    plain = verify_steps - drafting_steps
    return [tokens / (plain + _steps(histogram, shorter)) for shorter in range(1, n + 1)]


def _steps(histogram: Sequence[int], shorter: int) -> float:
    """Drafting steps at `shorter`. A full step that goes on leaves no remainder of its own behind."""
    *ended, full = histogram
    n = len(ended)
    steps = float(sum(count * math.ceil((j + 1) / (shorter + 1)) for j, count in enumerate(ended)))
    goes_on = full / (full + ended[-1]) if full else 0.0
    share = (n + 1) / (shorter + 1)
    return steps + full * (goes_on * share + (1 - goes_on) * math.ceil(share))
