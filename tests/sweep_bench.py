"""Sweeps over the mock engine for tests: a file, the command in the background, and what may be left of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from conftest import SIM, Bench
from study_fixture import study_header, study_trials

from tuner.run.history_db import dump, open_database
from tuner.run.history_index import rebuild, refresh
from tuner.run.store import StudyStore
from tuner.run.sweep_plan import SweepPlan
from tuner.run.sweep_store import ENDED, STUDY_ENDED, VERDICT, NightHeader, NightStore

EAGLE = {"workload": "workload.yaml", "drafts": ["eagle3"], "axes": {"n": [2]}}


def sweep_file(bench: Bench, *, workload: Mapping[str, Any] | None = None, **changes: Any) -> Path:
    """Off and eagle3 N=2 at two loads, exhaustive; `workload` and `changes` replace top-level keys."""
    quick = {
        "engine_options": {}, "traffic": {"concurrency": [1, 4], "prompts": [{"set": "chat"}], "max_output_tokens": 12},
        "measure": {"requests": 4, "waves": 1, "warmup_requests": 1},
    }  # fmt: skip
    bench.workload(**quick | dict(workload or {}))
    data: dict[str, Any] = {
        "name": "night", "mode": "exhaustive", "studies": [EAGLE],
        "budget": {"minutes": 5}, "gates": ["tpot_p50 regress > 3 %", "tau drop > 5 %", "verify failed"],
    }  # fmt: skip
    path = bench.folder / "sweep.yaml"
    path.write_text(yaml.safe_dump(data | changes), encoding="utf-8")
    return path


def environment(bench: Bench, sim: Mapping[str, Any] | None = None, faults: str = "") -> dict[str, str]:
    """The engine inherits how fast the mock is, so that nights of one question can differ in it."""
    extra = {"MOCK_ENGINE_SIM": json.dumps({**SIM, **(sim or {})}), "TUNER_LOCKS": str(bench.home / "locks")}
    return bench.env(extra | ({"MOCK_ENGINE_FAULTS": faults} if faults else {}))


def run(
    bench: Bench, *argv: object, sim: Mapping[str, Any] | None = None, faults: str = "", timeout_s: float = 500
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tuner", *map(str, argv)]
    return subprocess.run(
        command, cwd=bench.folder, env=environment(bench, sim, faults), capture_output=True, text=True,
        timeout=timeout_s, check=False,
    )  # fmt: skip


def start(bench: Bench, *argv: object, faults: str = "") -> subprocess.Popen[bytes]:
    """In the background; what it says on stderr goes to stderr.txt."""
    command = [sys.executable, "-m", "tuner", *map(str, argv)]
    with (bench.folder / "stderr.txt").open("ab") as stderr:
        return subprocess.Popen(
            command, cwd=bench.folder, env=environment(bench, faults=faults), stdout=subprocess.DEVNULL, stderr=stderr
        )


def nights(bench: Bench) -> list[Path]:
    return sorted(path.parent for path in (bench.folder / "reports").glob("*/sweep.json"))


def cells(night: Path) -> list[tuple[str, str, str, str]]:
    """(study, setting, role, cell) of everything measured in a night, from its stored records."""
    return [
        (folder.parent.name, trial.spec.label, trial.role, cell.key.label)
        for folder in sorted(night.glob("*/study.json"))
        for trial in StudyStore.read(folder.parent).trials()
        for cell in trial.cells
    ]


def finished_cells(bench: Bench) -> int:
    return sum(text.read_text().count('"cell_done"') for text in bench.folder.glob("reports/*/*/journal.jsonl"))


def left_running(marker: str) -> list[int]:
    """Processes, engines and guards alike, whose environment or command line holds a text of this test alone."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            told = (path / "cmdline").read_bytes() + (path / "environ").read_bytes()
        except OSError:
            continue
        if marker.encode() in told and int(path.name) != os.getpid():
            found.append(int(path.name))
    return found


def wait_until(holds: Callable[[], object], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def write_night(plan: SweepPlan, reports: Path, name: str) -> Path:
    """A night of a plan with one study, as if it had run: the launches of the synthetic study, ended and green."""
    header = replace(NightHeader.new(plan), id=name, created=f"{name[:4]}-{name[4:6]}-{name[6:8]}T02:00:00+00:00")
    with NightStore.create(reports, header) as night:
        folder = night.study_folder(0)
        store = StudyStore.create(folder, replace(study_header(), id=name))
        with store:
            for trial in study_trials():
                store.trial_started(
                    trial.number, trial.spec, trial.engine, trial.role, trial.why, trial.command, trial.env
                )
                for cell in trial.cells:
                    store.cell_done(trial.number, cell)
                store.trial_ended(trial.number, trial.status, trial.facts)
            store.study_ended("complete")
        night.note(STUDY_ENDED, folder=folder.name, status="complete")
        night.note(VERDICT, state="green", baseline=None, headline="", gates=[])
        night.note(ENDED, status="complete")
    return reports / name


def index_equals_a_rebuild(reports: Path) -> bool:
    """The index as it is kept against one made from the journals alone."""
    with open_database(reports) as database:
        refresh(database, reports)
        kept = dump(database)
    rebuild(reports)
    with open_database(reports) as database:
        return kept == dump(database) and bool(kept["cells"])
