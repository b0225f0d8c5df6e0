"""What a setting is held against: an off that was asked everything, or one beside it. With both up a glance comes
first, which finds what is obvious in seconds; then all of it is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tuner.measure.lossless import Verified
from tuner.measure.lossless_levels import GLANCE_SHARE
from tuner.measure.lossless_records import OffProbe
from tuner.run.stream import Server
from tuner.run.verify_probe import probe_off, verify_server
from tuner.run.verify_task import Task

#: A glance: so many prompts of each kind, so many tokens of a greedy answer, so many samples at a temperature.
PROMPTS, TOKENS, SAMPLES = 2, 16, 64


def glance(task: Task) -> Task:
    """The first of the same requests, cut short; off twice at one concurrency, since a slower second pass tells what is
    obvious no better."""
    greedy = [(prompt, {**body, "max_tokens": min(body["max_tokens"], TOKENS)}) for prompt, body in task.greedy]
    return replace(
        task,
        greedy=tuple(greedy[:PROMPTS]),
        structured=task.structured[:PROMPTS],
        samples=min(SAMPLES, task.samples),
        other=task.concurrency,
    )


class Reference(Protocol):
    """Off, whose output that of a setting is held against."""

    async def verify(
        self, server: Server, setting: str, labels: Sequence[tuple[float, str]], alpha: float
    ) -> Verified: ...


@dataclass(frozen=True, slots=True)
class AskedBefore:
    """Off that answered everything and is gone."""

    task: Task
    answers: OffProbe

    async def verify(self, server: Server, setting: str, labels: Sequence[tuple[float, str]], alpha: float) -> Verified:
        return await verify_server(server, self.task, self.answers, setting, labels, alpha)


class StillUp:
    """Off that serves beside the settings, and is asked once whatever they are. `keep` is told all it answered so far;
    `say`, what is asked now."""

    def __init__(
        self, off: Server, task: Task, keep: Callable[[OffProbe], None], say: Callable[[str], None] | None = None
    ) -> None:
        self.off, self.keep, self.say = off, keep, say or (lambda _: None)
        self.parts = ((glance(task), GLANCE_SHARE), (task, 1 - GLANCE_SHARE))
        self.answers: list[OffProbe] = []

    async def verify(self, server: Server, setting: str, labels: Sequence[tuple[float, str]], alpha: float) -> Verified:
        """The glance's verdict where it finds a fault, else that of all that is asked."""
        found = Verified(setting)
        for number, (task, share) in enumerate(self.parts):
            if number == len(self.answers):
                self.say(f"off is asked: {volume(task)}")
                self.answers.append(await probe_off(self.off, task))
                self.keep(self.answers[number])
            self.say(f"{setting} is asked the same: {volume(task)}")
            found = await verify_server(server, task, self.answers[number], setting, labels, alpha * share)
            if not found.ok:
                break
        return found


def volume(task: Task) -> str:
    """How much a server is asked, in words."""
    words = f"{len(task.greedy)} prompts greedily"
    if task.temperatures:
        words += f", {task.samples:,} samples at temperature {', '.join(f'{t:g}' for t in task.temperatures)}"
    return words + (f", {len(task.structured)} prompts bound to a grammar" if task.structured else "")
