"""The speculative step on a chain, for many sequences at once: draft, verify in parallel, correct or add the bonus."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from tuner.errors import UserError
from tuner.theory.draws import AliasTable
from tuner.theory.markov import IntArray, Markov
from tuner.theory.rule import BoolArray, FloatArray, acceptance, residual

NO_TOKEN = -1


@dataclass(frozen=True, slots=True, eq=False)
class ChainRules:
    """What a step decides by, as tables over (context, token); one table changed makes a broken variant.

    `accept[s, d]`: probability to keep drafted token d in context s. `correction[s]`: replaces a rejected token.
    `bonus[s]`: follows N accepted ones. `loses_bonus`: the bonus enters the context and never the output.
    `keeps_rejected`: the rejected token's cache entry stays readable before the correction's.
    """

    draft: Markov
    accept: FloatArray
    correction: FloatArray
    bonus: FloatArray
    loses_bonus: bool = False
    keeps_rejected: bool = False


def lossless(target: Markov, draft: Markov) -> ChainRules:
    """The rule of Leviathan et al. (arXiv 2211.17192) and Chen et al. (2302.01318) in every context."""
    if target.rows.shape != draft.rows.shape:
        raise UserError("target and draft differ in vocabulary or order; the rule needs the same contexts.")
    return ChainRules(
        draft=draft,
        accept=acceptance(target.rows, draft.rows),
        correction=residual(target.rows, draft.rows),
        bonus=target.rows,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """One step of B sequences. `drafted` (B, N), `tokens` (B, N + 1) emitted and then NO_TOKEN, the rest (B,)."""

    drafted: IntArray
    tokens: IntArray
    accepted: IntArray
    emitted: IntArray
    state: IntArray


Step = Callable[[IntArray, Generator], Steps]


class ChainStep:
    """`step(state, rng)` for a fixed N; the sampling tables are built once."""

    __slots__ = ("_closing", "_draft", "_successors", "n", "rules")

    def __init__(self, rules: ChainRules, n: int) -> None:
        if n < 1:
            raise UserError(f"n is {n}; a step drafts at least 1 token.")
        self.rules, self.n = rules, n
        self._successors = rules.draft.successors().ravel()
        self._draft = AliasTable(rules.draft.rows)
        # Rows of the closing token: corrections first, then bonuses, so one draw serves both endings.
        self._closing = AliasTable(np.concatenate([rules.correction, rules.bonus]))

    def __call__(self, state: IntArray, rng: Generator) -> Steps:
        rules, n, batch = self.rules, self.n, len(state)
        vocab, sequence = rules.draft.vocab, np.arange(batch)
        states, drafted, cells = self._draft_tokens(state, rng)
        # The parallel evaluation: all N + 1 prefixes are known, so every decision comes from one lookup.
        kept = rng.random((n, batch)) < rules.accept.take(cells)
        accepted = leading(kept)
        full = accepted == n
        stop = states.ravel().take(accepted * batch + sequence)
        closing = self._closing.draw(stop + full * rules.draft.states, rng)
        tokens = np.vstack([drafted, closing])
        tokens.ravel()[accepted * batch + sequence] = closing
        np.putmask(tokens, np.arange(n + 1)[:, None] > accepted, NO_TOKEN)
        emitted = accepted + 1
        if rules.loses_bonus:
            tokens[n, full] = NO_TOKEN
            emitted = emitted - full
        if rules.keeps_rejected:
            rejected = drafted[np.minimum(accepted, n - 1), sequence]
            stop = np.where(full, stop, self._successors.take(stop * vocab + rejected))
        end = self._successors.take(stop * vocab + closing)
        return Steps(drafted.T, tokens.T, accepted, emitted, end)

    def _draft_tokens(self, state: IntArray, rng: Generator) -> tuple[IntArray, IntArray, IntArray]:
        """States (N + 1, B), drafted tokens (N, B), and the (context, token) cell of each; position first,
        so that every access below is to contiguous memory."""
        batch, vocab = len(state), self.rules.draft.vocab
        states = np.empty((self.n + 1, batch), dtype=np.int64)
        drafted = np.empty((self.n, batch), dtype=np.int64)
        cells = np.empty((self.n, batch), dtype=np.int64)
        states[0] = state
        for i in range(self.n):
            drafted[i] = self._draft.draw(states[i], rng)
            cells[i] = states[i] * vocab + drafted[i]
            states[i + 1] = self._successors.take(cells[i])
        return states, drafted, cells


def leading(kept: BoolArray) -> IntArray:
    """How many of the first rows are True without a gap, for each column: rejection goes from the left."""
    running = np.ones(kept.shape[1], dtype=np.bool_)
    count = np.zeros(kept.shape[1], dtype=np.int64)
    for row in kept:
        running = running & row
        count += running
    return count


def generate(step: Step, start: IntArray, k: int, rng: Generator) -> IntArray:
    """(B, k) the first k tokens of each sequence, by as many steps as each needs."""
    text = np.full((len(start), k), NO_TOKEN, dtype=np.int64)
    state, length = start.copy(), np.zeros(len(start), dtype=np.int64)
    pending = np.arange(len(start))
    while pending.size:
        steps = step(state[pending], rng)
        for i in range(steps.tokens.shape[1]):
            position = length[pending] + i
            written = (steps.tokens[:, i] != NO_TOKEN) & (position < k)
            text[pending[written], position[written]] = steps.tokens[written, i]
        length[pending] += steps.emitted
        state[pending] = steps.state
        pending = pending[length[pending] < k]
    return text


def sample_directly(model: Markov, start: IntArray, k: int, rng: Generator) -> IntArray:
    """(B, k) tokens drawn one after the other from the model: what speculation must be indistinguishable from."""
    table, state = AliasTable(model.rows), start
    text = np.empty((len(start), k), dtype=np.int64)
    for i in range(k):
        text[:, i] = table.draw(state, rng)
        state = model.advance(state, text[:, i])
    return text
