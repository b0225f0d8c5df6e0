"""The cost surface: lines by hand, the test that rejects them, log b between loads, and nothing silent beyond."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.decide.step_line import StepPoint, fit_line
from tuner.decide.surface import CostSurface, fit_surface
from tuner.measure.statistics import Estimate


def point(n: int, step_ms: float, spread: float = 0.01, b: float = 1) -> StepPoint:
    return StepPoint(b, n, Estimate(step_ms / 1000, step_ms * (1 - spread) / 1000, step_ms * (1 + spread) / 1000, 30))


def surface(*points: StepPoint) -> CostSurface:
    found = fit_surface(points)
    assert found is not None
    return found


def test_two_points_make_a_line_and_say_that_it_is_assumed() -> None:
    found = surface(point(0, 10), point(5, 20))
    steps = [found.at(1, n) for n in range(6)]
    assert [s.step_s.value * 1000 for s in steps if s] == pytest.approx([10, 12, 14, 16, 18, 20])
    assert [s.basis for s in steps if s] == ["measured", *["between N"] * 4, "measured"]
    assert "assumed" in found.sentences()[0]


def test_uncertainty_is_least_where_it_was_measured() -> None:
    found = surface(point(0, 10), point(6, 22))
    sds = [s.sd_s / s.step_s.value for n in range(7) if (s := found.at(1, n))]
    assert sds[3] > 3 * sds[0]
    assert sds[3] > 3 * sds[6]


def test_a_third_point_on_the_line_keeps_it_and_narrows_it() -> None:
    three, two = surface(point(0, 10), point(3, 16.1), point(6, 22)), surface(point(0, 10), point(6, 22))
    assert three.lines[0][1].shape == "linear"
    narrow, wide = three.at(1, 4), two.at(1, 4)
    assert narrow is not None
    assert wide is not None
    assert narrow.sd_s < wide.sd_s


def test_a_convex_mixture_of_experts_rejects_the_line() -> None:
    # Verified tokens touch more and more experts: 10, 11, 19, 40 ms at N = 0, 1, 3, 7. The chord at N = 3 is 22.9 ms.
    found = surface(point(0, 10), point(1, 11), point(3, 19), point(7, 40))
    assert found.lines[0][1].shape == "piecewise"
    between = found.at(1, 5)
    assert between is not None
    assert between.step_s.value * 1000 == pytest.approx(29.5)  # half-way from 19 to 40
    assert "reject a line" in found.sentences()[0]


def test_a_start_cost_is_told_from_the_price_per_token() -> None:
    # off 7.07; then 9.2 + 0.98 N as in vllm-project/vllm#20780: the line through N = 2 and 7 goes on down to N = 1.
    found = surface(point(0, 7.07), point(2, 11.16), point(7, 16.06))
    assert found.lines[0][1].shape == "start cost"
    one, four = found.at(1, 1), found.at(1, 4)
    assert one is not None
    assert four is not None
    assert one.step_s.value * 1000 == pytest.approx(10.18)
    assert four.step_s.value * 1000 == pytest.approx(13.12)
    off = found.at(1, 0)
    assert off is not None
    assert off.step_s.value * 1000 == pytest.approx(7.07)
    assert "3.1 ms over off" in found.sentences()[0]  # 10.18 - 7.07


def test_step_times_do_not_fall_as_n_grows() -> None:
    # 12 and 11 ms at equal precision are pooled to 11.5 (weights 1/sd^2: sd is 1 % of each).
    found = surface(point(0, 10), point(2, 12), point(4, 11), point(6, 30))
    values = [s.step_s.value * 1000 for n in range(7) if (s := found.at(1, n))]
    weights = np.array([12.0**-2, 11.0**-2])
    pooled = (12 * weights[0] + 11 * weights[1]) / weights.sum()
    assert values[2] == pytest.approx(pooled)
    assert values[4] == pytest.approx(pooled)
    assert all(b >= a - 1e-12 for a, b in itertools.pairwise(values))


def test_between_loads_it_is_linear_in_log_b() -> None:
    found = surface(point(0, 10, b=1), point(4, 20, b=1), point(0, 14, b=16), point(4, 40, b=16))
    middle = found.at(4, 4)  # log 4 is half-way from log 1 to log 16
    assert middle is not None
    assert middle.basis == "between loads"
    assert middle.step_s.value * 1000 == pytest.approx(30)
    # In proportion to b it would be 20 + 20 (4 - 1) / 15 = 24 ms, which the interval must hold.
    assert middle.step_s.low * 1000 < 24


def test_beyond_what_was_measured_nothing_is_said_unless_asked_and_then_it_is_called_so() -> None:
    found = surface(point(0, 10), point(4, 18), point(0, 12, b=8), point(4, 24, b=8))
    assert found.at(1, 5) is None
    assert found.at(16, 2) is None
    assert found.at(0.5, 2) is None
    beyond, inside = found.at(1, 6, extrapolate=True), found.at(1, 4)
    assert beyond is not None
    assert inside is not None
    assert beyond.basis == "extrapolated"
    assert beyond.step_s.value * 1000 == pytest.approx(22)
    assert beyond.sd_s > 3 * inside.sd_s


def test_without_a_point_there_is_no_surface() -> None:
    assert fit_surface([]) is None


@given(
    st.lists(st.floats(5, 50), min_size=2, max_size=6),
    st.floats(0.002, 0.2),
    st.integers(0, 4),
)
def test_every_fit_is_monotone_and_within_its_points(steps_ms: list[float], spread: float, first: int) -> None:
    points = [point(first + 2 * i, ms, spread) for i, ms in enumerate(steps_ms)]
    line = fit_line(points)
    fitted = [line.step_s(n) for n in range(max(1, first), points[-1].n + 1)]
    assert all(b >= a - 1e-9 for a, b in itertools.pairwise(fitted))
    assert all(np.isclose(line.weights(n).sum(), 1) for n in line.ns)
    assert all(line.sd_s(n) > 0 for n in line.ns)
