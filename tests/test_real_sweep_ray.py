"""A sweep of a real vLLM whose trials are Ray tasks. Opt-in (`-m ray`): it needs the extra [ray] and the CPU engine."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import real_vllm
import yaml
from ray_bench import RAY, claims
from sweep_bench import index_equals_a_rebuild, left_running, wait_until

from tuner.run.journal import Journal
from tuner.run.store import StudyStore

pytestmark = [pytest.mark.ray, pytest.mark.real_vllm, pytest.mark.timeout(1800)]


def write_sweep(folder: Path) -> Path:
    """Off, eagle3 N=3 and off again, two small cells each."""
    workload = {
        "name": "ray-cpu", "model": str(real_vllm.target()), "engine": real_vllm.environment().name,
        "drafts": [{"method": "eagle3", "model": str(real_vllm.HEAD), "n": [3]}],
        "traffic": {"concurrency": [1, 2], "prompts": [{"set": "chat"}], "max_output_tokens": 12},
        "measure": {"requests": 4, "waves": 1, "warmup_requests": 1},
        "engine_options": {"args": list(real_vllm.ARGS), "max_model_len": 2048, "max_running_requests": 2},
    }  # fmt: skip
    sweep = {
        "name": "ray-night", "mode": "exhaustive", "studies": [{"workload": "workload.yaml"}],
        "budget": {"minutes": 20}, "gates": ["verify failed"],
    }  # fmt: skip
    (folder / "workload.yaml").write_text(yaml.safe_dump(workload), encoding="utf-8")
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep), encoding="utf-8")
    return folder / "sweep.yaml"


def test_a_real_engine_is_measured_in_ray_tasks_one_at_a_time(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    marker = f"--of-this-test={tmp_path}"
    done = subprocess.run(
        [sys.executable, "-m", "tuner", "sweep", str(write_sweep(tmp_path)), "--executor", "ray", "--json"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env=os.environ | RAY | {"OF_THIS_TEST": marker, "TUNER_LOCKS": str(tmp_path / "locks")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "complete"
    (study,) = (tmp_path / "reports").glob("*/*/study.json")
    store = StudyStore.read(study.parent)
    trials = store.trials()
    assert [(trial.spec.label, trial.status) for trial in trials] == [
        ("off", "ok"),
        ("eagle3 N=3", "ok"),
        ("off", "ok"),
    ]
    assert [[cell.key.label for cell in trial.cells] for trial in trials] == [["c1-t0", "c2-t0"]] * 3
    assert all(
        r.spec is not None and r.spec.drafting_steps > 0 for cell in trials[1].cells for r in cell.requests if r.ok
    )
    # A CPU engine claims the whole node: no two of them share its cores.
    claimed = sorted(claims(Journal(study.parent / "journal.jsonl").events()))
    assert [gpus for _, _, gpus in claimed] == [()] * 3
    assert all(end <= begin for (_, end, _), (begin, _, _) in itertools.pairwise(claimed))
    assert index_equals_a_rebuild(tmp_path / "reports")
    wait_until(lambda: not left_running(marker), 60)
