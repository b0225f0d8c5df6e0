"""Asks an interpreter which engine it holds, without importing the engine."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.engines.environments import ACCELERATORS, CPU_KERNELS, EXPAND_CORRECTION
from tuner.errors import UserError

ANSWER_S = 60.0
CORRECTION_MODULES = {"tuner_vllm_cpu_expand": EXPAND_CORRECTION, "cpu_machine": CPU_KERNELS}

QUESTION = """
import importlib.metadata as m, importlib.util as u, json, os, runpy, sys, sysconfig
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
def accelerator():
    torch = u.find_spec("torch")
    try: built = runpy.run_path(os.path.join(os.path.dirname(torch.origin), "version.py"))
    except Exception: return None  # no torch, or one that says nothing
    return next((kind for kind in kinds if built.get(kind)), None)
names, modules, kinds = json.loads(sys.argv[1])
print(json.dumps({
    "packages": {name: version(name) for name in names if version(name)},
    "modules": [name for name in modules if u.find_spec(name)],
    "requires": {name: m.requires(name) or [] for name in names if version(name)},
    "site_packages": sysconfig.get_path("purelib"),
    "accelerator": accelerator(),
}))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """What one Python interpreter holds: versions and requirements by package, corrections, where packages lie.

    `accelerator`: the kind of GPU its torch was built for (torch.version.hip, .xpu, .cuda); None: none.
    """

    packages: dict[str, str]
    requires: dict[str, tuple[str, ...]]
    corrections: tuple[str, ...]
    site_packages: Path
    accelerator: str | None = None


def inspect_interpreter(python: str, packages: Sequence[str]) -> Interpreter:
    """Run `python` once to read the metadata of `packages`; UserError if it does not run or answer."""
    question = json.dumps([list(packages), list(CORRECTION_MODULES), list(ACCELERATORS)])
    try:
        answer = subprocess.run(
            [python, "-I", "-c", QUESTION, question], capture_output=True, text=True, timeout=ANSWER_S, check=True
        )
        held = json.loads(answer.stdout)
    except subprocess.CalledProcessError as error:
        cause = (error.stderr.strip().splitlines() or ["no output"])[-1]
        raise UserError(f"{python} does not run as a Python interpreter: {cause}") from None
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{python} does not run as a Python interpreter: {error}") from None
    return Interpreter(
        packages=held["packages"],
        requires={name: tuple(lines) for name, lines in held["requires"].items()},
        corrections=tuple(CORRECTION_MODULES[module] for module in held["modules"]),
        site_packages=Path(held["site_packages"]),
        accelerator=held["accelerator"],
    )
