"""One cell of load: warm-up, a window at full load, drain; closed loop or open loop. Records come out, no figures."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import aiohttp

from tuner.errors import EngineError
from tuner.measure.records import Cell, RequestRecord, SpecSteps
from tuner.prompts.rows import Prompt
from tuner.run.arrivals import paced, poisson_arrivals
from tuner.run.cell_plan import CellPlan, request_body
from tuner.run.health import LoopWatch, watch_loop
from tuner.run.scrape import scrape, wait_until_idle
from tuner.run.sse import StreamReader
from tuner.run.stream import REFUSED, TIMED_OUT, Server, open_session, send

__all__ = ["CellAborted", "CellPlan", "Server", "measure_cell", "request_body"]

ReadSpec = Callable[[Sequence[Mapping[str, Any]]], SpecSteps | None]
Progress = Callable[[int, int], None]

REFUSED_IN_A_ROW = 3
FAILED_FROM_THE_START = 8
CANCELLED = "cancelled"
DEADLINE = "deadline"
#: ISO 639-2 for "undetermined": the prompt file did not say.
UNKNOWN_LANGUAGE = "und"


class CellAborted(EngineError):
    """The server was lost in the middle of a cell; `cell` holds what was measured until then."""

    def __init__(self, why: str, cell: Cell) -> None:
        super().__init__(why)
        self.cell = cell


async def measure_cell(
    server: Server, plan: CellPlan, read_spec: ReadSpec, on_progress: Progress | None = None
) -> Cell:
    """Drive one cell. The counters around it cover all its requests, fillers included; see `Cell`.

    `on_progress`: measured requests finished, and how many there will be.
    """
    async with open_session(server) as session:
        before = await scrape(session, server)
        async with watch_loop() as watch:
            run = _CellRun(session, server, plan, read_spec, on_progress)
            if plan.key.load.rate is None:
                await _closed_loop(run, plan.key.load.concurrency or 1)
            else:
                await _open_loop(run, plan.key.load.rate)
        if run.why_lost is None:
            await wait_until_idle(session, server)
        cell = run.cell(watch, before, await scrape(session, server))
    if run.why_lost is not None:
        raise CellAborted(f"{server.url}: {run.why_lost}", cell)
    return cell


class _CellRun:
    """The state of one cell while it runs. `settled`: every measured request has ended, or the server is lost."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        server: Server,
        plan: CellPlan,
        read_spec: ReadSpec,
        on_progress: Progress | None,
    ) -> None:
        self.session, self.server, self.plan = session, server, plan
        self.indexes = itertools.count()
        self.settled = asyncio.Event()
        self.why_lost: str | None = None
        self.cut_reason = CANCELLED
        self._read_spec, self._on_progress = read_spec, on_progress
        self._records: list[RequestRecord] = []
        self._measured_ended = 0
        self._errors: list[str] = []  # in a row, since the last request that went well
        self._any_went_well = False
        self._zero_s = time.perf_counter()

    def now_s(self) -> float:
        return time.perf_counter() - self._zero_s

    async def request(self, index: int, scheduled_s: float, timeout_s: float | None) -> None:
        prompt = self.plan.prompts[index % len(self.plan.prompts)]
        reader = StreamReader()
        try:
            body = request_body(self.plan, prompt)
            await send(self.session, self.server, self.plan.endpoint, body, reader, timeout_s)
        except asyncio.CancelledError:
            reader.fail(self.cut_reason if self.plan.phase(index) == "measured" else CANCELLED)
            raise
        finally:
            if reader.sent_s is not None:
                self._keep(index, prompt, scheduled_s, reader)

    def cell(self, watch: LoopWatch, before: str | None, after: str | None) -> Cell:
        records = sorted(self._records, key=lambda r: r.index)
        measured = [r for r in records if r.phase == "measured"]
        return Cell(
            key=self.plan.key,
            window_s=(
                min((r.sent_s for r in measured), default=0.0),
                max((r.sent_s + r.ended_s for r in measured), default=0.0),
            ),
            requests=tuple(records),
            health=watch.health([r.lateness_s for r in records]),
            counters_before=before,
            counters_after=after,
        )

    def _keep(self, index: int, prompt: Prompt, scheduled_s: float, reader: StreamReader) -> None:
        answer, phase = reader.answer(), self.plan.phase(index)
        self._records.append(
            RequestRecord(
                index=index, prompt=prompt.id, task=prompt.task, language=prompt.language or UNKNOWN_LANGUAGE,
                phase=phase, scheduled_s=scheduled_s, sent_s=answer.sent_s - self._zero_s, ended_s=answer.ended_s,
                chunks=answer.chunks, n_in=answer.n_in, n_out=answer.n_out, finish=answer.finish, error=answer.error,
                spec=self._read_spec(answer.events) if answer.error is None else None, text=answer.text,
            )
        )  # fmt: skip
        self._judge(answer.error)
        if phase == "measured":
            self._measured_ended += 1
            if self._on_progress is not None:
                self._on_progress(self._measured_ended, self.plan.measured)
            if self._measured_ended == self.plan.measured:
                self.settled.set()

    def _judge(self, error: str | None) -> None:
        """Give the server up when going on would only burn through the prompts."""
        if error is None:
            self._errors.clear()
            self._any_went_well = True
            return
        if error in (CANCELLED, DEADLINE) or self.why_lost is not None:
            return
        self._errors.append(error)
        in_flight = self.plan.key.load.concurrency or 1
        refused = sum(1 for _ in itertools.takewhile(lambda e: e.startswith(REFUSED), reversed(self._errors)))
        timed_out = sum(1 for _ in itertools.takewhile(lambda e: e.startswith(TIMED_OUT), reversed(self._errors)))
        if refused >= REFUSED_IN_A_ROW:
            self.why_lost = f"the server is gone ({self._errors[0]})"
        elif timed_out >= max(2, in_flight):
            self.why_lost = f"the server hangs ({timed_out} requests in a row: {error})"
        elif not self._any_went_well and len(self._errors) >= max(FAILED_FROM_THE_START, 2 * in_flight):
            self.why_lost = f"no request succeeds ({len(self._errors)} failed, the last with: {error})"
        if self.why_lost is not None:
            self.settled.set()


async def _closed_loop(run: _CellRun, concurrency: int) -> None:
    """`concurrency` workers take indexes in order: which prompt an index means never depends on who is free."""

    async def work() -> None:
        while not run.settled.is_set():
            free_s = run.now_s()
            await run.request(next(run.indexes), free_s, run.plan.timeout_s)

    async with asyncio.TaskGroup() as group:
        workers = [group.create_task(work()) for _ in range(concurrency)]
        await run.settled.wait()
        if run.plan.cancel_fillers or run.why_lost is not None:
            for worker in workers:
                worker.cancel()


async def _open_loop(run: _CellRun, rate: float) -> None:
    """Send at the scheduled times whatever comes back, until all measured requests ended or the drain's deadline."""
    plan = run.plan
    in_flight: set[asyncio.Task[None]] = set()

    async def send_all(group: asyncio.TaskGroup) -> None:
        async for index, scheduled_s in paced(poisson_arrivals(rate, plan.seed), run.now_s):
            task = group.create_task(run.request(index, scheduled_s, None))
            in_flight.add(task)
            task.add_done_callback(in_flight.discard)

    arrivals = poisson_arrivals(rate, plan.seed)
    last_measured_s = next(itertools.islice(arrivals, plan.warmup + plan.measured - 1, None))
    async with asyncio.TaskGroup() as group:
        sender = group.create_task(send_all(group))
        try:
            await asyncio.wait_for(run.settled.wait(), last_measured_s + plan.timeout_s - run.now_s())
        except TimeoutError:
            run.cut_reason = DEADLINE
        sender.cancel()
        if not plan.cancel_fillers and run.settled.is_set() and run.why_lost is None and in_flight:
            # Those that only kept the load up may end by themselves, and as long as any request may take.
            await asyncio.wait(set(in_flight), timeout=plan.timeout_s)
        for task in tuple(in_flight):
            task.cancel()
