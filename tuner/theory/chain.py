"""The speculative step on a chain, for many sequences at once: draft, verify in parallel, correct or add the bonus."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from tuner.errors import UserError
from tuner.theory.draws import AliasTable
from tuner.theory.markov import IntArray, Markov
from tuner.theory.rule import BoolArray, FloatArray, acceptance, residual

# Tokens are results in bulk: two bytes each, which the small vocabularies here allow.
TokenArray = NDArray[np.int16]
NO_TOKEN = -1
# A step works on as many sequences at once as keep its arrays under 128 KiB: the allocator gives larger ones back to
# the system after each use, and faulting them in again took half of the time.
BLOCK_ENTRIES = 16_000


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
    """One step of B sequences: `drafted` (B, N) and `tokens` (B, N + 1), the emitted ones and then NO_TOKEN;
    `accepted` (B,) how many drafted tokens were kept, `state` (B,) the context the step left behind."""

    drafted: TokenArray
    tokens: TokenArray
    accepted: TokenArray
    state: IntArray

    @classmethod
    def empty(cls, batch: int, drafted: int, emitted: int) -> Steps:
        """Room for `batch` sequences, not filled; laid out position first, as it is written."""
        return cls(
            drafted=np.empty((drafted, batch), dtype=np.int16).T,
            tokens=np.empty((emitted, batch), dtype=np.int16).T,
            accepted=np.empty(batch, dtype=np.int16),
            state=np.empty(batch, dtype=np.int64),
        )

    def part(self, which: slice) -> Steps:
        return Steps(self.drafted[which], self.tokens[which], self.accepted[which], self.state[which])

    @property
    def emitted(self) -> IntArray:
        """(B,) tokens emitted: the accepted ones and the closing one, unless that was lost."""
        return np.asarray((self.tokens != NO_TOKEN).sum(axis=1), dtype=np.int64)


Step = Callable[[IntArray, Generator], Steps]
MAX_STEPS = 10_000_000


def check_steps(steps: int) -> None:
    if not 1 <= steps <= MAX_STEPS:
        raise UserError(f"steps is {steps}; give 1 to {MAX_STEPS}.")


class ChainStep:
    """`step(state, rng)` for a fixed N; the sampling tables are built once."""

    __slots__ = ("_closing", "_draft", "_successors", "_token_of", "n", "rules")

    def __init__(self, rules: ChainRules, n: int) -> None:
        if n < 1:
            raise UserError(f"n is {n}; a step drafts at least 1 token.")
        self.rules, self.n = rules, n
        states, vocab = rules.draft.rows.shape
        self._successors = rules.draft.successors().ravel()
        self._draft = AliasTable(rules.draft.rows)
        # Rows of the closing token: corrections first, then bonuses, so one draw serves both endings.
        self._closing = AliasTable(np.concatenate([rules.correction, rules.bonus]))
        self._token_of = np.tile(np.arange(vocab, dtype=np.int16), 2 * states)

    def __call__(self, state: IntArray, rng: Generator) -> Steps:
        made = Steps.empty(len(state), self.n, self.n + 1)
        block = max(256, BLOCK_ENTRIES // (self.n + 1))
        for first in range(0, len(state), block):
            self._fill(made.part(slice(first, first + block)), state[first : first + block], rng)
        return made

    def _fill(self, made: Steps, state: IntArray, rng: Generator) -> None:
        rules, n, batch = self.rules, self.n, len(state)
        vocab, sequence = rules.draft.vocab, np.arange(batch)
        states, cells = self._draft_tokens(state, rng)
        # The parallel evaluation: all N + 1 prefixes are known, so every decision comes from one lookup.
        kept = without_gap(rng.random((n, batch)) < rules.accept.take(cells))
        accepted = kept.sum(axis=0, dtype=np.int64)
        full = accepted == n
        closes_at = accepted * batch + sequence
        stop = states.ravel().take(closes_at)
        closing = self._token_of.take(self._closing.draw_cell(stop + full * rules.draft.states, rng))
        drafted, tokens = self._token_of.take(cells), np.full((n + 1, batch), NO_TOKEN, dtype=np.int16)
        # A kept token adds token + 1 to NO_TOKEN = -1; masked assignment would take three times as long.
        tokens[:n] += (drafted + 1) * kept
        tokens.ravel()[closes_at] = closing
        if rules.loses_bonus:
            tokens[n, full] = NO_TOKEN
        if rules.keeps_rejected:
            rejected = cells[np.minimum(accepted, n - 1), sequence]
            stop = np.where(full, stop, self._successors.take(rejected))
        made.drafted[:], made.tokens[:], made.accepted[:] = drafted.T, tokens.T, accepted
        made.state[:] = self._successors.take(stop * vocab + closing)

    def _draft_tokens(self, state: IntArray, rng: Generator) -> tuple[IntArray, IntArray]:
        """States (N + 1, B) and the (context, token) cell of each drafted token (N, B); position first, so that
        every access is to contiguous memory."""
        states = np.empty((self.n + 1, len(state)), dtype=np.int64)
        cells = np.empty((self.n, len(state)), dtype=np.int64)
        states[0] = state
        for i in range(self.n):
            cells[i] = self._draft.draw_cell(states[i], rng)
            states[i + 1] = self._successors.take(cells[i])
        return states, cells


def without_gap(kept: BoolArray) -> BoolArray:
    """True up to the first False of each column: rejection goes from the left."""
    running = kept.copy()
    for i in range(1, len(running)):
        running[i] &= running[i - 1]
    return running


def generate(step: Step, start: IntArray, k: int, rng: Generator) -> IntArray:
    """(B, k) the first k tokens of each sequence, by as many steps as each needs."""
    text = np.full((len(start), k), NO_TOKEN, dtype=np.int64)
    steps = step(start, rng)
    # The first step of all sequences is aligned and goes in whole; later ones begin where each left off.
    text[:, : steps.tokens.shape[1]] = steps.tokens[:, :k]
    length, state = steps.emitted, steps.state
    pending = np.flatnonzero(length < k)
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
