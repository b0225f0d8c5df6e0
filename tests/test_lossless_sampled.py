"""Two-sample tests on first tokens: bins by hand, false alarms over 200 runs, power as stated, spending over looks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.random import Generator

from tuner.measure.lossless_levels import ALPHA, caught, levels, noncentrality, power, spent
from tuner.measure.lossless_sampled import (
    LOOKS,
    SampledResult,
    compare_prompt,
    compare_sampled,
    prefix_bins,
)

VOCAB, K, PROMPTS = 12, 3, 4
Texts = list[tuple[int, ...]]


def chains(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.dirichlet(np.full(VOCAB, 0.25), size=VOCAB) for _ in range(PROMPTS)]


LAWS = chains(7)


def draw(rng: Generator, law: np.ndarray, n: int) -> Texts:
    """n texts of K tokens of a Markov chain from token 0."""
    last, columns = np.zeros(n, dtype=int), []
    for _ in range(K):
        last = (rng.random(n)[:, None] > law.cumsum(axis=1)[last]).sum(axis=1).clip(0, VOCAB - 1)
        columns.append(last)
    return [tuple(map(int, row)) for row in np.array(columns).T]


def shifted(law: np.ndarray, by: float) -> np.ndarray:
    """Every row with `by` of its mass moved from the likeliest token to the second: a total variation of `by`."""
    moved = law.copy()
    for row in moved:
        second, first = np.argsort(row)[-2:]
        row[first] -= by
        row[second] += by
    return moved


def run(rng: Generator, n: int, second: Callable[[np.ndarray], np.ndarray] = lambda law: law) -> SampledResult:
    """As a verify run does it: looks at the growing second sample, ended by the first that fails."""
    off = {str(p): draw(rng, law, n) for p, law in enumerate(LAWS)}
    spec = {str(p): draw(rng, second(law), n) for p, law in enumerate(LAWS)}
    for look, share in enumerate(LOOKS):
        seen = {p: texts[: int(n * share)] for p, texts in spec.items()}
        result = compare_sampled(off, seen, 1.0, K, look)
        if result.failed:
            break
    return result


def test_bins_by_hand() -> None:
    """8 and 8 texts. Branch 1 holds 12 and splits: (1,1) 6, (1,2) 6; 2 and 3 hold 2 each and are pooled: 4."""
    first = [(1, 1)] * 3 + [(1, 2)] * 3 + [(2, 1), (3, 1)]
    second = [(1, 1)] * 3 + [(1, 2)] * 3 + [(2, 2), (3, 2)]
    assert sorted(prefix_bins(first, second, least=2)) == [(2, 2), (3, 3), (3, 3)]
    # With 4 expected in the smaller sample a bin needs 8 in all: only branch 1 as a whole, with the pooled rest in it.
    assert prefix_bins(first, second, least=4) == [(8, 8)]


def test_texts_that_ended_early_are_an_outcome_of_their_own() -> None:
    assert sorted(prefix_bins([(1,)] * 5 + [(1, 2)] * 5, [(1,)] * 5 + [(1, 2)] * 5, least=5)) == [(5, 5), (5, 5)]


def test_chi_square_by_hand() -> None:
    """(30, 10) and (20, 20): expected 25 and 15 in both, so 2 * 25/25 + 2 * 25/15 = 5.33 with one degree."""
    test = compare_prompt("p", [(1,)] * 30 + [(2,)] * 10, [(1,)] * 20 + [(2,)] * 20)
    assert test.df == 1
    assert test.chi2 == pytest.approx(2 + 10 / 3)
    assert test.p_value == pytest.approx(0.0209, abs=1e-4)
    assert test.distance == pytest.approx(0.25)


def test_a_text_that_never_varies_has_nothing_to_test() -> None:
    result = compare_sampled({"p": [(1, 2)] * 50}, {"p": [(1, 2)] * 50}, 1.0, 2)
    assert result.df == 0
    assert not result.failed
    assert result.power() == 0.0
    assert result.caught is None


def test_two_hundred_clean_runs_give_few_false_alarms() -> None:
    rng = np.random.default_rng(1)
    alarms = sum(run(rng, 400).failed for _ in range(200))
    assert alarms < 10  # under 5 %; each run may err with probability 0.01


def test_p_values_of_clean_runs_are_not_small_too_often() -> None:
    rng = np.random.default_rng(2)
    seen = [
        compare_sampled({"p": draw(rng, LAWS[0], 600)}, {"p": draw(rng, LAWS[0], 600)}, 1.0, K).p_all
        for _ in range(200)
    ]
    assert 0.3 < np.mean([p < 0.5 for p in seen]) < 0.65
    assert np.mean([p < 0.1 for p in seen]) < 0.18


def test_a_shift_of_a_twentieth_is_caught_about_as_often_as_stated() -> None:
    """The stated power is a least one: the true rate must not be below it by more than the noise of 30 runs."""
    rng = np.random.default_rng(3)
    runs = [run(rng, 3000, lambda law: shifted(law, 0.05)) for _ in range(30)]
    stated = np.mean([r.power(0.05) for r in runs if not r.failed or r.look == 3] or [1.0])
    assert np.mean([r.failed for r in runs]) >= min(0.95, stated) - 0.15
    assert np.mean([r.failed for r in runs]) > 0.8


def test_an_obvious_fault_ends_at_the_first_look() -> None:
    rng = np.random.default_rng(4)
    greedy = run(rng, 800, lambda law: np.eye(VOCAB)[law.argmax(axis=1)])
    assert greedy.failed
    assert greedy.look == 0
    assert greedy.second == 400  # an eighth of 4 * 800


def test_what_scatters_early_is_seen_in_pairs() -> None:
    """The first token is uniform over 200, so no branch has bins; the third then repeats the second, or never does."""
    rng = np.random.default_rng(5)

    def texts(repeats: float) -> Texts:
        seconds = rng.integers(0, 4, 2000)
        thirds = np.where(rng.random(2000) < repeats, seconds, (seconds + 1) % 4)
        return [(int(a), int(b), int(c)) for a, b, c in zip(rng.integers(0, 200, 2000), seconds, thirds, strict=True)]

    result = compare_sampled({"p": texts(0.8)}, {"p": texts(0.6)}, 1.0, 3)
    assert result.tests[0].df == 0
    assert result.p_pairs < 1e-6
    assert result.failed


def test_spending_is_obrien_fleming_in_shape_and_adds_up() -> None:
    parts = levels(LOOKS, 0.05)
    assert sum(parts) == pytest.approx(0.05)
    # Lan and DeMets 1983: 2 - 2 Phi(1.96 / sqrt(t)) at t = 1/2 is 2 - 2 Phi(2.772) = 0.0056.
    assert spent(0.5, 0.05) == pytest.approx(0.00557, abs=2e-5)
    assert parts[0] < 1e-7
    assert parts[-1] > 0.04
    assert spent(0.0) == 0.0
    assert spent(1.0) == pytest.approx(ALPHA)


def test_power_by_hand() -> None:
    """4 * 0.05^2 * 4000 * 4000 / 8000 = 20; chi-square with one degree at 5 %: P(|Z + sqrt(20)| > 1.96) = 0.994."""
    assert noncentrality(0.05, 4000, 4000) == pytest.approx(20)
    assert power(0.05, 4000, 4000, 1, 0.05) == pytest.approx(0.994, abs=1e-3)
    assert power(0.0, 4000, 4000, 5, 0.05) == pytest.approx(0.05, abs=1e-6)
    assert power(0.05, 0, 4000, 5, 0.05) == 0.0


def test_the_smallest_shift_caught_has_the_power_that_is_wanted() -> None:
    shift = caught(4000, 4000, 12, 0.01)
    assert shift is not None
    assert power(shift, 4000, 4000, 12, 0.01) == pytest.approx(0.9, abs=1e-6)
    assert caught(1, 1, 12, 0.01) is None
