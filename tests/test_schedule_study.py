"""N by load in a whole study on mock engines: launched when it may win, followed by the engine, deployed if it wins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from conftest import Bench

from tuner.measure.records import Trial
from tuner.measure.validity import check_cell
from tuner.run.store import StudyStore

#: One request alone: N = 4 emits 2.9 tokens for 1.2 steps. Eight together: a drafted token costs 7 steps, so off is
#: best and N = 2 takes 15 / 2.36 = 6.4 times as long. By load that is sqrt(1.2 / 2.9) = 0.64 of off's time.
SIM = {"base_s": 0.005, "slope": 0.05, "crowding": 20.0, "prefill_s": 0.001,
       "alpha": {"*": {"0": [0.8, 0.7, 0.6, 0.6]}}}  # fmt: skip


def study(bench: Bench, engine: str) -> tuple[dict[str, Any], list[Trial], Path]:
    workload = bench.workload(
        engine=engine,
        drafts=[{"method": "eagle3", "model": "./head", "n": [2, 4]}],
        traffic={"concurrency": [1, 8], "prompts": [{"set": "chat"}], "max_output_tokens": 24},
        measure={"requests": 10, "waves": 2, "warmup_requests": 1},
        engine_options={"env": {"MOCK_ENGINE_SIM": json.dumps(SIM)}},
    )
    done = bench.tuner("recommend", workload, "--json", "--launches", 5, timeout_s=300)
    assert done.returncode == 0, done.stderr
    (folder,) = bench.studies()
    return json.loads(done.stdout), list(StudyStore.read(folder).trials()), folder


def drafted(trial: Trial) -> dict[int, set[int]]:
    """Tokens drafted in single steps, by concurrency."""
    found: dict[int, set[int]] = {}
    for cell in trial.cells:
        assert cell.key.load.concurrency is not None
        steps = [n for r in cell.completed if r.spec for n in r.spec.drafted_by_step or ()]
        found[cell.key.load.concurrency] = set(steps)
    return found


def test_vllm_follows_the_schedule_and_the_report_deploys_it_if_it_wins(bench: Bench) -> None:
    told, trials, folder = study(bench, "mock")
    (by_load,) = [t for t in trials if t.role == "schedule"]
    rows = json.loads(dict(by_load.spec.options)["num_speculative_tokens_per_batch_size"])
    assert rows[0][0] == 1
    assert rows[0][2] in (2, 4)  # which of the two is better alone, a busy machine may hide
    assert rows[-1][2] == 0
    assert trials[-1].role == "baseline-again"
    assert by_load.status == "ok"
    seen = drafted(by_load)
    assert seen[1] == {rows[0][2]}
    # Eight slots are full but for the cell's ends, where fewer requests run and something is drafted again.
    steps = [n for c in by_load.cells if c.key.load.concurrency == 8 for r in c.completed
             for n in (r.spec.drafted_by_step or ()) if r.spec]  # fmt: skip
    tokens = sum(r.n_out for c in by_load.cells if c.key.load.concurrency == 8 for r in c.completed)
    assert len(steps) < tokens / 4
    assert all(not f.blocks for cell in by_load.cells for f in check_cell(cell, by_load.spec))
    (schedule,) = told["schedules"]
    report = (folder / "report.md").read_text(encoding="utf-8")
    assert f"**{'deployed' if schedule['deployed'] else 'not deployed'}**: " in report.split("### N by load")[1]
    assert schedule["deployed"] == (told["best"]["config"]["label"] == by_load.spec.label)
    script = (bench.folder / "outputs" / "launch.sh").read_text(encoding="utf-8")
    assert schedule["deployed"] == (json.dumps(rows) in script)
    assert schedule["over_static"]["low"] > 1 or not schedule["deployed"]
    assert "by load" in (bench.folder / "outputs" / "skill-eagle3-tuner.md").read_text(encoding="utf-8")


def test_sglang_reads_the_table_from_a_file_that_lies_beside_the_script_if_it_wins(bench: Bench) -> None:
    told, trials, folder = study(bench, "mock-sglang")
    (by_load,) = [t for t in trials if t.role == "schedule"]
    assert by_load.status == "ok"
    table = json.loads(dict(by_load.spec.options)["adaptive_table"])
    assert table["1"]["candidate_steps"] in ([2], [4])
    path = by_load.command[by_load.command.index("--speculative-adaptive-config") + 1]
    assert json.loads(Path(path).read_text(encoding="utf-8")) == table
    assert Path(path).parent == folder
    (schedule,) = told["schedules"]
    outputs = bench.folder / "outputs"
    script = (outputs / "launch.sh").read_text(encoding="utf-8")
    deployed = schedule["deployed"]
    assert deployed == ("--speculative-adaptive-config adaptive.json" in script)
    assert deployed == ('cd "$(dirname "$0")"' in script)
    assert deployed == (outputs / "adaptive.json").exists()
    assert not deployed or json.loads((outputs / "adaptive.json").read_text(encoding="utf-8")) == table
