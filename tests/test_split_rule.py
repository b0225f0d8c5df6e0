"""tau of a lookup at a smaller N: copies are cut into more drafting steps. By hand, and on text that is replayed."""

from __future__ import annotations

import itertools

import pytest
from cells import off_trial, spec_trial
from hypothesis import given
from hypothesis import strategies as st

from tuner.decide.predict import predict_chains
from tuner.measure.acceptance import AcceptanceCounts
from tuner.measure.profile import profile_of
from tuner.measure.split_rule import split_taus
from tuner.measure.summary import summarise
from tuner.spec.speculation import SpecConfig


def test_a_step_becomes_as_many_as_its_tokens_fill() -> None:
    # Four verify steps, one of them without a draft; accepted 0, 1 and 3 of 4: 4 + 4 = 8 tokens.
    # N = 3 holds the four tokens of the last one: still 4 steps. N = 2: 3 + 1, so 5 steps. N = 1: 2 + 2, so 5 steps.
    assert split_taus([2, 1, 1, 0], 3, 4) == pytest.approx([8 / 5, 8 / 5, 8 / 4, 8 / 4])


def test_a_full_step_that_goes_on_leaves_no_remainder() -> None:
    # N = 3, all of two steps accepted and nothing ever rejected: 8 tokens in a row. N = 1 takes 4 steps, N = 2 8 / 3.
    assert split_taus([2, 2, 2], 2, 2) == pytest.approx([8 / 4, 8 / (8 / 3), 8 / 2])


def test_nothing_accepted_is_one_token_a_step_at_any_n() -> None:
    assert split_taus([0, 0], 5, 9) == [1.0, 1.0]


def _replayed(copies: list[int], n: int) -> tuple[list[int], int]:
    """Accepted tokens by drafting step, where a lookup meets copies of these lengths, each ended by a token that is
    none of the copy's."""
    accepted = []
    for length in copies:
        left = length + 1
        while left > 0:
            accepted.append(min(n, left - 1))
            left -= n + 1
    return accepted, sum(copies) + len(copies)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=30), st.integers(0, 20))
def test_replayed_text_is_told_exactly_while_no_copy_outlasts_a_step(copies: list[int], plain: int) -> None:
    accepted, tokens = _replayed(copies, 7)
    reached = [sum(a >= k for a in accepted) for k in range(1, 8)]
    told = split_taus(reached, len(accepted), len(accepted) + plain)
    for n in range(1, 8):
        steps = len(_replayed(copies, n)[0]) + plain
        assert told[n - 1] == pytest.approx((tokens + plain) / steps)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30))
def test_long_copies_are_told_within_the_step_that_ends_them(copies: list[int]) -> None:
    accepted, tokens = _replayed(copies, 7)
    reached = [sum(a >= k for a in accepted) for k in range(1, 8)]
    told = split_taus(reached, len(accepted), len(accepted))
    assert told[6] == pytest.approx(tokens / len(accepted))
    for n in range(1, 8):
        # Wherever a full step goes on, less than one step too many or too few is told for it.
        full = sum(a == 7 for a in accepted)
        assert abs(tokens / told[n - 1] - len(_replayed(copies, n)[0])) <= full + 1e-9
    assert all(later >= earlier - 1e-9 for earlier, later in itertools.pairwise(told))


def test_the_profile_of_a_lookup_tells_tau_by_the_rule() -> None:
    # Two requests as above: 8 tokens in 4, 5, 5 steps; a_k stay what they are, shares of drafting steps.
    counts = [AcceptanceCounts(3, 4, (2, 1, 1, 0), 0, 12, 4)] * 2
    told = profile_of(counts, lookup=True)
    assert told is not None
    assert [figure.value for figure in told.tau] == pytest.approx([1.6, 1.6, 2.0, 2.0])
    assert [figure.value for figure in told.a] == pytest.approx([2 / 3, 1 / 3, 1 / 3, 0])
    chain = profile_of(counts)
    assert chain is not None
    assert [figure.value for figure in chain.tau] == pytest.approx([1.5, 1.75, 2.0, 2.0])


def test_a_prediction_for_a_lookup_follows_the_rule_and_not_the_prefix_sum() -> None:
    # Accepted 0 and 3 of 3, 5 tokens in 2 steps of 120 ms: TPOT 48 ms. At N = 1 they take 3 steps: tau 5 / 3.
    # L(1) = 100 + 20 / 3 ms: 64 ms a token. The prefix sum would say tau 1.5 and 71.1 ms.
    lookup = SpecConfig("ngram", n=3)
    off, run = off_trial([0.1] * 8), spec_trial(lookup, 0.12, [[0, 3]] * 8)
    cells = [summarise(trial.cells[0], trial.spec, {}) for trial in (off, run)]
    (found,) = predict_chains(cells[0], cells[1:], [SpecConfig("ngram", n=1)])
    assert found.tau == pytest.approx(5 / 3)
    assert found.tpot_s.value == pytest.approx((0.1 + 0.02 / 3) / (5 / 3))
