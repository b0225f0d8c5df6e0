"""The main job end to end: the real command, real processes and HTTP, a mock engine whose truth is known."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Bench
from study_fixture import study_trials

from tuner.measure.acceptance import cell_counts
from tuner.measure.validity import check_cell
from tuner.run.store import StudyStore
from tuner.run.study import _Clock


def test_a_workload_becomes_a_report_and_files_to_deploy(bench: Bench) -> None:
    done = bench.tuner("recommend", bench.workload(), "--json")
    assert done.returncode == 0, done.stderr
    (study,) = bench.studies()
    trials = StudyStore.read(study).trials()
    assert [t.role for t in trials][:3] == ["baseline", "explore", "explore"]
    assert trials[-1].role == "baseline-again"
    assert [t.spec.label for t in trials[:3]] == ["off", "ngram N=3", "eagle3 N=4"]
    assert all(t.status == "ok" for t in trials)
    told = json.loads(done.stdout)
    # The mock's eagle3 emits over two tokens for 5 to 20 % more time a step; a busy machine may hide that in one cell.
    assert told["verdict"] in ("on", "mixed")
    assert told["best"]["config"]["method"] == "eagle3"
    assert (study / "report.md").read_text(encoding="utf-8").startswith("#")
    for name in ("skill-eagle3-tuner.md", "recommendation.json", "launch.sh"):
        assert (bench.folder / "outputs" / name).stat().st_size > 0


def test_figures_equal_a_recount_of_stored_records_and_the_engines_counters(bench: Bench) -> None:
    assert bench.tuner("recommend", bench.workload(), "--launches", 4).returncode == 0
    (study,) = bench.studies()
    for trial in StudyStore.read(study).trials():
        for cell in trial.cells:
            # The cross-check compares every step of every request with the engine's counters: any difference blocks.
            assert [f for f in check_cell(cell, trial.spec) if f.rule.startswith("counters")] == []
            if trial.spec.method == "eagle3":
                counts = cell_counts(cell.completed, trial.spec.n)
                steps = [s for r in cell.completed if r.spec for s in r.spec.accepted_by_step or ()]
                assert counts is not None
                assert counts.drafting_steps == len(steps)
                assert counts.a == tuple(sum(s >= k for s in steps) / len(steps) for k in range(1, 5))


def test_api_key_is_in_no_file_of_the_study_and_on_no_command_line(bench: Bench) -> None:
    process = start(bench, "recommend", bench.workload())
    try:
        key = wait_for_key(bench)
        commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if readable(path)]
        assert not any(key.encode() in command for command in commands)
    finally:
        process.wait(timeout=120)
    assert process.returncode == 0
    for path in [p for p in bench.folder.rglob("*") if p.is_file()]:
        assert key.encode() not in path.read_bytes(), path


def test_sigkill_of_the_tuner_leaves_no_engine_and_resume_repeats_no_finished_cell(bench: Bench) -> None:
    workload = bench.workload()
    process = start(bench, "recommend", workload)
    wait_until(lambda: finished_cells(bench) >= 3)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: not engines(bench), 10)
    (study,) = bench.studies()
    before = {path: path.stat().st_mtime_ns for path in study.rglob("requests-*.jsonl")}
    resumed = bench.tuner("recommend", workload, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert bench.studies() == [study]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    cells = [(t.spec, t.role, c.key) for t in StudyStore.read(study).trials() for c in t.cells]
    assert len(cells) == len(set(cells))
    assert {key for spec, role, key in cells if role == "baseline"} == {key for _, _, key in cells}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_polite_signal_unwinds_and_exits_130(bench: Bench, number: signal.Signals) -> None:
    process = start(bench, "recommend", bench.workload())
    wait_until(lambda: finished_cells(bench) >= 1)
    process.send_signal(number)
    assert process.wait(timeout=30) == 130
    assert not engines(bench)
    assert "Traceback" not in said(bench)
    assert "--resume" in said(bench)


def test_resume_with_another_budget_measures_off_where_it_failed_before(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = bench.workload(
        drafts=[{"method": "ngram", "n": 3}],
        traffic={"concurrency": [2], "prompts": [{"set": "chat"}], "max_output_tokens": 12},
    )
    monkeypatch.setenv("MOCK_ENGINE_FAULTS", "die_at_start")
    assert bench.tuner("recommend", path, "--minutes", 3).returncode == 3
    monkeypatch.delenv("MOCK_ENGINE_FAULTS")
    done = bench.tuner("recommend", path, "--resume")
    assert done.returncode == 0, done.stderr
    (study,) = bench.studies()
    told = [(trial.role, trial.status.partition(":")[0]) for trial in StudyStore.read(study).trials()]
    assert told == [("baseline", "failed"), ("baseline", "ok"), ("explore", "ok"), ("baseline-again", "ok")]


def test_a_name_that_stands_for_something_else_than_before_is_not_resumed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = bench.folder / "own.jsonl"
    own.write_text("".join(f'{{"turns": ["Question {i}?"]}}\n' for i in range(12)))
    path = bench.workload(
        drafts=[{"method": "ngram", "n": 3}],
        traffic={"concurrency": [2], "prompts": [{"set": "./own.jsonl"}], "max_output_tokens": 12},
    )
    monkeypatch.setenv("MOCK_ENGINE_FAULTS", "die_at_start")
    assert bench.tuner("recommend", path).returncode == 3
    monkeypatch.delenv("MOCK_ENGINE_FAULTS")
    (study,) = bench.studies()
    entry = bench.home / "engines" / "mock.json"
    before = entry.read_text()
    entry.write_text(before.replace("0.32.0", "0.31.0"))
    refused = bench.tuner("recommend", path, "--resume")
    assert refused.returncode == 2
    assert f"engine mock was 0.32.0 when {study.name} was begun and is 0.31.0 now" in refused.stderr
    entry.write_text(before)
    text = own.read_text()
    own.write_text(text.replace("Question 3?", "Another?"))
    refused = bench.tuner("recommend", path, "--resume")
    assert refused.returncode == 2
    assert "the prompts' texts was " in refused.stderr
    own.write_text(text)
    assert bench.tuner("recommend", path, "--resume").returncode == 0


def test_a_study_that_ran_out_of_minutes_goes_on_with_more(bench: Bench) -> None:
    path = bench.workload(traffic={"concurrency": [2], "prompts": [{"set": "chat"}], "max_output_tokens": 12})

    def run(*argv: object) -> tuple[str, list[str]]:
        done = bench.tuner("recommend", path, *argv)
        assert done.returncode == 0, done.stderr
        (study,) = bench.studies()
        store = StudyStore.read(study)
        return store.status().partition(":")[0], [trial.spec.label for trial in store.trials()]

    # Off and one way to draft are measured whatever they take; off again, and the time is up.
    assert run("--minutes", 0.001) == ("stopped", ["off", "ngram N=3", "off"])
    # 0.6 s: less than the launches of the first run took, which the second one goes by from its first launch on.
    assert run("--minutes", 0.01, "--resume") == ("stopped", ["off", "ngram N=3", "off"])
    status, labels = run("--minutes", 5, "--resume")
    assert status == "complete"
    assert labels[:4] == ["off", "ngram N=3", "off", "eagle3 N=4"]
    assert labels[-1] == "off"
    assert labels.count("off") == 3


def test_a_resumed_run_goes_by_the_pace_of_the_stored_launches() -> None:
    """A launch of six cells, interrupted behind the fourth and gone on with: one start for all of them."""
    whole = study_trials()[0]
    assert len(whole.cells) == 6
    parts = [
        replace(whole, cells=whole.cells[:4], status="interrupted", ready_s=30.0),
        replace(whole, number=2, cells=whole.cells[4:], ready_s=30.0),
    ]
    cells_s = sum(max(request.sent_s + request.ended_s for request in cell.requests) for cell in whole.cells)
    clock = _Clock(0.0, 0.0)
    clock.resumed(parts[:1])
    assert clock.longest_per_cell_s == 0.0  # what did not end well tells no pace
    clock.resumed(parts)
    assert clock.longest_per_cell_s == pytest.approx((30.0 + cells_s) / 6)
    assert not _Clock(time.monotonic(), 60.0, clock.longest_per_cell_s).affords(6 * 60)


def test_resume_without_an_unfinished_study_is_one_sentence(bench: Bench) -> None:
    done = bench.tuner("recommend", bench.workload(), "--resume")
    assert done.returncode == 2
    assert "no unfinished study of workload 'mock'" in done.stderr


def test_engine_that_crashes_at_start_gives_its_own_root_cause(bench: Bench) -> None:
    done = bench.tuner("recommend", bench.workload(engine_options=bench.faults("die_at_start")))
    assert done.returncode == 3
    assert "the engine's log says:" in done.stderr
    assert "Traceback" not in done.stderr


def test_s13_an_engine_that_dies_under_load_keeps_finished_cells_and_is_a_row(bench: Bench) -> None:
    # 9 requests at concurrency 1 and 12 at 4, fillers beside: the engine dies in the second cell of every launch.
    done = bench.tuner("recommend", bench.workload(engine_options=bench.faults("die_at_request=15")))
    assert done.returncode == 3  # off itself died
    (study,) = bench.studies()
    (trial,) = StudyStore.read(study).trials()
    assert trial.status.startswith("failed:")
    assert [cell.key.label for cell in trial.cells] == ["c1-t0"]
    assert (study / "trials" / "001-off" / "requests-c4-t0.jsonl").exists()  # what the lost cell had, for whoever asks


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"traffic": {"concurency": [1]}}, "did you mean"),
        ({"drafts": [{"method": "eagle4", "n": 2}]}, "eagle4"),
        ({"drafts": [{"method": "eagle3", "model": "./absent", "n": 2}]}, "absent"),
        ({"engine": "nowhere"}, "no engine is registered as 'nowhere'"),
        ({"model": "./nothing"}, "nothing"),
        ({"engine_options": {"args": ["--port", "1"]}}, "--port, which tuner sets itself"),
    ],
)
def test_bad_input_is_one_sentence_before_any_launch(bench: Bench, changes: dict[str, object], sentence: str) -> None:
    done = bench.tuner("recommend", bench.workload(**changes))
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert bench.studies() == []


def test_a_missing_workload_is_one_sentence(bench: Bench) -> None:
    done = bench.tuner("recommend", "absent.yaml")
    assert done.returncode == 2
    assert "absent.yaml" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_busy_port_is_named_before_any_launch(bench: Bench) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = bench.tuner("recommend", bench.workload(engine_options={"port": port}))
    assert done.returncode == 2
    assert f"port {port} is in use" in done.stderr
    assert bench.studies() == []


def start(bench: Bench, *argv: object) -> subprocess.Popen[bytes]:
    """The command in the background; what it says on stderr goes to `said(bench)`."""
    command = [sys.executable, "-m", "tuner", *map(str, argv)]
    with (bench.folder / "stderr.txt").open("wb") as stderr:
        return subprocess.Popen(command, cwd=bench.folder, env=bench.env(), stdout=subprocess.DEVNULL, stderr=stderr)


def said(bench: Bench) -> str:
    return (bench.folder / "stderr.txt").read_text(encoding="utf-8")


def finished_cells(bench: Bench) -> int:
    return sum(text.read_text().count('"cell_done"') for text in bench.folder.glob("reports/*/journal.jsonl"))


def engines(bench: Bench) -> list[int]:
    """Processes whose environment names this test's data folder and that run the mock engine."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command, environment = (path / "cmdline").read_bytes(), (path / "environ").read_bytes()
        except OSError:
            continue
        if b"mock_engine.py" in command and str(bench.home).encode() in environment:
            found.append(int(path.name))
    return found


def readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True


def wait_for_key(bench: Bench) -> str:
    """The API key of the engine, from the environment of the process that has it."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for pid in engines(bench):
            path = Path(f"/proc/{pid}/environ")
            for item in path.read_bytes().split(b"\0") if readable(path) else ():
                if item.startswith(b"VLLM_API_KEY="):
                    return item.partition(b"=")[2].decode()
        time.sleep(0.02)
    raise AssertionError("no engine was started with a key")


def wait_until(holds: object, seconds: float = 60) -> None:
    assert callable(holds)
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
