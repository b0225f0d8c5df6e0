"""The main job on a real vLLM and a real model: one small study, killed and resumed, then recounted from its files.

Everything is recounted from JSON lines, Prometheus text and Markdown by the code below, not by tuner's.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import real_vllm
import yaml
from report_tables import find, number, table

pytestmark = [pytest.mark.real_vllm, pytest.mark.timeout(3600)]

#: The engine is to be gone this long after its tuner was killed.
GONE_WITHIN_S = 10.0
NAME = "real-study"
SETTINGS = ("ngram N=3", "eagle3 N=3")
Json = dict[str, Any]


def workload(folder: Path, **changes: object) -> Path:
    """Two cells a launch: off, ngram, eagle3 at its largest N, off again."""
    data: dict[str, object] = {
        "name": NAME,
        "model": "smollm2-135m",
        "engine": "vllm-cpu",
        "drafts": [{"method": "ngram", "n": [3]}, {"method": "eagle3", "model": str(real_vllm.HEAD), "n": [1, 3]}],
        "traffic": {
            "concurrency": [2], "prompts": [{"set": "rewrite"}, {"set": "chat"}], "max_output_tokens": 24,
        },
        "sampling": {"temperatures": [0, 1]},
        "budget": {"launches": 4, "minutes": 120},
        "measure": {"requests": 8, "waves": 1, "warmup_requests": 2},
        "engine_options": {
            "args": list(real_vllm.ARGS), "max_model_len": 2048, "max_running_requests": 4,
            "ready_timeout_s": real_vllm.READY_S,
        },
    }  # fmt: skip
    path = folder / "workload.yaml"
    path.write_text(yaml.safe_dump(data | changes), encoding="utf-8")
    return path


@dataclass(frozen=True)
class Study:
    """A finished study and how it came about. `survivors`: processes of the engine past the deadline."""

    folder: Path
    outputs: Path
    gone_after_s: float
    survivors: list[str]
    finished_then: Mapping[Path, int]
    resumed: subprocess.CompletedProcess[str]

    @cached_property
    def events(self) -> list[Json]:
        return [json.loads(line) for line in (self.folder / "journal.jsonl").read_text("utf-8").splitlines()]

    @cached_property
    def report(self) -> str:
        return (self.folder / "report.md").read_text(encoding="utf-8")

    @cached_property
    def told(self) -> Json:
        return dict(json.loads((self.outputs / "recommendation.json").read_text(encoding="utf-8")))

    def of(self, event: str) -> list[Json]:
        return [e for e in self.events if e["event"] == event]

    def trial_folder(self, number: int) -> Path:
        return self.folder / "trials" / next(e["folder"] for e in self.of("trial_started") if e["number"] == number)

    def cells(self) -> Iterator[tuple[Json, Json]]:
        """(what was launched, the cell's line in the journal), in order."""
        started = {event["number"]: event for event in self.of("trial_started")}
        for cell in self.of("cell_done"):
            yield started[cell["number"]], cell

    def requests(self, cell: Json) -> list[Json]:
        path = self.trial_folder(cell["number"]) / f"requests-{cell['label']}.jsonl"
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[1:-1]]

    def counters(self, cell: Json) -> Callable[[str], float]:
        """By how much a counter moved over the cell, summed over its labels."""
        folder = self.trial_folder(cell["number"])
        texts = [(folder / f"counters-{cell['label']}-{when}.prom").read_text("utf-8") for when in ("before", "after")]

        def moved(series: str) -> float:
            line = re.compile(rf"^{re.escape(series)}(?:{{[^}}]*}})? (\S+)$", re.M)
            before, after = (sum(map(float, line.findall(text))) for text in texts)
            return after - before

        return moved


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """`tuner recommend`, killed with SIGKILL after its first finished cell, then gone on with."""
    real_vllm.environment()
    real_vllm.target()
    folder = tmp_path_factory.mktemp("study")
    path = workload(folder)
    with (folder / "first.txt").open("w") as said:
        command = [sys.executable, "-m", "tuner", "recommend", str(path)]
        process = subprocess.Popen(command, cwd=folder, stdout=said, stderr=said)
    try:
        wait_until(lambda: process.poll() is not None or finished_cells(folder) > 0, real_vllm.READY_S + 300)
        assert process.poll() is None, (folder / "first.txt").read_text()
        family = descendants(process.pid)
    finally:
        process.kill()
        process.wait()
    killed_s = time.monotonic()
    survivors = [line for line in family if line.alive()]
    while survivors and time.monotonic() < killed_s + GONE_WITHIN_S:
        time.sleep(0.1)
        survivors = [line for line in family if line.alive()]
    gone_after_s = time.monotonic() - killed_s
    (reports,) = (path.parent for path in folder.glob("reports/*/study.json"))
    finished = {p: p.stat().st_mtime_ns for p in reports.rglob("trials/*/*c2-t0*")}
    resumed = tuner(folder, "recommend", path, "--resume", "--json")
    return Study(reports, folder / "outputs", gone_after_s, [p.text for p in survivors], finished, resumed)


def tuner(folder: Path, *argv: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tuner", *map(str, argv)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=3000, check=False)


def finished_cells(folder: Path) -> int:
    return sum(path.read_text().count('"cell_done"') for path in folder.glob("reports/*/journal.jsonl"))


def wait_until(holds: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


@dataclass(frozen=True)
class Seen:
    """A process as it was seen; the start time tells a reused pid apart."""

    pid: int
    parent: int
    started: int
    text: str

    def alive(self) -> bool:
        now = stat(self.pid)
        return now is not None and now[2] == self.started and now[0] not in "ZX"


def stat(pid: int) -> tuple[str, int, int] | None:
    """(state, parent, start time in ticks)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[1]), int(fields[19])


def descendants(root: int) -> list[Seen]:
    """Every process below `root`: the guard, the engine, its core and workers. Nothing is signalled."""
    seen = []
    for path in Path("/proc").glob("[0-9]*"):
        found = stat(int(path.name))
        if found is not None:
            try:
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            seen.append(Seen(int(path.name), found[1], found[2], command[:200]))
    family, known = [], {root}
    while new := [p for p in seen if p.parent in known and p.pid not in known]:
        family += new
        known |= {p.pid for p in new}
    return family


def steps(request: Json) -> list[tuple[int, int]]:
    """(accepted, drafted) of every drafting step; the engine leaves the lists out where there was none."""
    spec = request["spec"]
    return list(zip(spec.get("acc", ()), spec.get("drf", ()), strict=True))


def verify_steps(request: Json) -> int:
    """With those that drafted nothing: each emits 1 + accepted, and the stream brings at most one chunk of each."""
    emitted = sum(1 + accepted for accepted, _ in steps(request))
    return max(len(steps(request)) + max(0, request["n_out"] - 1 - emitted), len(request["chunks"]) - 1)


def recount(requests: list[Json], n: int) -> Json:
    """Acceptance of the measured requests, all of which ended well."""
    measured = [r for r in requests if r["phase"] == "measured"]
    drafted = [step for r in measured for step in steps(r)]
    accepted = sum(a for a, _ in drafted)
    return {
        "a": [sum(a >= k for a, _ in drafted) / len(drafted) for k in range(1, n + 1)],
        "alpha": accepted / (accepted + sum(a < d for a, d in drafted)),
        "tau": 1 + accepted / sum(map(verify_steps, measured)),
        "rate": accepted / sum(d for _, d in drafted),
        "requests": len(measured),
    }


def arms(study: Study) -> list[tuple[Json, Json]]:
    found = [(trial, cell) for trial, cell in study.cells() if trial["spec"]["method"] != "off"]
    assert [(t["spec"]["method"], c["label"]) for t, c in found] == [
        ("ngram", "c2-t0"), ("ngram", "c2-t1"), ("eagle3", "c2-t0"), ("eagle3", "c2-t1"),
    ]  # fmt: skip
    return found


def label(trial: Json) -> str:
    return f"{trial['spec']['method']} N={trial['spec']['n']}"


def estimates(value: Any) -> Iterator[Json]:
    """Every estimate in a JSON document: what has a `value`."""
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if isinstance(value, dict) and "value" in value:
        yield value
    for child in children:
        yield from estimates(child)


# Killed and resumed


def test_no_process_of_the_engine_outlives_its_killed_tuner(study: Study) -> None:
    assert study.survivors == []
    assert study.gone_after_s < GONE_WITHIN_S


def test_a_resumed_study_completes_and_measures_no_finished_cell_again(study: Study) -> None:
    assert study.resumed.returncode == 0, study.resumed.stderr
    assert study.of("study_ended")[-1]["status"] == "complete"
    assert len(study.finished_then) == 3  # requests, counters before, counters after
    assert {path: path.stat().st_mtime_ns for path in study.finished_then} == study.finished_then
    measured = [(t["spec"]["method"], t["role"], c["label"]) for t, c in study.cells()]
    assert measured == [
        ("off", "baseline", "c2-t0"), ("off", "baseline", "c2-t1"),
        ("ngram", "explore", "c2-t0"), ("ngram", "explore", "c2-t1"),
        ("eagle3", "explore", "c2-t0"), ("eagle3", "explore", "c2-t1"),
        ("off", "baseline-again", "c2-t0"),
    ]  # fmt: skip


def test_every_launch_that_ended_is_ok(study: Study) -> None:
    assert [event["status"] for event in study.of("trial_ended")] == ["ok"] * 4
    # The killed launch never ended; its place was taken by the second.
    assert [e["spec"]["method"] for e in study.of("trial_started")] == ["off", "off", "ngram", "eagle3", "off"]


# Records, counters, figures


def test_tokens_of_the_records_are_those_of_usage_and_of_the_engine(study: Study) -> None:
    for _, cell in study.cells():
        requests, moved = study.requests(cell), study.counters(cell)
        assert len(requests) == cell["requests"]
        assert all(r["error"] is None for r in requests)
        for r in requests:
            times, totals = zip(*r["chunks"], strict=True)
            assert totals[-1] == r["n_out"] <= 24
            assert list(totals) == sorted(totals)
            assert list(times) == sorted(times)
            assert r["finish"] == "length" if r["n_out"] == 24 else r["finish"] == "stop"
        assert sum(r["n_out"] for r in requests) == moved("vllm:generation_tokens_total")
        assert sum(r["n_in"] for r in requests) == moved("vllm:prompt_tokens_total")
        assert len(requests) == moved("vllm:request_success_total")


def test_all_arms_sent_the_same_prompts(study: Study) -> None:
    sent = [[(r["i"], r["prompt"], r["n_in"]) for r in study.requests(cell)][:10] for _, cell in study.cells()]
    assert len(sent[0]) == 10
    assert all(prompts == sent[0] for prompts in sent)


def test_the_engines_counters_are_the_records_over_the_drained_cell(study: Study) -> None:
    for trial, cell in arms(study):
        moved = study.counters(cell)
        drafted = [step for r in study.requests(cell) for step in steps(r)]
        assert moved("vllm:spec_decode_num_drafts_total") == len(drafted) > 0
        assert moved("vllm:spec_decode_num_draft_tokens_total") == sum(d for _, d in drafted)
        assert moved("vllm:spec_decode_num_accepted_tokens_total") == sum(a for a, _ in drafted)
        for position in range(trial["spec"]["n"]):
            counted = position_counter(study, cell, position)
            assert counted == sum(a > position for a, _ in drafted), (label(trial), position)


def position_counter(study: Study, cell: Json, position: int) -> float:
    folder = study.trial_folder(cell["number"])
    line = re.compile(
        rf'^vllm:spec_decode_num_accepted_tokens_per_pos_total{{[^}}]*position="{position}"[^}}]*}} (\S+)$', re.M
    )
    before, after = (
        sum(map(float, line.findall((folder / f"counters-{cell['label']}-{when}.prom").read_text("utf-8"))))
        for when in ("before", "after")
    )
    return after - before


def test_every_step_of_a_head_drafts_and_brings_at_most_one_chunk(study: Study) -> None:
    """What lookups need by inference is seen here: after the first token, every token comes from a drafting step."""
    for trial, cell in arms(study):
        if trial["spec"]["method"] == "eagle3":
            for r in study.requests(cell):
                emitted = 1 + sum(1 + accepted for accepted, _ in steps(r))
                assert r["n_out"] <= emitted <= r["n_out"] + trial["spec"]["n"]  # the last step may be cut short
                assert len(r["chunks"]) - 1 <= len(steps(r))  # a busy machine merges chunks of a stream


def test_recommendation_json_holds_the_recounted_alpha_and_tau(study: Study) -> None:
    cells = {c["cell"]["temperature"]: c for c in study.told["cells"]}
    for trial, cell in arms(study):
        own = recount(study.requests(cell), trial["spec"]["n"])
        compared = cells[cell["key"]["temperature"]]["comparisons"]
        shown = next(c for c in compared if c["config"]["label"] == label(trial))
        assert shown["tau"]["value"] == pytest.approx(own["tau"], abs=1e-12)
        assert shown["alpha"]["value"] == pytest.approx(own["alpha"], abs=1e-12)
        assert shown["tau"]["n"] == shown["alpha"]["n"] == own["requests"]


def test_the_report_prints_the_recounted_alpha_a_k_and_tau(study: Study) -> None:
    acceptance = table(study.report, "setting", "temperature", "tau", "alpha", "draft acceptance rate")
    positions = table(study.report, "setting", "temperature", "figure", "k = 1")
    for trial, cell in arms(study):
        own = recount(study.requests(cell), trial["spec"]["n"])
        where = {"setting": label(trial), "temperature": f"{cell['key']['temperature']:g}"}
        row = find(acceptance, where)
        assert number(row["tau"]) == f"{own['tau']:.3f}"
        assert number(row["alpha"]) == f"{own['alpha']:.3f}"
        assert number(row["draft acceptance rate"]) == f"{100 * own['rate']:.1f}"
        a_row = find(positions, where | {"figure": "a_k"})
        # One load was measured, so all loads together are this cell.
        assert [number(a_row[f"k = {k}"]) for k in (1, 2, 3)] == [f"{a:.3f}" for a in own["a"]]


def test_every_estimate_has_an_interval_and_n(study: Study) -> None:
    found = list(estimates({"cells": study.told["cells"], "best": study.told["best"]}))
    assert len(found) > 20
    for estimate in found:
        assert estimate["low"] <= estimate["value"] <= estimate["high"]
        assert estimate["n"] >= 2
    for columns in (("tau", "alpha", "drafting share"), ("TPOT p50, ms", "TTFT p50, ms", "throughput, tok/s")):
        for row in table(study.report, *columns):
            assert int(row["n"]) >= 2
            for column in columns:
                number(row[column])


# What is handed over


def test_capacity_runner_and_resolved_options_are_read_back(study: Study) -> None:
    facts = {trial: event["facts"] for trial, event in ((e["number"], e) for e in study.of("trial_ended"))}
    methods = {e["number"]: e["spec"]["method"] for e in study.of("trial_started")}
    capacity = {methods[number]: found["kv_cache_tokens"] for number, found in facts.items()}
    # The head's layer takes its own share of the same memory.
    assert capacity["off"] == capacity["ngram"] > capacity["eagle3"] > 2048
    launches = table(study.report, "launch", "setting", "runner", "KV capacity, tokens")
    for number_, found in facts.items():
        assert found["runner"] == "V1"
        assert found["version"] == real_vllm.environment().version
        resolved = dict(found["resolved"])
        assert resolved["dtype"] == "torch.float32"
        method = methods[number_]
        assert resolved["speculative_config"].startswith(
            "None" if method == "off" else f"SpeculativeConfig(method='{method}'"
        )
        row = find(launches, {"launch": str(number_)})
        assert row["KV capacity, tokens"] == f"{found['kv_cache_tokens']:,}"
        assert row["runner"] == "V1"


def test_the_correction_was_applied_and_is_named(study: Study) -> None:
    (correction,) = real_vllm.environment().corrections
    assert correction in study.report
    assert correction in " ".join(study.told["cautions"])
    for event in study.of("trial_ended"):
        log = (study.trial_folder(event["number"]) / "engine.log").read_text(encoding="utf-8")
        assert f"tuner: correction {correction} applied" in log


def test_the_report_stands_with_its_plots_and_its_recommendation(study: Study) -> None:
    assert study.told == json.loads(study.resumed.stdout)
    schema = json.loads((real_vllm.ROOT / "tuner" / "report" / "recommendation.schema.json").read_text("utf-8"))
    jsonschema.validate(study.told, schema)
    for name in ("acceptance.png", "tpot.png"):
        assert f"({name})" in study.report
        assert (study.folder / name).read_bytes().startswith(b"\x89PNG")
    for setting in SETTINGS:
        assert setting in study.report


def test_the_skill_file_is_a_valid_agent_skill(study: Study) -> None:
    text = (study.outputs / "skill-eagle3-tuner.md").read_text(encoding="utf-8")
    _, front, body = text.split("---\n", 2)
    fields = yaml.safe_load(front)
    assert fields["name"] == "eagle3-tuner"
    assert 0 < len(fields["description"]) <= 1024
    assert not re.search(r"[<>]", fields["description"])
    assert "vllm.entrypoints.openai.api_server" in body  # the launch command of this build


def test_the_launch_script_is_a_shell_script(study: Study) -> None:
    script = study.outputs / "launch.sh"
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert os.access(script, os.X_OK)


def test_no_key_is_left_in_the_study(study: Study) -> None:
    for event in study.of("trial_started"):
        assert not any(name.endswith("KEY") for name, _ in event["env"])
        assert "--api-key" not in event["command"]


# A model that does not load


def test_an_architecture_the_engine_lacks_is_one_sentence_with_the_engines_cause(tmp_path: Path) -> None:
    done = tuner_on(tmp_path, architectures=["NoSuchForCausalLM"])
    assert "Model architectures ['NoSuchForCausalLM'] are not supported for now" in the_sentence(done)


def test_weights_that_lack_a_layer_are_one_sentence_with_the_engines_cause(tmp_path: Path) -> None:
    done = tuner_on(tmp_path, num_hidden_layers=31)
    assert "Following weights were not initialized from checkpoint" in the_sentence(done)


def test_torn_weights_are_refused_before_any_launch(tmp_path: Path) -> None:
    done = tuner_on(tmp_path, keep_bytes=50_000_000)
    assert done.returncode == 2, done.stderr
    assert re.fullmatch(r"tuner: \S+model\.safetensors has 50,000,000 bytes .*\n", done.stderr)
    assert not list(tmp_path.glob("reports/*"))


def tuner_on(tmp_path: Path, keep_bytes: int | None = None, **changes: object) -> subprocess.CompletedProcess[str]:
    """`tuner recommend` on a copy of the model with another config, or with weights cut short."""
    real_vllm.environment()
    source, broken = real_vllm.target(), tmp_path / "broken"
    shutil.copytree(source, broken, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((broken / "config.json").read_text(encoding="utf-8")) | changes
    (broken / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with (source / "model.safetensors").open("rb") as weights:
        (broken / "model.safetensors").write_bytes(weights.read(keep_bytes))
    path = workload(tmp_path, model="./broken", drafts=[{"method": "ngram", "n": 3}], sampling={"temperatures": [0]})
    return tuner(tmp_path, "recommend", path)


def the_sentence(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("tuner: ")]
    assert "the engine's log says: " in sentence
    return sentence
