"""The laws of synthetic truths, and how widely they are drawn: as published tables and field reports have them.

Nothing here was chosen by looking at regrets. Sources, by what they bound:
- alpha_1 of heads: .57 to .86 in per-position tables (vLLM pull requests 24243, 42764, 41044, 48892; EAGLE issue 191;
  spark-vllm issue 343), .06 for a language the head never saw (z-lab/dflash issue 163), .01 for heads that do not work
  with their target (TensorRT-LLM pull request 18905). Drawn from .2 to .92; one head in twenty is dead, below .05.
- shapes: falling (EAGLE-1 in vLLM issue 20780), flat (42764), rising (48892), a drop after the first position
  (24243, EAGLE issue 191), and positions beyond which nothing is accepted (dflash issue 163, vllm-ascend 15174).
- cost of drafting, in plain steps a token: .02 to .16 for heads (.10 and .14 in vLLM issue 20780, with a start cost of
  .09 and .16), .04 to .5 for draft models (.5: a 9B draft of a target with 17B active, mlx-lm issue 1132).
- lookups: from prose, where nearly nothing matches (89.4 tokens/s against 89.1), to verbatim repetition, 36.6 tokens
  a verify step (kekzl/imp pull request 1460). A match that is no copy breaks off early; conditional acceptance so
  rises by position (.54, .66, .74 in vLLM issue 19254). A smaller N cuts a copy into more drafting steps.
- noise: 1 to 10 % a request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
NS = tuple(range(1, 9))
#: Histogram of accepted tokens [requests, 0..n], verify steps and tokens emitted, one a request.
Run = tuple[Array, Array, Array]


class Draft(Protocol):
    """`per_token`, `start`: what drafting costs, as shares of a plain step."""

    @property
    def per_token(self) -> float: ...
    @property
    def start(self) -> float: ...
    def drafting_share(self, n: int) -> float:
        """Of verify steps, for a prompt of middling hardness."""
        ...

    def runs(self, rng: np.random.Generator, latent: Array, ns: Sequence[int], tokens: int) -> Iterator[Run]:
        """Requests of so many tokens, one run an N. `latent`: how easy each is, standard normal."""
        ...


@dataclass(frozen=True)
class Chain:
    """A draft that proposes N tokens in every step. `alpha`: conditional acceptance by position; `spread`: of requests
    around it, in logits."""

    alpha: Array
    per_token: float
    start: float
    spread: float

    def drafting_share(self, n: int) -> float:
        return 1.0

    def runs(self, rng: np.random.Generator, latent: Array, ns: Sequence[int], tokens: int) -> Iterator[Run]:
        logits = np.log(self.alpha / (1 - self.alpha))[None, :] + self.spread * latent[:, None]
        a = np.cumprod(1 / (1 + np.exp(-logits)), axis=1)
        for n in ns:
            edges = np.concatenate([np.ones((len(latent), 1)), a[:, :n], np.zeros((len(latent), 1))], axis=1)
            law = edges[:, :-1] - edges[:, 1:]
            steps = np.maximum(1, np.round(tokens / (1 + a[:, :n].sum(axis=1))))
            histogram = rng.multinomial(steps.astype(int), law).astype(np.float64)
            yield histogram, steps, steps + histogram @ np.arange(n + 1)


@dataclass(frozen=True)
class Lookup:
    """Text as a row of segments: a token that nothing matches, a false match, or a copy. A match goes on with
    probability `alpha` a token (false, copy) and ends with a token of the target's own; `starts`: how often each begins
    a segment. So a step drafts wherever a segment has begun or goes on, whatever N is."""

    alpha: tuple[float, float]
    starts: tuple[float, float]
    per_token: float
    start: float
    spread: float

    def _laws(self, latent: Array) -> tuple[Array, Array]:
        """(alpha, starts) [requests, 2]"""
        return (
            np.stack([_shifted(p, self.spread * latent) for p in self.alpha], axis=1),
            np.stack([_shifted(p, self.spread * latent * 0.5) for p in self.starts], axis=1),
        )

    def drafting_share(self, n: int) -> float:
        # Steps of a segment with alpha: 1 + alpha^(n+1) + alpha^(2(n+1)) + ... = 1 / (1 - alpha^(n+1)).
        alpha, starts = np.array(self.alpha), np.array(self.starts)
        drafting = float(starts @ (1 / (1 - alpha ** (n + 1))))
        return drafting / (drafting + 1 - float(starts.sum()))

    def runs(self, rng: np.random.Generator, latent: Array, ns: Sequence[int], tokens: int) -> Iterator[Run]:
        alpha, starts = self._laws(latent)
        kind = rng.random((len(latent), tokens))
        is_copy = kind < starts[:, 1:]
        is_match = kind < starts.sum(axis=1, keepdims=True)
        log_alpha = np.log(np.where(is_copy, alpha[:, 1:], alpha[:, :1]))
        copied = np.floor(np.log(rng.random(kind.shape)) / log_alpha)
        lengths = np.where(is_match, 1 + copied, 1.0)
        before = np.cumsum(lengths, axis=1) - lengths
        # The output limit cuts the last segment.
        lengths = np.clip(tokens - before, 0, lengths)
        plain = ((lengths > 0) & ~is_match).sum(axis=1)
        row, column = np.nonzero(is_match & (lengths > 0))
        matched = lengths[row, column].astype(np.intp)
        for n in ns:
            # Full steps of n accepted tokens and one more, and a last one that accepts what is left but for its own.
            whole, rest = np.divmod(matched, n + 1)
            short = rest > 0
            places = row[short] * (n + 1) + rest[short] - 1
            histogram = np.bincount(places, minlength=len(latent) * (n + 1)).astype(np.float64).reshape(-1, n + 1)
            histogram[:, n] += np.bincount(row, weights=whole, minlength=len(latent))
            yield histogram, plain + histogram.sum(axis=1), np.full(len(latent), float(tokens))


@dataclass(frozen=True)
class Laws:
    """`plain_s`: a step with nothing to verify beyond weights; `saturation`: tokens that double it (linear kind);
    `noise`: standard deviation of a request's TPOT around its steps, as a share."""

    kind: str
    loads: tuple[int, ...]
    plain_s: float
    saturation: float
    growth: float
    drafts: tuple[Draft, ...]
    noise: float

    def verify_s(self, tokens: float) -> float:
        x = tokens / self.saturation
        if self.kind == "moe":
            return float(self.plain_s * (1 + self.growth * (1 - np.exp(-4 * x)) + x))
        return float(self.plain_s * (1 + x ** (self.growth if self.kind == "convex" else 1.0)))

    def drafting_s(self, draft: Draft, n: int, b: int) -> float:
        return self.plain_s * (draft.start + draft.per_token * n) * (1 + b / 128)


def draw_laws(rng: np.random.Generator) -> Laws:
    kind = ("linear", "convex", "moe")[int(rng.integers(3))]
    growth = {"linear": 1.0, "convex": rng.uniform(1.2, 1.8), "moe": rng.uniform(0.3, 1.5)}[kind]
    levels = sorted(int(b) for b in rng.choice([1, 2, 4, 8, 16, 32, 64], size=3, replace=False))
    return Laws(
        kind, tuple(levels), _log_uniform(rng, 0.005, 0.1), _log_uniform(rng, 16, 1024), float(growth),
        (_head(rng), _draft_model(rng), _lookup(rng)), _log_uniform(rng, 0.01, 0.10),
    )  # fmt: skip


def _head(rng: np.random.Generator) -> Chain:
    first = rng.uniform(0.01, 0.05) if rng.random() < 0.05 else rng.uniform(0.2, 0.92)
    alpha = first * rng.uniform(0.8, 1.05) ** np.arange(len(NS))
    shape = rng.random()
    if shape < 0.3:
        alpha[1:] *= rng.uniform(0.7, 0.95)
    elif shape < 0.4:
        alpha[int(rng.integers(3, len(NS))) :] = 0.01
    return Chain(np.clip(alpha, 0.01, 0.97), _log_uniform(rng, 0.02, 0.16), float(rng.uniform(0, 0.2)), 0.4)


def _draft_model(rng: np.random.Generator) -> Chain:
    alpha = rng.uniform(0.35, 0.95) * rng.uniform(0.88, 1.03) ** np.arange(len(NS))
    return Chain(np.clip(alpha, 0.01, 0.97), _log_uniform(rng, 0.04, 0.5), float(rng.uniform(0, 0.1)), 0.4)


def _lookup(rng: np.random.Generator) -> Lookup:
    alpha = (float(rng.uniform(0.02, 0.4)), float(rng.uniform(0.6, 0.985)))
    starts = (float(rng.uniform(0, 0.6)), _log_uniform(rng, 0.005, 0.3))
    return Lookup(alpha, starts, float(rng.uniform(0, 0.005)), float(rng.uniform(0, 0.05)), 0.5)


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _shifted(p: float, logits: Array) -> Array:
    odds = p / (1 - p) * np.exp(logits)
    return np.asarray(odds / (1 + odds))
