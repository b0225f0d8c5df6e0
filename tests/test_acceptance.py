"""a_k, alpha_k, alpha and tau from per-request verify steps, each with the sum that gives the literal."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.measure.acceptance import AcceptanceCounts, cell_counts, pool, request_counts, tau_at
from tuner.measure.records import RequestRecord, SpecSteps


def request(n_out: int, spec: SpecSteps | None, index: int = 0) -> RequestRecord:
    return RequestRecord(
        index=index, prompt=f"p/{index}", task="chat", phase="measured", scheduled_s=0, sent_s=0, ended_s=1,
        chunks=((0.1, 1), (1.0, n_out)), n_in=5, n_out=n_out, finish="length", spec=spec,
    )  # fmt: skip


def test_histogram_gives_marginal_conditional_and_tau() -> None:
    # 10 steps at N = 3: 4 accept 0, 3 accept 1, 1 accepts 2, 2 accept 3. accepted = 3 + 2 + 6 = 11.
    counts = request_counts(request(22, SpecSteps((4, 3, 1, 2), drafted=30)), 3)
    assert counts is not None
    assert counts.a == (0.6, 0.3, 0.2)
    assert counts.alpha_by_position == pytest.approx((0.6, 0.5, 2 / 3))
    assert counts.alpha == pytest.approx(11 / 19)  # 11 accepted, 8 steps ended in a rejection, 2 are censored
    assert counts.draft_acceptance_rate == pytest.approx(11 / 30)
    assert counts.tau == pytest.approx(2.1)  # 1 + 11 / 10; 22 tokens = 1 from the prefill + 21 from ten steps


def test_lookup_steps_that_drafted_nothing_count_in_tau() -> None:
    # 41 tokens: 1 from the prefill; 5 drafting steps emit 5 + 10; the other 25 came one a step.
    spec = SpecSteps((1, 0, 2, 2), drafted=13, accepted_by_step=(0, 2, 2, 3, 3), drafted_by_step=(3, 2, 3, 3, 2))
    counts = request_counts(request(41, spec), 3)
    assert counts is not None
    assert counts.verify_steps == 30
    assert counts.tau == pytest.approx(1 + 10 / 30)
    assert counts.drafting_share == pytest.approx(5 / 30)
    assert counts.full == 3  # the second step accepted both of its 2, the last two all they drafted


def test_chunks_show_the_step_that_a_cut_one_hides() -> None:
    # 24 tokens, seen on a real ngram run: 8 drafting steps emit 8 + 16 and one more step emitted 1; with the prefill's
    # that is 26, of which the limit cut 2. Tokens alone leave nothing over; 10 chunks are the prefill and 9 steps.
    spec = SpecSteps((2, 1, 0, 5), 24, accepted_by_step=(3, 1, 0, 0, 3, 3, 3, 3), drafted_by_step=(3,) * 8)
    chunks = tuple((0.1 * i, total) for i, total in enumerate((1, 5, 7, 8, 9, 10, 14, 18, 22, 24)))
    counts = request_counts(dataclasses.replace(request(24, spec), chunks=chunks), 3)
    assert counts is not None
    assert counts.verify_steps == 9
    assert counts.tau == pytest.approx(1 + 16 / 9)


def test_drafts_of_different_length_are_censored_by_what_each_drafted() -> None:
    # 3 steps: accepted 2 of 2, 1 of 3, 0 of 1: 3 accepted, 2 rejections.
    spec = SpecSteps((1, 1, 1, 0), drafted=6, accepted_by_step=(2, 1, 0), drafted_by_step=(2, 3, 1))
    counts = request_counts(request(7, spec), 3)
    assert counts is not None
    assert counts.alpha == pytest.approx(3 / 5)


def test_pooling_is_by_step_and_not_by_request() -> None:
    short = request(3, SpecSteps((1, 1), drafted=2), 0)  # 2 steps, 1 accepted
    long = request(20, SpecSteps((1, 9), drafted=10), 1)  # 10 steps, 9 accepted
    counts = cell_counts([short, long], 1)
    assert counts is not None
    assert counts.a == (10 / 12,)  # not (0.5 + 0.9) / 2


def test_m06_marginal_and_conditional_are_both_given() -> None:
    # SafeAILab/EAGLE#191: 0.70, 0.37, 0.21, 0.13, 0.08 marginal; published conditional .701/.527/.557/.609/.647 comes
    # from the unrounded counts; from these rounded ones: .37/.70, .21/.37, .13/.21, .08/.13.
    counts = AcceptanceCounts(drafting_steps=100, accepted=149, reached=(70, 37, 21, 13, 8), full=8)
    assert counts.tau == pytest.approx(2.49)
    assert counts.alpha_by_position == pytest.approx((0.70, 0.5286, 0.5676, 0.6190, 0.6154), abs=1e-4)


def test_prefix_sum_gives_every_smaller_n() -> None:
    a = (0.5, 0.3, 0.15, 0.05, 0.0)
    assert [tau_at(a, n) for n in range(6)] == pytest.approx([1, 1.5, 1.8, 1.95, 2.0, 2.0])
    with pytest.raises(ValueError, match="outside"):
        tau_at(a, 6)


def test_nothing_told_is_none_and_not_zero() -> None:
    assert request_counts(request(5, None), 3) is None
    assert pool([]) is None
    never_drafted = request_counts(request(5, SpecSteps((0, 0, 0, 0), drafted=0)), 3)
    assert never_drafted is not None
    assert never_drafted.a is None
    assert never_drafted.alpha is None
    assert never_drafted.tau == 1.0  # four verify steps, each with the target's own token


@given(st.lists(st.integers(0, 4), min_size=1, max_size=200))
def test_tau_is_one_plus_sum_of_a_and_within_its_range(accepted: list[int]) -> None:
    histogram = tuple(accepted.count(j) for j in range(5))
    counts = request_counts(request(1 + len(accepted) + sum(accepted), SpecSteps(histogram, 4 * len(accepted))), 4)
    assert counts is not None
    assert counts.a is not None
    assert counts.tau == pytest.approx(1 + sum(counts.a))
    assert 1 <= counts.tau <= 5
    assert list(counts.a) == sorted(counts.a, reverse=True)
    assert sum(counts.reached) == counts.accepted
