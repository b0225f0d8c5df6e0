"""The loops of benchmarks/theory_steps.py are correct loops, and the vectorised one is far ahead of them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tuner.theory.chain import ChainStep, lossless
from tuner.theory.chi2 import goodness_of_fit
from tuner.theory.exact import chain_law
from tuner.theory.verify import START, toy_pair

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "theory_steps.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("theory_steps", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["lesson", "lists", "tight"])
def test_each_plain_loop_follows_the_exact_law(script: ModuleType, name: str) -> None:
    """Written independently of the library, so that the race is between loops that do the same."""
    target, draft = toy_pair()
    steps = script.LOOPS[name](target, draft, 2, 4000, 3)
    law = [part[START].sum(axis=1) for part in chain_law(lossless(target, draft), 2)]
    offsets = [0, 0, 4, 20]
    counts = np.zeros(84, dtype=np.int64)
    for tokens in steps:
        code = 0
        for token in tokens:
            code = code * 4 + token
        counts[offsets[len(tokens)] + code] += 1
    assert goodness_of_fit(counts, np.concatenate(law[1:])).p_value > 1e-3


def test_the_vectorised_loop_is_far_ahead(script: ModuleType) -> None:
    """The benchmark asks for 100 times the lesson's loop on 50,000 steps; here a small race, with room for noise."""
    target, draft = toy_pair()
    step, rng = ChainStep(lossless(target, draft), 3), np.random.default_rng(0)
    start = np.full(20_000, START, dtype=np.int64)
    slow = script.seconds(lambda: script.lesson_steps(target, draft, 3, 1000, 0)) * 20
    fast = min(script.seconds(lambda: step(start, rng)) for _ in range(10))
    assert slow / fast > 100
