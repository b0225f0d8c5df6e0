"""Opening a study: a new folder under the reports, or the newest unfinished study of the same workload."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tuner.errors import UserError
from tuner.run.host import HostFacts
from tuner.run.identity import IDENTITY, identity_of, refuse_changed
from tuner.run.question import Question
from tuner.run.store import StudyStore, find_studies
from tuner.run.study_header import StudyHeader, question_hash
from tuner.spec.candidates import Arm, Removed
from tuner.spec.speculation import Tree

RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class Resolved:
    """What the workload's names stood for when the study began; kept in its journal."""

    target: str
    arms: tuple[Arm, ...]
    removed: tuple[Removed, ...]
    cautions: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, question: Question) -> Self:
        return cls(question.target, question.arms, question.removed, question.cautions)

    @classmethod
    def read(cls, store: StudyStore) -> Self:
        """The study's own; UserError when its journal ends before it was written."""
        for event in store.events():
            if event["event"] == RESOLVED:
                arms = tuple(_arm(data) for data in event["arms"])
                removed = tuple(Removed(**data) for data in event["removed"])
                cautions = tuple((engine, text) for engine, text in event.get("cautions", ()))
                return cls(event["target"], arms, removed, cautions)
        raise UserError(f"{store.folder} ended before it began: run `tuner recommend` on its workload again")

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def open_study(question: Question, reports: Path, *, resume: bool) -> StudyStore:
    """A store this process writes. `resume`: the newest study of this very workload that did not complete."""
    if resume:
        folder = _unfinished(question, reports)
        refuse_changed(folder.name, began_with(StudyStore.read(folder)), identity_of(question))
        return with_resolved(StudyStore.open(folder), question)
    header = StudyHeader.new(
        question.workload.model_dump(mode="json"),
        question.text,
        HostFacts.read(),
        tuple(dataclasses.asdict(environment) for environment in question.environments),
    )
    return with_resolved(StudyStore.create(reports / header.id, header), question)


def with_resolved(store: StudyStore, question: Question) -> StudyStore:
    """The store with what the question named in its journal, once: a kill may have come before it was written."""
    if not any(event["event"] == RESOLVED for event in store.events()):
        store.note(RESOLVED, **Resolved.of(question).to_dict(), **{IDENTITY: identity_of(question)})
    return store


def began_with(store: StudyStore) -> dict[str, str]:
    """The identity of what was asked; empty where a kill came before it was written."""
    return next((event.get(IDENTITY, {}) for event in store.events() if event["event"] == RESOLVED), {})


def _unfinished(question: Question, reports: Path) -> Path:
    name = question.workload.name
    asked = question_hash(question.workload.model_dump(mode="json"))
    rows = [row for row in find_studies(reports) if row.workload == name and row.status != "complete"]
    if not rows:
        raise UserError(f"{reports} has no unfinished study of workload '{name}': run without --resume to begin one")
    same = [row for row in rows if row.question == asked]
    if not same:
        raise UserError(
            f"workload '{name}' was changed since {rows[-1].id} was begun, and figures of two questions are not mixed: "
            "undo the change, or run without --resume"
        )
    return same[-1].folder


def _arm(data: dict[str, Any]) -> Arm:
    return Arm(
        method=data["method"],
        draft=data["draft"],
        options=tuple((key, value) for key, value in data["options"]),
        ns=tuple(data["ns"]),
        trees=tuple(Tree(**tree) for tree in data["trees"]),
        name=data.get("name", ""),
    )
