"""The command's face: it starts light, every command shows examples, and errors are one sentence with an exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("numpy", "scipy", "pydantic", "aiohttp", "matplotlib", "yaml", "rich", "jinja2", "prometheus_client")
COMMANDS = [
    ["recommend"], ["report"], ["acceptance"], ["check"], ["init"], ["schema"], ["engine", "add"], ["engine", "list"],
    ["engine", "remove"], ["model", "add"], ["theory", "verify"], ["theory", "speedup"], ["theory", "tree"],
    ["theory", "kv"], ["sweep"], ["history"], ["compare"],
]  # fmt: skip


def tuner(*argv: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tuner", *argv]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, timeout=120)


def test_the_command_starts_without_heavy_modules() -> None:
    # What makes `tuner --help` fast; the time itself is not asserted on machines that are shared.
    code = f"import sys, tuner.cli; print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_shows_examples(command: list[str]) -> None:
    done = tuner(*command, "--help")
    assert done.returncode == 0
    assert f"tuner {' '.join(command)}" in done.stdout.replace("Usage: tuner", "", 1)


def test_acceptance_of_two_dumps(tmp_path: Path) -> None:
    from test_counters import dump

    (tmp_path / "a").write_text(dump(0, 0, 0, [0, 0]), encoding="utf-8")
    (tmp_path / "b").write_text(dump(10, 20, 8, [6, 2]), encoding="utf-8")
    done = tuner("acceptance", "a", "b", cwd=tmp_path)
    assert done.returncode == 0
    assert "tau                    1.800" in done.stdout  # 1 + 8 / 10
    assert "alpha                  0.500" in done.stdout  # 8 accepted, 10 - 2 steps rejected: 8 / 16


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["acceptance", "absent", "absent"], "cannot read absent"),
        (["acceptance"], "give either two files"),
        (["acceptance", "--url", "http://127.0.0.1:9", "--seconds", "0.1"], "does not answer"),
        (["report", "absent"], "holds no study"),
        (["check", "--target", "./absent", "--draft", "none", "--method", "ngram", "--engine", "vllm"], "absent"),
        (["theory", "speedup", "--alpha", "2", "--cost", "0.1"], "alpha"),
    ],
)
def test_errors_are_one_sentence_and_exit_2(tmp_path: Path, argv: list[str], sentence: str) -> None:
    done = tuner(*argv, cwd=tmp_path)
    assert sentence in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert done.returncode in (1, 2)


def test_acceptance_of_live_traffic_is_two_scrapes() -> None:
    from mock_engine import mock_process

    spec = '{"method": "eagle3", "model": "h", "num_speculative_tokens": 3}'
    with mock_process("--flavour", "vllm", "--speculative-config", spec) as (url, _):
        done = tuner("acceptance", "--url", url, "--seconds", "0.2")
    assert done.returncode == 0
    assert "no drafts between the dumps" in done.stdout
