"""Small exact language models: the next token depends on the last `order` tokens, and on nothing else.

Order 0 is the i.i.d. model; an order as long as the text makes every prefix its own context.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tuner.errors import UserError
from tuner.theory.rule import FloatArray, alpha_of, distribution

IntArray = NDArray[np.int64]

# A tilt this strong leaves the draft on one token, unless two noise values all but agree.
STEEPEST = 1e6
# Probabilities in a toy model: the exact laws need several times as much.
MOST_CELLS = 100_000


@dataclass(frozen=True, slots=True, eq=False)
class Markov:
    """`rows[state]` is the next token's distribution; a state is the last `order` tokens read in base `vocab`."""

    rows: FloatArray
    order: int

    def __post_init__(self) -> None:
        rows = distribution(self.rows, "the model")
        if rows.ndim != 2 or len(rows) != rows.shape[1] ** self.order:
            raise UserError(
                f"a model of order {self.order} over {rows.shape[-1]} tokens needs "
                f"{rows.shape[-1] ** self.order} rows, and {len(rows)} were given."
            )

    @property
    def vocab(self) -> int:
        return int(self.rows.shape[1])

    @property
    def states(self) -> int:
        return int(self.rows.shape[0])

    def advance(self, state: ArrayLike, token: ArrayLike) -> IntArray:
        return (np.asarray(state, dtype=np.int64) * self.vocab + np.asarray(token, dtype=np.int64)) % self.states

    def successors(self) -> IntArray:
        """(states, vocab): the state each token leads to."""
        return self.advance(np.arange(self.states)[:, None], np.arange(self.vocab))


def random_target(vocab: int, order: int, seed: int, peak: float = 2.0) -> Markov:
    """Rows proportional to exponential draws to the power `peak`: 1 is uniform on the simplex, more is peaked.

    Only uniform draws are taken from the generator, whose stream NumPy keeps fixed for a seed.
    """
    if vocab < 2:
        raise UserError(f"a vocabulary of {vocab} leaves nothing to choose; give at least 2 tokens.")
    if vocab ** (order + 1) > MOST_CELLS:
        raise UserError(f"a toy model over {vocab} tokens is too large to be exact; take a smaller vocabulary.")
    uniform = np.random.default_rng(seed).random((vocab**order, vocab))
    weights = (-np.log1p(-uniform)) ** peak + 1e-4
    return Markov(weights / weights.sum(axis=1, keepdims=True), order)


def tilted(target: Markov, strength: ArrayLike, seed: int) -> Markov:
    """A draft whose logits are the target's plus `strength` times fixed noise; strength 0 is the target itself."""
    noise = _noise(target, seed)
    logits = np.log(np.maximum(target.rows, 1e-300)) + np.asarray(strength, dtype=np.float64) * noise
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return Markov(weights / weights.sum(axis=1, keepdims=True), target.order)


def draft_with_alpha(target: Markov, alpha: float, seed: int) -> Markov:
    """A draft whose one-token acceptance is `alpha` in every context, so the i.i.d. formula is exact for chains.

    Along a tilt TV(q, p) only grows (the likelihood ratio is monotone), so each row is found by bisection.
    """
    if not 0.0 < alpha <= 1.0:
        raise UserError(f"alpha is {alpha:g}; a toy draft can be built for alpha above 0 and up to 1.")
    low, high = np.zeros((target.states, 1)), np.full((target.states, 1), STEEPEST)
    if bool(np.any(_alphas(target, high, seed) > alpha)):
        raise UserError(f"no tilt of this toy target is as poor as alpha {alpha:g}; ask for a higher alpha.")
    for _ in range(80):
        middle = (low + high) / 2.0
        good = _alphas(target, middle, seed)[:, None] >= alpha
        low, high = np.where(good, middle, low), np.where(good, high, middle)
    return tilted(target, low, seed)


def _alphas(target: Markov, strength: FloatArray, seed: int) -> FloatArray:
    return alpha_of(target.rows, tilted(target, strength, seed).rows)


def _noise(target: Markov, seed: int) -> FloatArray:
    """Uniform noise whose largest value stands on the least likely token, so that a strong tilt is a poor draft."""
    noise = np.random.default_rng(seed).random(target.rows.shape)
    index = np.arange(target.states)
    rarest, largest = target.rows.argmin(axis=1), noise.argmax(axis=1)
    swapped = noise[index, rarest].copy()
    noise[index, rarest] = noise[index, largest]
    noise[index, largest] = np.where(rarest == largest, noise[index, largest], swapped)
    return noise


def joint(model: Markov, k: int) -> FloatArray:
    """(states, vocab**k): the exact distribution of the next k tokens; a text is read in base `vocab`."""
    law = np.ones((model.states, 1))
    successors = model.successors()
    for _ in range(k):
        law = (model.rows[:, :, None] * law[successors]).reshape(model.states, -1)
    return law


def stationary(model: Markov) -> FloatArray:
    """How often each state occurs in a long text by the model."""
    step = np.zeros((model.states, model.states))
    np.add.at(step, (np.arange(model.states)[:, None], model.successors()), model.rows)
    # The left eigenvector for eigenvalue 1, as the solution of pi (step - 1) = 0 with sum pi = 1.
    system = np.vstack([step.T - np.eye(model.states), np.ones(model.states)])
    known = np.zeros(model.states + 1)
    known[-1] = 1.0
    solution = np.linalg.lstsq(system, known, rcond=None)[0]
    weights = np.maximum(solution, 0.0)
    return np.asarray(weights / weights.sum())
