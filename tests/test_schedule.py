"""Schedules by load in the engines' formats, crossover load and temperature switch, worked out by hand."""

from __future__ import annotations

import csv
import itertools
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.decide.schedule import (
    Stretch,
    crossover,
    schedule,
    sglang_schedule,
    surface_cost,
    temperature_switch,
    vllm_schedule,
)
from tuner.decide.step_line import StepPoint
from tuner.decide.surface import fit_surface
from tuner.errors import UserError
from tuner.measure.statistics import Estimate

TABLE = Path(__file__).parent / "data" / "tables" / "sglang_qwen3_235b_steps_by_bs.csv"


def estimate(value: float, spread: float = 0.01) -> Estimate:
    return Estimate(value, value * (1 - spread), value * (1 + spread), 30)


def test_p04_published_depths_make_a_schedule_with_one_switch() -> None:
    """sgl-project/sglang#22246: 4 steps are best or tied with the best up to batch 32, 2 at 64 (8.6 % better)."""
    lines = [line for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    rates = {
        (b, int(r["config"][0])): float(r[f"bs{b}"])
        for r in csv.DictReader(lines)
        if r["config"] != "autospec"
        for b in (1, 2, 4, 8, 16, 32, 64)
    }
    made = schedule((1, 2, 4, 8, 16, 32, 64), range(1, 7), lambda b, n: 1 / rates[b, n])
    assert made == (Stretch(1, 45, 4), Stretch(46, 64, 2))  # sqrt(32 x 64) = 45.25


def test_the_surface_decides_between_measured_loads() -> None:
    # tau = 1.7, 2.1. At 1: L = 10, 11, 12, so 5.7 ms at N = 2; at 64: L = 20, 40, 60: off, since 40 / 1.7 = 23.5.
    points = [StepPoint(b, n, estimate(ms / 1000)) for b, row in ((1, (10, 12)), (64, (20, 60)))
              for n, ms in zip((0, 2), row, strict=True)]  # fmt: skip
    surface = fit_surface(points)
    assert surface is not None
    made = schedule(range(1, 65), (0, 1, 2), surface_cost(surface, (1.7, 2.1)))
    assert made[0].n == 2
    assert made[-1].n == 0
    assert made[0].start == 1
    assert made[-1].end == 64
    cost = surface_cost(surface, (1.7, 2.1))
    for stretch in made:
        for b in (stretch.start, stretch.end):
            own, best = cost(b, stretch.n), min(c for n in (0, 1, 2) if (c := cost(b, n)) is not None)
            assert own is not None
            assert own <= best * 1.0101
    assert cost(65, 1) is None  # beyond what was measured nothing is planned


def test_vllm_format() -> None:
    made = vllm_schedule("eagle3", (Stretch(1, 4, 3), Stretch(5, 16, 1), Stretch(17, 64, 0)))
    assert made == {
        "num_speculative_tokens": 3,
        "num_speculative_tokens_per_batch_size": [[1, 4, 3], [5, 16, 1], [17, 64, 0]],
    }
    with pytest.raises(UserError, match="fixed N with suffix"):
        vllm_schedule("suffix", (Stretch(1, 4, 3),))
    with pytest.raises(UserError, match="never drafts"):
        vllm_schedule("eagle3", (Stretch(1, 64, 0),))


def test_sglang_format() -> None:
    args, slots = sglang_schedule("eagle3", (Stretch(1, 7, 5), Stretch(8, 31, 3), Stretch(32, 64, 0)))
    assert slots == {
        "1": {"candidate_steps": [5]},
        "8": {"candidate_steps": [3]},
        "32": {"candidate_steps": [0]},
    }
    assert args[args.index("--speculative-num-steps") + 1] == "5"
    assert args[args.index("--speculative-num-draft-tokens") + 1] == "6"
    with pytest.raises(UserError, match="only, not for ngram"):
        sglang_schedule("ngram", (Stretch(1, 4, 3),))


def test_crossover_by_hand() -> None:
    # Gains 2 at load 4 and 1/2 at load 16: log gain falls from +1 to -1, so 1 is at the middle, sqrt(4 x 16) = 8.
    found = crossover([(4, Estimate(2, 1.8, 2.2, 30)), (16, Estimate(0.5, 0.45, 0.55, 30))])
    assert found.load == pytest.approx(8)
    assert found.low == pytest.approx(math.exp(math.log(4) + math.log(1.8) / math.log(1.8 / 0.45) * math.log(4)))
    assert found.high is not None
    assert found.low is not None
    assert found.low < 8 < found.high
    assert "about 8 running requests" in found.text


def test_crossover_outside_the_measured_loads_is_not_invented() -> None:
    assert crossover([(1, estimate(2)), (64, estimate(1.3))]).load is None
    assert "does not fall to 1" in crossover([(1, estimate(2))]).text
    some = crossover([(1, Estimate(1.5, 1.2, 1.8, 9)), (8, Estimate(0.98, 0.8, 1.2, 9))])
    assert some.load is not None
    assert some.high is None
    assert "above the largest measured" in some.text


def test_temperature_switch() -> None:
    assert temperature_switch([(0.0, True), (0.7, True), (1.0, False)]).text.startswith("it pays up to temperature 0.7")
    assert temperature_switch([(0.0, True)]).first_off is None
    assert "no temperature" in temperature_switch([(0.0, False)]).text
    odd = temperature_switch([(0.0, True), (0.5, False), (1.0, True)])
    assert (odd.last_on, odd.first_off) == (0.0, 0.5)
    assert odd.text.startswith("it does not pay at temperature 0.5 and does at 1: no one temperature divides them")
    hot = temperature_switch([(0.0, False), (0.7, True), (1.0, True)])
    assert hot.text.startswith("it does not pay at temperature 0 and does at 0.7 and 1: ")


@given(st.dictionaries(st.integers(1, 64), st.lists(st.floats(0.1, 10), min_size=4, max_size=4), min_size=1))
def test_every_schedule_covers_the_loads_without_gap_or_overlap(costs: dict[int, list[float]]) -> None:
    made = schedule(list(costs), range(4), lambda b, n: costs[b][n])
    assert made[0].start == 1
    assert made[-1].end >= max(costs)
    for earlier, later in itertools.pairwise(made):
        assert later.start == earlier.end + 1
        assert later.n != earlier.n
    for b, row in costs.items():
        n = next(s.n for s in made if s.start <= b <= s.end)
        assert row[n] <= min(row) * 1.0101
