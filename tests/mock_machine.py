"""The simulated machine behind the mock engine: one loop steps all running requests together and drafts, accepts and
counts as an engine does. It keeps the truth about every request, so tests can compare with zero tolerance."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

WORDS = (
    "the", "one", "draft", "model", "token", "step", "reads", "writes", "fast", "slow", "batch", "target", "verify",
    "accept", "reject", "tree", "chain", "head", "layer", "cache", "queue", "load", "light", "stone", "river", "open",
)  # fmt: skip
#: The next word depends on the last one and on the position modulo this: large, so that greedy text does not loop.
TEXT_PERIOD = 991


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
    """What the launch flags asked for. `n`: most tokens one step can accept; `nodes`: tokens it drafts; `by_load`:
    (from so many running requests on, N), rising, where N moves."""

    method: str = "off"
    n: int = 0
    nodes: int = 0
    by_load: tuple[tuple[int, int], ...] = ()

    def at(self, running: int) -> tuple[int, int]:
        """(n, nodes) of a step with so many requests."""
        found = [n for start, n in self.by_load if start <= running]
        return (found[-1], found[-1]) if found else (self.n, self.nodes)


@dataclass(frozen=True)
class Broken:
    """How verification is broken; nothing of it shows without speculation, nor in the token that prefill yields.

    `greedy`: temperature is ignored. `shift`: so much probability goes from the likeliest word to the second, a total
    variation of exactly that. `bonus_bias`: the last token of a step is drawn at temperature T / (1 + bias).
    `stale_every`: in each n-th verify step the cache lacks the last token, so its first word follows the one before.
    """

    greedy: bool = False
    shift: float = 0.0
    bonus_bias: float = 0.0
    stale_every: int = 0


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
    luck: str = ""
    top_k: int = -1
    top_p: float = 1.0
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
        self, sim: Sim, spec: Speculation, max_running: int, prefix_caching: bool, greedy_always: bool = False,
        broken: Broken = Broken(),
    ) -> None:  # fmt: skip
        self.sim, self.spec, self.max_running, self.broken = sim, spec, max_running, broken
        self.counters = Counters(per_position=[0] * spec.n)
        self.running: list[Job] = []
        self.waiting: list[Job] = []
        self.jobs: list[Job] = []
        self.frozen = False
        self._numbers = itertools.count(1)
        self._prefix_caching, self._greedy_always = prefix_caching, greedy_always
        self._seen: set[str] = set()
        self._asked: Counter[str] = Counter()
        self._work = asyncio.Event()

    def submit(self, body: Mapping[str, Any], prompt: str, choice: int = 0) -> Job:
        """`choice`: which of the request's n answers this is; each has a seed of its own, as in vLLM. Without one its
        luck hangs on how often this machine was asked the same before: a test draws the same whatever the timing."""
        self._asked[prompt] += 1
        temperature = 0.0 if self._greedy_always else float(body.get("temperature", 1.0))
        job = Job(
            next(self._numbers), prompt, int(body.get("max_tokens") or 16), temperature,
            None if body.get("seed") is None else int(body["seed"]) + choice, bool(body.get("ignore_eos")),
            n_in=len(prompt.split()) + 8, luck=f"{self.sim.seed} {self.spec} {self._asked[prompt]}",
            top_k=int(body.get("top_k") or -1), top_p=float(body.get("top_p") or 1.0),
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
            n, nodes = self.spec.at(len(self.running))
            await asyncio.sleep(self.sim.step_s(len(self.running), nodes) + self.sim.prefill_s * len(new))
            for job in list(self.running):
                self._advance(job, n, nodes)

    def _prefill(self, job: Job) -> None:
        self.counters.prompt += job.n_in
        self.counters.cache_queries += job.n_in
        if self._prefix_caching and job.prompt in self._seen:
            self.counters.cache_hits += job.n_in
        self._seen.add(job.prompt)

    def _advance(self, job: Job, n: int, nodes: int) -> None:
        """One step of one request: prefill yields one token, a verify step the accepted ones and the bonus token."""
        emitted = 1 if not job.tokens else 1 + self._verify(job, n, nodes)
        fresh: list[int] = []
        verified = bool(self.spec.n and job.tokens)
        while len(fresh) < emitted and job.finish is None:
            bonus, first = len(fresh) == emitted - 1, not fresh
            fresh.append(self._broken_word(job, bonus, first) if verified else self._next_word(job))
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

    def _verify(self, job: Job, n: int, nodes: int) -> int:
        """Accepted tokens are counted before max_tokens or a stop cuts them off, as both engines do."""
        job.verify_steps += 1
        self.counters.verify_steps += 1
        share = self.sim.draft_share.get(self.spec.method, 1.0)
        if n == 0 or self._chance(job, "draft") >= share:
            return 0
        alpha = self.sim.acceptance(self.spec.method, job.temperature)
        accepted = 0
        while accepted < n and self._chance(job, f"accept{accepted}") < alpha[min(accepted, len(alpha) - 1)]:
            accepted += 1
        job.accepted.append(accepted)
        job.drafted.append(nodes)
        self.counters.drafts += 1
        self.counters.drafted += nodes
        self.counters.accepted += accepted
        for position in range(accepted):
            self.counters.per_position[position] += 1
        return accepted

    def _chance(self, job: Job, what: str) -> float:
        """A draw that depends on the request and the step alone, so concurrency never changes what is accepted."""
        place = (self.sim.seed, job.prompt, job.seed, job.temperature, what, job.verify_steps, len(job.tokens))
        return random.Random(repr(place)).random()

    def _next_word(self, job: Job) -> int:
        return self._draw(job, word_scores(job), job.temperature)

    def _broken_word(self, job: Job, bonus: bool, first: bool) -> int:
        """A word out of a verify step: as `_next_word`, but for what is broken."""
        broken, scores, temperature = self.broken, word_scores(job), job.temperature
        if broken.stale_every and first and self.counters.verify_steps % broken.stale_every == 0:
            scores = word_scores(job, stale=True)
        if broken.greedy or temperature == 0:
            return max(range(len(WORDS)), key=scores.__getitem__)
        if bonus:
            temperature /= 1 + broken.bonus_bias
        word = self._draw(job, scores, temperature)
        if not broken.shift:
            return word
        best, second = sorted(range(len(WORDS)), key=lambda w: -scores[w])[:2]
        if word == best:
            likely = self._weights(job, scores, temperature)
            place = ("shift", job.luck, job.seed, job.prompt, len(job.tokens))
            word = second if random.Random(repr(place)).random() < broken.shift * sum(likely) / likely[best] else best
        return word

    def _draw(self, job: Job, scores: list[float], temperature: float) -> int:
        if temperature == 0:
            return max(range(len(WORDS)), key=scores.__getitem__)
        place = (job.luck if job.seed is None else job.seed, job.prompt, len(job.tokens))
        return random.Random(repr(place)).choices(range(len(WORDS)), self._weights(job, scores, temperature))[0]

    def _weights(self, job: Job, scores: list[float], temperature: float) -> list[float]:
        """After temperature, top-k and top-p, in the engines' order."""
        weights = [math.exp(score / temperature) for score in scores]
        if job.top_k <= 0 and job.top_p >= 1:
            return weights
        order = sorted(range(len(WORDS)), key=lambda w: -weights[w])
        kept = order[: job.top_k] if job.top_k > 0 else order
        total, within, mass = sum(weights[w] for w in kept), [], 0.0
        for word in kept:
            within.append(word)
            mass += weights[word] / total
            if mass >= job.top_p:
                break
        return [weight if word in within else 0.0 for word, weight in enumerate(weights)]


_SCORES: dict[tuple[int, int], list[float]] = {}


def word_scores(job: Job, position: int | None = None, stale: bool = False) -> list[float]:
    """Logits of the word at `position` (default: the next one). What is drafted has no say in them.

    `stale`: as if the last word were not there.
    """
    position = (len(job.tokens) if position is None else position) - stale
    last = job.tokens[position - 1] if position > 0 else random.Random(job.prompt).randrange(len(WORDS))
    key = (last, position % TEXT_PERIOD)
    if key not in _SCORES:
        rng = random.Random(repr(key))
        _SCORES[key] = [rng.gauss(0.0, 3.5) for _ in WORDS]
    return _SCORES[key]


def text_of(tokens: list[int]) -> str:
    return "".join(f" {WORDS[token]}" for token in tokens)
