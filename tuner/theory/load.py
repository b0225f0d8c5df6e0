"""The speed-up model under load: L(b, N) from a roofline, alpha by position, the optimum that moves with b."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.errors import UserError
from tuner.theory.rule import FloatArray


@dataclass(frozen=True, slots=True)
class StepTime:
    """Times in units of one pass over the target's weights, which is a plain step at low load.

    A forward pass of b sequences and w tokens each takes max(1 + b kv, b w / ridge): reading weights and cache,
    or computing, whichever is longer. `ridge` is the number of tokens at which computing takes over; it is the
    machine's FLOP/s over its bytes/s for 16-bit weights. The draft pays `draft_cost` times that, once a token.
    """

    draft_cost: float
    ridge: float = float("inf")
    kv_per_sequence: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.draft_cost < float("inf") or not 0.0 <= self.kv_per_sequence < float("inf"):
            raise UserError("cost and kv share must be finite and not below 0.")
        if not self.ridge > 0.0:
            raise UserError(f"ridge is {self.ridge:g}; it is a number of tokens above 0.")

    def forward(self, batch: float, width: float) -> float:
        return max(1.0 + batch * self.kv_per_sequence, batch * width / self.ridge)

    def step(self, batch: float, drafted: int, calls: int | None = None, draft_width: int = 1) -> float:
        """L(b, N): `calls` draft passes of `draft_width` tokens, then one pass over `drafted` + 1 tokens.

        A chain calls the draft once for each drafted token, a tree once a depth.
        """
        passes = drafted if calls is None else calls
        return self.forward(batch, drafted + 1) + passes * self.draft_cost * self.forward(batch, draft_width)


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """The best N at one batch. `at_n_max`: the best is the last N that alpha was given for."""

    batch: int
    best_n: int
    tokens_per_call: float
    step_time: float
    plain_time: float
    speedup: float
    at_n_max: bool


def held_on(alphas: Sequence[float], n_max: int) -> list[float]:
    """One alpha for each of n_max positions: those given, then the last of them again."""
    if n_max < 1:
        raise UserError(f"n-max is {n_max}; at least 1 token must be considered.")
    return [alphas[min(k, len(alphas) - 1)] for k in range(n_max)]


def acceptance_length(alphas: Sequence[float]) -> FloatArray:
    """tau(N) for N = 0..len(alphas): 1 + sum over k <= N of alpha_1 ... alpha_k, alpha_k by position."""
    rates = np.asarray(alphas, dtype=np.float64)
    if rates.ndim != 1 or not bool(np.all((rates >= 0.0) & (rates <= 1.0))):
        raise UserError("alpha lies outside [0, 1]; give one share of kept tokens for each position.")
    return np.concatenate([[1.0], 1.0 + np.cumsum(np.cumprod(rates))])


def speedup_at(batch: int, alphas: Sequence[float], time: StepTime) -> FloatArray:
    """L(b, 0) tau(N) / L(b, N) for N = 0..len(alphas); with no ridge and one alpha it is E / (1 + N c)."""
    if batch < 1:
        raise UserError(f"batch is {batch}; at least 1 sequence must be running.")
    tau = acceptance_length(alphas)
    lasting = np.array([time.step(batch, n) for n in range(len(tau))])
    return np.asarray(time.step(batch, 0) * tau / lasting)


def best_by_batch(batches: Sequence[int], alphas: Sequence[float], time: StepTime) -> tuple[LoadPoint, ...]:
    """The best N of all N = 0..len(alphas) at each batch; ties go to the smaller N, 0 is plain decoding."""
    if not alphas:
        raise UserError("no alpha was given; give one for each position that may be drafted.")
    tau = acceptance_length(alphas)
    points = []
    for batch in batches:
        ratio = speedup_at(batch, alphas, time)
        n = int(ratio.argmax())
        points.append(
            LoadPoint(
                batch=batch,
                best_n=n,
                tokens_per_call=float(tau[n]),
                step_time=time.step(batch, n),
                plain_time=time.step(batch, 0),
                speedup=float(ratio[n]),
                at_n_max=n == len(alphas),
            )
        )
    return tuple(points)
