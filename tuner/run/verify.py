"""`tuner verify`: off and every setting of a workload, or two addresses; answers compared and stored."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tuner.engines import engine_for
from tuner.engines.environments import Environment
from tuner.engines.registration import API_KEY_VARIABLE
from tuner.engines.sglang_lossy import resolved_reason
from tuner.errors import UserError
from tuner.measure.lossless import Verified
from tuner.measure.lossless_levels import ALPHA
from tuner.measure.lossless_records import OffProbe, off_to_dict, verified_to_dict
from tuner.run.files import json_line, write_atomic
from tuner.run.progress import Event, Notify
from tuner.run.question import Question
from tuner.run.server_facts import get_json
from tuner.run.stream import Server
from tuner.run.verify_ask import all_of
from tuner.run.verify_labels import known_lossy
from tuner.run.verify_launch import Launcher, room_for_two
from tuner.run.verify_probe import probe_off
from tuner.run.verify_reference import AskedBefore, Reference, StillUp, volume
from tuner.run.verify_task import Effort, Task, task_of
from tuner.spec.candidates import Arm
from tuner.spec.speculation import OFF, SpecConfig

OFF_TEXT = "off: what the target itself writes"


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
            "settings": [
                {"ok": one.passed, "cautions": list(one.cautions()), **verified_to_dict(one)} for one in self.results
            ],
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
    """Launch off and every setting in turn, and compare. EngineError when one cannot be started.

    Where two engines fit off starts with the first setting and stays up; elsewhere it is asked everything first.
    """
    engine, options = engine_for(environment), question.options(environment)
    task = task_of(question, environment.engine, options.args, effort, temperatures)
    folder = reports / f"verify-{question.workload.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    _make(folder)
    launcher = Launcher(question, environment, engine, options, folder, notify)
    done = Verification((), question.target, environment.name, (0.0, *task.temperatures), folder)
    off: Reference | None = (
        None if room_for_two(question, environment, options, specs) else await _asked_before(launcher, task)
    )
    async with contextlib.AsyncExitStack() as off_up:
        for number, spec in enumerate(specs, start=2):
            notify(Event("launch", f"{spec.label}: is its output still the target's?", number))
            async with contextlib.AsyncExitStack() as up:
                starting = up.enter_async_context(launcher.serving(spec, number))
                if off is None:
                    notify(Event("launch", f"{OFF_TEXT}, beside it", 1))
                    both = [off_up.enter_async_context(launcher.serving(OFF, 1)), starting]
                    (off_server, _), (server, facts) = await all_of(both)
                    off = StillUp(off_server, task, _keeping(folder), lambda text: notify(Event("note", text)))
                else:
                    server, facts = await starting
                sampling = question.workload.sampling.body(0)
                reasons = {t: known_lossy(engine, spec, options, t, sampling, facts) for t in (0.0, *task.temperatures)}
                labels = [(t, why) for t, why in reasons.items() if why]
                one = await off.verify(server, spec.label, labels, _level(task, len(specs)))
            notify(Event("trial", _word(one), number))
            # After every setting: a later one that does not start takes nothing of what is known with it.
            done = replace(done, results=(*done.results, one))
            write_atomic(folder / "verify.json", json.dumps(done.to_dict(), indent=2) + "\n")
    return done


async def verify_addresses(off_url: str, spec_url: str, task: Task, model: str | None = None) -> Verification:
    """Two servers that already run: the first without speculation."""
    off_server, spec_server = await _server_at(off_url, model), await _server_at(spec_url, model)
    info = await get_json(spec_server, "/server_info") or {}
    labels = [(t, why) for t in (0.0, *task.temperatures) if (why := resolved_reason(info, t))]
    off = StillUp(off_server, task, keep=lambda _: None)
    result = await off.verify(spec_server, spec_url, labels, _level(task, 1))
    return Verification((result,), off_server.model, spec_url, (0.0, *task.temperatures))


async def _asked_before(launcher: Launcher, task: Task) -> AskedBefore:
    launcher.notify(Event("launch", OFF_TEXT, 1))
    async with launcher.serving(OFF, 1) as (server, _):
        launcher.notify(Event("note", f"off is asked: {volume(task)}"))
        answers = await probe_off(server, task)
    _keeping(launcher.folder)(answers)
    return AskedBefore(task, answers)


def _keeping(folder: Path) -> Callable[[OffProbe], None]:
    return lambda answers: write_atomic(folder / "off.json", json_line(off_to_dict(answers)))


def _level(task: Task, settings: int) -> float:
    """A comparison's share of the error: every setting at temperature 0 and at each above it may be accused."""
    return ALPHA / (settings * (1 + len(task.temperatures)))


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
