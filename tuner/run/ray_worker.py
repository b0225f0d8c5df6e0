"""A trial in a Ray worker: measured as anywhere else, and everything that would be written told to the driver."""

from __future__ import annotations

import asyncio
import queue
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tuner.measure.records import Cell, Trial
from tuner.run.device_lock import CPU, holding
from tuner.run.journal import Event as JournalEvent
from tuner.run.progress import Event
from tuner.run.question import Question
from tuner.run.store import StudyStore
from tuner.run.trial import NOT_STARTED, TrialPlan, run_trial
from tuner.spec.speculation import SpecConfig

CLAIMED, RETURNED = "claimed", "returned"
Told = tuple[str, tuple[Any, ...]]
Mailbox = queue.SimpleQueue[Told | BaseException | None]


@dataclass(frozen=True, slots=True)
class HandedOut:
    """What a worker is told of the study so far. `before`: launches of off and of the worker's own setting."""

    folder: Path
    events: tuple[JournalEvent, ...]
    before: tuple[Trial, ...]

    @classmethod
    def of(cls, store: StudyStore, spec: SpecConfig) -> Self:
        before = tuple(trial for trial in store.trials() if trial.spec.is_off or trial.spec == spec)
        return cls(store.folder.absolute(), tuple(store.events()), before)


class _Teller:
    """Takes the place of a study's store in a worker: what would be written is told to the driver."""

    TOLD = ("trial_started", "trial_ready", "cell_done", "cell_aborted", "trial_ended")

    def __init__(self, folder: Path, study: HandedOut, plan: TrialPlan, tell: Mailbox) -> None:
        self.folder, self._study, self._plan, self._tell = folder, study, plan, tell
        self._events = list(study.events)
        self._cells: list[Cell] = []

    def events(self) -> list[JournalEvent]:
        """The study's as they were when the trial was handed out; its own notes are added."""
        return self._events

    def trials(self) -> tuple[Trial, ...]:
        """Off's launches and its own setting's, this one as far as it is: what the gate compares."""
        ask = self._plan.ask
        own = Trial(
            self._plan.number, ask.spec, self._plan.environment.name, tuple(self._cells), role=ask.role, why=ask.why
        )
        return (*self._study.before, own)

    def note(self, event: str, **fields: Any) -> None:
        self._tell_files()  # a note may speak of one, and a kill may come between the two
        self._events.append({"event": event, **fields})
        self._tell.put(("note", (event, fields)))

    def trial_folder(self, number: int) -> Path:
        """Its own here; another trial's where the driver keeps it, which a worker on another machine may not see."""
        if number == self._plan.number:
            return self.folder
        names = {e["number"]: e["folder"] for e in self._events if e["event"] == "trial_started"}
        return self._study.folder / "trials" / str(names[number])

    def __getattr__(self, name: str) -> Any:
        if name not in self.TOLD:
            raise AttributeError(name)

        def tell(*values: Any) -> None:
            self._cells += [values[1]] if name == "cell_done" else []
            if name == "trial_ended":
                self._tell_files()
            self._tell.put((name, values))

        return tell

    def _tell_files(self) -> None:
        for path in sorted(self.folder.iterdir()):
            if path.is_file():
                self._tell.put(("file", (path.name, path.read_bytes())))


def measure_elsewhere(question: Question, plan: TrialPlan, study: HandedOut) -> Iterator[Told]:
    """In a worker: run one trial, and yield what happens as it happens."""
    import os

    import ray

    told: Mailbox = queue.SimpleQueue()
    if plan.too_late:
        yield RETURNED, (NOT_STARTED,)
        return
    gpus = [str(one) for one in ray.get_gpu_ids()]
    node = ray.get_runtime_context().get_node_id()[:12]
    yield CLAIMED, ({"node": node, "gpus": gpus, "worker": os.getpid()},)
    with tempfile.TemporaryDirectory(prefix="tuner-trial-") as folder:
        teller = _Teller(Path(folder), study, plan, told)
        thread = threading.Thread(target=_measure, args=(question, plan, teller, told, gpus), daemon=True)
        thread.start()
        while (one := told.get()) is not None:
            if isinstance(one, BaseException):
                raise one
            yield one
        thread.join()


def _measure(question: Question, plan: TrialPlan, teller: _Teller, told: Mailbox, gpus: Sequence[str]) -> None:
    def notify(event: Event) -> None:
        if event.kind not in ("requests", "waiting"):
            told.put(("notify", (event,)))

    try:
        # Which GPUs Ray gave is what it says: by which variable it hides the others hangs on the vendor.
        held = [CPU] if plan.environment.device == "cpu" else [f"gpu-{one.replace('/', '-')}" for one in gpus]
        with holding(held, f"trial {plan.number} of {question.workload.name}"):
            status = asyncio.run(run_trial(question, plan, teller, notify))  # type: ignore[arg-type]
        told.put((RETURNED, (status,)))
        told.put(None)
    except BaseException as error:
        told.put(error)
