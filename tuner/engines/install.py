"""Runs a recipe's steps in a fresh virtual environment with the environment's own pip; the full log stays in its folder."""

from __future__ import annotations

import importlib.resources
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tuner.engines.child import error_line, last_line, run_logged
from tuner.engines.environments import Environment
from tuner.engines.inspection import Interpreter, inspect_interpreter
from tuner.engines.recipes import Install, InstallCpuTorch, InstallNeeds, PlaceFiles, Recipe, Step, Uninstall
from tuner.errors import EngineError

Tell = Callable[[str], None]
CPU_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
PIP_OPTIONS = ("--disable-pip-version-check", "--no-input")


@dataclass(slots=True)
class Installation:
    """One environment in the making. `run` starts a child (a seam for tests); `inherit` are descriptors it gets."""

    folder: Path
    recipe: Recipe
    tell: Tell
    run: Callable[..., int] = run_logged
    inspect: Callable[[str, Sequence[str]], Interpreter] = inspect_interpreter
    inherit: tuple[int, ...] = ()
    notes: list[str] = field(default_factory=list)
    corrections: list[str] = field(default_factory=list)
    started_s: float = field(default_factory=time.monotonic)

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    @property
    def log(self) -> Path:
        return self.folder / "install.log"

    def install(self, name: str) -> Environment:
        """Every step in turn, then the checks; EngineError with pip's own error line and the log's path."""
        self.folder.mkdir(parents=True)
        total = len(self.recipe.steps) + 2
        self.say(f"step 1/{total}: create a virtual environment in {self.folder}")
        self.must("create a virtual environment", [sys.executable, "-m", "venv", str(self.folder)])
        for number, step in enumerate(self.recipe.steps, 2):
            self.say(f"step {number}/{total}: {described(step)}")
            self.take(step)
        self.say(f"step {total}/{total}: check that {self.recipe.engine} imports")
        for check in self.recipe.checks:
            self.must(f"import {self.recipe.engine}", [self.python, "-c", check])
        return Environment(
            name=name,
            engine=self.recipe.engine,
            version=self.inspect(self.python, [self.recipe.package]).packages[self.recipe.package],
            python=self.python,
            url=None,
            device=self.recipe.device,
            corrections=tuple(self.corrections),
            notes=tuple(self.notes),
        )

    def take(self, step: Step) -> None:
        match step:
            case Install(requirements, with_dependencies):
                self.pip_install([*([] if with_dependencies else ["--no-deps"]), *requirements])
            case InstallCpuTorch():
                self.install_cpu_torch(step)
            case InstallNeeds(package, leave_out, also):
                needs = needs_of(self.requires(package), leave_out=(*leave_out, "torch"))
                torch = self.inspect(self.python, ["torch"]).packages["torch"]
                self.pip_install([*needs, *also, f"torch=={torch}"])
            case Uninstall(packages):
                self.must("uninstall", [self.python, "-m", "pip", "uninstall", *PIP_OPTIONS, "--yes", *packages])
                self.notes.append(f"not in it, because they break imports beside a CPU torch: {', '.join(packages)}")
            case PlaceFiles(folder, corrections):
                place_files(folder, self.inspect(self.python, []).site_packages)
                self.corrections.extend(corrections)

    def install_cpu_torch(self, step: InstallCpuTorch) -> None:
        """From what pip is configured with if that has a CPU build, else from PyTorch's CPU index; notes say which."""
        wanted = [step.requirement] if step.requirement else torch_of(self.requires(step.needed_by or ""))
        report = self.folder / "torch-report.json"
        told = ["--report", str(report)]
        source = "pip's configured sources"
        if self.pip_exit_code([*told, *wanted]) != 0 or not self.torch_is_cpu():
            self.say(f"pip's configured sources have no CPU build of {', '.join(wanted)}; asking {CPU_TORCH_INDEX}")
            source = "PyTorch's CPU index"
            index = ["--index-url", CPU_TORCH_INDEX, "--retries", "2", "--timeout", "60"]
            self.pip_install([*told, "--force-reinstall", *index, *wanted])
        self.notes.append(f"{torch_origin(report)}, from {source}")

    def torch_is_cpu(self) -> bool:
        probe = "import sys, torch; sys.exit(torch.version.cuda is not None)"
        return self.run([self.python, "-c", probe], self.log, inherit=self.inherit) == 0

    def requires(self, package: str) -> tuple[str, ...]:
        return self.inspect(self.python, [package]).requires[package]

    def pip_install(self, arguments: Sequence[str]) -> None:
        if self.pip_exit_code(arguments) != 0:
            raise EngineError(
                f"pip could not install {self.recipe.name}: {error_line(self.log)} (full log: {self.log})"
            )

    def pip_exit_code(self, arguments: Sequence[str]) -> int:
        return self.child([self.python, "-m", "pip", "install", *PIP_OPTIONS, "--progress-bar", "off", *arguments])

    def must(self, doing: str, argv: Sequence[str]) -> None:
        if self.child(argv) != 0:
            raise EngineError(
                f"engine {self.recipe.name}: could not {doing}: {error_line(self.log)} (full log: {self.log})"
            )

    def child(self, argv: Sequence[str]) -> int:
        def waiting() -> None:
            self.say(f"  … {last_line(self.log)[:120]}")

        # A PYTHONPATH of the caller's would leak other packages into the engine's environment.
        return self.run(argv, self.log, extra_env={"PYTHONPATH": ""}, inherit=self.inherit, waiting=waiting)

    def say(self, text: str) -> None:
        self.tell(f"[{time.monotonic() - self.started_s:4.0f} s] {text}")


def described(step: Step) -> str:
    match step:
        case Install(requirements, _):
            return f"install {' '.join(requirements)}"
        case InstallCpuTorch():
            return "install a CPU build of torch"
        case InstallNeeds(package, _, also):
            return f"install what {package} needs, and {', '.join(also)}"
        case Uninstall(packages):
            return f"remove what breaks imports: {', '.join(packages)}"
        case PlaceFiles(_, corrections):
            return f"put corrections into the environment: {', '.join(corrections)}"


def needs_of(requires: Iterable[str], leave_out: Iterable[str]) -> list[str]:
    """The requirements of a package's metadata without its extras and without the packages in `leave_out`."""
    left_out = set(leave_out)
    return [line for line in requires if "extra ==" not in line and package_of(line) not in left_out]


def torch_of(requires: Iterable[str]) -> list[str]:
    """The lines that ask for torch, markers and all: pip takes the one for this machine."""
    return [line for line in requires if "extra ==" not in line and package_of(line) == "torch"]


def package_of(requirement: str) -> str:
    """`Foo_Bar[x]>=1; marker` -> `foo-bar`."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement.strip())
    return re.sub(r"[-_.]+", "-", name.group()).lower() if name else ""


def torch_origin(report: Path) -> str:
    """Version of torch and where its file came from, by pip's installation report; never with credentials of the URL."""
    for item in json.loads(report.read_text(encoding="utf-8"))["install"]:
        if item["metadata"]["name"].lower() == "torch":
            url = urlsplit(item["download_info"]["url"])
            place = f"a file on this machine, {unquote(url.path)}" if url.scheme == "file" else f"{url.hostname}"
            return f"torch {item['metadata']['version']}: {place}"
    return "torch: already there"


def place_files(folder: str, site_packages: Path) -> bool:
    """Copy the files of `corrections/<folder>` that differ; True if any did. A .pth goes last: it imports the others."""
    source = importlib.resources.files("tuner.engines") / "corrections" / folder
    changed = False
    for file in sorted(source.iterdir(), key=lambda file: file.name.endswith(".pth")):
        if not file.name.endswith((".py", ".pth")):
            continue
        target = site_packages / file.name
        text = file.read_bytes()
        if not target.is_file() or target.read_bytes() != text:
            target.write_bytes(text)
            changed = True
    return changed
