"""Writing a file whose name the user gave: refusals in a sentence, a link followed, the file whole or as before."""

from __future__ import annotations

import os
from pathlib import Path

from tuner.errors import UserError


def write_chosen(file: Path, text: str, *, replace: bool) -> None:
    from tuner.run.files import write_atomic

    # What cannot be looked at (another's folder, a name too long) is none for os.path: writing says why in a sentence.
    if os.path.exists(file) and not os.path.isfile(file):
        raise UserError(f"{file} is not a file: choose another name")
    if os.path.exists(file) and not replace:
        raise UserError(f"{file} exists: choose another name, or replace it with --force")
    if not os.path.isdir(file.parent):
        raise UserError(f"the folder {file.parent} does not exist: make it, or choose another")
    # Of a link the file it leads to, or the rename would put a file in the link's place.
    write_atomic(file.resolve(), text)
