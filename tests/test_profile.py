"""Acceptance profiles: sums by hand, the prefix-sum test, buckets, and the portable file."""

from __future__ import annotations

import dataclasses
import itertools
import json
from importlib.resources import files
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from cells import cell, request
from hypothesis import given
from hypothesis import strategies as st
from study_fixture import EAGLE5, study_evidence, study_report, study_trials
from typer.testing import CliRunner

from tuner.cli import app
from tuner.decide.evidence import gather
from tuner.errors import UserError
from tuner.measure.acceptance import AcceptanceCounts, request_counts
from tuner.measure.alpha_file import AlphaFile
from tuner.measure.profile import AcceptanceProfile, context_bucket, prefix_sum, profile_of, profiles
from tuner.measure.records import SpecSteps
from tuner.report.alpha_files import write_alpha_files


def counts(reached: tuple[int, ...], steps: int, verify: int | None = None) -> AcceptanceCounts:
    return AcceptanceCounts(steps, sum(reached), reached, reached[-1], steps * len(reached), verify)


def profile(*parts: AcceptanceCounts) -> AcceptanceProfile:
    found = profile_of(parts)
    assert found is not None
    return found


def test_a_position_that_never_failed_is_not_certain() -> None:
    # 2 + 2 steps, all four accepted: every resample says 1, Wilson's interval of 4 of 4 begins at 1 / 1.9604.
    found = profile(counts((2,), 2), counts((2,), 2))
    for figure in (found.a[0], found.alpha_by_position[0], found.alpha):
        assert figure is not None
        assert (figure.value, figure.high) == (1.0, 1.0)
        assert figure.low == pytest.approx(0.5101, abs=1e-4)


def test_figures_are_pooled_by_step_and_not_averaged() -> None:
    # 10 + 30 steps; reached 8 + 12 = 20, 4 + 6 = 10: a = .5, .25; alpha_2 = .5; tau = 1.5, 1.75.
    found = profile(counts((8, 4), 10), counts((12, 6), 30))
    assert [f.value for f in found.a] == [0.5, 0.25]
    assert [f.value for f in found.alpha_by_position if f] == [0.5, 0.5]
    assert [f.value for f in found.tau] == [1.5, 1.75]
    assert found.alpha is not None
    assert found.alpha.value == pytest.approx(30 / 60)  # 30 accepted, 40 - 10 rejections, 10 censored
    assert (found.drafting_steps, found.units, found.drafting_share) == (40, 2, None)


def test_lookup_steps_that_drafted_nothing_count_in_tau_and_not_in_a() -> None:
    found = profile(counts((10, 5), 20, verify=50), counts((10, 5), 20, verify=50))
    assert [f.value for f in found.a] == [0.5, 0.25]
    assert [f.value for f in found.tau] == pytest.approx([1.2, 1.3])  # 1 + 20/100, 1 + 30/100
    assert found.drafting_share is not None
    assert found.drafting_share.value == 0.4


def test_counters_have_values_and_no_interval() -> None:
    found = profile(counts((250, 150, 75, 25, 0), 500))
    assert [f.value for f in found.a] == [0.5, 0.3, 0.15, 0.05, 0.0]
    assert {f.low for f in found.a} == {None}
    assert found.units is None
    assert found.alpha_by_position[4] is not None
    assert found.alpha_by_position[4].value == 0  # 0 of the 25 steps that reached position 4


def test_m06_marginal_and_conditional_are_both_told() -> None:
    # SafeAILab/EAGLE#191: .70, .37, .21, .13, .08 are marginal; read as conditional they would be another head.
    reached = (70112, 36951, 20591, 12546, 8118)
    found = profile(counts(reached, 100_000))
    assert [round(f.value, 2) for f in found.a] == [0.70, 0.37, 0.21, 0.13, 0.08]
    assert [round(f.value, 3) for f in found.alpha_by_position if f] == [0.701, 0.527, 0.557, 0.609, 0.647]
    assert found.tau[-1].value == pytest.approx(2.48, abs=0.005)


def test_array_histogram_and_counters_of_one_request_give_the_same_profile() -> None:
    arrays = SpecSteps((2, 1, 1), 8, (0, 2, 1, 0), (2, 2, 2, 2))
    histogram = SpecSteps((2, 1, 1), 8)
    told = [
        request_counts(dataclasses.replace(request(0, 0.1, accepted=[0, 2, 1, 0], n=2), spec=s), 2)
        for s in (arrays, histogram)
    ]
    assert told[0] == told[1]
    assert told[0] is not None
    assert profile(told[0]) == profile(AcceptanceCounts(4, 3, (2, 1), 1, 8, 4))


def test_intervals_hold_the_truth_although_steps_in_a_request_are_alike() -> None:
    """Requests differ in alpha, so steps are no unit: an interval over steps would be far too narrow."""
    rng, held, studies = np.random.default_rng(5), 0, 300
    for study in range(studies):
        alpha = rng.beta(6, 4, size=24)  # mean .6
        reached = rng.binomial(60, alpha)
        found = profile_of([counts((int(r),), 60) for r in reached], seed=study)
        assert found is not None
        assert found.a[0].low is not None
        assert found.a[0].high is not None
        held += found.a[0].low <= 0.6 <= found.a[0].high
    assert 0.92 <= held / studies <= 0.98


@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=12), min_size=2, max_size=6))
def test_profiles_keep_their_bounds(accepted: list[list[int]]) -> None:
    told = [request_counts(request(i, 0.1, accepted=row, n=4), 4) for i, row in enumerate(accepted)]
    found = profile_of([c for c in told if c])
    assert found is not None
    values = [f.value for f in found.a]
    assert all(later <= earlier for earlier, later in itertools.pairwise(values))
    assert all(1 <= f.value <= k + 1 for k, f in enumerate(found.tau, start=1))
    assert found.tau[-1].value == pytest.approx(1 + sum(values))
    for figure in (*found.a, *found.tau):
        assert figure.low is not None
        assert figure.high is not None
        assert figure.low <= figure.value <= figure.high


def test_the_prefix_sum_is_refused_where_two_runs_disagree() -> None:
    longer = profile(*[counts((50 + d, 25, 10), 100) for d in (-1, 0, 1, 0)])
    agrees = prefix_sum(profile(*[counts((50 + d, 25), 100) for d in (1, 0, 0, -2)]), longer)
    assert agrees.holds
    assert agrees.summed.value == pytest.approx(1.75)
    other = prefix_sum(profile(*[counts((70 + d, 45), 100) for d in (1, 0, 0, -1)]), longer)
    assert not other.holds
    assert "refused" in other.text
    assert "2.150" in other.text  # 1 + .70 + .45


def test_p06_p07_published_prefix_sums() -> None:
    # eugr/spark-vllm-docker#343: from N = 4 tau(2) = 1 + .844 + .599 = 2.443, the run at N = 2 shows 2.311 (+5.7 %).
    four = profile(counts((844, 599, 385, 271), 1000))
    two = profile(counts((766, 545), 1000))
    spark = prefix_sum(two, four)
    assert spark.summed.value == pytest.approx(2.443)
    assert spark.measured.value == pytest.approx(2.311)
    assert not spark.holds
    # vllm#48892: 839,040 draft tokens at K = 8 are 104,880 drafts; tau(1) = 1.757 summed, 1.836 measured (-4.3 %).
    eight = profile(counts((7568, 6011, 4976, 4113, 3538, 2980, 2608, 2229), 10_000))
    one = profile(AcceptanceCounts(246_348, 205_916, (205_916,), 205_916))
    assert eight.tau[7].value == pytest.approx(4.402, abs=0.001)
    assert prefix_sum(one, eight).ratio == pytest.approx(1.757 / 1.836, abs=0.001)
    assert prefix_sum(one, eight).holds


def test_equal_n_has_no_prefix_sum() -> None:
    one = profile(counts((5, 2), 10))
    with pytest.raises(ValueError, match="from a larger N"):
        prefix_sum(one, one)


def test_buckets_by_task_language_and_context_and_one_unit_a_prompt() -> None:
    requests = [
        dataclasses.replace(request(i, 0.1, accepted=[2, 0], n=2), task=task, language=language, n_in=tokens)
        for i, (task, language, tokens) in enumerate([("code", "en", 100), ("code", "da", 600), ("chat", "en", 9000)])
    ]
    found = profiles([cell(requests), cell(requests)], 2)
    assert [(b.by, b.name, b.profile.drafting_steps) for b in found] == [
        ("all", "all", 12),
        ("task", "code", 8),
        ("task", "chat", 4),
        ("language", "en", 8),
        ("language", "da", 4),
        ("context", "<512", 4),
        ("context", "512-2047", 4),
        ("context", "8192-32767", 4),
    ]
    assert found[0].profile.units == 3
    assert found[2].profile.units is None  # one prompt, though it ran twice


def test_context_buckets() -> None:
    told = [context_bucket(n) for n in (0, 511, 512, 32768, None)]
    assert told == ["<512", "<512", "512-2047", ">=32768", None]


def test_the_file_is_read_back_and_fits_its_schema() -> None:
    requests = [request(i, 0.1, accepted=[2, 0, 1], n=2) for i in range(3)]
    one = AlphaFile(
        "meta/llama", "eagle3", "head", 2, "vllm", "0.32.0", {"temperature": 0}, ({"set": "chat", "share": 1.0},),
        profiles([cell(requests)], 2),
    )  # fmt: skip
    written = json.loads(json.dumps(one.to_dict()))
    jsonschema.validate(written, json.loads((files("tuner.report") / "alpha.schema.json").read_text()))
    assert AlphaFile.from_dict(written) == one
    tau = AlphaFile.from_dict(written).tau(2, 0.0)
    assert tau is not None
    assert tau.value == pytest.approx(2.0)  # accepted 2, 0, 1 of three steps: 1 + 3/3
    assert one.tau(3, 0.0) is None


def test_a_file_that_is_none_is_refused_in_a_sentence() -> None:
    with pytest.raises(UserError, match="no acceptance profile"):
        AlphaFile.from_dict({"schema_version": 1, "target": "x"})
    with pytest.raises(UserError, match="upgrade tuner"):
        AlphaFile.from_dict({"schema_version": 9})


def test_every_drafting_launch_of_a_study_leaves_its_profile(tmp_path: Path) -> None:
    data = study_report(study_evidence())
    (tmp_path / "old-000.alpha.json").write_text("{}")
    write_alpha_files(data, tmp_path)
    found = {path.name: AlphaFile.from_dict(json.loads(path.read_text())) for path in tmp_path.glob("*.alpha.json")}
    assert {name.rsplit("-", 1)[0] for name in found} == {"ngram-n-4", "eagle3-n-5", "eagle3-n-2"}
    schema = json.loads((files("tuner.report") / "alpha.schema.json").read_text())
    for path in tmp_path.glob("*.alpha.json"):
        jsonschema.validate(json.loads(path.read_text()), schema)
    (eagle,) = (file for name, file in found.items() if name.startswith("eagle3-n-5"))
    assert (eagle.method, eagle.n, eagle.engine) == ("eagle3", 5, "vllm")
    tau = eagle.tau(2, 0.0)
    assert tau is not None
    assert tau.low is not None
    assert tau.high is not None
    assert tau.low < 1 + 0.42 + 0.42 * 0.38 < tau.high  # the truth of the synthetic study


def test_a_launch_that_was_cut_and_resumed_is_one_profile(tmp_path: Path) -> None:
    """Temperature 0 in one launch, temperature 1 in the next, which has one cell of temperature 0 again."""
    trials = list(study_trials())
    at = next(i for i, trial in enumerate(trials) if trial.spec == EAGLE5)
    whole = trials[at]
    cold, warm = ([c for c in whole.cells if c.key.temperature == t] for t in (0.0, 1.0))
    # What was measured again accepted nothing: the ranking has the first, and so must the profile.
    again = dataclasses.replace(cold[0], requests=tuple(
        dataclasses.replace(r, spec=SpecSteps((r.spec.drafting_steps, 0, 0, 0, 0, 0), r.spec.drafted)) if r.spec else r
        for r in cold[0].requests
    ))  # fmt: skip
    trials[at] = dataclasses.replace(whole, cells=tuple(cold), status="interrupted")
    trials.append(dataclasses.replace(whole, number=7, cells=(again, *warm)))
    found = []
    for made in (study_trials(), trials):
        write_alpha_files(study_report(gather(made, "tpot_p50", {}, 7)), tmp_path)
        (path,) = tmp_path.glob("eagle3-n-5-*.alpha.json")
        found.append(AlphaFile.from_dict(json.loads(path.read_text())))
    one, two = ([file.tau(n, t) for n in (1, 5) for t in (0.0, 1.0)] for file in found)
    assert [tau.value for tau in two if tau] == pytest.approx([tau.value for tau in one if tau])
    assert len([tau for tau in two if tau]) == 4


def test_the_schema_command_prints_it() -> None:
    run = CliRunner().invoke(app, ["schema", "alpha"])
    assert run.exit_code == 0
    assert json.loads(run.stdout)["title"].startswith("Acceptance profile")
