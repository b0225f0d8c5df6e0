"""From the quality of a draft to alpha: measured by running the rule, and exact as 1 - TV(p, q)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.errors import UserError
from tuner.theory.chain import ChainStep, Steps, check_steps, lossless
from tuner.theory.markov import random_target, tilted
from tuner.theory.rule import FloatArray, alpha_of

# One context only: every position then has the same alpha, and the estimate can be held against one exact value.
VOCAB, MODEL_SEED = 16, 3
LEVELS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True, slots=True)
class AlphaEstimate:
    """`alpha` is accepted / (accepted + steps that ended in a rejection): steps that kept all N are censored.

    `acceptance_rate` is accepted / drafted, which falls as N grows; `by_position` holds a_1..a_N.
    `standard_error` is that of `alpha`, None when nothing was rejected or nothing kept.
    """

    alpha: float
    standard_error: float | None
    acceptance_rate: float
    by_position: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class QualityPoint:
    """A draft moved away from the target by `level`; `exact` is 1 - TV(p, q)."""

    level: float
    exact: float
    measured: AlphaEstimate


def estimate_alpha(steps: Steps) -> AlphaEstimate:
    n = steps.drafted.shape[1]
    accepted, rejected = int(steps.accepted.sum()), int((steps.accepted < n).sum())
    trials = accepted + rejected
    alpha = accepted / trials
    reached: FloatArray = (steps.accepted[:, None] >= np.arange(1, n + 1)).mean(axis=0)
    return AlphaEstimate(
        alpha=alpha,
        standard_error=float(np.sqrt(alpha * (1.0 - alpha) / trials)) if 0.0 < alpha < 1.0 else None,
        acceptance_rate=accepted / steps.drafted.size,
        by_position=tuple(float(share) for share in reached),
    )


def alpha_by_quality(
    levels: Sequence[float] = LEVELS, steps: int = 50_000, n: int = 4, seed: int = 0
) -> tuple[QualityPoint, ...]:
    """Tilt the draft's logits away from the target's by each level, run `steps` steps, estimate alpha."""
    check_steps(steps)
    if not levels or min(levels) < 0.0:
        raise UserError("levels must be numbers from 0 on: how far the draft's logits stand from the target's.")
    target = random_target(VOCAB, 0, MODEL_SEED)
    rng = np.random.default_rng(seed)
    start = np.zeros(steps, dtype=np.int64)
    points = []
    for level in levels:
        draft = tilted(target, level, MODEL_SEED)
        estimate = estimate_alpha(ChainStep(lossless(target, draft), n)(start, rng))
        points.append(QualityPoint(level, float(alpha_of(target.rows, draft.rows)[0]), estimate))
    return tuple(points)
