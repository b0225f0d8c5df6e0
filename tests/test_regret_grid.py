"""The full grid on mock engines: measured in turns, gone on after a kill, and replayed without an engine."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import Bench

from tuner.run.store import StudyStore

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "regret_grid.py"
NS = [1, 2]
QUICK = {"requests": 4, "waves": 1, "warmup_requests": 1}
DRAFTS = [{"method": "eagle3", "model": "./head", "n": NS}, {"method": "ngram", "n": NS}]


def _grid(bench: Bench, *argv: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, argv), "--study", "grid"]
    return subprocess.run(command, cwd=bench.folder, env=bench.env(), capture_output=True, text=True, timeout=120)


def _kill_in_third_launch(bench: Bench, workload: Path) -> None:
    command = [sys.executable, str(SCRIPT), "measure", str(workload), "--study", "grid"]
    with subprocess.Popen(command, cwd=bench.folder, env=bench.env(), stdout=subprocess.PIPE, text=True) as running:
        journal, deadline_s = bench.folder / "grid" / "journal.jsonl", time.monotonic() + 60
        while time.monotonic() < deadline_s:
            events = journal.read_text().splitlines() if journal.exists() else []
            cells = [line for line in events if json.loads(line)["event"] == "cell_done"]
            if len(cells) >= 5:  # off and eagle3 N=1 whole, eagle3 N=2 with its first of two
                break
            time.sleep(0.02)
        running.send_signal(signal.SIGKILL)


def test_a_grid_goes_on_where_it_was_killed_and_is_replayed(bench: Bench) -> None:
    traffic = {"concurrency": [1, 2], "max_output_tokens": 16}
    workload = bench.workload(drafts=DRAFTS, traffic=traffic, measure=QUICK)
    _kill_in_third_launch(bench, workload)
    cut = StudyStore.read(bench.folder / "grid").trials()
    assert len(cut) == 3
    done = _grid(bench, "measure", workload)
    assert done.returncode == 0, done.stderr
    assert "complete" in done.stdout
    trials = StudyStore.read(bench.folder / "grid").trials()
    seen = [(t.spec, t.role, c.key) for t in trials for c in t.cells]
    # off twice and four settings, two cells each; nothing twice, whichever cell the kill met.
    assert len(seen) == len(set(seen)) == 6 * 2
    assert len(trials) - 6 == (1 if len(cut[2].cells) < 2 else 0)
    again = _grid(bench, "measure", workload)
    assert again.returncode == 0, again.stderr
    assert len(StudyStore.read(bench.folder / "grid").trials()) == len(trials)
    told = json.loads(_grid(bench, "replay", "--json").stdout)
    assert [one["load"] for one in told["loads"]] == ["concurrency 1", "concurrency 2"]
    assert told["launches"] == 1  # a third of five
    assert all(one["regret"] >= 0 for one in told["loads"])


def test_the_stored_grid_of_a_real_engine_and_the_page_about_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """15 settings at 3 loads in reports/example-grid-cpu."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import regret_grid

    told = regret_grid.replay_study(regret_grid.STUDY).to_dict()
    assert told["launches"] * 3 <= 15
    assert [one["load"] for one in told["loads"]] == ["concurrency 1", "concurrency 4", "concurrency 8"]
    for one in told["loads"]:
        assert one["regret"] <= 0.02 or one["tie"]
        assert one["chosen"] == one["of_all"]  # launching everything would have changed nothing
    assert told["unlaunched_predictions"] >= 15
    assert told["predicted_median_error"] <= 0.05
    page = (SCRIPT.parents[1] / "docs" / "planning.md").read_text(encoding="utf-8")
    assert regret_grid._text(told) in page


def test_launches_end_with_the_minutes_and_another_workload_is_refused(bench: Bench) -> None:
    workload = bench.workload(drafts=DRAFTS[:1], traffic={"concurrency": [1], "max_output_tokens": 8})
    stopped = _grid(bench, "measure", workload, "--minutes", "0.001")
    assert "the minutes are used up" in stopped.stdout
    first = StudyStore.read(bench.folder / "grid").trials()
    assert [t.spec.label for t in first] == ["off"]
    other = bench.workload(drafts=DRAFTS[:1], traffic={"concurrency": [2], "max_output_tokens": 8})
    refused = _grid(bench, "measure", other)
    assert refused.returncode != 0
    assert "another workload's grid" in refused.stderr
