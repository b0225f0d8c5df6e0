"""The i.i.d. speed-up model of Leviathan et al. (arXiv 2211.17192): tokens per call, time per token, the best N."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from tuner.errors import UserError
from tuner.theory.rule import FloatArray
from tuner.theory.search import first_false


def tokens_per_call(alpha: ArrayLike, n: ArrayLike) -> FloatArray:
    """E = (1 - alpha^(N+1)) / (1 - alpha), and N + 1 at alpha = 1; broadcasts."""
    rate, drafted = np.asarray(alpha, dtype=np.float64), np.asarray(n, dtype=np.float64)
    _check_alpha(rate)
    if bool(np.any(drafted < 0.0)):
        raise UserError("n is below 0; the number of drafted tokens starts at 0.")
    with np.errstate(divide="ignore"):
        # expm1 of a logarithm keeps the digits that 1 - alpha^(N+1) loses near alpha = 1.
        ends_by_rejection = -np.expm1((drafted + 1.0) * np.log(rate))
    missing = 1.0 - rate
    return np.where(missing > 0.0, ends_by_rejection / np.where(missing > 0.0, missing, 1.0), drafted + 1.0)


def relative_time(alpha: ArrayLike, cost: ArrayLike, n: ArrayLike) -> FloatArray:
    """Time per token in units of a plain decoding step: (1 + N c) / E."""
    _check_cost(cost)
    return (1.0 + np.asarray(n, dtype=np.float64) * np.asarray(cost, dtype=np.float64)) / tokens_per_call(alpha, n)


def speedup(alpha: ArrayLike, cost: ArrayLike, n: ArrayLike) -> FloatArray:
    """Plain time per token over speculative time per token: E / (1 + N c)."""
    return 1.0 / relative_time(alpha, cost, n)


@dataclass(frozen=True, slots=True)
class Optimum:
    """`n` None: every further token still pays, `speedup` is then the limit (None where that has no bound)."""

    n: int | None
    speedup: float | None


def best_n(alpha: float, cost: float) -> Optimum:
    """The N with the least time per token over all N >= 0; 0 means leave speculation off; ties go to the smaller.

    E is concave in N and 1 + N c affine, so the speed-up rises to one peak and then falls: the first N after
    which it no longer rises is the optimum. It is found by doubling and bisection, with no upper limit on N.
    """
    _check_alpha(np.asarray(alpha))
    _check_cost(cost)
    if cost == 0.0 and alpha > 0.0:
        return Optimum(None, None if alpha == 1.0 else 1.0 / (1.0 - alpha))
    if alpha == 1.0 and cost < 1.0:
        return Optimum(None, 1.0 / cost)
    n = first_false(lambda drafted: still_pays(alpha, cost, drafted))
    return Optimum(n, float(speedup(alpha, cost, n)))


def still_pays(alpha: float, cost: float, n: int) -> bool:
    """Does token N + 1 pay? S(N+1) > S(N) iff alpha^(N+1) (1 + N c) > c E(N): its worth against its price."""
    worth, price = next_token_worth(alpha, cost, n)
    return worth > price


def next_token_worth(alpha: float, cost: float, n: int) -> tuple[float, float]:
    """The two sides of `still_pays`: alpha^(N+1) (1 + N c) and c E(N)."""
    return alpha ** (n + 1) * (1.0 + n * cost), cost * float(tokens_per_call(alpha, n))


def break_even_alpha(n: int, cost: float) -> float | None:
    """The alpha at which drafting N tokens costs as much as it yields, E(alpha, N) = 1 + N c; None when c > 1.

    At N = 1 it is c itself, and it only grows with N: if alpha <= c, no N pays.
    """
    return break_even_alphas([n], cost)[0]


def break_even_alphas(numbers: Sequence[int], cost: float) -> list[float | None]:
    """`break_even_alpha` of each N, by bisection: E grows with alpha."""
    drafted = np.asarray(numbers, dtype=np.float64)
    if bool(np.any(drafted < 1.0)):
        raise UserError(f"n is {min(numbers)}; break-even needs at least 1 drafted token.")
    _check_cost(cost)
    if cost > 1.0:
        return [None] * len(numbers)
    low, high = np.zeros(len(drafted)), np.ones(len(drafted))
    for _ in range(64):
        middle = (low + high) / 2.0
        pays = tokens_per_call(middle, drafted) > 1.0 + drafted * cost
        low, high = np.where(pays, low, middle), np.where(pays, middle, high)
    return [float(alpha) if cost > 0.0 else 0.0 for alpha in high]


@dataclass(frozen=True, slots=True)
class Point:
    """One N of the curve; `relative_time` is time per token in units of a plain decoding step."""

    n: int
    tokens_per_call: float
    relative_time: float
    speedup: float


def curve(alpha: float, cost: float, n_max: int) -> tuple[Point, ...]:
    """The points N = 1..n_max."""
    if n_max < 1:
        raise UserError(f"n-max is {n_max}; the curve starts at N = 1.")
    numbers = np.arange(1, n_max + 1)
    tokens, times = tokens_per_call(alpha, numbers), relative_time(alpha, cost, numbers)
    return tuple(
        Point(int(n), float(e), float(t), float(1.0 / t)) for n, e, t in zip(numbers, tokens, times, strict=True)
    )


def grid(alphas: Sequence[float], n_max: int) -> tuple[list[int], list[list[float]]]:
    """N = 1..n_max, and for each alpha its tokens per call at every N."""
    if n_max < 1:
        raise UserError(f"n-max is {n_max}; the table starts at N = 1.")
    numbers = list(range(1, n_max + 1))
    return numbers, [[float(e) for e in tokens_per_call(alpha, numbers)] for alpha in alphas]


def _check_alpha(alpha: FloatArray) -> None:
    if not bool(np.all((alpha >= 0.0) & (alpha <= 1.0))):
        raise UserError("alpha lies outside [0, 1]; it is the share of drafted tokens the target keeps.")


def _check_cost(cost: ArrayLike) -> None:
    value = np.asarray(cost, dtype=np.float64)
    if not bool(np.all((value >= 0.0) & np.isfinite(value))):
        raise UserError("cost is below 0 or not finite; it is the time to draft one token over one plain step.")
