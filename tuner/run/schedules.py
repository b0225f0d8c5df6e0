"""N by load on a real engine: how it is told, and the file that SGLang reads it from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tuner.decide.plan_schedule import Make
from tuner.decide.schedule import Stretch, scheduled
from tuner.engines import engine_for
from tuner.engines.base import LaunchOptions
from tuner.engines.environments import Environment
from tuner.run.files import write_atomic
from tuner.spec.candidates import Arm
from tuner.spec.speculation import SGLANG_SCHEDULE, SpecConfig


def schedule_maker(environment: Environment, target: str, options: LaunchOptions) -> Make:
    """For one engine and version: it refuses, as UserError, what the engine would."""

    def make(arm: Arm, stretches: Sequence[Stretch]) -> SpecConfig:
        spec = scheduled(environment.engine, arm, stretches)
        engine_for(environment).check_arguments(target, spec, options)
        return spec

    return make


def on_disk(spec: SpecConfig, folder: Path) -> SpecConfig:
    """What is launched: a table that the configuration carries as text becomes a file in `folder`."""
    table = dict(spec.options).get(SGLANG_SCHEDULE)
    if table is None:
        return spec
    path = folder / f"adaptive-{spec.key}.json"
    write_atomic(path, f"{table}\n")
    rest = tuple(option for option in spec.options if option[0] != SGLANG_SCHEDULE)
    return replace(spec, options=(*rest, ("adaptive_config", str(path.resolve()))))
