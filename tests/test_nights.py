"""Comparing nights: figures worked out by hand, and how often the verdict errs on nights whose truth is known."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from nights_truth import FACTS, STUDY, Truth, night

from tuner.decide.nights import (
    EVERYTHING,
    IMPROVED,
    NO_EVIDENCE,
    REGRESSED,
    Change,
    NightComparison,
    compare_nights,
    percent_worse,
)
from tuner.decide.nights_gates import Figure, Verified, hold
from tuner.decide.nights_metrics import worse_by
from tuner.decide.nights_noise import Noise, drifts_of, noise_of
from tuner.decide.nights_sample import CellSample, NightSample
from tuner.decide.nights_suspects import suspects
from tuner.measure.records import CellKey, Load
from tuner.measure.statistics import Estimate
from tuner.report.night_rows import drifts_text
from tuner.spec.gate import parse_gate

KEY = CellKey(Load(4), 0.0)
EVERY_08 = {"off": 1.08, "eagle3 N=3 eagle3": 1.08, "ngram N=3": 1.08}


def cell(tpot_ms: list[float], setting: str = "eagle3 N=3", **fields: object) -> CellSample:
    n = len(tpot_ms)
    made = CellSample(
        "s", setting, KEY, tuple((i, f"p{i}") for i in range(n)), np.array(tpot_ms) / 1000, np.full(n, 0.1),
        np.full(n, 2.0), np.full(n, 100.0), np.full(n, 30.0), np.full(n, 50.0), np.ones(n),
    )  # fmt: skip
    return replace(made, **fields)  # type: ignore[arg-type]


# Figures


def test_each_metric_says_how_much_worse_by_hand() -> None:
    old = cell([10.0, 12.0, 14.0])
    new = cell([11.0, 15.0, 14.0], accepted=np.full(3, 20.0), ended_s=np.full(3, 2.5), good=np.array([1.0, 0.0, 1.0]))
    # medians 12 and 14
    assert worse_by("tpot_p50", old, new).value == pytest.approx(14 / 12)  # type: ignore[union-attr]
    # tau 1 + 30/50 = 1.6, then 1 + 20/50 = 1.4
    assert worse_by("tau", old, new).value == pytest.approx(1.6 / 1.4)  # type: ignore[union-attr]
    # 50 tokens a second, then 40
    assert worse_by("throughput", old, new).value == pytest.approx(1.25)  # type: ignore[union-attr]
    # 3 of 3 good, then 2 of 3
    assert worse_by("goodput", old, new).value == pytest.approx(1.5)  # type: ignore[union-attr]
    # off 20 and 20: speed-up 20/12, then 20/14
    offs = (cell([20.0] * 3, "off"), cell([20.0] * 3, "off"))
    assert worse_by("speedup", old, new, offs).value == pytest.approx(14 / 12)  # type: ignore[union-attr]


def test_prompts_are_paired_and_the_ones_of_one_night_alone_do_not_count() -> None:
    old = cell([10.0, 20.0, 30.0])
    new = cell([30.0, 10.0, 99.0], ids=((2, "p2"), (0, "p0"), (7, "other")))
    worse = worse_by("tpot_p50", old, new)
    # p0 10 -> 10, p2 30 -> 30
    assert worse is not None
    assert (worse.value, worse.n) == (1.0, 2)


@pytest.mark.parametrize("metric", ["tpot_p50", "goodput"])
def test_what_is_not_there_is_not_compared(metric: str) -> None:
    assert worse_by(metric, cell([10.0, 11.0], blocked="impossible tau"), cell([10.0, 11.0])) is None
    empty = cell([math.nan, math.nan], good=np.full(2, math.nan))
    assert worse_by(metric, cell([10.0, 11.0]), empty) is None


@pytest.mark.parametrize(("metric", "worse", "change"), [("tpot_p50", 1.08, 0.08), ("tau", 1.25, -0.2)])
def test_a_change_is_of_the_metric_itself(metric: str, worse: float, change: float) -> None:
    assert percent_worse(metric, worse) == pytest.approx(change)


# Noise


def test_noise_is_of_one_launch_and_comes_from_offs_two_runs() -> None:
    off, again = cell([10.0, 10.0, 10.0], "off"), cell([10.2, 10.2, 10.2], "off", again=True)
    one = NightSample("a", (off,), (again,))
    assert drifts_of(one) == [(pytest.approx(math.log(1.02)),)]
    noise = noise_of((one, NightSample("b", (off,), (off,))))
    # drifts ln 1.02 and 0: mean square 1.96e-4, halved for two launches, root 0.0099
    assert noise.launch == pytest.approx(0.0099, abs=1e-4)
    assert (noise.drifts, noise.pairs, noise.degrees, noise.largest) == (2, 2, 2, pytest.approx(0.02))


def test_noise_beyond_any_measure_claims_nothing_and_ends_nothing() -> None:
    """Off fell to a fifth between its two runs, the one pair there is: Student's t of one degree, worst of 60."""
    noise = Noise(launch=math.log(5) / math.sqrt(2), degrees=1, drifts=1, pairs=1)
    low, high = noise.widened(Estimate(1.5, 1.4, 1.6, 20), 2, 60)
    assert 0 < low < 1e-9
    assert 1e9 < high < math.inf


def loads(drift_of: dict[int, float], base_ms: float = 10.0) -> NightSample:
    """Off twice, at loads by concurrency; the second time slower by these logs."""

    def at(load: int, log: float, again: bool) -> CellSample:
        key = CellKey(Load(load), 0.0)
        return replace(cell([base_ms * math.exp(log)] * 4, "off"), key=key, again=again)

    first = tuple(at(load, 0.0, False) for load in drift_of)
    return NightSample("n", first, tuple(at(load, log, True) for load, log in drift_of.items()))


def test_loads_of_one_pair_of_launches_are_one_drift_until_pairs_tell_how_alike_they_are() -> None:
    few = [loads({1: 0.02, 2: 0.02, 4: 0.02, 8: 0.02, 16: 0.02})] * 7
    told = noise_of(few[:2])
    # 10 drifts, of 2 pairs: as good as 2
    assert (told.drifts, told.pairs, told.degrees, told.common) == (10, 2, pytest.approx(2), None)
    assert told.launch == pytest.approx(0.02 / math.sqrt(2))
    assert noise_of(few[:2], few[2:]).degrees == pytest.approx(7)
    assert "each pair counts as one drift" in drifts_text(told)
    # 8 pairs with loads at +-0.02 in all four ways, twice each: their products add up to 0, so that 16 drifts count
    ways = [loads({1: a, 2: b}) for a in (0.02, -0.02) for b in (0.02, -0.02)]
    apart = noise_of(ways, ways)
    assert (apart.degrees, apart.common) == (pytest.approx(16), pytest.approx(0.0, abs=1e-9))
    assert drifts_text(apart) == "from 16 drifts of off in 8 pairs of launches"
    # loads that drift alike in 8 pairs: 8; with 0.02 and 0.01 rho is 2 * 0.02 * 0.01 / (0.0004 + 0.0001) = 0.8, so
    # that 8 pairs of 2 count 16 / (1 + 0.64)
    alike = loads({1: 0.02, 2: 0.02})
    assert noise_of([alike], [alike] * 7).degrees == pytest.approx(8)
    assert noise_of([loads({1: 0.02, 2: 0.01})] * 8).degrees == pytest.approx(16 / 1.64)


def test_each_metric_is_held_against_offs_drift_in_that_metric() -> None:
    """Off's TPOT stands still while its TTFT drifts by 10 %: a TTFT 10 % worse is no evidence, as TPOT's is."""

    def night_of(run: str, ttft_s: float, tpot_ms: float) -> NightSample:
        off, again = cell([20.0] * 20, "off"), cell([20.02] * 20, "off", ttft_s=np.full(20, 0.11), again=True)
        return NightSample(run, (off, cell([tpot_ms] * 20, ttft_s=np.full(20, ttft_s))), (again,))

    told = compare_nights(night_of("a", 0.1, 10.0), night_of("b", 0.11, 11.0), ("tpot_p50", "ttft_p50"))
    states = {one.metric: one.state for one in told.changes if one.setting == "eagle3 N=3"}
    assert states == {"tpot_p50": REGRESSED, "ttft_p50": NO_EVIDENCE}
    assert told.noises["tpot_p50"].launch == pytest.approx(math.log(1.001) / math.sqrt(2))
    assert told.noises["ttft_p50"].launch == pytest.approx(math.log(1.1) / math.sqrt(2))


@pytest.mark.parametrize(
    ("metric", "fields", "factor"),
    [
        ("ttft_p50", {"ttft_s": np.full(20, 0.11)}, 1.1),
        ("throughput", {"ended_s": np.full(20, 2.5)}, 1.25),  # 50 tokens a second, then 40
        ("goodput", {"good": np.repeat([1.0, 0.0], 10)}, 2.0),  # all, then half of them
        ("goodput", {"tpot_s": np.full(20, 0.0204)}, 1.02),  # all good both times: TPOT's drift
        ("speedup", {"tpot_s": np.full(20, 0.0204)}, 1.02),
    ],
)
def test_a_metrics_noise_by_hand(metric: str, fields: dict[str, object], factor: float) -> None:
    one = NightSample("a", (cell([20.0] * 20, "off"),), (cell([20.0] * 20, "off", again=True, **fields),))
    assert noise_of([one], metric=metric).launch == pytest.approx(math.log(factor) / math.sqrt(2))


def test_a_wider_interval_for_more_noise_and_more_comparisons_by_hand() -> None:
    ratio = Estimate(1.05, 1.04, 1.06, 40)
    # t of 4 degrees of freedom at 0.025 is 2.776: 2.776 * sqrt(2) * 0.01 = 0.0393; with ln(1.05/1.04) = 0.0096: 0.0404
    low, high = Noise(0.01, 4).widened(ratio, 2, 1)
    assert low == pytest.approx(1.05 * math.exp(-0.0404), abs=2e-4)
    assert high == pytest.approx(1.05 * math.exp(0.0404), abs=2e-4)
    # the 0.025 / 10 quantile is 5.598: 0.0792 for the launches, and the requests' by 2.807 / 1.960
    low, _ = Noise(0.01, 4).widened(ratio, 2, 10)
    assert low == pytest.approx(1.05 * math.exp(-math.hypot(0.0792, 0.0096 * 2.807 / 1.96)), abs=2e-4)
    # acceptance does not hang on the machine
    assert Noise(0.01, 4).widened(ratio, 0, 1)[0] == pytest.approx(1.04)


def test_without_a_second_run_of_off_nothing_is_claimed() -> None:
    before, after = night("a", 1), night("b", 2, Truth(slower={**EVERY_08, "off": 3.0}))
    told = compare_nights(replace(before, agains=()), replace(after, agains=()))
    assert {change.state for change in told.changes if change.metric == "tpot_p50"} == {NO_EVIDENCE}
    assert "off was measured once a night" in told.changes[0].reason


# How often it errs


def test_equal_nights_show_no_evidence_in_at_least_95_of_100() -> None:
    """Over all settings, cells and metrics of a night together: one false claim anywhere counts against it."""
    silent = 0
    for repeat in range(100):
        told = compare_nights(night("a", 5000 + 2 * repeat), night("b", 5001 + 2 * repeat))
        silent += all(change.state == NO_EVIDENCE for change in told.changes)
    assert silent >= 95


@pytest.mark.parametrize("ttft", [False, True])
def test_equal_nights_with_five_loads_of_unlucky_launches_show_no_evidence_in_at_least_95_of_100(ttft: bool) -> None:
    """Five loads of one pair of launches tell of that pair's luck five times over, and no more of launches' luck."""
    silent = 0
    luck = Truth(launch_sd=0.02, cell_sd=0.001, noise_sd=0.005, loads=(1, 2, 4, 8, 16))
    for repeat in range(100):
        before, after = (night(run, 9000 + 2 * repeat + i, luck) for i, run in enumerate("ab"))
        told = compare_nights(before, after, ("ttft_p50",) if ttft else ("tpot_p50", "tau"))
        silent += all(change.state == NO_EVIDENCE for change in told.changes)
    assert silent >= 95


def test_eight_percent_slower_is_regressed_in_at_least_95_of_100() -> None:
    found = 0
    for repeat in range(100):
        told = compare_nights(night("a", 2 * repeat), night("b", 2 * repeat + 1, Truth(slower=EVERY_08)))
        found += any(c.setting == EVERYTHING and c.state == REGRESSED for c in told.changes if c.metric == "tpot_p50")
        assert not any(c.state == REGRESSED for c in told.changes if c.metric == "tau" and c.setting == EVERYTHING)
    assert found >= 95


def test_a_worse_draft_is_found_by_its_tau_and_alone() -> None:
    told = compare_nights(night("a", 1), night("b", 2, Truth(alpha={"eagle3 N=3 eagle3": 0.45})))
    taus = {c.setting: c.state for c in told.changes if c.metric == "tau" and c.key is None}
    assert taus["eagle3 N=3 eagle3"] == REGRESSED
    assert taus["ngram N=3"] == NO_EVIDENCE


def test_faster_is_improved_and_earlier_nights_sharpen_what_two_alone_cannot_tell() -> None:
    before, after = night("a", 1), night("b", 2, Truth(slower={"ngram N=3": 0.92}))

    def over_all(told: NightComparison) -> str:
        return next(c.state for c in told.changes if c.setting == "ngram N=3" and c.key is None)

    earlier = [night("x", seed) for seed in range(50, 60)]
    assert over_all(compare_nights(before, after)) == NO_EVIDENCE
    assert over_all(compare_nights(before, after, earlier=earlier)) == IMPROVED


def test_settings_and_cells_of_one_night_alone_are_named() -> None:
    before, after = night("a", 1), night("b", 2)
    fewer = replace(after, cells=tuple(c for c in after.cells if c.setting != "ngram N=3" and c.key.load != Load(8)))
    told = compare_nights(before, fewer)
    assert f"{STUDY}, ngram N=3: in a alone" in told.missing
    assert f"{STUDY}, off: some of its cells in one night alone" in told.missing


# Suspects


def test_a_draft_swapped_under_the_same_name_is_named() -> None:
    after = night("b", 2, facts=replace(FACTS, models=(("/models/target", "t1"), ("/models/eagle3", "d2"))))
    (one,) = suspects(night("a", 1), after, compare_nights(night("a", 1), after))
    assert one.kind == "draft"
    assert one.text == "draft /models/eagle3 has other files under the same name: d1, now d2"


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"version": "0.33.0"}, "engine", "vllm was 0.32.0 and is 0.33.0 now"),
        ({"models": (("/models/target", "t2"), ("/models/eagle3", "d1"))}, "target", "target /models/target has other"),
        ({"models": (("/models/new", "t1"), ("/models/eagle3", "d1"))}, "target", "/models/target gave way"),
        ({"models": (("/models/target", "t1"), ("/models/v2", "d1"))}, "draft", "eagle3 gave way to /models/v2"),
        ({"question": "other"}, "question", "the workload was changed"),
        ({"resolved": (("dtype", "float16"),)}, "arguments", "the engine resolved dtype: bfloat16, now float16"),
        ({"host": (("cores", "4"), ("cpu", "EPYC"))}, "machine", "the machine's cores: 8, now 4"),
        ({"load_1m": 4.0}, "load", "load average 0.3, then 4.0"),
    ],
)
def test_every_difference_in_what_was_measured_with_is_a_suspect(
    changes: dict[str, object], kind: str, text: str
) -> None:
    after = night("b", 2, facts=replace(FACTS, **changes))  # type: ignore[arg-type]
    found = suspects(night("a", 1), after, compare_nights(night("a", 1), after))
    assert [one.kind for one in found] == [kind]
    assert text in found[0].text


def test_equal_nights_have_no_suspect_and_a_slower_off_points_away_from_drafts() -> None:
    assert suspects(night("a", 1), night("b", 2), compare_nights(night("a", 1), night("b", 2))) == ()
    slow = night("b", 2, Truth(slower=dict.fromkeys(EVERY_08, 1.6)))
    (one,) = suspects(night("a", 1), slow, compare_nights(night("a", 1), slow))
    assert "off, which drafts nothing, is slower too" in one.text


# Gates


def test_goodput_that_fell_to_nothing_is_worse_and_no_gap() -> None:
    none = np.zeros(20)
    good, bad = cell([10.0] * 20), cell([10.0] * 20, good=none)
    # 20 of 20 good, then at most half of one: 1 / 0.025
    assert worse_by("goodput", good, bad) == Estimate(40.0, 40.0, 40.0, 20)
    assert worse_by("goodput", bad, bad) == Estimate(1.0, 1.0, 1.0, 20)
    again = (cell([10.0] * 20, "off", again=True),)
    before, after = (NightSample(run, (cell([10.0] * 20, "off"), one), again) for run, one in (("a", good), ("b", bad)))
    (held,) = hold([parse_gate("goodput drop > 5 %")], compare_nights(before, after, ("goodput",)), (), ())
    assert held.state == "failed"


def test_a_gate_on_times_passes_nothing_where_the_noise_is_not_known() -> None:
    before, after = NightSample("a", (cell([10.0] * 20),)), NightSample("b", (cell([30.0] * 20),))
    (held,) = hold([parse_gate("tpot_p50 regress > 3 %")], compare_nights(before, after, ("tpot_p50",)), (), ())
    assert (held.state, held.reasons) == (
        "not measured", ("off was measured once a night: what two launches differ by is not known",)
    )  # fmt: skip


def test_the_mean_over_settings_evens_out_their_luck_and_not_that_of_off() -> None:
    def made(run: str, n: int) -> NightSample:
        settings = tuple(cell([10.0] * 20, f"ngram N={i}") for i in range(1, n + 1))
        return NightSample(run, (cell([20.0] * 20, "off"), *settings), (cell([20.4] * 20, "off", again=True),))

    rows = compare_nights(made("a", 4), made("b", 4), ("speedup",)).changes
    over = next(one for one in rows if one.setting == EVERYTHING)
    # Drifts of 2 percent in both nights: a launch's deviation is log(1.02) / sqrt(2). Two launches of four settings,
    # evened out to 2 / 4, and two of off. The row is one of two halves of the error: t of 2 degrees at 0.0125 is 6.205.
    assert math.log(over.high) == pytest.approx(6.205 * math.sqrt(2 / 4 + 2) * math.log(1.02) / math.sqrt(2), rel=1e-3)


def change(metric: str, worse: float, state: str) -> Change:
    return Change("s", "eagle3 N=3", KEY, metric, Estimate(worse, worse - 0.01, worse + 0.01, 32), 1.0, 1.2, state)


def compared(*changes: Change) -> NightComparison:
    return NightComparison("a", "b", changes, Noise(0.01, 4))


@pytest.mark.parametrize(
    ("gate", "changes", "state"),
    [
        ("tpot_p50 regress > 3 %", [change("tpot_p50", 1.08, REGRESSED)], "failed"),
        ("tpot_p50 regress > 10 %", [change("tpot_p50", 1.08, REGRESSED)], "passed"),
        ("tpot_p50 regress > 3 %", [change("tpot_p50", 1.20, NO_EVIDENCE)], "passed"),
        ("tpot_p50 regress > 3 %", [change("tpot_p50", 0.80, IMPROVED)], "passed"),
        ("tau drop > 5 %", [change("tau", 1.04, REGRESSED)], "passed"),  # 1 - 1/1.04 = 3.8 %
        ("tau drop > 5 %", [change("tau", 1.06, REGRESSED)], "failed"),  # 1 - 1/1.06 = 5.7 %
        ("tau drop > 5 %", [change("tpot_p50", 1.50, REGRESSED)], "not measured"),
    ],
)
def test_a_gate_fails_on_a_believed_regression_over_its_limit(gate: str, changes: list[Change], state: str) -> None:
    (held,) = hold([parse_gate(gate)], compared(*changes), (), ())
    assert held.state == state


def test_a_failed_gate_says_where_with_interval_and_n() -> None:
    (held,) = hold([parse_gate("tpot_p50 regress > 3 %")], compared(change("tpot_p50", 1.08, REGRESSED)), (), ())
    assert held.reasons == ("s, eagle3 N=3, concurrency 4, temperature 0: +8.0% [+0.0%, +20.0%], n = 32",)


def test_absolute_limits_and_verification_need_no_baseline() -> None:
    gates = [parse_gate(text) for text in ("goodput < 95 %", "tpot_p50 > 35 ms", "verify failed", "tau drop > 5 %")]
    figures = (Figure("here", "goodput", 0.91), Figure("here", "tpot_p50", 0.034))
    held = hold(gates, None, figures, (Verified("eagle3 N=3", False),))
    assert [one.state for one in held] == ["failed", "passed", "failed", "not measured"]
    assert held[0].reasons == ("here: 91.0 %",)
    assert held[2].reasons == ("eagle3 N=3: the output is not the target's",)
    assert [one.state for one in hold(gates[:3], None, (), ())] == ["not measured"] * 3
