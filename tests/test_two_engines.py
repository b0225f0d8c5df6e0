"""One workload asked of two engines: same prompts, same limits, one table with one meaning of N."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jsonschema
import pytest
from cells import C1T0, off_trial, spec_trial
from conftest import Bench
from study_fixture import study_header, study_report
from test_rank import E3, OFF_TPOTS, TWO

from tuner.decide.across import best_engine, duels, rows
from tuner.decide.evidence import Evidence, gather
from tuner.decide.rank import recommend
from tuner.measure.records import CellKey, Load
from tuner.report.build import StudyReport
from tuner.report.data import ReportInput
from tuner.report.engines import compare_engines, engines_page
from tuner.report.recommendation_json import SCHEMA_PATH, as_dict
from tuner.report.skill import skill
from tuner.run.store import StudyStore

#: 1.5 x exp(-+1.95996 x 0.08071), the luck of `DRIFTED` below.
CLAIM = (
    "vllm-cpu is the best engine, each at its own advised setting: 1.50x [1.28, 1.76], n = 8 a cell against "
    "sglang-cpu; sglang-cpu was measured with tuner's own CPU kernels, in plain PyTorch, in place of SGLang's, so its "
    "speed is not that of sglang as its makers build it."
)
#: Seconds a token of off, and how many times as long its second launch takes, by engine.
DRIFTED = {"vllm-cpu": (0.100, 1.08), "sglang-cpu": (0.150, 1 / 1.15)}


def two_offs(tpot_s: float, slower: float, engine: str = "e") -> Evidence:
    runs = [off_trial([tpot_s] * 8), off_trial([tpot_s * slower] * 8, 2, role="baseline-again")]
    return gather([dataclasses.replace(run, engine=engine) for run in runs], "tpot_p50")


def engine_reports() -> dict[str, ReportInput]:
    """vLLM's and SGLang's CPU builds: off alone, launched twice; each as a report gets it."""
    header = study_header()
    built = {"name": "sglang-cpu", "engine": "sglang", "version": "0.5.23", "corrections": ["sglang-cpu-kernels"]}
    both = (header.environments[0] | {"notes": ["torch 2.13.0"]}, header.environments[0] | built)
    vllm = study_report(two_offs(*DRIFTED["vllm-cpu"], "vllm-cpu"))
    found = {}
    for name in DRIFTED:
        evidence = two_offs(*DRIFTED[name], name)
        header = dataclasses.replace(header, environments=both)
        cautions = (f"{name}: a defect", "launch 2: a finding")
        found[name] = dataclasses.replace(
            vllm, header=header, evidence=evidence, recommendation=recommend(evidence), cautions=cautions
        )
    return found


def compared_reports() -> dict[str, ReportInput]:
    data = engine_reports()
    compared = compare_engines(data)
    return {name: dataclasses.replace(one, engines=compared) for name, one in data.items()}


def test_a_study_over_both_engines_has_a_page_and_a_report_each(bench: Bench) -> None:
    eagle = {"method": "eagle3", "model": "./head", "n": 3}
    workload = bench.workload(
        engine=["mock", "mock-sglang"], drafts=[eagle], traffic={"concurrency": [2], "max_output_tokens": 24}
    )
    done = bench.tuner("recommend", workload, "--json")
    assert done.returncode == 0, done.stderr
    (study,) = bench.studies()
    trials = StudyStore.read(study).trials()
    assert [(t.engine, t.spec.label) for t in trials] == [
        (engine, label) for engine in ("mock", "mock-sglang") for label in ("off", "eagle3 N=3", "off")
    ]
    commands = [" ".join(t.command) for t in trials]
    assert '"num_speculative_tokens": 3' in commands[1]
    assert "--speculative-num-steps 3" in commands[4]
    assert "--speculative-num-draft-tokens 4" in commands[4]  # SGLang counts the root: the same N
    assert "--max-num-seqs 2" in commands[0]
    assert "--max-running-requests 2" in commands[3]
    assert "launch 1: off on mock: " in done.stderr
    assert "launch 5: eagle3 N=3 on mock-sglang: " in done.stderr
    page = (study / "report.md").read_text(encoding="utf-8")
    settings = [line for line in page.splitlines() if "| eagle3 N=3 |" in line and "| 3 |" in line]
    assert len(settings) == 2  # a row an engine, both with N = 3
    for engine in ("mock", "mock-sglang"):
        assert (study / engine / "report.md").exists()
    assert json.loads(done.stdout)["best"]["config"]["n"] == 3
    assert (bench.folder / "outputs" / "launch.sh").exists()


def test_an_engine_that_never_starts_takes_nothing_of_what_the_other_measured(bench: Bench) -> None:
    python = Path(json.loads((bench.home / "engines" / "mock.json").read_text())["python"])
    python.write_text(
        python.read_text().replace("exec", 'case "$*" in *sglang*) export MOCK_ENGINE_FAULTS=die_at_start;; esac\nexec')
    )
    eagle = {"method": "eagle3", "model": "./head", "n": 3}
    workload = bench.workload(
        engine=["mock", "mock-sglang"], drafts=[eagle], traffic={"concurrency": [2], "max_output_tokens": 24}
    )
    done = bench.tuner("recommend", workload, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["best"]["config"]["n"] == 3
    assert "mock-sglang could not be measured without speculation: failed: " in done.stderr
    (study,) = bench.studies()
    page = (study / "report.md").read_text(encoding="utf-8")
    assert "The study is not complete (failed: mock-sglang could not be measured without speculation" in page
    resumed = bench.tuner("recommend", workload, "--resume", "--json")
    assert resumed.returncode == 0, resumed.stderr
    trials = StudyStore.read(study).trials()
    assert [t.engine for t in trials if t.cells] == ["mock"] * 3  # measured once


def test_the_faster_engine_wins_by_a_paired_ratio() -> None:
    slow = gather([off_trial(OFF_TPOTS), spec_trial(E3, 0.16, TWO)], "tpot_p50")
    fast = gather([off_trial(OFF_TPOTS), spec_trial(E3, 0.12, TWO)], "tpot_p50")
    evidence = {"a": slow, "b": fast}
    (duel,) = duels(evidence, {name: recommend(one) for name, one in evidence.items()})
    assert duel.ratio is not None
    assert duel.ratio.value == pytest.approx(0.16 / 0.12, rel=1e-6)
    assert best_engine([duel], ["a", "b"]) == "b"


def test_a_duel_weighs_cells_by_their_share_of_the_traffic() -> None:
    light, heavy = C1T0, CellKey(Load(concurrency=8), 0.0)
    weights = {light: 0.9, heavy: 0.1}

    def engine(light_s: float, heavy_s: float) -> Evidence:
        cells = [off_trial([tpot] * 8, number, key) for number, key, tpot in ((1, light, light_s), (2, heavy, heavy_s))]
        both = dataclasses.replace(cells[0], cells=cells[0].cells + cells[1].cells)
        return gather([both], "tpot_p50", weights=weights)

    # b is 1.2 times faster where nine of ten requests are, and 1.5 times slower at the rare load.
    evidence = {"a": engine(0.12, 0.10), "b": engine(0.10, 0.15)}
    (duel,) = duels(evidence, {name: recommend(one) for name, one in evidence.items()})
    assert duel.ratio is not None
    assert duel.ratio.value == pytest.approx(1.2**0.9 / 1.5**0.1)
    assert duel.winner == "b"


def test_an_engine_that_wins_by_less_than_its_launches_differ_wins_nothing() -> None:
    def winner(drift: float) -> str | None:
        evidence = {"a": two_offs(0.103, drift), "b": two_offs(0.100, 1.0)}
        (duel,) = duels(evidence, {name: recommend(one) for name, one in evidence.items()})
        assert duel.ratio is not None
        assert duel.ratio.value == pytest.approx(1.03)
        return duel.winner

    # Two launches differ by sqrt((3 x 0.01^2 + ln(drift)^2) / 4): 0.9 % without a drift, 2.6 % with one of 5 %.
    assert winner(1.0) == "b"
    assert winner(1.05) is None


def test_a_claim_over_engines_holds_what_launching_both_again_may_move() -> None:
    evidence = {name: two_offs(*run) for name, run in DRIFTED.items()}
    (duel,) = duels(evidence, {name: recommend(one) for name, one in evidence.items()})
    assert duel.ratio is not None
    assert duel.claim is not None
    # sqrt((3 x 0.01^2 + ln(1.08)^2) / 4) = 0.03944, with ln(1.15) 0.07042; together sqrt(0.001556 + 0.004958).
    assert duel.luck == pytest.approx(0.08071, abs=1e-5)
    assert (duel.ratio.low, duel.ratio.high) == pytest.approx((0.1 / 0.15, 0.1 / 0.15))  # requests alone: no spread
    assert duel.claim.value == pytest.approx(0.1 / 0.15)
    assert 1 / duel.claim.high == pytest.approx(1.5 * 0.85369, abs=1e-4)  # exp(-1.95996 x 0.08071)
    assert 1 / duel.claim.low == pytest.approx(1.5 * 1.17138, abs=1e-4)
    assert duel.winner == "vllm-cpu"


def test_the_drifts_of_both_engines_count_against_a_claim() -> None:
    def winner(first: float, second: float) -> str | None:
        evidence = {"a": two_offs(0.115, first), "b": two_offs(0.100, second)}
        (duel,) = duels(evidence, {name: recommend(one) for name, one in evidence.items()})
        return duel.winner

    # b is 1.15 times better, ln 0.1398. A drift of 1.15 alone: 1.95996 x sqrt(0.004958 + 0.000075) = 0.1390, clear.
    assert winner(1.15, 1.0) == "b"
    assert winner(1.0, 1.15) == "b"
    assert winner(1.15, 1.15) is None  # 1.95996 x sqrt(2 x 0.004958) = 0.1952


def test_the_page_over_engines_says_beside_its_claim_whose_builds_it_is_of() -> None:
    data = engine_reports()
    page = engines_page(data, compare_engines(data))
    assert f"\n**{CLAIM}**\n" in page
    head = page.split("## Each engine's own advice")[0]
    for said in (
        "- Measured on Xeon of the tests, 2 cores, no GPU;",
        "- vllm-cpu: vllm 0.32.0 (cpu); torch 2.13.0\n",
        "- vllm-cpu: a defect\n",
        "- vllm-cpu: launch 2: a finding\n",
        "- sglang-cpu: sglang 0.5.23 (cpu)\n",
        "- sglang-cpu: a defect\n",
        "- sglang-cpu: launch 2: a finding\n",
    ):
        assert said in head, said


def test_the_page_over_engines_tells_how_far_off_moved_on_each() -> None:
    data = engine_reports()
    lines = engines_page(data, compare_engines(data)).splitlines()
    (vllm,) = (line for line in lines if line.startswith("- vllm-cpu: Off was measured first and again last"))
    (sglang,) = (line for line in lines if line.startswith("- sglang-cpu: Off was measured first and again last"))
    assert "its largest move was -7.4% [-7.4%, -7.4%], n = 8 at concurrency 1" in vllm  # 1 / 1.08
    assert vllm.endswith("A relaunch is held to move TPOT p50 by 3.9%.")
    assert "its largest move was +15.0% [+15.0%, +15.0%], n = 8 at concurrency 1" in sglang
    assert sglang.endswith("A relaunch is held to move TPOT p50 by 7.0%.")


def test_the_page_over_engines_launches_the_better_one() -> None:
    data = engine_reports()
    launch = engines_page(data, compare_engines(data)).split("## Launch it")[1].split("\n## ")[0]
    assert "vllm-cpu: off, since no advice can be given (`launch.sh`):" in launch
    assert "\n  --model /models/smollm2-135m \\\n" in launch
    assert "No engine is told apart" not in launch


def test_skill_json_and_terminal_tell_the_better_engine() -> None:
    data = compared_reports()
    one = data["sglang-cpu"]
    assert f"\nEngines asked the same: {CLAIM}\n" in skill(one)
    told = as_dict(one)
    jsonschema.validate(told, json.loads(SCHEMA_PATH.read_text(encoding="utf-8")))
    assert told["engines"]["sentence"] == CLAIM
    assert told["engines"]["best"] == "vllm-cpu"
    (duel,) = told["engines"]["duels"]
    assert (duel["first"], duel["second"], duel["winner"]) == ("vllm-cpu", "sglang-cpu", "vllm-cpu")
    assert duel["ratio"]["low"] == pytest.approx(1 / 1.75707, abs=1e-4)
    shown = StudyReport(data, "vllm-cpu", Path("reports/x"), Path("outputs")).to_text().splitlines()
    assert shown[0] == CLAIM
    assert [line.partition(":")[0] for line in shown[1:3]] == ["vllm-cpu", "sglang-cpu"]


def test_a_study_of_one_engine_compares_no_engines() -> None:
    one = engine_reports()["vllm-cpu"]
    assert as_dict(one)["engines"] is None
    jsonschema.validate(as_dict(one), json.loads(SCHEMA_PATH.read_text(encoding="utf-8")))
    assert "Engines asked the same" not in skill(one)


def test_n_of_a_mean_over_cells_is_told_as_of_one_cell() -> None:
    data = engine_reports()
    compared = compare_engines(data)
    assert "n = 8 a cell" in compared.sentence
    row = next(line for line in engines_page(data, compared).splitlines() if line.startswith("| sglang-cpu | off |"))
    assert "| 0.67x [0.57, 0.78], n = 8 a cell | vllm-cpu |" in row  # exp(-+0.15819) / 1.5


def test_equal_engines_are_not_told_apart() -> None:
    same = {name: gather([off_trial(OFF_TPOTS), spec_trial(E3, 0.12, TWO)], "tpot_p50") for name in "ab"}
    (duel,) = duels(same, {name: recommend(one) for name, one in same.items()})
    assert duel.winner is None
    assert best_engine([duel], ["a", "b"]) is None


def test_a_lossy_arm_is_not_ranked_beside_lossless_ones() -> None:
    fast = spec_trial(E3, 0.06, TWO)
    lossy = dataclasses.replace(fast, cells=(dataclasses.replace(fast.cells[0], lossy="temperature is ignored"),))
    evidence = {
        "a": gather([off_trial(OFF_TPOTS), spec_trial(E3, 0.12, TWO)], "tpot_p50"),
        "b": gather([off_trial(OFF_TPOTS), lossy], "tpot_p50"),
    }
    told = rows(evidence)
    assert told[-1].lossy == "temperature is ignored"
    assert told[-1].key == C1T0
    (duel,) = duels(evidence, {name: recommend(one) for name, one in evidence.items()})
    assert duel.winner == "a"  # b is advised to run off, whatever its lossy arm reaches
