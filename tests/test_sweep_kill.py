"""A night killed at random instants and gone on with: every cell once, no process left, the index as rebuilt."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

from conftest import Bench
from sweep_bench import (
    cells,
    finished_cells,
    index_equals_a_rebuild,
    left_running,
    nights,
    run,
    start,
    sweep_file,
    wait_until,
)

KILLS = 10
#: off, eagle3 N=2 and off again, each at two loads.
EXPECTED = {
    ("01-workload-mock", setting, role, load)
    for setting, role in (
        ("off", "baseline"), ("eagle3 N=2", "explore"), ("off", "baseline-again"),
    )
    for load in ("c1-t0", "c4-t0")
}  # fmt: skip


def test_ten_kills_at_random_instants_lose_no_cell_and_repeat_none(bench: Bench) -> None:
    file, rng = sweep_file(bench), random.Random(20261130)
    # On a busy machine everything takes longer, and the kills must not all fall before the first launch.
    begun_s = time.monotonic()
    run(bench, "history", "--help")
    start_s = time.monotonic() - begun_s
    finished: dict[Path, int] = {}
    for _ in range(KILLS):
        process = start(bench, "sweep", file, "--resume")
        time.sleep(rng.uniform(1, 8) * start_s)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        # What was finished before is as it was: nothing is measured twice or written over.
        assert {path: path.stat().st_mtime_ns for path in finished} == finished
        finished = {path: path.stat().st_mtime_ns for path in bench.folder.rglob("requests-*.jsonl")}
    done = run(bench, "sweep", file, "--resume")
    assert done.returncode == 0, done.stderr
    # On a fast machine a night ends between two kills, and the next start begins another.
    ended = nights(bench)
    assert ended
    for night in ended:
        measured = cells(night)
        assert set(measured) == EXPECTED
        assert len(measured) == len(EXPECTED)
    wait_until(lambda: not left_running(str(bench.home)), 60)
    assert index_equals_a_rebuild(bench.folder / "reports")


def test_sigterm_drops_the_cell_in_flight_and_leaves_a_night_to_go_on_with(bench: Bench) -> None:
    file = sweep_file(bench)
    process = start(bench, "sweep", file)
    wait_until(lambda: finished_cells(bench) >= 3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 130
    assert not left_running(str(bench.home))
    said = (bench.folder / "stderr.txt").read_text(encoding="utf-8")
    assert "go on with --resume" in said
    assert "Traceback" not in said
    done = run(bench, "sweep", file, "--resume")
    assert done.returncode == 0, done.stderr
    (night,) = nights(bench)
    assert sorted(cells(night)) == sorted(EXPECTED)
