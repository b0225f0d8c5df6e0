"""A sweep with everything it names found: one question a study and engine. All of it before any launch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any

from tuner.engines import ENGINES
from tuner.engines.base import LaunchOptions
from tuner.engines.environments import Environment, find_environment, load_environments
from tuner.errors import UserError
from tuner.run.identity import prompts_digest
from tuner.run.preflight import settle
from tuner.run.question import Question, check_engines, resolve
from tuner.run.study_header import question_hash
from tuner.run.sweep_fingerprint import fingerprint
from tuner.spec.load import load_workload
from tuner.spec.sweep import Sweep, SweepStudy, load_sweep, workload_of
from tuner.spec.workload import Budget, Workload
from tuner.spec.yaml_document import read_text


@dataclass(frozen=True, slots=True)
class PlannedStudy:
    """One workload on one engine. `models`: what the target and each draft is called and its files' fingerprint."""

    label: str
    question: Question
    exhaustive: bool
    share: float
    models: tuple[tuple[str, str | None], ...]

    @property
    def environment(self) -> Environment:
        return self.question.environments[0]

    @property
    def workload(self) -> Workload:
        return self.question.workload

    @property
    def options(self) -> LaunchOptions:
        return self.question.options(self.environment)

    def to_dict(self) -> dict[str, Any]:
        """What a night's header says of it; equal for two nights that may be one, whatever each may cost."""
        return {
            "label": self.label,
            "question_hash": question_hash(self.workload.model_dump(mode="json")),
            "engine": self.environment.name,
            "version": self.environment.version,
            "exhaustive": self.exhaustive,
            "models": [list(pair) for pair in self.models],
            "prompts": prompts_digest(self.question),
        }


@dataclass(frozen=True)
class SweepPlan:
    """What one night does. `key`: equal for two plans whose nights may be one."""

    sweep: Sweep
    path: Path
    text: str
    studies: tuple[PlannedStudy, ...]

    @cached_property
    def key(self) -> str:
        asked = [study.to_dict() for study in self.studies]
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]


def plan_sweep(path: Path) -> SweepPlan:
    """Load and resolve a sweep; every setting is shown to its engine. UserError names what is refused."""
    sweep = load_sweep(path)
    studies = tuple(one for study in sweep.studies for one in _planned(study, sweep, path))
    return SweepPlan(sweep, path, read_text(path), studies)


def _planned(study: SweepStudy, sweep: Sweep, path: Path) -> Iterator[PlannedStudy]:
    workload_path = path.resolve().parent / study.workload
    workload = load_workload(workload_path)
    exhaustive = (study.mode or sweep.mode) == "exhaustive"
    for environment in _environments(study, workload, path):
        made = workload_of(study, workload, environment.name, str(path))
        question = resolve(_budgeted(made, study, sweep, None), workload_path)
        check_engines(question)
        question = settle(question)
        if exhaustive:
            settings = sum(len(arm.configs) for arm in question.arms)
            question = replace(question, workload=_budgeted(made, study, sweep, settings + 2))
        yield PlannedStudy(made.name, question, exhaustive, study.share, _models(question))


def _budgeted(workload: Workload, study: SweepStudy, sweep: Sweep, launches: int | None) -> Workload:
    """The sweep's minutes are every study's: what is left of them is shared out as the night goes on."""
    starts = study.launches or launches or workload.budget.launches
    budget = Budget(launches=starts, minutes=sweep.budget.minutes)
    return workload.model_copy(update={"budget": budget})


def _environments(study: SweepStudy, workload: Workload, path: Path) -> list[Environment]:
    found: dict[str, Environment] = {}
    for name in study.engines or workload.engines:
        kind = [env for env in load_environments().values() if env.engine == name and env.url is None]
        several = kind if study.engines and name in ENGINES else []
        for environment in several or [find_environment(name)]:
            found[environment.name] = environment
    if study.versions is None:
        return list(found.values())
    kept = [env for env in found.values() if any(fnmatch(env.version, pattern) for pattern in study.versions)]
    if not kept:
        there = ", ".join(f"{env.name} {env.version}" for env in found.values())
        raise UserError(f"{path}: no engine of {study.label} has a version {' or '.join(study.versions)} ({there})")
    return kept


def _models(question: Question) -> tuple[tuple[str, str | None], ...]:
    drafts = dict.fromkeys(arm.draft for arm in question.arms if arm.draft)
    return (
        (question.target, fingerprint(question.target, whole=False)),
        *((draft, fingerprint(draft, whole=True)) for draft in drafts),
    )
