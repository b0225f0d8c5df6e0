"""The regret benchmark: the planner loses little on known truths, claims no wins of equal arms, and is repeatable."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tuner.spec.load import load_workload
from tuner.spec.speculation import OFF

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def _importable() -> Iterator[None]:
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


def test_a_truth_is_what_its_seed_says_and_monotone_in_n_and_load() -> None:
    from regret_truth import NS, truth

    one = truth(5)
    assert (one.loads, one.kind, one.noise) == (truth(5).loads, truth(5).kind, truth(5).noise)
    for arm in (0, 1, 2):
        steps = [[one.step_s(arm, n, b) for n in NS] for b in one.loads]
        assert np.all(np.diff(steps, axis=1) > 0)
        assert np.all(np.diff(steps, axis=0) > 0)
        assert steps[0][0] > one.step_s(-1, 0, one.loads[0])


def test_the_planner_loses_little_with_a_third_of_the_launches() -> None:
    from regret import PLANNER, run_one, summary

    rows = [run_one((3, number, 0.0)) for number in range(6)]
    told = summary(rows)["strategies"]
    assert told[PLANNER]["launch_share"] <= 1 / 3
    assert told[PLANNER]["mean_regret"] <= 0.015
    rivals = [name for name in told if name not in (PLANNER, "full grid")]
    assert len(rivals) >= 3
    assert all(told[PLANNER]["mean_regret"] < told[name]["mean_regret"] for name in rivals)
    assert all(row[name]["launches"] == row[PLANNER]["launches"] for row in rows for name in rivals)


def test_results_are_repeatable() -> None:
    from regret import run_one

    assert run_one((4, 1, 0.0)) == run_one((4, 1, 0.0))


def test_equal_arms_are_seldom_told_apart() -> None:
    from regret import equal_arms
    from regret_truth import truth

    wins = sum(equal_arms(truth(900_000 + number)) for number in range(60))
    assert wins <= 6  # under 5 %: 3 expected at the most; 7 or more of 60 would come in 1 of 30 runs at 5 %


def test_a_stored_grid_is_replayed_without_an_engine() -> None:
    """On a mock grid: every setting of a synthetic truth, as stored trials."""
    from regret_grid import replay
    from regret_truth import ARMS, SETTINGS, truth

    one = truth(11)
    grid = [one.trial(spec, number, "explore" if number > 1 else "baseline") for number, spec in enumerate(SETTINGS, 1)]
    grid.append(one.trial(OFF, len(grid) + 1, "baseline-again"))
    told = replay(grid, ARMS, "tpot_p50", len(SETTINGS) // 3, seed=0)
    assert told.launches <= len(SETTINGS) // 3
    assert told.settings == 25
    assert [outcome.key for outcome in told.outcomes] == list(one.keys)
    assert all(outcome.regret <= 0.02 or outcome.tie for outcome in told.outcomes)
    assert len(told.errors) > 10
    assert np.median(told.errors) <= 0.05
    shown = told.to_dict()
    assert isinstance(shown["loads"], list)


def test_the_grid_for_a_real_engine_is_a_workload_with_every_setting() -> None:
    workload = load_workload(BENCHMARKS / "grid_cpu.yaml")
    assert [(d.method, d.n) for d in workload.drafts if not isinstance(d, str)] == [
        ("eagle3", [1, 2, 3, 4, 5, 6, 7]), ("ngram", [1, 2, 3, 4, 5, 6, 7]),
    ]  # fmt: skip
    assert workload.traffic.concurrency == [1, 4, 8]
