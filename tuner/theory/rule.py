"""The Leviathan rule: when a drafted token is kept, and what replaces it when it is not.

q is the target's distribution, p the draft's; the last axis is the vocabulary, all others are batch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tuner.errors import UserError

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

# A float32 softmax over a large vocabulary sums to 1 within about this; anything further off was not normalised.
SUM_TOLERANCE = 1e-6


def distribution(rows: ArrayLike, name: str) -> FloatArray:
    """`rows` as float64, or a UserError when a row is not a distribution over the last axis."""
    checked = probability(rows, name)
    if checked.ndim == 0 or checked.shape[-1] == 0:
        raise UserError(f"{name} has no vocabulary axis; give at least one probability a row.")
    sums = checked.sum(axis=-1)
    worst = float(sums.flat[int(np.argmax(np.abs(sums - 1.0)))]) if sums.size else 1.0
    if abs(worst - 1.0) > SUM_TOLERANCE:
        raise UserError(f"{name} is not normalised: a row sums to {worst:.6g}; divide it by its sum first.")
    return checked


def probability(values: ArrayLike, name: str) -> FloatArray:
    """`values` as float64, or a UserError when one lies outside [0, 1]."""
    checked = np.asarray(values, dtype=np.float64)
    # Written so that NaN fails as well.
    if not bool(np.all((checked >= 0.0) & (checked <= 1.0 + SUM_TOLERANCE))):
        raise UserError(f"{name} holds a value that is no probability; all must lie between 0 and 1.")
    return checked


def acceptance(q: ArrayLike, p: ArrayLike) -> FloatArray:
    """min(1, q/p), the probability to keep a drafted token that has q under the target and p under the draft.

    A token the target never emits (q = 0) is never kept, also at p = 0; q > 0 at p = 0 is always kept.
    """
    q_token, p_token = np.broadcast_arrays(probability(q, "q"), probability(p, "p"))
    # Divided only where q < p: there p > 0 and the ratio cannot overflow.
    ratio = np.divide(q_token, p_token, out=np.ones(q_token.shape), where=q_token < p_token)
    return np.where(q_token > 0.0, ratio, 0.0)


def accept(q: ArrayLike, p: ArrayLike, u: ArrayLike) -> BoolArray:
    """Keep the drafted token or not: u < min(1, q/p), u uniform on [0, 1); q and p are the token's own."""
    uniform = np.asarray(u, dtype=np.float64)
    if not bool(np.all((uniform >= 0.0) & (uniform < 1.0))):
        raise UserError("u holds a value outside [0, 1); draw it from a uniform generator.")
    return np.asarray(uniform < acceptance(q, p))


def residual(q: ArrayLike, p: ArrayLike) -> FloatArray:
    """max(q - p, 0), normalised: what a rejected token is replaced from.

    Why the output is q: P(x) = p(x) min(1, q(x)/p(x)) + (1 - sum min(q, p)) residual(x)
    = min(q, p)(x) + max(q - p, 0)(x) = q(x), because 1 - sum min(q, p) = sum max(q - p, 0).
    Where q = p that mass is 0 and nothing is ever rejected; the row returned is then q itself.
    """
    target, draft = _same_vocabulary(q, p)
    excess = np.maximum(target - draft, 0.0)
    mass = excess.sum(axis=-1, keepdims=True)
    defined = mass > target.shape[-1] * np.finfo(np.float64).eps
    return np.where(defined, excess / np.where(defined, mass, 1.0), target)


def total_variation(q: ArrayLike, p: ArrayLike) -> FloatArray:
    """TV(q, p) = sum |q - p| / 2 over the vocabulary."""
    target, draft = _same_vocabulary(q, p)
    return np.asarray(np.abs(target - draft).sum(axis=-1) / 2.0)


def alpha_of(q: ArrayLike, p: ArrayLike) -> FloatArray:
    """Probability that one token drafted from p is kept: sum p min(1, q/p) = sum min(q, p) = 1 - TV(q, p)."""
    target, draft = _same_vocabulary(q, p)
    return np.asarray((draft * acceptance(target, draft)).sum(axis=-1))


def _same_vocabulary(q: ArrayLike, p: ArrayLike) -> tuple[FloatArray, FloatArray]:
    target, draft = distribution(q, "q"), distribution(p, "p")
    if target.shape[-1] != draft.shape[-1]:
        raise UserError(
            f"q has {target.shape[-1]} tokens and p has {draft.shape[-1]}; the rule needs one shared vocabulary."
        )
    both = np.broadcast_arrays(target, draft)
    return both[0], both[1]
