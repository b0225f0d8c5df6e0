"""Drawing tokens for many sequences at once: from fixed tables, from given rows, and without replacement."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from tuner.theory.markov import IntArray
from tuner.theory.rule import FloatArray


class AliasTable:
    """Walker's alias method over the rows of a table: a draw costs the same for any vocabulary."""

    __slots__ = ("_keep", "_outcomes", "_vocab")

    def __init__(self, rows: FloatArray) -> None:
        self._vocab = int(rows.shape[1])
        halves = [_alias_row(row) for row in rows]
        self._keep = np.concatenate([keep for keep, _ in halves])
        first_cell = np.repeat(np.arange(len(rows)) * self._vocab, self._vocab)
        alias = np.concatenate([alias for _, alias in halves]) + first_cell
        # Alias and own cell side by side: choosing by index is several times faster than np.where on random masks.
        self._outcomes = np.stack([alias, np.arange(rows.size)], axis=1).ravel()

    def draw_cell(self, row: IntArray, rng: Generator) -> IntArray:
        """For each entry of `row`, the row of the table to draw from: row * vocab + the token drawn."""
        scaled = rng.random(row.shape) * self._vocab
        column = scaled.astype(np.int64)
        scaled -= column
        column += row * self._vocab
        own = scaled < self._keep.take(column)
        column *= 2
        column += own
        return self._outcomes.take(column)

    def draw(self, row: IntArray, rng: Generator) -> IntArray:
        return self.draw_cell(row, rng) % self._vocab


def _alias_row(row: FloatArray) -> tuple[FloatArray, IntArray]:
    """Vose's construction: column i keeps its own token with probability keep[i], else yields alias[i]."""
    keep = row * (len(row) / row.sum())
    alias = np.arange(len(row), dtype=np.int64)
    small = [i for i, weight in enumerate(keep) if weight < 1.0]
    large = [i for i, weight in enumerate(keep) if weight >= 1.0]
    while small and large:
        poor, rich = small.pop(), large[-1]
        alias[poor] = rich
        keep[rich] -= 1.0 - keep[poor]
        if keep[rich] < 1.0:
            small.append(large.pop())
    # What is left holds 1 up to rounding; an impossible token has weight 0 and always found a rich column.
    keep[small + large] = 1.0
    return keep, alias


def draw_rows(rows: FloatArray, rng: Generator) -> IntArray:
    """One token from each row, by inverting its cumulative sum; a token of probability 0 is never drawn."""
    cumulative = rows.cumsum(axis=1)
    cumulative /= cumulative[:, -1:]
    return np.asarray((rng.random((len(rows), 1)) >= cumulative).sum(axis=1), dtype=np.int64)


def draw_without_replacement(rows: FloatArray, k: int, rng: Generator) -> IntArray:
    """(len(rows), k) different tokens a row, in the order drawn, each from what the earlier ones left of the row.

    Exponential clocks with rates p ring in exactly that order. The floor makes tokens of probability 0 come
    last and evenly, which is what `siblings.proposal` assumes of a draft with fewer than k possible tokens.
    """
    clocks = -np.log1p(-rng.random(rows.shape)) / np.maximum(rows, 1e-300)
    return np.asarray(np.argsort(clocks, axis=1)[:, :k], dtype=np.int64)


def most_likely(rows: FloatArray, k: int) -> IntArray:
    """(len(rows), k) the k most likely tokens a row, best first; ties go to the smaller token."""
    return np.asarray(np.argsort(-rows, axis=1, kind="stable")[:, :k], dtype=np.int64)
