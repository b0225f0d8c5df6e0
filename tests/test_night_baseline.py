"""What a night must have measured to be a baseline, and what becomes of settings that failed: no engine is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from night_fixture import FOLDER, GATES, HOST, LABEL, SMALL
from study_fixture import ARMS, WORKLOAD, study_header, study_trials

from tuner.decide.nights import compare_nights
from tuner.decide.nights_gates import Figure, Unmeasured, Verified, hold
from tuner.decide.nights_sample import CellSample, NightSample
from tuner.errors import UserError
from tuner.measure.records import CellKey, EngineFacts, Load, Trial
from tuner.report.night_context import night_context
from tuner.report.night_page import write_night_report
from tuner.report.night_report import night_report
from tuner.run.history_db import open_database
from tuner.run.history_index import refresh
from tuner.run.history_runs import find_run, last_green
from tuner.run.night_gaps import unmeasured
from tuner.run.nights import baseline_of
from tuner.run.start import RESOLVED, Resolved
from tuner.run.store import StudyStore
from tuner.run.sweep_night import Outcome, finish
from tuner.run.sweep_store import ASKED, STUDY_ENDED, TAGGED, VERDICT, NightHeader, NightStore
from tuner.spec.gate import parse_gate
from tuner.spec.sweep import Retention, Sweep

EAGLE5 = f"{LABEL}, eagle3 N=5 eagle3"
DIED = "failed: the engine exited with code 1 after 3 s, before it was ready"


def held_night(
    reports: Path, day: int, died: tuple[str, ...] = (), status: str = "complete", gates: tuple[str, ...] = GATES,
    cells: int = 0, report: Callable[[Outcome], None] = lambda _: None,
) -> Outcome:  # fmt: skip
    """A night of off, ngram N=4, eagle3 N=5 and N=2, off again; launches named in `died` fail after so many cells."""
    name, created = f"202605{day:02d}-020000-nightly", f"2026-05-{day:02d}T02:00:00+00:00"
    sweep = Sweep.model_validate({"name": "nightly", "studies": [{"workload": "chat.yaml"}], "gates": list(gates)})
    told = {"label": LABEL, "folder": FOLDER, "models": [["/models/smollm2-135m", "t1"]]}
    header = NightHeader(name, created, "nightly", "plan", sweep.model_dump(), "", "n.yaml", (told,), HOST)
    with NightStore.create(reports, header) as night:
        _study(night.study_folder(0), died, cells, status)
        night.note(STUDY_ENDED, folder=FOLDER, status=status)
        return finish(SimpleNamespace(sweep=sweep), night, reports, status, report)  # type: ignore[arg-type]


def _study(folder: Path, died: tuple[str, ...], cells: int, status: str) -> None:
    traffic = {"concurrency": list(SMALL.concurrency), "prompts": [{"set": "chat"}], "max_output_tokens": 96}
    workload = WORKLOAD | {"traffic": traffic, "sampling": {"temperatures": [0]}, "measure": {"requests": 10}}
    with StudyStore.create(folder, study_header(workload)) as store:
        store.note(RESOLVED, **Resolved("/models/smollm2-135m", ARMS, ()).to_dict())
        for trial in study_trials(SMALL):
            if trial.ok:
                _launch(store, trial, died, cells)
        store.study_ended(status)


def _launch(store: StudyStore, trial: Trial, died: tuple[str, ...], cells: int) -> None:
    store.trial_started(trial.number, trial.spec, trial.engine, trial.role, trial.why, trial.command, trial.env)
    dies = trial.spec.label in died
    if trial.ready_s is not None and not (dies and cells == 0):
        store.trial_ready(trial.number, trial.ready_s, trial.facts)
    for cell in trial.cells[:cells] if dies else trial.cells:
        store.cell_done(trial.number, cell)
    store.trial_ended(trial.number, DIED if dies else trial.status, EngineFacts() if dies else trial.facts)


def baseline(reports: Path) -> str | None:
    with open_database(reports) as database:
        refresh(database, reports)
        found = last_green(database, "nightly")
    return found.id if found else None


def states(outcome: Outcome) -> dict[str, str]:
    return {one.gate.text: one.state for one in outcome.data.compared.gates}


def test_a_setting_that_fails_after_an_upgrade_is_red_and_the_night_no_baseline(tmp_path: Path) -> None:
    first = held_night(tmp_path, 1)
    assert (first.state, first.exit_code) == ("green", 0)
    assert first.headline == "Nothing to compare with yet: this night can be the first baseline."
    night = held_night(tmp_path, 2, died=("eagle3 N=5", "eagle3 N=2"))
    assert (night.state, night.exit_code) == ("red", 1)
    assert states(night) == {GATES[0]: "failed", GATES[1]: "failed", GATES[2]: "not measured"}
    assert night.data.compared.gates[0].reasons == tuple(
        f"{LABEL}, eagle3 N={n} eagle3: 2 cells of {first.folder.name} not measured tonight: its launch failed"
        for n in (5, 2)
    )
    assert night.headline == (
        f"2 of 3 gates failed: tpot_p50 regress > 3 %; tau drop > 5 %. Failed: {EAGLE5}; {LABEL}, eagle3 N=2 eagle3."
    )
    # The next one is held against the night that measured it.
    third = held_night(tmp_path, 3)
    assert third.data.compared.before is not None
    assert (third.state, third.data.compared.before.id) == ("green", first.folder.name)


def test_without_any_gate_it_is_red_all_the_same(tmp_path: Path) -> None:
    first = held_night(tmp_path, 1, gates=())
    night = held_night(tmp_path, 2, died=("eagle3 N=5",), gates=())
    assert (night.state, night.exit_code) == ("red", 1)
    assert night.headline == (
        f"1 setting that {first.folder.name} measured could not be measured tonight. Failed: {EAGLE5}."
    )


def test_a_setting_that_dies_in_its_second_cell_lost_that_one(tmp_path: Path) -> None:
    first = held_night(tmp_path, 1)
    night = held_night(tmp_path, 2, died=("eagle3 N=5",), cells=1)
    assert night.data.compared.gates[0].reasons == (
        f"{EAGLE5}: 1 cell of {first.folder.name} not measured tonight: its launch failed",
    )


def test_a_first_night_with_a_failure_is_no_baseline_and_says_so_by_its_exit_code(tmp_path: Path) -> None:
    night = held_night(tmp_path, 1, died=("eagle3 N=5",))
    assert (night.state, night.exit_code, baseline(tmp_path)) == ("", 3, None)
    assert night.headline == f"Nothing to compare with yet, and this night is no baseline. Failed: {EAGLE5}."


def test_a_night_that_its_budget_stopped_is_no_baseline(tmp_path: Path) -> None:
    night = held_night(tmp_path, 1, status="stopped: the minutes of the budget are used up")
    assert (night.state, night.exit_code, baseline(tmp_path)) == ("", 0, None)
    assert night.headline.startswith(
        "Nothing to compare with yet, and this night is no baseline. The night ended early"
    )


def test_a_stopped_night_of_an_older_tuner_that_says_green_is_no_baseline(tmp_path: Path) -> None:
    night = held_night(tmp_path, 1, status="stopped: the minutes of the budget are used up")
    with NightStore.open(night.folder) as store:
        store.note(VERDICT, state="green", baseline=None, headline="", gates=[])
    assert baseline(tmp_path) is None


def test_where_nothing_was_compared_the_headline_claims_no_equality(tmp_path: Path) -> None:
    first = held_night(tmp_path, 1)
    every = ("off", "ngram N=4", "eagle3 N=5", "eagle3 N=2")
    night = held_night(tmp_path, 2, died=every, status="failed: off could not be measured: it died", gates=GATES[2:])
    assert night.exit_code == 1
    assert "No evidence" not in night.headline
    with open_database(tmp_path) as database:
        assert find_run(database, night.folder.name).state == "red"
    assert "No evidence of any change against" in held_night(tmp_path, 3).headline
    assert first.state == "green"


def test_a_setting_of_an_exhaustive_study_that_was_never_launched_is_a_gap(tmp_path: Path) -> None:
    night = held_night(tmp_path, 1)
    assert unmeasured(night.folder) == ()
    header = night.folder / "sweep.json"
    header.write_text(header.read_text().replace(f'"label": "{LABEL}"', f'"exhaustive": true, "label": "{LABEL}"'))
    launched = {"ngram N=4", "eagle3 N=5 eagle3"}  # eagle3 N=2 in another role than an exhaustive study's
    settings = [one.setting for one in unmeasured(night.folder)]
    assert settings
    assert not launched & set(settings)
    assert not any(one.failed for one in unmeasured(night.folder))


def test_a_study_that_cannot_be_read_is_a_gap(tmp_path: Path) -> None:
    night = held_night(tmp_path, 1)
    (night.folder / FOLDER / "study.json").write_text("{")
    assert [one.text for one in unmeasured(night.folder)] == [f"{LABEL}, every setting"]


# Gates by hand


def cell(setting: str, tpot_s: float = 0.01, load: int = 4, **fields: object) -> CellSample:
    made = CellSample(
        "s", setting, CellKey(Load(load), 0.0), tuple((i, f"p{i}") for i in range(20)), np.full(20, tpot_s),
        np.full(20, 0.1), np.full(20, 2.0), np.full(20, 100.0), np.full(20, 30.0), np.full(20, 50.0), np.ones(20),
    )  # fmt: skip
    return replace(made, **fields)  # type: ignore[arg-type]


def sample(run: str, *cells: CellSample) -> NightSample:
    return NightSample(run, (cell("off"), *cells), (cell("off", again=True),))


@pytest.mark.parametrize(
    ("tonight", "gaps", "state", "reason"),
    [
        ([cell("e")], [], "passed", None),
        ([], [], "not measured", "s, e: 1 cell of a not measured tonight"),
        ([], [Unmeasured("s", "e", (CellKey(Load(4), 0.0),), failed=False)], "not measured",
         "s, e: 1 cell of a not measured tonight"),
        ([], [Unmeasured("s", "e", (CellKey(Load(4), 0.0),), failed=True)], "failed",
         "s, e: 1 cell of a not measured tonight: its launch failed"),
        # Another cell of it failed, which the baseline does not have either.
        ([cell("e")], [Unmeasured("s", "e", (CellKey(Load(64), 0.0),), failed=True)], "passed", None),
        ([cell("e", blocked="impossible tau")], [], "not measured",
         "s, e: 1 cell of a not measured tonight: not compared: in tonight impossible tau"),
        ([cell("e", tpot_s=float("nan"))], [], "not measured",
         "s, e: 1 cell of a not measured tonight: tpot_p50 not measured on the same prompts in both nights"),
    ],
)  # fmt: skip
def test_a_gate_passes_only_what_it_held(
    tonight: list[CellSample], gaps: list[Unmeasured], state: str, reason: str | None
) -> None:
    compared = compare_nights(sample("a", cell("e")), sample("b", *tonight))
    (held,) = hold([parse_gate("tpot_p50 regress > 3 %")], compared, (), (), gaps)
    assert (held.state, held.reasons) == (state, (reason,) if reason else ())


def test_what_the_baseline_did_not_have_either_holds_no_gate_up() -> None:
    before = sample("a", cell("lossy", blocked="lossy: it is"), cell("e", good=np.full(20, np.nan)))
    compared = compare_nights(before, sample("b", cell("e")), ("tpot_p50", "goodput", "speedup", "tau"))
    held = hold([parse_gate("tpot_p50 regress > 3 %"), parse_gate("goodput drop > 5 %")], compared, (), ())
    assert [one.state for one in held] == ["passed", "passed"]


def test_limits_and_verification_pass_over_no_setting_that_failed() -> None:
    gates = [parse_gate(text) for text in ("tpot_p50 > 35 ms", "tau < 1.2", "verify failed")]
    figures = (Figure("s, off", "tpot_p50", 0.02), Figure("s, n", "tau", 2.0))
    key = CellKey(Load(4), 0.0)

    def told(*gaps: Unmeasured) -> list[str]:
        return [one.state for one in hold(gates, None, figures, (Verified("s, n", True),), gaps)]

    assert told() == ["passed"] * 3
    assert told(Unmeasured("s", "e", (key,), failed=True)) == ["not measured"] * 3
    assert told(Unmeasured("s", "off", (key,), failed=True, again=True)) == ["passed"] * 3
    assert told(Unmeasured("s", "off", (key,), failed=True)) == ["not measured", "passed", "not measured"]
    # Lighter cells alone were measured by the retry, after which its output was asked for.
    assert told(Unmeasured("s", "e", (key,), failed=True, asked=True)) == ["not measured", "not measured", "passed"]
    # All cells are there, and the launch died before it was asked.
    assert told(Unmeasured("s", "e", (), failed=True)) == ["passed", "passed", "not measured"]


def test_a_night_has_not_ended_before_its_report_is_written(tmp_path: Path) -> None:
    def full_disk(_: Outcome) -> None:
        raise UserError("cannot write report.html (No space left on device)")

    with pytest.raises(UserError, match="No space left"):
        held_night(tmp_path, 1, report=full_disk)
    (folder,) = (path.parent for path in tmp_path.glob("*/sweep.json"))
    assert NightStore.read(folder).status() == "interrupted"
    assert baseline(tmp_path) is None
    sweep: Any = SimpleNamespace(name="nightly", baseline="last-green", parsed_gates=(), retention=Retention())
    with NightStore.open(folder) as night:  # as --resume does, which finds every study done with
        finish(SimpleNamespace(sweep=sweep), night, tmp_path, "complete", write_night_report)  # type: ignore[arg-type]
    assert NightStore.read(folder).status() == "complete"
    assert baseline(tmp_path) == folder.name
    assert "| status | complete |" in (folder / "report.md").read_text(encoding="utf-8")
    assert (folder / "report.html").exists()


def test_how_to_reproduce_has_what_the_command_was_given(tmp_path: Path) -> None:
    night = held_night(tmp_path, 1)
    assert night_context(night_report(night.folder))["command"] == "tuner sweep n.yaml"
    with NightStore.open(night.folder) as store:
        store.note(ASKED, options=["--minutes", "30"])
        store.note(ASKED, options=["--minutes", "20", "--executor", "ray", "--reports", "/data/my reports"])
    assert night_context(night_report(night.folder))["command"] == (
        "tuner sweep n.yaml --minutes 20 --executor ray --reports '/data/my reports'"
    )


def test_a_tag_names_a_night_of_this_sweep_alone(tmp_path: Path) -> None:
    mine, others, now = (tmp_path / f"2026050{day}-020000-{name}" for day, name in ((1, "n"), (2, "other"), (3, "n")))
    for folder in (mine, others, now):
        name = folder.name.rpartition("-")[2]
        created = f"2026-05-0{folder.name[7]}T02:00:00+00:00"
        header = NightHeader(folder.name, created, name, "plan", {}, "", "n.yaml", (), HOST)
        NightStore.create(tmp_path, header).close()
    for folder in (mine, others):
        NightStore.tag(folder, TAGGED, "released")
    with open_database(tmp_path) as database:
        refresh(database, tmp_path)
        found = baseline_of(database, "tag:released", find_run(database, now.name))
    assert found is not None
    assert found.id == mine.name
