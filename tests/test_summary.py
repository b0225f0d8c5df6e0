"""A cell's figures from hand-made requests, each with the sum that gives the literal."""

from __future__ import annotations

import dataclasses

import pytest
from cells import C1T0, cell, request

from tuner.measure.records import Cell, RequestRecord
from tuner.measure.summary import meets_slo, summarise, window_tokens
from tuner.spec.speculation import OFF, SpecConfig

EAGLE = SpecConfig("eagle3", n=3, draft="head")


def stream(chunks: list[tuple[float, int]], scheduled_s: float = 0.0, sent_s: float = 0.0) -> RequestRecord:
    return dataclasses.replace(
        request(0, 0.01), chunks=tuple(chunks), n_out=chunks[-1][1], ended_s=chunks[-1][0], scheduled_s=scheduled_s,
        sent_s=sent_s,
    )  # fmt: skip


def test_m01_time_per_token_is_not_the_time_between_chunks() -> None:
    # First token at 40 ms, then 100 chunks of 3 tokens, 9 ms apart: 301 tokens, 900 ms / 300 = 3 ms, gaps of 9 ms.
    record = stream([(0.040 + 0.009 * i, 1 + 3 * i) for i in range(101)])
    assert record.n_out == 301
    assert record.tpot_s == pytest.approx(0.003)
    assert record.chunk_gaps_s == pytest.approx([0.009] * 100)


def test_m20_tokens_without_text_are_placed_in_the_gap() -> None:
    record = stream([(0.436, 1), (0.619, 17), (0.802, 31)])
    assert record.tpot_s == pytest.approx(0.0122)  # (802 - 436) / 30


def test_m14_latency_counts_from_the_scheduled_time() -> None:
    # 8 requests at 10/s, 500 ms each, one at a time: request i is served from 0.5 i and was due at 0.1 i.
    records = [stream([(0.5, 1)], scheduled_s=0.1 * i, sent_s=0.5 * i) for i in range(8)]
    e2e = [r.e2e_s for r in records if r.e2e_s is not None]
    assert sum(e2e) / 8 == pytest.approx(1.9)
    assert max(e2e) == pytest.approx(3.3)


def test_throughput_counts_tokens_inside_the_window_of_every_phase() -> None:
    # One request of 11 tokens, 0.1 s apart from 0.1 s on, in the window 0.35..0.85: 5 of them arrive there.
    record = request(0, 0.1, tokens=11, phase="filler")
    assert window_tokens([record], 0.35, 0.85) == pytest.approx(5.0)
    assert window_tokens([record], 0.0, 9.0) == pytest.approx(11.0)
    assert window_tokens([record], 2.0, 9.0) == pytest.approx(0.0)


def test_warm_up_fillers_and_failures_enter_no_latency() -> None:
    requests = [
        request(0, 9.0, phase="warmup"), request(1, 0.02), request(2, 0.04), request(3, 9.0, error="HTTP 500"),
        request(4, 9.0, phase="filler"),
    ]  # fmt: skip
    summary = summarise(cell(requests), OFF, {})
    assert (summary.requests, summary.failed) == (2, 1)
    assert summary.tpot_mean_s is not None
    assert summary.tpot_mean_s.value == pytest.approx(0.03)


def test_step_time_is_decoding_time_over_verify_steps() -> None:
    # Two requests: 4 steps emit 4 + 6 = 10 tokens after the first, 20 ms apart; 2 steps emit 2 + 2 = 4.
    requests = [request(0, 0.02, accepted=[3, 2, 1, 0], n=3), request(1, 0.02, accepted=[1, 1], n=3)]
    summary = summarise(cell(requests), EAGLE, {})
    assert summary.step_s is not None
    assert summary.step_s.value == pytest.approx(14 * 0.02 / 6)
    assert summary.tau is not None
    assert summary.tau.value == pytest.approx(14 / 6)


def test_off_has_no_acceptance_and_one_token_a_step() -> None:
    summary = summarise(cell([request(0, 0.02), request(1, 0.02)]), OFF, {})
    assert (summary.tau, summary.alpha, summary.a, summary.counts) == (None, None, None, None)
    assert summary.step_s is not None
    assert summary.step_s.value == pytest.approx(0.02)


def test_s09_a_slower_first_token_misses_its_slo_although_tpot_improves() -> None:
    # vllm-project/vllm#19996: TTFT 14.55 -> 18.77 ms with speculation; the objective of 17 ms is for the first token.
    off, spec = request(0, 0.02, ttft_s=0.01455), request(0, 0.01, ttft_s=0.01877)
    assert meets_slo(off, {"ttft_p95_ms": 17})
    assert not meets_slo(spec, {"ttft_p95_ms": 17})
    assert meets_slo(spec, {"tpot_p95_ms": 12})


def test_a_failed_request_meets_no_slo() -> None:
    summary = summarise(cell([request(0, 0.01), request(1, 0.01, error="reset")]), OFF, {"tpot_p95_ms": 50})
    assert summary.goodput is not None
    assert summary.goodput.value == 0.5


def test_a_cell_without_a_completed_request_has_no_figure() -> None:
    empty = Cell(C1T0, (0.0, 0.0), (request(0, 0.01, error="reset"),), cell([]).health)
    summary = summarise(empty, EAGLE, {})
    assert (summary.tpot_p50_s, summary.throughput_tok_s, summary.tau) == (None, None, None)
