"""Shared by the theory tests: samples counted against an enumerated law, and the figures of docs/theory.md."""

from __future__ import annotations

from functools import cache

import numpy as np

from tuner.theory.chain import Steps
from tuner.theory.exact import StepLaw
from tuner.theory.load import StepTime, best_by_batch, held_on
from tuner.theory.markov import Markov, draft_with_alpha, random_target, stationary
from tuner.theory.siblings import Drafting
from tuner.theory.speedup import best_n, speedup, tokens_per_call
from tuner.theory.tree import from_branching
from tuner.theory.tree_exact import node_acceptance
from tuner.theory.tree_study import MODEL_SEED, ORDER
from tuner.theory.verify import Verification, verify


def counts_and_law(steps: Steps, law: StepLaw, starts: list[int], vocab: int) -> tuple[np.ndarray, np.ndarray]:
    """One cell for each text a step may emit and context it may leave behind, averaged over the starting contexts."""
    sizes = [0, *np.cumsum([part[0].size for part in law])]
    states, text = law[0].shape[0], np.zeros(len(steps.tokens), dtype=np.int64)
    for column in steps.tokens.T:
        text = np.where(column >= 0, text * vocab + column, text)
    cells = np.array(sizes)[steps.emitted] + text * states + steps.state
    flat = np.concatenate([part[starts].mean(axis=0).ravel() for part in law])
    return np.bincount(cells, minlength=len(flat)), flat


OPTIMA = ((0.8, 0.05), (0.95, 0.02), (0.9, 0.04), (0.6, 0.3))


@cache
def two_hundred_seeds() -> tuple[Verification, ...]:
    """The same code as the command, at a size that takes seconds for all seeds."""
    return tuple(verify(steps=2500, seed=seed) for seed in range(200))


def optima_rows() -> list[str]:
    """The table of optima as the page prints it."""
    rows = []
    for alpha, cost in OPTIMA:
        best = best_n(alpha, cost)
        three, five = (float(speedup(alpha, cost, n)) for n in (3, 5))
        rows.append(f"| {alpha} | {cost} | {best.n} | {best.speedup:.4f} | {three:.4f} | {five:.4f} |")
    return rows


def cooled(model: Markov, temperature: float) -> Markov:
    weights = model.rows ** (1.0 / temperature)
    return Markov(weights / weights.sum(axis=1, keepdims=True), model.order)


def cooled_tree(drafting: Drafting) -> float:
    """Tokens per call of 2,2,2 on the toy pair of `tuner theory tree`, both models at temperature 0.3."""
    target = random_target(8, ORDER, MODEL_SEED)
    draft = draft_with_alpha(target, 0.8, MODEL_SEED)
    cold = cooled(target, 0.3)
    start = stationary(cold)
    return float(node_acceptance(cold, cooled(draft, 0.3), from_branching([2, 2, 2]), start, drafting).sum())


def prose_figures() -> dict[str, str]:
    """Name -> the figure as written on the page."""
    results = two_hundred_seeds()
    numbers = np.arange(1, 100)
    near_best = numbers[speedup(0.9, 0.04, numbers) >= 0.99 * float(best_n(0.9, 0.04).speedup or 0.0)]
    falling = best_by_batch([1], held_on([0.8, 0.7, 0.6, 0.5], 32), StepTime(0.05))[0]
    share = 100 * float(speedup(0.95, 0.02, 5)) / float(best_n(0.95, 0.02).speedup or 0.0)
    return {
        "alarms_q": str(sum(result.against_q.rejected for result in results)),
        "alarms_two": str(sum(result.against_samples.rejected for result in results)),
        "alpha11": f"{100 * 0.9**11:.0f} %",
        "flat_low": str(near_best.min()),
        "flat_high": str(near_best.max()),
        "share_at_5": f"{share:.0f}",
        "falling_n": str(falling.best_n),
        "falling_speedup": f"{falling.speedup:.4f}",
        "calls_ratio": f"{14 / 3:.1f}",
        "cool_top_k": f"{cooled_tree('top-k'):.4f}",
        "cool_sampled": f"{cooled_tree('sampled'):.4f}",
        # FLOP/s over bytes/s at 2 FLOP and 2 bytes a weight; from NVIDIA's H100 SXM data sheet
        "ridge": f"{989.5 / 3.35:.0f}",
        "chain_calls": f"{float(tokens_per_call(0.8, 3)):.3f}",
        "chain_nodes": f"{float(tokens_per_call(0.8, 14)):.4f}",
    }
