"""Drawing samples from one server, several answers a request, with seeds that are never sent twice."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tuner.measure.lossless_records import Texts
from tuner.run.stream import Server
from tuner.run.verify_ask import all_of, ask
from tuner.run.verify_task import Task, seed_of

#: Answers asked for in one request, at most.
MOST_CHOICES = 32


class Deadline:
    """When to stop asking for samples, counted from now. None: when all are in."""

    def __init__(self, seconds: float | None = None) -> None:
        self._ends_s = None if seconds is None else time.monotonic() + seconds

    @property
    def passed(self) -> bool:
        return self._ends_s is not None and time.monotonic() >= self._ends_s


@dataclass(slots=True)
class Drawn:
    """Samples of one server at one temperature. `asked`: requests sent a prompt, which number the seeds: a server may
    answer with fewer samples than it was asked for."""

    texts: dict[str, list[Any]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return sum(map(len, self.texts.values()))

    def count(self, prompt: str) -> int:
        return len(self.texts.get(prompt, ()))

    def a_request(self, prompt: str, choices: int) -> int:
        """Answers a request brought so far: one, where the server ignores `n`."""
        return max(1, self.count(prompt) // self.asked[prompt]) if self.asked[prompt] else choices

    def fixed(self) -> dict[str, Texts]:
        return {prompt: tuple(texts) for prompt, texts in self.texts.items()}


async def draw(
    session: aiohttp.ClientSession, server: Server, task: Task, temperature: float, arm: str, slots: int, have: Drawn,
    wanted: int, until: Deadline,
) -> None:  # fmt: skip
    """Add to `have` until every prompt has `wanted` samples or time is up; prompts take turns, request by request.

    At most `slots` answers are in flight: two requests' at a time, so that one is there when the other ends.
    """
    choices = min(max(1, slots // 2), MOST_CHOICES)
    gate = asyncio.Semaphore(slots // choices)

    async def one(prompt: str, body: Mapping[str, Any], seeded: bool) -> None:
        async with gate:
            if until.passed and have.asked[prompt] > 0:  # every prompt gets its first samples, however late it is
                return
            sent = {**body, "temperature": temperature, "n": choices}
            if seeded:
                sent["seed"] = seed_of(task, f"{arm}:{temperature:g}", prompt, have.asked[prompt])
            have.asked[prompt] += 1
            answers = await ask(session, server, "completions", sent, task.timeout_s)
        have.texts.setdefault(prompt, []).extend(answer.tokens for answer in answers)

    while lacking := {name: wanted - have.count(name) for name, _, _ in task.sampled if have.count(name) < wanted}:
        before = have.total
        rounds = {name: -(-number // have.a_request(name, choices)) for name, number in lacking.items()}
        await all_of(
            [
                one(prompt, body, seeded)
                for number in range(max(rounds.values()))
                for prompt, body, seeded in task.sampled
                if number < rounds.get(prompt, 0)
            ]
        )
        if have.total == before:  # the time is up, or the server answers with nothing
            return
