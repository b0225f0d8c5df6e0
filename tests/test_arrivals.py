"""Open-loop schedules: fixed by the seed, kept whatever the server does, and latency counted from them."""

from __future__ import annotations

import asyncio
import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.measure.records import RequestRecord
from tuner.run.arrivals import paced, poisson_arrivals


def first(count: int, rate: float, seed: int = 0) -> list[float]:
    return list(itertools.islice(poisson_arrivals(rate, seed), count))


def test_the_first_arrivals_of_seed_0() -> None:
    # Random(0) draws .844421851525, .757954402940: -ln(1 - .844421851525) = 1.860607, -ln(1 - .757954402940) = 1.418629
    assert first(2, rate=10.0) == pytest.approx([0.1860607, 0.1860607 + 0.1418629], abs=1e-6)


@given(st.integers(0, 2**32), st.floats(0.01, 1000.0))
def test_rates_stretch_one_and_the_same_schedule(seed: int, rate: float) -> None:
    slow, fast = first(20, rate, seed), first(20, 4 * rate, seed)
    assert [t / 4 for t in slow] == pytest.approx(fast)
    assert all(b > a for a, b in itertools.pairwise(slow))


def test_gaps_are_exponential() -> None:
    gaps = [b - a for a, b in itertools.pairwise([0.0, *first(20_000, rate=5.0, seed=3)])]
    # mean 1/5 with standard error 0.2 / sqrt(20000) = 0.0014; share above the mean e^-1 = .3679, standard error .0034
    assert sum(gaps) / len(gaps) == pytest.approx(0.2, abs=4 * 0.0014)
    assert sum(g > 0.2 for g in gaps) / len(gaps) == pytest.approx(math.exp(-1), abs=4 * 0.0034)


def test_seeds_differ() -> None:
    assert first(3, 1.0, seed=1) == first(3, 1.0, seed=1)
    assert first(3, 1.0, seed=1) != first(3, 1.0, seed=2)


def test_a_late_send_does_not_push_the_later_ones_back(monkeypatch: pytest.MonkeyPatch) -> None:
    slept_s: list[float] = []
    clock = {"now_s": 0.0}

    async def sleep(delay_s: float) -> None:
        slept_s.append(delay_s)
        clock["now_s"] += delay_s

    monkeypatch.setattr(asyncio, "sleep", sleep)

    async def send() -> list[tuple[int, float, float]]:
        sends = []
        async for index, scheduled_s in paced(iter([1.0, 2.0, 3.0, 4.0]), lambda: clock["now_s"]):
            sends.append((index, scheduled_s, clock["now_s"]))
            clock["now_s"] += [0.5, 1.5, 0.0, 0.0][index]  # what each send costs
        return sends

    # 0 at 1.0 (busy to 1.5), 1 at 2.0 (busy to 3.5), 2 late at 3.5, 3 at 4.0 again on time
    assert asyncio.run(send()) == [(0, 1.0, 1.0), (1, 2.0, 2.0), (2, 3.0, 3.5), (3, 4.0, 4.0)]
    assert slept_s == [1.0, 0.5, 0.0, 0.5]


def test_m14_latency_counts_from_the_schedule() -> None:
    # 8 requests at 10/s, 500 ms each, one at a time: request i is due at 0.1 i, served from 0.5 i to 0.5 (i + 1)
    records = [
        RequestRecord(
            index=i, prompt=f"p{i}", task="chat", phase="measured", scheduled_s=0.1 * i, sent_s=0.5 * i, ended_s=0.5,
            chunks=((0.1, 1), (0.5, 9)), n_in=4, n_out=9, finish="stop",
        )
        for i in range(8)
    ]  # fmt: skip
    latencies = [r.e2e_s for r in records]
    assert all(latency is not None for latency in latencies)
    e2e_s = [latency for latency in latencies if latency is not None]
    assert sum(r.ended_s for r in records) / 8 == pytest.approx(0.500)
    # 0.5 + 0.4 i: mean 0.5 + 0.4 * 3.5 = 1.9, largest 0.5 + 0.4 * 7 = 3.3
    assert sum(e2e_s) / 8 == pytest.approx(1.900)
    assert max(e2e_s) == pytest.approx(3.300)
    # the first token is 0.1 s after each send: largest 0.1 + 0.4 * 7 = 2.9
    assert records[7].ttft_s == pytest.approx(2.900)
