"""The rule and the residual: hand-worked values, the edges, and the theorem in exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.errors import UserError
from tuner.theory.rule import accept, acceptance, alpha_of, residual, total_variation


@st.composite
def weight_pairs(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Two rows of whole weights over one vocabulary of 1 to 6 tokens, zeros included."""
    size = draw(st.integers(1, 6))
    row = st.lists(st.integers(0, 9), min_size=size, max_size=size).filter(any)
    return draw(row), draw(row)


def shares(weights: list[int]) -> list[Fraction]:
    return [Fraction(weight, sum(weights)) for weight in weights]


def floats(row: list[Fraction]) -> np.ndarray:
    return np.array([float(share) for share in row])


def test_acceptance_by_hand() -> None:
    # q/p: .3/.6 = .5; .5/.3 > 1; .2/.1 > 1
    assert acceptance([0.3, 0.5, 0.2], [0.6, 0.3, 0.1]).tolist() == [0.5, 1.0, 1.0]


def test_accept_is_strictly_below_the_ratio() -> None:
    assert accept(0.25, 0.5, [0.0, 0.4999, 0.5, 0.9]).tolist() == [True, True, False, False]


def test_accept_at_zero_probabilities() -> None:
    # q = 0: never, whatever p; p = 0 with q > 0: the ratio is infinite, always.
    assert accept([0.0, 0.0, 0.2], [0.3, 0.0, 0.0], [0.0, 0.0, 0.999]).tolist() == [False, False, True]


def test_accept_takes_any_batch_shape() -> None:
    u = np.linspace(0.0, 0.99, 24).reshape(2, 3, 4)
    kept = accept(np.full((2, 3, 4), 0.2), 0.4, u)
    assert kept.shape == (2, 3, 4)
    assert (kept == (u < 0.5)).all()


def test_equal_rows_are_always_kept() -> None:
    row = np.array([0.1, 0.2, 0.7])
    assert accept(row, row, np.nextafter(1.0, 0.0)).all()


def test_residual_by_hand() -> None:
    # q - p = (-.3, .2, .1); positive part sums to .3: (0, 2/3, 1/3)
    assert residual([0.3, 0.5, 0.2], [0.6, 0.3, 0.1]) == pytest.approx([0.0, 2 / 3, 1 / 3])


def test_residual_of_equal_rows_is_q() -> None:
    row = [0.1, 0.2, 0.7]
    assert residual(row, row).tolist() == row


def test_residual_of_rows_equal_up_to_rounding_is_q() -> None:
    q = np.array([0.1 + 0.2, 0.7])  # 0.30000000000000004
    assert residual(q, [0.3, 0.7]).tolist() == q.tolist()


def test_residual_of_disjoint_supports_is_q() -> None:
    assert residual([0.0, 0.4, 0.6], [1.0, 0.0, 0.0]).tolist() == [0.0, 0.4, 0.6]


def test_residual_is_taken_row_by_row() -> None:
    q = np.array([[[0.3, 0.7]], [[0.5, 0.5]]])
    p = np.array([[[0.6, 0.4]], [[0.5, 0.5]]])
    assert residual(q, p).tolist() == [[[0.0, 1.0]], [[0.5, 0.5]]]


@pytest.mark.parametrize(
    ("q", "p", "sentence"),
    [
        ([0.5, 0.6], [0.5, 0.5], "q is not normalised: a row sums to 1.1"),
        ([0.5, 0.5], [0.2, 0.2], "p is not normalised: a row sums to 0.4"),
        ([1.5, -0.5], [0.5, 0.5], "q holds a value that is no probability"),
        ([0.5, float("nan")], [0.5, 0.5], "q holds a value that is no probability"),
        ([0.5, 0.5], [0.2, 0.3, 0.5], "one shared vocabulary"),
        (1.0, [1.0], "no vocabulary axis"),
    ],
)
def test_what_is_no_distribution_is_refused(q: object, p: object, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        residual(q, p)  # type: ignore[arg-type]


def test_u_outside_the_unit_interval_is_refused() -> None:
    with pytest.raises(UserError, match=r"u holds a value outside \[0, 1\)"):
        accept(0.5, 0.5, 1.0)


@settings(deadline=None)
@given(weight_pairs())
def test_alpha_is_one_minus_total_variation(pair: tuple[list[int], list[int]]) -> None:
    q, p = (shares(weights) for weights in pair)
    # The same in exact fractions: sum min(q, p) against 1 - sum |q - p| / 2.
    exact = sum(map(min, q, p))
    assert exact == 1 - sum(abs(a - b) for a, b in zip(q, p, strict=True)) / 2
    assert float(alpha_of(floats(q), floats(p))) == pytest.approx(float(exact), abs=1e-14)
    assert float(1.0 - total_variation(floats(q), floats(p))) == pytest.approx(float(exact), abs=1e-14)


@settings(deadline=None)
@given(weight_pairs())
def test_one_step_emits_q(pair: tuple[list[int], list[int]]) -> None:
    """P(x) = p(x) acceptance(x) + P(rejection) residual(x), with the shipped functions, against exact fractions."""
    q, p = (shares(weights) for weights in pair)
    kept = floats(p) * acceptance(floats(q), floats(p))
    emitted = kept + (1.0 - kept.sum()) * residual(floats(q), floats(p))
    assert emitted == pytest.approx(floats(q), abs=1e-14)


@settings(deadline=None)
@given(weight_pairs())
def test_accept_keeps_a_share_of_u_equal_to_the_ratio(pair: tuple[list[int], list[int]]) -> None:
    """Midpoints of 2520 cells measure min(1, q/p) to within one cell, so `accept` and `acceptance` agree."""
    q, p = (floats(shares(weights)) for weights in pair)
    u = (np.arange(2520) + 0.5) / 2520
    share = accept(q[:, None], p[:, None], u).mean(axis=1)
    assert np.abs(share - acceptance(q, p)).max() <= 0.5 / 2520 + 1e-12
