"""One study, one folder: what was asked, an append-only journal of what happened, and every trial's raw records.

    study.json                            what was asked, of which machine and engines
    journal.jsonl                         one event a line, synced to the disk as it happens
    trials/001-off/engine.log
    trials/001-off/requests-c4-t0.jsonl   a header line, then one line a request
    trials/001-off/counters-c4-t0-before.prom, counters-c4-t0-after.prom
    lock                                  held by the one process that writes

A cell is named by the journal only after its files are on the disk, so a kill loses at most the cell in flight.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tuner.errors import UserError
from tuner.measure.records import Cell, EngineFacts, Trial
from tuner.run.cell_files import read_cell, write_cell
from tuner.run.files import sync_folder, write_atomic, writing
from tuner.run.journal import Event
from tuner.run.journaled import JournaledFolder
from tuner.run.labelled import with_faults
from tuner.run.study_header import StudyHeader, question_hash
from tuner.spec.speculation import SpecConfig

#: The status of a trial or study that was started, never ended, and is not running.
INTERRUPTED = "interrupted"


class StudyStore(JournaledFolder):
    """A study on disk. `create` and `open` make this process its one writer until `close`; `read` only looks."""

    def __init__(self, folder: Path, header: StudyHeader) -> None:
        super().__init__(folder)
        self.header = header

    @classmethod
    def create(cls, folder: Path, header: StudyHeader) -> Self:
        if os.path.exists(folder) and not (os.path.isdir(folder) and not any(folder.iterdir())):
            raise UserError(f"{folder} exists and is not empty: choose another folder, or resume the study in it")
        try:
            (folder / "trials").mkdir(parents=True)
        except OSError as error:
            raise UserError(f"cannot create {folder} ({error.strerror}): choose another folder") from None
        store = cls(folder, header)
        store._start_writing()
        write_atomic(folder / "study.json", json.dumps(header.to_dict(), indent=2, ensure_ascii=False) + "\n")
        return store

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Go on with a study; UserError while another process writes it."""
        store = cls.read(folder)
        store._start_writing()
        return store

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Look at a study, also at one that another process is writing."""
        return cls(folder, StudyHeader.read(folder / "study.json"))

    def trial_started(
        self,
        number: int,
        spec: SpecConfig,
        engine: str,
        role: str,
        why: str,
        command: tuple[str, ...],
        env: tuple[tuple[str, str], ...],
    ) -> Path:
        """Every launch has a number of its own, also one that makes up for another. `env` must hold no secret."""
        if number in self._started():
            raise ValueError(f"trial {number} was started before: take next_number")
        name = f"{number:03d}-{re.sub(r'[^a-z0-9.]+', '-', spec.label.lower()).strip('-')}"
        folder = self.folder / "trials" / name
        with writing(folder):
            folder.mkdir(exist_ok=True)
            sync_folder(folder.parent)
        self._journal.append(
            "trial_started", number=number, folder=name, spec=spec.to_dict(), engine=engine, role=role, why=why,
            command=command, env=env,
        )  # fmt: skip
        return folder

    def trial_ready(self, number: int, ready_s: float, facts: EngineFacts) -> None:
        self._journal.append("trial_ready", number=number, ready_s=ready_s, facts=dataclasses.asdict(facts))

    def cell_done(self, number: int, cell: Cell, zero_unix: float | None = None) -> None:
        """`zero_unix`: the wall clock at the cell's zero, seconds."""
        self._journal.append("cell_done", number=number, **write_cell(self.trial_folder(number), cell, zero_unix))

    def cell_aborted(self, number: int, cell: Cell) -> None:
        """Keep what was measured of a cell whose engine was lost; it is in the files and is no cell of the trial."""
        self._journal.append("cell_aborted", number=number, **write_cell(self.trial_folder(number), cell, None))

    def trial_ended(self, number: int, status: str, facts: EngineFacts | None = None) -> None:
        """`status`: ok, or why it failed; `facts` replace those of `trial_ready`."""
        self._journal.append(
            "trial_ended", number=number, status=status, facts=dataclasses.asdict(facts) if facts else None
        )

    def study_ended(self, status: str) -> None:
        self._journal.append("study_ended", status=status)

    def note(self, event: str, **fields: Any) -> None:
        """Journal an event of the caller's own, e.g. a prediction before it is tested; `events` gives it back."""
        self._journal.append(event, **fields)

    def was_started(self, number: int) -> bool:
        """Launches that run side by side start in any order: a later one may be there before an earlier one."""
        return number in self._started()

    @property
    def next_number(self) -> int:
        return 1 + max(self._started(), default=0)

    def trial_folder(self, number: int) -> Path:
        try:
            return self.folder / "trials" / self._started()[number]
        except KeyError:
            raise UserError(f"{self.folder} has no trial {number}: its journal names {len(self._started())}") from None

    def log_path(self, number: int) -> Path:
        return self.trial_folder(number) / "engine.log"

    def status(self) -> str:
        """What `study_ended` said, `running` while a process writes it, else `interrupted`."""
        if self._lock.is_held():
            return "running"
        ends = [event for event in self.events() if event["event"] in ("study_opened", "study_ended")]
        return str(ends[-1].get("status", INTERRUPTED)) if ends else INTERRUPTED

    def trials(self) -> tuple[Trial, ...]:
        """Every launch, in order, from the disk; one that never ended is `interrupted` and keeps its finished cells."""
        folders = self._started()
        trials: dict[int, Trial] = {}
        for line, event in enumerate(self.events(), start=1):
            try:
                if event["event"] == "cell_done":
                    trial, folder = trials[event["number"]], self.folder / "trials" / folders[event["number"]]
                    trials[trial.number] = dataclasses.replace(trial, cells=(*trial.cells, read_cell(folder, event)))
                else:
                    _apply(event, trials)
            except (KeyError, TypeError, ValueError) as error:
                where = f"{self._journal.path}, line {line}"
                raise UserError(
                    f"{where} is not a whole {event['event']} ({error!r}): restore it from a copy"
                ) from None
        return with_faults(tuple(trials.values()), self.events())

    def _started(self) -> dict[int, str]:
        return {e["number"]: e["folder"] for e in self.events() if e["event"] == "trial_started"}

    def _start_writing(self) -> None:
        try:
            self._lock.take()
            self._journal.open_for_append()
            self._journal.append("study_opened")
            self.events()
        except BaseException:
            self.close()
            raise


@dataclass(frozen=True, slots=True)
class StudyRow:
    """One study in a listing. `question`: equal for studies that ask the same, whatever they may cost."""

    id: str
    folder: Path
    status: str
    created: str
    workload: str
    workload_hash: str
    question: str = ""


def find_studies(reports: Path) -> list[StudyRow]:
    """The studies directly below `reports`, oldest first; the status of one that cannot be read says why."""
    rows = []
    for path in reports.glob("*/study.json") if os.path.isdir(reports) else ():
        try:
            store = StudyStore.read(path.parent)
            header, status = store.header, store.status()
            asked = question_hash(header.workload)
            rows.append(
                StudyRow(header.id, path.parent, status, header.created, header.name, header.workload_hash, asked)
            )
        except UserError as error:
            rows.append(StudyRow(path.parent.name, path.parent, f"unreadable: {error}", "", "", ""))
    return sorted(rows, key=lambda row: (row.created, row.id))


def _apply(event: Event, trials: dict[int, Trial]) -> None:
    number = event.get("number", 0)
    match event["event"]:
        case "trial_started":
            trials[number] = Trial(
                number=number, spec=SpecConfig.from_dict(event["spec"]), engine=event["engine"], status=INTERRUPTED,
                command=tuple(event["command"]), env=_pairs(event["env"]), role=event["role"], why=event["why"],
            )  # fmt: skip
        case "trial_ready":
            facts = _facts(event["facts"])
            trials[number] = dataclasses.replace(trials[number], ready_s=event["ready_s"], facts=facts)
        case "trial_ended":
            facts = _facts(event["facts"]) if event["facts"] else trials[number].facts
            trials[number] = dataclasses.replace(trials[number], status=event["status"], facts=facts)


def _facts(data: dict[str, Any]) -> EngineFacts:
    return EngineFacts(**data | {"resolved": _pairs(data["resolved"]), "warnings": tuple(data["warnings"])})


def _pairs(data: list[list[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in data)
