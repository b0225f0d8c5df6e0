"""Greedy divergences: first positions, gaps, ties and faults, and Fisher's test on hand-worked tables."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.measure.lossless_greedy import (
    TIE_16_BIT,
    GreedyAnswer,
    compare_greedy,
    first_divergence,
    more_often,
)


def answer(prompt: str, *tokens: int, ended: bool = False, gap: float = 1.0) -> GreedyAnswer:
    """Every position lists its own token at -0.1 and token 99 `gap` below it."""
    return GreedyAnswer(prompt, tokens, ended, tuple({token: -0.1, 99: -0.1 - gap} for token in tokens))


def test_the_first_divergence_alone_counts() -> None:
    found = first_divergence(answer("p", 1, 2, 3, 4), answer("p", 1, 99, 7, 8))
    assert found is not None
    assert (found.position, found.own, found.other, found.at_least) == (1, 2, 99, False)
    assert found.gap == pytest.approx(1.0)


def test_equal_answers_do_not_part_and_a_cap_is_no_end() -> None:
    assert first_divergence(answer("p", 1, 2), answer("p", 1, 2)) is None
    assert first_divergence(answer("p", 1, 2, 3), answer("p", 1, 2)) is None  # the shorter was capped
    found = first_divergence(answer("p", 1, 2, 3), answer("p", 1, 2, ended=True))
    assert found is not None
    assert (found.position, found.own, found.other, found.gap) == (2, 3, None, None)


def test_a_token_that_is_not_listed_is_at_least_as_far_as_the_last_listed() -> None:
    found = first_divergence(answer("p", 1, 2, gap=3.0), answer("p", 1, 5))
    assert found is not None
    assert found.at_least
    assert found.gap == pytest.approx(3.0)


def test_without_log_probabilities_there_is_no_gap() -> None:
    found = first_divergence(GreedyAnswer("p", (1, 2)), GreedyAnswer("p", (1, 3)))
    assert found is not None
    assert found.gap is None


@pytest.mark.parametrize(
    ("table", "p"),
    [
        # 3 of 4 against 0 of 4: all 3 on one side: C(4,3) / C(8,3) = 4/56.
        ((3, 4, 0, 4), 4 / 56),
        # 2 of 2 against 1 of 2: the 3 divergences leave one out of 4, it must be one of the floor's 2.
        ((2, 2, 1, 2), 0.5),
        ((0, 5, 0, 5), 1.0),
        ((1, 5, 5, 5), 1.0),  # rarer than the floor: P(at least 1 of 6 among 5 of 10) = 1 - 0, as 5 floor places hold 5
        ((3, 0, 0, 4), 1.0),
    ],
)
def test_fisher_by_hand(table: tuple[int, int, int, int], p: float) -> None:
    assert more_often(*table) == pytest.approx(p)


@given(st.integers(0, 12), st.integers(0, 12), st.integers(12, 20), st.integers(12, 20))
def test_fisher_is_the_hypergeometric_tail(a: int, c: int, n: int, m: int) -> None:
    total = math.comb(n + m, a + c)
    tail = sum(math.comb(n, x) * math.comb(m, a + c - x) for x in range(a, min(n, a + c) + 1) if a + c - x <= m)
    assert more_often(a, n, c, m) == pytest.approx(tail / total)


def many(count: int, last: int, gap: float = 1.0) -> list[GreedyAnswer]:
    return [answer(f"p{i}", 1, last, gap=gap) for i in range(count)]


def test_ties_are_never_a_fault_however_many() -> None:
    """30 of 30 part, off from itself in none: far beyond Fisher's level, and every gap is a tie."""
    result = compare_greedy(many(30, 2, gap=0.25), many(30, 2), many(30, 99), TIE_16_BIT)
    assert len(result.divergences) == 30
    assert result.p_value < 1e-9
    assert result.faults == ()
    assert not result.failed


def test_ties_more_often_than_off_takes_them_otherwise_are_no_fault_and_a_caution() -> None:
    """32 of 32 against 0 of 32: one table of C(64, 32) = 1.8e18. Off itself at 32 of 32 says nothing."""
    result = compare_greedy(many(32, 2, gap=0.25), many(32, 2), many(32, 99), TIE_16_BIT)
    assert result.p_value == pytest.approx(1 / math.comb(64, 32), rel=1e-6)
    assert (result.failed, result.restless) == (False, True)
    assert not compare_greedy(many(32, 2, gap=0.25), many(32, 99), many(32, 99), TIE_16_BIT).restless
    # 6 of 20 against none is p = 0.0101 (see below): above the level of one comparison, and 7 are not.
    few = [*many(20, 2, gap=0.25)]
    for count, told in ((6, False), (7, True)):
        assert compare_greedy(few, few, [*many(count, 99), *few[count:]], TIE_16_BIT).restless is told
    # A fault is a fault, and where a gap is not told the rates decide.
    assert not compare_greedy(many(32, 2, gap=4.0), many(32, 2), many(32, 99), TIE_16_BIT).restless
    assert not compare_greedy(many(32, 2, gap=0.25), many(32, 2), many(32, 7), TIE_16_BIT).restless


def test_one_gap_above_the_tolerance_is_a_fault_however_few() -> None:
    off = [*many(29, 2, gap=0.25), answer("bad", 1, 2, gap=4.0)]
    result = compare_greedy(off, off, [*many(29, 2), answer("bad", 1, 99)], TIE_16_BIT)
    assert result.p_value > 0.3
    assert [d.prompt for d in result.faults] == ["bad"]
    assert result.failed


def test_off_that_parts_from_itself_by_more_raises_the_tolerance() -> None:
    off = many(10, 2, gap=0.8)
    unsteady = compare_greedy(off, many(10, 99), many(10, 99), TIE_16_BIT)
    assert unsteady.tolerance == pytest.approx(0.8)
    assert not unsteady.failed
    steady = compare_greedy(off, off, many(10, 99), TIE_16_BIT)
    assert steady.tolerance == TIE_16_BIT
    assert steady.failed


@pytest.mark.parametrize(("own", "void"), [(0.5, False), (1.0, False), (1.01, True), (3.0, True)])
def test_one_wild_gap_of_offs_own_makes_the_test_void_and_hides_no_fault_below_it(own: float, void: bool) -> None:
    """Off parts from itself once; speculation once elsewhere, by 2.5 nats. A tie of 0.5 is raised to 1 at most."""
    off = [answer("wild", 1, 2, gap=own), answer("bad", 1, 2, gap=2.5), *many(8, 2)]
    again = [answer("wild", 1, 99), *off[1:]]
    result = compare_greedy(off, again, [off[0], answer("bad", 1, 99), *off[2:]], TIE_16_BIT)
    assert result.tolerance == (TIE_16_BIT if void else own)
    assert result.void is void
    assert [d.prompt for d in result.faults] == ["bad"]
    assert result.failed is not void
    assert not result.restless


def test_where_gaps_are_not_told_the_rates_decide() -> None:
    def bare(last: int, count: int) -> list[GreedyAnswer]:
        return [GreedyAnswer(f"p{i}", (1, last if i < count else 2)) for i in range(20)]

    assert compare_greedy(bare(2, 0), bare(2, 0), bare(9, 12)).failed  # 12 of 20 against 0 of 20: p = 2e-5
    assert not compare_greedy(bare(2, 0), bare(9, 10), bare(9, 12)).failed  # off parts from itself as often


def test_a_gap_that_may_be_more_than_a_tie_is_not_told() -> None:
    """The other's token is not listed, and the last listed is 0.25 nats away: under the tolerance, or far above."""
    assert compare_greedy(many(30, 2, gap=0.25), many(30, 2), many(30, 7)).unexplained == 30
    assert compare_greedy(many(30, 2, gap=0.25), many(30, 2), many(30, 7)).failed  # 30 of 30 against none of off's own
    few = compare_greedy(many(30, 2, gap=0.25), many(30, 2), [*many(29, 2), answer("p29", 1, 7)])
    assert (few.unexplained, few.failed) == (1, False)
    # Where off strays from itself just as far, and no further than twice a tie, that is no fault of speculation.
    own = compare_greedy(many(30, 2, gap=0.9), many(30, 7), many(30, 7))
    assert own.tolerance == pytest.approx(0.9)
    assert not own.failed


def test_rates_are_held_against_the_settings_share_of_the_error() -> None:
    def bare(last: int, count: int) -> list[GreedyAnswer]:
        return [GreedyAnswer(f"p{i}", (1, last if i < count else 2)) for i in range(20)]

    # 6 of 20 against none: C(20,6) / C(40,6) = 38760 / 3838380 = 0.0101, and 7 give 77520 / 18643560 = 0.0042.
    alone = compare_greedy(bare(2, 0), bare(2, 0), bare(9, 7))
    assert alone.p_value == pytest.approx(0.0042, rel=0.01)
    assert alone.failed
    assert not compare_greedy(bare(2, 0), bare(2, 0), bare(9, 7), alpha=0.01 / 6).failed


def test_prompts_that_one_side_lacks_are_left_out() -> None:
    result = compare_greedy(many(4, 2), many(2, 2), many(3, 2))
    assert (result.prompts, result.floor_prompts, result.tokens) == (3, 2, 6)
