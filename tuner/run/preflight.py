"""Preflight of a whole workload: every setting shown to every engine; what refuses, what is left out, what to heed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.engines import engine_for
from tuner.engines.environments import Environment
from tuner.engines.preflight.check import LOSSLESS, ONE_SETTING, check
from tuner.engines.preflight.finding import Finding
from tuner.errors import UserError
from tuner.run.demand import demand_of
from tuner.run.question import Question, check_engines, resolve
from tuner.spec.candidates import Arm, Removed
from tuner.spec.load import load_workload
from tuner.spec.speculation import OFF, SpecConfig


@dataclass(frozen=True, slots=True)
class Looked:
    """What was found on one setting for one engine."""

    environment: Environment
    spec: SpecConfig
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.is_error)

    @property
    def only_itself(self) -> bool:
        """Whether its errors are of this setting alone, so that others of its draft go on."""
        return bool(self.errors) and all(finding.rule in ONE_SETTING for finding in self.errors)


def read_question(path: Path) -> Question:
    """Load and resolve `workload.yaml`, and show every setting to every engine. UserError names what is refused."""
    question = resolve(load_workload(path), path)
    check_engines(question)
    return settle(question)


def look_at(path: Path) -> tuple[Looked, ...]:
    """What `read_question` would judge, without judging: for `tuner check --workload`."""
    return look(resolve(load_workload(path), path))


def look(question: Question) -> tuple[Looked, ...]:
    """All findings of a workload: off first, then every setting, for every engine."""
    demand = demand_of(question.workload, question.prompts)
    specs = (OFF, *(spec for arm in question.arms for spec in arm.configs))
    return tuple(
        Looked(env, spec, check(engine_for(env), question.target, spec, question.options(env), demand))
        for env in question.environments
        for spec in specs
    )


def settle(question: Question) -> Question:
    """The question without settings that cannot run, and with what its report must say. UserError names all errors."""
    looked = look(question)
    refused = [one for one in looked if one.errors and not _is_dispensable(one, question)]
    if refused:
        raise UserError(_all(list(_refusals(question, refused))))
    gone = {one.spec: one.errors[0].message for one in looked if one.errors}
    arms = tuple(_without(arm, set(gone)) for arm in question.arms)
    empty = next((old for old, new in zip(question.arms, arms, strict=True) if not new.configs), None)
    if empty is not None and not (question.is_auto and any(arm.configs for arm in arms)):
        raise UserError(f"no setting of {empty.method} is left: {gone[empty.configs[0]]}")
    arms = tuple(arm for arm in arms if arm.configs)
    removed = tuple(Removed(spec.label, message) for spec, message in gone.items())
    return replace(
        question,
        arms=arms,
        removed=(*question.removed, *removed),
        cautions=tuple(_cautions(question, looked, set(gone))),
    )


def _refusals(question: Question, refused: Sequence[Looked]) -> Iterator[str]:
    """Errors by engine, which is named where there are several."""
    for environment in question.environments:
        name = f"{environment.name}: " if len(question.environments) > 1 else ""
        for message in _messages((one.errors, one) for one in refused if one.environment == environment):
            yield f"{name}{message}"


def _is_dispensable(one: Looked, question: Question) -> bool:
    """What nobody asked for by name may fall away; of what was named, single settings may."""
    return one.only_itself or (question.is_auto and not one.spec.is_off)


def _without(arm: Arm, gone: set[SpecConfig]) -> Arm:
    return replace(
        arm,
        ns=tuple(n for n in arm.ns if arm.at(n) not in gone),
        trees=tuple(tree for tree in arm.trees if arm.of(tree) not in gone),
    )


def _cautions(question: Question, looked: Sequence[Looked], gone: set[SpecConfig]) -> Iterator[tuple[str, str]]:
    """(engine, sentence) of every warning. Lossy settings are told cell by cell, where they were measured."""
    for environment in question.environments:
        own = [one for one in looked if one.environment == environment and one.spec not in gone]
        warnings = [
            (tuple(f for f in one.findings if f.severity == "warning" and f.rule != LOSSLESS), one) for one in own
        ]
        for message in _messages(warnings):
            yield environment.name, message


def _messages(found: Iterable[tuple[Sequence[Finding], Looked]]) -> list[str]:
    """Each sentence once, behind the settings it is about; behind none where it is about all that was looked at."""
    settings: dict[str, list[str]] = {}
    for findings, one in found:
        for finding in findings:
            settings.setdefault(finding.message, []).append(one.spec.label)
    return [f"{_labels(labels)}{message}" for message, labels in settings.items()]


def _labels(labels: Sequence[str]) -> str:
    """`eagle3: ` for several settings of one method, `eagle3 N=5: ` for one; nothing for what holds for off too."""
    unique = list(dict.fromkeys(labels))
    if OFF.label in unique:
        return ""
    methods = list(dict.fromkeys(label.split()[0] for label in unique))
    return f"{unique[0] if len(unique) == 1 else ', '.join(methods)}: "


def _all(messages: Sequence[str]) -> str:
    if len(messages) == 1:
        return messages[0]
    return "\n  ".join([f"preflight found {len(messages)} errors:", *messages])
