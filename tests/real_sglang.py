"""Where the tests marked real_sglang find SGLang, its target model and a draft head; a test without them fails."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tuner.engines.environments import Environment, load_environments
from tuner.engines.models import load_models

HERE = Path(__file__).parent
HEADS = (Path(__file__).parents[1] / "profiles" / "smollm2-135m" / "eagle3",)


def environment() -> Environment:
    """The registered environment of SGLang's CPU build."""
    found = [
        env for env in load_environments().values() if env.engine == "sglang" and env.python and env.device == "cpu"
    ]
    if not found:
        pytest.fail("no SGLang on CPU is registered: run `make sglang`", pytrace=False)
    return found[0]


def target() -> str:
    found = load_models().get("smollm2-135m")
    if found is None:
        pytest.fail("the target model is not there: run `make engines`", pytrace=False)
    return found.path


def head() -> str:
    found = [path for path in HEADS if (path / "model.safetensors").is_file()]
    if not found:
        pytest.fail(f"no EAGLE-3 head in {HEADS[0]}", pytrace=False)
    return str(found[0])


def run_in_environment(script: str, *argv: str, stdin: str = "", timeout_s: float = 300) -> str:
    """Standard output of a script of this folder, run by the environment's own Python on SGLang's CPU path."""
    env = environment()
    done = subprocess.run(
        [str(env.python), str(HERE / script), *argv],
        input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False,
        env={"PATH": "/usr/bin:/bin", "SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1",
             "SGLANG_CPU_OMP_THREADS_BIND": "0", "HOME": str(Path.home())},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
