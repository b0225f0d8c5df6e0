"""What is asked next: off, every draft at its largest N, the predicted best, off again; within the budget."""

from __future__ import annotations

import pytest
from cells import C1T0, off_trial, spec_trial

from tuner.decide.evidence import Evidence, gather
from tuner.decide.plan import ask, predictions
from tuner.decide.predict import predict
from tuner.measure.records import Trial
from tuner.spec.candidates import Arm
from tuner.spec.speculation import OFF

EAGLE = Arm("eagle3", "head", ns=(1, 2, 3, 4))
NGRAM = Arm("ngram", ns=(4,))
OFF_TPOTS = [0.1] * 8
#: a_1 .. a_4 = .5, .25, .25, 0 over 4 steps a request: accepted 0, 0, 1, 3.
STEPS = [[0, 0, 1, 3]] * 8


def evidence(*trials: Trial) -> Evidence:
    return gather(trials, "tpot_p50")


def test_off_is_measured_first() -> None:
    asked = ask((EAGLE,), evidence(), 8)
    assert asked is not None
    assert (asked.spec, asked.role) == (OFF, "baseline")


def test_every_draft_is_launched_once_at_its_largest_n() -> None:
    trials = [off_trial(OFF_TPOTS)]
    asked = ask((NGRAM, EAGLE), evidence(*trials), 7)
    assert asked is not None
    assert (asked.spec.label, asked.role) == ("ngram N=4", "explore")
    trials.append(spec_trial(asked.spec, 0.2, STEPS))
    asked = ask((NGRAM, EAGLE), evidence(*trials), 6)
    assert asked is not None
    assert asked.spec.label == "eagle3 N=4"


def test_prediction_is_linear_in_n_with_the_prefix_sum_of_a() -> None:
    # L(0) = 100 ms, L(4) = 140 ms; tau = 1.5, 1.75, 2, 2; TPOT(n) = (100 + 10 n) / tau.
    found = predictions((EAGLE,), evidence(off_trial(OFF_TPOTS), spec_trial(EAGLE.at(4), 0.14, STEPS)))
    assert [p.tau for p in found] == pytest.approx([1.5, 1.75, 2.0, 2.0])
    assert [p.step_s for p in found] == pytest.approx([0.11, 0.12, 0.13, 0.14])
    assert [p.tpot_s.value for p in found] == pytest.approx([0.11 / 1.5, 0.12 / 1.75, 0.065, 0.07])


def test_the_predicted_best_is_confirmed_and_says_why() -> None:
    asked = ask((EAGLE,), evidence(off_trial(OFF_TPOTS), spec_trial(EAGLE.at(4), 0.14, STEPS)), 5)
    assert asked is not None
    assert (asked.spec, asked.role) == (EAGLE.at(3), "confirm")  # 65 ms against the 70 ms measured at N = 4
    assert "predicted 8% faster" in asked.why  # 70 / 65 = 1.077


def test_nothing_that_cannot_win_is_launched() -> None:
    # At 400 ms a step no N comes near off: off again, and the end.
    trials = [off_trial(OFF_TPOTS), spec_trial(EAGLE.at(4), 0.4, STEPS)]
    asked = ask((EAGLE,), evidence(*trials), 5)
    assert asked is not None
    assert asked.role == "baseline-again"
    trials.append(off_trial(OFF_TPOTS, 3, role="baseline-again"))
    assert ask((EAGLE,), evidence(*trials), 4) is None


def test_the_last_launch_of_the_budget_is_off_again() -> None:
    asked = ask((EAGLE,), evidence(off_trial(OFF_TPOTS), spec_trial(EAGLE.at(4), 0.14, STEPS)), 1)
    assert asked is not None
    assert asked.role == "baseline-again"
    assert ask((EAGLE,), evidence(off_trial(OFF_TPOTS)), 0) is None


def test_a_failed_draft_is_not_launched_again() -> None:
    failed = Trial(2, EAGLE.at(4), "e", (), status="failed: out of memory")
    asked = ask((EAGLE,), evidence(off_trial(OFF_TPOTS), failed), 6)
    assert asked is not None
    assert asked.role == "baseline-again"


def test_without_a_measured_off_nothing_is_asked() -> None:
    failed = Trial(1, OFF, "e", (), status="failed: out of memory", role="baseline")
    assert ask((EAGLE,), evidence(failed), 6) is None


def test_lookup_methods_are_not_predicted_but_searched_when_near_the_best() -> None:
    ngram = Arm("ngram", ns=(2, 4))
    near = evidence(off_trial(OFF_TPOTS), spec_trial(ngram.at(4), 0.2, STEPS))  # 200 / 2 = 100 ms, as off
    assert predictions((ngram,), near) == ()
    asked = ask((ngram,), near, 5)
    assert asked is not None
    assert asked.spec == ngram.at(2)
    far = evidence(off_trial(OFF_TPOTS), spec_trial(ngram.at(4), 0.4, STEPS))
    asked = ask((ngram,), far, 5)
    assert asked is not None
    assert asked.role == "baseline-again"


def test_beyond_the_measured_n_nothing_is_predicted() -> None:
    told = evidence(off_trial(OFF_TPOTS), spec_trial(EAGLE.at(2), 0.12, [[0, 1, 2, 1]] * 8))
    off, at_two = (one.cells[C1T0] for one in told.tried)
    assert predict(off, [at_two], EAGLE.at(3)) is None
    assert predict(off, [at_two], EAGLE.at(1)) is not None
