"""The trainer in an engine's environment (training_checks.py), and `tuner draft train` as a whole on a tiny target."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import real_vllm

import tuner.engines
from tuner.cli import app
from tuner.run.training_prompts import prompt_hash, training_prompts

pytestmark = [pytest.mark.real_trainer, pytest.mark.timeout(1800)]
HERE = Path(__file__).parent
SCRIPTS = Path(tuner.engines.__file__).parent / "training_scripts"
CHECKS = re.findall(r"^def check_(\w+)", (HERE / "training_checks.py").read_text(encoding="utf-8"), re.M)
DRAFTS = {"eagle3": 4, "eagle": 4, "medusa": 4, "draft_model": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the checks left the target and a draft of each kind; their findings are in found.json."""
    folder = tmp_path_factory.mktemp("training")
    argv = [str(real_vllm.environment().python), "-I", str(HERE / "training_checks.py"), str(SCRIPTS), str(folder)]
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=1700, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (folder / "found.json").write_text(done.stdout.splitlines()[-1], encoding="utf-8")
    return folder


@pytest.mark.parametrize("check", CHECKS)
def test_the_trainer(folder: Path, check: str) -> None:
    found = json.loads((folder / "found.json").read_text(encoding="utf-8"))
    assert found[check] == "", found[check]


@pytest.mark.parametrize("method", DRAFTS)
def test_every_kind_of_draft_passes_tuner_check(folder: Path, method: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", "--target", folder / "target", "--draft", folder / "drafts" / method, "--n", DRAFTS[method]]
    with pytest.raises(SystemExit) as ended:
        app([*map(str, words), "--method", method, "--engine", "vllm", "--json"])
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0, told
    assert told["method"] == method
    assert {finding["severity"] for finding in told["findings"]} <= {"note", "warning"}


def test_from_one_command_to_a_checked_draft_on_two_ranks(folder: Path, tmp_path: Path) -> None:
    environment = real_vllm.environment()
    home = tmp_path / "home"
    (home / "engines").mkdir(parents=True)
    entry = {"name": "tiny", "engine": "vllm", "version": environment.version, "python": environment.python,
             "url": None, "device": "cpu", "corrections": [], "notes": []}  # fmt: skip
    (home / "engines" / "tiny.json").write_text(json.dumps(entry), encoding="utf-8")
    argv = [
        "draft", "train", "--target", folder / "target", "--method", "eagle3", "--out", tmp_path / "head",
        "--written", 18, "--own-questions", 4, "--answer-tokens", 16, "--prompt-tokens", 200, "--draft-vocab", 64,
        "--precision", "float32", "--rows", 256, "--ranks", 2, "--steps", 6, "--json",
    ]  # fmt: skip
    command = [sys.executable, "-m", "tuner", *map(str, argv)]
    env = {**os.environ, "TUNER_HOME": str(home), "TUNER_LOCKS": str(tmp_path / "locks")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    assert sorted(path.name for path in (tmp_path / "head").iterdir()) == [
        "config.json", "model.safetensors", "training.json",
    ]  # fmt: skip
    record = told["training"]
    assert record == json.loads((tmp_path / "head" / "training.json").read_text(encoding="utf-8"))
    assert (record["steps"], record["method"], record["resumed"]) == (6, "eagle3", 0)
    assert len(record["losses"]) == 6
    assert record["held_out"]["in_engine"] is None
    held = training_prompts(("written",), ("chat", "maths", "code"), 18, 0)
    assert record["settings"]["data"]["held_hashes"] == sorted(map(prompt_hash, held.held_out))
    again = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=env)
    assert again.returncode == 2
    assert "holds model.safetensors already: name another folder, or give --replace" in again.stderr
