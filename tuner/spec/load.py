"""Reads `workload.yaml`: every problem becomes a sentence that names file, line and key before anything is launched."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from tuner.errors import UserError
from tuner.prompts import load_set
from tuner.spec.json_schema import schema_of
from tuner.spec.problems import sentences, shown
from tuner.spec.secret_words import refusals
from tuner.spec.strict import Strict
from tuner.spec.workload import Workload
from tuner.spec.yaml_document import Document, Place, parse_document, read_text

T = TypeVar("T", bound=Strict)
#: The hub allows 96 characters.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
HUB_ID = re.compile(rf"{NAME.pattern}/{NAME.pattern}")


def load_workload(path: Path) -> Workload:
    """The workload in a file, with everything it names by path found. UserError names all problems."""
    return parse_workload(read_text(path), path)


def parse_workload(text: str, path: Path) -> Workload:
    """As `load_workload`, for text that stands or would stand at `path`."""
    document = parse_document(text, path)
    workload = validated(document, Workload)
    _raise_all(document, [*_not_found(workload, document), *_secrets(workload, document)])
    return workload


def validated(document: Document, model: type[T]) -> T:
    """The document as a model of ours; UserError names every problem by file, line and key."""
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        _raise_all(document, sentences(error, document, schema_of(model)))
        raise


def resolve_path(base: Path, value: str) -> str:
    """The path, name or hub id that a `model` in a file of the folder `base` means.

    `./`, `../`, `/` and `~` begin a path, which must exist. Else a checkpoint at that path under `base` (a file, or a
    folder with config.json), and else a registered name or a hub id, which are returned as they are.
    """
    path = Path(os.path.normpath(base.absolute() / os.path.expanduser(value)))
    if value.startswith(("./", "../", "/", "~")) or value in (".", ".."):
        if not os.path.exists(path):
            raise UserError(f"{value} does not exist (looked for {path}): correct the path, or put the weights there")
        return str(path)
    # A folder alone may have the name of a registered model, as profiles/smollm2-135m has.
    if os.path.isfile(path) or os.path.isfile(path / "config.json"):
        return str(path)
    if NAME.fullmatch(value) or HUB_ID.fullmatch(value):
        return value
    if "://" in value:
        raise UserError(f"{value} is an address: give a folder, a registered name or a hub id such as org/name")
    raise UserError(
        f"{value} is no file or model folder in {base}, and neither a registered name nor a hub id such as org/name: "
        "correct it, or begin a path with ./ or /"
    )


def _not_found(workload: Workload, document: Document) -> Iterator[str]:
    base = document.path.resolve().parent
    models: list[tuple[Place, str | None]] = [(("model",), workload.model)]
    if workload.drafts != "auto":
        models += [(("drafts", i, "model"), draft.model) for i, draft in enumerate(workload.drafts)]
    for place, value in models:
        try:
            if value is not None:
                resolve_path(base, value)
        except UserError as error:
            yield f"{document.at(place)}: {shown(place)}: {error}"
    for i, item in enumerate(workload.traffic.prompts):
        place = ("traffic", "prompts", i, "set")
        try:
            load_set(item.set, base)
        except UserError as error:
            yield f"{document.at(place)}: {shown(place)}: {str(error).rstrip('.')}"


def _secrets(workload: Workload, document: Document) -> Iterator[str]:
    """Refused where it is typed alone: a study of an earlier tuner that holds one is still read, and shown without."""
    options = workload.engine_options
    typed: dict[Place, list[str]] = {("engine_options", "args"): options.args}
    typed |= {("engine_options", "by_engine", name, "args"): own.args for name, own in options.by_engine.items()}
    for place, args in typed.items():
        for refusal in refusals(args):
            yield f"{document.at(place)}: {shown(place)}: {refusal}"


def _raise_all(document: Document, problems: list[str]) -> None:
    if len(problems) == 1:
        raise UserError(problems[0])
    if problems:
        raise UserError("\n  ".join([f"{document.path} has {len(problems)} problems:", *problems]))
