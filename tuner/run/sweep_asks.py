"""What a study of a sweep launches next. No state: the stored trials are the state, so it goes on after any kill."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from tuner.decide.plan import Ask, ask
from tuner.measure.records import BASELINE, CLOSING, CellKey, Load, Trial
from tuner.run.question import Question
from tuner.run.schedules import schedule_maker
from tuner.run.store import INTERRUPTED
from tuner.run.study import evidence_of, keys_for, launches_left
from tuner.spec.candidates import Arm
from tuner.spec.speculation import OFF, SpecConfig

#: A launch that makes up for a failed one says so at the head of its reason, and is not made up for again.
RETRY = "smaller retry"
AGAIN = "once more"
#: What a worker of another machine that went away is recorded as.
LOST = "failed: the worker was lost"
OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemory|No available memory|not enough memory|insufficient memory|bad_alloc|Cannot allocate "
    r"memory|ended by SIGKILL|KV cache .* larger than|max_total_num_tokens",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Next:
    """A launch to make: why, and the cells it measures."""

    ask: Ask
    keys: tuple[CellKey, ...]


def following(
    question: Question, own: Sequence[Trial], *, exhaustive: bool, unverified: Set[SpecConfig] = frozenset()
) -> tuple[Next, ...]:
    """Launches that may be made now, in order and independent of each other; none when the study is complete.

    First what was interrupted, then what makes up for failures, then what the mode asks for. `unverified`: settings
    that were cut after their last cell, before their output was asked for.
    """
    running = tuple(_interrupted(question, own, unverified))
    if running:
        return running
    retries = tuple(_retries(question, own, exhaustive=exhaustive))
    if retries:
        return retries
    asks = _exhaustive(question, own) if exhaustive else _planned(question, own)
    return tuple(Next(one, keys_for(question, one.role)) for one in asks)


def closing(question: Question, own: Sequence[Trial]) -> Next | None:
    """Off once more, unless it was launched or nothing else was measured."""
    measured = {trial.spec for trial in own if trial.cells}
    if len(measured) < 2 or any(trial.role == CLOSING for trial in own):
        return None
    why = "off once more: how far it drifted bounds what differences can be believed"
    return Next(Ask(OFF, CLOSING, why), keys_for(question, CLOSING))


def missing(question: Question, own: Sequence[Trial], spec: SpecConfig, role: str) -> tuple[CellKey, ...]:
    done = {cell.key for trial in own if (trial.spec, trial.role) == (spec, role) for cell in trial.cells}
    return tuple(key for key in keys_for(question, role) if key not in done)


def _latest(own: Sequence[Trial]) -> list[Trial]:
    """The last launch of each setting and role, in the order of the first."""
    latest: dict[tuple[SpecConfig, str], Trial] = {}
    for trial in own:
        latest[trial.spec, trial.role] = trial
    return list(latest.values())


def _interrupted(question: Question, own: Sequence[Trial], unverified: Set[SpecConfig]) -> Iterator[Next]:
    for last in _latest(own):
        keys = missing(question, own, last.spec, last.role)
        if last.status == INTERRUPTED and (keys or (last.spec in unverified and last.role != CLOSING)):
            yield Next(Ask(last.spec, last.role, last.why), _still_to_do(question, own, last, keys))


def _still_to_do(
    question: Question, own: Sequence[Trial], last: Trial, keys: tuple[CellKey, ...]
) -> tuple[CellKey, ...]:
    """An interrupted retry of the setting's own failed launch keeps to what it left out; one that is a smaller setting
    in place of another left out nothing.
    """
    before = [trial for trial in own if trial.number < last.number]
    died = any((t.spec, t.role) == (last.spec, last.role) and t.status.startswith("failed") for t in before)
    if not (died and last.why.startswith(RETRY)):
        return keys
    kept = _lighter(question, before, last.spec, last.role)
    return tuple(key for key in keys if key in kept)


def _retries(question: Question, own: Sequence[Trial], *, exhaustive: bool) -> Iterator[Next]:
    for last in _latest(own):
        if not last.status.startswith("failed") or last.why.startswith((RETRY, AGAIN)):
            continue
        if last.status.startswith(LOST):
            keys = missing(question, own, last.spec, last.role)
            if keys:
                yield Next(Ask(last.spec, last.role, f"{AGAIN}: its worker was lost in launch {last.number}"), keys)
        elif last.ready_s is not None:
            keys = _lighter(question, own, last.spec, last.role)
            if keys:
                failed = missing(question, own, last.spec, last.role)[0]
                why = f"{RETRY} of launch {last.number}, which died at {failed.load.text}: lighter cells alone"
                yield Next(Ask(last.spec, last.role, why), keys)
        elif not exhaustive and OUT_OF_MEMORY.search(last.status) and not _made_up_for(last, own):
            smaller = _smaller(question.arms, last.spec, {trial.spec for trial in own})
            if smaller is not None:
                why = f"{RETRY} of launch {last.number}, which had no room for {last.spec.label}"
                yield Next(Ask(smaller, "explore", why), keys_for(question, "explore"))


def _made_up_for(failed: Trial, own: Sequence[Trial]) -> bool:
    return any(trial.why.startswith(f"{RETRY} of launch {failed.number},") for trial in own)


def _lighter(question: Question, own: Sequence[Trial], spec: SpecConfig, role: str) -> tuple[CellKey, ...]:
    """Missing cells that ask less of the engine than the one it died in, which is the first missing one."""
    keys = missing(question, own, spec, role)
    return tuple(key for key in keys[1:] if _less(key.load, keys[0].load))


def _less(one: Load, other: Load) -> bool:
    if one.concurrency is not None and other.concurrency is not None:
        return one.concurrency < other.concurrency
    return one.rate is not None and other.rate is not None and one.rate < other.rate


def _smaller(arms: Sequence[Arm], spec: SpecConfig, launched: set[SpecConfig]) -> SpecConfig | None:
    """The arm's next smaller setting: fewer tokens drafted, or a tree of fewer nodes."""
    arm = next((arm for arm in arms if spec in arm.configs), None)
    if arm is None:
        return None
    left = [one for one in arm.configs if one not in launched and _size(one) < _size(spec)]
    return max(left, key=_size, default=None)


def _size(spec: SpecConfig) -> int:
    return spec.tree.nodes - 1 if spec.tree else spec.n


def _planned(question: Question, own: Sequence[Trial]) -> Iterator[Ask]:
    environment = question.environments[0]
    make = schedule_maker(environment, question.target, question.options(environment))
    one = ask(question.arms, evidence_of(question, own), launches_left(question, own), make)
    if one is not None:
        yield one


def _exhaustive(question: Question, own: Sequence[Trial]) -> Iterator[Ask]:
    """Off, then every setting; off again is asked for by itself once they are through."""
    launched = {(trial.spec, trial.role) for trial in own}
    if (OFF, BASELINE) not in launched:
        yield Ask(OFF, BASELINE, "everything is compared with off, so it is measured first")
        return
    left = launches_left(question, own) - 1
    settings = [spec for arm in question.arms for spec in arm.configs if (spec, "explore") not in launched]
    for spec in settings[: max(0, left)]:
        yield Ask(spec, "explore", "every setting of an exhaustive sweep is measured")
    if not settings[: max(0, left)] and (last := closing(question, own)) is not None:
        yield last.ask
