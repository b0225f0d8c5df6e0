"""The theorem under test: do speculative steps write the target's own text, and would the test notice if not?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.random import Generator

from tuner.errors import UserError
from tuner.theory.broken import broken_chains
from tuner.theory.chain import ChainStep, check_steps, generate, lossless, sample_directly
from tuner.theory.chi2 import Chi2Test, goodness_of_fit, power, samples_needed, two_sample
from tuner.theory.exact import chain_law, tokens_per_step, written_law
from tuner.theory.markov import IntArray, Markov, joint, random_target, tilted
from tuner.theory.rule import FloatArray

# The toy pair of every `verify`: contexts of two tokens, so that a wrong context shows; see docs/theory.md.
VOCAB, ORDER, MODEL_SEED, TILT = 4, 2, 1, 1.5
START = 0


@dataclass(frozen=True, slots=True)
class VariantCheck:
    """One broken loop under the same test; `first_token` sees the marginal of token 1 alone.

    From the exact law of the broken loop: `power` at this many steps, and the steps that give a power of 95 %.
    """

    name: str
    joint: Chi2Test
    first_token: Chi2Test
    power: float
    steps_needed: int | None

    @property
    def rejected(self) -> bool:
        return self.joint.rejected


@dataclass(frozen=True, slots=True)
class Verification:
    """`against_q` decides: its false-alarm rate is 5 percent by construction. The other tests are shown beside it."""

    steps: int
    seed: int
    n: int
    first_k: int
    against_q: Chi2Test
    against_samples: Chi2Test
    first_token: Chi2Test
    tokens_per_step: float
    tokens_per_step_exact: float
    variants: tuple[VariantCheck, ...]

    @property
    def passed(self) -> bool:
        return not self.against_q.rejected and all(variant.rejected for variant in self.variants)


def toy_pair() -> tuple[Markov, Markov]:
    target = random_target(VOCAB, ORDER, MODEL_SEED)
    return target, tilted(target, TILT, MODEL_SEED)


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """A loop under test and the exact law of the first n + 1 tokens it writes."""

    name: str
    step: ChainStep
    law: FloatArray
    steps_needed: int | None


@cache
def loops(n: int) -> tuple[Loop, ...]:
    """The lossless loop, then the broken ones: all that does not depend on steps or seed."""
    target, draft = toy_pair()
    q_law = joint(target, n + 1)[START]
    made = []
    for name, rules in {"lossless": lossless(target, draft), **broken_chains(target, draft)}.items():
        law = written_law(chain_law(rules, n), n + 1)[START]
        made.append(Loop(name, ChainStep(rules, n), law, samples_needed(law, q_law)))
    return tuple(made)


def verify(steps: int = 50_000, seed: int = 1, n: int = 3) -> Verification:
    """Run `steps` sequences, one step each and then more until N + 1 tokens stand, and test their joint law."""
    check_steps(steps)
    if not 1 <= n <= 6:
        raise UserError(f"n is {n}; the test enumerates all texts of n + 1 tokens, for n from 1 to 6.")
    target, _ = toy_pair()
    first_k, start = n + 1, np.full(steps, START, dtype=np.int64)
    right, *broken = loops(n)
    law = joint(target, first_k)[START]
    streams = [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(3 + len(broken))]
    counts = count_texts(generate(right.step, start, first_k, streams[0]), VOCAB)
    direct = count_texts(sample_directly(target, start, first_k, streams[1]), VOCAB)
    return Verification(
        steps=steps,
        seed=seed,
        n=n,
        first_k=first_k,
        against_q=goodness_of_fit(counts, law),
        against_samples=two_sample(counts, direct),
        first_token=goodness_of_fit(_first_token(counts), target.rows[START]),
        tokens_per_step=float(right.step(start, streams[2]).emitted.mean()),
        tokens_per_step_exact=float(tokens_per_step(chain_law(right.step.rules, n))[START]),
        variants=tuple(
            _check_variant(loop, start, law, stream) for loop, stream in zip(broken, streams[3:], strict=True)
        ),
    )


def _check_variant(loop: Loop, start: IntArray, law: FloatArray, rng: Generator) -> VariantCheck:
    counts = count_texts(generate(loop.step, start, loop.step.n + 1, rng), VOCAB)
    return VariantCheck(
        name=loop.name,
        joint=goodness_of_fit(counts, law),
        first_token=goodness_of_fit(_first_token(counts), law.reshape(VOCAB, -1).sum(axis=1)),
        power=power(loop.law, law, len(start)),
        steps_needed=loop.steps_needed,
    )


def count_texts(texts: IntArray, vocab: int) -> IntArray:
    """Counts over vocab**k cells; a text of k tokens is read in base `vocab`, as in `markov.joint`."""
    code = np.zeros(len(texts), dtype=np.int64)
    for column in texts.T:
        code = code * vocab + column
    return np.bincount(code, minlength=vocab ** texts.shape[1])


def _first_token(counts: IntArray) -> IntArray:
    return np.asarray(counts.reshape(VOCAB, -1).sum(axis=1), dtype=np.int64)
