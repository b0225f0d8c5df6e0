"""Fixtures for tests of the whole command on mock engines: a data folder, a registered environment, a workload."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, settings
from mock_engine import fake_python

#: A shell starts background jobs with SIGINT ignored, nohup with SIGHUP, and so would be whatever tests signal.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

#: Two busy cores say nothing of the code: no property has a deadline.
settings.register_profile("busy-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy-machine")


@pytest.fixture(scope="session", autouse=True)
def own_locks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests hold no device of the machine: runs of them may stand side by side."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNER_LOCKS", str(tmp_path_factory.mktemp("locks")))
        yield


#: Off 5 ms a step. eagle3 accepts .8, .7, .6, .6 at T = 0; a drafted token costs 5 % of a step, more when crowded.
SIM = {"base_s": 0.005, "slope": 0.05, "crowding": 0.5, "prefill_s": 0.001}


#: Tests that start an engine, one at a time, and those of the trainer, which keep a core busy as it does.
LANES = ("vllm", "sglang", "trainer")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--engine", choices=(*LANES, "none"), help="only tests of this lane; none: of no engine")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked = config.getoption("--engine")
    if asked is None:
        return
    kept, left = [], []
    for item in items:
        lane = next((name for name in LANES if item.get_closest_marker(f"real_{name}")), "none")
        (kept if lane == asked else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept


@dataclass(frozen=True)
class Bench:
    """A machine for one test: `home` is its data folder, `folder` where commands run."""

    folder: Path
    home: Path

    def workload(self, **changes: object) -> Path:
        """A small workload on the mock engine; `changes` replace top-level keys."""
        data: dict[str, object] = {
            "name": "mock",
            "model": "./target",
            "engine": "mock",
            "drafts": [{"method": "ngram", "n": 3}, {"method": "eagle3", "model": "./head", "n": [1, 2, 3, 4]}],
            "traffic": {"concurrency": [1, 4], "prompts": [{"set": "chat"}], "max_output_tokens": 24},
            "measure": {"requests": 8, "waves": 2, "warmup_requests": 1},
            "engine_options": {"env": {"MOCK_ENGINE_SIM": json.dumps(SIM)}},
        }
        path = self.folder / "workload.yaml"
        path.write_text(yaml.safe_dump(data | changes), encoding="utf-8")
        return path

    def faults(self, *names: str) -> dict[str, object]:
        """engine_options that make the mock engine misbehave."""
        return {"env": {"MOCK_ENGINE_SIM": json.dumps(SIM), "MOCK_ENGINE_FAULTS": ",".join(names)}}

    def env(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        return {**os.environ, "TUNER_HOME": str(self.home), **(extra or {})}

    def tuner(self, *argv: object, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Run the command as people do, in a process of its own."""
        command = [sys.executable, "-m", "tuner", *map(str, argv)]
        return subprocess.run(
            command, cwd=self.folder, env=self.env(), capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def studies(self) -> list[Path]:
        return sorted(path.parent for path in (self.folder / "reports").glob("*/study.json"))


def save_model(folder: Path, **config: object) -> None:
    """A folder that looks like a saved model to whoever reads its config only."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    home, folder = tmp_path / "home", tmp_path / "work"
    folder.mkdir()
    (home / "engines").mkdir(parents=True)
    python = str(fake_python(tmp_path))
    for name, engine, version in (("mock", "vllm", "0.32.0"), ("mock-sglang", "sglang", "0.5.23")):
        entry = {
            "name": name, "engine": engine, "version": version, "python": python, "url": None, "device": "gpu",
            "corrections": [], "notes": [],
        }  # fmt: skip
        (home / "engines" / f"{name}.json").write_text(json.dumps(entry), encoding="utf-8")
    save_model(folder / "target", architectures=["LlamaForCausalLM"], hidden_size=8, vocab_size=32, num_hidden_layers=4)
    save_model(
        folder / "head",
        architectures=["LlamaForCausalLMEagle3"],
        hidden_size=8,
        vocab_size=32,
        draft_vocab_size=32,
    )
    return Bench(folder, home)
