"""What a report is made from: stored records and what was decided from them. Nothing here is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tuner.decide.across import Duel
from tuner.decide.evidence import Evidence
from tuner.decide.predict import Prediction
from tuner.decide.rank import Recommendation, Verdict
from tuner.decide.schedule_verdict import ScheduleVerdict
from tuner.decide.tasks import TaskAdvice
from tuner.engines.environments import Environment, as_stored
from tuner.measure.lossless import Verified
from tuner.run.study_header import StudyHeader
from tuner.spec.speculation import OFF, SpecConfig
from tuner.spec.workload import Workload


@dataclass(frozen=True, slots=True)
class EnginesCompared:
    """What a study over several engines came to. `sentence`: the claim, and whose build it must not be read from;
    `best`: None where no engine is told apart."""

    sentence: str
    best: str | None
    duels: tuple[Duel, ...]


@dataclass(frozen=True, slots=True)
class ReportInput:
    """One engine's study. `predictions`: every chain the formula reaches, from all that was measured (for the plot);
    the comparison with what was measured is redone here from the launches before each one.

    `deploy`: the production command by configuration. `status`: complete, or why not. `cautions`: sentences.
    `losslessness`: one sentence on whether output is still the target's; None: not verified in this study.
    `records`: where the stored records lie; None: beside the report. `schedules`: what N by load came to, by arm.
    `tasks`: advice for each task alone; empty where there is one only. `left_to_try`: the launch that would be next.
    `verified`: what `losslessness` is a sentence of, by setting. `in_night`: a part of a sweep's night, and
    resumed with it. `target`: the model as the engine was given it; None: as the workload names it.
    `engines`: None where fewer than two were measured.
    """

    header: StudyHeader
    evidence: Evidence
    recommendation: Recommendation
    predictions: tuple[Prediction, ...]
    deploy: Mapping[SpecConfig, tuple[str, ...]]
    status: str = "complete"
    cautions: tuple[str, ...] = ()
    losslessness: str | None = None
    records: str | None = None
    schedules: tuple[ScheduleVerdict, ...] = ()
    tasks: tuple[TaskAdvice, ...] = ()
    left_to_try: str | None = None
    verified: Mapping[SpecConfig, Verified] = field(default_factory=dict)
    in_night: bool = False
    target: str | None = None
    engines: EnginesCompared | None = None

    @property
    def workload(self) -> Workload:
        return Workload.model_validate(self.header.workload)

    @property
    def environments(self) -> tuple[Environment, ...]:
        stored = self.header.environments
        return tuple(Environment(**{name: as_stored(value) for name, value in env.items()}) for env in stored)

    @property
    def environment(self) -> Environment | None:
        """The one the trials ran in."""
        name = next((one.trial.engine for one in self.evidence.tried), None)
        return next((env for env in self.environments if env.name == name), None)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return self.recommendation.verdicts

    @property
    def advised(self) -> tuple[SpecConfig, ...]:
        """Every setting that is advised somewhere: the one for all traffic first, off last, to go back to."""
        own = [v.best for v in self.verdicts if v.on]
        return tuple(dict.fromkeys([self.recommendation.overall.best, *own, OFF]))
