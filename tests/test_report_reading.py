"""What a reader at night must not be misled by: sums that argue against the advice, drift, hidden warnings."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cells import C1T0, off_trial, spec_trial
from study_fixture import ARMS, NGRAM, WORKLOAD, Truth, study_evidence, study_header, study_report, study_trials

from tuner.decide.evidence import gather
from tuner.decide.tasks import advice_by_task
from tuner.engines.environments import CPU_KERNELS, EXPAND_CORRECTION
from tuner.measure.lossless import Verified
from tuner.measure.lossless_sampled import PromptTest, SampledResult
from tuner.measure.records import Cell, CellKey, Trial
from tuner.report.advice import headline
from tuner.report.build import report_study
from tuner.report.changes import what_would_change
from tuner.report.data import ReportInput
from tuner.report.differences import differences
from tuner.report.drift import drift_caution, drift_sentence
from tuner.report.engine_cautions import correction_text, engine_cautions
from tuner.report.launch_script import launch_script
from tuner.report.page import page
from tuner.report.recommendation_json import as_dict
from tuner.report.skill import skill
from tuner.report.sureness import how_sure
from tuner.report.tasks_text import task_lines
from tuner.report.ties import ties
from tuner.report.turns_text import turn_lines
from tuner.report.verdict_tables import break_even_table, verdict_table
from tuner.report.why import why
from tuner.run.start import RESOLVED, Resolved
from tuner.run.store import StudyStore
from tuner.spec.speculation import OFF, SpecConfig

E2 = SpecConfig("eagle3", n=2, draft="head")
NO_PLOTS: dict[str, bytes | None] = dict.fromkeys(("acceptance.png", "tpot.png", "speedup.png", "trees.png"))
#: Eight requests of off at 100 ms a token, give or take a hundredth.
PLAIN = [0.1, 0.101, 0.099, 0.1, 0.1, 0.1, 0.1, 0.1]


def told(*trials: Trial) -> ReportInput:
    named = [dataclasses.replace(trial, engine="vllm-cpu") for trial in trials]
    return study_report(gather(named, "tpot_p50"))


def stretched(trial: Trial, seconds: float) -> Trial:
    """Every request waits so long beside others' prefills: its tokens come later, its clear steps as before."""

    def later(cell: Cell) -> Cell:
        moved = [
            dataclasses.replace(r, chunks=(*r.chunks[:-1], (r.chunks[-1][0] + seconds, r.chunks[-1][1])))
            for r in cell.requests
        ]
        return dataclasses.replace(cell, requests=tuple(moved))

    return dataclasses.replace(trial, cells=tuple(later(cell) for cell in trial.cells))


#: Lookup steps at 95 ms beside plain ones at 100: none can be quicker, so off had drifted. 1 + 1/4 tokens a step.
QUICK = spec_trial(NGRAM, 0.095, [[0, 0, 0, 1]] * 8)
AGAIN = off_trial([t / 1.4 for t in PLAIN], 3, role="baseline-again")


def test_a_step_quicker_than_a_plain_one_is_no_reason() -> None:
    """TPOT 95 / 1.25 = 76 ms, 1.32x; but off itself came 1.4 times as fast the second time."""
    data = told(off_trial(PLAIN), QUICK, AGAIN)
    assert not data.verdicts[0].on
    (line,) = why(data)
    assert line.startswith(
        "concurrency 1, temperature 0: ngram N=4 looks 1.32x as good as off, but off itself moved by 40"
    )
    assert line.endswith("between its two runs: it is not believed.")
    assert "takes" not in line
    assert "pays" not in line


def test_a_break_even_below_1_is_no_target() -> None:
    data = told(off_trial(PLAIN), QUICK, AGAIN)
    table = break_even_table(data)
    (row,) = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert row["break-even tau"] == row["tau over break-even"] == "below 1: not defined"
    assert row["speed-up (TPOT p50)"].startswith("1.32x [")
    assert row["both on one side of 1"] == "no: go by the measured one"
    assert "break-even alpha" not in row  # lookups alone were tried: they have none
    assert what_would_change(data)[0] == (
        "ngram N=4 at concurrency 1 (temperature 0): a verify step was measured quicker than a plain one, which is "
        "noise or drift, so no break-even is defined: go by the measured speed-up."
    )
    assert "begins to pay" not in " ".join(what_would_change(data))
    compared = as_dict(data)["cells"][0]["comparisons"]
    assert [c["break_even"] for c in compared] == [None, None]
    text = page(data, NO_PLOTS)
    assert "A break-even below 1 means that a verify step was measured quicker than a plain one" in text
    assert "gain in mean TPOT" not in text


def contradicted(monkeypatch: pytest.MonkeyPatch) -> ReportInput:
    """tau 1.75 over a break-even of 1.2, and yet requests were slower: step times taken in the clear tell nothing of
    what a request waits for beside others' prefills."""
    from tuner.report import step_account

    data = told(off_trial(PLAIN), spec_trial(E2, 0.2, [[0, 0, 1, 2]] * 8))  # 200 / 1.75 = 114 ms: 0.88x
    exact = step_account.break_even_point

    def in_the_clear(*args: object) -> object:
        point = exact(*args)  # type: ignore[arg-type]
        return point and dataclasses.replace(point, tau=point.tau.scaled(0.6))  # 2.0 -> 1.2

    monkeypatch.setattr(step_account, "break_even_point", in_the_clear)
    return data


def test_step_times_that_contradict_the_measured_gain_give_no_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    data = contradicted(monkeypatch)
    table = break_even_table(data)
    (row,) = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert row["tau over break-even"] == "1.46x"  # 1.75 / 1.2
    assert row["speed-up (TPOT p50)"].startswith("0.87x") or row["speed-up (TPOT p50)"].startswith("0.88x")
    assert row["both on one side of 1"] == "no: go by the measured one"
    assert what_would_change(data)[0] == (
        "eagle3 N=2 at concurrency 1 (temperature 0): step times do not explain what was measured: go by the measured "
        "speed-up."
    )
    (line,) = why(data)
    assert line.endswith("step times do not explain it.")
    assert "pays" not in line


def test_a_gain_that_is_not_believed_is_not_said_to_begin_at_a_tau_it_has() -> None:
    """1 + 3/4 tokens for 1.6 steps: 1.09x, and off itself drifted by a fifth."""
    slower = off_trial([t * 1.2 for t in PLAIN], 3, role="baseline-again")
    data = told(off_trial(PLAIN), spec_trial(E2, 0.16, [[0, 0, 1, 2]] * 8), slower)
    assert not data.verdicts[0].on
    assert what_would_change(data)[0].startswith(
        "eagle3 N=2 at concurrency 1 (temperature 0): by its step times it pays"
    )


@pytest.mark.parametrize(
    ("pace", "word"), [(1 / 1.4, "flattered by as much at most, which favours speculation"),
                       (1.3, "understated by as much at most, which favours off")]
)  # fmt: skip
def test_a_large_drift_is_said_with_its_direction_load_and_temperature(pace: float, word: str) -> None:
    data = told(off_trial(PLAIN), QUICK, off_trial([t * pace for t in PLAIN], 3, role="baseline-again"))
    said = drift_caution(data.evidence, data.verdicts)
    assert said is not None
    assert said.startswith("Off itself moved between its first and its last run: concurrency 1 (temperature 0) ")
    assert said.endswith(word)
    shown = dataclasses.replace(data, cautions=(said,))
    # The second thing said, in the report and in the skill.
    for text in (page(shown, NO_PLOTS), skill(shown)):
        assert text.index(headline(shown)) < text.index(said) < text.index("Why:")
    assert as_dict(shown)["cautions"] == [said]


def test_a_small_drift_is_no_caution_and_what_was_not_repeated_is_said_once() -> None:
    evidence = study_evidence(Truth(measured=4, concurrency=(1,), failed=False))
    data = study_report(evidence)
    assert drift_caution(evidence, data.verdicts) is None
    said = drift_sentence(evidence, data.verdicts)
    assert said.endswith(
        "At temperature 1 off was not measured again: the drift at the other is held against gains there."
    )
    assert page(data, NO_PLOTS).count("was not measured again") == 1


def test_warnings_that_bear_on_speculation_are_lifted_once_with_their_launches() -> None:
    def warned(trial: Trial, *texts: str) -> Trial:
        return dataclasses.replace(trial, facts=dataclasses.replace(trial.facts, warnings=texts))

    slow = "Speculative decoding on CPU without Intel OpenMP in LD_PRELOAD will cause significant performance loss."
    lost = "min_p and logit_bias parameters won't work with speculative decoding."
    trials = [
        warned(off_trial(PLAIN), "Triton is not installed."),
        warned(QUICK, "Triton is not installed.", slow, lost),
        warned(dataclasses.replace(QUICK, number=3), slow, slow),
    ]
    assert list(engine_cautions(trials)) == [
        f"the engine warned (launches 2 and 3): {slow}",
        f"the engine warned (launch 2): {lost}",
    ]


def stored(folder: Path, trials: Sequence[Trial], correction: str, workload: dict[str, Any] = WORKLOAD) -> StudyStore:
    """A study on the disk, as a run of the command leaves it."""
    header = study_header(workload)
    environments = ({**header.environments[0], "corrections": [correction]},)
    with StudyStore.create(folder, dataclasses.replace(header, environments=environments)) as store:
        store.note(RESOLVED, **Resolved("/models/smollm2-135m", ARMS, ()).to_dict())
        for trial in trials:
            store.trial_started(trial.number, trial.spec, trial.engine, trial.role, trial.why, trial.command, trial.env)
            store.trial_ready(trial.number, 1.0, trial.facts)
            for cell in trial.cells:
                store.cell_done(trial.number, cell)
            store.trial_ended(trial.number, trial.status, trial.facts)
        store.study_ended("complete")
    return StudyStore.read(folder)


def test_a_report_made_from_the_disk_warns_of_drift_first_and_of_a_correction_last(tmp_path: Path) -> None:
    truth = Truth(measured=4, concurrency=(1,), temperatures=(0.0,), drift=1.3, failed=False)
    trials = [trial for trial in study_trials(truth) if trial.ok]
    warned = dataclasses.replace(trials[1].facts, warnings=("logit_bias won't work with speculative decoding.",))
    trials[1] = dataclasses.replace(trials[1], facts=warned)
    store = stored(tmp_path / "study", trials, EXPAND_CORRECTION)
    report_study(store, tmp_path / "outputs")
    cautions = json.loads((tmp_path / "outputs" / "recommendation.json").read_text())["cautions"]
    assert cautions[0].startswith(
        "Off itself moved between its first and its last run: concurrency 1 (temperature 0) -2"
    )
    assert "the engine warned (launch 2): logit_bias won't work with speculative decoding." in cautions
    assert cautions[-1] == f"vllm-cpu: {correction_text(EXPAND_CORRECTION)}"


def test_m11_forced_lengths_give_figures_and_no_advice_no_n_and_no_acceptance_profile(tmp_path: Path) -> None:
    truth = Truth(concurrency=(1, 4), temperatures=(0.0,), drift=1.0, failed=False)
    trials = [trial for trial in study_trials(truth) if trial.ok]
    found = {}
    for forced in (False, True):
        workload = WORKLOAD | {"sampling": {"temperatures": [0], "ignore_eos": forced}}
        folder, outputs = tmp_path / f"study-{forced}", tmp_path / f"outputs-{forced}"
        report_study(stored(folder, trials, EXPAND_CORRECTION, workload), outputs)
        written = [folder / "report.md", *(outputs / name for name in ("launch.sh", "skill-eagle3-tuner.md"))]
        advised = json.loads((outputs / "recommendation.json").read_text())
        found[forced] = (advised, *(path.read_text() for path in written), len([*folder.glob("*.alpha.json")]))
    advised, _, launch, _, profiles = found[False]
    assert (advised["best"]["config"]["method"], profiles) == ("eagle3", 3)
    assert "--speculative-config" in launch
    advised, report, launch, read, profiles = found[True]
    assert (advised["verdict"], advised["best"]["config"]["method"], profiles) == ("undecided", "off", 0)
    assert advised["headline"].startswith("No advice can be given: ignore_eos forces answers beyond their end, ")
    assert not any(c["tau"] or c["alpha"] for cell in advised["cells"] for c in cell["comparisons"])
    assert (advised["draft_needs"], advised["tasks"], advised["schedules"], advised["turns"]) == ([], [], [], [])
    assert "--speculative-config" not in launch
    assert "N=" not in read.split("## How sure")[0]
    assert "the one setting" not in report + launch + read
    rows = [
        line.split(" | ") for line in report.splitlines() if line.startswith("| concurrency") and "**none**" in line
    ]
    assert [row[3:5] for row in rows] == [["not ranked", "not ranked"]] * 2
    top, measured = report.split("## What was measured")
    assert "**No advice can be given: ignore_eos forces answers beyond their end" in top
    said = top.split("## How it was decided")[0].splitlines()
    assert [line for line in said if "N=" in line and "What was predicted of a setting" not in line] == []
    latency, acceptance = measured.split("**Not your traffic's acceptance**")
    assert "eagle3 N=2" in latency  # at that acceptance the latency holds
    assert "eagle3 N=2" in acceptance


def test_a_correction_says_when_it_matters_and_how_to_have_it() -> None:
    said = correction_text(EXPAND_CORRECTION)
    assert EXPAND_CORRECTION in said
    assert "under speculation at temperature above 0; without speculation it is not needed" in said
    assert "`tuner engine add vllm-cpu`" in said
    assert "`tuner engine add sglang-cpu`" in correction_text(CPU_KERNELS)
    assert correction_text("mine") == "measured with the correction mine: deploy an engine that has it too"


def test_the_luck_of_a_relaunch_names_what_it_moves_and_where_it_comes_from() -> None:
    said = " ".join(how_sure(told(off_trial(PLAIN), QUICK, AGAIN)))
    # sqrt((3 * 0.01^2 + ln(1.4)^2) / 4) = 16.8 %
    assert "A relaunch alone is held to move TPOT p50 by 16.8% (one standard deviation, from the 1% that is" in said
    assert (
        "off's drift of +40.0% at most): a gain is believed where its interval, with that in it, stays above 1." in said
    )
    once = " ".join(how_sure(told(off_trial(PLAIN), QUICK)))
    assert "by 1.0% (one standard deviation, from the 1% that is held beforehand): a gain" in once


def test_a_study_that_ran_out_of_minutes_gives_the_command_that_goes_on() -> None:
    data = told(off_trial(PLAIN), QUICK)
    out = dataclasses.replace(data, status="stopped: the minutes of the budget are used up")
    minutes = data.workload.budget.minutes
    assert f"`tuner recommend {data.header.name}.yaml --resume --minutes" in " ".join(how_sure(out))
    assert f"(the budget was {minutes:g} minutes)" in " ".join(how_sure(out))
    assert "--resume" not in " ".join(how_sure(dataclasses.replace(data, status="unfinished after 2 launches")))


def test_a_tie_is_one_sentence_a_setting_with_its_cells() -> None:
    evidence = study_evidence(Truth(measured=4, concurrency=(1, 4), temperatures=(0.0,), failed=False))
    data = study_report(evidence)
    both = tuple(dataclasses.replace(v, best=OFF, ties=(NGRAM,)) for v in data.verdicts)
    tied = dataclasses.replace(data, recommendation=dataclasses.replace(data.recommendation, verdicts=both))
    assert ties(tied) == ("off is not told apart from ngram N=4 at concurrency 1 and 4 (temperature 0).",)
    said = [line for line in what_would_change(tied) if "cannot tell" in line]
    assert said == [
        "4 requests a cell cannot tell no speculation from ngram N=4 at concurrency 1 and 4 (temperature 0); more "
        "could."
    ]


def test_where_off_is_advised_the_other_setting_is_its_closest_rival() -> None:
    data = told(off_trial(PLAIN), QUICK, AGAIN)
    table = verdict_table(data)
    (row,) = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert row["closest rival"] == "ngram N=4"
    assert "decided by" not in row
    assert "1.32x" not in row["why"]  # it stands in its own column
    mixed = verdict_table(study_report(study_evidence(Truth(measured=8, temperatures=(0.0,), failed=False))))
    assert {row[3][:13] for row in mixed.rows if row[2] == "**leave off**"} == {"closest rival"}
    assert "decided by" in mixed.columns


def test_launch_script_and_skill_list_what_was_measured_and_is_not_deployed(tmp_path: Path) -> None:
    evidence = study_evidence(Truth(measured=2, concurrency=(1,), temperatures=(0.0,), failed=False))
    data = study_report(evidence)
    lines = differences(data, OFF)
    assert lines[0].startswith("Measured with these flags, which are not in it: --host 127.0.0.1 --port 41234")
    assert "Measured with these variables, which it does not set: VLLM_CPU_KVCACHE_SPACE=1." in lines
    assert "Prefix caching was off while measuring; in it that is at the engine's default." in lines
    assert "Measured on loopback with a random API key; it sets no key, host or port." in lines
    best = data.recommendation.overall.best
    script, advice = str(launch_script(data)), skill(data)
    for line in differences(data, best):
        assert f"# {line}" in script
        assert f"- {line}" in advice
    assert differences(dataclasses.replace(data, deploy={}), OFF) == ()


def test_a_task_is_judged_though_the_others_have_too_few_prompts() -> None:
    """Six requests of chat and two of code: chat alone is judged, and code is named."""

    def renamed(trial: Trial) -> Trial:
        def named(cell: Cell) -> Cell:
            tasks = ["chat" if i < 6 else "code" for i in range(len(cell.requests))]
            changed = tuple(dataclasses.replace(r, task=t) for r, t in zip(cell.requests, tasks, strict=True))
            return dataclasses.replace(cell, requests=changed)

        return dataclasses.replace(trial, cells=tuple(named(cell) for cell in trial.cells))

    data = told(renamed(off_trial(PLAIN)), renamed(QUICK))
    assert data.evidence.keys == (C1T0,)
    tasks = advice_by_task(data.evidence, OFF)
    assert [(one.task, one.share) for one in tasks] == [("chat", 0.75)]
    section = page(dataclasses.replace(data, tasks=tasks), NO_PLOTS).split("## By task")[1].split("\n## ")[0]
    assert "| chat | 75% |" in section
    assert "too few to judge by themselves: code." in section
    assert "Every task" not in section


def test_where_no_task_can_be_judged_there_is_no_section() -> None:
    data = told(off_trial(PLAIN), QUICK)
    assert data.tasks == ()
    assert task_lines(data) == ()
    assert "## By task" not in page(data, NO_PLOTS)


def test_the_report_shows_n_and_power_of_what_was_verified_beside_the_speed_up() -> None:
    data = told(off_trial(PLAIN), QUICK)
    assert "smallest shift seen" not in page(data, NO_PLOTS)
    tested = dataclasses.replace(
        data, losslessness="a line", verified={NGRAM: Verified("ngram N=4", unsafe="it died", unsafe_at=1.0)}
    )
    text = page(tested, NO_PLOTS)
    top = text.split("## Verdict by load")[0]
    assert "| setting | temperature | compared | result | smallest shift seen with probability 0.9 | power at a" in top
    assert "Output still the target's: ngram N=4 NOT LOSSLESS: unsafe for this workload: it died." in top
    assert "Output still the target's: a line." in skill(tested)


def test_a_skill_says_what_a_weak_test_could_not_see() -> None:
    """150 samples against 150 say next to nothing of a shift of 0.05; 15 against 15 not even anything of one of 0.5."""
    test = PromptTest("colours", 150, 150, 3.0, 3, 0.4, 0.1)
    weak = SampledResult(1.0, 5, (test,), 3, 4, 0.01, 0.01, 0.4, 0.4, 0.6)
    data = told(off_trial(PLAIN), QUICK)
    assert "tuner verify" not in skill(data)
    tested = {NGRAM: Verified("ngram N=4", sampled=(weak,), drafted=9)}
    said = skill(dataclasses.replace(data, losslessness="a line", verified=tested)).split("## When not")[1]
    assert "target's own: at temperature 1 only shifts above" in said.split("\n## ")[0]
    assert "would show; run `tuner verify smollm2-chat-cpu.yaml` first." in said.split("\n## ")[0]
    none = dataclasses.replace(weak, tests=(dataclasses.replace(test, first=15, second=15),))
    tested = {NGRAM: Verified("ngram N=4", sampled=(none,), drafted=9)}
    said = skill(dataclasses.replace(data, losslessness="a line", verified=tested)).split("## When not")[1]
    assert (
        "target's own: temperature 1 not tested (too few samples to tell: n = 15 against 15); run `tuner verify "
        "smollm2-chat-cpu.yaml` first."
    ) in said.split("\n## ")[0]


T1 = CellKey(C1T0.load, 1.0)
ARGMAX = "on CPU SGLang verifies drafts by argmax: temperature 1 and top_p are ignored under speculation"
#: 100 ms a token, and four verify steps a request of two tokens each: 210 ms a step is 105 ms a token, 120 is 60.
PAIRED = [[1, 1, 1, 1]] * 8


def lossless_and_lossy(why: str = ARGMAX) -> ReportInput:
    """Temperature 0: 0.95x, lossless. Temperature 1: 1.67x, and the output is not the target's."""
    slow, fast = spec_trial(E2, 0.21, PAIRED), spec_trial(E2, 0.12, PAIRED, key=T1)
    both = dataclasses.replace(slow, cells=(*slow.cells, dataclasses.replace(fast.cells[0], lossy=why)))
    off = dataclasses.replace(off_trial(PLAIN), cells=(*off_trial(PLAIN).cells, *off_trial(PLAIN, key=T1).cells))
    return told(off, both)


def test_a_lossy_setting_is_never_the_best_that_was_tried() -> None:
    data = lossless_and_lossy()
    assert headline(data).startswith(
        "Leave speculative decoding off: in none of the 2 measured cells do tokens come faster with any lossless "
        "setting (TPOT p50) by more than the noise. The best that was tried is eagle3 N=2 at concurrency 1, "
        "temperature 0. Speed-up (TPOT p50 of off over that with it): 0.95x ["
    )
    assert "1.67x" not in headline(data)
    first, last = why(data)
    assert first.startswith("concurrency 1, temperature 0: ")
    assert last.startswith("concurrency 1, temperature 1: eagle3 N=2 measured 1.67x")
    assert last.endswith(f"n = 8, and is not advised: {ARGMAX}.")


def test_where_only_lossy_settings_were_measured_the_headline_says_so() -> None:
    fast = spec_trial(E2, 0.12, PAIRED, key=T1)
    lossy = dataclasses.replace(fast, cells=(dataclasses.replace(fast.cells[0], lossy=ARGMAX),))
    data = told(off_trial(PLAIN, key=T1), lossy)
    assert headline(data) == "Leave speculative decoding off: no lossless setting was measured."
    (line,) = why(data)
    assert line.endswith(f"and is not advised: {ARGMAX}.")


def test_a_lossy_setting_is_no_rival_and_no_break_even_agrees_with_it() -> None:
    data = lossless_and_lossy()
    table = verdict_table(data)
    cold, hot = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert cold["closest rival"] == "eagle3 N=2"
    assert hot["closest rival"] == "none is lossless"
    assert hot["speed-up (TPOT p50)"] == hot["TPOT p50 with it, ms"] == "not ranked: lossy"
    assert hot["why"] == f"no lossless setting was measured here: {ARGMAX}"
    table = break_even_table(data)
    cold, hot = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert cold["both on one side of 1"] == "yes"
    assert hot["both on one side of 1"] == "not ranked: lossy"


def test_a_setting_that_died_is_called_unsafe_and_not_lossy() -> None:
    said = what_would_change(lossless_and_lossy("unsafe for this workload: http://x is lost, asked greedily"))
    assert (
        "eagle3 N=2 is unsafe at concurrency 1 (temperature 1), whatever it gains: find out why first, with "
        "`tuner verify`."
    ) in said


@pytest.mark.parametrize(
    ("why_lossy", "other"),
    [
        (ARGMAX, "only an engine build that verifies by sampling would change that"),
        (
            "accept_threshold_single below 1 accepts drafted tokens more often",
            "only a build or an option whose output is the target's own would change that",
        ),
    ],
)
def test_no_sample_makes_a_lossy_setting_advice(why_lossy: str, other: str) -> None:
    said = what_would_change(lossless_and_lossy(why_lossy))
    assert f"eagle3 N=2 is lossy at concurrency 1 (temperature 1), whatever it gains: {other}." in said
    assert not [line for line in said if "(temperature 1)" in line and "lossy" not in line]
    assert "more requests or a quieter machine" not in " ".join(said)


def test_what_temperature_does_is_not_told_where_all_that_was_measured_is_lossy() -> None:
    assert turn_lines(lossless_and_lossy()) == (
        "Temperature: no lossless setting was measured at 1, so what it does to the advice is not told.",
    )
    fine = turn_lines(
        told(
            *(
                dataclasses.replace(o.trial, cells=tuple(dataclasses.replace(c, lossy=None) for c in o.trial.cells))
                for o in lossless_and_lossy().evidence.tried
            )
        )
    )
    assert not [line for line in fine if "no lossless setting" in line]


def test_the_skill_says_where_to_save_a_workload_with_relative_paths() -> None:
    """`./smollm2-135m/eagle3` is found from the folder the workload was measured in, and from no other."""
    said = skill(told(off_trial(PLAIN), QUICK)).split("## How to re-measure")[1]
    assert (
        "2. Save the workload below as `smollm2-chat-cpu.yaml` where it lay (relative paths start from its folder), and"
        in said
    )
