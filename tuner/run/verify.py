"""`tuner verify`: off and every setting one engine after another, or two addresses; answers compared and stored."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tuner.engines import engine_for
from tuner.engines.base import Engine, LaunchOptions
from tuner.engines.environments import Environment
from tuner.engines.registration import API_KEY_VARIABLE
from tuner.engines.sglang_lossy import resolved_reason
from tuner.errors import EngineError, UserError
from tuner.measure.lossless import Verified
from tuner.measure.lossless_records import OffProbe, off_to_dict, verified_to_dict
from tuner.run.files import json_line, write_atomic
from tuner.run.process import EngineProcess, EngineStartError, free_port
from tuner.run.progress import Event, Notify
from tuner.run.question import Question
from tuner.run.server_facts import get_json
from tuner.run.stream import Server
from tuner.run.trial import why_failed
from tuner.run.verify_probe import probe_off, verify_server
from tuner.run.verify_task import Effort, Task, task_of
from tuner.spec.candidates import Arm
from tuner.spec.speculation import OFF, SpecConfig


@dataclass(frozen=True, slots=True)
class Verification:
    """A whole run: every setting's verdict, what was tested against what, and where it is stored."""

    results: tuple[Verified, ...]
    target: str
    engine: str
    temperatures: tuple[float, ...]
    folder: Path | None = None

    @property
    def ok(self) -> bool:
        return all(result.passed for result in self.results)

    def to_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "target": self.target,
            "engine": self.engine,
            "temperatures": list(self.temperatures),
            "settings": [{"ok": one.passed, **verified_to_dict(one)} for one in self.results],
        }


def chosen_engine(question: Question, name: str | None) -> Environment:
    """The workload's first engine, or the one that is named."""
    known = {environment.name: environment for environment in question.environments}
    if name is not None and name not in known:
        raise UserError(f"the workload has no engine '{name}': it has {', '.join(known)}")
    return known[name] if name else question.environments[0]


def chosen_settings(arms: Sequence[Arm], labels: Sequence[str]) -> tuple[SpecConfig, ...]:
    """Every way to draft once, at its most tokens or its first tree; or those that are named."""
    known = {spec.label: spec for arm in arms for spec in arm.configs}
    if not known:
        raise UserError("no setting of the workload is left to verify: `tuner check` says what was refused, and why")
    if not labels:
        return tuple(arm.chains[-1] if arm.chains else arm.configs[0] for arm in arms)
    for label in labels:
        if label not in known:
            raise UserError(f"the workload has no setting '{label}': it has {', '.join(known)}")
    return tuple(known[label] for label in labels)


async def verify_workload(
    question: Question,
    environment: Environment,
    specs: Sequence[SpecConfig],
    effort: Effort,
    reports: Path,
    notify: Notify,
    temperatures: Sequence[float] | None = None,
) -> Verification:
    """Launch off, ask it everything, then every setting in turn. EngineError when one cannot be started."""
    engine, options = engine_for(environment), question.options(environment)
    task = task_of(question, environment.engine, options.args, effort, temperatures)
    folder = reports / f"verify-{question.workload.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    _make(folder)
    launcher = _Launcher(question, environment, engine, options, folder, notify)
    notify(Event("launch", "off: what the target itself writes", 1))
    async with launcher.serving(OFF, 1) as (server, _):
        off = await probe_off(server, task)
    write_atomic(folder / "off.json", json_line(off_to_dict(off)))
    done = Verification((), question.target, environment.name, (0.0, *task.temperatures), folder)
    for number, spec in enumerate(specs, start=2):
        notify(Event("launch", f"{spec.label}: is its output still the target's?", number))
        async with launcher.serving(spec, number) as (server, facts):
            labels = _labels(engine, spec, options, task, question.workload.sampling.body(0), facts)
            one = await verify_server(server, task, off, spec.label, labels, len(specs) * _cells(task))
        notify(Event("trial", _word(one), number))
        # After every setting: a later one that does not start takes nothing of what is known with it.
        done = replace(done, results=(*done.results, one))
        write_atomic(folder / "verify.json", json.dumps(done.to_dict(), indent=2) + "\n")
    return done


async def verify_addresses(off_url: str, spec_url: str, task: Task, model: str | None = None) -> Verification:
    """Two servers that already run: the first without speculation."""
    off_server, spec_server = await _server_at(off_url, model), await _server_at(spec_url, model)
    off: OffProbe = await probe_off(off_server, task)
    info = await get_json(spec_server, "/server_info") or {}
    labels = [(t, why) for t in (0.0, *task.temperatures) if (why := resolved_reason(info, t))]
    result = await verify_server(spec_server, task, off, spec_url, labels, _cells(task))
    return Verification((result,), off_server.model, spec_url, (0.0, *task.temperatures))


@dataclass(frozen=True, slots=True)
class _Launcher:
    question: Question
    environment: Environment
    engine: Engine
    options: LaunchOptions
    folder: Path
    notify: Notify

    @contextlib.asynccontextmanager
    async def serving(self, spec: SpecConfig, number: int) -> AsyncIterator[tuple[Server, dict[str, str]]]:
        """A launched engine and its resolved arguments; it is gone when this ends, whatever way."""
        port = self.question.workload.engine_options.port or free_port()
        key = secrets.token_urlsafe(24)
        launch = self.engine.launch(self.question.target, spec, self.options, port, key)
        log = self.folder / f"{number:03d}-{spec.method}.log"
        process = EngineProcess(
            launch,
            log,
            ready_path=self.engine.ready_path(),
            ready_timeout_s=self.question.workload.engine_options.ready_timeout_s,
            on_wait=_waiting(self.notify),
        )
        try:
            async with process:
                server = Server(launch.url, key, launch.served_name)
                path = self.engine.info_path()
                info = await get_json(server, path) if path else None
                yield server, dict(self.engine.read_facts(process.log_text(), info).resolved)
        except EngineStartError as error:
            raise EngineError(f"{spec.label}: {why_failed(self.engine, log, error)}") from None


def _waiting(notify: Notify) -> Callable[[float], None]:
    return lambda waited_s: notify(Event("waiting", "engine starts", waited_s))


def _labels(
    engine: Engine, spec: SpecConfig, options: LaunchOptions, task: Task, sampling: dict[str, Any],
    resolved: dict[str, str],
) -> list[tuple[float, str]]:  # fmt: skip
    """What is known against the setting before anything is measured: of what was asked, then of what was resolved."""
    labels = []
    for temperature in (0.0, *task.temperatures):
        why = engine.lossy(spec, options, temperature, sampling)
        if why is None and engine.environment.engine == "sglang":
            why = resolved_reason(resolved, temperature)
        if why is not None:
            labels.append((temperature, why))
    return labels


def _cells(task: Task) -> int:
    """Chances to accuse a sound setting: temperature 0 and those above it."""
    return 1 + len(task.temperatures)


def _word(one: Verified) -> str:
    if not one.passed:
        return "NOT the target's output"
    return "output as the target's" if one.tested else "output not tested"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"cannot create {folder} ({error.strerror}): choose another --reports") from None


async def _server_at(url: str, model: str | None) -> Server:
    address, key = url.rstrip("/").removesuffix("/v1"), os.environ.get(API_KEY_VARIABLE)
    told = await get_json(Server(address, key, ""), "/v1/models")
    if told is None:
        raise UserError(f"{address}/v1/models does not answer: is the server up, and its key in {API_KEY_VARIABLE}?")
    try:
        return Server(address, key, model or str(told["data"][0]["id"]))
    except (KeyError, IndexError, TypeError):
        raise UserError(f"{address}/v1/models lists no model: give the address of vLLM or SGLang") from None
