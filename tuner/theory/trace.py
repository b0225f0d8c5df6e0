"""A few steps of the loop, written out: what was drafted, what was kept, what closed the step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tuner.theory.chain import ChainStep, check_steps, lossless
from tuner.theory.verify import START, toy_pair


@dataclass(frozen=True, slots=True)
class TracedStep:
    """`context` holds the tokens the step began after, `emitted` the accepted ones and the closing one."""

    context: tuple[int, ...]
    drafted: tuple[int, ...]
    accepted: int
    emitted: tuple[int, ...]
    closed_by: Literal["correction", "bonus"]


def trace(n: int, steps: int, seed: int) -> tuple[TracedStep, ...]:
    """One sequence of the toy pair through `steps` steps, each beginning where the one before ended."""
    check_steps(steps)
    target, draft = toy_pair()
    step, rng = ChainStep(lossless(target, draft), n), np.random.default_rng(seed)
    state, traced = np.array([START], dtype=np.int64), []
    for _ in range(steps):
        made = step(state, rng)
        accepted = int(made.accepted[0])
        traced.append(
            TracedStep(
                context=_tokens(int(state[0]), target.vocab, target.order),
                drafted=tuple(int(token) for token in made.drafted[0]),
                accepted=accepted,
                emitted=tuple(int(token) for token in made.tokens[0, : accepted + 1]),
                closed_by="bonus" if accepted == n else "correction",
            )
        )
        state = made.state
    return tuple(traced)


def _tokens(state: int, vocab: int, order: int) -> tuple[int, ...]:
    return tuple(state // vocab**place % vocab for place in reversed(range(order)))
