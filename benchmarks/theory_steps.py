"""Speculative steps a second: the vectorised loop of `tuner.theory` against the plain Python loop people first write.

    python benchmarks/theory_steps.py [--steps 50000] [--json]

Both run the same toy models at the same N and are held against the same exact law, so that the race is between two
correct loops. Best of several rounds each, the two taken in turn; exit code 1 when the ratio is under 100 or
`tuner theory verify` takes 2 s or more.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import accumulate

import numpy as np

from tuner.theory.chain import ChainStep, lossless
from tuner.theory.markov import Markov
from tuner.theory.verify import START, toy_pair

N = 3
LEAST_RATIO = 100.0
MOST_SECONDS = 2.0
Step = tuple[int, ...]


def plain_steps(target: Markov, draft: Markov, n: int, steps: int, seed: int) -> list[Step]:
    """The loop of the lesson: one step after the other, one token after the other, lists and `random` only."""
    rng = random.Random(seed)
    q_rows, p_rows = target.rows.tolist(), draft.rows.tolist()
    vocab, states = target.vocab, target.states
    tokens = range(vocab)
    emitted = []
    for _ in range(steps):
        context, drafted, contexts = START, [], [START]
        for _ in range(n):
            token = rng.choices(tokens, weights=p_rows[context])[0]
            drafted.append(token)
            context = (context * vocab + token) % states
            contexts.append(context)
        q_parallel = [q_rows[c] for c in contexts]
        out = []
        for i, token in enumerate(drafted):
            q, p = q_parallel[i], p_rows[contexts[i]]
            if rng.random() < min(1.0, q[token] / p[token]):
                out.append(token)
                continue
            excess = [max(qx - px, 0.0) for qx, px in zip(q, p, strict=True)]
            mass = sum(excess)
            out.append(rng.choices(tokens, weights=[x / mass for x in excess])[0])
            break
        else:
            out.append(rng.choices(tokens, weights=q_parallel[n])[0])
        emitted.append(tuple(out))
    return emitted


def tight_steps(target: Markov, draft: Markov, n: int, steps: int, seed: int) -> list[Step]:
    """The same loop with its cumulative weights worked out beforehand: as fast as plain Python was made here."""
    rng = random.Random(seed)
    q_rows, p_rows = target.rows.tolist(), draft.rows.tolist()
    q_sums, p_sums = ([list(accumulate(row)) for row in rows] for rows in (q_rows, p_rows))
    excess = [
        list(accumulate(max(a - b, 0.0) for a, b in zip(q, p, strict=True)))
        for q, p in zip(q_rows, p_rows, strict=True)
    ]
    vocab, states = target.vocab, target.states
    tokens, uniform, choices = range(vocab), rng.random, rng.choices
    emitted = []
    for _ in range(steps):
        context, drafted, contexts = START, [], []
        for _ in range(n):
            token = choices(tokens, cum_weights=p_sums[context])[0]
            drafted.append(token)
            contexts.append(context)
            context = (context * vocab + token) % states
        out = []
        for at, token in zip(contexts, drafted, strict=True):
            if uniform() * p_rows[at][token] < q_rows[at][token]:
                out.append(token)
                continue
            out.append(choices(tokens, cum_weights=excess[at])[0])
            break
        else:
            out.append(choices(tokens, cum_weights=q_sums[context])[0])
        emitted.append(tuple(out))
    return emitted


def seconds(run: Callable[[], object]) -> float:
    began = time.process_time()
    run()
    return time.process_time() - began


def race(steps: int, rounds: int = 5) -> dict[str, float]:
    """Best times in seconds. The fast loop is so short that it runs several times a round to meet a quiet moment."""
    target, draft = toy_pair()
    step, rng = ChainStep(lossless(target, draft), N), np.random.default_rng(0)
    start = np.full(steps, START, dtype=np.int64)
    best = {"plain": float("inf"), "tight": float("inf"), "vectorised": float("inf")}
    for _ in range(rounds):
        best["plain"] = min(best["plain"], seconds(lambda: plain_steps(target, draft, N, steps, 0)))
        best["tight"] = min(best["tight"], seconds(lambda: tight_steps(target, draft, N, steps, 0)))
        fast = min(seconds(lambda: step(start, rng)) for _ in range(10))
        best["vectorised"] = min(best["vectorised"], fast)
    return best


def verify_seconds(rounds: int = 3) -> float:
    """Wall time of `tuner theory verify` with its defaults, start-up included; best of several."""
    command = [sys.executable, "-m", "tuner", "theory", "verify", "--json"]
    return min(seconds(lambda: subprocess.run(command, check=True, capture_output=True)) for _ in range(rounds))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    best = race(given.steps)
    result = {
        "steps": given.steps,
        "n": N,
        **{f"{name}_s": value for name, value in best.items()},
        "plain_over_vectorised": best["plain"] / best["vectorised"],
        "tight_over_vectorised": best["tight"] / best["vectorised"],
        "verify_s": verify_seconds(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cpus": os.cpu_count(),
        "load_1min": os.getloadavg()[0],
    }
    if given.json:
        print(json.dumps(result, indent=2))
    else:
        for name, value in result.items():
            print(f"{name:>22}  {value:.4f}" if isinstance(value, float) else f"{name:>22}  {value}")
    held = result["plain_over_vectorised"] >= LEAST_RATIO and result["verify_s"] < MOST_SECONDS
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
