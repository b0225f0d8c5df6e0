"""N by load from evidence: which schedule, what it should bring, and when it is deployed; figures worked by hand."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence

import pytest
from cells import cell, request

from tuner.decide.evidence import Evidence, gather
from tuner.decide.outline import outline
from tuner.decide.plan import ask
from tuner.decide.plan_schedule import ScheduleProspect, schedule_of, schedule_prospect
from tuner.decide.prospects import chain_predictions
from tuner.decide.rank import recommend
from tuner.decide.schedule import Stretch, scheduled, stretches_of, stretches_text
from tuner.decide.schedule_verdict import ScheduleVerdict, schedule_verdicts
from tuner.decide.turns import load_turns, temperature_turns
from tuner.errors import UserError
from tuner.measure.records import Cell, CellKey, Load, Trial
from tuner.spec.candidates import Arm
from tuner.spec.speculation import OFF, SGLANG_SCHEDULE, VLLM_SCHEDULE, SpecConfig

C1, C8 = CellKey(Load(1), 0.0), CellKey(Load(8), 0.0)
ARM = Arm("eagle3", "head", ns=(1, 2, 3, 4))
#: Of each request's eight steps, four tokens are accepted in two, two in two, one in two: a = 6/8, 4/8, 2/8, 2/8, so
#: tau(1..4) = 1.75, 2.25, 2.5, 2.75.
STEPS = (4, 4, 2, 2, 1, 1, 0, 0)
TAU = {1: 1.75, 2: 2.25, 3: 2.5, 4: 2.75}
#: L(b, N) in milliseconds: 10 + N/2 alone, 20 + 10 N with eight running. Per token that is, alone: off 10, N=1 6,
#: N=2 4.89, N=3 4.6, N=4 4.36; with eight: off 20, N=1 17.14, N=2 17.78, N=3 20, N=4 21.8.
STEP_MS = {C1: lambda n: 10 + n / 2, C8: lambda n: 20 + 10 * n}


def trial(number: int, spec: SpecConfig, ns: Mapping[CellKey, int], role: str = "explore", slow: float = 1.0) -> Trial:
    """`ns`: tokens drafted in each cell. A little noise by request, the same in every arm, gives intervals a width."""
    cells: list[Cell] = []
    for key, n in ns.items():
        requests = []
        for i in range(12):
            noise = 1 + 0.01 * ((i * 7 + 3 * number) % 5 - 2)
            step_s = STEP_MS[key](n) / 1000 * noise * slow
            accepted = [min(n, a) for a in STEPS] if n else None
            tau = TAU[n] if n else 1.0
            requests.append(request(i, step_s / tau, accepted=accepted, n=spec.n, tokens=21))
        cells.append(cell(requests, key))
    return Trial(number, spec, "e", tuple(cells), role=role, ready_s=10.0)


def told(*more: Trial) -> Evidence:
    first = [trial(1, OFF, {C1: 0, C8: 0}, "baseline"), trial(2, ARM.at(4), {C1: 4, C8: 4})]
    return gather([*first, trial(3, ARM.at(2), {C1: 2, C8: 2}, "confirm"), *more], "tpot_p50")


def vllm(arm: Arm, stretches: Sequence[Stretch]) -> SpecConfig:
    return scheduled("vllm", arm, stretches)


def prospect(evidence: Evidence) -> ScheduleProspect:
    found = schedule_prospect(ARM, evidence, vllm)
    assert isinstance(found, ScheduleProspect)
    return found


def test_the_best_n_falls_with_the_load_and_its_gain_over_one_n_is_that_of_the_truth() -> None:
    found = prospect(told())
    assert [cell.n for cell in found.cells] == [4, 1]
    assert (found.stretches[0].start, found.stretches[0].n) == (1, 4)
    assert (found.stretches[-1].n, found.stretches[-1].end) == (1, 8)
    # One N for both: N=1 costs sqrt(6 x 17.14) = 10.14, N=2 sqrt(4.89 x 17.78) = 9.32, N=3 9.59, N=4 9.76.
    assert found.static == ARM.at(2)
    # By load sqrt(4.36 x 17.14) = 8.65, which is 9.32 / 8.65 = 1.078 times better.
    assert found.gain.value == pytest.approx(1.078, abs=0.01)
    assert found.gain.low < found.gain.value < found.gain.high
    tpots = {cell.key: cell.tpot_s for cell in found.cells}
    for key, ms in ((C1, 4.36), (C8, 17.14)):
        tpot_s = tpots[key]
        assert tpot_s is not None
        assert tpot_s.value * 1000 == pytest.approx(ms, rel=0.02)
        assert tpot_s.low < tpot_s.value < tpot_s.high
    assert found.live


def test_a_schedule_is_predicted_as_its_n_are_in_each_cell() -> None:
    evidence = told()
    cells = {cell.key: cell for cell in prospect(evidence).cells}
    assert {key: cell.n for key, cell in cells.items()} == {C1: 4, C8: 1}
    for key, one in cells.items():
        (own,) = chain_predictions(ARM, evidence, key, [ARM.at(one.n)])
        assert own.throughput_tok_s is not None
        assert (one.tpot_s, one.throughput_tok_s) == (own.tpot_s, own.throughput_tok_s)
    limits = gather([one.trial for one in evidence.tried], "goodput", {"tpot_p95_ms": 18})
    good = [cell.goodput for cell in prospect(limits).cells]
    # Alone 4.4 ms a token with N=4; with eight running 17.1 ms with N=1, some requests of it over 18.
    assert [one is not None and one.value > 0.5 for one in good] == [True, True]


def test_between_measured_loads_the_surface_decides() -> None:
    stretches = prospect(told()).stretches
    assert [s.n for s in stretches] == sorted((s.n for s in stretches), reverse=True)
    assert all(later.start == earlier.end + 1 for earlier, later in itertools.pairwise(stretches))
    # At b = 4 the surface lies 2/3 of the way in log b: L = 10 + 6.67 + N (0.5 + 6.33); per token N=1 13.4, N=2 13.5,
    # N=3 14.9, N=4 16.0. So N = 1, or N = 2 carried on, which is within a tie: nothing deeper.
    assert next(s.n for s in stretches if s.start <= 4 <= s.end) in (1, 2)


def test_the_study_asks_for_the_schedule_when_nothing_else_can_win_and_once_only() -> None:
    measured = [trial(4, ARM.at(3), {C1: 3, C8: 3}, "confirm"), trial(5, ARM.at(1), {C1: 1, C8: 1}, "confirm")]
    evidence = told(*measured)
    asked = ask((ARM,), evidence, 4, vllm)
    assert asked is not None
    assert (asked.role, asked.spec) == ("schedule", prospect(evidence).spec)
    assert "against eagle3 N=2 at all of them" in asked.why
    assert asked.seconds is not None
    last = ask((ARM,), evidence, 1, vllm)
    assert last is not None
    assert last.role == "baseline-again"  # the last launch is off's
    without = ask((ARM,), evidence, 4)
    assert without is not None
    assert without.role == "baseline-again"  # an engine without schedules
    after = told(*measured, trial(6, asked.spec, {C1: 4, C8: 1}, "schedule"))
    again = ask((ARM,), after, 4, vllm)
    assert again is not None
    assert again.role == "baseline-again"


def test_the_plan_lists_the_schedule_next_and_says_it_may_come() -> None:
    measured = [trial(4, ARM.at(3), {C1: 3, C8: 3}, "confirm"), trial(5, ARM.at(1), {C1: 1, C8: 1}, "confirm")]
    asks, _ = outline((ARM,), told(*measured), 4, vllm)
    assert [one.role for one in asks] == ["schedule", "baseline-again"]
    _, then = outline((ARM,), gather([], "tpot_p50"), 6, vllm)
    assert "of N by load where the best N changes with it" in then
    assert "N by load" not in outline((ARM,), gather([], "tpot_p50"), 6)[1]


def judged(*more: Trial) -> tuple[ScheduleVerdict, SpecConfig]:
    evidence = told(*more)
    advice = recommend(evidence)
    (verdict,) = schedule_verdicts((ARM,), evidence, advice.verdicts, advice.overall, vllm)
    return verdict, advice.overall.best


def test_a_schedule_that_wins_as_a_whole_is_deployed() -> None:
    spec = prospect(told()).spec
    verdict, best = judged(trial(4, spec, {C1: 4, C8: 1}, "schedule"), trial(5, OFF, {C1: 0, C8: 0}, "baseline-again"))
    assert best == spec
    assert verdict.deployed
    assert verdict.static == ARM.at(2)
    assert verdict.over_static is not None
    assert verdict.over_off is not None
    assert verdict.over_static.value == pytest.approx(1.078, abs=0.02)
    # Against off: sqrt(10 x 20) / 8.65 = 1.635.
    assert verdict.over_off.value == pytest.approx(1.635, abs=0.03)
    assert verdict.expected is not None
    assert verdict.expected.value == pytest.approx(1.078, abs=0.01)
    assert "it wins, measured over all cells against eagle3 N=2 at all of them" in verdict.reason
    assert verdict.reason.count(" a cell") == verdict.reason.count("n = ")  # a mean's n is of one cell


def test_a_switch_that_costs_what_it_brings_is_a_tie_and_is_not_deployed() -> None:
    spec = prospect(told()).spec
    costly = trial(4, spec, {C1: 4, C8: 1}, "schedule", slow=1.078)
    verdict, best = judged(costly, trial(5, OFF, {C1: 0, C8: 0}, "baseline-again"))
    assert best == ARM.at(2)
    assert not verdict.deployed
    assert verdict.reason.startswith("a tie, and one N is simpler")


def test_a_schedule_that_is_slower_than_one_n_says_so() -> None:
    spec = prospect(told()).spec
    verdict, best = judged(trial(4, spec, {C1: 4, C8: 1}, "schedule", slow=1.3))
    assert best == ARM.at(2)
    assert verdict.reason.startswith("it loses")


def paced(number: int, spec: SpecConfig, tpot_ms: Mapping[CellKey, float], role: str = "explore") -> Trial:
    """Median TPOT by cell; requests differ by 0.2 %, the same in every arm."""
    cells = []
    for key, ms in tpot_ms.items():
        accepted = None if spec.is_off else [1, 0] * 4
        noise = [1 + 0.002 * ((i * 7 + 3 * number) % 5 - 2) for i in range(12)]
        requests = [request(i, ms / 1000 * one, accepted=accepted, n=spec.n, tokens=21) for i, one in enumerate(noise)]
        cells.append(cell(requests, key))
    return Trial(number, spec, "e", tuple(cells), role=role)


def test_a_schedule_that_is_not_told_apart_from_an_unclaimed_n_is_not_deployed() -> None:
    # N=2 everywhere is 1.014 times off on the mean, which is not claimed; the schedule 1.030 times, which alone would
    # be; their ratio of 1.016 may be the luck of a launch.
    spec = scheduled("vllm", ARM, (Stretch(1, 3, 4), Stretch(4, 8, 1)))
    n2 = paced(2, ARM.at(2), {C1: 96.0, C8: 101.4})
    schedule = paced(3, spec, {C1: 95.5, C8: 98.8}, "schedule")
    offs = [paced(1, OFF, {C1: 100, C8: 100}, "baseline"), paced(4, OFF, {C1: 100, C8: 100}, "baseline-again")]
    advice = recommend(gather([offs[0], n2, schedule, offs[1]], "tpot_p50"))
    assert [v.best for v in advice.verdicts] == [ARM.at(2), OFF]
    assert advice.overall.best == OFF
    far = paced(2, ARM.at(2), {C1: 96.0, C8: 110.0})
    assert recommend(gather([offs[0], far, schedule, offs[1]], "tpot_p50")).overall.best == spec


def test_no_schedule_where_one_n_is_best_at_every_load() -> None:
    alike = {C1: lambda n: 10 + n / 2, C8: lambda n: 20 + n}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(STEP_MS, C8, alike[C8])
        reason = schedule_prospect(ARM, told(), vllm)
    assert reason == "N = 4 is by the fitted step times the best of eagle3, or tied with it, at every load from 1 to 8"
    one_load = gather([trial(1, OFF, {C1: 0}), trial(2, ARM.at(4), {C1: 4})], "tpot_p50")
    assert "two levels of concurrency" in str(schedule_prospect(ARM, one_load, vllm))


def test_an_engine_that_refuses_gives_the_reason() -> None:
    def refuses(arm: Arm, stretches: Sequence[Stretch]) -> SpecConfig:
        raise UserError("vLLM 0.20.0 has no speculative key")

    assert schedule_prospect(ARM, told(), refuses) == "vLLM 0.20.0 has no speculative key"
    (verdict,) = schedule_verdicts((ARM,), told(), recommend(told()).verdicts, recommend(told()).overall, refuses)
    assert (verdict.spec, verdict.deployed, verdict.reason) == (None, False, "vLLM 0.20.0 has no speculative key")


def test_a_lossy_arm_has_no_schedule() -> None:
    lossy = trial(2, ARM.at(4), {C1: 4, C8: 4})
    lossy = dataclasses.replace(lossy, cells=tuple(dataclasses.replace(c, lossy="argmax") for c in lossy.cells))
    evidence = gather([trial(1, OFF, {C1: 0, C8: 0}), lossy], "tpot_p50")
    assert schedule_prospect(ARM, evidence, vllm) == "eagle3 is lossy here: argmax"


def test_both_engines_formats_come_back_as_they_went() -> None:
    stretches = (Stretch(1, 3, 4), Stretch(4, 8, 1))
    rows = scheduled("vllm", ARM, stretches)
    assert dict(rows.options) == {VLLM_SCHEDULE: "[[1, 3, 4], [4, 8, 1]]"}
    assert (rows.n, rows.label, stretches_of(rows)) == (4, "eagle3 N=4/1 by load", stretches)
    slots = scheduled("sglang", ARM, stretches)
    table = json.loads(str(dict(slots.options)[SGLANG_SCHEDULE]))
    assert table == {"1": {"candidate_steps": [4]}, "4": {"candidate_steps": [1]}}
    assert stretches_of(slots) == (Stretch(1, 3, 4), Stretch(4, 4, 1))
    assert all(schedule_of(spec, ARM) for spec in (rows, slots))
    assert not schedule_of(ARM.at(4), ARM)
    with pytest.raises(UserError, match="no N by load"):
        scheduled("other", ARM, stretches)
    assert stretches_text((Stretch(1, 3, 4), Stretch(4, 7, 1), Stretch(8, 8, 0))) == (
        "N = 4 up to 3 requests running, N = 1 up to 7, off above"
    )
    assert stretches_text((Stretch(1, 1, 4), Stretch(2, 8, 1))) == "N = 4 with one request running, N = 1 above"


def test_a_schedule_loses_every_tie_and_wins_no_single_cell() -> None:
    spec = prospect(told()).spec
    evidence = told(trial(4, spec, {C1: 4, C8: 1}, "schedule"))
    assert not any(v.best.by_load for v in recommend(evidence).verdicts)
    assert not any(tie.by_load for v in recommend(evidence).verdicts for tie in v.ties)


# --- where the advice turns -----------------------------------------------------------------------------------------


def test_the_crossing_between_two_loads_has_an_interval_that_holds_the_truth() -> None:
    # Only N=4 and off, 2.292 times faster alone, 0.917 times with eight. Linear in log b between, with x from 0 to 1:
    # (10 + 10 x) 2.75 = 12 + 48 x at x = 0.756, so b = 8^0.756 = 4.82. Were steps linear in b: 1 + 7 x 0.756 = 6.29.
    evidence = gather([trial(1, OFF, {C1: 0, C8: 0}, "baseline"), trial(2, ARM.at(4), {C1: 4, C8: 4})], "tpot_p50")
    (turn,) = load_turns(evidence, recommend(evidence).verdicts)
    assert (turn.before, turn.after, turn.low, turn.high) == (ARM.at(4), OFF, 1, 8)
    assert turn.at.load == pytest.approx(4.82, abs=0.15)
    assert turn.at.low is not None
    assert turn.at.high is not None
    assert 1 < turn.at.low < turn.at.load < 6.29 < turn.at.high < 8


def test_where_two_ways_to_draft_meet_the_interval_is_all_between_the_two_loads() -> None:
    other = SpecConfig("draft_model", n=2, draft="small")
    slow = trial(3, other, {C1: 2, C8: 2}, slow=1.2)
    fast = dataclasses.replace(slow, cells=(slow.cells[0], trial(3, other, {C8: 2}, slow=0.8).cells[0]))
    evidence = gather(
        [trial(1, OFF, {C1: 0, C8: 0}, "baseline"), trial(2, ARM.at(4), {C1: 4, C8: 4}), fast], "tpot_p50"
    )
    (turn,) = load_turns(evidence, recommend(evidence).verdicts)
    assert (turn.before, turn.after) == (ARM.at(4), other)
    assert turn.at.load is not None
    assert (turn.at.low, turn.at.high) == (1, 8)


def test_temperatures_are_set_against_each_other_at_one_load() -> None:
    verdicts = recommend(told()).verdicts
    assert temperature_turns(verdicts) == ()
    hot = [dataclasses.replace(v, key=CellKey(v.key.load, 1.0), best=OFF) for v in verdicts]
    turns = temperature_turns([*verdicts, *hot])
    assert [(t.load, t.switch.last_on, t.switch.first_off) for t in turns] == [(Load(1), 0.0, 1.0), (Load(8), 0.0, 1.0)]
