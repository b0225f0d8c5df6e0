"""The main job on a real SGLang: off, a chain, a tree and n-grams, from a workload to a report and a skill file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import real_sglang
import yaml
from report_tables import find, number, table

pytestmark = [pytest.mark.real_sglang, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tuner recommend` on a small workload, through the command, with the registered SGLang."""
    folder = tmp_path_factory.mktemp("sglang")
    head = {"method": "eagle3", "model": real_sglang.head(), "n": [2]}
    workload = {
        "name": "real-sglang",
        "model": real_sglang.target(),
        "engine": real_sglang.environment().name,
        "drafts": [
            {"method": "ngram", "n": 3},
            head | {"tree": {"depth": [2], "topk": [2, 1], "nodes": [4, 9]}},
        ],
        "traffic": {"concurrency": [4], "prompts": [{"set": "chat"}], "max_output_tokens": 16},
        "sampling": {"temperatures": [0, 1]},
        "budget": {"launches": 6, "minutes": 30},
        "measure": {"requests": 6, "waves": 2, "warmup_requests": 1},
        "engine_options": {"args": ["--dtype", "float32", "--max-total-tokens", "8192"], "max_model_len": 2048},
    }
    path = folder / "workload.yaml"
    path.write_text(yaml.safe_dump(workload), encoding="utf-8")
    command = [sys.executable, "-m", "tuner", "recommend", str(path)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=2300, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def events(study: Path, kind: str) -> list[dict[str, object]]:
    (journal,) = study.glob("reports/*/journal.jsonl")
    return [event for event in map(json.loads, journal.read_text().splitlines()) if event["event"] == kind]


def specs(study: Path) -> dict[int, dict[str, object]]:
    return {event["number"]: event["spec"] for event in events(study, "trial_started")}  # type: ignore[index, misc]


def test_chain_tree_ngram_and_off_were_launched_and_ended_well(study: Path) -> None:
    launched = [(spec["method"], spec["n"], spec["tree"]) for spec in specs(study).values()]
    assert launched[0] == ("off", 0, None)
    assert ("eagle3", 2, None) in launched
    assert ("eagle3", 0, [2, 2, 4]) in launched
    assert ("ngram", 3, None) in launched
    assert [event["status"] for event in events(study, "trial_ended")] == ["ok"] * len(launched)


def test_impossible_and_duplicate_trees_left_with_a_reason(study: Path) -> None:
    (resolved,) = events(study, "resolved")
    reasons = {gone["what"]: gone["reason"] for gone in resolved["removed"]}  # type: ignore[attr-defined, index]
    assert "nodes - 1 <= topk" in reasons["eagle3 tree d=2 k=2 m=9"]  # 1 + 2 + 4 = 7 nodes at most
    assert "the chain N = 2" in reasons["eagle3 tree d=2 k=1 m=4"]


@pytest.mark.parametrize(
    ("setting", "folder"), [("eagle3 N=2", "eagle3-n-2"), ("eagle3 tree d=2 k=2 m=4", "eagle3-tree-d-2-k-2-m-4")]
)
def test_acceptance_of_the_report_is_a_recount_of_the_records(study: Path, setting: str, folder: str) -> None:
    """tau is 1 + correct / verify steps; a_k the share of verify steps with k or more correct. By hand from the lines:
    one histogram a request, hist[j] steps with j correct."""
    (trial,) = study.glob(f"reports/*/trials/*-{folder}")
    lines = (trial / "requests-c4-t0.jsonl").read_text().splitlines()[1:]
    measured = [r for r in map(json.loads, lines) if r["phase"] == "measured" and r["error"] is None]
    steps = sum(r["spec"]["steps"] for r in measured)
    correct = [j for r in measured for j, count in enumerate(r["spec"]["hist"]) for _ in range(count)]
    assert steps == len(correct) > 0
    page = next(study.glob("reports/*/report.md")).read_text(encoding="utf-8")
    where = {"setting": setting, "temperature": "0"}
    row = find(table(page, "setting", "temperature", "tau", "alpha", "draft acceptance rate"), where)
    assert number(row["tau"]) == f"{1 + sum(correct) / steps:.3f}"
    a_row = find(table(page, "setting", "temperature", "figure", "k = 1"), where | {"figure": "a_k"})
    by_hand = [f"{sum(j >= k for j in correct) / steps:.3f}" for k in (1, 2)]
    assert [number(a_row[f"k = {k}"]) for k in (1, 2)] == by_hand


def test_temperature_one_is_labelled_lossy_and_never_advised(study: Path) -> None:
    page = next(study.glob("reports/*/report.md")).read_text(encoding="utf-8")
    assert "temperature 1: the output is not the target's" in page
    told = json.loads((study / "outputs" / "recommendation.json").read_text())
    sampled = [cell for cell in told["cells"] if cell["cell"]["temperature"] == 1]
    assert sampled
    assert not any(cell["on"] for cell in sampled)


def test_the_skill_file_is_there(study: Path) -> None:
    assert (study / "outputs" / "skill-eagle3-tuner.md").read_text(encoding="utf-8").startswith("---\nname: ")
