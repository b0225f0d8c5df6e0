"""How good a draft must be: the tau and alpha that pay, and pay 1.5 times, and what a report says of them."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import jsonschema
import pytest
import yaml
from cells import off_trial, spec_trial
from hypothesis import given
from hypothesis import strategies as st
from report_tables import table
from study_fixture import EAGLE5, NGRAM, WORKLOAD, study_report

from tuner.decide.break_even import ceiling, need
from tuner.decide.draft_need import best_settings, least_alpha, surface_cost
from tuner.decide.evidence import gather
from tuner.decide.step_line import StepPoint
from tuner.decide.surface import CostSurface, fit_surface
from tuner.measure.records import Trial
from tuner.measure.statistics import Estimate
from tuner.report.data import ReportInput
from tuner.report.draft_needs import DraftNeed, draft_needs
from tuner.report.draft_text import need_lines, need_table, one_line
from tuner.report.page import page
from tuner.report.recommendation_json import SCHEMA_PATH, as_dict
from tuner.report.skill import skill
from tuner.report.training import recipes
from tuner.spec.speculation import SpecConfig
from tuner.theory.speedup import tokens_per_call

E1, E2, E3 = (SpecConfig("eagle3", n=n, draft="head") for n in (1, 2, 3))
NO_PLOTS: dict[str, bytes | None] = dict.fromkeys(("acceptance.png", "tpot.png", "speedup.png", "trees.png"))
#: Eight requests of off at 100 ms a token, give or take a hundredth.
OFF = off_trial([0.1, 0.101, 0.099, 0.1, 0.1, 0.1, 0.1, 0.1])
#: Four steps that accept 0, 0, 1 and 2 of two tokens: tau = 1 + 3/4 = 1.75, as alpha = 0.5 gives it (1 + 0.5 + 0.25).
TWO = [[0, 0, 1, 2]] * 8
COST = Estimate(1.5, 1.4, 1.6, 24)


def told(*trials: Trial) -> ReportInput:
    named = [dataclasses.replace(trial, engine="vllm-cpu") for trial in (OFF, *trials)]
    return study_report(gather(named, "tpot_p50"))


def the_row(data: ReportInput) -> dict[str, str]:
    (row,) = table(need_table(draft_needs(data)).markdown, "pays above", "missing to 1.5x")
    return row


# --- the arithmetic


def test_what_a_draft_needs_by_hand() -> None:
    pays, more = need(COST, 2), need(COST, 2, 1.5)
    assert (pays.tau.value, pays.tau.low, pays.tau.high) == pytest.approx((1.5, 1.4, 1.6))
    # 1 + a + a^2 = 1.5: a = (sqrt(3) - 1) / 2; = 1.4: (sqrt(2.6) - 1) / 2; = 1.6: (sqrt(3.4) - 1) / 2.
    assert pays.alpha == pytest.approx((0.36603, 0.30623, 0.42195), abs=1e-5)
    # 1.5 times 1.5 = 2.25: a = (sqrt(6) - 1) / 2.
    assert more.tau.value == pytest.approx(2.25)
    assert more.alpha[0] == pytest.approx(0.72474, abs=1e-5)
    assert more.missing(1.75) == pytest.approx(0.5)
    assert more.missing(2.5) == 0.0
    # All accepted: 3 tokens for 1.5 plain steps.
    best = ceiling(COST, 2)
    assert (best.value, best.low, best.high, best.n) == pytest.approx((2.0, 3 / 1.6, 3 / 1.4, 24))


def test_where_no_alpha_below_1_suffices_none_is_given() -> None:
    twice = need(COST, 2, 2.0)  # tau 3 = N + 1: every token must be accepted
    assert twice.alpha[0] == pytest.approx(1.0)
    assert twice.alpha[2] is None  # 3.2 is more than three tokens
    assert not twice.reachable
    assert need(COST, 2, 2.1).alpha[0] is None
    assert not need(COST, 2, 2.1).reachable
    assert need(COST, 2, 1.9).reachable
    assert need(Estimate(0.9, 0.8, 0.95, 8), 3).alpha == (0.0, 0.0, 0.0)  # cheaper than a plain step


@given(st.integers(1, 16), st.floats(1.0, 6.0), st.lists(st.floats(0.5, 4.0), min_size=2, max_size=5))
def test_the_alpha_gives_back_the_tau_and_grows_with_what_is_asked(n: int, cost: float, gains: list[float]) -> None:
    asked = [need(Estimate(cost, cost * 0.9, cost * 1.1, 8), n, gain) for gain in sorted(gains)]
    for one in asked:
        assert one.tau.value == pytest.approx(cost * one.gain)
        for tau, alpha in zip((one.tau.value, one.tau.low, one.tau.high), one.alpha, strict=True):
            if alpha is None:
                assert tau > n + 1
            elif tau > 1:
                assert float(tokens_per_call(alpha, n)) == pytest.approx(tau, rel=1e-6)
            else:
                assert alpha == 0
    for less, more in pairwise(asked):
        assert (more.alpha[0] is None) or (less.alpha[0] is not None and less.alpha[0] <= more.alpha[0] + 1e-9)


def surface() -> CostSurface:
    """L(1, N) = 0.1 + 0.025 N from N = 0 and 2."""
    points = [StepPoint(1, n, Estimate(s, s * 0.999, s * 1.001, 24)) for n, s in ((0, 0.1), (2, 0.15))]
    found = fit_surface(points)
    assert found is not None
    return found


def test_the_surface_tells_costs_where_it_reaches_and_nowhere_else() -> None:
    between, measured = surface_cost(surface(), 1, 1), surface_cost(surface(), 1, 2)
    assert between is not None
    assert measured is not None
    assert (between[0].value, between[1]) == (pytest.approx(1.25), "between N")
    assert (measured[0].value, measured[1]) == (pytest.approx(1.5), "measured")
    assert between[0].low < 1.25 < between[0].high
    assert measured[0].high - measured[0].low < between[0].high - between[0].low  # what lies between is less sure
    assert surface_cost(surface(), 1, 3) is None
    assert surface_cost(surface(), 2, 1) is None


def test_the_n_that_asks_least() -> None:
    # To pay: 1 + a = 1.25 against 1 + a + a^2 = 1.5. For 1.5x: 1 + a = 1.875 against 1 + a + a^2 = 2.25.
    assert least_alpha(surface(), 1, 1.0) == (1, pytest.approx(0.25))
    assert least_alpha(surface(), 1, 1.5) == (2, pytest.approx(0.72474, abs=1e-5))
    assert least_alpha(surface(), 1, 2.0) is None  # 2.5 of 2 tokens, 3.0 of 3


def test_the_best_setting_may_be_one_that_was_not_launched() -> None:
    """N = 5 costs 2 plain steps and brings 1.75, nothing of it behind the first token: N = 1 costs 1.2 and brings as
    much."""
    data = told(spec_trial(EAGLE5, 0.2, [[1, 1, 1, 0]] * 8))
    (setting,) = best_settings(data.verdicts, data.predictions)
    assert (setting.spec.n, setting.measured) == (1, None)
    (one,) = draft_needs(data)
    assert (one.basis, one.tau, one.predicted_tau) == ("between N", None, pytest.approx(1.75))
    assert one.cost.value == pytest.approx(1.2, rel=1e-3)
    assert one.needs[0].alpha[0] == pytest.approx(0.2, abs=2e-3)
    assert one.needs[1].alpha[0] == pytest.approx(0.8, abs=2e-3)
    row = the_row(data)
    assert row["best setting"] == "eagle3 N=1 (not launched: its step time is taken between measured N)"
    assert row["tau"] == "1.75, predicted (alpha 0.750)"
    assert row["missing to 1.5x"].startswith("0.05")
    (alone,) = best_settings(data.verdicts, ())
    assert alone.spec == EAGLE5


# --- what a report says of it


def test_the_table_names_what_pays_what_there_is_and_what_is_missing() -> None:
    row = the_row(told(spec_trial(E2, 0.15, TWO)))
    assert row["best setting"] == "eagle3 N=2"
    assert re.fullmatch(r"tau 1\.50 \[1\.\d\d, 1\.\d\d\], alpha 0\.366 \[0\.3\d\d, 0\.3\d\d\]", row["pays above"])
    assert re.fullmatch(r"tau 2\.25 \[2\.\d\d, 2\.\d\d\], alpha 0\.725 \[0\.7\d\d, 0\.7\d\d\]", row["1.5x above"])
    assert row["if every token were accepted"].startswith("2.00x [")
    assert row["tau"] == "1.75 [1.75, 1.75], n = 8 (alpha 0.500)"
    assert (row["missing to pay"], row["missing to 1.5x"]) == ("nothing", "0.50")


def test_where_a_better_draft_could_it_is_said_and_the_commands_are_given() -> None:
    data = told(spec_trial(E2, 0.2, TWO))  # tau 1.75 for two plain steps
    assert the_row(data)["missing to pay"] == "0.25"
    needs = draft_needs(data)
    assert need_lines(data, needs)[0] == (
        "eagle3 falls short of paying at concurrency 1 (temperature 0): a better draft could."
    )
    own = "tuner draft train"
    assert names_for(data, needs, engine="vllm", device="gpu") == ["speculators", "SpecForge", own]
    assert names_for(data, needs, engine="sglang", device="gpu") == ["SpecForge", "speculators", own]
    assert names_for(data, needs, engine="vllm", device="cpu") == [own, "speculators", "SpecForge"]
    text = page(data, NO_PLOTS)
    section = text.split("\n## How good must a draft be\n")[1].split("\n## ")[0]
    assert table(section, "pays above") == [the_row(data)]
    assert "- eagle3 falls short of paying at concurrency 1" in section
    assert "### Training one on your own traffic" in text
    assert "These commands were not run here" in text
    for found in ("speculators train \\\n  --verifier-name-or-path", "specforge train --config", "https://github.com/"):
        assert found in text


def names_for(data: ReportInput, needs: Sequence[DraftNeed], **environment: str) -> list[str]:
    """Of the tools, in the order they are offered in."""
    measured = {**data.header.environments[0], **environment}
    other = dataclasses.replace(data, header=dataclasses.replace(data.header, environments=(measured,)))
    return [recipe.trainer.name for recipe in recipes(other, needs)]


def test_no_draft_can() -> None:
    data = told(spec_trial(E2, 0.35, TWO))  # three tokens at most for 3.5 plain steps; at N = 1 two for 2.25
    row = the_row(data)
    said = "no draft can at N = 2: even if every token were accepted it would be 0.86x"
    assert (row["pays above"], row["1.5x above"]) == (said, said)
    assert (row["missing to pay"], row["missing to 1.5x"]) == ("out of reach", "out of reach")
    needs = draft_needs(data)
    assert need_lines(data, needs) == (
        "eagle3 cannot pay at concurrency 1 (temperature 0), not even if every token were accepted.",
    )
    assert recipes(data, needs) == ()  # training would not help
    assert "### Training" not in page(data, NO_PLOTS)
    assert said in skill(data)


def test_another_n_may_reach_what_the_best_cannot() -> None:
    """1.5x at N = 1 asks for 2.1 tokens of two; at N = 3 for 2.4 of four: 1 + a + a^2 + a^3 = 2.4 at a = 0.665."""
    data = told(spec_trial(E1, 0.14, [[0, 1]] * 8), spec_trial(E3, 0.16, [[0, 1]] * 8, number=3))
    row = the_row(data)
    assert row["best setting"] == "eagle3 N=1"
    found = re.fullmatch(
        r"no draft can at N = 1: even if every token were accepted it would be 1\.43x; "
        r"at N = 3 alpha (0\.66\d) would do",
        row["1.5x above"],
    )
    assert found, row
    assert (
        f"eagle3 asks least of its draft for 1.5x with N = 3 at concurrency 1 (alpha {found.group(1)})."
        in need_lines(data, draft_needs(data))
    )
    assert recipes(data, draft_needs(data))


def test_the_best_n_by_its_own_step_times_is_not_said_to_ask_more_than_the_table_shows() -> None:
    """N = 2 asks 0.725 for 1.5x, N = 1 on the same line 0.875: the table has it already, and no sentence repeats it."""
    data = told(spec_trial(E2, 0.15, TWO))
    (one,) = draft_needs(data)
    assert one.least == ((1, pytest.approx(0.25, abs=1e-3)), (2, one.needs[1].alpha[0]))
    assert not [line for line in need_lines(data, [one]) if "asks least" in line]


def test_lookups_have_no_alpha_and_nothing_to_train() -> None:
    data = told(spec_trial(NGRAM, 0.2, [[0, 0, 0, 1]] * 8))
    row = the_row(data)
    assert re.fullmatch(r"tau 2\.00 \[\d\.\d\d, \d\.\d\d\]", row["pays above"])
    assert row["if every token were accepted"] == ""  # the more steps draft, the more a step costs
    assert row["missing to pay"] == "0.75"
    needs = draft_needs(data)
    assert need_lines(data, needs) == ("ngram falls short of paying at concurrency 1 (temperature 0).",)
    assert recipes(data, needs) == ()
    assert one_line(needs) == ""


def test_what_the_intervals_do_not_tell_is_not_called_missing() -> None:
    # tau 1.75 +- 0.2 over requests, for 1.7 plain steps.
    spread = [
        [0, 0, 1, 2],
        [0, 1, 1, 1],
        [0, 0, 2, 2],
        [0, 0, 0, 2],
        [2, 1, 0, 0],
        [1, 1, 1, 1],
        [0, 0, 0, 1],
        [2, 1, 1, 0],
    ]
    data = told(spec_trial(E2, 0.17, spread))
    assert the_row(data)["missing to pay"].endswith("but the intervals do not tell")
    assert need_lines(data, draft_needs(data))[0] == (
        "eagle3 at concurrency 1 (temperature 0): the intervals do not tell whether it pays by its verify steps."
    )


def test_a_step_quicker_than_a_plain_one_asks_nothing() -> None:
    data = told(spec_trial(E2, 0.095, TWO))
    row = the_row(data)
    assert row["pays above"] == row["1.5x above"] == row["missing to pay"] == "below 1: not defined"
    (one,) = as_dict(data)["draft_needs"]
    assert (one["reading"], one["targets"], one["gain_if_all_accepted"]) == ("undefined", [], None)
    assert recipes(data, draft_needs(data)) == ()


def test_the_skill_says_it_in_one_line() -> None:
    line = (
        "How good a draft must be, by its verify steps alone: at concurrency 1, temperature 0, eagle3 N=2 pays above "
        "tau 1.50 (alpha 0.37), 1.5x above tau 2.25 (alpha 0.72), and its own tau is 1.75 [1.75, 1.75], n = 8 "
        "(alpha 0.500)."
    )
    assert line in skill(told(spec_trial(E2, 0.15, TWO))).splitlines()


def test_json_keeps_to_its_schema_with_the_figures_of_the_table() -> None:
    made = as_dict(told(spec_trial(E2, 0.2, TWO)))
    jsonschema.Draft202012Validator(json.loads(SCHEMA_PATH.read_text())).validate(made)
    (one,) = made["draft_needs"]
    assert (one["basis"], one["reading"], one["config"]["label"]) == ("measured", "agrees", "eagle3 N=2")
    pays, more = one["targets"]
    assert one["cost"]["value"] == pytest.approx(2.0)
    assert one["gain_if_all_accepted"]["value"] == pytest.approx(1.5)
    assert one["alpha_of_tau"] == pytest.approx(0.5)
    # 1 + a + a^2 = 2: a = (sqrt(5) - 1) / 2.
    assert (pays["gain"], pays["alpha"], pays["missing_tau"]) == pytest.approx((1.0, 0.618034, 0.25))
    assert (pays["reachable"], pays["standing"]) == (True, "short")
    assert (more["gain"], more["tau"]["value"]) == pytest.approx((1.5, 3.0))
    assert [tool["tool"] for tool in made["training"]] == ["tuner draft train", "speculators", "SpecForge"]
    assert not any(tool["run_here"] for tool in made["training"])
    assert all(source.startswith("https://") for tool in made["training"] for source in tool["sources"])


# --- the commands


def odd() -> ReportInput:
    """A target whose name a shell and YAML would both read otherwise, if they were let."""
    workload = WORKLOAD | {"engine_options": {"max_model_len": 2048}}
    data = study_report(told(spec_trial(E2, 0.2, TWO)).evidence, workload)
    return dataclasses.replace(data, target="/models/it's: mine")


def test_commands_are_filled_in_for_the_study() -> None:
    data = odd()
    for recipe in recipes(data, draft_needs(data)):
        assert not re.search(r"\$[a-z]", recipe.block), recipe.block
        assert """'/models/it'"'"'s: mine'""" in recipe.block
        assert re.search("--(max|answer)-tokens 96", recipe.block)
        done = subprocess.run(["bash", "-n"], input=recipe.block, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
    own, first, second = (recipe.block for recipe in recipes(data, draft_needs(data)))
    assert "2048" in first
    assert "2048" in second
    assert "--temperatures 0,1" in own
    assert """--temperature '{"0": 0.5, "1": 0.5}'""" in first
    # Without token counts the smaller vocabulary could not be made, and speculators 0.9.0 skips them by default.
    assert "--no-skip-token-freq" in first
    assert "--draft-vocab-size 32000" in first


def test_the_shell_hands_the_tools_what_is_meant(tmp_path: Path) -> None:
    """With stubs for every program: what reaches them, and the run file that is written for SpecForge."""
    data = odd()
    (tmp_path / "bin").mkdir()
    for name in ("git", "pip", "python", "curl", "torchrun", "specforge", "vllm", "speculators", "tuner"):
        stub = tmp_path / "bin" / name
        stub.write_text('#!/bin/sh\nprintf "%s\\n" "${0##*/}" "$@" >> calls-"${0##*/}"\n')
        stub.chmod(0o755)
    env = {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "DRAFT_CONFIG": "configs/a b.json",
        "CHAT_TEMPLATE": "qwen",
    }
    for recipe in recipes(data, draft_needs(data)):
        script = recipe.block.replace("kill $!", "wait")  # stubs end by themselves
        done = subprocess.run(
            ["bash", "-e"], input=script, text=True, capture_output=True, check=False, cwd=tmp_path, env=env
        )
        assert done.returncode == 0, done.stderr
    run = yaml.safe_load((tmp_path / "eagle3.yaml").read_text())
    assert run["model"] == {"target_model_path": "/models/it's: mine", "draft_model_config": "configs/a b.json"}
    assert run["data"] == {"hidden_states_path": "hidden-states", "max_length": 2048, "chat_template": "qwen"}
    captured = (tmp_path / "calls-torchrun").read_text().splitlines()
    assert captured[captured.index("--draft-model-config") + 1] == "configs/a b.json"
    trained = (tmp_path / "calls-speculators").read_text().splitlines()
    assert trained[trained.index("--verifier-name-or-path") + 1] == "/models/it's: mine"
    own = (tmp_path / "calls-tuner").read_text().splitlines()
    assert own[own.index("--target") + 1] == "/models/it's: mine"
    exported = (tmp_path / "calls-specforge").read_text().splitlines()
    assert exported[exported.index("--checkpoint") + 1] == f"{run['output_dir']}/{run['run_id']}-latest"
    del env["DRAFT_CONFIG"]
    silent = subprocess.run(
        ["bash"], input=recipes(data, draft_needs(data))[2].block, text=True, capture_output=True, check=False,
        cwd=tmp_path, env=env,
    )  # fmt: skip
    assert "set DRAFT_CONFIG" in silent.stderr
