"""One launch and its cells: start the engine, measure every cell, record each as it completes, end the engine."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.decide.plan import Ask
from tuner.engines import engine_for
from tuner.engines.base import Engine, Launch
from tuner.engines.environments import Environment
from tuner.errors import EngineError
from tuner.measure.records import Cell, CellKey, EngineFacts, SpecSteps
from tuner.run.gate import check_output, to_ask
from tuner.run.load import CellAborted, measure_cell
from tuner.run.process import EngineProcess, EngineSlow, EngineStartError, free_port
from tuner.run.progress import Event, Notify
from tuner.run.question import Question
from tuner.run.schedules import on_disk
from tuner.run.server_facts import get_json
from tuner.run.store import StudyStore
from tuner.run.stream import Server
from tuner.run.sweep_clock import Deadline
from tuner.run.verify_labels import known_lossy
from tuner.spec.speculation import SpecConfig

#: The status of a launch that was cut short by its budget begins so.
STOPPED = "stopped"
NOT_STARTED = f"{STOPPED}: the time was up before its engine was started"


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """A launch that was decided on: what, why, on which engine, and the cells still to measure.

    `deadline`: no engine is started, no cell begun and no output asked for after it; what an engine that serves has
    measured is kept. None: every cell is measured. `start_s`: expected until the first cell is done; the engine is not
    started with less left.
    """

    number: int
    ask: Ask
    environment: Environment
    keys: tuple[CellKey, ...]
    deadline: Deadline | None = None
    start_s: float = 0.0

    @property
    def left_s(self) -> float:
        return math.inf if self.deadline is None else self.deadline.left_s

    @property
    def too_late(self) -> bool:
        """Whether its engine must not be started any more."""
        return self.left_s <= 0 or self.left_s < self.start_s


async def run_trial(question: Question, plan: TrialPlan, store: StudyStore, notify: Notify) -> str:
    """Run and record one trial; its status is returned: `ok`, `failed: …` or `stopped: …`. An interruption raises, as
    does what no engine's log explains: a port that is taken, an engine that stays. What is too late is not recorded.
    """
    if plan.too_late:
        return NOT_STARTED
    engine = engine_for(plan.environment)
    port = question.workload.engine_options.port or free_port()
    key = secrets.token_urlsafe(24)
    spec = on_disk(plan.ask.spec, store.folder)
    launch = engine.launch(question.target, spec, question.options(plan.environment), port, key)
    store.trial_started(
        plan.number, plan.ask.spec, plan.environment.name, plan.ask.role, plan.ask.why, launch.argv, launch.env
    )
    where = f" on {plan.environment.name}" if len(question.environments) > 1 else ""
    notify(Event("launch", f"{plan.ask.spec.label}{where}: {plan.ask.why}", plan.number))
    running = _Running(question, plan, store, notify, engine, launch, key)
    try:
        status = await running.run()
    except EngineSlow as error:
        status = f"{STOPPED}: the time was up before the engine was ready" if running.cut else f"failed: {error}"
    except (EngineStartError, CellAborted) as error:
        if isinstance(error, CellAborted):
            store.cell_aborted(plan.number, error.cell)
        log = store.trial_folder(plan.number) / "engine.log"
        status = f"failed: {why_failed(engine, log, error)}"
    store.trial_ended(plan.number, status, running.facts)
    notify(Event("trial", status, plan.number))
    return status


def why_failed(engine: Engine, log: Path, error: EngineError) -> str:
    """The engine's own root-cause line if its log has one, with where to read on."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    cause = engine.root_cause(text)
    return f"{error}; the engine's log says: {cause}" if cause else str(error)


class _Running:
    """The state of a trial while its engine runs."""

    def __init__(
        self, question: Question, plan: TrialPlan, store: StudyStore, notify: Notify,
        engine: Engine, launch: Launch, api_key: str,
    ) -> None:  # fmt: skip
        self.question, self.plan, self.store, self.notify = question, plan, store, notify
        self.engine, self.launch, self.api_key = engine, launch, api_key
        self.facts = EngineFacts()
        #: Whether the engine had less time to start in than it may take.
        self.cut = False

    async def run(self) -> str:
        patience_s, left_s = self.question.workload.engine_options.ready_timeout_s, max(0.0, self.plan.left_s)
        self.cut = left_s < patience_s
        process = EngineProcess(
            self.launch,
            self.store.trial_folder(self.plan.number) / "engine.log",
            ready_path=self.engine.ready_path(),
            ready_timeout_s=min(patience_s, left_s),
            on_wait=lambda waited_s: self.notify(Event("waiting", "engine starts", waited_s)),
        )
        started_s = time.monotonic()
        async with process:
            path = self.engine.info_path()
            info = await get_json(self._server(), path) if path else None
            self.facts = self.engine.read_facts(process.log_text(), info)
            self.store.trial_ready(self.plan.number, process.ready_s, self.facts)
            self.notify(Event("ready", f"ready after {process.ready_s:.0f} s", process.ready_s))
            for done, key in enumerate(self.plan.keys):
                if self.plan.left_s <= 0:
                    return f"{STOPPED}: the time was up after {done} of {len(self.plan.keys)} cells"
                await self._cell(process, key, done)
            spec, place = self.plan.ask.spec, self.plan.environment
            if self.plan.left_s <= 0 and to_ask(place, spec, self.plan.number, self.store):
                return f"{STOPPED}: the time was up before its output was asked for"
            await check_output(
                self.question, place, spec, self.plan.number, self._server(), self.store, self.notify,
                time.monotonic() - started_s, dict(self.facts.resolved),
            )  # fmt: skip
        return "ok"

    def _server(self) -> Server:
        return Server(self.launch.url, self.api_key, self.launch.served_name)

    async def _cell(self, process: EngineProcess, key: CellKey, done: int) -> None:
        """Measure one cell; an engine that dies meanwhile ends it at once."""
        where = f"{key.load.text}, temperature {key.temperature:g}"
        measuring = asyncio.ensure_future(self._measure(key, where))
        died = asyncio.ensure_future(process.wait())
        try:
            await asyncio.wait({measuring, died}, return_when=asyncio.FIRST_COMPLETED)
            if not measuring.done():
                # What is in flight fails by itself within moments: its records are kept with the aborted cell.
                await asyncio.wait({measuring}, timeout=5)
            if not measuring.done():
                raise EngineStartError(f"the engine died at {where}", "")
            cell = measuring.result()
            if died.done():
                raise EngineStartError(f"the engine died at {where}", "")
        finally:
            for task in (measuring, died):
                task.cancel()
            await asyncio.gather(measuring, died, return_exceptions=True)
        self.store.cell_done(self.plan.number, cell)
        self.notify(Event("cell", where, done + 1, len(self.plan.keys)))

    async def _measure(self, key: CellKey, where: str) -> Cell:
        spec: SpecConfig = self.plan.ask.spec
        plan = self.question.plan(key, dict(self.engine.request_extras(spec)))
        server = self._server()

        def read_spec(events: Sequence[Mapping[str, Any]]) -> SpecSteps | None:
            return None if spec.is_off else self.engine.read_spec_steps(events, spec)

        def progress(ended: int, total: int) -> None:
            self.notify(Event("requests", where, ended, total))

        cell = await measure_cell(server, plan, read_spec, progress)
        options = self.question.options(self.plan.environment)
        resolved = dict(self.facts.resolved)
        lossy = known_lossy(self.engine, spec, options, key.temperature, plan.sampling, resolved)
        return dataclasses.replace(cell, lossy=lossy)
