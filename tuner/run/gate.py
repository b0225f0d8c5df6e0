"""The losslessness gate of a study: while an engine is up for its cells, is its output still the target's?

Off is asked at its first launch, every other setting after its own cells if it may be faster; no launch is added. What
fails is journaled, and the store labels the setting's cells with it, so that nothing ever advises it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tuner.decide.launch_cost import cell_seconds
from tuner.engines import engine_for
from tuner.engines.environments import Environment
from tuner.errors import NotMeasured, TunerError
from tuner.measure.compare import compare
from tuner.measure.lossless import Verified
from tuner.measure.lossless_levels import ALPHA
from tuner.measure.lossless_records import OffProbe, off_from_dict, off_to_dict, verified_from_dict, verified_to_dict
from tuner.measure.records import CLOSING, Trial
from tuner.measure.statistics import Estimate
from tuner.run.files import json_line, write_atomic
from tuner.run.journal import Event as JournalEvent
from tuner.run.labelled import VERIFIED
from tuner.run.progress import Event, Notify
from tuner.run.question import Question
from tuner.run.store import INTERRUPTED, StudyStore
from tuner.run.stream import Server
from tuner.run.verify_labels import known_lossy
from tuner.run.verify_probe import probe_off, verify_server
from tuner.run.verify_task import Effort, Task, task_of
from tuner.spec.speculation import SpecConfig

#: Sampling may take this share of what its launch took; the greedy answers come on top and are few.
SHARE = 1 / 8
LEAST_S = 0.5
#: Few greedy answers, no longer than what is served; at most so many samples, and no sampling field that the workload
#: does not send: engines have died of some of them, and that is not this workload's concern.
EFFORT = Effort(prompts=8, tokens=32, samples=8192, k=5, all_sampling=False)
OFF_PROBED, SKIPPED = "off_probed", "verify_skipped"
FILE = "off-answers.json"


async def check_output(
    question: Question,
    environment: Environment,
    spec: SpecConfig,
    number: int,
    server: Server,
    store: StudyStore,
    notify: Notify,
    launch_s: float,
    resolved: Mapping[str, str],
) -> None:
    """Ask the server of launch `number` what the gate asks, once a setting and study. `launch_s`: what the launch took;
    `resolved`: what the server says that it runs with.

    What cannot be tested is journaled with its reason, and stops no study.
    """
    if not to_ask(environment, spec, number, store):
        return
    own = _launches(store, environment.name, spec)
    # A launch that makes up for one that was cut may sample as long as the two would have been.
    launch_s += sum(cell_seconds(cell) for trial in own if trial.number != number for cell in trial.cells)
    args = question.options(environment).args
    effort = dataclasses.replace(EFFORT, tokens=min(EFFORT.tokens, question.workload.traffic.max_output_tokens))
    task = task_of(question, environment.engine, args, effort, _temperatures_to_test(question, environment))
    sampling_s = max(LEAST_S, SHARE * launch_s) / max(1, len(task.temperatures))
    try:
        if spec.is_off:
            notify(Event("note", "off answers what the output of every setting is held against"))
            off = await probe_off(server, task, sampling_s)
            write_atomic(store.trial_folder(number) / FILE, json_line(off_to_dict(off)))
            store.note(OFF_PROBED, number=number, engine=environment.name)
            return
        await _verify(question, environment, spec, number, server, store, task, notify, sampling_s, resolved)
    except TunerError as error:
        store.note(SKIPPED, number=number, engine=environment.name, spec=spec.to_dict(), why=str(error))
        notify(Event("note", f"output not verified: {error}"))


def to_ask(environment: Environment, spec: SpecConfig, number: int, store: StudyStore) -> bool:
    """Whether launch `number` has anything to be asked: not off's last run, nor what was asked before."""
    own = _launches(store, environment.name, spec)
    last_off = any(trial.number == number and trial.role == CLOSING for trial in own)
    return not last_off and not _done(store.events(), environment.name, spec)


async def _verify(
    question: Question, environment: Environment, spec: SpecConfig, number: int, server: Server, store: StudyStore,
    task: Task, notify: Notify, sampling_s: float, resolved: Mapping[str, str],
) -> None:  # fmt: skip
    off = off_answers(store, environment.name)
    if off is None:
        raise NotMeasured("off was not asked, or did not answer, so there is nothing to hold the output against")
    gains = gains_over_off(question, store, environment.name, spec)
    if not gains:
        raise NotMeasured(f"{spec.label} and off were measured in no cell in common: nothing can be advised of it")
    if not any(gain is None or gain.high > 1 for gain in gains):
        raise NotMeasured(f"{spec.label} is slower than off in every cell: it is not advised whatever it writes")
    settings = max(1, question.workload.budget.launches - 2)
    alpha = ALPHA / (settings * (1 + len(task.temperatures)))
    labels = _labels(question, environment, spec, resolved)
    notify(Event("note", f"{spec.label} answers the same: is its output still the target's?"))
    known = {at for at, _ in labels}  # what the configuration gives away needs no samples
    asked = dataclasses.replace(off, samples=tuple(s for s in off.samples if s.temperature not in known))
    verified = await verify_server(server, task, asked, spec.label, labels, alpha, sampling_s)
    store.note(
        VERIFIED, number=number, engine=environment.name, spec=spec.to_dict(), verified=verified_to_dict(verified)
    )
    for caution in verified.cautions():
        notify(Event("note", caution))
    if not verified.ok:
        _, why = next(verified.faults())
        notify(Event("note", f"NOT the target's output, and never advised: {why}"))


def _temperatures_to_test(question: Question, environment: Environment) -> list[float]:
    """Without those at which the configuration alone gives away every draft: no sample would tell more."""
    drafts = [spec for arm in question.arms for spec in arm.configs]
    known = [{t for t, _ in _labels(question, environment, spec, {})} for spec in drafts]
    everywhere = set.intersection(*known) if known else set()
    return [t for t in question.workload.sampling.temperatures if t not in everywhere]


def _labels(
    question: Question, environment: Environment, spec: SpecConfig, resolved: Mapping[str, str]
) -> list[tuple[float, str]]:
    engine, options, sampling = engine_for(environment), question.options(environment), question.workload.sampling
    reasons = {
        t: known_lossy(engine, spec, options, t, sampling.body(t), resolved)
        for t in dict.fromkeys(sampling.temperatures)
    }
    return [(t, why) for t, why in reasons.items() if why]


def gains_over_off(question: Question, store: StudyStore, engine: str, spec: SpecConfig) -> list[Estimate | None]:
    """The setting's gain in each cell that off was measured in too; None: it is not known there, and may be one."""
    workload, trials = question.workload, store.trials()
    cells = {cell.key: cell for trial in reversed(trials) if trial.spec.is_off and trial.engine == engine
             for cell in trial.cells}  # fmt: skip
    own = _launches(store, engine, spec)
    pairs = [(cells[cell.key], cell) for trial in own for cell in trial.cells if cell.key in cells]
    return [compare(a, b, workload.objective, workload.slo.limits(), workload.seed) for a, b in pairs]


def off_answers(store: StudyStore, engine: str) -> OffProbe | None:
    """What off answered on this engine earlier in the study; None where it was not asked."""
    for event in store.events():
        if event["event"] == OFF_PROBED and event["engine"] == engine:
            path = store.trial_folder(event["number"]) / FILE
            try:
                return off_from_dict(json.loads(path.read_text(encoding="utf-8")))
            except OSError as error:  # a worker on another machine may not see it
                raise NotMeasured(f"off's answers in {path} cannot be read ({error.strerror})") from None
    return None


def _launches(store: StudyStore, engine: str, spec: SpecConfig) -> list[Trial]:
    return [trial for trial in store.trials() if trial.spec == spec and trial.engine == engine]


def unasked(store: StudyStore, own: Sequence[Trial]) -> frozenset[SpecConfig]:
    """Settings whose launch was interrupted, and that were not verified since. `own`: one engine's launches."""
    cut = {trial.spec: trial for trial in own if trial.status == INTERRUPTED and trial.role != CLOSING}
    events = store.events()
    return frozenset(
        spec
        for spec, trial in cut.items()
        if not _done(events, trial.engine, spec)
        and not any(
            e["event"] == SKIPPED and e["engine"] == trial.engine and e["spec"] == spec.to_dict() for e in events
        )
    )


def verdicts(store: StudyStore, engine: str) -> dict[SpecConfig, Verified]:
    """Every setting of an engine that was tested in the study."""
    found = {}
    for event in store.events():
        if event["event"] == VERIFIED and event["engine"] == engine:
            found[SpecConfig.from_dict(event["spec"])] = verified_from_dict(event["verified"])
    return found


def _done(events: Sequence[JournalEvent], engine: str, spec: SpecConfig) -> bool:
    def same(event: dict[str, Any]) -> bool:
        if spec.is_off:
            return bool(event["event"] == OFF_PROBED and event["engine"] == engine)
        return bool(event["event"] == VERIFIED and event["engine"] == engine and event["spec"] == spec.to_dict())

    return any(same(event) for event in events)
