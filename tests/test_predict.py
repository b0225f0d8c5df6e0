"""Predictions by hand: request by request, TPOT, throughput, goodput and gain, with both sources of uncertainty."""

from __future__ import annotations

import dataclasses

import pytest
from cells import C1T0, cell, off_trial, request, spec_trial
from hypothesis import given
from hypothesis import strategies as st

from tuner.decide.predict import Prediction, Terms, predict, predict_chains
from tuner.measure.records import Trial
from tuner.measure.summary import CellSummary, summarise
from tuner.spec.speculation import OFF, SpecConfig

#: Two kinds of requests: A accepts 0, 1, 3 of three steps (tau(1..3) = 5/3, 2, 7/3), B accepts nothing (tau 1).
A, B = [0, 1, 3], [0, 0, 0]


def eagle(n: int) -> SpecConfig:
    return SpecConfig("eagle3", n=n, draft="head")


def summary(trial: Trial) -> CellSummary:
    return summarise(trial.cells[0], trial.spec, {})


def off(tpot_s: float = 0.1, requests: int = 8) -> CellSummary:
    return summary(off_trial([tpot_s] * requests))


def one(found: tuple[Prediction, ...]) -> Prediction:
    assert len(found) == 1
    return found[0]


def test_every_request_is_carried_over_with_its_own_tau() -> None:
    # L(3) = 130 ms, off 100 ms: L(1) = 110 ms. A: 110 / (5/3) = 66 ms, B: 110 ms; mean 88 ms. The pooled tau(1) of
    # 1 + 2/6 would give 82.5 ms: the mean over requests is not the ratio of means.
    longest = summary(spec_trial(eagle(3), 0.13, [A, B] * 4))
    found = one(predict_chains(off(), [longest], [eagle(1)]))
    assert found.tpot_s.value == pytest.approx(0.088)
    assert found.step_s == pytest.approx(0.11)
    assert found.tau == pytest.approx(4 / 3)
    assert found.gain is not None
    assert found.gain.value == pytest.approx(100 / 88)
    assert found.source == eagle(3)


def test_the_measured_n_is_given_back_as_measured() -> None:
    longest = summary(spec_trial(eagle(3), 0.13, [A, B] * 4))
    found = one(predict_chains(off(), [longest], [eagle(3)]))
    assert longest.tpot_mean_s is not None
    assert found.tpot_s.value == pytest.approx(longest.tpot_mean_s.value)
    assert found.tpot_s.low == pytest.approx(longest.tpot_mean_s.low, rel=0.02)
    assert found.tpot_s.high == pytest.approx(longest.tpot_mean_s.high, rel=0.02)


def test_the_nearest_longer_launch_is_the_source_and_a_longer_n_is_refused() -> None:
    measured = [summary(spec_trial(eagle(n), 0.1 + 0.01 * n, [A, B] * 4)) for n in (5, 3)]
    found = predict_chains(off(), measured, [eagle(n) for n in (2, 4, 6)])
    assert [(p.spec.n, p.source) for p in found] == [(2, eagle(3)), (4, eagle(5))]


def test_intervals_hold_what_the_line_leaves_open() -> None:
    """Identical requests have no spread of their own: what is left is the step time between two measured N."""
    longest = summary(spec_trial(eagle(5), 0.15, [A] * 8))
    found = predict_chains(off(), [longest], [eagle(n) for n in (1, 3, 5)])
    widths = [(p.tpot_s.high - p.tpot_s.low) / p.tpot_s.value for p in found]
    assert widths[2] == pytest.approx(0, abs=1e-9)
    # At N = 3: stray 0.05 L(0) sqrt(3 * 2 / 5) = 5.48 ms, bend 0.07 x 4 x 0.6 x 0.4 of the rise of 50 ms = 3.36 ms:
    # together 6.43 ms of 130 ms, 4.9 %; 8 requests widen 1.96 to 2.53: 25 %.
    assert widths[1] == pytest.approx(0.25, rel=0.1)
    assert widths[0] < widths[1]


def test_throughput_counts_the_time_to_the_first_token() -> None:
    # 7 tokens after the first at N = 3 (3 steps, 4 accepted). TTFT 0.1 s; decoding 3 x 0.13 = 0.39 s: 8 tokens in 0.49.
    longest = summary(spec_trial(eagle(3), 0.13, [A] * 8))
    found = one(predict_chains(off(), [longest], [eagle(1)], Terms("throughput")))
    # N = 1: 66 ms a token: 0.1 + 7 x 0.066 = 0.562 s. off: 11 tokens in 0.1 + 10 x 0.1 = 1.1 s.
    assert found.gain is not None
    assert found.gain.value == pytest.approx((8 / 0.562) / (11 / 1.1))
    assert found.throughput_tok_s is not None
    assert longest.throughput_tok_s is not None
    assert found.throughput_tok_s.value == pytest.approx(longest.throughput_tok_s.value * 0.49 / 0.562)


def test_goodput_counts_requests_that_keep_every_limit() -> None:
    # N = 1: A at 66 ms keeps 80 ms, B at 110 ms does not; off at 100 ms keeps it never, at 105 ms always.
    longest = summary(spec_trial(eagle(3), 0.13, [A, A, A, B] * 4))
    plain = off(requests=16)
    strict = one(predict_chains(plain, [longest], [eagle(1)], Terms("goodput", {"tpot_p95_ms": 80})))
    assert strict.goodput is not None
    assert strict.goodput.value == 0.75
    assert strict.gain is not None
    assert strict.gain.value == 24  # off meets it never: 0.75 over half a one of 16
    assert strict.missed_slos == ("tpot_p95_ms: 110.0 over 80 (predicted)",)
    loose = one(predict_chains(plain, [longest], [eagle(1)], Terms("goodput", {"tpot_p95_ms": 105})))
    assert loose.gain is not None
    assert loose.gain.value == 0.75
    gaps = one(predict_chains(plain, [longest], [eagle(1)], Terms("tpot_p50", {"chunk_gap_p95_ms": 1})))
    assert gaps.goodput is None  # the gaps of a launch that was not made are not known
    assert gaps.missed_slos == ()


def test_a_limit_on_chunk_gaps_leaves_goodput_unpredicted() -> None:
    longest = summary(spec_trial(eagle(3), 0.13, [A, A, A, B] * 4))
    found = one(predict_chains(off(requests=16), [longest], [eagle(1)], Terms("goodput", {"chunk_gap_p95_ms": 100})))
    assert (found.goodput, found.gain) == (None, None)


def test_a_gain_can_be_set_against_another_launch() -> None:
    longest = summary(spec_trial(eagle(3), 0.13, [A] * 8))
    rival = summary(spec_trial(SpecConfig("ngram", n=2), 0.05, [[0, 0]] * 8))
    found = one(predict_chains(off(), [longest], [eagle(1)], against=rival))
    assert found.gain is not None
    assert found.gain.value == pytest.approx(50 / 66)


def test_failed_requests_leave_their_pairs() -> None:
    longest = spec_trial(eagle(3), 0.13, [A, B] * 4)
    requests = [dataclasses.replace(r, error="reset") if r.index == 0 else r for r in longest.cells[0].requests]
    cut = summarise(cell(requests), eagle(3), {})
    found = one(predict_chains(off(), [cut], [eagle(1)]))
    assert found.tpot_s.n == 7
    assert found.tpot_s.value == pytest.approx((3 * 0.066 + 4 * 0.110) / 7)


def test_without_acceptance_or_pairs_there_is_no_prediction() -> None:
    silent = summarise(cell([request(i, 0.05) for i in range(4)]), eagle(3), {})
    assert predict(off(), [silent], eagle(1)) is None
    others = cell([dataclasses.replace(request(i, 0.05, accepted=A, n=3), prompt=f"code/{i}") for i in range(4)])
    assert predict(off(), [summarise(others, eagle(3), {})], eagle(1)) is None


@given(st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=9), min_size=2, max_size=6), st.floats(0.05, 0.5))
def test_time_per_token_lies_between_the_step_and_its_share(accepted: list[list[int]], step_s: float) -> None:
    longest = summary(spec_trial(eagle(4), step_s, accepted))
    found = predict_chains(off(requests=len(accepted)), [longest], [eagle(n) for n in range(1, 5)])
    for p in found:
        assert p.step_s / (p.spec.n + 1) - 1e-9 <= p.tpot_s.value <= p.step_s + 1e-9
        assert p.tpot_s.low <= p.tpot_s.value <= p.tpot_s.high
        assert p.key == C1T0
    assert summary(off_trial([0.1] * 2)).spec == OFF
