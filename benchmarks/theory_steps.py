"""Speculative steps a second: the vectorised loop of `tuner.theory` against the loops people write first.

    python benchmarks/theory_steps.py [--steps 50000] [--json]

lesson      one step after the other, one token after the other, on NumPy rows, as the papers' pseudo-code reads
lists       the same without NumPy: lists and `random` only
tight       lists with every cumulative sum and residual worked out beforehand

All run the same toy models at the same N. Times are processor seconds, the best of several rounds taken in turn, so
that what else runs on the machine counts little. Exit code 1 when the vectorised loop is under 100 times as fast as
the lesson's, or `tuner theory verify` takes 2 s or more.
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


def lesson_steps(target: Markov, draft: Markov, n: int, steps: int, seed: int) -> list[Step]:
    rng = np.random.default_rng(seed)
    emitted = []
    for _ in range(steps):
        context, drafted, contexts = START, [], [START]
        for _ in range(n):
            token = int(rng.choice(target.vocab, p=draft.rows[context]))
            drafted.append(token)
            context = (context * target.vocab + token) % target.states
            contexts.append(context)
        q_parallel = target.rows[contexts]
        out = []
        for i, token in enumerate(drafted):
            q, p = q_parallel[i], draft.rows[contexts[i]]
            if rng.random() < min(1.0, q[token] / p[token]):
                out.append(token)
                continue
            excess = np.maximum(q - p, 0.0)
            out.append(int(rng.choice(target.vocab, p=excess / excess.sum())))
            break
        else:
            out.append(int(rng.choice(target.vocab, p=q_parallel[n])))
        emitted.append(tuple(out))
    return emitted


def list_steps(target: Markov, draft: Markov, n: int, steps: int, seed: int) -> list[Step]:
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


def seconds(run: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    began = clock()
    run()
    return clock() - began


LOOPS = {"lesson": lesson_steps, "lists": list_steps, "tight": tight_steps}


def race(steps: int, rounds: int = 3) -> dict[str, float]:
    """Best seconds of each loop. The fast one is so short that it runs several times a round."""
    target, draft = toy_pair()
    step, rng = ChainStep(lossless(target, draft), N), np.random.default_rng(0)
    start = np.full(steps, START, dtype=np.int64)
    best = dict.fromkeys([*LOOPS, "vectorised"], float("inf"))
    for _ in range(rounds):
        for name, loop in LOOPS.items():
            best[name] = min(best[name], seconds(lambda loop=loop: loop(target, draft, N, steps, 0)))
            best["vectorised"] = min(best["vectorised"], *(seconds(lambda: step(start, rng)) for _ in range(10)))
    return best


def verify_seconds(rounds: int = 3) -> float:
    """Wall time of `tuner theory verify` with its defaults, start-up included; best of several."""
    command = [sys.executable, "-m", "tuner", "theory", "verify", "--json"]
    return min(
        seconds(lambda: subprocess.run(command, check=True, capture_output=True), time.perf_counter)
        for _ in range(rounds)
    )


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
        **{f"{name}_over_vectorised": best[name] / best["vectorised"] for name in LOOPS},
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
    held = result["lesson_over_vectorised"] >= LEAST_RATIO and result["verify_s"] < MOST_SECONDS
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
