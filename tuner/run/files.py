"""Files that are whole or not there: written beside their place, synced, then renamed into it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tuner.errors import UserError


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """UserError where the disk does not take what is written to `path`: it is full, or the folder takes no files."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write {path} ({error.strerror or error}): make room and see that the folder can be written, then "
            "run the command again"
        ) from None


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replace `path`: whatever happens meanwhile, the old file is there or the new one; it lasts once this returns.

    UserError where the disk does not take it.
    """
    with writing(path):
        _write_atomic(path, content)


def make_folder(path: Path) -> None:
    """The folder and those above it, there already or not; UserError where it cannot be made."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)


def _write_atomic(path: Path, content: str | bytes) -> None:
    data = content.encode() if isinstance(content, str) else content
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            beside.unlink()
        raise
    sync_folder(path.parent)


def read_text(path: Path) -> str:
    """A text file somebody named; UserError when it is not there or not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UserError(f"cannot read {path} ({why}): name a text file that exists") from None


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable: a rename alone may be lost with the power."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def json_line(value: Any) -> bytes:
    """One line of JSON, newline included; readable UTF-8, and escapes only where a text holds half a surrogate pair."""
    line = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        return line.encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode() + b"\n"
