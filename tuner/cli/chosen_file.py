"""Writing a file whose name the user gave: refusals in a sentence, a link followed, the file whole or as before."""

from __future__ import annotations

from pathlib import Path

from tuner.errors import UserError


def write_chosen(file: Path, text: str, *, replace: bool) -> None:
    from tuner.run.files import write_atomic

    if file.exists() and not file.is_file():
        raise UserError(f"{file} is not a file: choose another name")
    if file.exists() and not replace:
        raise UserError(f"{file} exists: choose another name, or replace it with --force")
    if not file.parent.is_dir():
        raise UserError(f"the folder {file.parent} does not exist: make it, or choose another")
    # Of a link the file it leads to, or the rename would put a file in the link's place.
    write_atomic(file.resolve(), text)
