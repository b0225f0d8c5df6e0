"""Runs a recipe's steps in a fresh virtual environment with its own pip; the full log stays in its folder."""

from __future__ import annotations

import importlib.resources
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable
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
# Compiling all of torch and vllm ahead takes longer than the rest of the installation; what is imported gets compiled.
INSTALL_OPTIONS = (*PIP_OPTIONS, "--progress-bar", "off", "--no-compile")


@dataclass(slots=True)
class Installation:
    """One environment in the making; `run` is a seam for tests, `inherit` are descriptors for children."""

    folder: Path
    recipe: Recipe
    tell: Tell
    run: Callable[..., int] = run_logged
    inherit: tuple[int, ...] = ()
    notes: list[str] = field(default_factory=list)
    corrections: list[str] = field(default_factory=list)
    started_s: float = field(default_factory=time.monotonic)

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    @property
    def isolated(self) -> tuple[str, str]:
        """Without -I, a folder named torch where the user stands would be imported in place of the package."""
        return (self.python, "-I")

    @property
    def log(self) -> Path:
        return self.folder / "install.log"

    def install(self, name: str) -> Environment:
        """Every step in turn, then the checks; EngineError with pip's own error line and the log's path."""
        total = len(self.recipe.steps) + 2
        self.say(f"step 1/{total}: create a virtual environment in {self.folder}")
        self.create()
        for number, step in enumerate(self.recipe.steps, 2):
            self.say(f"step {number}/{total}: {described(step)}")
            self.take(step)
        self.say(f"step {total}/{total}: check that {self.recipe.engine} works in it")
        self.must(f"use {self.recipe.engine}", [*self.isolated, "-c", self.recipe.check])
        held = self.held(self.recipe.package)
        return Environment(
            name=name,
            engine=self.recipe.engine,
            version=held.packages[self.recipe.package],
            python=self.python,
            url=None,
            device=self.recipe.device,
            corrections=tuple(self.corrections),
            notes=tuple(self.notes),
            accelerator=None if self.recipe.device == "cpu" else held.accelerator,
        )

    def create(self) -> None:
        """A venv, with the newest pip if pip can get it: its resolver needs half the time of an older one."""
        need = "create a virtual environment (on Debian and Ubuntu that needs the package python3-venv)"
        self.must(need, [sys.executable, "-m", "venv", str(self.folder)])
        self.pip_exit_code(["--upgrade", "pip"])

    def take(self, step: Step) -> None:
        match step:
            case Install(requirements, with_dependencies):
                self.pip_install([*([] if with_dependencies else ["--no-deps"]), *requirements])
            case InstallCpuTorch():
                self.install_cpu_torch(step)
            case InstallNeeds():
                self.install_needs(step)
            case Uninstall(packages):
                self.must("uninstall", [*self.isolated, "-m", "pip", "uninstall", *PIP_OPTIONS, "--yes", *packages])
                self.notes.append(f"left out, because they break imports beside a CPU torch: {', '.join(packages)}")
            case PlaceFiles(folder, corrections):
                place_files(folder, self.held().site_packages)
                self.corrections.extend(corrections)

    def install_cpu_torch(self, step: InstallCpuTorch) -> None:
        """From what pip is configured with if that has a CPU build, else PyTorch's CPU index; a note says which."""
        wanted = step.requirements
        if step.needed_by:
            wanted = lines_for(self.held(step.needed_by).requires[step.needed_by], only=("torch",))
        report = self.folder / "torch-report.json"
        source = "pip's configured sources"
        if self.pip_exit_code(["--report", str(report), *wanted]) != 0 or not self.torch_is_for_cpu():
            source = "PyTorch's CPU index"
            self.say(f"  no CPU build of torch in pip's configured sources; asking {CPU_TORCH_INDEX}")
            index = ["--index-url", CPU_TORCH_INDEX, "--retries", "2", "--timeout", "60"]
            if self.pip_exit_code(["--report", str(report), "--force-reinstall", *index, *wanted]) != 0:
                cause = error_line(self.log)
                raise EngineError(
                    f"no CPU build of torch in pip's configured sources nor at {CPU_TORCH_INDEX}: {cause}; "
                    f"name an index that has one in PIP_EXTRA_INDEX_URL and run this again (full log: {self.log})"
                )
        self.notes.append(f"{torch_origin(report)}, from {source}")

    def torch_is_for_cpu(self) -> bool:
        return self.child([*self.isolated, "-c", "import torch; raise SystemExit(torch.version.cuda is not None)"]) == 0

    def install_needs(self, step: InstallNeeds) -> None:
        needs = lines_for(self.held(step.package).requires[step.package], without=(*step.leave_out, "torch"))
        alone = [line for line in needs if package_of(line) in step.alone]
        together = [line for line in needs if line not in alone]
        if alone:
            self.pip_install(["--no-deps", *alone])
            for requires in self.held(*map(package_of, alone)).requires.values():
                together += lines_for(requires, without=(*step.leave_out, "torch"))
        torch = self.held("torch").packages["torch"]
        self.pip_install([*together, *step.also, f"torch=={torch}"])

    def held(self, *packages: str) -> Interpreter:
        return inspect_interpreter(self.python, packages)

    def pip_install(self, arguments: Sequence[str]) -> None:
        if self.pip_exit_code(arguments) != 0:
            raise EngineError(
                f"pip could not install {self.recipe.name}: {error_line(self.log)} (full log: {self.log})"
            )

    def pip_exit_code(self, arguments: Sequence[str]) -> int:
        return self.child([*self.isolated, "-m", "pip", "install", *INSTALL_OPTIONS, *arguments])

    def must(self, doing: str, argv: Sequence[str]) -> None:
        if self.child(argv) != 0:
            raise EngineError(f"{self.recipe.name}: could not {doing}: {error_line(self.log)} (full log: {self.log})")

    def child(self, argv: Sequence[str]) -> int:
        def waiting() -> None:
            self.say(f"  … {last_line(self.log)[:100]}")

        # pip's own children would follow the caller's PYTHONPATH into other packages.
        return self.run(argv, self.log, extra_env={"PYTHONPATH": ""}, inherit=self.inherit, waiting=waiting)

    def say(self, text: str) -> None:
        self.tell(f"[{time.monotonic() - self.started_s:4.0f} s] {text}")


def described(step: Step) -> str:
    match step:
        case Install(requirements, _):
            return f"install {' '.join(requirements)}"
        case InstallCpuTorch():
            return "install a CPU build of torch"
        case InstallNeeds(package, _, also, _):
            return f"install what {package} needs, and {', '.join(also)}"
        case Uninstall(packages):
            return f"remove what breaks imports, if it came along: {', '.join(packages)}"
        case PlaceFiles(folder, corrections):
            return f"put {folder} into the environment: {', '.join(corrections) or 'files it needs'}"


def lines_for(requires: Iterable[str], *, only: tuple[str, ...] = (), without: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Requirement lines of a package's metadata, markers and all (pip reads them), without those of its extras."""
    return tuple(
        line
        for line in requires
        if "extra ==" not in line and package_of(line) not in without and (not only or package_of(line) in only)
    )


def package_of(requirement: str) -> str:
    """`Foo_Bar[x]>=1; marker` -> `foo-bar`."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement.strip())
    return re.sub(r"[-_.]+", "-", name.group()).lower() if name else ""


def torch_origin(report: Path) -> str:
    """torch's version and where its file came from, by pip's report; only the host of a URL, never its credentials."""
    for item in json.loads(report.read_text(encoding="utf-8"))["install"]:
        if item["metadata"]["name"].lower() == "torch":
            url = urlsplit(item["download_info"]["url"])
            place = f"the file {unquote(url.path)}" if url.scheme == "file" else f"a download from {url.hostname}"
            return f"torch {item['metadata']['version']}: {place}"
    return "torch: was there before"


def place_files(folder: str, site_packages: Path) -> bool:
    """Bring the files of `tuner/engines/<folder>` up to date in `site_packages`; True if any differed."""
    return place(importlib.resources.files("tuner.engines").joinpath(*folder.split("/")), site_packages)


def place(source: Traversable, target: Path) -> bool:
    changed = False
    target.mkdir(exist_ok=True)
    # A .pth goes last: from then on every start of the interpreter imports what it names.
    for item in sorted(source.iterdir(), key=lambda item: (item.name.endswith(".pth"), item.name)):
        file = target / item.name
        if item.is_dir() and item.name != "__pycache__":
            changed |= place(item, file)
        elif item.name.endswith((".py", ".pth")) and (not file.is_file() or file.read_bytes() != item.read_bytes()):
            file.write_bytes(item.read_bytes())
            changed = True
    return changed
