"""The losslessness gate inside a study: a line with n and power beside the speed-up, and no advice for what fails."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from cells import off_trial, spec_trial
from conftest import SIM, Bench
from report_tables import table

from tuner.errors import NotMeasured
from tuner.measure.records import CellKey, Load
from tuner.run import gate
from tuner.run.gate import OFF_PROBED, off_answers
from tuner.run.store import StudyStore
from tuner.spec.speculation import SpecConfig

#: Steps long enough that a busy machine does not hide the gain, short enough for some hundred samples in half a second.
FAST = {**SIM, "prefill_s": 0.0, "crowding": 0.0}


def workload(bench: Bench, *faults: str, temperatures: tuple[float, ...] = (0, 1)) -> Path:
    return bench.workload(
        drafts=[{"method": "eagle3", "model": "./head", "n": 3}],
        traffic={"concurrency": [8], "prompts": [{"set": "chat"}], "max_output_tokens": 24},
        sampling={"temperatures": list(temperatures)},
        measure={"requests": 16, "waves": 2, "warmup_requests": 1},
        engine_options={"env": {"MOCK_ENGINE_SIM": json.dumps(FAST), "MOCK_ENGINE_FAULTS": ",".join(faults)}},
    )


def study(bench: Bench, path: Path) -> tuple[dict[str, Any], StudyStore]:
    done = bench.tuner("recommend", path, "--json", "--launches", 3, timeout_s=500)
    assert done.returncode == 0, done.stderr
    (folder,) = bench.studies()
    return json.loads(done.stdout), StudyStore.read(folder)


def of(store: StudyStore, event: str) -> list[dict[str, Any]]:
    return [e for e in store.events() if e["event"] == event]


def test_a_sound_setting_carries_its_line_into_report_and_skill(bench: Bench) -> None:
    told, store = study(bench, workload(bench))
    line = told["losslessness"]
    assert line.startswith("eagle3 N=3 lossless, as far as tested")
    assert "(temperature 0: 0 of 8 answers (192 tokens) part from" in line
    assert "; temperature 1: " in line
    # How many samples there is time for is the machine's to say.
    few = "temperature 1 not tested (too few samples to tell: n = " in line
    assert few != ("in total variation would have been caught with probability" in line)
    assert f"Output still the target's: {line}." in (bench.folder / "outputs/skill-eagle3-tuner.md").read_text()
    report = (store.folder / "report.md").read_text()
    assert "Output still the target's: no difference found in eagle3 N=3" in report
    rows = table(report, "setting", "temperature", "compared", "result")
    assert [(row["setting"], row["temperature"]) for row in rows] == [("eagle3 N=3", "0"), ("eagle3 N=3", "1")]
    assert " samples against " in rows[1]["compared"]
    assert rows[1]["power at a shift of 0.05"]
    (verified,) = of(store, "verified")
    assert verified["verified"]["drafted"] > 0
    assert len(of(store, "off_probed")) == 1  # off again is not asked again
    assert of(store, "verify_skipped") == []


@pytest.mark.parametrize(("fault", "sound"), [("spec_greedy", {0.0}), ("stale_kv_every=20", set())])
def test_what_fails_is_never_advised(bench: Bench, fault: str, sound: set[float]) -> None:
    """An ignored temperature is wrong above 0 alone; a stale cache is wrong everywhere. Both are as fast as ever."""
    told, store = study(bench, workload(bench, fault))
    assert {cell["cell"]["temperature"] for cell in told["cells"] if cell["on"]} <= sound
    assert told["best"]["config"]["method"] == "off"
    assert "eagle3 N=3 NOT LOSSLESS: " in told["losslessness"]
    (trial,) = [t for t in store.trials() if not t.spec.is_off]
    assert {cell.key.temperature for cell in trial.cells if cell.lossy} == {0.0, 1.0} - sound
    assert any("the output is not the target's" in caution for caution in told["cautions"])


def test_only_temperatures_that_are_served_are_tested(bench: Bench) -> None:
    told, store = study(bench, workload(bench, temperatures=(0,)))
    assert "temperature 1" not in told["losslessness"]
    assert of(store, "verified")[0]["verified"]["sampled"] == []


def test_what_the_configuration_gives_away_of_every_draft_takes_no_samples_of_off(bench: Bench) -> None:
    path = workload(bench)
    data = yaml.safe_load(path.read_text())
    data["drafts"][0]["options"] = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.0}
    path.write_text(yaml.safe_dump(data))
    told, store = study(bench, path)
    (probed,) = of(store, "off_probed")
    answers = json.loads((store.trial_folder(probed["number"]) / "off-answers.json").read_text())
    assert answers["greedy"] != []
    assert answers["samples"] == []
    assert "known at temperature 1: rejection_sample_method 'synthetic' does not sample" in told["losslessness"]


def test_answers_of_off_that_cannot_be_read_are_no_failure_of_the_launch(tmp_path: Path) -> None:
    """A worker on another machine may not see where the driver keeps them."""
    events = [{"event": OFF_PROBED, "engine": "mock", "number": 1}]
    store = SimpleNamespace(events=lambda: events, trial_folder=lambda number: tmp_path / f"{number:03d}-off")
    with pytest.raises(NotMeasured, match=r"001-off/off-answers.json cannot be read \(No such file or directory\)"):
        off_answers(store, "mock")  # type: ignore[arg-type]
    assert off_answers(store, "another") is None  # type: ignore[arg-type]


def test_a_setting_that_cannot_win_is_not_asked(bench: Bench) -> None:
    """A drafted token costs three steps: 10 steps' time for 2 or 3 tokens."""
    path = workload(bench, temperatures=(0,))
    path.write_text(path.read_text().replace('"slope": 0.05', '"slope": 3.0'))
    told, store = study(bench, path)
    assert told["verdict"] == "off"
    assert told["losslessness"] is None
    (skipped,) = of(store, "verify_skipped")
    assert skipped["why"] == "eagle3 N=3 is slower than off in every cell: it is not advised whatever it writes"


@pytest.mark.parametrize(
    ("load", "sentence"),
    [
        (1, "ngram N=2 is slower than off in every cell: it is not advised whatever it writes"),
        (2, "ngram N=2 and off were measured in no cell in common: nothing can be advised of it"),
    ],
)
def test_a_setting_is_called_slower_only_where_off_was_measured_too(
    load: int, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = SpecConfig("ngram", 2)
    # Off: 10 ms a token. The setting: 40 ms a verify step of two tokens, so 20 ms a token.
    trials = (
        off_trial([0.010 + 0.0001 * i for i in range(12)]),
        spec_trial(spec, 0.040, [[1, 1, 1]] * 12, key=CellKey(Load(load), 0.0)),
    )
    question = SimpleNamespace(
        workload=SimpleNamespace(objective="tpot_p50", slo=SimpleNamespace(limits=dict), seed=0)
    )  # fmt: skip
    store = SimpleNamespace(trials=lambda: trials)
    monkeypatch.setattr(gate, "off_answers", lambda *_: object())
    asking = gate._verify(
        question, SimpleNamespace(name="e"), spec, 2, None, store, None, None, 1.0, {}  # type: ignore[arg-type]
    )  # fmt: skip
    with pytest.raises(NotMeasured) as told:
        asyncio.run(asking)
    assert str(told.value) == sentence


def test_a_study_whose_off_was_never_asked_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between off's last cell and its questions; the launch that makes up for it comes last."""
    monkeypatch.setattr(gate, "off_answers", lambda *_: None)
    spec, environment = SpecConfig("ngram", 2), SimpleNamespace(name="e")
    asking = gate._verify(None, environment, spec, 2, None, None, None, None, 1.0, {})  # type: ignore[arg-type]
    with pytest.raises(NotMeasured, match="off was not asked, or did not answer"):
        asyncio.run(asking)


@pytest.mark.parametrize("event", ["off_probed", "verified"])
def test_a_study_cut_between_the_last_cell_and_the_questions_asks_them_when_resumed(bench: Bench, event: str) -> None:
    path = workload(bench, temperatures=(0,))
    _, store = study(bench, path)
    journal = store.folder / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    cut = next(i for i, line in enumerate(lines) if json.loads(line)["event"] == event)
    journal.write_text("".join(lines[:cut]))
    before = [cell for trial in store.trials() for cell in trial.cells]
    done = bench.tuner("recommend", path, "--resume", "--json", "--launches", 3, timeout_s=500)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["losslessness"].startswith("eagle3 N=3 lossless, as far as tested")
    (made_up,) = [trial for trial in store.trials() if not trial.cells]  # nothing is measured again for it
    assert (made_up.status, made_up.spec.is_off) == ("ok", event == "off_probed")
    assert [cell for trial in store.trials() for cell in trial.cells][: len(before)] == before
    assert (len(of(store, "off_probed")), len(of(store, "verified"))) == (1, 1)
