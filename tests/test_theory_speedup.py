"""Speed-up algebra: published and hand-worked values, the optimum against brute force, load, alpha from quality."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tuner.errors import UserError
from tuner.theory.load import (
    StepTime,
    acceptance_length,
    best_by_batch,
    held_on,
    speedup_at,
)
from tuner.theory.quality import alpha_by_quality
from tuner.theory.search import first_false
from tuner.theory.speedup import (
    best_n,
    break_even_alpha,
    break_even_alphas,
    curve,
    grid,
    relative_time,
    speedup,
    still_pays,
    tokens_per_call,
)

alphas = st.floats(0.0, 1.0)


@pytest.mark.parametrize(
    ("alpha", "gamma", "printed"),
    [(0.6, 2, 1.96), (0.7, 3, 2.53), (0.8, 2, 2.44), (0.8, 5, 3.69), (0.9, 2, 2.71), (0.9, 10, 6.86)],
)
def test_tokens_per_call_as_published(alpha: float, gamma: int, printed: float) -> None:
    """Leviathan et al., arXiv 2211.17192, table 1, column SPEED, where c = 0."""
    assert round(float(tokens_per_call(alpha, gamma)), 2) == printed
    assert round(float(speedup(alpha, 0.0, gamma)), 2) == printed


def test_tokens_per_call_by_hand() -> None:
    # 1 + .5 + .25 = 1.75; nothing kept: 1; everything: N + 1; nothing drafted: 1
    assert tokens_per_call([0.5, 0.0, 1.0, 0.7], [2, 9, 9, 0]).tolist() == pytest.approx([1.75, 1.0, 10.0, 1.0])


def test_tokens_per_call_keeps_its_digits_near_one() -> None:
    # sum of (1 - e)^k for k = 0..9 is 10 - 45 e to first order; 1 - alpha^10 alone would lose six digits here.
    assert float(tokens_per_call(1.0 - 1e-10, 9)) == pytest.approx(10.0 - 45e-10, rel=1e-13)


@settings(deadline=None)
@given(alphas, st.integers(0, 60))
def test_tokens_per_call_is_the_geometric_sum(alpha: float, n: int) -> None:
    assert float(tokens_per_call(alpha, n)) == pytest.approx(sum(alpha**k for k in range(n + 1)), rel=1e-9)


@settings(deadline=None)
@given(alphas, alphas, st.integers(0, 200))
def test_tokens_per_call_grows_with_alpha_and_n(first: float, second: float, n: int) -> None:
    low, high = sorted((first, second))
    assert float(tokens_per_call(low, n)) <= float(tokens_per_call(high, n)) + 1e-9
    assert float(tokens_per_call(low, n)) <= float(tokens_per_call(low, n + 1)) + 1e-9
    assert 1.0 - 1e-12 <= float(tokens_per_call(high, n)) <= n + 1 + 1e-9


@pytest.mark.parametrize(
    ("alpha", "cost", "n", "value"),
    [(0.8, 0.05, 8, 3.0921), (0.95, 0.02, 31, 9.9542), (0.9, 0.04, 15, 5.0919), (0.6, 0.3, 1, 1.2308)],
)
def test_the_best_n(alpha: float, cost: float, n: int, value: float) -> None:
    best = best_n(alpha, cost)
    assert best.n == n
    assert best.speedup is not None
    assert round(best.speedup, 4) == value


def test_the_best_n_by_hand() -> None:
    # alpha .6, c .3: N = 1: 1.6 / 1.3 = 1.2308; N = 2: 1.96 / 1.6 = 1.225
    assert speedup(0.6, 0.3, [1, 2]).tolist() == pytest.approx([1.6 / 1.3, 1.225])


@settings(deadline=None)
@given(st.floats(0.0, 0.97), st.floats(0.005, 1.5))
def test_the_best_n_is_the_best_of_a_long_list(alpha: float, cost: float) -> None:
    found = best_n(alpha, cost)
    listed = speedup(alpha, cost, np.arange(2001))
    assert found.n is not None
    assert found.n < 2000
    assert found.speedup == pytest.approx(float(listed.max()), rel=1e-12)


def test_the_search_has_no_cap() -> None:
    # alpha = 1 - 1e-6, c = 1e-9: far beyond any list; its neighbours are no better, and half or twice it is worse.
    best = best_n(1 - 1e-6, 1e-9)
    assert best.n is not None
    assert best.n > 1_000_000
    around = speedup(1 - 1e-6, 1e-9, [best.n // 2, best.n, best.n * 2])
    assert around.argmax() == 1


def test_where_no_best_n_exists() -> None:
    # alpha = 1: (N + 1) / (1 + N c) climbs to 1 / c; c = 0: E climbs to 1 / (1 - alpha); both: without bound.
    assert (best_n(1.0, 0.05).n, best_n(1.0, 0.05).speedup) == (None, pytest.approx(20.0))
    assert (best_n(0.75, 0.0).n, best_n(0.75, 0.0).speedup) == (None, pytest.approx(4.0))
    assert (best_n(1.0, 0.0).n, best_n(1.0, 0.0).speedup) == (None, None)


@pytest.mark.parametrize(("alpha", "cost"), [(0.0, 0.0), (0.0, 0.1), (0.1, 0.1), (0.3, 0.5), (1.0, 1.0), (1.0, 2.0)])
def test_speculation_is_left_off_where_it_cannot_pay(alpha: float, cost: float) -> None:
    assert best_n(alpha, cost).n == 0
    assert best_n(alpha, cost).speedup == pytest.approx(1.0)


@settings(deadline=None)
@given(alphas, st.floats(0.0, 1.0), st.integers(0, 40))
def test_the_marginal_rule_is_the_curve(alpha: float, cost: float, n: int) -> None:
    here, next_one = (float(value) for value in speedup(alpha, cost, [n, n + 1]))
    assume(abs(here - next_one) > 1e-9)
    assert still_pays(alpha, cost, n) == (next_one > here)


def test_first_false() -> None:
    for limit in (0, 1, 2, 3, 63, 64, 65, 1000):
        assert first_false(lambda n, limit=limit: n < limit) == limit


@settings(deadline=None)
@given(st.integers(1, 40), st.floats(0.001, 1.0))
def test_break_even_alpha_breaks_even(n: int, cost: float) -> None:
    alpha = break_even_alpha(n, cost)
    assert alpha is not None
    assert float(speedup(alpha, cost, n)) == pytest.approx(1.0, abs=1e-6)


def test_break_even_alpha_by_hand() -> None:
    # N = 1: 1 + alpha = 1 + c. N = 2, c = .375: alpha + alpha^2 = .75, alpha = .5. c > 1: N + 1 tokens cannot pay.
    assert break_even_alpha(1, 0.3) == pytest.approx(0.3)
    assert break_even_alpha(2, 0.375) == pytest.approx(0.5)
    assert break_even_alpha(5, 1.0) == pytest.approx(1.0)
    assert break_even_alpha(3, 0.0) == 0.0
    assert break_even_alpha(3, 1.01) is None
    assert break_even_alphas([1, 2], 0.375) == pytest.approx([0.375, 0.5])


def test_the_curve_from_1_to_10_is_still_falling_at_10() -> None:
    points = curve(0.9, 0.04, 10)
    times = [point.relative_time for point in points]
    assert [point.n for point in points] == list(range(1, 11))
    assert times == sorted(times, reverse=True)
    # N = 1: 1.04 / 1.9; N = 10: 1.4 / 6.8618940391
    assert times[0] == pytest.approx(1.04 / 1.9)
    assert times[-1] == pytest.approx(1.4 / 6.8618940391)
    assert points[-1].speedup == pytest.approx(4.9014, abs=5e-5)
    assert still_pays(0.9, 0.04, 10)
    assert not still_pays(0.9, 0.04, 15)


def test_the_grid() -> None:
    numbers, tokens = grid([0.5, 0.8], 3)
    assert numbers == [1, 2, 3]
    assert tokens[0] == pytest.approx([1.5, 1.75, 1.875])
    assert tokens[1] == pytest.approx([1.8, 2.44, 2.952])


# Under load


@settings(deadline=None)
@given(st.floats(0.0, 0.99), st.floats(0.0, 0.9), st.integers(1, 64))
def test_without_a_ridge_and_with_one_alpha_the_model_is_the_iid_formula(alpha: float, cost: float, n: int) -> None:
    ratio = speedup_at(7, [alpha] * n, StepTime(cost))
    assert ratio == pytest.approx(speedup(alpha, cost, np.arange(n + 1)), rel=1e-9)


def test_acceptance_length_by_position_by_hand() -> None:
    # 1; 1 + .8; + .8 * .5 = .4; + .4 * .25 = .1
    assert acceptance_length([0.8, 0.5, 0.25]).tolist() == pytest.approx([1.0, 1.8, 2.2, 2.3])


def test_step_time_by_hand() -> None:
    time = StepTime(draft_cost=0.1, ridge=100.0, kv_per_sequence=0.01)
    # Reading 1 + 20 * .01 = 1.2 outlasts computing 20 * 5 / 100 = 1.0; each of 4 drafts: .1 * 1.2
    assert time.step(20, 4) == pytest.approx(1.2 + 4 * 0.12)
    # Computing 80 * 5 / 100 = 4.0 outlasts reading 1.8; the drafts read: .1 * 1.8
    assert time.step(80, 4) == pytest.approx(4.0 + 4 * 0.18)
    # A tree of 14 nodes beside the root in 3 draft calls of width 4: 15 * 20 / 100 = 3.0; .1 * max(1.2, .8)
    assert time.step(20, 14, calls=3, draft_width=4) == pytest.approx(3.0 + 3 * 0.12)
    assert time.step(20, 0) == pytest.approx(1.2)


def test_the_optimum_moves_with_load() -> None:
    points = best_by_batch([1, 8, 32, 64, 128, 256, 512], [0.8] * 32, StepTime(0.05, ridge=295.0))
    assert [point.best_n for point in points] == [8, 8, 8, 4, 2, 1, 0]
    assert [round(point.speedup, 4) for point in points] == [3.0921, 3.0921, 3.0921, 2.6165, 1.7407, 1.0081, 1.0]
    # b = 128, N = 2: 128 * 3 / 295 + 2 * .05 = 1.40169; 2.44 / 1.40169 = 1.74075
    assert points[4].step_time == pytest.approx(384 / 295 + 0.1)
    assert not any(point.at_n_max for point in points)
    assert points[6].plain_time == pytest.approx(512 / 295)


def test_beyond_the_ridge_no_draft_pays() -> None:
    """There a verify pass of N + 1 tokens lasts N + 1 plain steps, and tau is at most N + 1."""
    points = best_by_batch([300, 1000], [0.99] * 20, StepTime(0.001, ridge=295.0))
    assert [(point.best_n, point.speedup) for point in points] == [(0, 1.0), (0, 1.0)]


@settings(deadline=None)
@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12),
    st.floats(0.0, 0.5),
    st.floats(1.0, 1000.0),
    st.floats(0.0, 0.1),
)
def test_more_load_never_asks_for_more_tokens(rates: list[float], cost: float, ridge: float, kv: float) -> None:
    """In the compute-bound range; reading caches can raise the optimum again, so they are left out."""
    points = best_by_batch([1, 4, 16, 64, 256, 1024], rates, StepTime(cost, ridge))
    numbers = [point.best_n for point in points]
    assert numbers == sorted(numbers, reverse=True)
    assert all(point.speedup >= 1.0 for point in best_by_batch([1, 64], rates, StepTime(cost, ridge, kv)))


def test_alpha_falling_with_position_shortens_the_best_chain() -> None:
    level = best_by_batch([1], [0.8] * 16, StepTime(0.05))[0]
    falling = best_by_batch([1], held_on([0.8, 0.7, 0.6, 0.5], 16), StepTime(0.05))[0]
    # 1 + .8 + .56 + .336 + .168 = 2.864 at N = 4: / 1.2 = 2.3867; N = 5: (2.864 + .084) / 1.25 = 2.3584
    assert (falling.best_n, round(falling.speedup, 4)) == (4, 2.3867)
    assert level.best_n == 8


def test_the_end_of_the_list_is_said() -> None:
    point = best_by_batch([1], [0.9] * 10, StepTime(0.04))[0]
    assert (point.best_n, point.at_n_max) == (10, True)
    assert held_on([0.8, 0.7], 4) == [0.8, 0.7, 0.7, 0.7]


# alpha from the quality of a draft


def test_measured_alpha_is_one_minus_total_variation() -> None:
    points = alpha_by_quality(levels=[0.0, 0.5, 1.0, 2.0, 4.0, 8.0], steps=20_000, n=4, seed=2)
    exact = [point.exact for point in points]
    assert exact[0] == pytest.approx(1.0)
    assert exact == sorted(exact, reverse=True)
    assert exact[-1] < 0.5
    assert (points[0].measured.alpha, points[0].measured.standard_error) == (1.0, None)
    for point in points[1:]:
        assert point.measured.standard_error is not None
        # 4 standard errors: one point in 16,000 lies outside by chance.
        assert abs(point.measured.alpha - point.exact) < 4 * point.measured.standard_error
        # a_k = alpha^k under one context; the naive ratio is their mean and lies well below alpha.
        expected = [point.exact**k for k in range(1, 5)]
        assert point.measured.by_position == pytest.approx(expected, abs=0.02)
        assert point.measured.acceptance_rate == pytest.approx(sum(expected) / 4, abs=0.02)
        assert point.measured.acceptance_rate < point.measured.alpha - 0.05


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: tokens_per_call(1.1, 3), r"alpha lies outside \[0, 1\]"),
        (lambda: tokens_per_call(float("nan"), 3), r"alpha lies outside \[0, 1\]"),
        (lambda: tokens_per_call(0.5, -1), "n is below 0"),
        (lambda: relative_time(0.5, -0.1, 3), "cost is below 0"),
        (lambda: best_n(0.5, float("inf")), "not finite"),
        (lambda: best_n(-0.1, 0.1), r"alpha lies outside \[0, 1\]"),
        (lambda: break_even_alpha(0, 0.1), "n is 0"),
        (lambda: curve(0.5, 0.1, 0), "n-max is 0"),
        (lambda: grid([0.5], 0), "n-max is 0"),
        (lambda: acceptance_length([0.5, 1.5]), r"alpha lies outside \[0, 1\]"),
        (lambda: speedup_at(0, [0.5], StepTime(0.1)), "batch is 0"),
        (lambda: best_by_batch([1], [], StepTime(0.1)), "no alpha"),
        (lambda: StepTime(-0.1), "cost and kv share"),
        (lambda: StepTime(0.1, ridge=0.0), "ridge is 0"),
        (lambda: held_on([0.5], 0), "n-max is 0"),
        (lambda: alpha_by_quality([-1.0]), "levels"),
        (lambda: alpha_by_quality(steps=0), "steps is 0"),
    ],
)
def test_bad_input_is_refused(call: object, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        call()  # type: ignore[operator]
