"""sweeps/nightly-cpu.yaml on a real vLLM, killed ten times at random instants. Opt-in: `-m real_nights`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import real_vllm

pytestmark = [pytest.mark.real_nights, pytest.mark.timeout(5400)]


def test_ten_kills_on_a_real_engine_lose_no_cell_and_leave_no_process(tmp_path: Path) -> None:
    real_vllm.environment()
    real_vllm.target()
    script = real_vllm.ROOT / "benchmarks" / "kill_nights.py"
    done = subprocess.run(
        [sys.executable, str(script), "--folder", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "said.txt").read_text(encoding="utf-8")
    assert "holds: every cell once after 10 kills" in done.stdout
