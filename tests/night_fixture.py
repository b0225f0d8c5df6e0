"""Nights on the disk for tests of their report: the synthetic study, night after night, without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from study_fixture import ARMS, WORKLOAD, Truth, study_header, study_trials

from tuner.decide.nights_gates import GateResult
from tuner.measure.records import EngineFacts
from tuner.run.history_db import open_database
from tuner.run.history_index import refresh
from tuner.run.history_query import find_run, last_green
from tuner.run.host import HostFacts
from tuner.run.nights import Compared, compare_runs
from tuner.run.start import RESOLVED, Resolved
from tuner.run.store import StudyStore
from tuner.run.sweep_night import headline_of
from tuner.run.sweep_store import ENDED, STUDY_ENDED, VERDICT, NightHeader, NightStore
from tuner.run.sweep_study import CELL_FAILED
from tuner.spec.gate import parse_gate

LABEL, FOLDER = "chat-vllm-cpu", "01-chat-vllm-cpu"
GATES = ("tpot_p50 regress > 3 %", "tau drop > 5 %", "verify failed")
SWEEP = {"name": "nightly", "description": "A head and text lookup, every night.", "gates": list(GATES),
         "baseline": "last-green"}  # fmt: skip
SWEEP_TEXT = "name: nightly\nstudies:\n  - workload: chat.yaml   # <b>as typed</b>\n"
HOST = HostFacts(
    at="2026-05-04T02:00:00+00:00", tuner="0.1.0", cpu="Xeon of the tests", cores=2, cpu_quota=None, memory_gib=24.0,
    load_1m=0.2, system="Linux 6.1 x86_64", python="3.11.9",
)  # fmt: skip
#: Lines an engine wrote before it died: markup in them must stay text.
LOG = ("ERROR <script>alert(1)</script>", "torch.OutOfMemoryError: out of room & done")
SMALL = Truth(measured=10, concurrency=(1, 4), temperatures=(0.0,))


def write_nights(reports: Path, slopes: Sequence[float], versions: Sequence[str] = ()) -> list[Path]:
    """A night a slope, which is what drafting costs; each is compared with the last green one as a sweep does it."""
    return [
        write_night(reports, i, slope, (versions or ("0.32.0",) * len(slopes))[i]) for i, slope in enumerate(slopes)
    ]


def write_night(reports: Path, day: int, slope: float, version: str = "0.32.0") -> Path:
    name, created = f"202605{day + 1:02d}-020000-nightly", f"2026-05-{day + 1:02d}T02:00:00+00:00"
    study = {"label": LABEL, "folder": FOLDER, "engine": "vllm-cpu", "version": version,
             "models": [["/models/smollm2-135m", "t1"], ["/models/smollm2-135m/eagle3", "d1"]]}  # fmt: skip
    header = NightHeader(name, created, "nightly", "plan", SWEEP, SWEEP_TEXT, "sweeps/nightly.yaml", (study,), HOST)
    with NightStore.create(reports, header) as night:
        _write_study(night.study_folder(0), name, replace(SMALL, slope=slope, drift=1.003 + 0.001 * day), version)
        night.note(STUDY_ENDED, folder=FOLDER, status="complete")
        _judge(reports, night)
    return reports / name


def _write_study(folder: Path, name: str, truth: Truth, version: str) -> None:
    traffic = {"concurrency": list(truth.concurrency), "prompts": [{"set": "chat"}], "max_output_tokens": 96}
    workload = WORKLOAD | {"traffic": traffic, "sampling": {"temperatures": [0]}, "measure": {"requests": 10}}
    with StudyStore.create(folder, replace(study_header(workload), id=name)) as store:
        store.note(RESOLVED, **Resolved("/models/smollm2-135m", ARMS, ()).to_dict())
        for trial in study_trials(truth):
            store.trial_started(trial.number, trial.spec, trial.engine, trial.role, trial.why, trial.command, trial.env)
            facts = replace(trial.facts, version=version) if trial.ok else EngineFacts()
            if trial.ready_s is not None:
                store.trial_ready(trial.number, trial.ready_s, facts)
            for cell in trial.cells:
                store.cell_done(trial.number, cell)
            store.trial_ended(trial.number, trial.status, facts)
            if not trial.ok:
                cause = trial.status.removeprefix("failed: ")
                store.note(CELL_FAILED, number=trial.number, cell=None, cause=cause, log_tail=list(LOG))
        store.study_ended("complete")


def _judge(reports: Path, night: NightStore) -> None:
    with open_database(reports) as database:
        refresh(database, reports)
        run = find_run(database, night.folder.name)
        before = last_green(database, run.name, before=run)
        compared = compare_runs(database, reports, before, run, [parse_gate(text) for text in GATES])
    night.note(
        VERDICT, state="red" if compared.red else "green", baseline=before.id if before else None,
        headline=headline_of(compared, "complete"), gates=[_gate(one) for one in compared.gates],
    )  # fmt: skip
    night.note(ENDED, status="complete")


def _gate(one: GateResult) -> dict[str, object]:
    return {"gate": one.gate.text, "state": one.state, "reasons": list(one.reasons)}


def compared_of(reports: Path, before: str, after: str) -> Compared:
    with open_database(reports) as database:
        refresh(database, reports)
        gates = [parse_gate(text) for text in GATES]
        return compare_runs(database, reports, find_run(database, before), find_run(database, after), gates)
