"""The command's face: it starts light, every command shows examples, and errors are one sentence with an exit code."""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
import typing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tuner.cli import app
from tuner.cli.finite import finite
from tuner.errors import UserError
from tuner.run.question import with_budget

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


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    ("argv", "option"),
    [
        (("verify", "--off-url", "http://127.0.0.1:9", "--spec-url", "http://127.0.0.1:9"), "--tie"),
        (("verify", "--off-url", "http://127.0.0.1:9", "--spec-url", "http://127.0.0.1:9"), "--temperature"),
        (("acceptance", "--url", "http://127.0.0.1:9"), "--seconds"),
        (("plan", "w.yaml"), "--minutes"),
        (("recommend", "w.yaml"), "--minutes"),
        (("sweep", "s.yaml"), "--minutes"),
    ],
)
def test_no_option_takes_a_number_that_no_comparison_stops(argv: tuple[str, ...], option: str, value: str) -> None:
    """`nan < 0` is false, and a gap of any size is within inf: what is let through decides by itself."""
    done = CliRunner().invoke(app, [*argv, f"{option}={value}"])
    assert done.exit_code == 2
    assert f"Invalid value for '{option}'" in done.output


def test_every_option_with_a_fraction_refuses_what_is_not_finite() -> None:
    """Those of `tuner theory` are refused by the formulas they go into, which say what the number is of."""
    seen = []
    for name in ("verify", "plan", "recommend", "sweep", "acceptance", "check", "report", "compare", "history"):
        command = getattr(importlib.import_module(f"tuner.cli.{name}"), name)
        for option, hint in typing.get_type_hints(command, include_extras=True).items():
            if "float" in str(hint):
                (info,) = [one for one in typing.get_args(hint)[1:] if hasattr(one, "callback")]
                assert info.callback is finite, (name, option)
                seen.append((name, option))
    assert len(seen) == 6


@pytest.mark.parametrize("budget", [{"minutes": -1.0}, {"minutes": 0.0}, {"minutes": math.nan}, {"launches": 0}])
def test_a_budget_on_the_command_line_that_affords_nothing_is_a_sentence(budget: dict[str, float]) -> None:
    (name,) = budget
    with pytest.raises(UserError, match=rf"--{name} (-1|0|nan) affords nothing: give a number above 0"):
        with_budget(None, **({"minutes": None, "launches": None} | budget))  # type: ignore[arg-type]


def test_acceptance_of_live_traffic_is_two_scrapes() -> None:
    from mock_engine import mock_process

    spec = '{"method": "eagle3", "model": "h", "num_speculative_tokens": 3}'
    with mock_process("--flavour", "vllm", "--speculative-config", spec) as (url, _):
        done = tuner("acceptance", "--url", url, "--seconds", "0.2")
    assert done.returncode == 0
    assert "no drafts between the dumps" in done.stdout
