"""Sweep files: what may stand in one, what is refused in which words, and the workloads its axes make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tuner.cli import app
from tuner.errors import UserError
from tuner.spec.gate import Gate, parse_gate
from tuner.spec.json_schema import schema_of, schema_text
from tuner.spec.load import load_workload
from tuner.spec.sweep import Sweep, SweepStudy, load_sweep, workload_of
from tuner.spec.workload import Workload

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = sorted((ROOT / "sweeps").glob("*.yaml"))
CHAT = Workload.model_validate(
    {
        "name": "chat", "model": "m", "engine": ["a", "b"],
        "drafts": [{"method": "eagle3", "model": "h", "n": [1, 2]}, {"method": "ngram", "n": 4}],
        "traffic": {"concurrency": [1, 8]}, "sampling": {"temperatures": [0.0, 1.0], "top_p": 0.9},
        "engine_options": {"by_engine": {"a": {"args": ["--x"]}, "b": {"args": ["--y"]}}},
    }
)  # fmt: skip


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump({"name": "night", "studies": [{"workload": "w.yaml"}]} | changes), encoding="utf-8")
    return path


def test_the_shipped_sweeps_are_the_ones_people_look_for() -> None:
    assert {path.stem for path in SHIPPED} == {
        "nightly-cpu", "n-sweep", "tree-depth", "temperature", "llama-70b-nightly",
    }  # fmt: skip


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_sweep_is_valid_named_as_its_file_and_its_workloads_are_there(path: Path) -> None:
    sweep = load_sweep(path)
    assert sweep.name == path.stem
    assert sweep.description.endswith(".")
    assert path.read_text(encoding="utf-8").startswith("# yaml-language-server: $schema=../schema/sweep.schema.json\n")
    jsonschema.Draft202012Validator(schema_of(Sweep)).validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    for study in sweep.studies:
        made = workload_of(study, load_workload(path.parent / study.workload), "some-engine", str(path))
        assert made.name == f"{study.label}-some-engine"


def test_the_nightly_demonstration_is_both_methods_in_ten_minutes() -> None:
    sweep = load_sweep(ROOT / "sweeps" / "nightly-cpu.yaml")
    (study,) = sweep.studies
    made = workload_of(study, load_workload(ROOT / "profiles" / "smollm2-chat-cpu.yaml"), "vllm-cpu", "here")
    assert sweep.budget.minutes == 10
    assert made.drafts != "auto"
    assert [(draft.method, draft.n) for draft in made.drafts] == [("eagle3", [3]), ("ngram", [3])]
    assert [gate.text for gate in sweep.parsed_gates] == [
        "tpot_p50 regress > 3 %", "tau drop > 5 %", "verify failed",
    ]  # fmt: skip


def test_the_schema_file_is_the_models_and_the_command_prints_it() -> None:
    from typer.testing import CliRunner

    text = (ROOT / "schema" / "sweep.schema.json").read_text(encoding="utf-8")
    assert text == schema_text(Sweep), "run `tuner schema sweep --output schema/sweep.schema.json`"
    jsonschema.Draft202012Validator.check_schema(json.loads(text))
    assert CliRunner().invoke(app, ["schema", "sweep"]).output == text


@pytest.mark.parametrize(
    ("text", "gate"),
    [
        ("tpot_p50 regress > 3 %", Gate("tpot_p50 regress > 3 %", "regress", "tpot_p50", 0.03)),
        ("tpot_p50  regress>3%", Gate("tpot_p50 regress>3%", "regress", "tpot_p50", 0.03)),
        ("tau drop > 5 %", Gate("tau drop > 5 %", "regress", "tau", 0.05)),
        ("goodput < 95 %", Gate("goodput < 95 %", "below", "goodput", 0.95)),
        ("tpot_p50 > 35 ms", Gate("tpot_p50 > 35 ms", "above", "tpot_p50", 0.035)),
        ("speedup < 1.1x", Gate("speedup < 1.1x", "below", "speedup", 1.1)),
        ("verify failed", Gate("verify failed", "verify")),
    ],
)
def test_gates_mean_what_they_say(text: str, gate: Gate) -> None:
    assert parse_gate(text) == gate


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("tpot_p50 drop > 3 %", "a drop of tpot_p50 is an improvement"),
        ("itl regress > 3 %", "itl is no metric of a gate"),
        ("goodput < 95 ms", "goodput is given in %"),
        ("tau < 2 %", "tau is given without a unit"),
        ("tpot regress", "is no gate: write `METRIC regress > 3 %`"),
        ("tpot_p50 regress > -3 %", "is no gate"),
    ],
)
def test_a_gate_that_means_nothing_is_refused_with_what_may_be_written(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse_gate(text)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"gates": ["tau drops > 5 %"]}, r"sweep.yaml:\d+: gates: 'tau drops > 5 %' is no gate"),
        ({"studies": []}, "studies must be"),
        ({"studies": [{"workload": "w.yaml", "axis": {}}]}, "did you mean axes"),
        ({"studies": [{"workload": "a/w.yaml"}, {"workload": "b/w.yaml"}]}, "two studies are called w"),
        ({"studies": [{"workload": "w.yaml", "axes": {"n": [2, 2]}}]}, "2 stands there twice"),
        ({"baseline": "yesterday"}, "baseline must be"),
        ({"mode": "random"}, "one of planned, exhaustive"),
        ({"budget": {"minutes": "10"}}, "write 10 without quotes"),
        ({"retention": {"nights": 3, "records_nights": 5}}, "records_nights 5 is more than"),
        ({"name": "Night 1"}, "lower-case letters"),
    ],
)
def test_what_is_wrong_is_a_sentence_with_its_line(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        load_sweep(written(tmp_path, **changes))


def test_axes_take_the_place_of_the_workloads_own() -> None:
    study = SweepStudy.model_validate(
        {"workload": "chat.yaml", "axes": {"n": [3, 5], "temperature": [0.7], "concurrency": [2]}}
    )
    made = workload_of(study, CHAT, "b", "here")
    assert made.drafts != "auto"
    assert [(d.method, d.n) for d in made.drafts] == [("eagle3", [3, 5]), ("ngram", [3, 5])]
    assert made.sampling.temperatures == [0.7]
    assert made.sampling.top_p == 0.9
    assert (made.traffic.concurrency, made.traffic.rates) == ([2], [])
    assert made.engine == "b"
    assert set(made.engine_options.by_engine) == {"b"}


def test_without_axes_the_workload_stays_and_rates_replace_concurrency() -> None:
    assert workload_of(SweepStudy(workload="chat.yaml"), CHAT, "a", "x").drafts == CHAT.drafts
    rates = SweepStudy.model_validate({"workload": "chat.yaml", "axes": {"rates": [1.5]}})
    made = workload_of(rates, CHAT, "a", "x")
    assert (made.traffic.concurrency, made.traffic.rates) == ([], [1.5])


def test_trees_go_to_the_drafts_that_can_draft_them() -> None:
    axes = {"tree": {"depth": [2], "topk": [2], "nodes": [4]}}
    made = workload_of(SweepStudy.model_validate({"workload": "chat.yaml", "axes": axes}), CHAT, "a", "x")
    assert made.drafts != "auto"
    head, lookup = made.drafts
    assert (head.n, head.tree and head.tree.depth) == (None, [2])
    assert (lookup.n, lookup.tree) == (4, None)


@pytest.mark.parametrize(
    ("study", "workload", "sentence"),
    [
        ({"drafts": ["medusa"]}, CHAT, "has no draft of medusa"),
        ({"axes": {"n": [2]}}, CHAT.model_copy(update={"drafts": "auto"}), "has drafts: auto"),
        ({"axes": {"concurrency": []}}, CHAT, "with these axes is no workload"),
    ],
)
def test_axes_that_fit_no_workload_are_told(study: dict[str, Any], workload: Workload, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        workload_of(SweepStudy.model_validate({"workload": "chat.yaml"} | study), workload, "a", "sweep.yaml")


@pytest.mark.parametrize(
    ("axes", "by_load", "by_temperature"),
    [
        ({}, [1, 3, 2], [1, 4]),
        ({"concurrency": [8, 1]}, [3, 1], [1, 4]),
        ({"rates": [2.0]}, [2], [1, 4]),
        ({"concurrency": [1, 16], "temperature": [1.0]}, None, [4]),
        ({"temperature": [0.0, 0.7]}, [1, 3, 2], None),
    ],
)
def test_shares_of_the_traffic_follow_their_levels_and_a_new_level_makes_all_alike(
    axes: dict[str, Any], by_load: list[float] | None, by_temperature: list[float] | None
) -> None:
    data = CHAT.model_dump(mode="json", exclude_unset=True)
    data["traffic"] |= {"rates": [2.0], "load_shares": [1, 3, 2]}
    data["sampling"] |= {"temperature_shares": [1, 4]}
    study = SweepStudy.model_validate({"workload": "chat.yaml", "axes": axes})
    made = workload_of(study, Workload.model_validate(data), "b", "here")
    assert (made.traffic.load_shares, made.sampling.temperature_shares) == (by_load, by_temperature)
