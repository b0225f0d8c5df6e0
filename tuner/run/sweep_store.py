"""One night, one folder: what was planned, a journal of what happened to it, and a folder for every study.

sweep.json          what was planned, on which machine
journal.jsonl       one event a line, synced to the disk as it happens
01-chat-vllm-cpu/   a study as `tuner recommend` keeps it
lock                held by the one process that writes
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tuner.errors import UserError
from tuner.run.files import write_atomic
from tuner.run.host import HostFacts
from tuner.run.journal import Journal
from tuner.run.journaled import JournaledFolder, read_header

if TYPE_CHECKING:
    from tuner.run.sweep_plan import SweepPlan

SCHEMA = 1
#: The status of a night that was begun, did not end, and is not running.
INTERRUPTED = "interrupted"
#: Of a study that came to its end, and of a night whose studies all did.
COMPLETE = "complete"
HEADER = "sweep.json"
OPENED, ENDED, STUDY_BEGAN, STUDY_ENDED = "night_opened", "night_ended", "study_began", "study_done"
#: What the command was given besides the sweep; what the night was compared with and what came of it; a name people
#: gave it.
ASKED, VERDICT, TAGGED = "asked", "verdict", "tagged"
#: In a study's folder: its figures, once its request records were let go.
KEPT_FIGURES = "figures.json"


def is_night(folder: Path) -> bool:
    return os.path.exists(folder / HEADER)


@dataclass(frozen=True, slots=True)
class NightHeader:
    """`studies`: `PlannedStudy.to_dict` with the folder of each. `sweep_text`: as typed."""

    id: str
    created: str
    name: str
    key: str
    sweep: dict[str, Any]
    sweep_text: str
    path: str
    studies: tuple[dict[str, Any], ...]
    host: HostFacts

    @classmethod
    def new(cls, plan: SweepPlan) -> Self:
        created = datetime.now().astimezone()
        studies = tuple(
            study.to_dict() | {"folder": f"{number:02d}-{study.label}"} for number, study in enumerate(plan.studies, 1)
        )
        return cls(
            id=f"{created:%Y%m%d-%H%M%S}-{plan.sweep.name}", created=created.isoformat(timespec="seconds"),
            name=plan.sweep.name, key=plan.key, sweep=plan.sweep.model_dump(mode="json"), sweep_text=plan.text,
            path=str(plan.path), studies=studies, host=HostFacts.read(),
        )  # fmt: skip

    @classmethod
    def read(cls, path: Path) -> Self:
        return read_header(path, "night", SCHEMA, cls.from_dict)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        fields = {f.name: data[f.name] for f in dataclasses.fields(cls)}
        return cls(**fields | {"host": HostFacts.from_dict(data["host"]), "studies": tuple(data["studies"])})

    def to_dict(self) -> dict[str, Any]:
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {"schema": SCHEMA} | fields | {"host": self.host.to_dict(), "studies": list(self.studies)}


class NightStore(JournaledFolder):
    """A night on disk. `create` and `open` make this process its one writer until `close`; `read` only looks."""

    def __init__(self, folder: Path, header: NightHeader) -> None:
        super().__init__(folder)
        self.header = header

    @classmethod
    def create(cls, reports: Path, header: NightHeader) -> Self:
        folder = _made(reports, header.id)
        header = dataclasses.replace(header, id=folder.name)
        store = cls(folder, header)
        store._lock.take()
        write_atomic(folder / HEADER, json.dumps(header.to_dict(), indent=2, ensure_ascii=False) + "\n")
        store._start_writing()
        return store

    @classmethod
    def open(cls, folder: Path) -> Self:
        store = cls.read(folder)
        store._lock.take()
        store._start_writing()
        return store

    @classmethod
    def read(cls, folder: Path) -> Self:
        return cls(folder, NightHeader.read(folder / HEADER))

    def _start_writing(self) -> None:
        try:
            self._journal.open_for_append()
            self._journal.append(OPENED)
        except BaseException:
            self.close()
            raise

    @classmethod
    def tag(cls, folder: Path, event: str, tag: str) -> None:
        """Give a night a name; it need not be over."""
        store = cls.read(folder)
        store._lock.take()
        try:
            store._journal.open_for_append()
            store._journal.append(event, tag=tag)
        finally:
            store.close()

    def note(self, event: str, **fields: Any) -> None:
        self._journal.append(event, **fields)

    def status(self) -> str:
        """What `night_ended` said, `running` while a process writes it, else `interrupted`."""
        ends = [event for event in self.events() if event["event"] == ENDED]
        if ends:
            return str(ends[-1]["status"])
        return "running" if self._lock.is_held() else INTERRUPTED

    def study_folder(self, number: int) -> Path:
        """Of the planned study with this place, from 0."""
        return self.folder / str(self.header.studies[number]["folder"])

    def study_statuses(self) -> dict[str, str]:
        """By folder, of the studies that are done with."""
        return {e["folder"]: e["status"] for e in self.events() if e["event"] == STUDY_ENDED}

    def spent_s(self) -> float:
        """Seconds this night was being worked on, pauses between its sessions left out."""
        # A night may be tagged days after it was interrupted: nobody worked on it until then.
        own = (event for event in self.events() if event["event"] != TAGGED)
        marks = [(datetime.fromisoformat(e["at"]), e["event"] == OPENED) for e in own]
        for folder in (self.folder / str(study["folder"]) for study in self.header.studies):
            marks += [(datetime.fromisoformat(e["at"]), False) for e in Journal(folder / "journal.jsonl").events()]
        spent, before = timedelta(), None
        for at, opens in sorted(marks):
            if before is not None and not opens:
                spent += at - before
            before = at
        return spent.total_seconds()


def _made(reports: Path, name: str) -> Path:
    """A new folder; two nights may begin in one second."""
    for number in range(1, 100):
        folder = reports / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(f"cannot create {folder} ({error.strerror}): choose another --reports") from None
    raise UserError(f"{reports} has a hundred nights of this second: start the sweep again")


def night_headers(reports: Path) -> list[Path]:
    """The header of every night; a folder that is being deleted begins with a dot and is none."""
    found = reports.glob(f"*/{HEADER}") if os.path.isdir(reports) else ()
    return sorted(path for path in found if not path.parent.name.startswith("."))


def find_nights(reports: Path, name: str | None = None) -> list[NightStore]:
    """Readable nights directly below `reports`, oldest first; of one sweep when `name` is given."""
    found = []
    for path in night_headers(reports):
        try:
            night = NightStore.read(path.parent)
        except UserError:
            continue
        if name is None or night.header.name == name:
            found.append(night)
    return sorted(found, key=lambda night: (night.header.created, night.header.id))
