"""The simulated machine behind the mock engine: one loop steps all running requests together and drafts, accepts and
counts as an engine does. It keeps the truth about every request, so tests can compare with zero tolerance."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

WORDS = (
    "the", "one", "draft", "model", "token", "step", "reads", "writes", "fast", "slow", "batch", "target", "verify",
    "accept", "reject", "tree", "chain", "head", "layer", "cache", "queue", "load", "light", "stone", "river", "open",
)  # fmt: skip
TEXT_PERIOD = 7  # the next word depends on the last one and on the position modulo this


@dataclass(frozen=True)
class Sim:
    """One verify step takes base(b) * (1 + slope * N * (1 + crowding * (b - 1))), base(b) = base_s + per_request_s * b,
    b running requests, N drafted tokens; each prefill that joins a step adds `prefill_s`.

    `alpha`: method ("*" for any) -> temperature -> conditional acceptance by position, the last one repeated.
    `draft_share`: method -> share of verify steps in which anything is drafted.
    """

    base_s: float = 0.004
    per_request_s: float = 0.0
    slope: float = 0.05
    crowding: float = 0.0
    prefill_s: float = 0.002
    alpha: Mapping[str, Mapping[str, list[float]]] = field(
        default_factory=lambda: {"*": {"0": [0.8, 0.7, 0.6], "1": [0.6, 0.5, 0.4]}}
    )
    draft_share: Mapping[str, float] = field(default_factory=lambda: {"ngram": 0.4, "suffix": 0.5})
    stop_chance: float = 0.0
    kv_cache_tokens: int = 45_120
    seed: int = 0

    def step_s(self, running: int, drafted: int) -> float:
        base_s = self.base_s + self.per_request_s * running
        return base_s * (1 + self.slope * drafted * (1 + self.crowding * (running - 1)))

    def acceptance(self, method: str, temperature: float) -> list[float]:
        by_temperature = self.alpha.get(method) or self.alpha["*"]
        return by_temperature[min(by_temperature, key=lambda t: abs(float(t) - temperature))]


@dataclass(frozen=True)
class Speculation:
    """What the launch flags asked for. `n`: most tokens one step can accept; `nodes`: tokens it drafts."""

    method: str = "off"
    n: int = 0
    nodes: int = 0


@dataclass
class Counters:
    """Totals since the start, as the engine's Prometheus endpoint shows them."""

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    per_position: list[int] = field(default_factory=list)
    verify_steps: int = 0
    generated: int = 0
    prompt: int = 0
    cache_queries: int = 0
    cache_hits: int = 0
    finished: dict[str, int] = field(default_factory=dict)
    aborted: int = 0


@dataclass
class Job:
    """One request inside the machine, and the truth about it."""

    number: int
    prompt: str
    max_tokens: int
    temperature: float
    seed: int | None
    ignore_eos: bool
    n_in: int
    arrived_s: float = field(default_factory=time.perf_counter)
    tokens: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    verify_steps: int = 0
    sent: list[tuple[float, int]] = field(default_factory=list)
    finish: str | None = None
    aborted: bool = False
    outbox: asyncio.Queue[tuple[list[int], str | None]] = field(default_factory=asyncio.Queue)

    def histogram(self, n: int) -> list[int]:
        return [self.accepted.count(j) for j in range(n + 1)]

    def truth(self) -> dict[str, Any]:
        names = ("number", "prompt", "max_tokens", "temperature", "seed", "n_in", "arrived_s", "accepted", "drafted")
        told = {name: getattr(self, name) for name in (*names, "verify_steps", "sent", "finish", "aborted")}
        return told | {"n_out": len(self.tokens), "text": text_of(self.tokens)}


class Machine:
    def __init__(
        self, sim: Sim, spec: Speculation, max_running: int, prefix_caching: bool, greedy_always: bool = False
    ) -> None:
        self.sim, self.spec, self.max_running = sim, spec, max_running
        self.counters = Counters(per_position=[0] * spec.n)
        self.running: list[Job] = []
        self.waiting: list[Job] = []
        self.jobs: list[Job] = []
        self.frozen = False
        self._numbers = itertools.count(1)
        self._prefix_caching, self._greedy_always = prefix_caching, greedy_always
        self._seen: set[str] = set()
        self._work = asyncio.Event()

    def submit(self, body: Mapping[str, Any], prompt: str) -> Job:
        temperature = 0.0 if self._greedy_always else float(body.get("temperature", 1.0))
        job = Job(
            next(self._numbers), prompt, int(body.get("max_tokens") or 16), temperature, body.get("seed"),
            bool(body.get("ignore_eos")), n_in=len(prompt.split()) + 8,
        )  # fmt: skip
        self.jobs.append(job)
        self.waiting.append(job)
        self._work.set()
        return job

    def abort(self, job: Job) -> None:
        if job.finish is None and not job.aborted:
            job.aborted = True
            self.counters.aborted += 1
            for queue in (self.waiting, self.running):
                if job in queue:
                    queue.remove(job)

    async def run(self) -> None:
        while True:
            if self.frozen or not (self.running or self.waiting):
                self._work.clear()
                await self._work.wait()
                continue
            new = self.waiting[: self.max_running - len(self.running)]
            del self.waiting[: len(new)]
            self.running += new
            for job in new:
                self._prefill(job)
            await asyncio.sleep(self.sim.step_s(len(self.running), self.spec.nodes) + self.sim.prefill_s * len(new))
            for job in list(self.running):
                self._advance(job)

    def _prefill(self, job: Job) -> None:
        self.counters.prompt += job.n_in
        self.counters.cache_queries += job.n_in
        if self._prefix_caching and job.prompt in self._seen:
            self.counters.cache_hits += job.n_in
        self._seen.add(job.prompt)

    def _advance(self, job: Job) -> None:
        """One step of one request: prefill yields one token, a verify step the accepted ones and the bonus token."""
        emitted = 1 if not job.tokens else 1 + self._verify(job)
        fresh: list[int] = []
        while len(fresh) < emitted and job.finish is None:
            fresh.append(self._next_word(job))
            job.tokens.append(fresh[-1])
            if len(job.tokens) == job.max_tokens:
                job.finish = "length"
            elif not job.ignore_eos and self._chance(job, "stop") < self.sim.stop_chance:
                job.finish = "stop"
        self.counters.generated += len(fresh)
        if job.finish is not None:
            self.running.remove(job)
            self.counters.finished[job.finish] = self.counters.finished.get(job.finish, 0) + 1
        job.outbox.put_nowait((fresh, job.finish))

    def _verify(self, job: Job) -> int:
        """Accepted tokens are counted before max_tokens or a stop cuts them off, as both engines do."""
        job.verify_steps += 1
        self.counters.verify_steps += 1
        share = self.sim.draft_share.get(self.spec.method, 1.0)
        if self.spec.n == 0 or self._chance(job, "draft") >= share:
            return 0
        alpha = self.sim.acceptance(self.spec.method, job.temperature)
        accepted = 0
        while accepted < self.spec.n and self._chance(job, f"accept{accepted}") < alpha[min(accepted, len(alpha) - 1)]:
            accepted += 1
        job.accepted.append(accepted)
        job.drafted.append(self.spec.nodes)
        self.counters.drafts += 1
        self.counters.drafted += self.spec.nodes
        self.counters.accepted += accepted
        for position in range(accepted):
            self.counters.per_position[position] += 1
        return accepted

    def _chance(self, job: Job, what: str) -> float:
        """A draw that depends on the request and the step alone, so concurrency never changes what is accepted."""
        place = (self.sim.seed, job.prompt, job.seed, job.temperature, what, job.verify_steps, len(job.tokens))
        return random.Random(repr(place)).random()

    def _next_word(self, job: Job) -> int:
        scores = word_scores(job)
        if job.temperature == 0:
            return max(range(len(WORDS)), key=scores.__getitem__)
        place = (job.seed if job.seed is not None else random.random(), job.prompt, len(job.tokens))
        weights = [math.exp(score / job.temperature) for score in scores]
        return random.Random(repr(place)).choices(range(len(WORDS)), weights)[0]


_SCORES: dict[tuple[int, int], list[float]] = {}


def word_scores(job: Job, position: int | None = None) -> list[float]:
    """Logits of the word at `position` (default: the next one). What is drafted has no say in them."""
    position = len(job.tokens) if position is None else position
    last = job.tokens[position - 1] if position else random.Random(job.prompt).randrange(len(WORDS))
    key = (last, position % TEXT_PERIOD)
    if key not in _SCORES:
        rng = random.Random(repr(key))
        _SCORES[key] = [rng.gauss(0.0, 2.0) for _ in WORDS]
    return _SCORES[key]


def text_of(tokens: list[int]) -> str:
    return "".join(f" {WORDS[token]}" for token in tokens)
