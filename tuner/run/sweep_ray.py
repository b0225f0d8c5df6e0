"""Trials as Ray tasks that claim GPUs: one engine a claim, on whatever node has room; the driver writes the journal.

Engines, models and drafts must be at the same paths on every node, and tuner in the Python that Ray runs there.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from tuner.engines.spread import gpus_of
from tuner.errors import UserError
from tuner.run.device_lock import chosen_gpus
from tuner.run.files import write_atomic
from tuner.run.progress import Event, Notify
from tuner.run.question import Question
from tuner.run.ray_worker import CLAIMED, RETURNED, HandedOut, measure_elsewhere
from tuner.run.store import StudyStore
from tuner.run.sweep_asks import LOST
from tuner.run.sweep_plan import PlannedStudy
from tuner.run.trial import NOT_STARTED, TrialPlan

#: Trials handed to Ray together: it holds back those that find no room.
AT_ONCE = 256
#: Ray marks tasks that were cut off so; tuner itself decides on running them again.
NO_RETRIES = 0


class RayExecutor:
    """Runs each trial in a worker that has its GPUs to itself, and journals here what the worker tells."""

    at_once = AT_ONCE
    on_this_machine = False

    def __init__(self, ray: Any, address: str | None = None) -> None:
        self._ray = ray
        self.options: tuple[str, ...] = ("--executor", "ray", *(("--address", address) if address else ()))
        self._running: set[Any] = set()
        self._task = ray.remote(max_retries=NO_RETRIES, num_returns="streaming")(measure_elsewhere)

    def refuse(self, studies: Sequence[PlannedStudy]) -> None:
        """Claims no node can meet, GPUs that the workload chooses itself, one port for launches side by side."""
        refuse_on([node["Resources"] for node in self._ray.nodes() if node["Alive"]], studies)

    async def run(self, question: Question, plan: TrialPlan, store: StudyStore, notify: Notify) -> str:
        """What waits for room waits no longer than its engine may still be started."""
        if plan.too_late:
            return NOT_STARTED
        told = self._task.options(**self._claim(question, plan)).remote(
            question, plan, HandedOut.of(store, plan.ask.spec)
        )
        self._running.add(told)
        status, messages = LOST, aiter(told)
        try:
            patience_s = None if plan.deadline is None else max(0.0, plan.left_s - plan.start_s)
            reference = await asyncio.wait_for(anext(messages, None), patience_s)
            while reference is not None:
                name, values = await reference
                status = _apply(name, values, plan, store, notify) or status
                reference = await anext(messages, None)
        except asyncio.CancelledError:
            self._ray.cancel(told, force=True)  # what runs in its worker is nobody's any more
            raise
        except self._ray.exceptions.RayError as error:
            status = f"{LOST}: {type(error).__name__}"
            if isinstance(error, self._ray.exceptions.RayTaskError):  # it was there, and this went wrong in it
                status = f"failed: in its worker, {str(error).strip().splitlines()[-1]}"
            _record_lost(plan, store, status)
            notify(Event("trial", status, plan.number))
        except TimeoutError:
            self._ray.cancel(told, force=True)
            status = NOT_STARTED
        finally:
            self._running.discard(told)
        return status

    def _claim(self, question: Question, plan: TrialPlan) -> dict[str, float]:
        """The GPUs an engine is spread over; for a CPU engine a whole node, so that no two share its cores."""
        if plan.environment.device == "cpu":
            return {"num_cpus": max(node["Resources"].get("CPU", 1.0) for node in self._ray.nodes() if node["Alive"])}
        gpus = gpus_of(plan.environment.engine, question.options(plan.environment))
        return {"num_gpus": gpus, "num_cpus": 1}

    def close(self) -> None:
        """End what still runs: its worker is killed, and the guard in it ends the engine."""
        for told in self._running:
            self._ray.cancel(told, force=True)
        self._ray.shutdown()


def refuse_on(nodes: Sequence[Mapping[str, float]], studies: Sequence[PlannedStudy]) -> None:
    """UserError for what these nodes, by their resources, can never run."""
    most = int(max((node.get("GPU", 0.0) for node in nodes), default=0.0))
    ports: dict[int, int] = {}
    for study in (one for one in studies if one.environment.device != "cpu"):
        if name := chosen_gpus(study.options):
            raise UserError(
                f"engine_options.env of {study.label} has {name}, and under --executor ray each launch gets its GPUs "
                "from Ray: remove it"
            )
        asked, port = gpus_of(study.environment.engine, study.options), study.workload.engine_options.port
        if asked > most:
            raise UserError(
                f"{study.label} asks for {asked} GPUs a launch, and the largest node of this Ray cluster has {most}: "
                "lower tensor_parallel and its like, or name another cluster with --address"
            )
        if port is not None and asked + ports.get(port, asked) <= most:
            raise UserError(
                f"{study.label} fixes engine_options.port {port}, and a node of this Ray cluster has room for two of "
                "its launches: leave port out for a free one each"
            )
        if port is not None:
            ports[port] = min(asked, ports.get(port, asked))


def connect(address: str | None) -> RayExecutor:
    """To a cluster by its address, or to one made for this run on this machine."""
    try:
        import ray
    except ImportError:
        raise UserError("--executor ray needs Ray: pip install 'eagle3-tuner[ray]', or use --executor local") from None
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, log_to_driver=False, include_dashboard=False if address is None else None)
    except Exception as error:  # Ray raises plain ones when a node does not start in time
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"cannot reach Ray at {address or 'this machine'} ({why}): correct --address") from None
    finally:
        # Ray puts a handler of its own there, which does not unwind.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
    return RayExecutor(ray, address)


def _apply(name: str, values: tuple[Any, ...], plan: TrialPlan, store: StudyStore, notify: Notify) -> str | None:
    """Write into the journal what a worker did; the trial's status when it ended."""
    if name == "notify":
        notify(values[0])
    elif name == RETURNED:
        return str(values[0])
    elif name == CLAIMED:
        store.note(CLAIMED, number=plan.number, **values[0])
    elif name == "file":
        write_atomic(store.trial_folder(plan.number) / values[0], values[1])
    elif name == "note":
        store.note(values[0], **values[1])
    else:
        getattr(store, name)(*values)
        if name == "trial_ended":
            return str(values[1])
    return None


def _record_lost(plan: TrialPlan, store: StudyStore, status: str) -> None:
    if not store.was_started(plan.number):
        store.trial_started(
            plan.number, plan.ask.spec, plan.environment.name, plan.ask.role, plan.ask.why, (), ()
        )  # fmt: skip
    store.trial_ended(plan.number, status)
