"""docs/planning.md shows the stored result of the regret benchmark, which meets what the project promises."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
STORED = ROOT / "tests" / "data" / "regret-seed-3026.json"


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return dict(json.loads(STORED.read_text(encoding="utf-8")))


@pytest.fixture(autouse=True)
def _importable() -> Iterator[None]:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield
    sys.path.remove(str(ROOT / "benchmarks"))


def test_the_page_shows_the_stored_result_word_for_word(result: dict[str, Any]) -> None:
    from regret import table

    page = (ROOT / "docs" / "planning.md").read_text(encoding="utf-8")
    shown = page.split("<!-- regret:begin -->")[1].split("<!-- regret:end -->")[0]
    assert table(result) in shown
    assert result["conditions"]["command"] in shown
    assert result["conditions"]["date"] in shown


def test_the_planner_loses_under_one_percent_with_a_third_of_the_launches(result: dict[str, Any]) -> None:
    assert result["truths"] >= 1000
    own = result["strategies"]["tuner"]
    assert own["mean_regret"] <= 0.01
    assert own["p95_regret"] <= 0.04
    assert own["launch_share"] <= 1 / 3
    equal = [row for name, row in result["strategies"].items() if name not in ("tuner", "full grid")]
    assert {"random", "optuna tpe", "successive halving"} <= set(result["strategies"])
    for rival in equal:
        assert rival["launch_share"] == pytest.approx(own["launch_share"])
        assert own["mean_regret"] < rival["mean_regret"]
        assert own["p95_regret"] < rival["p95_regret"]


def test_intervals_are_honest_and_equal_arms_are_not_told_apart(result: dict[str, Any]) -> None:
    assert 0.92 <= result["speedup_coverage"]["rate"] <= 0.98
    assert result["speedup_coverage"]["n"] >= 900
    assert all(0.92 <= band["rate"] <= 0.98 for band in result["speedup_coverage_by_noise"].values())
    assert result["false_wins"]["rate"] < 0.05
    assert result["false_wins"]["n"] >= 400
    assert result["false_wins"]["high"] < 0.05


@pytest.mark.parametrize(("seed", "noise"), [(2027, "0.01"), (2028, "0.005")])
def test_the_page_tells_what_launches_that_differ_as_a_whole_do(seed: int, noise: str) -> None:
    from regret import shown_rate

    told = json.loads((ROOT / "tests" / "data" / f"regret-seed-{seed}-launch-noise.json").read_text(encoding="utf-8"))
    own = told["strategies"]["tuner"]
    page = (ROOT / "docs" / "planning.md").read_text(encoding="utf-8")
    assert f"--launch-noise {noise} " in told["conditions"]["command"]
    assert f"mean regret {own['mean_regret']:.2%}, p95 {own['p95_regret']:.2%};" in page
    assert f"hold the truth in {shown_rate(told['speedup_coverage'])} studies;" in page
    assert f"one is called better in {shown_rate(told['false_wins'])}." in page
    assert told["false_wins"]["rate"] < 0.05
