"""The requests of a losslessness test to one server: off answers all of them, a speculating one until it is judged."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import aiohttp

from tuner.errors import TunerError, UserError
from tuner.measure.counters import read_counters
from tuner.measure.lossless import Structured, Verified
from tuner.measure.lossless_greedy import GreedyAnswer, GreedyResult, compare_greedy
from tuner.measure.lossless_levels import ALPHA
from tuner.measure.lossless_records import OffProbe, Samples
from tuner.measure.lossless_sampled import LOOKS, SampledResult, compare_sampled
from tuner.run.scrape import scrape
from tuner.run.stream import Server, open_session
from tuner.run.verify_ask import Lost, all_of, ask, logprob_fields
from tuner.run.verify_draw import Deadline, Drawn, draw
from tuner.run.verify_structured import judge_structured, structured_answers
from tuner.run.verify_task import Task

DRAFTING = ("vllm:spec_decode_num_drafts_total", "sglang:spec_verify_calls_total")


async def probe_off(server: Server, task: Task, sampling_s: float | None = None) -> OffProbe:
    """Everything off is asked: greedily and for samples at two concurrencies each, and bound to grammars.

    `sampling_s`: what sampling may take at each temperature; None: until all samples are in.
    """
    async with open_session(server) as session, _named("off"):
        greedy = await _greedy(session, server, task, task.concurrency, scores=task.gaps)
        again = await _greedy(session, server, task, task.other, scores=False, names=_by_name(greedy))
        samples = []
        for temperature in task.temperatures:
            halves = []
            for arm, slots in (("off", task.concurrency), ("off again", task.other)):
                have, until = Drawn(), Deadline(sampling_s and sampling_s / 2)
                await draw(session, server, task, temperature, arm, slots, have, task.each // 2, until)
                halves.append(have.fixed())
            samples.append(Samples(temperature, tuple(halves)))
        return OffProbe(greedy, again, tuple(samples), await structured_answers(session, server, task))


async def verify_server(
    server: Server,
    task: Task,
    off: OffProbe,
    setting: str,
    labels: Sequence[tuple[float, str]] = (),
    alpha: float = ALPHA,
    sampling_s: float | None = None,
) -> Verified:
    """Ask a speculating server the same, and judge. `alpha`: the share of the error that each of its temperatures may
    spend, 0 among them; `sampling_s`: as in `probe_off`.

    A server that dies or hangs is a verdict and no error; one that refuses is an error, which names the setting.
    Samples are looked at as they grow, and an obvious fault ends them.
    """
    probe = _Spec(server, task, off, setting, alpha, sampling_s)
    unsafe = None
    try:
        async with open_session(server) as session, _named(setting, but=Lost):
            await probe.run(session)
    except Lost as error:
        unsafe = f"{error}, asked {probe.doing}"
    return Verified(
        setting, probe.greedy, tuple(probe.sampled), probe.controls(), tuple(labels), probe.structured, probe.drafted,
        unsafe, probe.at if unsafe else None, probe.drafted_greedily,
    )  # fmt: skip


@contextlib.asynccontextmanager
async def _named(asked: str, but: type[TunerError] | None = None) -> AsyncIterator[None]:
    """Whose answers could not be used: an error says what the server told, and not which of them it is."""
    try:
        yield
    except TunerError as error:
        if but is not None and isinstance(error, but):
            raise
        raise type(error)(f"{asked}: {error}") from None


class _Spec:
    """The state of a speculating server's test: what was found before it died stays."""

    def __init__(
        self, server: Server, task: Task, off: OffProbe, setting: str, alpha: float, sampling_s: float | None
    ) -> None:
        self.server, self.task, self.off, self.setting = server, task, off, setting
        self.alpha, self.sampling_s = alpha, sampling_s
        self.greedy: GreedyResult | None = None
        self.structured: Structured | None = None
        self.drafted: int | None = None
        self.drafted_greedily: int | None = None
        self.sampled: list[SampledResult] = []
        self.doing = "greedily"
        self.at: float | None = 0.0

    async def run(self, session: aiohttp.ClientSession) -> None:
        before = await _drafting_steps(session, self.server)
        answers = await _greedy(
            session, self.server, self.task, self.task.concurrency, scores=False, names=_by_name(self.off.greedy)
        )
        if self.task.greedy:
            self.greedy = compare_greedy(self.off.greedy, self.off.again, answers, self.task.tolerance, self.alpha)
        between = await _drafting_steps(session, self.server)
        self.drafted_greedily = _more(before, between)
        for samples in self.off.samples:
            self.at, self.doing = samples.temperature, f"for samples at temperature {samples.temperature:g}"
            if result := await self._sample(session, samples):
                self.sampled.append(result)
        after = await _drafting_steps(session, self.server)
        self.drafted = _more(between if self.off.samples else before, after)
        self.at, self.doing = None, "for answers bound to a grammar"
        self.structured = judge_structured(
            self.off.structured, await structured_answers(session, self.server, self.task)
        )

    async def _sample(self, session: aiohttp.ClientSession, samples: Samples) -> SampledResult | None:
        """The last look that was needed; None where off has no samples."""
        off = {prompt: texts for prompt, texts in samples.all.items() if texts}
        most, have = max((len(texts) for texts in off.values()), default=0), Drawn()
        result, until = None, Deadline(self.sampling_s)
        for look, share in enumerate(LOOKS):
            wanted, last = math.ceil(most * share), look == len(LOOKS) - 1
            try:
                await draw(
                    session, self.server, self.task, samples.temperature, self.setting, self.task.concurrency, have,
                    wanted, until,
                )  # fmt: skip
            except Lost:  # what came before it broke down is judged too
                result = compare_sampled(off, have.fixed(), samples.temperature, self.task.k, look, self.alpha)
                self.sampled += [result] if result.tests else []
                raise
            if until.passed and not last:
                look, last = len(LOOKS) - 1, True
            result = compare_sampled(off, have.fixed(), samples.temperature, self.task.k, look, self.alpha)
            if result.failed or last:
                break
        return result if result and result.tests else None

    def controls(self) -> tuple[SampledResult, ...]:
        """Off's halves against each other, by the same test."""
        return tuple(
            compare_sampled(s.halves[0], s.halves[1], s.temperature, self.task.k, alpha=self.alpha)
            for s in self.off.samples
            if len(s.halves) == 2
        )


async def _greedy(
    session: aiohttp.ClientSession, server: Server, task: Task, slots: int, *, scores: bool, names: bool = False
) -> tuple[GreedyAnswer, ...]:
    """`names`: the other server's tokens are known by name only, which log-probabilities bring along."""
    fields = logprob_fields(task.endpoint, task.engine) if scores or names else {}
    gate = asyncio.Semaphore(slots)

    async def one(prompt: str, body: Mapping[str, Any]) -> GreedyAnswer:
        async with gate:
            (choice,) = await ask(session, server, task.endpoint, {**body, **fields}, task.timeout_s)
        return GreedyAnswer(prompt, choice.tokens, choice.ended, choice.scores if scores else ())

    return tuple(await all_of([one(prompt, body) for prompt, body in task.greedy]))


def _by_name(answers: Sequence[GreedyAnswer]) -> bool:
    return any(isinstance(token, str) for answer in answers for token in answer.tokens)


def _more(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


async def _drafting_steps(session: aiohttp.ClientSession, server: Server) -> int | None:
    """Verify steps that drafted so far, by the engine's own counter; None where it has none."""
    text = await scrape(session, server)
    try:
        counters = read_counters(text) if text is not None else {}
    except UserError:
        return None
    found = [counters[name, ""] for name in DRAFTING if (name, "") in counters]
    return int(sum(found)) if found and math.isfinite(sum(found)) else None
