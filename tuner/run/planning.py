"""What a study of a workload would launch, why and how long it may take. Starts nothing; the engine may be missing."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.decide.evidence import Evidence, gather
from tuner.decide.outline import outline
from tuner.decide.plan import Ask
from tuner.engines import ENGINES, engine_for
from tuner.engines.environments import Environment, find_environment
from tuner.engines.models import find_model
from tuner.engines.preflight.check import check
from tuner.engines.recipes import RECIPES
from tuner.errors import UserError
from tuner.measure.records import CellKey, Trial
from tuner.run.checking import NEWEST
from tuner.run.demand import demand_of
from tuner.run.preflight import settle
from tuner.run.question import Question, cell_weights, resolve, with_budget
from tuner.run.schedules import schedule_maker
from tuner.run.store import StudyStore, find_studies
from tuner.run.study import keys_for, launches_left
from tuner.run.study_header import question_hash
from tuner.spec.candidates import Arm, Removed
from tuner.spec.load import load_workload
from tuner.spec.speculation import SpecConfig

PLAN_PORT = 8000


@dataclass(frozen=True, slots=True)
class PlannedLaunch:
    """`minutes`: expected; `measured`: whether from launches that were timed, else the budget's even share."""

    engine: str
    ask: Ask
    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    cells: tuple[CellKey, ...]
    minutes: float
    measured: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """`then`: a sentence an engine on what may follow. `notes`: what was assumed, or what the plan goes on from."""

    launches: tuple[PlannedLaunch, ...]
    removed: tuple[Removed, ...]
    then: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    minutes_budget: float
    launches_budget: int


def plan_study(path: Path, reports: Path, minutes: float | None = None, launches: int | None = None) -> Plan:
    """From the newest study of this very workload under `reports`, or from nothing."""
    notes: list[str] = []
    question = resolve(
        load_workload(path), path, lambda name: _engine_at(name, notes), lambda name: _weights_at(name, notes)
    )
    notes += _refusal(question)
    question, removed = _without_impossible(with_budget(question, minutes, launches))
    trials = _measured(question, reports, notes)
    planned: list[PlannedLaunch] = []
    then = []
    for environment in question.environments:
        own = [trial for trial in trials if trial.engine == environment.name]
        workload = question.workload
        evidence = gather(own, workload.objective, workload.slo.limits(), workload.seed, cell_weights(workload))
        make = schedule_maker(environment, question.target, question.options(environment))
        asks, following = outline(question.arms, evidence, launches_left(question, own), make)
        planned += [_planned(question, environment, evidence, one) for one in asks]
        then.append((environment.name, following))
    budget = question.workload.budget
    return Plan(tuple(planned), removed, tuple(then), tuple(notes), budget.minutes, budget.launches)


def _refusal(question: Question) -> list[str]:
    """What `tuner recommend` would say to this workload before it launches anything."""
    try:
        settle(question)
    except UserError as refusal:
        return [f"`tuner recommend` refuses this workload: {refusal}"]
    return []


def _engine_at(name: str, notes: list[str]) -> Environment:
    """The registered one; else one as `tuner engine add` would make it, or the engine of that name."""
    with contextlib.suppress(UserError):
        return find_environment(name)
    corrections: tuple[str, ...] = ()
    if name in RECIPES:
        recipe = RECIPES[name](None)
        corrections = recipe.corrections
        engine, device, version = recipe.engine, recipe.device, recipe.version or NEWEST[recipe.engine]
    elif name in ENGINES:
        engine, device, version = name, "gpu", NEWEST[name]
    else:
        return find_environment(name)
    notes.append(f"engine {name} is not registered here: planned as {engine} {version} on {device}")
    return Environment(name, engine, version, "python", None, device, corrections)


def _weights_at(name: str, notes: list[str]) -> str:
    try:
        return find_model(name)
    except UserError as error:
        notes.append(f"{error}; planned by its name")
        return name


def _without_impossible(question: Question) -> tuple[Question, tuple[Removed, ...]]:
    """The question without the settings preflight refuses, and all that was removed with its reason."""
    demand = demand_of(question.workload, question.prompts)
    refused: dict[SpecConfig, str] = {}
    for environment in question.environments:
        engine, options = engine_for(environment), question.options(environment)
        for spec in (spec for arm in question.arms for spec in arm.configs):
            errors = [f for f in check(engine, question.target, spec, options, demand) if f.is_error]
            if errors:
                refused.setdefault(spec, errors[0].message)
    arms = tuple(_kept(arm, refused) for arm in question.arms)
    removed = (*question.removed, *(Removed(spec.label, reason) for spec, reason in refused.items()))
    return replace(question, arms=tuple(arm for arm in arms if arm.configs)), removed


def _kept(arm: Arm, refused: dict[SpecConfig, str]) -> Arm:
    ns = tuple(n for n in arm.ns if arm.at(n) not in refused)
    return replace(arm, ns=ns, trees=tuple(tree for tree in arm.trees if arm.of(tree) not in refused))


def _measured(question: Question, reports: Path, notes: list[str]) -> tuple[Trial, ...]:
    asked = question_hash(question.workload.model_dump(mode="json"))
    same = [row for row in find_studies(reports) if row.question == asked]
    if not same:
        return ()
    notes.append(f"goes on from {same[-1].folder} ({same[-1].status})")
    return StudyStore.read(same[-1].folder).trials()


def _planned(question: Question, environment: Environment, evidence: Evidence, asked: Ask) -> PlannedLaunch:
    launch = engine_for(environment).launch(
        question.target, asked.spec, question.options(environment), PLAN_PORT, "generated-for-each-launch"
    )
    budget = question.workload.budget
    minutes = asked.seconds / 60 if asked.seconds is not None else budget.minutes / budget.launches
    cells = keys_for(question, asked.role)
    return PlannedLaunch(environment.name, asked, launch.argv, launch.env, cells, minutes, asked.seconds is not None)
