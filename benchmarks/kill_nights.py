"""Kill `tuner sweep` at random instants on a real engine, go on each time, and check what is left.

    python benchmarks/kill_nights.py --folder DIR [--sweep sweeps/nightly-cpu.yaml] [--kills 10] [--rounds N]

Each round starts `tuner sweep --resume`, kills it with SIGKILL after a random time, waits until everything it started
is gone, and checks that no finished file changed. After the last kill the night is run to its end: then every cell is
there exactly once and the index equals a rebuild. DIR keeps the state, so that --rounds may cut the work in pieces.
Exit code 0: all of it holds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tuner.run.history_db import dump, open_database
from tuner.run.history_index import rebuild, refresh
from tuner.run.store import StudyStore
from tuner.run.study import keys_for
from tuner.run.sweep_plan import plan_sweep

ROOT = Path(__file__).resolve().parents[1]
MARK = "TUNER_KILL_NIGHTS"
#: Seconds a killed tuner's engine may take to end: the guard's own grace, and a loaded machine.
GONE_WITHIN_S = 60.0


def left_running(mark: str) -> list[str]:
    """Processes, engines and guards alike, that inherited this run's mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (path / "environ").read_bytes() and int(path.name) != os.getpid():
                found.append(f"{path.name} {(path / 'cmdline').read_bytes().replace(bytes(1), b' ').decode()[:80]}")
        except OSError:
            continue
    return found


def start(folder: Path, sweep: Path, mark: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tuner", "sweep", str(sweep), "--resume", "--reports", str(folder / "reports")]
    with (folder / "said.txt").open("ab") as said:
        return subprocess.Popen(
            [*command, "--minutes", "600"], cwd=ROOT, env={**os.environ, MARK: mark}, stdout=said, stderr=said
        )


def finished(folder: Path) -> dict[str, int]:
    """Request records by path: what was finished must never be written again."""
    return {str(path): path.stat().st_mtime_ns for path in folder.glob("reports/*/*/trials/*/requests-*.jsonl")}


def kill_once(folder: Path, sweep: Path, state: dict[str, Any], low_s: float, high_s: float) -> None:
    rng = random.Random(state["seed"] + len(state["kills"]))
    mark = f"{state['seed']}-{len(state['kills'])}-{os.getpid()}"
    process, after_s = start(folder, sweep, mark), rng.uniform(low_s, high_s)
    try:
        process.wait(after_s)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    began_s = time.monotonic()
    while (left := left_running(mark)) and time.monotonic() - began_s < GONE_WITHIN_S:
        time.sleep(0.1)
    gone_s = time.monotonic() - began_s
    changed = [path for path, at in state["finished"].items() if finished(folder).get(path) != at]
    state["kills"].append({"after_s": round(after_s, 1), "gone_s": round(gone_s, 1), "left": left, "changed": changed,
                           "ended_by_itself": process.returncode >= 0, "cells": len(finished(folder))})  # fmt: skip
    state["finished"] = finished(folder)


def check(folder: Path, sweep: Path) -> list[str]:
    """What does not hold once the night has ended; nothing when all does."""
    wrong = []
    nights = sorted((folder / "reports").glob("*/sweep.json"))
    if len(nights) != 1:
        wrong.append(f"there are {len(nights)} nights and not one")
    for planned, study in zip(plan_sweep(sweep).studies, sorted(nights[0].parent.glob("*/study.json")), strict=True):
        specs = [spec.label for arm in planned.question.arms for spec in arm.configs]
        roles = [("off", "baseline"), *((spec, "explore") for spec in specs), ("off", "baseline-again")]
        expected = {(*one, key.label) for one in roles for key in keys_for(planned.question, one[1])}
        trials = StudyStore.read(study.parent).trials()
        seen = Counter((t.spec.label, t.role, cell.key.label) for t in trials for cell in t.cells)
        wrong += [f"{planned.label}: {cell} is missing" for cell in expected - set(seen)]
        wrong += [f"{planned.label}: {cell} is there {n} times" for cell, n in seen.items() if n > 1]
    with open_database(folder / "reports") as database:
        refresh(database, folder / "reports")
        kept = dump(database)
    rebuild(folder / "reports")
    with open_database(folder / "reports") as database:
        if kept != dump(database):
            wrong.append("the index is not what a rebuild makes")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--sweep", type=Path, default=ROOT / "sweeps" / "nightly-cpu.yaml")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--rounds", type=int, help="at most so many now")
    parser.add_argument("--seed", type=int, default=20261130)
    parser.add_argument("--between", type=float, nargs=2, default=(5.0, 150.0), metavar="SECONDS")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    path, sweep = args.folder / "kills.json", args.sweep.resolve()
    state = {"seed": args.seed, "kills": [], "finished": {}} if not path.exists() else json.loads(path.read_text())
    rounds = args.rounds if args.rounds is not None else args.kills + 1
    while len(state["kills"]) < args.kills and rounds > 0:
        kill_once(args.folder, sweep, state, *args.between)
        path.write_text(json.dumps(state, indent=2))
        print(json.dumps(state["kills"][-1]), flush=True)
        rounds -= 1
    if rounds <= 0:
        return 0
    done = start(args.folder, sweep, "last").wait()
    wrong = check(args.folder, sweep) + [f"the last run ended with {done}"] * (done not in (0, 1))
    wrong += [f"kill {i}: {kill['left'] or kill['changed']}" for i, kill in enumerate(state["kills"], 1)
              if kill["left"] or kill["changed"]]  # fmt: skip
    print("\n".join(wrong) or f"holds: every cell once after {args.kills} kills, no process left, index as rebuilt")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
