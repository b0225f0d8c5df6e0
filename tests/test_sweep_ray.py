"""Trials as Ray tasks on a cluster of this machine with fake GPUs: none is shared, a killed worker's trial is repeated.

Opt-in (`-m ray`): it needs the extra [ray] and starts a local cluster.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import Bench
from ray_bench import RAY, claims
from sweep_bench import EAGLE, cells, environment, left_running, nights, sweep_file, wait_until

from tuner.run.journal import Journal
from tuner.run.store import StudyStore

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

FAKE_GPUS = 4
#: The cluster that `--executor ray` makes for itself has as many GPUs as the machine; the tests' has four.
DRIVER = f"""
import sys, ray
real = ray.init
ray.init = lambda **given: real(**given | {{"num_gpus": {FAKE_GPUS}, "num_cpus": 8}})
from tuner.cli import main
main()
"""
Event = dict[str, Any]


def start_ray(bench: Bench, *argv: object) -> subprocess.Popen[str]:
    pytest.importorskip("ray")
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, *map(str, argv)], cwd=bench.folder, text=True,
        env=environment(bench) | RAY,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def events(bench: Bench) -> list[Event]:
    (night,) = nights(bench)
    (journal,) = night.glob("*/journal.jsonl")
    return Journal(journal).events()


def spans(told: list[Event]) -> list[tuple[float, float, str]]:
    """(begin, end, GPU) of every claim."""
    return [(begin, end, gpu) for begin, end, gpus in claims(told) for gpu in gpus]


def test_eight_trials_on_four_gpus_never_share_one(bench: Bench) -> None:
    file = sweep_file(bench, studies=[EAGLE | {"axes": {"n": [1, 2, 3, 4, 5, 6]}}])
    process = start_ray(bench, "sweep", file, "--executor", "ray", "--json")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert json.loads(out)["status"] == "complete"
    told = events(bench)
    claimed = spans(told)
    assert len(claimed) == 8  # off, six settings, off again
    assert {gpu for _, _, gpu in claimed} == {"0", "1", "2", "3"}
    for i, (begin, end, gpu) in enumerate(claimed):
        for other_begin, other_end, other in claimed[i + 1 :]:
            assert other != gpu or other_begin >= end or begin >= other_end, "two trials had one GPU"
    moments = [begin for begin, _, _ in claimed]
    assert max(sum(b <= at < e for b, e, _ in claimed) for at in moments) >= 2  # they did run side by side
    (night,) = nights(bench)
    assert len(cells(night)) == 16
    # The journal has every trial's log and records, though workers measured them.
    (study,) = night.glob("*/study.json")
    assert all(StudyStore.read(study.parent).log_path(number).stat().st_size for number in range(1, 9))
    wait_until(lambda: not left_running(str(bench.home)), 60)


def test_a_killed_workers_trial_is_repeated_once_and_recorded(bench: Bench) -> None:
    file = sweep_file(bench)
    process = start_ray(bench, "sweep", file, "--executor", "ray", "--json")
    wait_until(lambda: nights(bench) and any(p.exists() for p in nights(bench)[0].glob("*/journal.jsonl")), 120)
    wait_until(lambda: any(e["event"] == "cell_done" and e["number"] == 2 for e in events(bench)), 240)
    worker = next(e["worker"] for e in events(bench) if e["event"] == "claimed" and e["number"] == 2)
    os.kill(worker, signal.SIGKILL)
    _out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    (night,) = nights(bench)
    (study,) = night.glob("*/study.json")
    trials = StudyStore.read(study.parent).trials()
    lost = next(trial for trial in trials if trial.number == 2)
    assert lost.status.startswith("failed: the worker was lost")
    again = [trial for trial in trials if trial.why.startswith("once more: its worker was lost in launch 2")]
    assert [(trial.spec, trial.status) for trial in again] == [(lost.spec, "ok")]
    # What the worker had told before it died is kept and not measured again.
    assert [cell.key.label for cell in lost.cells] == ["c1-t0"]
    assert [cell.key.label for cell in again[0].cells] == ["c4-t0"]
    wait_until(lambda: not left_running(str(bench.home)), 60)


def test_sigterm_ends_the_workers_and_their_engines(bench: Bench) -> None:
    file = sweep_file(bench)
    process = start_ray(bench, "sweep", file, "--executor", "ray")
    wait_until(lambda: nights(bench) and any(Path(p).exists() for p in nights(bench)[0].glob("*/journal.jsonl")), 120)
    wait_until(lambda: any(e["event"] == "cell_done" for e in events(bench)), 240)
    process.send_signal(signal.SIGTERM)
    _out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "go on with --resume" in err
    deadline = time.monotonic() + 60
    while left_running(str(bench.home)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left_running(str(bench.home))
