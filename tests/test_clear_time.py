"""Prefill, queueing and cold starts stay out of L(b, N): on a simulated engine whose step times are known exactly."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from cells import HEALTHY, request

from tuner.decide.break_even import break_even
from tuner.decide.predict import predict_chains
from tuner.measure.clear_time import clear_time
from tuner.measure.records import Cell, CellKey, Load, RequestRecord, SpecSteps
from tuner.measure.summary import CellSummary, summarise
from tuner.spec.speculation import OFF, SpecConfig

WAYS, REQUESTS, TOKENS, PREFILL_S = 4, 24, 41, 0.08
#: Accepted by the steps of every request, over and over: tau(3) = 2, tau(1) = 1.5 (half of the steps accept a token).
PATTERN = (0, 3, 0, 1)


def step_s(n: int) -> float:
    return 0.02 * (1 + 0.1 * n)


def closed_loop(n: int, accepted: Sequence[int], prefill_s: float) -> list[RequestRecord]:
    """`WAYS` slots; requests that arrived are prefilled in the step that runs next, and lengthen it for all."""
    now, sent = 0.0, dict.fromkeys(range(WAYS), 0.0)
    chunks: dict[int, list[tuple[float, int]]] = {}
    done, numbers = [], itertools.count()
    index = {slot: next(numbers) for slot in range(WAYS)}
    while len(done) < REQUESTS + 2 * WAYS:
        new = [slot for slot in sent if slot not in chunks]
        now += (step_s(n) if chunks else 0.0) + prefill_s * len(new)
        for slot in chunks:
            at = len(chunks[slot]) - 1
            taken = accepted[at % len(accepted)] if n else 0
            # Every slot begins one step later in the pattern's tokens, so that requests end apart from each other.
            chunks[slot].append((now - sent[slot], min(TOKENS + slot, chunks[slot][-1][1] + 1 + taken)))
        for slot in new:
            chunks[slot] = [(now - sent[slot], 1)]
        for slot in [slot for slot, own in chunks.items() if own[-1][1] == TOKENS + slot]:
            done.append(_record(index[slot], sent[slot], chunks.pop(slot), n, accepted))
            sent[slot], index[slot] = now, next(numbers)
    return done


def _record(i: int, sent: float, chunks: list[tuple[float, int]], n: int, accepted: Sequence[int]) -> RequestRecord:
    steps = len(chunks) - 1
    taken = [accepted[at % len(accepted)] for at in range(steps)] if n else []
    told = SpecSteps(tuple(taken.count(j) for j in range(n + 1)), verify_steps=steps) if n else None
    phase = "warmup" if i < WAYS else "measured" if i < WAYS + REQUESTS else "filler"
    return RequestRecord(
        index=i, prompt=f"p/{i}", task="chat", phase=phase, scheduled_s=sent, sent_s=sent, ended_s=chunks[-1][0],
        chunks=tuple(chunks), n_in=2000, n_out=chunks[-1][1], finish="length", spec=told,
    )  # fmt: skip


def measured(n: int, prefill_s: float = PREFILL_S, accepted: Sequence[int] = PATTERN) -> CellSummary:
    spec = SpecConfig("eagle3", n=n, draft="head") if n else OFF
    requests = closed_loop(n, accepted, prefill_s)
    return summarise(Cell(CellKey(Load(WAYS), 0.0), (0.0, 1e3), tuple(requests), HEALTHY), spec, {})


@pytest.mark.parametrize("n", [0, 3])
def test_long_prompts_do_not_enter_the_step_time(n: int) -> None:
    cell = measured(n)
    assert cell.step_s is not None
    assert cell.rows is not None
    assert cell.step_s.value == pytest.approx(step_s(n), rel=1e-6)
    naive_s = cell.rows.decode_s.sum() / cell.rows.steps.sum()
    assert naive_s > 1.25 * step_s(n)
    without = measured(n, prefill_s=0.0)
    assert without.step_s is not None
    assert without.step_s.value == pytest.approx(cell.step_s.value, rel=1e-6)


def test_another_n_is_predicted_with_the_prefills_it_will_have() -> None:
    shorter = [min(1, taken) for taken in PATTERN]
    truth = measured(1, accepted=shorter).tpot_mean_s
    off, longest = measured(0), measured(3)
    (found,) = predict_chains(off, [longest], [SpecConfig("eagle3", n=1, draft="head")])
    assert truth is not None
    assert found.step_s == pytest.approx(step_s(1), rel=1e-6)
    assert found.tpot_s.value == pytest.approx(truth.value, rel=0.03)
    even = break_even(off, longest)
    assert even is not None
    assert even.tau == pytest.approx(1.3)  # 26 ms over 20 ms; with the prefills in them the steps would say less


def test_time_before_the_first_token_is_no_step() -> None:
    # Cold start or queue: 9 s to the first token, then ten tokens 100 ms apart.
    slow = [request(i, 0.1, ttft_s=9.0) for i in range(4)]
    cell = summarise(Cell(CellKey(Load(1), 0.0), (0.0, 99.0), tuple(slow), HEALTHY), OFF, {})
    assert cell.step_s is not None
    assert cell.step_s.value == pytest.approx(0.1)


def test_gaps_that_overlap_another_request_s_wait_are_left_out() -> None:
    def streamed(sent_s: float, times: Sequence[float]) -> RequestRecord:
        return RequestRecord(
            index=0, prompt="p", task="t", phase="measured", scheduled_s=sent_s, sent_s=sent_s, ended_s=times[-1],
            chunks=tuple((t, i + 1) for i, t in enumerate(times)), n_in=1, n_out=len(times), finish="length",
        )  # fmt: skip

    # Chunks at 1, 2, 3, 6, 7; the other is sent at 3 and has its first token at 5.5: the gap from 3 to 6 is left out.
    one, other = streamed(0.0, [1.0, 2.0, 3.0, 6.0, 7.0]), streamed(3.0, [2.5, 4.5])
    assert clear_time([one], [4], [one, other]).tolist() == [[3.0, 3.0]]
    # Eight steps in four chunks: two each.
    assert clear_time([one], [8], [one, other]).tolist() == [[3.0, 6.0]]


def test_where_a_prefill_is_always_beside_the_whole_time_is_taken() -> None:
    always = [request(i, 0.1, sent_s=0.05 * i) for i in range(40)]
    clear = clear_time(always[:20], [10] * 20, always)
    assert np.allclose(clear, [[1.0, 10.0]] * 20)
