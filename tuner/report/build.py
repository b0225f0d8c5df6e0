"""From a stored study to its report: evidence, recommendation, what a reader must be warned of. No engine needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.decide.evidence import Evidence, Tried, gather
from tuner.decide.outline import left_to_try
from tuner.decide.plan import predictions
from tuner.decide.rank import Recommendation, recommend, withheld
from tuner.decide.schedule_verdict import schedule_verdicts
from tuner.decide.tasks import advice_by_task
from tuner.decide.workload_rules import evidence_findings, workload_findings
from tuner.engines import engine_for
from tuner.engines.environments import Environment, as_stored, known_defects
from tuner.errors import EngineError
from tuner.measure.lossless import Verified
from tuner.measure.records import Trial
from tuner.report.advice import headline
from tuner.report.alpha_files import write_alpha_files
from tuner.report.capacity import capacity_cautions
from tuner.report.data import ReportInput
from tuner.report.drift import drift_caution
from tuner.report.engine_cautions import correction_text, engine_cautions
from tuner.report.engines import compare_engines, engines_page
from tuner.report.lossless_text import study_line
from tuner.report.recommendation_json import recommendation_json
from tuner.report.write import write_report
from tuner.run.files import write_atomic
from tuner.run.gate import verdicts
from tuner.run.question import cell_weights, launch_options
from tuner.run.schedules import schedule_maker
from tuner.run.start import Resolved
from tuner.run.store import StudyStore
from tuner.run.sweep_store import is_night
from tuner.spec.speculation import SpecConfig
from tuner.spec.workload import Workload

OUTPUT_FILES = ("skill-eagle3-tuner.md", "recommendation.json", "launch.sh", "adaptive.json")


@dataclass(frozen=True, slots=True)
class StudyReport:
    """A written report: its data by engine, the engine to deploy, and where everything lies."""

    data: Mapping[str, ReportInput]
    engine: str
    folder: Path
    outputs: Path

    def to_json(self) -> str:
        return recommendation_json(self.data[self.engine])

    def to_text(self) -> str:
        """The advice in a sentence, and where everything was written."""
        files = ", ".join(name for name in OUTPUT_FILES if (self.outputs / name).exists())
        compared = self.data[self.engine].engines
        lines = [headline(self.data[self.engine]), ""]
        if compared is not None:
            lines = [compared.sentence, *(f"{name}: {headline(one)}" for name, one in self.data.items()), ""]
        return "\n".join([*lines, f"report: {self.folder / 'report.md'}", f"files in {self.outputs}: {files}"])


def report_study(store: StudyStore, outputs: Path) -> StudyReport:
    """Write the report and the deployable files of a study; EngineError when no engine has a measured cell of off.

    Over several engines each has its own report in a folder of its name, and the files to deploy are the best one's. An
    engine without a cell of off has none: the study's status says why.
    """
    trials = store.trials()
    environments = [Environment(**{k: as_stored(v) for k, v in env.items()}) for env in store.header.environments]
    own = {env.name: [trial for trial in trials if trial.engine == env.name] for env in environments}
    sound = [env for env in environments if any(trial.spec.is_off and trial.cells for trial in own[env.name])]
    data = {env.name: report_input(store, env, own[env.name]) for env in sound or environments}
    if len(data) == 1:
        (name,) = data
        write_report(data[name], store.folder, outputs)
        write_alpha_files(data[name], store.folder)
        return StudyReport(data, name, store.folder, outputs)
    compared = compare_engines(data)
    data = {name: replace(one, engines=compared) for name, one in data.items()}
    best = compared.best or next(iter(data))
    for name, one in data.items():
        write_report(one, store.folder / name, outputs if name == best else outputs / name)
        write_alpha_files(one, store.folder / name)
    write_atomic(store.folder / "report.md", engines_page(data, compared))
    return StudyReport(data, best, store.folder, outputs)


def report_input(store: StudyStore, environment: Environment, trials: Sequence[Trial]) -> ReportInput:
    """Everything one engine's report is made of, from stored records alone."""
    workload = Workload.model_validate(store.header.workload)
    resolved = Resolved.read(store)
    evidence = gather(trials, workload.objective, workload.slo.limits(), workload.seed, cell_weights(workload))
    if not any(one.cells for one in evidence.baselines):
        raise EngineError(f"{environment.name} has no measured cell without speculation: {_first_failure(trials)}")
    recommendation, arms = recommend(evidence), resolved.arms
    why_not = next((finding.text for finding in workload_findings(workload) if finding.blocks), None)
    if why_not:
        recommendation, arms = withheld(recommendation, why_not), ()
    make = schedule_maker(environment, resolved.target, launch_options(workload, environment.name))
    verified = verdicts(store, environment.name)
    return ReportInput(
        header=store.header,
        evidence=evidence,
        recommendation=recommendation,
        schedules=schedule_verdicts(arms, evidence, recommendation.verdicts, recommendation.overall, make),
        tasks=() if why_not else advice_by_task(evidence, recommendation.overall.best),
        left_to_try=f"{left.spec.label}: {left.why}" if (left := left_to_try(arms, evidence, make)) else None,
        predictions=predictions(arms, evidence),
        deploy=_deploy(environment, resolved.target, evidence, workload),
        status=_status(store, trials),
        cautions=(
            *filter(None, [drift_caution(evidence, recommendation.verdicts)]),
            *cautions(evidence, environment, resolved),
            *engine_cautions(trials),
            *(finding.text for finding in workload_findings(workload)),
            *(finding.text for finding in evidence_findings(evidence, workload.sampling.temperatures)),
            *(f"{spec.label}: {text}" for spec, one in verified.items() for text in one.cautions()),
            *capacity_cautions(trials, workload.traffic.max_output_tokens),
            *(f"{environment.name}: {correction_text(name)}" for name in environment.corrections),
        ),
        losslessness=_losslessness(verified, recommendation),
        verified=verified,
        in_night=is_night(store.folder.parent),
        target=resolved.target,
        records=str(store.folder) if len(store.header.environments) > 1 else None,
    )


def _losslessness(verified: Mapping[SpecConfig, Verified], advice: Recommendation) -> str | None:
    advised = dict.fromkeys([advice.overall.best, *(verdict.best for verdict in advice.verdicts)])
    return study_line(verified, tuple(advised))


def _deploy(
    environment: Environment, target: str, evidence: Evidence, workload: Workload
) -> dict[SpecConfig, tuple[str, ...]]:
    engine, options = engine_for(environment), launch_options(workload, environment.name)
    return {spec: engine.deploy_command(target, spec, options) for spec in evidence.specs()}


def _status(store: StudyStore, trials: Sequence[Trial]) -> str:
    status = store.status()
    if status != "running":
        return status
    # This very process writes the study: what it said last is its status.
    ended = [event["status"] for event in store.events() if event["event"] == "study_ended"]
    return str(ended[-1]) if ended else f"unfinished after {len(trials)} launches"


def _first_failure(trials: Sequence[Trial]) -> str:
    return next((t.status for t in trials if not t.ok), "no launch ended")


def cautions(evidence: Evidence, environment: Environment, resolved: Resolved) -> Iterator[str]:
    """What a reader must know before believing the figures: defects, findings, what was left out."""
    for defect in known_defects(environment):
        yield f"{environment.name}: {defect}"
    yield from (text for engine, text in resolved.cautions if engine == environment.name)
    for one in evidence.tried:
        yield from _findings(one)
    for gone in resolved.removed:
        yield f"{gone.what} was not tried: {gone.reason}"


def _findings(one: Tried) -> Iterator[str]:
    for key, findings in one.findings.items():
        for finding in findings:
            left_out = " (this cell enters no ranking)" if finding.blocks else ""
            where = f"launch {one.trial.number}, {one.spec.label}, {key.load.text}, temperature {key.temperature:g}"
            yield f"{where}: {finding.text}{left_out}"
