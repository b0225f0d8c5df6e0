"""The multi-candidate rule at one node of a tree: siblings in turn, each against the residual the last one left."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from math import perm
from typing import Literal

import numpy as np

from tuner.errors import UserError
from tuner.theory.draws import draw_without_replacement, most_likely
from tuner.theory.markov import IntArray
from tuner.theory.rule import FloatArray, acceptance, residual

# How a draft fills the children of a node: drawn one after the other without replacement (the rule of SpecInfer
# and Sequoia), or its most likely tokens, which involves no chance (what EAGLE-2 and the engines do).
Drafting = Literal["sampled", "top-k"]
MAX_ORDERED_DRAWS = 400_000

# (q (B, V), p (B, V), tokens (B, k), drafting) -> accept (B, k), leftover (B, V)
SiblingRule = Callable[[FloatArray, FloatArray, IntArray, Drafting], tuple[FloatArray, FloatArray]]


def sibling_stages(q: FloatArray, p: FloatArray, tokens: IntArray, drafting: Drafting) -> tuple[FloatArray, FloatArray]:
    """Per sibling, the chance to keep it once all before it were rejected; and what to draw from if all are.

    Stage i treats the residual r as target (r = q at first) and the law its token was drafted from as draft.
    By the chain's theorem a stage emits exactly r, whether by keeping the sibling or from the residual it leaves,
    so by induction from the last sibling back the node emits q. A token below 0 means no such sibling.
    """
    accept = np.zeros(tokens.shape)
    r, drawn = q, np.zeros(p.shape, dtype=np.bool_)
    row = np.arange(len(q))
    for i in range(tokens.shape[1]):
        token, present = np.maximum(tokens[:, i], 0), tokens[:, i] >= 0
        law = proposal(p, drawn) if drafting == "sampled" else np.eye(q.shape[1])[token]
        kept = acceptance(r[row, token], law[row, token])
        accept[:, i] = np.where(present, kept, 0.0)
        r = np.where(present[:, None], residual(r, law), r)
        drawn[row[present], token[present]] = True
    return accept, r


def proposal(p: FloatArray, drawn: np.ndarray) -> FloatArray:
    """The draft's law for the next sibling: p without the tokens already drawn; even, where nothing of p is left."""
    left = np.where(drawn, 0.0, p)
    mass = left.sum(axis=1, keepdims=True)
    # One token more than the vocabulary is refused earlier, so some token is always undrawn here.
    even = ~drawn / np.maximum((~drawn).sum(axis=1, keepdims=True), 1)
    return np.where(mass > 0.0, left / np.where(mass > 0.0, mass, 1.0), even)


def draft_siblings(p: FloatArray, k: int, drafting: Drafting, rng: np.random.Generator) -> IntArray:
    """(B, k) different tokens for the children of a node, in the order they are tried."""
    _check_width(k, p.shape[1])
    return draw_without_replacement(p, k, rng) if drafting == "sampled" else most_likely(p, k)


def ordered_draws(p: FloatArray, k: int, drafting: Drafting) -> tuple[IntArray, FloatArray]:
    """Every way to draft k siblings: tokens (draws, rows, k) and the probability of each, (draws, rows)."""
    rows, vocab = p.shape
    _check_width(k, vocab)
    if drafting == "top-k":
        return most_likely(p, k)[None], np.ones((1, rows))
    if perm(vocab, k) * rows > MAX_ORDERED_DRAWS:
        raise UserError(
            f"{k} siblings over {vocab} tokens have {perm(vocab, k)} ordered draws, too many to enumerate; "
            "take a smaller branching or vocabulary, or top-k drafting."
        )
    tokens = np.array(list(permutations(range(vocab), k)), dtype=np.int64).reshape(-1, k)
    weight = np.ones((len(tokens), rows))
    for i in range(k):
        for row in range(rows):
            drawn = np.zeros((len(tokens), vocab), dtype=np.bool_)
            np.put_along_axis(drawn, tokens[:, :i], True, axis=1)
            law = proposal(np.broadcast_to(p[row], drawn.shape), drawn)
            weight[:, row] *= law[np.arange(len(tokens)), tokens[:, i]]
    return np.repeat(tokens[:, None, :], rows, axis=1), weight


def _check_width(k: int, vocab: int) -> None:
    if k > vocab:
        raise UserError(f"a node cannot have {k} different children over a vocabulary of {vocab}; raise --vocab.")
