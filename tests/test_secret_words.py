"""Secrets among the engine's arguments are refused, as those among its variables: a workload is stored with reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tuner.errors import UserError
from tuner.run.sweep_plan import plan_sweep
from tuner.spec.load import load_workload
from tuner.spec.secret_words import is_secret_flag

LEAST = "name: x\nmodel: m\nengine: e\ntraffic: {concurrency: [1]}\n"
SENTENCE = (
    "--hf-token looks like a secret, and a workload is stored with its reports: remove it, and export what the engine "
    "needs (HF_TOKEN for the hub) in the shell, from which the engine inherits it"
)


def written(folder: Path, options: str) -> Path:
    path = folder / "w.yaml"
    path.write_text(f"{LEAST}engine_options: {options}\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ("{args: [--seed, '0', --hf-token, hf_x1]}", "engine_options.args"),
        ("{args: [--hf-token=hf_x1]}", "engine_options.args"),
        ("{args: [--hf-token hf_x1]}", "engine_options.args"),
        ("{by_engine: {e: {args: [--hf-token, hf_x1]}}}", "engine_options.by_engine.e.args"),
    ],
)
def test_a_secret_among_the_arguments_is_refused_and_not_repeated(options: str, where: str, tmp_path: Path) -> None:
    path = written(tmp_path, options)
    with pytest.raises(UserError) as caught:
        load_workload(path)
    assert str(caught.value) == f"{path}:5: {where}: {SENTENCE}"


def test_a_sweep_refuses_it_in_its_workloads(tmp_path: Path) -> None:
    path = written(tmp_path, "{args: [--hf-token, hf_x1]}")
    (tmp_path / "sweep.yaml").write_text("name: night\nstudies: [{workload: w.yaml}]\n", encoding="utf-8")
    with pytest.raises(UserError) as caught:
        plan_sweep(tmp_path / "sweep.yaml")
    assert str(caught.value) == f"{path}:5: engine_options.args: {SENTENCE}"


@pytest.mark.parametrize("flag", ["--hf_token", "--api-key", "--admin-api-key=x", "--ssl-keyfile-password", "--secret"])
def test_every_spelling_of_a_flag_for_a_secret(flag: str) -> None:
    assert is_secret_flag(flag)


def test_flags_that_only_look_so_are_passed_on(tmp_path: Path) -> None:
    args = ["--tokenizer", "t", "--max-num-batched-tokens", "4096", "--ssl-keyfile", "k", "--tokenizer-mode=auto"]
    workload = load_workload(written(tmp_path, json.dumps({"args": args})))
    assert workload.engine_options.args == args
