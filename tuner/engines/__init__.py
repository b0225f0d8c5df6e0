"""The engines tuner launches, one module each. The registry is a plain mapping: what exists can be read here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tuner.engines.base import Engine
from tuner.engines.environments import Environment
from tuner.engines.sglang import SglangEngine
from tuner.engines.vllm import VllmEngine
from tuner.errors import UserError

ENGINES: Mapping[str, Callable[[Environment], Engine]] = MappingProxyType({"vllm": VllmEngine, "sglang": SglangEngine})


def engine_for(environment: Environment) -> Engine:
    """The adapter of an environment; UserError for an engine tuner does not know."""
    if environment.engine not in ENGINES:
        raise UserError(f"engine '{environment.engine}' is not one of {', '.join(ENGINES)}")
    return ENGINES[environment.engine](environment)
